//! The Kafka topics of a cluster: what they must be, and in which words they are not. The operator makes them by it, a
//! broker refuses to start by it.

use crate::names::Topics;
use std::collections::BTreeMap;

/// Room for the fields of a record beyond the MQTT packet it was made from.
pub const RECORD_OVERHEAD_BYTES: u32 = 64 * 1024;
/// Segment length of the log: the grain in which trimmed space comes back.
const SEGMENT_BYTES: &str = "134217728";
/// Kafka's own topic behind transactions: it must not be weaker than ours.
pub const TRANSACTION_STATE: &str = "__transaction_state";

/// The numbers that the topics of one cluster have alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicNumbers {
    /// Partitions of every topic.
    pub partitions: u16,
    /// Replicas of every partition.
    pub replication_factor: i16,
    /// `min.insync.replicas`.
    pub min_in_sync_replicas: i16,
    /// Largest MQTT packet in bytes.
    pub maximum_packet_bytes: u32,
}

/// Settings that must be as wanted; the others may be stronger, or matter only at creation.
const EXACT: [&str; 5] = [
    "cleanup.policy",
    "message.timestamp.type",
    "retention.bytes",
    "retention.ms",
    "unclean.leader.election.enable",
];

/// A topic as it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// Full name.
    pub name: String,
    /// Number of partitions.
    pub partitions: i32,
    /// Replicas of each partition.
    pub replication_factor: i32,
    /// Topic configuration.
    pub settings: BTreeMap<&'static str, String>,
}

/// A topic as Kafka has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObservedTopic {
    /// Number of partitions.
    pub partitions: usize,
    /// The fewest replicas of any partition.
    pub replication_factor: usize,
    /// Effective topic configuration.
    pub settings: BTreeMap<String, String>,
}

/// What is missing and what is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TopicReport {
    /// Topics that do not exist.
    pub missing: Vec<Topic>,
    /// What a broker would refuse to start with, one sentence each.
    pub problems: Vec<String>,
}

