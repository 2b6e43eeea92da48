//! QoS 2 in both directions, and packet ids over a reconnect, over real sockets. Clauses are those of MQTT 5.0; 3.1.1 says
//! the same under other numbers.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "fixture/broker.rs"]
mod broker;
#[path = "fixture/client.rs"]
mod client;
#[path = "spec_qos2/inbound.rs"]
mod inbound;
#[path = "spec_qos2/outbound.rs"]
mod outbound;
#[path = "fixture/process.rs"]
mod process;
#[path = "spec_qos2/restart.rs"]
mod restart;
#[path = "spec_qos2/resume.rs"]
mod resume;
#[path = "fixture/standalone.rs"]
mod standalone;

use client::{Client, Received, publish};
use tidemill_core::packet::{AckKind, Packet, PacketId, PublishPacket, QoS, Version};

const BOTH: [Version; 2] = [Version::V3_1_1, Version::V5];

/// A QoS 2 PUBLISH.
fn exactly_once(topic: &str, payload: &str, id: u16) -> PublishPacket {
    let packet_id = PacketId::new(id);
    PublishPacket { qos: QoS::ExactlyOnce, packet_id, ..publish(topic, payload.as_bytes(), None) }
}

impl Client {
    async fn publish_exactly_once(&mut self, topic: &str, payload: &str, id: u16) {
        self.send(Packet::Publish(exactly_once(topic, payload, id))).await;
    }

    async fn repeat_exactly_once(&mut self, topic: &str, payload: &str, id: u16) {
        let again = PublishPacket { dup: true, ..exactly_once(topic, payload, id) };
        self.send(Packet::Publish(again)).await;
    }

    /// The next packet, which is an acknowledgement: its first byte, packet id and reason code.
    async fn receive_ack(&mut self) -> (u8, u16, u8) {
        let packet = self.receive().await;
        (packet.first_byte, u16::from_be_bytes([packet.body[0], packet.body[1]]), reason_of(&packet))
    }

    /// The next packet, which is a PUBLISH: QoS, DUP, packet id and payload.
    async fn receive_message(&mut self) -> Delivered {
        let packet = self.receive().await;
        assert_eq!(packet.first_byte >> 4, 3, "{packet:?} is no PUBLISH");
        let (_, id, mut payload) = packet.message();
        if self.version.is_v5() {
            assert_eq!(payload.remove(0), 0, "no properties");
        }
        let qos = packet.first_byte >> 1 & 3;
        Delivered { qos, dup: packet.first_byte & 8 != 0, id, text: String::from_utf8(payload).unwrap() }
    }

    /// Publishes to the end: PUBREC and PUBCOMP came.
    async fn complete_exactly_once(&mut self, topic: &str, payload: &str, id: u16) {
        self.publish_exactly_once(topic, payload, id).await;
        assert_eq!(self.receive_ack().await.0, PUBREC);
        self.ack(AckKind::PubRel, id).await;
        assert_eq!(self.receive_ack().await, (PUBCOMP, id, 0));
    }
}

const PUBACK: u8 = 0x40;
const PUBREC: u8 = 0x50;
const PUBREL: u8 = 0x62;
const PUBCOMP: u8 = 0x70;
const DISCONNECT: u8 = 0xE0;

fn reason_of(packet: &Received) -> u8 {
    packet.body.get(2).copied().unwrap_or(0)
}

#[derive(Debug, PartialEq, Eq)]
struct Delivered {
    qos: u8,
    dup: bool,
    id: Option<u16>,
    text: String,
}

fn delivered(qos: u8, id: u16, text: &str) -> Delivered {
    Delivered { qos, dup: false, id: Some(id), text: text.to_owned() }
}

fn delivered_again(qos: u8, id: u16, text: &str) -> Delivered {
    Delivered { dup: true, ..delivered(qos, id, text) }
}
