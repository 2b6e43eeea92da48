//! The auditor: publishers that know every PUBACK they got, a persistent subscriber that knows every message it got,
//! and the comparison of the two.

mod client;
mod ledger;

pub use ledger::{Ledger, Verdict};

use crate::mosquitto::Endpoint;
use anyhow::{Context, Result};
use client::Client;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A load of QoS 1 publishers and one persistent subscriber, spread over all endpoints. When a connection breaks its
/// client goes to the next endpoint; a publisher repeats there what was not acknowledged.
pub struct Audit {
    ledger: Arc<Mutex<Ledger>>,
    stop_publishing: watch::Sender<bool>,
    publishers: JoinSet<Result<()>>,
    subscriber: JoinSet<Result<()>>,
}

/// What an audit runs.
#[derive(Debug, Clone)]
pub struct Load {
    /// Tells the clients and topics of one audit from those of another.
    pub name: String,
    /// How many publishers.
    pub publishers: u32,
    /// Pause between an acknowledgement and the next publish of one publisher.
    pub pause: Duration,
}

impl Audit {
    /// Subscribes, then starts to publish.
    ///
    /// # Errors
    ///
    /// When the subscriber is not subscribed within 60 s.
    pub async fn start(endpoints: Vec<Endpoint>, load: Load) -> Result<Self> {
        let ledger = Arc::new(Mutex::new(Ledger::default()));
        let (subscribed, mut is_subscribed) = watch::channel(false);
        let mut subscriber = JoinSet::new();
        subscriber.spawn(subscribe(endpoints.clone(), load.name.clone(), Arc::clone(&ledger), subscribed));
        tokio::time::timeout(Duration::from_secs(60), is_subscribed.wait_for(|is| *is))
            .await
            .context("the audit's subscriber is not subscribed after 60 s")??;

        let (stop_publishing, stop) = watch::channel(false);
        let mut publishers = JoinSet::new();
        for number in 0..load.publishers {
            publishers.spawn(publish(
                endpoints.clone(),
                load.clone(),
                number,
                Arc::clone(&ledger),
                stop.clone(),
            ));
        }
        Ok(Self { ledger, stop_publishing, publishers, subscriber })
    }

    /// Acknowledged publishes so far.
    #[must_use]
    pub fn acknowledged(&self) -> usize {
        self.ledger.lock().acknowledged()
    }

    /// Waits until `more` further publishes were acknowledged: the load flows.
    ///
    /// # Errors
    ///
    /// When it takes longer than `limit`.
    pub async fn wait_for_progress(&self, more: usize, limit: Duration) -> Result<()> {
        let goal = self.acknowledged() + more;
        crate::wait::until("acknowledged publishes", limit, || async {
            Ok((self.acknowledged() >= goal).then_some(()))
        })
        .await
    }

    /// Stops publishing, waits until everything acknowledged has arrived or nothing has for `quiet`, and compares.
    ///
    /// # Errors
    ///
    /// When a publisher or the subscriber failed for another reason than a broken connection.
    pub async fn finish(mut self, quiet: Duration) -> Result<Verdict> {
        self.stop_publishing.send_replace(true);
        while let Some(publisher) = self.publishers.join_next().await {
            publisher.context("publisher task")?.context("publisher")?;
        }
        let mut received = self.ledger.lock().received();
        let mut last_change = tokio::time::Instant::now();
        while !self.ledger.lock().is_complete() && last_change.elapsed() < quiet {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = self.ledger.lock().received();
            if now != received {
                (received, last_change) = (now, tokio::time::Instant::now());
            }
        }
        if let Some(ended) = self.subscriber.try_join_next() {
            ended.context("subscriber task")?.context("subscriber")?;
        }
        self.subscriber.abort_all();
        Ok(self.ledger.lock().verdict())
    }
}

fn topic(load: &str, publisher: u32) -> String {
    format!("audit/{load}/{publisher}")
}

async fn subscribe(
    endpoints: Vec<Endpoint>,
    load: String,
    ledger: Arc<Mutex<Ledger>>,
    subscribed: watch::Sender<bool>,
) -> Result<()> {
    let client_id = format!("audit-{load}-subscriber");
    for endpoint in endpoints.iter().cycle() {
        let Ok(mut client) = Client::connect(endpoint, &client_id, client::Session::Persistent).await else {
            continue;
        };
        if !*subscribed.borrow() {
            client.subscribe(&format!("audit/{load}/+")).await.context("first subscribe")?;
            subscribed.send_replace(true);
        }
        while let Ok(message) = client.next_message().await {
            let publisher = message.topic.rsplit('/').next().and_then(|level| level.parse().ok());
            let sequence = std::str::from_utf8(&message.payload).ok().and_then(|text| text.parse().ok());
            let (publisher, sequence) =
                publisher.zip(sequence).context("a message the audit did not publish")?;
            ledger.lock().record_received(publisher, sequence);
        }
    }
    anyhow::bail!("an audit needs an endpoint")
}

async fn publish(
    endpoints: Vec<Endpoint>,
    load: Load,
    number: u32,
    ledger: Arc<Mutex<Ledger>>,
    stop: watch::Receiver<bool>,
) -> Result<()> {
    let client_id = format!("audit-{}-publisher-{number}", load.name);
    let topic = topic(&load.name, number);
    let mut sequence = 0_u64;
    // Each publisher begins at another endpoint.
    let first = usize::try_from(number)? % endpoints.len();
    for endpoint in endpoints.iter().cycle().skip(first) {
        if *stop.borrow() {
            return Ok(());
        }
        let Ok(mut client) = Client::connect(endpoint, &client_id, client::Session::Clean).await else {
            continue;
        };
        while !*stop.borrow() {
            if client.publish(&topic, sequence.to_string().as_bytes()).await.is_err() {
                break;
            }
            ledger.lock().record_acknowledged(number, sequence);
            sequence += 1;
            tokio::time::sleep(load.pause).await;
        }
    }
    anyhow::bail!("an audit needs an endpoint")
}
