//! The same random scripts at this broker and at rumqttd 0.20: what the subscribers get must be the same, but for the
//! differences that are listed here, in which rumqttd is wrong or does what the specification leaves open.
//!
//! 1. **QoS of a delivery.** rumqttd delivers at the QoS of the subscription, also above that of the publish. Here it is
//!    the lower of the two (MQTT-3.8.4-8), which the script itself tells.
//! 2. **Overlapping subscriptions.** rumqttd sends a copy for each; here it is one (section 3.3.4 leaves it open). Copies
//!    are counted once.
//! 3. **Order.** rumqttd keeps it within a filter, so that messages of several filters mix; here a subscriber has the
//!    order of each publisher. Messages are compared as sets, and here also by order.
//! 4. **Who is away.** rumqttd keeps for a kept session also what would be delivered at QoS 0; here only what is above.
//! 5. **UNSUBSCRIBE.** rumqttd does not answer one that takes nothing away, and forgets at a reconnect what a kept session
//!    could take away. Scripts do not unsubscribe there.
//! 6. **Inputs that stop its router** (`rumqttd_router.rs`) are left out: topics that start with a multi-byte character,
//!    and shared subscriptions.
//!
//! `the_listed_differences_are_still_there` shows what rumqttd does, so that the list shrinks when rumqttd changes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "rumqttd/script.rs"]
mod script;
#[path = "rumqttd/start.rs"]
mod start;

use anyhow::{Result, ensure};
use script::{CLIENTS, Model, Step, script};
use start::Rumqttd;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tidemill_contract::config::Config;
use tidemill_e2e::broker::Broker;
use tidemill_e2e::environment::is_soak;
use tidemill_e2e::mosquitto::Endpoint;
use tidemill_e2e::raw_client::{Delivery, RawClient};

/// The clients of a script at one broker, and everything that each of them got.
struct Side {
    endpoints: Vec<Endpoint>,
    prefix: String,
    clients: Vec<Option<RawClient>>,
    got: Vec<Vec<Delivery>>,
}

impl Side {
    fn new(endpoint_of: impl Fn(u8) -> Endpoint, seed: u64) -> Self {
        Self {
            endpoints: CLIENTS.iter().map(|client| endpoint_of(client.level)).collect(),
            prefix: format!("s{seed}"),
            clients: CLIENTS.iter().map(|_| None).collect(),
            got: vec![Vec::new(); CLIENTS.len()],
        }
    }

    /// Scripts share a broker: each has its own client ids and its own tree of topics.
    async fn perform(&mut self, step: &Step) -> Result<()> {
        let within = |rest: &str| format!("{}/{rest}", self.prefix);
        match step {
            Step::Connect { client } => {
                let wanted = CLIENTS[*client];
                let name = format!("{}-{client}", self.prefix);
                let connected =
                    RawClient::connect(&self.endpoints[*client], wanted.level, &name, wanted.clean).await?;
                self.clients[*client] = Some(connected.0);
            }
            Step::Disconnect { client } => {
                let deliveries = self.clients[*client].take().unwrap().disconnect().await?;
                self.got[*client].extend(deliveries);
            }
            Step::Subscribe { client, filter, qos } => {
                let filter = within(filter);
                let code = self.client(*client).subscribe(&filter, *qos).await?;
                ensure!(code == *qos, "granted {code} for {filter}");
            }
            Step::Unsubscribe { client, filter } => {
                let filter = within(filter);
                self.client(*client).unsubscribe(&filter).await?;
            }
            Step::Publish { client, topic, payload, qos, retain } => {
                let topic = within(topic);
                let client = self.client(*client);
                client.publish(&topic, payload.as_bytes(), *qos, *retain).await?;
            }
        }
        Ok(())
    }

    fn client(&mut self, client: usize) -> &mut RawClient {
        self.clients[client].as_mut().unwrap()
    }

    /// Takes what has arrived at all clients, and acknowledges it.
    async fn collect(&mut self) {
        for (client, got) in self.clients.iter_mut().zip(&mut self.got) {
            if let Some(client) = client {
                client.round_trip().await.unwrap();
                got.extend(client.take_deliveries());
            }
        }
    }

    /// What each client got, without what the list of differences leaves open.
    fn compared(&self) -> Vec<BTreeSet<(String, Vec<u8>)>> {
        let of =
            |got: &Vec<Delivery>| got.iter().map(|one| (one.topic.clone(), one.payload.clone())).collect();
        self.got.iter().map(of).collect()
    }
}

