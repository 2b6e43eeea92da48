//! Certificates, and a network that can be cut and stalled.

use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use tidemill_broker::cluster::peer::tls::PeerTls;
use tidemill_contract::config::PeerTls as PeerTlsFiles;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A certificate authority.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Writes the three files of `name` into `directory`.
    pub(crate) fn issue(&self, directory: &Path, name: &str) -> PeerTlsFiles {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let files = PeerTlsFiles {
            ca_file: directory.join("ca.crt"),
            certificate_file: directory.join("tls.crt"),
            key_file: directory.join("tls.key"),
        };
        std::fs::write(&files.ca_file, self.0.pem()).unwrap();
        std::fs::write(&files.certificate_file, certificate.pem()).unwrap();
        std::fs::write(&files.key_file, key.serialize_pem()).unwrap();
        files
    }
}

/// The identity of a member, in files that live as long as it.
pub(crate) struct Identity {
    pub(crate) tls: Arc<PeerTls>,
    directory: TempDir,
}

impl Identity {
    pub(crate) fn new(authority: &Authority, name: &str) -> Self {
        let directory = TempDir::new().unwrap();
        let files = authority.issue(directory.path(), name);
        Self { tls: Arc::new(PeerTls::new(files)), directory }
    }

    /// Replaces the files.
    pub(crate) fn replace(&self, authority: &Authority, name: &str) {
        authority.issue(self.directory.path(), name);
    }
}

/// How the wire behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    Open,
    /// Connections are closed and new ones too.
    Cut,
    /// Nothing is read from the data lane of the link that stands, nor from new connections.
    DataStalled,
}

/// A way to one broker that passes on what it gets.
pub(crate) struct Proxy {
    pub(crate) address: String,
    wire: watch::Sender<Wire>,
    /// Connections in the order of their numbers, and the first of those that [`Wire::DataStalled`] stalls.
    connections: Arc<Mutex<Connections>>,
    _tasks: Arc<Mutex<JoinSet<()>>>,
}

impl Proxy {
    pub(crate) async fn to(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let wire = watch::Sender::new(Wire::Open);
        let tasks = Arc::new(Mutex::new(JoinSet::new()));
        let connections = Arc::new(Mutex::new(Connections::default()));
        let (state, within, known) = (wire.subscribe(), Arc::clone(&tasks), Arc::clone(&connections));
        tasks.lock().spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                if *state.borrow() == Wire::Cut {
                    continue;
                }
                known.lock().last += 1;
                let number = known.lock().last;
                let (known, target, state) = (Arc::clone(&known), target.clone(), state.clone());
                within.lock().spawn(pass(socket, target, state, (number, known)));
            }
        });
        Self { address, wire, connections, _tasks: tasks }
    }

    pub(crate) fn set(&self, wire: Wire) {
        if wire == Wire::DataStalled {
            // A link opens its control lane first: of the two that stand, the data lane is the newest connection.
            let mut connections = self.connections.lock();
            connections.stalled_from = connections.last;
        }
        self.wire.send_replace(wire);
    }
}

#[derive(Default)]
struct Connections {
    last: u64,
    stalled_from: u64,
}

async fn pass(
    client: TcpStream,
    target: String,
    state: watch::Receiver<Wire>,
    (number, connections): (u64, Arc<Mutex<Connections>>),
) {
    let Ok(server) = TcpStream::connect(target).await else { return };
    let (client_in, client_out) = client.into_split();
    let (server_in, server_out) = server.into_split();
    let one_way = |mut from: tokio::net::tcp::OwnedReadHalf,
                   mut to: tokio::net::tcp::OwnedWriteHalf,
                   mut state: watch::Receiver<Wire>| async move {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let wire = *state.borrow_and_update();
            let stalled = wire == Wire::DataStalled && number >= connections.lock().stalled_from;
            if wire == Wire::Cut {
                return;
            }
            tokio::select! {
                read = from.read(&mut buffer), if !stalled => match read {
                    Ok(0) | Err(_) => return,
                    Ok(count) => if to.write_all(&buffer[..count]).await.is_err() { return },
                },
                changed = state.changed() => if changed.is_err() { return },
            }
        }
    };
    tokio::select! {
        () = one_way(client_in, server_out, state.clone()) => {}
        () = one_way(server_in, client_out, state) => {}
    }
}
