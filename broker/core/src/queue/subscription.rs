//! The subscriptions of one queue, and what they make of a record.
//!
//! Stored value: version, options (bits 0-1 QoS, 2 no local, 3 retain as published, 4-5 retain handling), flags (bit
//! 0 identifier, 1 end, 2 successor), identifier, start, end, successor's options, successor's identifier or 0.

use super::sorted::SortedMap;
use crate::attach::StoredSubscription;
use crate::binary::{FormatError, Writer};
use crate::message::Message;
use crate::packet::{QoS, RetainHandling, SubscriptionOptions};
use crate::partition::Offset;
use crate::record::Record;
use crate::state::{STATE_VERSION, flag, read_flags, read_version_1};
use crate::topic::{SharedFilter, SubscriptionTarget, TopicFilter};
use bytes::Bytes;

const OPTION_NO_LOCAL: u8 = 1 << 2;
const OPTION_RETAIN_AS_PUBLISHED: u8 = 1 << 3;
const FLAG_IDENTIFIER: u8 = 1;
const FLAG_END: u8 = 1 << 1;
const FLAG_SUCCESSOR: u8 = 1 << 2;

/// One subscription of a queue: it counts for offsets in `start..end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subscription {
    /// How to deliver.
    pub options: SubscriptionOptions,
    /// 5.0 subscription identifier.
    pub identifier: Option<u32>,
    /// First offset it counts for.
    pub start: Offset,
    /// One past the last offset it counts for; `None` while it is in force.
    pub end: Option<Offset>,
    /// The QoS 0 subscription that has replaced it at `end`: what was published before is not lost by that
    /// (MQTT-3.8.4-4). It takes its place once the queue is past `end`.
    pub successor: Option<Successor>,
}

/// A subscription of QoS 0 that waits until what an earlier one is owed was handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Successor {
    /// How to deliver.
    pub options: SubscriptionOptions,
    /// 5.0 subscription identifier.
    pub identifier: Option<u32>,
}

impl Successor {
    /// The subscription that it becomes; its messages take the live path.
    #[must_use]
    pub fn into_subscription(self, start: Offset) -> Subscription {
        Subscription { options: self.options, identifier: self.identifier, start, end: None, successor: None }
    }
}

impl Subscription {
    /// Whether it makes deliveries of QoS > 0, so that publishes go through the log for it.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.options.qos > QoS::AtMostOnce
    }

    /// Whether publishes are still appended for it: it makes deliveries of QoS > 0 and was not unsubscribed.
    #[must_use]
    pub fn has_route(&self) -> bool {
        self.is_durable() && (self.end.is_none() || self.successor.is_some())
    }

    /// Whether it changes a delivery that another subscription of its session makes: the client gets one copy, with all
    /// identifiers (MQTT-3.3.4-4).
    #[must_use]
    pub fn adds_to_deliveries(&self) -> bool {
        self.identifier.is_some() || self.options.retain_as_published
    }

    /// Options and identifier of what the client is subscribed to; `None` when it has unsubscribed.
    #[must_use]
    pub fn in_force(&self) -> Option<(SubscriptionOptions, Option<u32>)> {
        match (self.end, self.successor) {
            (_, Some(successor)) => Some((successor.options, successor.identifier)),
            (None, None) => Some((self.options, self.identifier)),
            (Some(_), None) => None,
        }
    }

    /// Whether it counts for `offset`.
    #[must_use]
    pub fn covers(&self, offset: Offset) -> bool {
        self.start <= offset && self.end.is_none_or(|end| offset < end)
    }

    /// Whether it counts for the message of `client_id`'s queue at `offset`.
    fn counts_for(&self, client_id: &str, offset: Offset, message: &Message) -> bool {
        let own = self.options.no_local && message.publisher == client_id;
        !own && self.covers(offset)
    }

    /// Writes the value in the newest format.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::versioned(STATE_VERSION, 24);
        writer.u8(encode_options(self.options));
        writer.u8(flag(self.identifier.is_some(), FLAG_IDENTIFIER)
            | flag(self.end.is_some(), FLAG_END)
            | flag(self.successor.is_some(), FLAG_SUCCESSOR));
        if let Some(identifier) = self.identifier {
            writer.number(identifier.into());
        }
        writer.number(self.start);
        if let Some(end) = self.end {
            writer.number(end);
        }
        if let Some(successor) = self.successor {
            writer.u8(encode_options(successor.options));
            writer.number(successor.identifier.unwrap_or(0).into());
        }
        writer.finish()
    }

    /// Reads a value of any format ever released.
    ///
    /// # Errors
    ///
    /// [`FormatError`]: the state is damaged or from a newer version; its partition must not be served.
    pub fn decode(bytes: Bytes) -> Result<Self, FormatError> {
        let mut reader = read_version_1(bytes, "subscription version")?;
        let options = decode_options(reader.u8("subscription options")?)?;
        let known = FLAG_IDENTIFIER | FLAG_END | FLAG_SUCCESSOR;
        let flags = read_flags(&mut reader, "subscription flags", known)?;
        let identifier =
            if flags & FLAG_IDENTIFIER != 0 { Some(reader.number_u32("identifier")?) } else { None };
        let start = reader.number("start offset")?;
        let end = if flags & FLAG_END != 0 { Some(reader.number("end offset")?) } else { None };
        let successor = if flags & FLAG_SUCCESSOR != 0 {
            let options = decode_options(reader.u8("successor options")?)?;
            let identifier = reader.number_u32("successor identifier")?;
            Some(Successor { options, identifier: (identifier != 0).then_some(identifier) })
        } else {
            None
        };
        reader.finish()?;
        Ok(Self { options, identifier, start, end, successor })
    }
}

