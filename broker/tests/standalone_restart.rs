//! The binary as a user runs it, with its embedded log.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "fixture/client.rs"]
mod client;
#[path = "fixture/process.rs"]
mod process;

use client::{Client, connect, will};
use process::{PATIENCE, Process, command};
use std::num::NonZeroU16;
use tidemill_core::packet::{Connect, Disconnect, Packet, QoS, ReasonCode, Version};
use tidemill_core::partition::{Partitioning, QueueKind};

fn session(version: Version, clean_start: bool) -> Connect {
    let mut connect = connect(version, "keeper");
    connect.clean_start = clean_start;
    connect.session_expiry_secs = version.is_v5().then_some(3_600);
    connect
}

#[tokio::test]
async fn a_qos_1_message_for_a_client_that_is_away_survives_kill_9() {
    for version in [Version::V3_1_1, Version::V5] {
        let data = tempfile::tempdir().unwrap();
        let (broker, address) = Process::start(data.path()).await;
        let (mut keeper, connack) = Client::connect_with(address, session(version, false)).await;
        assert_eq!(connack.body[..2], [0, 0], "the session is new");
        assert_eq!(keeper.subscribe(&[("k/#", QoS::AtLeastOnce)]).await.body.last(), Some(&1));
        keeper.send(Packet::Disconnect(Disconnect::new(ReasonCode::SUCCESS))).await;
        assert_eq!(keeper.receive_or_end().await, None);
        let mut publisher = Client::connect(address, Version::V3_1_1, "publisher").await;
        for id in 1..=10_u16 {
            publisher.publish("k/x", &id.to_be_bytes(), Some(id)).await;
            assert_eq!(publisher.receive().await.body, id.to_be_bytes());
        }

        broker.end(rustix::process::Signal::KILL).await;
        let (broker, address) = Process::start(data.path()).await;

        let (mut keeper, connack) = Client::connect_with(address, session(version, false)).await;
        assert_eq!(connack.body[..2], [1, 0], "the session is present");
        let mut received = Vec::new();
        while received.len() < 10 {
            let packet = keeper.receive().await;
            assert_eq!(packet.first_byte & 0xF6, 0x32);
            received.push(u16::from_be_bytes(*packet.body.last_chunk().unwrap()));
            keeper.puback(u16::from_be_bytes([packet.body[5], packet.body[6]])).await;
        }
        assert_eq!(received, (1..=10).collect::<Vec<_>>());
        assert!(broker.end(rustix::process::Signal::TERM).await.success());
    }
}

#[tokio::test]
async fn a_data_directory_in_use_and_a_taken_port_are_named() {
    let data = tempfile::tempdir().unwrap();
    let (_broker, address) = Process::start(data.path()).await;
    let path = data.path().to_str().unwrap();
    let other = tempfile::tempdir().unwrap();
    let url = format!("mqtt://{address}");

    let same_data = command(&["--listen", "mqtt://127.0.0.1:0", "--admin", "127.0.0.1:0", "--data", path]);
    let same_port =
        command(&["--listen", &url, "--admin", "127.0.0.1:0", "--data", other.path().to_str().unwrap()]);
    for (mut command, expected) in [(same_data, "is used by process"), (same_port, "cannot listen on")] {
        let output = tokio::time::timeout(PATIENCE, command.output()).await.unwrap().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(expected), "{said}");
    }
}

#[tokio::test]
async fn check_config_names_the_line_and_the_flags_are_as_documented() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("broker.yaml");
    std::fs::write(&file, "limits:\n  connections: 10\n").unwrap();
    let good = command(&["check-config", file.to_str().unwrap()]).output().await.unwrap();
    assert!(good.status.success(), "{good:?}");
    std::fs::write(&file, "limits:\n  conections: 10\n").unwrap();
    let bad = command(&["check-config", file.to_str().unwrap()]).output().await.unwrap();
    assert!(!bad.status.success());
    let said = String::from_utf8(bad.stderr).unwrap();
    assert!(said.contains("line 2") && said.contains("conections"), "{said}");

    let open = command(&["--listen", "mqtt://0.0.0.0:0"]).output().await.unwrap();
    assert!(String::from_utf8(open.stderr).unwrap().contains("--allow-anonymous"));
    let help = command(&["serve", "--help"]).output().await.unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for flag in ["--config", "--listen", "--admin", "--data", "--allow-anonymous", "--set"] {
        assert!(help.contains(flag), "{flag}: {help}");
    }
}

