//! One order of versions for each topic.

use super::*;

const VERSIONS: u32 = 400;

async fn publish_versions(broker: std::net::SocketAddr, name: &'static str) {
    let mut publisher = Client::connect(broker, Version::V3_1_1, name).await;
    for version in 1..=VERSIONS {
        publisher.send(Packet::Publish(retained("t", &format!("{version} of {name}"), Some(1)))).await;
        publisher.receive().await;
    }
}

fn number(seen: &Seen) -> u32 {
    seen.payload.split(' ').next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_subscription_ever_gets_an_older_version_after_a_newer_one() {
    let broker = Broker::start_with("threads: 2\n").await;
    let mut client = Client::connect(broker.address(), Version::V5, "c").await;
    let publishing = tokio::spawn(publish_versions(broker.address(), "p"));

    let mut last = 0;
    while last < VERSIONS {
        let found = subscribe(&mut client, "t", QoS::AtMostOnce).await;
        for seen in &found {
            assert!(number(seen) >= last, "{} after {last}", seen.payload);
            last = number(seen);
        }
    }
    publishing.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_subscription_got_last_is_what_is_retained_also_with_several_publishers() {
    let broker = Broker::start_with("threads: 2\n").await;
    let mut present = Client::connect(broker.address(), Version::V3_1_1, "present").await;
    subscribe(&mut present, "t", QoS::AtMostOnce).await;
    let publishing = ["p", "q", "r"].map(|name| tokio::spawn(publish_versions(broker.address(), name)));

    let mut last = String::new();
    for _ in 0..3 * VERSIONS {
        last = Seen::of(&present.receive().await, Version::V3_1_1).payload;
    }
    for publisher in publishing {
        publisher.await.unwrap();
    }

    let mut later = Client::connect(broker.address(), Version::V3_1_1, "later").await;
    let found = subscribe(&mut later, "t", QoS::AtMostOnce).await;
    assert_eq!(short(&found), [("t", last.as_str(), 0, true)]);
}