/// The topics under the names of `topics`, in order of creation.
#[must_use]
pub fn desired_topics(topics: &Topics, numbers: TopicNumbers) -> Vec<Topic> {
    let record_bytes = u64::from(numbers.maximum_packet_bytes) + u64::from(RECORD_OVERHEAD_BYTES);
    let topic = |name: String, own: &[(&'static str, &str)]| {
        let mut settings = BTreeMap::from([
            ("max.message.bytes", record_bytes.to_string()),
            // No broker's clock matters: the time of a record is the one of its append.
            ("message.timestamp.type", "LogAppendTime".to_owned()),
            ("min.insync.replicas", numbers.min_in_sync_replicas.to_string()),
            ("unclean.leader.election.enable", "false".to_owned()),
        ]);
        settings.extend(own.iter().map(|(key, value)| (*key, (*value).to_owned())));
        Topic {
            name,
            partitions: i32::from(numbers.partitions),
            replication_factor: i32::from(numbers.replication_factor),
            settings,
        }
    };
    // Only owners trim the log and its index: neither time nor size may take a record away.
    let forever = [("cleanup.policy", "delete"), ("retention.ms", "-1"), ("retention.bytes", "-1")];
    let log = [forever.as_slice(), &[("segment.bytes", SEGMENT_BYTES)]].concat();
    let compact = [("cleanup.policy", "compact")];
    vec![
        topic(topics.log(), &log),
        topic(topics.state(), &compact),
        topic(topics.index(), &forever),
        topic(topics.retained(), &compact),
    ]
}

/// Compares what must be with what is.
#[must_use]
pub fn compare_topics(desired: &[Topic], observed: &BTreeMap<String, ObservedTopic>) -> TopicReport {
    let mut report = TopicReport::default();
    for topic in desired {
        match observed.get(&topic.name) {
            None => report.missing.push(topic.clone()),
            Some(existing) => compare_topic(topic, existing, &mut report.problems),
        }
    }
    if let (Some(topic), Some(transactions)) = (desired.first(), observed.get(TRANSACTION_STATE)) {
        compare_strength(TRANSACTION_STATE, topic, transactions, &mut report.problems);
    }
    report
}

fn compare_topic(topic: &Topic, existing: &ObservedTopic, problems: &mut Vec<String>) {
    let name = &topic.name;
    if usize::try_from(topic.partitions).ok() != Some(existing.partitions) {
        problems.push(format!(
            "{name} has {} partitions instead of {}, and the number cannot change",
            existing.partitions, topic.partitions
        ));
    }
    compare_strength(name, topic, existing, problems);
    for key in EXACT {
        let (Some(wanted), Some(found)) = (topic.settings.get(key), existing.settings.get(key)) else {
            continue;
        };
        if wanted != found {
            problems.push(format!("{name} has {key}={found} instead of {wanted}"));
        }
    }
    if let Some((wanted, found)) = numbers(topic, existing, "max.message.bytes")
        && found < wanted
    {
        problems.push(format!(
            "{name} has max.message.bytes={found}, less than the {wanted} of the largest packet"
        ));
    }
}

fn compare_strength(name: &str, topic: &Topic, existing: &ObservedTopic, problems: &mut Vec<String>) {
    let wanted = topic.replication_factor;
    if i32::try_from(existing.replication_factor).is_ok_and(|found| found < wanted) {
        problems.push(format!("{name} has {} replicas, less than {wanted}", existing.replication_factor));
    }
    if let Some((wanted, found)) = numbers(topic, existing, "min.insync.replicas")
        && found < wanted
    {
        problems.push(format!("{name} has min.insync.replicas={found}, less than {wanted}"));
    }
}

fn numbers(topic: &Topic, existing: &ObservedTopic, key: &str) -> Option<(u64, u64)> {
    Some((topic.settings.get(key)?.parse().ok()?, existing.settings.get(key)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desired() -> Vec<Topic> {
        let numbers = TopicNumbers {
            partitions: 32,
            replication_factor: 3,
            min_in_sync_replicas: 2,
            maximum_packet_bytes: 1 << 20,
        };
        desired_topics(&Topics::new("messaging.demo"), numbers)
    }

    fn as_created(topic: &Topic) -> ObservedTopic {
        ObservedTopic {
            partitions: usize::try_from(topic.partitions).unwrap(),
            replication_factor: usize::try_from(topic.replication_factor).unwrap(),
            settings: topic.settings.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect(),
        }
    }

    fn all_created() -> BTreeMap<String, ObservedTopic> {
        desired().iter().map(|topic| (topic.name.clone(), as_created(topic))).collect()
    }

    #[test]
    fn the_four_topics_have_the_policies_that_keep_what_is_owed() {
        let topics = desired();

        let names: Vec<_> = topics.iter().map(|topic| topic.name.as_str()).collect();
        assert_eq!(
            names,
            ["messaging.demo.log", "messaging.demo.state", "messaging.demo.index", "messaging.demo.retained"]
        );
        let setting = |index: usize, key: &str| topics[index].settings.get(key).cloned().unwrap_or_default();
        assert_eq!(setting(0, "retention.ms"), "-1");
        assert_eq!(setting(0, "retention.bytes"), "-1");
        assert_eq!(setting(0, "segment.bytes"), "134217728");
        assert_eq!(setting(1, "cleanup.policy"), "compact");
        assert_eq!(setting(2, "cleanup.policy"), "delete");
        assert_eq!(setting(3, "cleanup.policy"), "compact");
        assert_eq!(setting(0, "max.message.bytes"), "1114112");
    }

    #[test]
    fn topics_as_the_operator_makes_them_have_no_problem() {
        assert_eq!(compare_topics(&desired(), &all_created()), TopicReport::default());
    }

    #[test]
    fn a_missing_topic_is_missing_and_no_problem() {
        let mut observed = all_created();
        observed.remove("messaging.demo.index");

        let report = compare_topics(&desired(), &observed);

        assert_eq!(report.missing.len(), 1);
        assert_eq!(report.missing[0].name, "messaging.demo.index");
        assert!(report.problems.is_empty());
    }

    #[test]
    fn every_weakness_is_told_in_plain_words() {
        let mut observed = all_created();
        let log = observed.get_mut("messaging.demo.log").unwrap();
        log.partitions = 8;
        log.replication_factor = 1;
        for (key, value) in [
            ("cleanup.policy", "compact"),
            ("retention.ms", "604800000"),
            ("min.insync.replicas", "1"),
            ("unclean.leader.election.enable", "true"),
            ("max.message.bytes", "1048588"),
        ] {
            log.settings.insert(key.to_owned(), value.to_owned());
        }
        observed.insert(
            TRANSACTION_STATE.to_owned(),
            ObservedTopic { partitions: 50, replication_factor: 1, settings: BTreeMap::new() },
        );

        let report = compare_topics(&desired(), &observed);

        assert_eq!(
            report.problems,
            [
                "messaging.demo.log has 8 partitions instead of 32, and the number cannot change",
                "messaging.demo.log has 1 replicas, less than 3",
                "messaging.demo.log has min.insync.replicas=1, less than 2",
                "messaging.demo.log has cleanup.policy=compact instead of delete",
                "messaging.demo.log has retention.ms=604800000 instead of -1",
                "messaging.demo.log has unclean.leader.election.enable=true instead of false",
                "messaging.demo.log has max.message.bytes=1048588, less than the 1114112 of the largest packet",
                "__transaction_state has 1 replicas, less than 3",
            ]
        );
    }

    #[test]
    fn stronger_than_asked_is_fine() {
        let mut observed = all_created();
        let log = observed.get_mut("messaging.demo.log").unwrap();
        log.replication_factor = 5;
        log.settings.insert("min.insync.replicas".to_owned(), "3".to_owned());

        assert_eq!(compare_topics(&desired(), &observed), TopicReport::default());
    }
}
