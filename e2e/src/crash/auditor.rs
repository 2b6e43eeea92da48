//! What was sent, acknowledged and delivered, and what of it a broker must not do.

use super::stream::Stream;
use std::collections::{BTreeMap, BTreeSet};

/// More violations than anybody reads; further ones are only counted.
const VIOLATIONS_MAX: usize = 50;

/// What must not be, and who saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields say who, which message and how many, as their names do")]
pub enum Violation {
    /// So many acknowledged messages that were due to `subscriber` never arrived.
    Lost { subscriber: u32, stream: Stream, count: usize, first: u64 },
    /// A message that is exactly once arrived again.
    Duplicate { subscriber: u32, stream: Stream, sequence: u64, arrivals: u32 },
    /// The first arrival came after that of a later message of the stream.
    Reordered { subscriber: u32, stream: Stream, sequence: u64, after: u64 },
    /// Nobody published it.
    NeverSent { subscriber: u32, stream: Stream, sequence: u64 },
    /// No subscription of the receiver matches it.
    NotSubscribed { subscriber: u32, stream: Stream },
    /// The delivery has another QoS than the lower one of publish and subscription.
    WrongQos { subscriber: u32, stream: Stream, qos: u8 },
    /// What arrived is not what was published.
    Damaged { subscriber: u32, what: String },
    /// CONNACK says that there is no session although there must be one.
    SessionLost { client: String },
    /// CONNACK says that there is a session although there cannot be one.
    SessionFromNowhere { client: String },
    /// A packet id was used for another message before its exchange was over.
    PacketIdTaken { subscriber: u32, packet_id: u16 },
    /// A QoS 2 message came again without the DUP flag.
    NotMarkedDup { subscriber: u32, packet_id: u16 },
    /// More messages were under way than the receiver allows.
    BeyondReceiveMaximum { subscriber: u32, outstanding: usize, maximum: u16 },
    /// A publisher waits in vain, although the broker runs.
    NeverAcknowledged { client: String },
    /// An acknowledgement of nothing, or one that says no.
    WrongAcknowledgement { client: String, what: String },
}

/// The comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Publishes that were acknowledged.
    pub acknowledged: usize,
    /// Messages that had to arrive: each acknowledged one, once for each of its receivers.
    pub due: usize,
    /// Messages that arrived, repeats included.
    pub arrived: usize,
    /// Arrivals beyond the first: legal at QoS 1.
    pub repeated: usize,
    /// What a broker must not do, in the order in which it was seen; what is lost comes last.
    pub violations: Vec<Violation>,
    /// Violations that are not in the list because it was full.
    pub violations_more: usize,
}

/// Knows what all clients saw.
#[derive(Debug, Default)]
pub struct Auditor {
    /// By sequence number: whether it was acknowledged.
    sent: BTreeMap<Stream, Vec<bool>>,
    subscribers: BTreeMap<u32, Subscriber>,
    violations: Vec<Violation>,
    violations_more: usize,
}

#[derive(Debug, Default)]
struct Subscriber {
    qos: u8,
    /// Publishers whose subscription was asked for.
    asked: BTreeSet<u32>,
    /// Publishers whose subscription was acknowledged: the first message of each stream that was sent after that.
    due_from: BTreeMap<u32, BTreeMap<Stream, usize>>,
    arrivals: BTreeMap<Stream, Arrivals>,
}

#[derive(Debug, Default)]
struct Arrivals {
    /// By sequence number.
    counts: Vec<u32>,
    highest: Option<u64>,
}

/// One message in the hands of a receiver's application.
#[derive(Debug, Clone, Copy)]
pub struct Arrived {
    /// Who received it.
    pub subscriber: u32,
    /// Where it belongs.
    pub stream: Stream,
    /// Its number in the stream.
    pub sequence: u64,
    /// QoS of the delivery.
    pub qos: u8,
}

impl Auditor {
    /// A PUBLISH is about to be written, perhaps not for the first time. Sequence numbers of a stream have no gaps.
    pub fn record_sent(&mut self, stream: Stream, sequence: u64) {
        let sent = self.sent.entry(stream).or_default();
        let count = sent.len().max(index(sequence) + 1);
        sent.resize(count, false);
    }

    /// PUBACK, PUBREC or PUBCOMP came.
    pub fn record_acknowledged(&mut self, stream: Stream, sequence: u64) {
        let is_acknowledged = self.sent.get_mut(&stream).and_then(|sent| sent.get_mut(index(sequence)));
        *is_acknowledged.expect("what is acknowledged was sent") = true;
    }

    /// A SUBSCRIBE at `qos` to all streams of `publisher` is about to be written.
    pub fn record_asked(&mut self, subscriber: u32, qos: u8, publisher: u32) {
        let subscriber = self.subscribers.entry(subscriber).or_default();
        subscriber.qos = qos;
        subscriber.asked.insert(publisher);
    }

