//! One connection of an audit: rumqttc, driven by hand so that each acknowledgement is known to belong to its publish.

use crate::mosquitto::Endpoint;
use anyhow::{Context, Result, bail};
use rumqttc::{AsyncClient, Event, EventLoop, MqttOptions, Packet, Publish, QoS};
use std::time::Duration;
use tokio::time::timeout;

/// How long the broker may take to answer before the client goes elsewhere: a takeover by another owner included.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// Whether the session outlives the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Session {
    Clean,
    Persistent,
}

/// A connected client with at most one unacknowledged publish.
pub(super) struct Client {
    client: AsyncClient,
    events: EventLoop,
}

impl Client {
    /// Connects and waits for the CONNACK. A refusal costs the caller a short pause, so that it does not spin.
    pub(super) async fn connect(endpoint: &Endpoint, client_id: &str, session: Session) -> Result<Self> {
        let mut options = MqttOptions::new(client_id, &endpoint.host, endpoint.port);
        options.set_clean_session(session == Session::Clean).set_keep_alive(Duration::from_secs(5));
        let (client, events) = AsyncClient::new(options, 100);
        let mut connection = Self { client, events };
        let connected =
            connection.wait_for(|packet| matches!(packet, Packet::ConnAck(_)).then_some(())).await;
        if connected.is_err() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        connected.map(|()| connection)
    }

    /// Subscribes at QoS 1 and waits for the SUBACK.
    pub(super) async fn subscribe(&mut self, filter: &str) -> Result<()> {
        self.client.subscribe(filter, QoS::AtLeastOnce).await?;
        let granted = self.wait_for(|packet| {
            if let Packet::SubAck(ack) = packet { Some(ack.return_codes.clone()) } else { None }
        });
        match granted.await?.first() {
            Some(rumqttc::SubscribeReasonCode::Success(QoS::AtLeastOnce)) => Ok(()),
            other => bail!("SUBACK says {other:?}"),
        }
    }

    /// Publishes at QoS 1 and waits for the PUBACK.
    pub(super) async fn publish(&mut self, topic: &str, payload: &[u8]) -> Result<()> {
        self.client.publish(topic, QoS::AtLeastOnce, false, payload).await?;
        self.wait_for(|packet| matches!(packet, Packet::PubAck(_)).then_some(())).await
    }

    /// The next message; waits as long as the connection lives.
    pub(super) async fn next_message(&mut self) -> Result<Publish> {
        loop {
            if let Event::Incoming(Packet::Publish(message)) = self.events.poll().await? {
                return Ok(message);
            }
        }
    }

    async fn wait_for<T>(&mut self, mut wanted: impl FnMut(&Packet) -> Option<T>) -> Result<T> {
        let search = async {
            loop {
                if let Event::Incoming(packet) = self.events.poll().await?
                    && let Some(found) = wanted(&packet)
                {
                    return anyhow::Ok(found);
                }
            }
        };
        timeout(ANSWER_LIMIT, search).await.context("no answer")?
    }
}
