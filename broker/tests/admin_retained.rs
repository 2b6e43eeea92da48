//! `/v1/retained`: retained messages as an administrator lists, shows and clears them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "fixture/broker.rs"]
mod broker;
#[path = "fixture/client.rs"]
mod client;
#[path = "fixture/http.rs"]
mod http;

use broker::{Broker, CLUSTER};
use bytes::Bytes;
use client::{Client, publish};
use http::{Answer, request};
use std::sync::Arc;
use tidemill_broker::log::memory::{MemoryLog, Offsets};
use tidemill_broker::log::retained::RetainedLog;
use tidemill_contract::admin::{Problem, RetainedMessage, RetainedPage};
use tidemill_core::packet::{Packet, PublishPacket, PublishProperties, QoS, Version};
use tidemill_core::partition::Partitioning;

async fn get(broker: &Broker, path: &str) -> Answer {
    request(broker.running.admin_address(), "GET", path).await
}

async fn retain(broker: &Broker, messages: impl IntoIterator<Item = PublishPacket>) {
    let mut publisher = Client::connect(broker.address(), Version::V5, "publisher").await;
    for message in messages {
        publisher.send(Packet::Publish(PublishPacket { retain: true, ..message })).await;
        publisher.receive().await;
    }
}

async fn page(broker: &Broker, query: &str) -> RetainedPage {
    let answer = get(broker, &format!("/v1/retained{query}")).await;
    assert_eq!((answer.status, &*answer.content_type), (200, "application/json"), "{answer:?}");
    serde_json::from_str(&answer.body).unwrap()
}

fn topics(page: &RetainedPage) -> Vec<&str> {
    page.messages.iter().map(|message| message.topic.as_str()).collect()
}

/// The answer is a problem document that contains `text`.
fn assert_problem(answer: &Answer, status: u16, text: &str) {
    assert_eq!((answer.status, &*answer.content_type), (status, "application/problem+json"), "{answer:?}");
    let problem: Problem = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(problem.status, status);
    assert!(problem.detail.contains(text), "{problem:?}");
}

#[tokio::test]
async fn pages_have_every_message_of_the_filter_once_in_order() {
    let broker = Broker::start().await;
    let expected: Vec<_> = (0..250).map(|number| format!("site/{}/d{:03}", number / 100, number)).collect();
    retain(&broker, expected.iter().map(|topic| publish(topic, b"x", Some(1)))).await;
    retain(&broker, [publish("other", b"x", Some(1))]).await;

    let mut found = Vec::new();
    let mut query = "?filter=site/%23&limit=7".to_owned();
    loop {
        let page = page(&broker, &query).await;
        assert!(page.messages.len() <= 7);
        found.extend(topics(&page).into_iter().map(str::to_owned));
        let Some(next) = page.next else { break };
        query = format!("?filter=site/%23&limit=7&after={next}");
    }

    assert_eq!(found, expected);
    assert_eq!(page(&broker, "").await.messages.len(), 100, "the limit that is not given");
    assert_eq!(page(&broker, "?limit=1000").await.messages.len(), 251, "no filter is everything");
    let some = page(&broker, "?filter=site/%2B/d010").await;
    assert_eq!((topics(&some), &some.next), (vec!["site/0/d010"], &None));
}

/// A page ends after some work, not only after some messages.
#[tokio::test]
async fn a_filter_that_finds_little_among_much_goes_on_with_the_next_page() {
    let broker = Broker::start().await;
    let many = (0..40_000).map(|number| publish(&format!("a/{number:05}/x"), b"x", None));
    let mut publisher = Client::connect(broker.address(), Version::V5, "many").await;
    for message in many {
        publisher.send(Packet::Publish(PublishPacket { retain: true, ..message })).await;
    }
    publisher.ping().await;
    retain(&broker, [publish("a/99999/y", b"x", Some(1))]).await;

    let (mut pages, mut found) = (0, Vec::new());
    let mut query = "?filter=a/%2B/y".to_owned();
    loop {
        let page = page(&broker, &query).await;
        pages += 1;
        found.extend(topics(&page).into_iter().map(str::to_owned));
        let Some(next) = page.next else { break };
        query = format!("?filter=a/%2B/y&after={next}");
    }

    assert_eq!(found, ["a/99999/y"]);
    assert!(pages > 1, "80,000 levels are too many for one page");
}