    /// Its SUBACK has come: whatever is sent from now on is due.
    pub fn record_subscribed(&mut self, subscriber: u32, publisher: u32) {
        let streams = self.sent.iter().filter(|(stream, _)| stream.publisher == publisher);
        let first_due = streams.map(|(stream, sent)| (*stream, sent.len())).collect();
        let subscriber = self.subscribers.entry(subscriber).or_default();
        subscriber.due_from.entry(publisher).or_insert(first_due);
    }

    /// A message reached the application of a subscriber.
    pub fn record_arrived(&mut self, arrived: Arrived) {
        let Arrived { subscriber: number, stream, sequence, qos } = arrived;
        let is_sent = self.sent.get(&stream).is_some_and(|sent| index(sequence) < sent.len());
        let subscriber = self.subscribers.entry(number).or_default();
        let arrivals = subscriber.arrivals.entry(stream).or_default();
        if !is_sent {
            return self.record_violation(Violation::NeverSent { subscriber: number, stream, sequence });
        }
        if arrivals.counts.len() <= index(sequence) {
            arrivals.counts.resize(index(sequence) + 1, 0);
        }
        let count = &mut arrivals.counts[index(sequence)];
        *count += 1;

        let mut found = Vec::new();
        // Exactly once is QoS 2 all the way.
        if *count > 1 && (stream.qos, subscriber.qos) == (2, 2) {
            let arrivals = *count;
            found.push(Violation::Duplicate { subscriber: number, stream, sequence, arrivals });
        }
        // What was sent before the SUBACK may have met no subscription the first time, and one when it was sent again,
        // after later messages.
        let first_due = subscriber.due_from.get(&stream.publisher);
        let is_due =
            first_due.is_some_and(|first| index(sequence) >= first.get(&stream).copied().unwrap_or(0));
        let later = arrivals.highest.filter(|highest| is_due && *highest > sequence);
        if let (1, Some(after)) = (*count, later) {
            found.push(Violation::Reordered { subscriber: number, stream, sequence, after });
        }
        arrivals.highest = arrivals.highest.max(Some(sequence));
        if !subscriber.asked.contains(&stream.publisher) {
            found.push(Violation::NotSubscribed { subscriber: number, stream });
        }
        if qos != stream.qos.min(subscriber.qos) {
            found.push(Violation::WrongQos { subscriber: number, stream, qos });
        }
        found.into_iter().for_each(|violation| self.record_violation(violation));
    }

    /// A client saw something that must not be.
    pub fn record_violation(&mut self, violation: Violation) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(violation);
        } else {
            self.violations_more += 1;
        }
    }

    /// Acknowledged messages that have not arrived everywhere yet.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.due().filter(|due| due.arrivals == 0).count()
    }

    /// Compares. Whatever is missing now counts as lost.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let acknowledged = self.sent.values().flatten().filter(|is_acknowledged| **is_acknowledged).count();
        let counts = || {
            let arrivals = self.subscribers.values().flat_map(|subscriber| subscriber.arrivals.values());
            arrivals.flat_map(|arrivals| &arrivals.counts).map(|count| usize::try_from(*count).unwrap_or(0))
        };
        let mut lost = BTreeMap::new();
        for Due { subscriber, stream, sequence, .. } in self.due().filter(|due| due.arrivals == 0) {
            let (count, _) = lost.entry((subscriber, stream)).or_insert((0, sequence));
            *count += 1;
        }
        let lost = lost.into_iter().map(|((subscriber, stream), (count, first))| Violation::Lost {
            subscriber,
            stream,
            count,
            first,
        });
        Verdict {
            acknowledged,
            due: self.due().count(),
            arrived: counts().sum(),
            repeated: counts().map(|count| count.saturating_sub(1)).sum(),
            violations: self.violations.iter().cloned().chain(lost).collect(),
            violations_more: self.violations_more,
        }
    }

    /// Each acknowledged message once for each of its receivers.
    fn due(&self) -> impl Iterator<Item = Due> {
        self.subscribers.iter().flat_map(move |(number, subscriber)| {
            let due = subscriber.due_from.iter().flat_map(move |(publisher, first_due)| {
                let streams = self.sent.iter().filter(move |(stream, _)| stream.publisher == *publisher);
                streams.map(move |(stream, sent)| {
                    (*stream, sent, first_due.get(stream).copied().unwrap_or_default())
                })
            });
            due.flat_map(move |(stream, sent, first_due)| {
                let counts = subscriber.arrivals.get(&stream).map_or(&[][..], |arrivals| &arrivals.counts);
                let sent = sent.iter().zip(0_u64..).skip(first_due);
                sent.filter(|(is_acknowledged, _)| **is_acknowledged).map(move |(_, sequence)| Due {
                    subscriber: *number,
                    stream,
                    sequence,
                    arrivals: counts.get(index(sequence)).copied().unwrap_or_default(),
                })
            })
        })
    }
}

struct Due {
    subscriber: u32,
    stream: Stream,
    sequence: u64,
    arrivals: u32,
}

fn index(sequence: u64) -> usize {
    usize::try_from(sequence).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[path = "auditor/tests.rs"]
mod tests;
