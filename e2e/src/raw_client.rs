//! A client on a raw socket that acknowledges what it gets and shows all of it.

use crate::mosquitto::Endpoint;
use crate::wire::{
    Arrival, Input, PINGREQ, Publish, RawPacket, kind, put_ack, put_connect, put_publish, put_subscribe,
    put_unsubscribe,
};
use anyhow::{Context, Result, ensure};
use bytes::{Buf, BufMut, BytesMut};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// A broker that is silent for so long does not answer any more, also on a machine where a write to disk takes seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// One message as it arrived.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Delivery {
    /// Topic name.
    pub topic: String,
    /// Payload.
    pub payload: Vec<u8>,
    /// QoS of the delivery.
    pub qos: u8,
    /// The retain flag of the delivery.
    pub retain: bool,
}

/// A connected client. Each request waits for its answer; what arrives meanwhile is acknowledged and kept.
pub struct RawClient {
    stream: TcpStream,
    input: Input,
    output: BytesMut,
    is_v5: bool,
    last_packet_id: u16,
    patience: Duration,
    deliveries: Vec<Delivery>,
}

impl RawClient {
    /// Connects in MQTT of `level` 3, 4 or 5; also answers the session-present flag. A session that is not `clean` is
    /// kept, in 5.0 for ten minutes.
    ///
    /// # Errors
    ///
    /// When the broker refuses or does not answer within 30 s.
    pub async fn connect(
        endpoint: &Endpoint,
        level: u8,
        client_id: &str,
        clean: bool,
    ) -> Result<(Self, bool)> {
        let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
        stream.set_nodelay(true)?;
        let mut client = Self {
            stream,
            input: Input::default(),
            output: BytesMut::new(),
            is_v5: level == 5,
            last_packet_id: 0,
            patience: PATIENCE,
            deliveries: Vec::new(),
        };
        let expiry: &[u8] = if clean { &[] } else { &[0x11, 0, 0, 2, 88] };
        put_connect(&mut client.output, level, client_id, clean, expiry);
        let connack = client.answer(kind::CONNACK).await?;
        ensure!(connack.body.get(1) == Some(&0), "CONNACK {connack:?}");
        Ok((client, connack.body.first() == Some(&1)))
    }

    /// Waits at most so long for each answer from now on, instead of 30 s: for answers that are not expected.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Subscribes with these options (in 3.x the QoS); answers the reason code.
    ///
    /// # Errors
    ///
    /// When there is no SUBACK within 30 s.
    pub async fn subscribe(&mut self, filter: &str, options: u8) -> Result<u8> {
        let packet_id = self.next_packet_id();
        put_subscribe(&mut self.output, self.is_v5, packet_id, &[(filter, options)]);
        let suback = self.answer(kind::SUBACK).await?;
        suback.body.last().copied().context("a SUBACK with a reason")
    }

    /// Unsubscribes.
    ///
    /// # Errors
    ///
    /// When there is no UNSUBACK within 30 s.
    pub async fn unsubscribe(&mut self, filter: &str) -> Result<()> {
        let packet_id = self.next_packet_id();
        put_unsubscribe(&mut self.output, self.is_v5, packet_id, filter);
        self.answer(kind::UNSUBACK).await.map(drop)
    }

    /// Publishes and waits for the last acknowledgement of the QoS; at QoS 0 for a round trip.
    ///
    /// # Errors
    ///
    /// When it does not come within 30 s.
    pub async fn publish(&mut self, topic: &str, payload: &[u8], qos: u8, retain: bool) -> Result<()> {
        let packet_id = self.next_packet_id();
        let publish = Publish { topic, qos, retain, dup: false, packet_id };
        put_publish(&mut self.output, publish, self.is_v5, payload.len());
        self.output.put_slice(payload);
        match qos {
            0 => self.round_trip().await,
            1 => self.answer(kind::PUBACK).await.map(drop),
            _ => {
                self.answer(kind::PUBREC).await?;
                put_ack(&mut self.output, 0x62, packet_id);
                self.answer(kind::PUBCOMP).await.map(drop)
            }
        }
    }

