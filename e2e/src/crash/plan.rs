//! What chance decides: who takes part, what each client does in each round, and when the broker is killed.

use super::stream::Stream;
use crate::random::Numbers;
use std::time::Duration;

const PUBLISHERS: u32 = 10;
const SUBSCRIBERS: u32 = 14;
/// Messages of one publisher in one round, at most.
const QUOTA_MAX: usize = 120;
/// Messages of one publisher in the rounds after the storm: enough that a late repeat would show before them.
const LAST_WORDS: u64 = 5;

/// One run of the harness. Everything else follows from the seed.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What chance is made of.
    pub seed: u64,
    /// How many rounds of load there are; a disaster ends each.
    pub rounds: u32,
    /// What ends a round.
    pub disaster: Disaster,
}

/// What ends a round, at a random moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disaster {
    /// The broker is killed and started again.
    BrokerKilled,
    /// The connections of all clients break at once; the broker lives.
    ConnectionsBroken,
}

/// One publisher.
#[derive(Debug, Clone)]
pub struct Publisher {
    /// Protocol level: 4 or 5.
    pub level: u8,
    /// Whether its session is kept. A publisher without one publishes at QoS 1 only.
    pub is_kept: bool,
    /// Unacknowledged messages at the same time.
    pub window: usize,
    /// Where it publishes to, in turn.
    pub streams: Vec<Stream>,
}

/// One subscriber. Its session is kept.
#[derive(Debug, Clone)]
pub struct Subscriber {
    /// Protocol level: 4 or 5.
    pub level: u8,
    /// QoS of its subscriptions.
    pub qos: u8,
    /// What it says in CONNECT; only in 5.0.
    pub receive_maximum: Option<u16>,
    /// Whose messages it wants, and the round in which it subscribes.
    pub filters: Vec<(u32, u32)>,
}

/// What a subscriber does in one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Acknowledges what it gets at once.
    Prompt,
    /// Acknowledges so many at a time.
    Batches(usize),
    /// Acknowledges nothing.
    Silent,
    /// Acknowledges all but PUBREL.
    NoPubcomp,
    /// Prompt, but its connection breaks after so many packets, again and again.
    Flaky(u32),
    /// Is away.
    Offline,
}

/// What a disaster comes after, and how much of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// So long after the round began: in the middle of the broker's recovery, perhaps.
    AfterStart(Duration),
    /// When so many more of these have happened.
    At {
        /// What is counted.
        event: Event,
        /// How many.
        count: u64,
    },
}

/// What happens to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A CONNACK.
    Connected,
    /// A SUBACK.
    Subscribed,
    /// PUBACK, PUBREC or PUBCOMP.
    Acknowledged,
    /// A PUBLISH to a subscriber.
    Delivered,
}

/// Keeps decisions apart.
#[derive(Clone, Copy)]
enum About {
    Publisher,
    Quota,
    Subscriber,
    Behaviour,
    Moment,
    Payload,
}

impl Plan {
    /// How many publishers there are.
    #[must_use]
    pub fn publishers(&self) -> u32 {
        PUBLISHERS
    }

    /// How many subscribers there are.
    #[must_use]
    pub fn subscribers(&self) -> u32 {
        SUBSCRIBERS
    }

    /// Publisher `number`.
    #[must_use]
    pub fn publisher(&self, number: u32) -> Publisher {
        let mut numbers = self.numbers(About::Publisher, number, 0);
        let is_kept = !numbers.once_in(5);
        let qos: &[u8] = if is_kept { &[1, 2, 2] } else { &[1] };
        let streams = (0..2).map(|topic| Stream { publisher: number, qos: numbers.one_of(qos), topic });
        let streams = streams.collect();
        let (level, window) = (numbers.one_of(&[4, 5]), 1 + numbers.below(20));
        Publisher { level, is_kept, window, streams }
    }

    /// How many messages publisher `number` publishes in `round`.
    #[must_use]
    pub fn quota(&self, number: u32, round: u32) -> u64 {
        if round >= self.rounds {
            return LAST_WORDS;
        }
        let quota = 1 + self.numbers(About::Quota, number, round).below(QUOTA_MAX);
        u64::try_from(quota).unwrap_or(1)
    }

    /// Bytes that fill up message `sequence` of `stream`: mostly few.
    #[must_use]
    pub fn filling_bytes(&self, stream: Stream, sequence: u64) -> u32 {
        let round = u32::try_from(sequence).unwrap_or(0);
        let about = stream.publisher << 8 | u32::from(stream.qos) << 4 | stream.topic;
        let mut numbers = self.numbers(About::Payload, about, round);
        let bytes = if numbers.once_in(60) { numbers.below(60_000) } else { numbers.below(300) };
        u32::try_from(bytes).unwrap_or(0)
    }

