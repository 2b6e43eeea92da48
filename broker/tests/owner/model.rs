//! Random interleavings against a model: nothing is lost, and first deliveries keep the order of the log.

use super::values::{options, payloads, request, subscription};
use super::world::{Client, World};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_core::attach::{AttachRequest, ConnectionEpoch};
use tidemill_core::packet::QoS;
use tidemill_core::partition::Offset;

#[derive(Debug, Clone)]
enum Step {
    /// So many, to one of the two topics.
    Publish(u8, bool),
    Attach(u8),
    Detach(u8),
    /// Every n-th of what was delivered is acknowledged, oldest or newest first.
    Ack(u8, u8, bool),
    Settle,
    Crash,
    StopAndStart,
}

const CLIENTS: u8 = 3;
/// What each of them is subscribed to.
const FILTERS: [&str; 3] = ["a/+", COMMON, RARE];
const COMMON: &str = "a/common";
const RARE: &str = "a/rare";
/// Offsets of one block of the index: many end within a test.
const INDEX_BLOCK: Offset = 7;

fn step() -> impl Strategy<Value = Step> {
    let client = || 0..CLIENTS;
    prop_oneof![
        6 => (1_u8..40, any::<bool>()).prop_map(|(count, is_rare)| Step::Publish(count, is_rare)),
        3 => client().prop_map(Step::Attach),
        2 => client().prop_map(Step::Detach),
        3 => (client(), 1_u8..4, any::<bool>()).prop_map(|(client, nth, newest)| Step::Ack(client, nth, newest)),
        2 => Just(Step::Settle),
        1 => Just(Step::Crash),
        1 => Just(Step::StopAndStart),
    ]
}

/// What one client saw over all its connections.
#[derive(Default)]
struct Seen {
    /// First deliveries, in order.
    first: Vec<String>,
    known: BTreeSet<String>,
    /// Deliveries taken down already, for each connection.
    noted: BTreeMap<ConnectionEpoch, usize>,
}

struct Model {
    world: World,
    clients: BTreeMap<u8, Client>,
    seen: BTreeMap<u8, Seen>,
    /// Topic and payload.
    published: Vec<(&'static str, String)>,
    epoch: u32,
}

impl Model {
    async fn new() -> Self {
        let world = World::with_blocks_of(INDEX_BLOCK).await;
        for (number, filter) in (0..CLIENTS).zip(FILTERS) {
            let client = world.attach(request(&number.to_string())).await.unwrap();
            let asked = vec![subscription(filter, options(QoS::AtLeastOnce))];
            assert!(!world.subscribe(&client, asked).await.unwrap()[0].is_failure());
            world.detach(&client).await;
        }
        Self { world, clients: BTreeMap::new(), seen: BTreeMap::new(), published: Vec::new(), epoch: 1 }
    }

    async fn apply(mut self, step: Step) -> Self {
        match step {
            Step::Publish(count, is_rare) => {
                let topic = if is_rare { RARE } else { COMMON };
                for _ in 0..count {
                    let text = self.published.len().to_string();
                    self.world.publish_text(topic, &text).await;
                    self.published.push((topic, text));
                }
            }
            Step::Attach(number) => self.attach(number, 5).await,
            Step::Detach(number) => {
                if let Some(client) = self.clients.remove(&number) {
                    self.note(number, &client);
                    self.world.detach(&client).await;
                }
            }
            Step::Ack(number, nth, newest_first) => self.ack(number, nth, newest_first),
            Step::Settle => self.world.stored().await,
            Step::Crash | Step::StopAndStart => {
                for (number, client) in std::mem::take(&mut self.clients) {
                    self.note(number, &client);
                }
                if matches!(step, Step::StopAndStart) {
                    self.world.stop().await;
                }
                self.epoch += 1;
                self.world = self.world.crash(self.epoch).await;
            }
        }
        self
    }

    async fn attach(&mut self, number: u8, window: u16) {
        if let Some(client) = self.clients.remove(&number) {
            self.note(number, &client);
        }
        let asked = AttachRequest { window, ..request(&number.to_string()) };
        let client = self.world.attach(asked).await.unwrap();
        assert!(client.grant.session_present);
        self.clients.insert(number, client);
    }

    fn ack(&mut self, number: u8, nth: u8, newest_first: bool) {
        let Some(client) = self.clients.get(&number).cloned() else { return };
        self.note(number, &client);
        let mut deliveries = self.world.hosts.delivered(&client.id, client.grant.connection);
        if newest_first {
            deliveries.reverse();
        }
        let done: Vec<_> = deliveries.into_iter().step_by(usize::from(nth)).collect();
        self.world.ack(&client, done.into_iter().map(|delivery| delivery.offset).collect());
    }

    /// Takes down what a connection got, and checks it.
    fn note(&mut self, number: u8, client: &Client) {
        let deliveries = self.world.hosts.delivered(&client.id, client.grant.connection);
        let seen = self.seen.entry(number).or_default();
        let texts = payloads(&deliveries);
        let different: BTreeSet<_> = texts.iter().collect();
        assert_eq!(different.len(), texts.len(), "something came twice on one connection");
        let noted = seen.noted.insert(client.grant.connection, texts.len()).unwrap_or(0);
        for (delivery, text) in deliveries.iter().zip(texts).skip(noted) {
            let is_new = seen.known.insert(text.clone());
            assert!(is_new || delivery.redelivery || self.epoch > 1, "{text} came again without a mark");
            if is_new {
                seen.first.push(text);
            }
        }
    }

    /// In the end everybody gets everything, each first delivery in the order of publication.
    async fn finish(mut self) {
        for number in 0..CLIENTS {
            self.attach(number, u16::MAX).await;
            let client = self.clients[&number].clone();
            let seen = self.seen.entry(number).or_default();
            let filter = FILTERS[usize::from(number)];
            let wanted = self.published.iter().filter(|(topic, _)| filter == "a/+" || filter == *topic);
            let wanted: Vec<_> = wanted.map(|(_, text)| text.clone()).collect();
            let missing: Vec<_> = wanted.iter().filter(|text| !seen.known.contains(*text)).cloned().collect();
            let hosts = self.world.hosts.clone();
            let is_complete = || {
                let got: BTreeSet<_> =
                    payloads(&hosts.delivered(&client.id, client.grant.connection)).into_iter().collect();
                missing.iter().all(|text| got.contains(text))
            };
            self.world.until(is_complete).await;
            self.note(number, &client);
            assert_eq!(self.seen[&number].first, wanted, "client {number}");
        }
        assert_eq!(self.world.metrics.records_lost.get(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_message_is_lost_and_first_deliveries_keep_their_order(
        steps in proptest::collection::vec(step(), 1..30),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let mut model = Model::new().await;
            for step in steps {
                model = model.apply(step).await;
            }
            model.finish().await;
        });
    }
}
