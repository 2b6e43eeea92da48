//! What a persistent session may hold, and what an administrator sees of it, on the whole broker.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "fixture/client.rs"]
mod client;
#[path = "fixture/standalone.rs"]
mod standalone;

use client::{Client, connect};
use serde_json::Value;
use standalone::Standalone;
use std::time::Duration;
use tidemill_core::packet::{Connect, Disconnect, Packet, QoS, ReasonCode, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(20);

fn session(client_id: &str) -> Connect {
    Connect { clean_start: false, ..connect(Version::V3_1_1, client_id) }
}

async fn attach(broker: &Standalone, client_id: &str) -> Client {
    let (client, connack) = Client::connect_with(broker.address(), session(client_id)).await;
    assert_eq!(connack.body, [1, 0], "the session is there");
    client
}

/// A persistent session that subscribed to `q` and is away.
async fn away(broker: &Standalone, client_id: &str) {
    let (mut client, _) = Client::connect_with(broker.address(), session(client_id)).await;
    client.subscribe(&[("q", QoS::AtLeastOnce)]).await;
    client.send(Packet::Disconnect(Disconnect::new(ReasonCode::SUCCESS))).await;
    assert_eq!(client.receive_or_end().await, None);
}

async fn publish(broker: &Standalone, numbers: std::ops::Range<u16>) {
    let mut publisher = Client::connect(broker.address(), Version::V3_1_1, "publisher").await;
    for number in numbers {
        publisher.publish("q", &number.to_be_bytes(), Some(number + 1)).await;
        assert_eq!(publisher.receive().await.body, (number + 1).to_be_bytes());
    }
}

/// The numbers of the next `count` messages, which are acknowledged.
async fn receive(client: &mut Client, count: usize) -> Vec<u16> {
    let mut numbers = Vec::new();
    while numbers.len() < count {
        let (_, id, payload) = client.receive().await.message();
        client.puback(id.unwrap()).await;
        numbers.push(u16::from_be_bytes(payload.try_into().unwrap()));
    }
    numbers
}

async fn ask(broker: &Standalone, method: &str, path: &str) -> (u16, String) {
    let mut socket = tokio::net::TcpStream::connect(broker.running.admin_address()).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

async fn get(broker: &Standalone, path: &str) -> Value {
    let (status, body) = ask(broker, "GET", path).await;
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

/// The session once `is_so`; asked again until then.
async fn session_when(broker: &Standalone, client_id: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let asked = async {
        loop {
            let session = get(broker, &format!("/v1/sessions/{client_id}")).await;
            if is_so(&session) {
                return session;
            }
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.expect("the session comes to this")
}

fn queue(policy: &str) -> String {
    format!("sessions: {{queue: {{messages: 10, policy: {policy}}}}}\n")
}

#[tokio::test]
async fn a_full_queue_drops_its_oldest_messages_and_says_so() {
    let broker = Standalone::start_with(&queue("dropOldest")).await;
    away(&broker, "c").await;
    publish(&broker, 0..25).await;

    let session = session_when(&broker, "c", |session| session["dropped"]["messages"] == 15).await;

    assert_eq!(session["lag"]["messages"], 10);
    let metrics = ask(&broker, "GET", "/metrics").await.1;
    assert!(metrics.contains("tidemill_queue_dropped_messages_total{reason=\"messages\"} 15"), "{metrics}");
    assert!(metrics.contains("tidemill_queues_near_limit 1"), "{metrics}");
    let mut client = attach(&broker, "c").await;
    assert_eq!(receive(&mut client, 10).await, (15..25).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_full_queue_drops_what_comes_and_takes_again_when_it_has_drained() {
    let broker = Standalone::start_with(&queue("dropNewest")).await;
    away(&broker, "c").await;
    publish(&broker, 0..25).await;
    session_when(&broker, "c", |session| session["dropped"]["messages"] == 15).await;

    let mut client = attach(&broker, "c").await;
    assert_eq!(receive(&mut client, 10).await, (0..10).collect::<Vec<_>>());
    publish(&broker, 25..27).await;

    assert_eq!(receive(&mut client, 2).await, [25, 26]);
}

#[tokio::test]
async fn what_a_full_queue_gives_up_comes_to_who_is_subscribed_to_dead_letters() {
    let broker = Standalone::start_with(&queue("deadLetter")).await;
    let mut undertaker = Client::connect(broker.address(), Version::V3_1_1, "undertaker").await;
    undertaker.subscribe(&[("$dead/#", QoS::AtLeastOnce)]).await;
    away(&broker, "a/c").await;

    publish(&broker, 0..25).await;

    for number in 0..15_u16 {
        let (topic, id, payload) = undertaker.receive().await.message();
        undertaker.puback(id.unwrap()).await;
        assert_eq!((topic.as_str(), &payload[..]), ("$dead/a%2Fc", &number.to_be_bytes()[..]));
    }
    let mut client = attach(&broker, "a/c").await;
    assert_eq!(receive(&mut client, 10).await, (15..25).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_3_x_client_that_comes_back_gets_what_it_may_have_in_flight_and_more_for_each_acknowledgement() {
    let broker = Standalone::start_with("limits: {inFlight: 5}\n").await;
    away(&broker, "c").await;
    publish(&broker, 0..50).await;
    let mut client = attach(&broker, "c").await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(client.receive().await.message().1.unwrap());
    }

    assert_eq!(client.ping().await, []);
    let session = get(&broker, "/v1/sessions/c").await;
    assert_eq!((&session["inFlight"], &session["lag"]["messages"]), (&5.into(), &45.into()));
    client.puback(ids[0]).await;
    assert_eq!(client.receive().await.message().2, 5_u16.to_be_bytes());
    let session = session_when(&broker, "c", |session| session["lag"]["messages"] == 44).await;
    assert_eq!(session["inFlight"], 5);
}

#[tokio::test]
async fn sessions_are_listed_page_by_page_in_the_order_of_their_client_ids() {
    let broker = Standalone::start().await;
    for client_id in ["b-2", "b-1", "a", "b-3", "c"] {
        away(&broker, client_id).await;
    }
    let ids = |page: &Value| -> Vec<String> {
        let sessions = page["sessions"].as_array().unwrap();
        sessions.iter().map(|session| session["clientId"].as_str().unwrap().to_owned()).collect()
    };

    let first = get(&broker, "/v1/sessions?limit=3").await;
    let next = first["next"].as_str().unwrap();
    let second = get(&broker, &format!("/v1/sessions?limit=3&after={next}")).await;

    assert_eq!(ids(&first), ["a", "b-1", "b-2"]);
    assert_eq!((ids(&second), &second["next"]), (vec!["b-3".to_owned(), "c".to_owned()], &Value::Null));
    assert_eq!(ids(&get(&broker, "/v1/sessions?prefix=b-").await), ["b-1", "b-2", "b-3"]);
    for path in
        ["/v1/sessions?limit=0", "/v1/sessions?limit=1001", "/v1/sessions?after=x", "/v1/sessions?x=1"]
    {
        assert_eq!(ask(&broker, "GET", path).await.0, 400, "{path}");
    }
}

#[tokio::test]
async fn a_session_shows_its_connection_its_subscriptions_and_what_it_has_not_acknowledged() {
    let broker = Standalone::start().await;
    let (mut client, _) = Client::connect_with(broker.address(), session("c")).await;
    client.subscribe(&[("q", QoS::AtLeastOnce), ("other", QoS::ExactlyOnce)]).await;
    publish(&broker, 0..3).await;
    receive(&mut client, 1).await;
    client.receive().await;
    client.receive().await;

    let session = session_when(&broker, "c", |session| session["inFlight"] == 2).await;

    assert_eq!((&session["connected"], &session["host"]), (&true.into(), &"broker-0".into()));
    assert_eq!((&session["protocolVersion"], &session["unacknowledged"]), (&"3.1.1".into(), &2.into()));
    assert_eq!((&session["lag"]["messages"], &session["redeliveries"]), (&0.into(), &0.into()));
    let filters: Vec<_> =
        session["subscriptions"].as_array().unwrap().iter().map(|one| &one["filter"]).collect();
    assert_eq!(filters, ["other", "q"]);
    assert!(session["lastAcknowledgementTime"].as_str().unwrap().ends_with('Z'));
    drop(client);
    let session = session_when(&broker, "c", |session| session["connected"] == false).await;
    assert!(session["disconnectedTime"].as_str().unwrap() >= session["createdTime"].as_str().unwrap());

    attach(&broker, "c").await;
    session_when(&broker, "c", |session| session["redeliveries"] == 2).await;
}

#[tokio::test]
async fn an_ended_session_is_gone_with_its_connection_and_nothing_of_it_waits() {
    let broker = Standalone::start().await;
    let mut connect = Connect { clean_start: false, ..connect(Version::V5, "c") };
    connect.session_expiry_secs = Some(3_600);
    let (mut client, _) = Client::connect_with(broker.address(), connect.clone()).await;
    client.subscribe(&[("q", QoS::AtLeastOnce)]).await;

    assert_eq!(ask(&broker, "DELETE", "/v1/sessions/c").await.0, 204);

    let disconnect = client.receive().await;
    assert_eq!((disconnect.first_byte, disconnect.body[0]), (0xE0, 0x98));
    let (status, body) = ask(&broker, "GET", "/v1/sessions/c").await;
    assert_eq!(status, 404, "{body}");
    assert!(body.contains("\\\"c\\\" has no persistent session"), "{body}");
    assert_eq!(ask(&broker, "DELETE", "/v1/sessions/c").await.0, 404);
    let (_, connack) = Client::connect_with(broker.address(), connect).await;
    assert_eq!(connack.body[..2], [0, 0], "the session is new");
}
