//! Random scripts, and a model of what they must lead to.

use std::collections::{BTreeMap, BTreeSet};
use tidemill_core::topic::{TopicFilter, TopicName};
use tidemill_e2e::random::Numbers;
use tidemill_e2e::raw_client::Delivery;

/// What a client of a script is. The number of the client is its place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScriptClient {
    pub(crate) level: u8,
    pub(crate) clean: bool,
}

pub(crate) const CLIENTS: [ScriptClient; 4] = [
    ScriptClient { level: 4, clean: true },
    ScriptClient { level: 4, clean: false },
    ScriptClient { level: 5, clean: true },
    ScriptClient { level: 5, clean: true },
];

/// Few, so that they meet. Of every shape, but none that starts with a multi-byte character: a prefix comes before them.
const TOPICS: [&str; 8] = ["a", "a/b", "a/b/c", "b", "b/", "/b", "ä/温度", ""];
const FILTERS: [&str; 12] =
    ["a", "a/b", "a/+", "a/#", "#", "+", "+/b", "a/+/c", "/+", "b/", "ä/温度", "+/+/#"];

/// One thing that one client does. Each is possible in the state in which the script has it.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Connect { client: usize },
    Disconnect { client: usize },
    Subscribe { client: usize, filter: &'static str, qos: u8 },
    Unsubscribe { client: usize, filter: &'static str },
    Publish { client: usize, topic: &'static str, payload: String, qos: u8, retain: bool },
}

/// The script of `seed`. All clients are connected at its end, so that kept sessions show what they have.
pub(crate) fn script(seed: u64, length: usize) -> Vec<Step> {
    let mut numbers = Numbers::new(seed);
    let mut connected = [false; CLIENTS.len()];
    // Whether a kept session has come back: rumqttd does not answer its UNSUBSCRIBE any more.
    let mut resumed = [false; CLIENTS.len()];
    let mut subscribed: BTreeSet<(usize, &'static str)> = BTreeSet::new();
    let mut steps = Vec::new();
    for number in 0..length {
        let client = numbers.below(CLIENTS.len());
        if !connected[client] {
            connected[client] = true;
            steps.push(Step::Connect { client });
            continue;
        }
        let own: Vec<_> = subscribed.iter().filter(|(owner, _)| *owner == client).copied().collect();
        match numbers.below(20) {
            0 => {
                connected[client] = false;
                resumed[client] = !CLIENTS[client].clean;
                if CLIENTS[client].clean {
                    subscribed.retain(|(owner, _)| *owner != client);
                }
                steps.push(Step::Disconnect { client });
            }
            1 if !own.is_empty() && !resumed[client] => {
                let (_, filter) = own[numbers.below(own.len())];
                subscribed.remove(&(client, filter));
                steps.push(Step::Unsubscribe { client, filter });
            }
            2..=6 if own.len() < 3 => {
                let filter = FILTERS[numbers.below(FILTERS.len())];
                if subscribed.insert((client, filter)) {
                    steps.push(Step::Subscribe { client, filter, qos: numbers.qos() });
                }
            }
            _ => {
                let retain = numbers.below(4) == 0;
                let is_empty = retain && numbers.below(3) == 0;
                let payload = if is_empty { String::new() } else { format!("{client}:{number}") };
                let topic = TOPICS[numbers.below(TOPICS.len())];
                steps.push(Step::Publish { client, topic, payload, qos: numbers.qos(), retain });
            }
        }
    }
    steps.extend(
        (0..CLIENTS.len()).filter(|client| !connected[*client]).map(|client| Step::Connect { client }),
    );
    steps
}

/// Publisher and number of a message, from its payload; empty ones have none.
pub(crate) fn sequence_of(delivery: &Delivery) -> (usize, usize) {
    let text = std::str::from_utf8(&delivery.payload).unwrap();
    let (client, number) = text.split_once(':').unwrap_or(("99", "0"));
    (client.parse().unwrap(), number.parse().unwrap())
}

/// What must have arrived: plain lists, searched filter by filter.
pub(crate) struct Model {
    prefix: String,
    /// By client: topic and payload of everything it gets.
    pub(crate) expected: Vec<BTreeSet<(String, Vec<u8>)>>,
    /// What it gets from rumqttd beyond that, or not: deliveries at QoS 0 while it was away.
    pub(crate) beyond: Vec<BTreeSet<(String, Vec<u8>)>>,
    /// The QoS at which a client may get a payload, live or as retained.
    pub(crate) allowed: BTreeMap<(usize, Vec<u8>, bool), BTreeSet<u8>>,
    connected: Vec<bool>,
    /// What comes when a client is back: client, topic, payload, QoS.
    waiting: Vec<(usize, &'static str, Vec<u8>, u8)>,
    subscriptions: BTreeMap<(usize, &'static str), u8>,
    retained: BTreeMap<&'static str, (Vec<u8>, u8)>,
}

impl Model {
    pub(crate) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            expected: vec![BTreeSet::new(); CLIENTS.len()],
            beyond: vec![BTreeSet::new(); CLIENTS.len()],
            allowed: BTreeMap::new(),
            connected: vec![false; CLIENTS.len()],
            waiting: Vec::new(),
            subscriptions: BTreeMap::new(),
            retained: BTreeMap::new(),
        }
    }

    pub(crate) fn apply(&mut self, step: &Step) {
        match step {
            Step::Connect { client } => {
                self.connected[*client] = true;
                let waiting = std::mem::take(&mut self.waiting);
                for (owner, topic, payload, qos) in waiting {
                    if owner == *client {
                        self.expect(owner, topic, &payload, (qos, false));
                    } else {
                        self.waiting.push((owner, topic, payload, qos));
                    }
                }
            }
            Step::Disconnect { client } => {
                self.connected[*client] = false;
                if CLIENTS[*client].clean {
                    self.subscriptions.retain(|(owner, _), _| owner != client);
                }
            }
            Step::Subscribe { client, filter, qos } => {
                self.subscriptions.insert((*client, filter), *qos);
                for (topic, (payload, published)) in self.retained.clone() {
                    if self.is_match(filter, topic) {
                        self.expect(*client, topic, &payload, (published.min(*qos), true));
                    }
                }
            }
            Step::Unsubscribe { client, filter } => {
                self.subscriptions.remove(&(*client, *filter));
            }
            Step::Publish { topic, payload, qos, retain, .. } => {
                self.publish(topic, payload.as_bytes(), *qos);
                match (retain, payload.is_empty()) {
                    (true, true) => drop(self.retained.remove(topic)),
                    (true, false) => {
                        self.retained.insert(topic, (payload.as_bytes().to_vec(), *qos));
                    }
                    (false, _) => {}
                }
            }
        }
    }

    fn publish(&mut self, topic: &'static str, payload: &[u8], qos: u8) {
        for client in 0..CLIENTS.len() {
            let matching = self.subscriptions.iter().filter(|((owner, _), _)| *owner == client);
            let granted = matching
                .filter(|((_, filter), _)| self.is_match(filter, topic))
                .map(|(_, granted)| *granted)
                .max();
            let Some(granted) = granted else { continue };
            let qos = qos.min(granted);
            if self.connected[client] {
                self.expect(client, topic, payload, (qos, false));
            } else if qos > 0 {
                self.waiting.push((client, topic, payload.to_vec(), qos));
            } else {
                let topic = self.within(topic);
                self.beyond[client].insert((topic, payload.to_vec()));
            }
        }
    }

    fn expect(&mut self, client: usize, topic: &str, payload: &[u8], (qos, retain): (u8, bool)) {
        let topic = self.within(topic);
        self.expected[client].insert((topic, payload.to_vec()));
        self.allowed.entry((client, payload.to_vec(), retain)).or_default().insert(qos);
    }

    fn is_match(&self, filter: &str, topic: &str) -> bool {
        let filter = TopicFilter::parse(self.within(filter)).unwrap();
        filter.matches(&TopicName::parse(self.within(topic)).unwrap())
    }

    fn within(&self, rest: &str) -> String {
        format!("{}/{rest}", self.prefix)
    }
}
