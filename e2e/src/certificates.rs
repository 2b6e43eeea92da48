//! A certificate authority and peer certificates for broker processes that no operator looks after.

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use std::path::{Path, PathBuf};
use tidemill_contract::config::PeerTls;

/// A throw-away certificate authority whose files lie in one folder.
pub struct Authority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes one and writes `ca.crt` into `folder`.
    ///
    /// # Errors
    ///
    /// When the folder cannot be written.
    pub fn create(folder: &Path) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "tidemill test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?;
        std::fs::write(folder.join("ca.crt"), certificate.pem()).context("write ca.crt")?;
        Ok(Self { folder: folder.to_owned(), issuer: Issuer::new(params, key) })
    }

    /// Makes the certificate of `member` and names its three files.
    ///
    /// # Errors
    ///
    /// When the folder cannot be written.
    pub fn member(&self, member: &str) -> Result<PeerTls> {
        let mut params = CertificateParams::new(vec![member.to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, member);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let tls = PeerTls {
            ca_file: self.folder.join("ca.crt"),
            certificate_file: self.folder.join(format!("{member}.crt")),
            key_file: self.folder.join(format!("{member}.key")),
        };
        std::fs::write(&tls.certificate_file, certificate.pem()).context("write the certificate")?;
        std::fs::write(&tls.key_file, key.serialize_pem()).context("write the key")?;
        Ok(tls)
    }
}
