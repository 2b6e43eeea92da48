//! A client of the load generator: MQTT 3.1.1 on a raw socket.

use crate::mosquitto::Endpoint;
use crate::wire::{Input, RawPacket, kind, put_connect, put_subscribe};
use anyhow::{Context, Result, ensure};
use bytes::BytesMut;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// A broker that is silent for so long has lost something.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) input: Input,
    pub(super) output: BytesMut,
}

impl Connection {
    /// Connects and takes the CONNACK.
    pub(super) async fn open(endpoint: &Endpoint, client_id: &str, clean: bool) -> Result<Self> {
        let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
        stream.set_nodelay(true)?;
        let mut connection = Self { stream, input: Input::default(), output: BytesMut::new() };
        put_connect(&mut connection.output, 4, client_id, clean, &[]);
        let answer = connection.exchange().await?;
        ensure!(
            answer.kind() == kind::CONNACK && answer.body.get(1) == Some(&0),
            "CONNECT of {client_id} was refused"
        );
        Ok(connection)
    }

    /// Subscribes to all of `filters` at `qos` and takes the SUBACK.
    pub(super) async fn subscribe(&mut self, filters: &[&str], qos: u8) -> Result<()> {
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
    pub(super) async fn exchange(&mut self) -> Result<RawPacket> {
        self.flush().await?;
        self.next_packet().await
    }

    /// The next packet, whatever it is.
    pub(super) async fn next_packet(&mut self) -> Result<RawPacket> {
        loop {
            if let Some(packet) = self.input.next_packet() {
                return Ok(packet);
            }
            let read = self.input.read_some(&mut self.stream);
            tokio::time::timeout(PATIENCE, read).await.context("no answer for 20 s")??;
        }
    }

    /// Writes what is queued.
    pub(super) async fn flush(&mut self) -> Result<()> {
        while !self.output.is_empty() {
            self.stream.write_buf(&mut self.output).await?;
        }
        Ok(())
    }
}
