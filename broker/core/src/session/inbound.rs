//! What a client publishes: topic aliases, and what is refused.

use super::features::Features;
use crate::message::Message;
use crate::packet::{PublishPacket, PublishProperties, QoS, ReasonCode, Version};
use crate::topic::TopicName;
use bytestring::ByteString;

/// Turns PUBLISH packets of one connection into messages.
#[derive(Debug)]
pub struct Inbound {
    version: Version,
    features: Features,
    payload_format: PayloadFormat,
    topic_alias_maximum: u16,
    /// Topic of alias `n + 1`. Grows with the highest alias used, to `topic_alias_maximum` at most.
    aliases: Vec<Option<TopicName>>,
}

/// Why a PUBLISH is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PublishRefusal {
    /// Answer this PUBLISH with the code; the connection goes on.
    #[error("publish answered with {0}")]
    Answer(ReasonCode),
    /// Close the connection with the code (3.x: without).
    #[error("connection closed with {0}")]
    Close(ReasonCode),
}

impl Inbound {
    /// For a client of `version`, which may use topic aliases up to `topic_alias_maximum`.
    #[must_use]
    pub fn new(version: Version, features: Features, topic_alias_maximum: u16) -> Self {
        let payload_format = PayloadFormat::Trusted;
        Self { version, features, payload_format, topic_alias_maximum, aliases: Vec::new() }
    }

    /// The same, but for whether payloads are looked at.
    #[must_use]
    pub fn with_payload_format(self, payload_format: PayloadFormat) -> Self {
        Self { payload_format, ..self }
    }

    /// Resolves the topic and refuses what this broker does not serve, and `$SYS`.
    ///
    /// # Errors
    ///
    /// [`PublishRefusal`] says whether this PUBLISH or the connection ends.
    pub fn handle_publish(
        &mut self,
        publish: PublishPacket,
        publisher: &ByteString,
        now_ms: u64,
    ) -> Result<Message, PublishRefusal> {
        if publish.qos == QoS::ExactlyOnce && !self.features.exactly_once {
            return Err(PublishRefusal::Close(ReasonCode::QOS_NOT_SUPPORTED));
        }
        if publish.retain && !self.features.retained {
            return Err(PublishRefusal::Close(ReasonCode::RETAIN_NOT_SUPPORTED));
        }
        let topic = self.resolve_topic(&publish)?;
        if topic.is_of_broker() {
            return Err(self.refuse(publish.qos, ReasonCode::TOPIC_NAME_INVALID));
        }
        if !self.payload_format.allows(&publish.payload, publish.properties.as_deref()) {
            return Err(self.refuse(publish.qos, ReasonCode::PAYLOAD_FORMAT_INVALID));
        }
        Ok(Message {
            topic,
            payload: publish.payload,
            qos: publish.qos,
            retain: publish.retain,
            properties: publish.properties,
            publisher: publisher.clone(),
            publish_time_ms: now_ms,
        })
    }

    /// What it is published to. Sets the alias that it gives, and does nothing else; asking again gives the same.
    ///
    /// # Errors
    ///
    /// As [`Self::handle_publish`], which asks first.
    pub fn resolve_topic(&mut self, publish: &PublishPacket) -> Result<TopicName, PublishRefusal> {
        let Some(alias) = publish.topic_alias else { return self.parse_topic(publish) };
        let invalid = PublishRefusal::Close(ReasonCode::TOPIC_ALIAS_INVALID);
        if alias.get() > self.topic_alias_maximum {
            return Err(invalid);
        }
        let index = usize::from(alias.get()) - 1;
        if publish.topic.is_empty() {
            // A client that uses an alias it never gave breaks the protocol (MQTT-3.3.4).
            let known = self.aliases.get(index).cloned().flatten();
            return known.ok_or(PublishRefusal::Close(ReasonCode::PROTOCOL_ERROR));
        }
        let topic = self.parse_topic(publish)?;
        if self.aliases.len() <= index {
            self.aliases.resize(index + 1, None);
        }
        if let Some(slot) = self.aliases.get_mut(index) {
            *slot = Some(topic.clone());
        }
        Ok(topic)
    }

    fn parse_topic(&self, publish: &PublishPacket) -> Result<TopicName, PublishRefusal> {
        TopicName::parse(publish.topic.clone())
            .map_err(|_| self.refuse(publish.qos, ReasonCode::TOPIC_NAME_INVALID))
    }

    /// Only a 5.0 PUBACK or PUBREC can say no; everybody else is closed rather than told a falsehood.
    fn refuse(&self, qos: QoS, reason: ReasonCode) -> PublishRefusal {
        if self.version.is_v5() && qos != QoS::AtMostOnce {
            PublishRefusal::Answer(reason)
        } else {
            PublishRefusal::Close(reason)
        }
    }
}

/// Whether payloads that say they are UTF-8 are taken at their word (MQTT 5.0 section 3.3.2.3.2 leaves it open).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PayloadFormat {
    /// Nobody looks.
    #[default]
    Trusted,
    /// One that is none is refused with 0x99.
    Checked,
}