/// MQTT-3.8.4-4, over a real socket: the queue gives out what it owes, what follows comes from memory at QoS 0.
#[tokio::test]
async fn a_subscription_that_is_lowered_to_qos_0_loses_none_of_its_messages() {
    let data = tempfile::TempDir::new().unwrap();
    let (process, address) = Process::start(data.path()).await;
    let mut slow = session(Version::V5, true);
    slow.receive_maximum = NonZeroU16::new(1);
    let (mut client, _) = Client::connect_with(address, slow).await;
    client.subscribe(&[("t", QoS::AtLeastOnce)]).await;
    let mut publisher = Client::connect(address, Version::V3_1_1, "publisher").await;
    for id in 1..=3 {
        publisher.publish("t", &[id], Some(u16::from(id))).await;
        publisher.receive().await;
    }
    let first = client.receive().await;

    let suback = client.subscribe(&[("t", QoS::AtMostOnce)]).await;
    assert_eq!(suback.body, [0, 1, 0, 0]);
    publisher.publish("t", &[4], Some(4)).await;
    publisher.receive().await;

    let live = client.receive().await;
    // An empty list of properties stands before the payload.
    assert_eq!(live.message(), ("t".into(), None, vec![0, 4]));
    let mut got = vec![first];
    while got.len() < 3 {
        let id = got.last().and_then(|last| last.message().1).unwrap();
        client.puback(id).await;
        got.push(client.receive().await);
    }
    let payloads: Vec<_> = got.iter().map(|one| one.message().2).collect();
    assert_eq!(payloads, [[0, 1], [0, 2], [0, 3]]);
    assert!(process.end(rustix::process::Signal::TERM).await.success());
}

/// A will of a connection that dies with the broker waits for 30 s, and is called off by a reconnect; one whose delay was
/// running goes on.
#[tokio::test]
async fn wills_survive_kill_9() {
    for version in [Version::V3_1_1, Version::V5] {
        let data = tempfile::tempdir().unwrap();
        let (broker, address) = Process::start(data.path()).await;
        let (mut watcher, _) = Client::connect_with(address, session(version, false)).await;
        watcher.subscribe(&[("will/#", QoS::AtLeastOnce)]).await;
        let with_will = |client_id: &str, delay_secs| {
            let mut connect = connect(Version::V5, client_id);
            connect.session_expiry_secs = Some(3_600);
            connect.clean_start = false;
            connect.will = will(&format!("will/{client_id}"), delay_secs);
            connect
        };
        let (_connected, _) = Client::connect_with(address, with_will("connected", 0)).await;
        let (mut delayed, _) = Client::connect_with(address, with_will("delayed", 1)).await;
        delayed.send_raw(b"\xe0\x01\x04").await;
        assert_eq!(delayed.receive_or_end().await, None);
        // Stored with the attach of a client whose session has the same owner.
        let group = |client_id: &str| {
            let partitioning = Partitioning::new(32, 16).unwrap();
            partitioning.group_of(partitioning.partition_of(QueueKind::Session, client_id))
        };
        let mut names = (0..).map(|number| format!("neighbour-{number}"));
        let name = names.find(|name| group(name) == group("delayed")).unwrap();
        let (_neighbour, _) = Client::connect_with(address, with_will(&name, 3_600)).await;

        broker.end(rustix::process::Signal::KILL).await;
        let (broker, address) = Process::start(data.path()).await;

        let (_back, _) = Client::connect_with(address, with_will("connected", 0)).await;
        let (mut watcher, _) = Client::connect_with(address, session(version, false)).await;
        let published = watcher.receive().await;
        assert_eq!(published.message().0, "will/delayed");
        assert!(broker.end(rustix::process::Signal::TERM).await.success());
    }
}