fn encode_options(options: SubscriptionOptions) -> u8 {
    options.qos as u8
        | flag(options.no_local, OPTION_NO_LOCAL)
        | flag(options.retain_as_published, OPTION_RETAIN_AS_PUBLISHED)
        | (options.retain_handling as u8) << 4
}

fn decode_options(byte: u8) -> Result<SubscriptionOptions, FormatError> {
    let unknown = FormatError::Unknown { field: "subscription options", value: byte.into() };
    let retain_handling = match byte >> 4 {
        0 => RetainHandling::Send,
        1 => RetainHandling::SendIfNew,
        2 => RetainHandling::DoNotSend,
        _ => return Err(unknown),
    };
    Ok(SubscriptionOptions {
        qos: QoS::from_number(byte & 0b11).ok_or(unknown)?,
        no_local: byte & OPTION_NO_LOCAL != 0,
        retain_as_published: byte & OPTION_RETAIN_AS_PUBLISHED != 0,
        retain_handling,
    })
}

/// How a record goes to one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interest {
    /// min(publish QoS, highest QoS of the subscriptions that match); above 0.
    pub qos: QoS,
    /// The retain flag of the PUBLISH.
    pub retain: bool,
    /// Identifiers of the subscriptions that match, in filter order.
    pub identifiers: Vec<u32>,
}

impl Interest {
    /// How a delivery goes on whose subscription has ended since.
    #[must_use]
    pub fn of_ended_subscription() -> Self {
        Self { qos: QoS::AtLeastOnce, retain: false, identifiers: Vec::new() }
    }
}

/// The subscriptions of one queue. Those of QoS 0 and the shared ones are kept for the session, but make no interest
/// by themselves: their messages take the live path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subscriptions {
    by_filter: SortedMap<TopicFilter, Subscription>,
    shared: SortedMap<SharedFilter, Subscription>,
}

impl Subscriptions {
    /// Adds or replaces a plain one; returns what was replaced.
    pub fn insert(&mut self, filter: TopicFilter, subscription: Subscription) -> Option<Subscription> {
        self.by_filter.insert(filter, subscription)
    }

    /// Takes a plain one out.
    pub fn remove(&mut self, filter: &TopicFilter) -> Option<Subscription> {
        self.by_filter.remove(filter)
    }

    /// One plain subscription, ended or not.
    #[must_use]
    pub fn get(&self, filter: &TopicFilter) -> Option<&Subscription> {
        self.by_filter.get(filter)
    }

    /// The plain ones in filter order, ended ones too.
    pub fn iter(&self) -> impl Iterator<Item = (&TopicFilter, &Subscription)> {
        self.by_filter.iter()
    }

    /// Adds or replaces a shared one, which is in force until it is taken out; returns what was replaced.
    pub fn insert_shared(
        &mut self,
        shared: SharedFilter,
        subscription: Subscription,
    ) -> Option<Subscription> {
        self.shared.insert(shared, subscription)
    }

    /// Takes a shared one out.
    pub fn remove_shared(&mut self, shared: &SharedFilter) -> Option<Subscription> {
        self.shared.remove(shared)
    }

    /// Whether there is one for `target`, ended or not.
    #[must_use]
    pub fn contains(&self, target: &SubscriptionTarget) -> bool {
        match target {
            SubscriptionTarget::Filter(filter) => self.by_filter.get(filter).is_some(),
            SubscriptionTarget::Shared(shared) => self.shared.get(shared).is_some(),
        }
    }

    /// How many there are, ended and shared ones too.
    #[must_use]
    pub fn count(&self) -> usize {
        self.by_filter.len() + self.shared.len()
    }

    /// What they name, ended and shared ones too: the plain ones in filter order, then the shared ones.
    #[must_use]
    pub fn targets(&self) -> Vec<SubscriptionTarget> {
        let plain = self.by_filter.iter().map(|(filter, _)| SubscriptionTarget::Filter(filter.clone()));
        let shared = self.shared.iter().map(|(shared, _)| SubscriptionTarget::Shared(shared.clone()));
        plain.chain(shared).collect()
    }

    /// Those in force, as told to the host of a resumed session: the plain ones in filter order, then the shared ones.
    #[must_use]
    pub fn in_force(&self) -> Vec<StoredSubscription> {
        let stored = |target, subscription: &Subscription| {
            let (options, identifier) = subscription.in_force()?;
            Some(StoredSubscription { target, options, identifier })
        };
        let plain = self.by_filter.iter();
        let plain =
            plain.filter_map(|(filter, plain)| stored(SubscriptionTarget::Filter(filter.clone()), plain));
        let shared = self.shared.iter();
        let shared =
            shared.filter_map(|(target, shared)| stored(SubscriptionTarget::Shared(target.clone()), shared));
        plain.chain(shared).collect()
    }

