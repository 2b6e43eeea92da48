//! Which member of a shared subscription gets a message (MQTT 5.0 section 4.8.2): the members of one group that can be
//! chosen now, in the order of their names, and the choice among them. The order of joining decides nothing.

pub mod backlog;
pub mod strategy;
#[cfg(test)]
mod tests;

use crate::message::Message;
use bytestring::ByteString;
use std::iter::Chain;
use std::ops::Range;
use std::sync::Arc;
use strategy::Strategy;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Names one group of this process. Not reused while the group is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShareId(pub u32);

/// A message that a lost member of a group had and is not done with: another member shall have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostDelivery {
    /// The group.
    pub share: ShareId,
    /// What was published.
    pub message: Arc<Message>,
}

/// What a choice may depend on of one publish.
#[derive(Debug, Clone, Copy)]
pub struct PublishKeys<'a> {
    /// Client id of the publisher.
    pub publisher: &'a str,
    /// Topic of the message.
    pub topic: &'a str,
    /// Any number, for [`Strategy::Random`] alone: evenly distributed over all 64 bits.
    pub random: u64,
}

/// Places of members, in the order in which they are tried.
pub type Places = Chain<Range<usize>, Range<usize>>;

/// The members of one group, each with what the caller knows of it.
///
/// Invariants: names ascend and are unique; `turn` is below the number of members, or 0.
#[derive(Debug)]
pub struct Members<M> {
    strategy: Strategy,
    members: Vec<Member<M>>,
    /// Who is next ([`Strategy::RoundRobin`], and among equals [`Strategy::LeastInFlight`]), or who has it
    /// ([`Strategy::Sticky`]).
    turn: usize,
}

#[derive(Debug)]
struct Member<M> {
    name: ByteString,
    /// Of the name, for the strategies that hash.
    hash: u64,
    value: M,
}

impl<M> Members<M> {
    /// No members yet.
    #[must_use]
    pub fn new(strategy: Strategy) -> Self {
        Self { strategy, members: Vec::new(), turn: 0 }
    }

    /// Adds a member, or replaces what is known of it; returns what was.
    pub fn insert(&mut self, name: ByteString, value: M) -> Option<M> {
        match self.place_of(&name) {
            Ok(place) => Some(std::mem::replace(&mut self.members[place].value, value)),
            Err(place) => {
                // Whoever has the turn keeps it.
                if place <= self.turn && !self.members.is_empty() {
                    self.turn += 1;
                }
                self.members.insert(place, Member { hash: xxh3_64(name.as_bytes()), name, value });
                None
            }
        }
    }

    /// Takes a member out; the next one in order has its turn.
    pub fn remove(&mut self, name: &str) -> Option<M> {
        let place = self.place_of(name).ok()?;
        let gone = self.members.remove(place);
        if place < self.turn {
            self.turn -= 1;
        }
        if self.turn >= self.members.len() {
            self.turn = 0;
        }
        Some(gone.value)
    }

    /// What is known of a member.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&M> {
        let place = self.place_of(name).ok()?;
        self.at(place)
    }

    /// What is known of the member at `place`.
    #[must_use]
    pub fn at(&self, place: usize) -> Option<&M> {
        self.members.get(place).map(|member| &member.value)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The places to try for one message: the chosen one, then the others in order, each once. `load` tells how many
    /// messages a member has in flight or waiting. Tell [`Members::handle_taken`] who took it.
    pub fn choose(&self, keys: PublishKeys<'_>, load: impl Fn(&M) -> usize) -> Places {
        let count = self.members.len();
        let first = match self.strategy {
            Strategy::Random => scale(keys.random, count),
            Strategy::RoundRobin | Strategy::Sticky => self.turn,
            Strategy::LeastInFlight => self.least(load),
            Strategy::HashPublisher => self.highest(keys.publisher),
            Strategy::HashTopic => self.highest(keys.topic),
        };
        (first..count).chain(0..first.min(count))
    }

    /// The member at `place` took a message.
    pub fn handle_taken(&mut self, place: usize) {
        match self.strategy {
            Strategy::RoundRobin | Strategy::LeastInFlight => {
                self.turn = if place + 1 < self.members.len() { place + 1 } else { 0 };
            }
            // It sticks to the member that has it, also when another one helps out.
            Strategy::Sticky | Strategy::Random | Strategy::HashPublisher | Strategy::HashTopic => {}
        }
    }

    /// The member with the least load; among equals the first one from the turn on.
    fn least(&self, load: impl Fn(&M) -> usize) -> usize {
        let from_turn = (self.turn..self.members.len()).chain(0..self.turn);
        from_turn.min_by_key(|place| self.at(*place).map_or(usize::MAX, &load)).unwrap_or(0)
    }

    /// Rendezvous hashing: each pair of member and key has a weight of its own, and the heaviest member has the key. One
    /// that comes takes only the keys for which it is the heaviest; one that goes leaves only its own.
    fn highest(&self, key: &str) -> usize {
        let key = xxh3_64(key.as_bytes()).to_le_bytes();
        let weights = self.members.iter().map(|member| xxh3_64_with_seed(&key, member.hash));
        weights.enumerate().max_by_key(|(_, weight)| *weight).map_or(0, |(place, _)| place)
    }

    fn place_of(&self, name: &str) -> Result<usize, usize> {
        self.members.binary_search_by(|member| (*member.name).cmp(name))
    }
}

/// `random` brought from all of `u64` to `0..count`, evenly.
fn scale(random: u64, count: usize) -> usize {
    let scaled = (u128::from(random) * (count as u128)) >> 64;
    usize::try_from(scaled).unwrap_or(0)
}
