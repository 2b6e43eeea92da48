//! A client's connection on a raw socket: packets out and in, nothing answered by itself.

use crate::mosquitto::Endpoint;
use crate::wire::{Input, PINGREQ, RawPacket, kind, put_connect, put_subscribe};
use anyhow::{Context, Result, ensure};
use bytes::{BufMut, BytesMut};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// A broker that is silent for so long has lost something.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Who connects, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hello<'a> {
    /// Protocol level: 4 or 5.
    pub(crate) level: u8,
    pub(crate) client_id: &'a str,
    /// Clean session, in 5.0 clean start.
    pub(crate) clean: bool,
    /// Properties of a 5.0 CONNECT, encoded.
    pub(crate) properties: &'a [u8],
}

pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    pub(crate) input: Input,
    pub(crate) output: BytesMut,
}

impl Connection {
    /// Connects in MQTT 3.1.1 and takes the CONNACK.
    pub(crate) async fn open(endpoint: &Endpoint, client_id: &str, clean: bool) -> Result<Self> {
        let hello = Hello { level: 4, client_id, clean, properties: &[] };
        Self::open_as(endpoint, hello).await.map(|(connection, _)| connection)
    }

    /// Connects and takes the CONNACK; also answers its session-present flag.
    pub(crate) async fn open_as(endpoint: &Endpoint, hello: Hello<'_>) -> Result<(Self, bool)> {
        let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
        stream.set_nodelay(true)?;
        let mut connection = Self { stream, input: Input::default(), output: BytesMut::new() };
        put_connect(&mut connection.output, hello.level, hello.client_id, hello.clean, hello.properties);
        let answer = connection.exchange().await?;
        ensure!(
            answer.kind() == kind::CONNACK && answer.body.get(1) == Some(&0),
            "CONNECT of {} was refused: {answer:?}",
            hello.client_id
        );
        Ok((connection, answer.body.first() == Some(&1)))
    }

    /// Subscribes to all of `filters` at `qos` and takes the SUBACK. In MQTT 3.1.1.
    pub(crate) async fn subscribe(&mut self, filters: &[&str], qos: u8) -> Result<()> {
        let entries: Vec<_> = filters.iter().map(|filter| (*filter, qos)).collect();
        put_subscribe(&mut self.output, false, 1, &entries);
        let answer = self.exchange().await?;
        let reasons = answer.body.get(2..).unwrap_or_default();
        ensure!(
            answer.kind() == kind::SUBACK
                && reasons.len() == filters.len()
                && reasons.iter().all(|granted| *granted == qos),
            "SUBSCRIBE was refused"
        );
        Ok(())
    }

    /// Writes what is queued and takes the next packet.
    pub(crate) async fn exchange(&mut self) -> Result<RawPacket> {
        self.flush().await?;
        self.next_packet().await
    }

    /// The next packet, whatever it is.
    pub(crate) async fn next_packet(&mut self) -> Result<RawPacket> {
        loop {
            if let Some(packet) = self.input.next_packet() {
                return Ok(packet);
            }
            let read = self.input.read_some(&mut self.stream);
            tokio::time::timeout(PATIENCE, read).await.context("no answer for 20 s")??;
        }
    }

    /// PINGREQ and PINGRESP: the broker has read everything before it. Answers how many packets came in between.
    pub(crate) async fn round_trip(&mut self) -> Result<u32> {
        self.output.put_slice(&PINGREQ);
        self.flush().await?;
        let mut others = 0;
        while self.next_packet().await?.kind() != kind::PINGRESP {
            others += 1;
        }
        Ok(others)
    }

    /// Writes what is queued.
    pub(crate) async fn flush(&mut self) -> Result<()> {
        while !self.output.is_empty() {
            self.stream.write_buf(&mut self.output).await?;
        }
        Ok(())
    }
}