    /// PINGREQ and PINGRESP: what the broker had written before has arrived and is acknowledged.
    ///
    /// # Errors
    ///
    /// When it does not come within 30 s.
    pub async fn round_trip(&mut self) -> Result<()> {
        self.output.put_slice(&PINGREQ);
        self.answer(kind::PINGRESP).await.map(drop)
    }

    /// Says DISCONNECT and waits until the broker has closed.
    ///
    /// # Errors
    ///
    /// When it does not within 30 s.
    pub async fn disconnect(mut self) -> Result<Vec<Delivery>> {
        self.output.put_slice(&[0xE0, 0]);
        self.flush().await?;
        let patience = self.patience;
        let closed = async {
            while self.input.read_some(&mut self.stream).await.is_ok() {
                while let Some(packet) = self.input.next_packet() {
                    self.take(packet)?;
                }
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(patience, closed).await.context("the broker does not close")??;
        Ok(self.deliveries)
    }

    /// The next message that was not taken yet.
    ///
    /// # Errors
    ///
    /// When none comes within 30 s.
    pub async fn next_delivery(&mut self) -> Result<Delivery> {
        let patience = self.patience;
        let search = async {
            while self.deliveries.is_empty() {
                while let Some(packet) = self.input.next_packet() {
                    self.take(packet)?;
                }
                self.flush().await?;
                if self.deliveries.is_empty() {
                    self.input.read_some(&mut self.stream).await?;
                }
            }
            Ok(self.deliveries.remove(0))
        };
        tokio::time::timeout(patience, search).await.context("no message")?
    }

    /// What has arrived since the last call, in order.
    pub fn take_deliveries(&mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.deliveries)
    }

    fn next_packet_id(&mut self) -> u16 {
        self.last_packet_id = self.last_packet_id % u16::MAX + 1;
        self.last_packet_id
    }

    /// Writes what is queued and waits for a packet of `wanted`.
    async fn answer(&mut self, wanted: u8) -> Result<RawPacket> {
        let patience = self.patience;
        let search = async {
            loop {
                self.flush().await?;
                while let Some(packet) = self.input.next_packet() {
                    if packet.kind() == wanted {
                        return Ok(packet);
                    }
                    self.take(packet)?;
                }
                // Acknowledgements first: the broker may wait for them.
                self.flush().await?;
                self.input.read_some(&mut self.stream).await?;
            }
        };
        tokio::time::timeout(patience, search)
            .await
            .with_context(|| format!("no packet of type {wanted} for {patience:?}"))?
    }

    /// Keeps a message and queues its acknowledgement.
    fn take(&mut self, mut packet: RawPacket) -> Result<()> {
        match packet.kind() {
            kind::PUBLISH => {
                let delivery = self.take_publish(packet)?;
                self.deliveries.push(delivery);
            }
            kind::PUBREL => {
                ensure!(packet.body.len() >= 2, "PUBREL without packet id");
                put_ack(&mut self.output, 0x70, packet.body.get_u16());
            }
            other => anyhow::bail!("unexpected packet of type {other}: {packet:?}"),
        }
        Ok(())
    }

    fn take_publish(&mut self, packet: RawPacket) -> Result<Delivery> {
        let message = Arrival::parse(packet, self.is_v5)?;
        match message.qos {
            0 => {}
            1 => put_ack(&mut self.output, 0x40, message.packet_id),
            _ => put_ack(&mut self.output, 0x50, message.packet_id),
        }
        let Arrival { topic, qos, retain, .. } = message;
        Ok(Delivery { topic, payload: message.payload.to_vec(), qos, retain })
    }

    async fn flush(&mut self) -> Result<()> {
        while !self.output.is_empty() {
            self.stream.write_buf(&mut self.output).await?;
        }
        Ok(())
    }
}
