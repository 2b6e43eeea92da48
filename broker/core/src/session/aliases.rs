//! Topic aliases from the broker to one client (MQTT 5.0 section 3.3.2.3.4), keyed by topic.
//!
//! A topic gets an alias with its second delivery, so that topics that are seen once cost nothing. When all aliases are
//! taken, a topic that comes again takes over one that has not been used for a while.

use std::num::NonZeroU16;
use xxhash_rust::xxh3::xxh3_64;

/// Aliases of one client at most, however many it accepts.
pub const ALIASES_MAX: u16 = 32;
/// An alias is three bytes in the packet: a shorter topic does not gain by it.
const TOPIC_BYTES_MIN: usize = 4;
/// Longer topics would make the table large.
const TOPIC_BYTES_MAX: usize = 1_024;
/// Places to remember that a topic was there; two topics may share one.
const SEEN_PLACES: usize = 256;
/// Of so many wishes for an alias of a full table one is looked at. So topics that take turns, more of them than there
/// are aliases, leave the table alone.
const LOOK_EVERY: u8 = 8;

/// Which topics the client knows by which alias.
///
/// Invariant: alias `n + 1` stands for `aliases[n]` at the client, as soon as it has read what was written so far; so
/// a choice is confirmed only when its packet was written.
#[derive(Debug)]
pub struct TopicAliases {
    maximum: usize,
    aliases: Vec<Alias>,
    /// Hashes of their topics, apart from them, to be searched quickly.
    hashes: Vec<u64>,
    /// A part of the hash of the topic that was last in each place.
    seen: Box<[u8; SEEN_PLACES]>,
    /// The next alias to look at when one is to be taken over.
    hand: usize,
    wishes: u8,
}

#[derive(Debug)]
struct Alias {
    topic: Box<str>,
    /// Used since the hand was here.
    is_used: bool,
}

/// How to write one PUBLISH.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AliasChoice {
    /// With its topic, without an alias.
    Topic,
    /// With its topic and this alias, which stands for it from then on: call [`TopicAliases::confirm`] when it is
    /// written.
    New(NonZeroU16),
    /// With this alias and an empty topic.
    Known(NonZeroU16),
}

impl TopicAliases {
    /// For a client that accepts aliases up to `maximum`. About 300 bytes, and the topics.
    #[must_use]
    pub fn new(maximum: NonZeroU16) -> Self {
        Self {
            maximum: usize::from(maximum.get().min(ALIASES_MAX)),
            aliases: Vec::new(),
            hashes: Vec::new(),
            seen: Box::new([0; SEEN_PLACES]),
            hand: 0,
            wishes: 0,
        }
    }

    /// How to write a PUBLISH to `topic` now. Nothing the client must know changes by asking.
    pub fn choose(&mut self, topic: &str) -> AliasChoice {
        if !(TOPIC_BYTES_MIN..=TOPIC_BYTES_MAX).contains(&topic.len()) {
            return AliasChoice::Topic;
        }
        let hash = xxh3_64(topic.as_bytes());
        let known = self.hashes.iter().position(|known| *known == hash);
        if let Some(index) = known
            && let Some(alias) = self.aliases.get_mut(index)
            && *alias.topic == *topic
        {
            alias.is_used = true;
            return number(index).map_or(AliasChoice::Topic, AliasChoice::Known);
        }
        if !self.was_seen(hash) {
            return AliasChoice::Topic;
        }
        self.free_place().and_then(number).map_or(AliasChoice::Topic, AliasChoice::New)
    }

    /// The PUBLISH that gives `topic` the alias of [`AliasChoice::New`] is written, before any other of this client.
    pub fn confirm(&mut self, alias: NonZeroU16, topic: &str) {
        let index = usize::from(alias.get()) - 1;
        let hash = xxh3_64(topic.as_bytes());
        let new = Alias { topic: topic.into(), is_used: true };
        match (self.aliases.get_mut(index), self.hashes.get_mut(index)) {
            (Some(place), Some(place_hash)) => (*place, *place_hash) = (new, hash),
            _ => {
                debug_assert_eq!(index, self.aliases.len(), "aliases are given in order");
                self.aliases.push(new);
                self.hashes.push(hash);
            }
        }
    }

    /// Whether a topic of this hash, or one that looks like it, was there lately. It was from now on.
    fn was_seen(&mut self, hash: u64) -> bool {
        let [place, mark, ..] = hash.to_le_bytes();
        let mark = mark.max(1);
        let seen = self.seen.get_mut(usize::from(place));
        seen.is_some_and(|seen| std::mem::replace(seen, mark) == mark)
    }