#[tokio::test]
async fn a_message_is_shown_with_everything_its_publisher_gave_it() {
    let broker = Broker::start().await;
    let properties = PublishProperties {
        payload_is_utf8: Some(true),
        message_expiry_secs: Some(60),
        content_type: Some("text/plain".into()),
        response_topic: Some("answers".into()),
        correlation_data: Some(Bytes::from_static(&[0xFF, 1])),
        user_properties: vec![("k".into(), "v".into()), ("k".into(), "w".into())],
        ..PublishProperties::default()
    };
    let all = PublishPacket {
        properties: Some(Box::new(properties)),
        ..publish("/a b/ü", "grüße".as_bytes(), Some(1))
    };
    retain(&broker, [all, publish("binary", &[0xFF, 0], Some(1))]).await;

    let shown = get(&broker, "/v1/retained/%2Fa%20b/%C3%BC").await.json();
    let binary = get(&broker, "/v1/retained/binary").await;

    assert_eq!(shown["topic"], "/a b/ü");
    assert_eq!(shown["qos"], 1);
    assert_eq!(shown["publisher"], "publisher");
    assert_eq!((&shown["payloadText"], &shown["payloadBytes"]), (&"grüße".into(), &7.into()));
    assert_eq!(shown["payloadBase64"], "Z3LDvMOfZQ==");
    let time = |name: &str| shown[name].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    assert_eq!(time("expiryTime").duration_since(time("publishTime")).as_secs(), 60);
    let expected = serde_json::json!({
        "payloadIsUtf8": true,
        "contentType": "text/plain",
        "responseTopic": "answers",
        "correlationDataBase64": "/wE=",
        "userProperties": [{"name": "k", "value": "v"}, {"name": "k", "value": "w"}],
    });
    assert_eq!(shown["properties"], expected);
    let binary: RetainedMessage = serde_json::from_str(&binary.body).unwrap();
    assert_eq!((&*binary.payload_base64, binary.payload_text), ("/wA=", None));
    assert_eq!((binary.summary.expiry_time, binary.properties), (None, None));
}

#[tokio::test]
async fn a_cleared_message_is_gone_also_from_the_store_and_subscribers_hear_nothing() {
    let log = MemoryLog::new(Partitioning::new(4, 2).unwrap(), Offsets::Contiguous);
    let storage = log.retained();
    let broker = Broker::start_retaining("", Some(Arc::clone(&storage) as _)).await;
    let address = broker.running.admin_address();
    retain(&broker, [publish("a/b", b"x", Some(1)), publish("c", b"x", Some(1))]).await;
    let mut present = Client::connect(broker.address(), Version::V3_1_1, "present").await;
    present.subscribe(&[("a/b", QoS::AtMostOnce)]).await;
    assert_eq!(present.ping().await.len(), 1);
    storage.hold();

    let clearing = tokio::spawn(request(address, "DELETE", "/v1/retained/a%2Fb"));
    broker.until(|_| storage.waiting_count() == 1).await;
    assert!(!clearing.is_finished(), "it is answered when it is stored");
    storage.release();

    assert_eq!(
        clearing.await.unwrap(),
        Answer { status: 204, content_type: String::new(), body: String::new() }
    );
    assert_eq!(topics(&page(&broker, "").await), ["c"]);
    assert_eq!(storage.load(None).await.unwrap().len(), 1);
    assert_eq!(present.ping().await, []);
    let again = request(address, "DELETE", "/v1/retained/a/b").await;
    assert_problem(&again, 404, "\"a/b\" has no retained message");
    assert_eq!(storage.waiting_count(), 0);
}

#[tokio::test]
async fn what_is_wrong_with_a_request_is_named() {
    let broker = Broker::start_with("mqtt: {sysIntervalSecs: 1}\n").await;
    for (path, named) in [
        ("?filter=a/%23/b", "filter \"a/#/b\": wildcard does not fill its level"),
        ("?filter=", "filter \"\": topic is empty"),
        ("?limit=0", "limit 0"),
        ("?limit=1001", "limit 1001"),
        ("?limit=many", "limit"),
        ("?after=a/b", "after \"a/b\""),
        ("?page=2", "page"),
        ("/a/%2B", "topic \"a/+\""),
        ("/%FF", "UTF-8"),
    ] {
        assert_problem(&get(&broker, &format!("/v1/retained{path}")).await, 400, named);
    }
    assert_problem(&get(&broker, "/v1/retained/never").await, 404, "\"never\" has no retained message");
    let address = broker.running.admin_address();
    let own = request(address, "DELETE", "/v1/retained/$SYS/broker/uptime").await;
    assert_problem(&own, 403, "by the broker itself");
    assert_problem(&request(address, "POST", "/v1/retained").await, 405, "/v1/retained does not take POST");
    broker.until(|broker| broker.data_path.metrics.totals().retained > 0).await;
    assert!(topics(&page(&broker, "?filter=$SYS/%23").await).contains(&"$SYS/broker/version"));
    assert_eq!(topics(&page(&broker, "").await), Vec::<&str>::new());
}

#[tokio::test]
async fn a_broker_that_retains_nothing_says_so() {
    let broker = Broker::start_with(CLUSTER).await;
    let address = broker.running.admin_address();

    for (method, path) in [("GET", ""), ("GET", "/t"), ("DELETE", "/t")] {
        let answer = request(address, method, &format!("/v1/retained{path}")).await;
        assert_problem(&answer, 404, "this broker does not retain messages");
    }
}
