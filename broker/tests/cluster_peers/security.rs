//! Who may be a peer.

use super::network::{Authority, Identity};
use super::node::{TestNode, acquaint, info, member, terms};
use rustls::pki_types::ServerName;
use std::time::Duration;
use tidemill_broker::cluster::ClusterView;
use tidemill_broker::cluster::peer::handshake::{Which, greeting, read_hello, write_hello};
use tidemill_broker::cluster::peer::tls::names_member;
use tidemill_broker::cluster::wire::Lane;
use tidemill_broker::cluster::wire::link::Hello;
use tidemill_core::member::{MemberEpoch, MemberId};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;

const LONG: Duration = Duration::from_secs(50);

/// Node `b`, which knows member `a` with incarnation 1 and epoch 1.
async fn b_that_knows_a(authority: &Authority) -> TestNode {
    let b = TestNode::start(authority, member("b", 1), LONG).await;
    let mut known = info(&b);
    known.member = member("a", 1);
    known.endpoint = "127.0.0.1:1".into();
    b.see(|view| {
        view.members = [known, info(&b)].map(|info| (info.member.id.clone(), info)).into();
    });
    b
}

/// What `a` says to `b`.
fn hello_of_a() -> Hello {
    let view = ClusterView {
        own: member("a", 1),
        own_epoch: MemberEpoch(1),
        members: Default::default(),
        owners: Vec::new(),
    };
    let which = Which { link: 7, lane: Lane::Control };
    greeting(&terms(), &view, &member("b", 1), which)
}

/// Dials `b` with `identity` and `hello`; the answer, if there is one.
async fn greet(b: &TestNode, identity: &Identity, hello: Hello) -> Option<Hello> {
    greet_over(TcpStream::connect(&b.address).await.unwrap(), identity, hello).await
}

async fn greet_over(socket: TcpStream, identity: &Identity, hello: Hello) -> Option<Hello> {
    let configs = identity.tls.configs().await.unwrap();
    let name = ServerName::try_from("b").unwrap();
    let mut stream = TlsConnector::from(configs.client).connect(name, socket).await.ok()?;
    write_hello(&mut stream, hello).await.ok()?;
    read_hello(&mut stream).await.ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_with_its_certificate_is_greeted() {
    let authority = Authority::new();
    let b = b_that_knows_a(&authority).await;

    let answer = greet(&b, &Identity::new(&authority, "a"), hello_of_a()).await.unwrap();

    assert_eq!(answer.speaker().unwrap(), b.member);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_another_authority_is_refused() {
    let authority = Authority::new();
    let b = b_that_knows_a(&authority).await;
    let stranger = Authority::new();
    let directory = tempfile::TempDir::new().unwrap();
    let mut files = stranger.issue(directory.path(), "a");
    let trusted = tempfile::TempDir::new().unwrap();
    files.ca_file = authority.issue(trusted.path(), "a").ca_file;
    let tls = std::sync::Arc::new(tidemill_broker::cluster::peer::tls::PeerTls::new(files));
    let configs = tls.configs().await.unwrap();
    let socket = TcpStream::connect(&b.address).await.unwrap();
    let connected =
        TlsConnector::from(configs.client).connect(ServerName::try_from("b").unwrap(), socket).await;

    // In TLS 1.3 the client's side is done before the server has judged the certificate.
    let answered = match connected {
        Ok(mut stream) => match write_hello(&mut stream, hello_of_a()).await {
            Ok(()) => read_hello(&mut stream).await.is_ok(),
            Err(_) => false,
        },
        Err(_) => false,
    };

    assert!(!answered);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_names_another_member_is_refused() {
    let authority = Authority::new();
    let b = b_that_knows_a(&authority).await;

    assert_eq!(greet(&b, &Identity::new(&authority, "c"), hello_of_a()).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_start_or_an_older_epoch_of_a_member_is_refused() {
    let authority = Authority::new();
    let b = b_that_knows_a(&authority).await;
    let identity = Identity::new(&authority, "a");
    let changes: [fn(&mut Hello); 6] = [
        |hello| hello.member = Some((&member("a", 2)).into()),
        |hello| hello.member_epoch = 0,
        |hello| hello.cluster = "other".into(),
        |hello| hello.partitions = 5,
        |hello| hello.peer = Some((&member("b", 2)).into()),
        |hello| hello.protocol_min = 2,
    ];

    for change in changes {
        let mut hello = hello_of_a();
        change(&mut hello);
        assert_eq!(greet(&b, &identity, hello.clone()).await, None, "{hello:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn new_links_use_certificates_that_were_replaced() {
    let (old, new) = (Authority::new(), Authority::new());
    let a = TestNode::start(&old, member("a", 1), LONG).await;
    let b = TestNode::start(&new, member("b", 1), LONG).await;
    a.identity.tls.configs().await.unwrap();

    a.identity.replace(&new, "a");
    acquaint(&[&a, &b]);

    a.linked_to(&["b"]).await;
}

#[tokio::test]
async fn a_certificate_names_members_by_its_alternative_names() {
    let authority = Authority::new();
    let directory = tempfile::TempDir::new().unwrap();
    let files = authority.issue(directory.path(), "broker-0");
    let pem = std::fs::read(files.certificate_file).unwrap();
    let certificate = rustls::pki_types::pem::PemObject::from_pem_slice(&pem).unwrap();

    assert!(names_member(&certificate, &MemberId::new("broker-0")));
    assert!(!names_member(&certificate, &MemberId::new("broker-1")));
    assert!(!names_member(&certificate, &MemberId::new("not a name")));
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_say_nothing_do_not_keep_a_peer_out() {
    let authority = Authority::new();
    let b = b_that_knows_a(&authority).await;
    let identity = Identity::new(&authority, "a");
    let mut idle = Vec::new();
    for _ in 0..100 {
        idle.push(TcpStream::connect(&b.address).await.unwrap());
    }
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let socket = socket.connect(b.address.parse().unwrap()).await.unwrap();

    assert!(greet_over(socket, &identity, hello_of_a()).await.is_some());
    let beyond = idle.last_mut().unwrap().read(&mut [0; 1]).await;
    assert!(beyond.is_err() || beyond.is_ok_and(|bytes| bytes == 0), "closed");
}