impl PayloadFormat {
    /// Whether `payload` may go with `properties`.
    #[must_use]
    pub fn allows(self, payload: &[u8], properties: Option<&PublishProperties>) -> bool {
        match self {
            Self::Trusted => true,
            Self::Checked => {
                let says_utf8 = properties.and_then(|properties| properties.payload_is_utf8) == Some(true);
                !says_utf8 || std::str::from_utf8(payload).is_ok()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use std::num::NonZeroU16;

    fn publish(topic: &str, alias: Option<u16>) -> PublishPacket {
        PublishPacket {
            dup: false,
            retain: false,
            qos: QoS::AtMostOnce,
            packet_id: None,
            topic: topic.into(),
            topic_alias: alias.and_then(NonZeroU16::new),
            payload: Bytes::new(),
            properties: None,
        }
    }

    fn topic_of(inbound: &mut Inbound, packet: PublishPacket) -> Result<String, PublishRefusal> {
        inbound.handle_publish(packet, &"me".into(), 0).map(|message| message.topic.as_str().to_owned())
    }

    #[test]
    fn a_topic_alias_stands_for_the_topic_it_was_last_sent_with() {
        let mut inbound = Inbound::new(Version::V5, Features::CLUSTER, 2);

        assert_eq!(topic_of(&mut inbound, publish("a", Some(2))), Ok("a".into()));
        assert_eq!(topic_of(&mut inbound, publish("", Some(2))), Ok("a".into()));
        assert_eq!(topic_of(&mut inbound, publish("b", Some(2))), Ok("b".into()));
        assert_eq!(topic_of(&mut inbound, publish("", Some(2))), Ok("b".into()));
        let close = |reason| Err(PublishRefusal::Close(reason));
        assert_eq!(topic_of(&mut inbound, publish("", Some(1))), close(ReasonCode::PROTOCOL_ERROR));
        assert_eq!(topic_of(&mut inbound, publish("a", Some(3))), close(ReasonCode::TOPIC_ALIAS_INVALID));
    }

    #[test]
    fn what_is_not_served_is_refused_with_its_own_code() {
        let mut inbound = Inbound::new(Version::V5, Features::CLUSTER, 0);
        let qos2 = PublishPacket { qos: QoS::ExactlyOnce, ..publish("a", None) };
        let retained = PublishPacket { retain: true, ..publish("a", None) };
        let qos1 = |topic| PublishPacket { qos: QoS::AtLeastOnce, ..publish(topic, None) };

        let close = |reason| Err(PublishRefusal::Close(reason));
        assert_eq!(topic_of(&mut inbound, qos2), close(ReasonCode::QOS_NOT_SUPPORTED));
        assert_eq!(topic_of(&mut inbound, retained), close(ReasonCode::RETAIN_NOT_SUPPORTED));
        let name_invalid = ReasonCode::TOPIC_NAME_INVALID;
        assert_eq!(topic_of(&mut inbound, qos1("$SYS/x")), Err(PublishRefusal::Answer(name_invalid)));
        assert_eq!(topic_of(&mut inbound, publish("$SYS/x", None)), close(name_invalid));
        assert_eq!(topic_of(&mut inbound, qos1("$SYSTEM")), Ok("$SYSTEM".into()));
        let mut old = Inbound::new(Version::V3_1_1, Features::CLUSTER, 0);
        assert_eq!(topic_of(&mut old, qos1("$SYS/x")), close(name_invalid));
        let mut standalone = Inbound::new(Version::V5, Features::STANDALONE, 0);
        let qos2 = |topic| PublishPacket { qos: QoS::ExactlyOnce, ..publish(topic, None) };
        assert_eq!(topic_of(&mut standalone, qos2("a")), Ok("a".into()));
        assert_eq!(topic_of(&mut standalone, qos2("$SYS/x")), Err(PublishRefusal::Answer(name_invalid)));
    }

    #[test]
    fn a_payload_that_is_not_what_it_says_is_refused_only_where_payloads_are_checked() {
        let says_utf8 = |qos, payload: &'static [u8]| PublishPacket {
            qos,
            payload: Bytes::from_static(payload),
            properties: Some(Box::new(PublishProperties {
                payload_is_utf8: Some(true),
                ..PublishProperties::default()
            })),
            ..publish("a", None)
        };
        let mut trusting = Inbound::new(Version::V5, Features::CLUSTER, 0);
        let mut checking =
            Inbound::new(Version::V5, Features::CLUSTER, 0).with_payload_format(PayloadFormat::Checked);

        assert_eq!(topic_of(&mut trusting, says_utf8(QoS::AtMostOnce, b"\xff")), Ok("a".into()));
        assert_eq!(topic_of(&mut checking, says_utf8(QoS::AtMostOnce, "ä".as_bytes())), Ok("a".into()));
        let invalid = ReasonCode::PAYLOAD_FORMAT_INVALID;
        let refused = topic_of(&mut checking, says_utf8(QoS::AtLeastOnce, b"\xff"));
        assert_eq!(refused, Err(PublishRefusal::Answer(invalid)));
        let refused = topic_of(&mut checking, says_utf8(QoS::AtMostOnce, b"\xff"));
        assert_eq!(refused, Err(PublishRefusal::Close(invalid)));
        let silent = PublishPacket { payload: Bytes::from_static(b"\xff"), ..publish("a", None) };
        assert_eq!(topic_of(&mut checking, silent), Ok("a".into()));
    }
}