    /// Takes out those that have ended at or below `head`, in filter order, and puts their successors in their place.
    pub fn take_ended(&mut self, head: Offset) -> Vec<(TopicFilter, Option<Subscription>)> {
        let is_over = |subscription: &Subscription| subscription.end.is_some_and(|end| end <= head);
        let ended = self.by_filter.extract(is_over);
        let replace = |(filter, ended): (TopicFilter, Subscription)| {
            let next = ended.successor.map(|successor| successor.into_subscription(head));
            if let Some(next) = next {
                self.by_filter.insert(filter.clone(), next);
            }
            (filter, next)
        };
        ended.into_iter().map(replace).collect()
    }

    /// Whether one has ended, or will at an offset that is known.
    #[must_use]
    pub fn has_ending(&self) -> bool {
        self.by_filter.iter().any(|(_, subscription)| subscription.end.is_some())
    }

    /// What the subscriptions make of a record, all filters tried: for a queue that is behind.
    #[must_use]
    pub fn interest(&self, client_id: &str, offset: Offset, record: &Record) -> Option<Interest> {
        let topic = &record.message.topic;
        let matching = self.by_filter.iter().filter(|(filter, _)| filter.matches(topic));
        combine(matching.map(|(_, subscription)| subscription), client_id, offset, record)
    }

    /// Whether the subscriptions with these filters, known to match, make a delivery of a record: [`Self::interest_of`]
    /// without what it would be.
    #[must_use]
    pub fn wants(&self, filters: &[&TopicFilter], client_id: &str, offset: Offset, record: &Record) -> bool {
        record.message.qos > QoS::AtMostOnce
            && filters.iter().filter_map(|filter| self.by_filter.get(*filter)).any(|subscription| {
                subscription.is_durable() && subscription.counts_for(client_id, offset, &record.message)
            })
    }

    /// What the subscriptions with these filters, known to match, make of a record.
    #[must_use]
    pub fn interest_of(
        &self,
        filters: &[&TopicFilter],
        client_id: &str,
        offset: Offset,
        record: &Record,
    ) -> Option<Interest> {
        combine(filters.iter().filter_map(|filter| self.by_filter.get(*filter)), client_id, offset, record)
    }
}

fn combine<'a>(
    matching: impl Iterator<Item = &'a Subscription>,
    client_id: &str,
    offset: Offset,
    record: &Record,
) -> Option<Interest> {
    let message = &record.message;
    let mut qos = QoS::AtMostOnce;
    let mut retain = false;
    let mut identifiers = Vec::new();
    for subscription in matching {
        if !subscription.counts_for(client_id, offset, message) {
            continue;
        }
        qos = qos.max(subscription.options.qos);
        retain |= subscription.options.retain_as_published && message.retain;
        identifiers.extend(subscription.identifier);
    }
    let qos = qos.min(message.qos);
    (qos > QoS::AtMostOnce).then_some(Interest { qos, retain, identifiers })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::hex;
    use proptest::prelude::*;

    fn options(qos: QoS) -> SubscriptionOptions {
        SubscriptionOptions {
            qos,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Send,
        }
    }

    #[test]
    fn version_1_keeps_its_bytes() {
        let plain = Subscription {
            options: options(QoS::AtLeastOnce),
            identifier: None,
            start: 300,
            end: None,
            successor: None,
        };
        let full = Subscription {
            options: SubscriptionOptions {
                qos: QoS::ExactlyOnce,
                no_local: true,
                retain_as_published: true,
                retain_handling: RetainHandling::DoNotSend,
            },
            identifier: Some(300),
            start: 1,
            end: Some(2),
            successor: None,
        };
        let successor = Successor { options: options(QoS::AtMostOnce), identifier: Some(7) };
        let lowered = Subscription { end: Some(301), successor: Some(successor), ..plain };

        let values =
            [(plain, "01 01 00 ac02"), (full, "01 2e 03 ac02 01 02"), (lowered, "01 01 06 ac02 ad02 00 07")];
        for (subscription, bytes) in values {
            assert_eq!(hex(&subscription.encode()), bytes.replace(' ', ""));
            assert_eq!(Subscription::decode(subscription.encode()), Ok(subscription));
        }
    }

    #[test]
    fn unknown_versions_and_options_are_refused() {
        for bytes in [[2, 1, 0, 0], [1, 3, 0, 0], [1, 0x31, 0, 0], [1, 0x41, 0, 0], [1, 1, 8, 0]] {
            assert!(Subscription::decode(Bytes::copy_from_slice(&bytes)).is_err(), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..24)) {
            let mut versioned = vec![STATE_VERSION];
            versioned.extend(&bytes);
            let _ = Subscription::decode(versioned.into());
            let _ = Subscription::decode(bytes.into());
        }
    }
}
