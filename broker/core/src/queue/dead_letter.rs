//! What is published of a message that a queue gave up.

use super::limits::DropReason;
use super::partition::aside::DEAD_LETTER_REASON;
use crate::attach::QueueId;
use crate::message::Message;
use crate::packet::QoS;
use crate::topic::TopicName;
use bytestring::ByteString;

/// Stands for the client id in the template of the topic.
pub const CLIENT_ID: &str = "{clientId}";
/// Name of the user property with the topic that the message was published to.
pub const TOPIC: &str = "dead-letter-topic";
/// Name of the user property with the client id of the session that gave the message up.
pub const SESSION: &str = "dead-letter-session";

/// The topic of a queue's dead letters. `/`, `+`, `#`, `%` and control characters of a client id are percent-encoded: it
/// stays one level, and no wildcard. `None` when the topic is none, such as when it is too long.
#[must_use]
pub fn topic_of(template: &str, client_id: &str) -> Option<TopicName> {
    let mut level = String::with_capacity(client_id.len());
    for character in client_id.chars() {
        if matches!(character, '/' | '+' | '#' | '%') || character.is_control() {
            let mut bytes = [0; 4];
            for byte in character.encode_utf8(&mut bytes).bytes() {
                level.push_str(&format!("%{byte:02X}"));
            }
        } else {
            level.push(character);
        }
    }
    let topic = ByteString::from(template.replace(CLIENT_ID, &level));
    TopicName::parse(topic).ok().filter(|topic| !topic.is_of_broker())
}

/// The dead letter of `message`, at QoS 1 and with its payload and properties, but without expiry: it is kept for
/// somebody to look at. User properties say why, and where it comes from. `None` when there is no such topic.
#[must_use]
pub fn build(
    (template, queue): (&str, &QueueId),
    message: &Message,
    reason: DropReason,
    now_ms: u64,
) -> Option<Message> {
    let topic = topic_of(template, &queue.name)?;
    let mut properties = message.properties.clone().unwrap_or_default();
    properties.message_expiry_secs = None;
    properties.user_properties.extend([
        (ByteString::from_static(DEAD_LETTER_REASON), ByteString::from_static(reason.name())),
        (ByteString::from_static(TOPIC), ByteString::from(message.topic.as_str())),
        (ByteString::from_static(SESSION), queue.name.clone()),
    ]);
    Some(Message {
        topic,
        payload: message.payload.clone(),
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: Some(properties),
        publisher: message.publisher.clone(),
        publish_time_ms: now_ms,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_id_is_one_level_of_the_topic_whatever_is_in_it() {
        let topic = |client_id| topic_of("$dead/{clientId}/x", client_id).map(|topic| topic.to_string());

        assert_eq!(topic("meter-7").unwrap(), "$dead/meter-7/x");
        assert_eq!(topic("a/+#%ü\u{1}").unwrap(), "$dead/a%2F%2B%23%25ü%01/x");
        assert_eq!(topic(&"x".repeat(65_535)), None, "too long");
        assert_eq!(topic_of("$SYS/{clientId}", "a"), None);
    }
}
