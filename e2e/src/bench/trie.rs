//! Matching as the router does it, without a broker around it.

use super::many::{filter, topic};
use anyhow::Result;
use std::hash::RandomState;
use std::hint::black_box;
use std::time::Instant;
use tidemill_core::topic::{TopicFilter, TopicName};
use tidemill_core::trie::FilterTrie;

/// Wall time of one match among many filters, in ns.
#[derive(Debug, Clone, Copy)]
pub struct MatchCost {
    /// Of a topic that one filter matches and that was not looked up before.
    pub hit_nanos: f64,
    /// Of a topic that no filter matches and that was not looked up before.
    pub miss_nanos: f64,
}

/// Matches `lookups` topics, no two of them neighbours, against `count` filters, every tenth with a wildcard.
///
/// # Errors
///
/// When the trie finds anything else than the one filter that matches.
pub fn run(count: u32, lookups: u32) -> Result<MatchCost> {
    let mut trie = FilterTrie::with_hasher(RandomState::new());
    for number in 0..count {
        trie.insert(&TopicFilter::parse(filter(number))?, number);
    }
    // A stride that shares no factor with the counts in use: every topic once, far from the one before.
    let numbers = || (0..lookups).map(|step| u32::try_from(u64::from(step) * 7_919 % u64::from(count)));
    let timed = |leaf: &str, expected: usize| -> Result<f64> {
        let topics = numbers()
            .map(|number| Ok(TopicName::parse(format!("{}/{leaf}", topic(number?)))?))
            .collect::<Result<Vec<_>>>()?;
        let mut found = 0_usize;
        let started = Instant::now();
        for topic in &topics {
            trie.for_each_match(black_box(topic), |_| found += 1);
        }
        let took = started.elapsed();
        anyhow::ensure!(found == expected * topics.len(), "{found} matches of {} topics", topics.len());
        Ok(took.as_secs_f64() * 1e9 / f64::from(lookups))
    };
    Ok(MatchCost { hit_nanos: timed("temperature", 1)?, miss_nanos: timed("none", 0)? })
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_device_has_one_filter_that_matches() {
        super::run(20_000, 20_000).expect("each topic is matched once, and its neighbour below never");
    }
}