/// Looks again until both have the same: messages of kept sessions take their way through the log.
async fn settle(seed: u64, steps: &[Step], ours: &mut Side, theirs: &mut Side, model: &Model) {
    let started = Instant::now();
    loop {
        ours.collect().await;
        theirs.collect().await;
        let (own, other) = (ours.compared(), theirs.compared());
        let is_same = |(client, got): (usize, &BTreeSet<_>)| {
            let expected = &model.expected[client];
            got.is_superset(expected)
                && got.difference(expected).all(|more| model.beyond[client].contains(more))
        };
        if own == model.expected && other.iter().enumerate().all(is_same) {
            return;
        }
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "seed {seed}, steps {steps:#?}\nexpected {:?}\ntidemill {own:?}\nrumqttd  {other:?}",
            model.expected
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// One copy, at the right QoS, with the retain flag only where it was retained before, in the publisher's order.
fn check_ours(seed: u64, ours: &Side, model: &Model) {
    for (client, got) in ours.got.iter().enumerate() {
        let mut seen = BTreeSet::new();
        for delivery in got {
            let key = (client, delivery.payload.clone(), delivery.retain);
            let allowed = model.allowed.get(&key).unwrap_or_else(|| panic!("seed {seed}: {delivery:?}"));
            assert!(allowed.contains(&delivery.qos), "seed {seed}: {delivery:?} at one of {allowed:?}");
            // Each payload is published once, but for those that clear.
            let is_new = delivery.payload.is_empty() || delivery.retain || seen.insert(&delivery.payload);
            assert!(is_new, "seed {seed}: {delivery:?} twice");
        }
        let live: Vec<_> = got.iter().filter(|delivery| !delivery.retain).map(script::sequence_of).collect();
        for publisher in 0..CLIENTS.len() {
            let own: Vec<_> = live.iter().filter(|(from, _)| *from == publisher).collect();
            assert!(own.is_sorted(), "seed {seed}: client {client} got {own:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn subscribers_get_the_same_messages_as_from_rumqttd() {
    let rumqttd = Rumqttd::start().await;
    let folder = tempfile::tempdir().unwrap();
    let tidemill = Broker::start(folder.path(), Config::default(), &[]).await.unwrap();

    let scripts = if is_soak() { 500 } else { 25 };
    for seed in 1..=scripts {
        let steps = script(seed, 80);
        let mut ours = Side::new(|_| tidemill.mqtt().clone(), seed);
        let mut theirs = Side::new(|level| rumqttd.endpoint(level).clone(), seed);
        let mut model = Model::new(&format!("s{seed}"));
        for (number, step) in steps.iter().enumerate() {
            model.apply(step);
            for (name, side) in [("tidemill", &mut ours), ("rumqttd", &mut theirs)] {
                let outcome = side.perform(step).await;
                outcome
                    .unwrap_or_else(|error| panic!("seed {seed}, {name}, step {number} {step:?}: {error:#}"));
            }
            settle(seed, &steps[..=number], &mut ours, &mut theirs, &model).await;
        }
        check_ours(seed, &ours, &model);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_listed_differences_are_still_there() {
    let rumqttd = Rumqttd::start().await;
    let folder = tempfile::tempdir().unwrap();
    let tidemill = Broker::start(folder.path(), Config::default(), &[]).await.unwrap();

    let mut got = Vec::new();
    for endpoint in [tidemill.mqtt(), rumqttd.endpoint(4)] {
        let (mut reader, _) = RawClient::connect(endpoint, 4, "reader", true).await.unwrap();
        reader.subscribe("a/+", 1).await.unwrap();
        reader.subscribe("a/b", 1).await.unwrap();
        let (mut writer, _) = RawClient::connect(endpoint, 4, "writer", true).await.unwrap();
        writer.publish("a/b", b"x", 0, false).await.unwrap();
        reader.round_trip().await.unwrap();
        reader.round_trip().await.unwrap();
        got.push(reader.take_deliveries().iter().map(|delivery| delivery.qos).collect::<Vec<_>>());
    }

    for (endpoint, is_answered) in [(tidemill.mqtt(), true), (rumqttd.endpoint(4), false)] {
        let (mut client, _) = RawClient::connect(endpoint, 4, "client", true).await.unwrap();
        if !is_answered {
            client.set_patience(Duration::from_secs(2));
        }
        assert_eq!(client.unsubscribe("never subscribed").await.is_ok(), is_answered);
    }

    let mut kept = Vec::new();
    for endpoint in [tidemill.mqtt(), rumqttd.endpoint(4)] {
        let (mut reader, _) = RawClient::connect(endpoint, 4, "kept", false).await.unwrap();
        reader.subscribe("k", 1).await.unwrap();
        reader.disconnect().await.unwrap();
        let (mut writer, _) = RawClient::connect(endpoint, 4, "writer", true).await.unwrap();
        writer.publish("k", b"at most once", 0, false).await.unwrap();
        writer.publish("k", b"kept", 1, false).await.unwrap();
        let (mut reader, _) = RawClient::connect(endpoint, 4, "kept", false).await.unwrap();
        let mut all = Vec::new();
        let search = async {
            while !all.iter().any(|delivery: &Delivery| delivery.payload == b"kept") {
                reader.round_trip().await.unwrap();
                all.extend(reader.take_deliveries());
            }
        };
        tokio::time::timeout(Duration::from_secs(10), search).await.expect("the kept message comes");
        kept.push(all.len());
    }

    assert_eq!(kept, [1, 2], "rumqttd also keeps what was published at QoS 0");
    assert_eq!(got[0], [0], "one copy at the QoS of the publish");
    assert_eq!(got[1], [1, 1], "rumqttd: a copy for each subscription, above the QoS of the publish");
}
