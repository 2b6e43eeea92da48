//! What tests of the owner ask for and publish.

use super::parts::host;
use bytes::Bytes;
use tidemill_core::attach::{AttachRequest, Delivery, SessionLifetime, StoredSubscription};
use tidemill_core::message::Message;
use tidemill_core::packet::{QoS, RetainHandling, SubscriptionOptions, Version};
use tidemill_core::topic::{SubscriptionTarget, TopicName};

pub(crate) fn request(client_id: &str) -> AttachRequest {
    AttachRequest {
        client_id: client_id.into(),
        host: host(1),
        version: Version::V5,
        clean_start: false,
        lifetime: SessionLifetime::Persistent { expiry_secs: 3_600 },
        window: 100,
        user: None,
        will: None,
    }
}

pub(crate) fn options(qos: QoS) -> SubscriptionOptions {
    SubscriptionOptions {
        qos,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::DoNotSend,
    }
}

/// `target` as a client writes it.
pub(crate) fn subscription(target: &str, options: SubscriptionOptions) -> StoredSubscription {
    let target = SubscriptionTarget::parse(&target.into()).unwrap();
    StoredSubscription { target, options, identifier: None }
}

pub(crate) fn message(topic: &str, payload: &str) -> Message {
    Message {
        topic: TopicName::parse(topic).unwrap(),
        payload: Bytes::copy_from_slice(payload.as_bytes()),
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: None,
        publisher: "publisher".into(),
        publish_time_ms: 0,
    }
}

pub(crate) fn payloads(deliveries: &[Delivery]) -> Vec<String> {
    let text = |delivery: &Delivery| String::from_utf8(delivery.record.message.payload.to_vec()).unwrap();
    deliveries.iter().map(text).collect()
}
