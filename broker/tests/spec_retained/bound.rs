//! `limits.retainedBytes`.

use super::*;

/// Two small messages fit, a large one does not.
const BOUND: &str = "limits: {retainedBytes: 1500}\n";

fn large() -> String {
    "x".repeat(2_000)
}

#[tokio::test]
async fn a_5_0_publisher_is_told_that_there_is_no_room_and_its_message_goes_nowhere() {
    let broker = Broker::start_with(BOUND).await;
    let mut publisher = Client::connect(broker.address(), Version::V5, "p").await;
    let mut present = Client::connect(broker.address(), Version::V5, "present").await;
    retain(&mut publisher, &[("t", "fits")]).await;
    present.subscribe(&[("t", QoS::AtMostOnce)]).await;
    present.ping().await;

    publisher.send(Packet::Publish(retained("t", &large(), Some(9)))).await;

    assert_eq!(publisher.receive().await.body, [0, 9, 0x97]);
    assert_eq!(seen(&mut present).await, []);
    let mut later = Client::connect(broker.address(), Version::V5, "later").await;
    assert_eq!(short(&subscribe(&mut later, "t", QoS::AtMostOnce).await), [("t", "fits", 0, true)]);
    retain(&mut publisher, &[("u", "there is still room for small ones"), ("t", "")]).await;
    assert_eq!(metric(&broker, "messages_dropped_total{reason=\"retained_full\"}"), 1);
}

/// A subscriber must not find an outdated message, so there is none (MQTT-3.3.1-7 of 3.1.1 allows it).
#[tokio::test]
async fn a_publisher_that_cannot_be_told_has_its_message_delivered_and_nothing_retained() {
    let broker = Broker::start_with(BOUND).await;
    for (version, id) in [(Version::V3_1_1, Some(9)), (Version::V3_1_1, None), (Version::V5, None)] {
        let mut publisher = Client::connect(broker.address(), version, "p").await;
        let mut present = Client::connect(broker.address(), version, "present").await;
        retain(&mut publisher, &[("t", "fits"), ("u", "fits too")]).await;
        present.subscribe(&[("t", QoS::AtMostOnce)]).await;
        present.ping().await;

        publisher.send(Packet::Publish(retained("t", &large(), id))).await;
        let answers = publisher.ping().await;

        assert_eq!(answers.len(), usize::from(id.is_some()), "PUBACK as ever");
        assert_eq!(short(&seen(&mut present).await), [("t", large().as_str(), 0, false)]);
        let mut later = Client::connect(broker.address(), version, "later").await;
        let found = subscribe(&mut later, "#", QoS::AtMostOnce).await;
        assert_eq!(short(&found), [("u", "fits too", 0, true)]);
    }
    assert_eq!(metric(&broker, "messages_dropped_total{reason=\"retained_full\"}"), 3);
}