    /// Subscriber `number`.
    #[must_use]
    pub fn subscriber(&self, number: u32) -> Subscriber {
        let mut numbers = self.numbers(About::Subscriber, number, 0);
        let (level, qos) = (numbers.one_of(&[4, 5]), numbers.one_of(&[1, 2, 2]));
        let small = (level == 5).then(|| numbers.one_of(&[1, 2, 5, 20, 1_000]));
        let receive_maximum = small.filter(|maximum| *maximum < 1_000);
        let mut filters = Vec::new();
        for publisher in 0..PUBLISHERS {
            if numbers.below(10) < 4 {
                let later = numbers.once_in(3);
                let round = if later { numbers.below(self.rounds.max(1) as usize) } else { 0 };
                filters.push((publisher, u32::try_from(round).unwrap_or(0)));
            }
        }
        Subscriber { level, qos, receive_maximum, filters }
    }

    /// What subscriber `number` does in `round`.
    #[must_use]
    pub fn behaviour(&self, number: u32, round: u32) -> Behaviour {
        if round >= self.rounds {
            return Behaviour::Prompt;
        }
        let mut numbers = self.numbers(About::Behaviour, number, round);
        match numbers.below(12) {
            0 | 1 => Behaviour::Offline,
            2 => Behaviour::Silent,
            3 => Behaviour::NoPubcomp,
            4 | 5 => Behaviour::Flaky(1 + u32::try_from(numbers.below(80)).unwrap_or(0)),
            6 | 7 => Behaviour::Batches(2 + numbers.below(10)),
            _ => Behaviour::Prompt,
        }
    }

    /// When the disaster comes in `round`.
    #[must_use]
    pub fn moment(&self, round: u32) -> Moment {
        let mut numbers = self.numbers(About::Moment, 0, round);
        let (event, most) = match numbers.below(10) {
            0 | 1 => return Moment::AfterStart(Duration::from_millis(numbers.below(500) as u64)),
            2 => (Event::Connected, PUBLISHERS + SUBSCRIBERS),
            3 => (Event::Subscribed, 8),
            4..7 => (Event::Acknowledged, PUBLISHERS * 60),
            _ => (Event::Delivered, PUBLISHERS * 200),
        };
        Moment::At { event, count: 1 + numbers.below(most as usize) as u64 }
    }

    fn numbers(&self, about: About, number: u32, round: u32) -> Numbers {
        let mut seed = self.seed;
        // Mixed in one after the other: neighbours have nothing in common.
        for part in [about as u64, number.into(), round.into()] {
            seed = (seed ^ part).wrapping_mul(0xD6E8_FEB8_6659_FD93).rotate_left(29);
        }
        Numbers::new(seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan { seed: 1, rounds: 15, disaster: Disaster::BrokerKilled }
    }

    #[test]
    fn a_seed_decides_everything_and_another_one_decides_otherwise() {
        let told = |seed| {
            let plan = Plan { seed, ..plan() };
            let clients: Vec<_> =
                (0..10).map(|number| (plan.publisher(number), plan.subscriber(number))).collect();
            let rounds: Vec<_> =
                (0..15).map(|round| (plan.moment(round), plan.behaviour(3, round))).collect();
            format!("{clients:?} {rounds:?}")
        };

        assert_eq!(told(1), told(1));
        assert_ne!(told(1), told(2));
    }

    #[test]
    fn every_kind_of_client_behaviour_and_moment_takes_part_in_a_few_runs() {
        let plans: Vec<_> = (1..=8).map(|seed| Plan { seed, ..plan() }).collect();
        let (mut publishers, mut subscribers, mut behaviours, mut moments) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for plan in &plans {
            publishers.extend((0..plan.publishers()).map(|number| plan.publisher(number)));
            subscribers.extend((0..plan.subscribers()).map(|number| plan.subscriber(number)));
            moments.extend((0..plan.rounds).map(|round| plan.moment(round)));
            for number in 0..plan.subscribers() {
                behaviours.extend((0..plan.rounds).map(|round| plan.behaviour(number, round)));
            }
        }

        for level in [4, 5] {
            assert!(publishers.iter().any(|publisher| publisher.level == level));
            assert!(subscribers.iter().any(|subscriber| subscriber.level == level));
        }
        assert!(publishers.iter().any(|publisher| !publisher.is_kept));
        for qos in [1, 2] {
            assert!(
                publishers.iter().flat_map(|publisher| &publisher.streams).any(|stream| stream.qos == qos)
            );
            assert!(subscribers.iter().any(|subscriber| subscriber.qos == qos));
        }
        assert!(subscribers.iter().any(|subscriber| subscriber.receive_maximum.is_some_and(|max| max <= 5)));
        assert!(subscribers.iter().flat_map(|subscriber| &subscriber.filters).any(|(_, round)| *round > 0));
        assert!(moments.iter().any(|moment| matches!(moment, Moment::AfterStart(_))));
        for wanted in [Event::Connected, Event::Subscribed, Event::Acknowledged, Event::Delivered] {
            let is_wanted = |moment: &Moment| matches!(moment, Moment::At { event, .. } if *event == wanted);
            assert!(moments.iter().any(is_wanted), "{wanted:?}");
        }
        for wanted in [Behaviour::Prompt, Behaviour::Offline, Behaviour::Silent, Behaviour::NoPubcomp] {
            assert!(behaviours.contains(&wanted), "{wanted:?}");
        }
        assert!(behaviours.iter().any(|behaviour| matches!(behaviour, Behaviour::Flaky(_))));
        assert!(behaviours.iter().any(|behaviour| matches!(behaviour, Behaviour::Batches(_))));
    }
}