    fn free_place(&mut self) -> Option<usize> {
        if self.aliases.len() < self.maximum {
            return Some(self.aliases.len());
        }
        self.wishes = (self.wishes + 1) % LOOK_EVERY;
        if self.wishes != 0 {
            return None;
        }
        let place = self.hand;
        self.hand = (place + 1) % self.maximum;
        let alias = self.aliases.get_mut(place)?;
        (!std::mem::replace(&mut alias.is_used, false)).then_some(place)
    }
}

fn number(index: usize) -> Option<NonZeroU16> {
    u16::try_from(index + 1).ok().and_then(NonZeroU16::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn aliases(maximum: u16) -> TopicAliases {
        TopicAliases::new(NonZeroU16::new(maximum).unwrap())
    }

    fn alias(number: u16) -> NonZeroU16 {
        NonZeroU16::new(number).unwrap()
    }

    #[test]
    fn a_topic_gets_an_alias_with_its_second_delivery_and_goes_by_it_from_the_third() {
        let mut aliases = aliases(10);

        assert_eq!(aliases.choose("plant/7"), AliasChoice::Topic);
        assert_eq!(aliases.choose("plant/7"), AliasChoice::New(alias(1)));
        aliases.confirm(alias(1), "plant/7");
        assert_eq!(aliases.choose("plant/7"), AliasChoice::Known(alias(1)));
        assert_eq!(aliases.choose("plant/8"), AliasChoice::Topic, "another topic is another alias");
        assert_eq!(aliases.choose("plant/8"), AliasChoice::New(alias(2)));
    }

    #[test]
    fn an_alias_whose_packet_was_not_written_is_given_again() {
        let mut aliases = aliases(1);
        aliases.choose("plant/7");

        assert_eq!(aliases.choose("plant/7"), AliasChoice::New(alias(1)));
        assert_eq!(aliases.choose("plant/7"), AliasChoice::New(alias(1)), "nothing was confirmed");
        aliases.choose("plant/8");
        assert_eq!(aliases.choose("plant/8"), AliasChoice::New(alias(1)));
        aliases.confirm(alias(1), "plant/8");
        assert_eq!(aliases.choose("plant/8"), AliasChoice::Known(alias(1)));
    }

    #[test]
    fn a_topic_that_is_no_longer_than_its_alias_keeps_its_name() {
        let mut aliases = aliases(10);

        for _ in 0..5 {
            assert_eq!(aliases.choose("a/b"), AliasChoice::Topic);
            assert_eq!(aliases.choose(&"t".repeat(1_025)), AliasChoice::Topic);
        }
    }

    #[test]
    fn a_new_hot_topic_takes_over_an_alias_that_nobody_uses_any_more() {
        let mut aliases = aliases(2);
        for topic in ["old/1", "old/2"] {
            aliases.choose(topic);
            let AliasChoice::New(number) = aliases.choose(topic) else { panic!("{topic} gets an alias") };
            aliases.confirm(number, topic);
        }

        let taken = (0..1_000).find_map(|_| match aliases.choose("new/1") {
            AliasChoice::New(number) => Some(number),
            AliasChoice::Topic | AliasChoice::Known(_) => None,
        });

        assert!(taken.is_some());
    }

    #[test]
    fn topics_that_take_turns_and_are_too_many_leave_the_table_alone() {
        let mut aliases = aliases(32);
        let topics: Vec<_> = (0..100).map(|number| format!("plant/{number}")).collect();
        let (mut known, mut new) = (0, 0);
        for _ in 0..100 {
            for topic in &topics {
                match aliases.choose(topic) {
                    AliasChoice::Known(_) => known += 1,
                    AliasChoice::New(number) => {
                        new += 1;
                        aliases.confirm(number, topic);
                    }
                    AliasChoice::Topic => {}
                }
            }
        }

        assert!(known > 2_500 && new < 100, "{known} of 10000 known, {new} given");
    }

    proptest! {
        /// Model: a client that resolves aliases. Some packets are not written; the client never sees those.
        #[test]
        fn a_client_that_resolves_aliases_always_sees_the_right_topic(
            deliveries in proptest::collection::vec((0..12_u8, any::<bool>()), 0..600),
            maximum in 1..6_u16,
        ) {
            let mut aliases = aliases(maximum);
            let mut client: BTreeMap<NonZeroU16, String> = BTreeMap::new();
            for (number, is_written) in deliveries {
                let topic = format!("topic/{number}");
                let choice = aliases.choose(&topic);
                if !is_written {
                    continue;
                }
                let resolved = match choice {
                    AliasChoice::Topic => topic.clone(),
                    AliasChoice::New(alias) => {
                        prop_assert!(alias.get() <= maximum);
                        client.insert(alias, topic.clone());
                        aliases.confirm(alias, &topic);
                        topic.clone()
                    }
                    AliasChoice::Known(alias) => client.get(&alias).cloned().unwrap_or_default(),
                };
                prop_assert_eq!(resolved, topic);
            }
        }
    }
}
