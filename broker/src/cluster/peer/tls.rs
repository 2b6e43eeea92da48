//! Mutual TLS of peer links, from three files that may be replaced while the broker runs.

use parking_lot::Mutex;
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_contract::config::PeerTls as PeerTlsFiles;
use tidemill_core::member::MemberId;

/// The files do not make a TLS identity, or a peer's certificate does not fit.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {path}: {error}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        error: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{path} is not usable: {reason}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Certificate, key and authority do not fit together.
    #[error("certificates and key do not fit together: {0}")]
    Identity(#[from] rustls::Error),
    /// Reading was interrupted because the broker stops.
    #[error("broker is stopping")]
    Stopping,
}

/// Configurations for both directions, of one state of the files.
#[derive(Debug, Clone)]
pub struct TlsConfigs {
    /// For links that this broker dials.
    pub client: Arc<ClientConfig>,
    /// For links that it accepts.
    pub server: Arc<ServerConfig>,
}

#[derive(Debug, PartialEq, Eq)]
struct Contents {
    ca: Vec<u8>,
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// The TLS identity of this broker. New connections use the files as they are then; connections that exist go on.
#[derive(Debug)]
pub struct PeerTls {
    files: PeerTlsFiles,
    loaded: Mutex<Option<(Contents, TlsConfigs)>>,
}

impl PeerTls {
    /// Takes the three files; nothing is read yet.
    #[must_use]
    pub fn new(files: PeerTlsFiles) -> Self {
        Self { files, loaded: Mutex::new(None) }
    }

    /// The configurations, read anew when a file has changed. Files that turn unusable do not replace usable ones.
    ///
    /// # Errors
    ///
    /// [`TlsError`] when the files were never usable; at start the broker refuses to run.
    pub async fn configs(self: &Arc<Self>) -> Result<TlsConfigs, TlsError> {
        let this = Arc::clone(self);
        tokio::task::spawn_blocking(move || this.load()).await.map_err(|_| TlsError::Stopping)?
    }

    fn load(&self) -> Result<TlsConfigs, TlsError> {
        let fresh = self.read();
        let mut loaded = self.loaded.lock();
        let built = match (fresh, loaded.as_ref()) {
            (Ok(contents), Some((former, configs))) if contents == *former => return Ok(configs.clone()),
            (Ok(contents), _) => self.build(&contents).map(|configs| (contents, configs)),
            (Err(error), _) => Err(error),
        };
        match (built, loaded.as_ref()) {
            (Ok((contents, configs)), _) => {
                *loaded = Some((contents, configs.clone()));
                Ok(configs)
            }
            (Err(error), Some((_, configs))) => {
                tracing::warn!(%error, "peer certificates are unusable; going on with the former ones");
                Ok(configs.clone())
            }
            (Err(error), None) => Err(error),
        }
    }

    fn read(&self) -> Result<Contents, TlsError> {
        Ok(Contents {
            ca: read(&self.files.ca_file)?,
            certificate: read(&self.files.certificate_file)?,
            key: read(&self.files.key_file)?,
        })
    }

    fn build(&self, contents: &Contents) -> Result<TlsConfigs, TlsError> {
        let mut roots = RootCertStore::empty();
        for authority in certificates(&contents.ca, &self.files.ca_file)? {
            roots.add(authority)?;
        }
        let roots = Arc::new(roots);
        let chain = certificates(&contents.certificate, &self.files.certificate_file)?;
        let key = PrivateKeyDer::from_pem_slice(&contents.key)
            .map_err(|error| file_error(&self.files.key_file, &error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = &[&rustls::version::TLS13];
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .build()
            .map_err(|error| file_error(&self.files.ca_file, &error))?;
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)?;
        client.resumption = Resumption::disabled();
        Ok(TlsConfigs { client: Arc::new(client), server: Arc::new(server) })
    }
}

/// Whether `certificate`, whose chain was verified, names `member` in its subject alternative names.
#[must_use]
pub fn names_member(certificate: &CertificateDer<'_>, member: &MemberId) -> bool {
    let Ok(name) = ServerName::try_from(member.as_str()) else { return false };
    ParsedCertificate::try_from(certificate)
        .and_then(|parsed| rustls::client::verify_server_name(&parsed, &name))
        .is_ok()
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|error| TlsError::Read { path: path.to_owned(), error })
}

fn certificates(pem: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| file_error(path, &error))?;
    if all.is_empty() {
        return Err(TlsError::File { path: path.to_owned(), reason: "it holds no certificate".into() });
    }
    Ok(all)
}

fn file_error(path: &Path, error: &dyn std::fmt::Display) -> TlsError {
    TlsError::File { path: path.to_owned(), reason: error.to_string() }
}
