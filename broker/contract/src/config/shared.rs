//! How the members of shared subscriptions share their messages.

use super::check::{ConfigError, conflict};
use serde::{Deserialize, Serialize};

/// Shared subscriptions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SharedSubscriptions {
    /// Of every group that none of `groups` names.
    pub strategy: SharedStrategy,
    /// Strategies of single groups; the first that names a group decides.
    pub groups: Vec<SharedGroup>,
}

/// The strategy of the groups with some ShareName.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SharedGroup {
    /// A ShareName, in which `*` stands for any characters, also none.
    pub name: String,
    /// How its members share.
    pub strategy: SharedStrategy,
}

/// Who gets a message of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub enum SharedStrategy {
    /// Any member, with equal chances.
    Random,
    /// One member after the other.
    #[default]
    RoundRobin,
    /// One member until it goes, then the next one.
    Sticky,
    /// The member with the fewest messages in flight or waiting.
    LeastInFlight,
    /// Always the same member for one publisher.
    HashPublisher,
    /// Always the same member for one topic.
    HashTopic,
}

impl SharedSubscriptions {
    /// The strategy of the groups named `share`.
    #[must_use]
    pub fn strategy_of(&self, share: &str) -> SharedStrategy {
        let named = self.groups.iter().find(|group| matches(&group.name, share));
        named.map_or(self.strategy, |group| group.strategy)
    }

    /// Refuses names that no group can have, and those that an earlier one takes all groups from.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        for (index, group) in self.groups.iter().enumerate() {
            let key = || format!("sharedSubscriptions.groups[{index}].name");
            if group.name.is_empty() || group.name.contains(['/', '+', '#', '\0']) {
                return Err(conflict(key(), "a ShareName is not empty and has no /, + or #"));
            }
            // A star in the later name can only meet a star in the earlier one, which takes whatever stands for it.
            if self.groups[..index].iter().any(|earlier| matches(&earlier.name, &group.name)) {
                return Err(conflict(key(), "an earlier name takes every group of this one"));
            }
        }
        Ok(())
    }
}

/// Whether `name` is `pattern` with something in the place of each star.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, pattern)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut rest) = name.strip_prefix(head) else { return false };
    let mut parts = pattern.split('*');
    let tail = parts.next_back().unwrap_or_default();
    for part in parts {
        // The first place is as good as any later one.
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(tail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn parse(yaml: &str) -> Result<Config, String> {
        serde_saphyr::from_str(yaml).map_err(|error| error.to_string())
    }

    #[test]
    fn a_star_stands_for_any_characters() {
        let cases = [
            ("orders", "orders", true),
            ("orders", "orders2", false),
            ("*", "", true),
            ("orders-*", "orders-", true),
            ("orders-*", "orders", false),
            ("*-eu", "a-eu", true),
            ("*-eu", "eu", false),
            ("a*b*c", "abc", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("**", "x", true),
        ];

        for (pattern, name, expected) in cases {
            assert_eq!(matches(pattern, name), expected, "{pattern} on {name}");
        }
    }

    #[test]
    fn the_first_name_that_fits_decides() {
        let config = parse(
            "sharedSubscriptions:\n  strategy: leastInFlight\n  groups:\n    \
             - {name: orders-eu, strategy: sticky}\n    - {name: 'orders-*', strategy: hashTopic}\n",
        )
        .unwrap();

        config.check().unwrap();
        let shared = config.shared_subscriptions;
        assert_eq!(shared.strategy_of("orders-eu"), SharedStrategy::Sticky);
        assert_eq!(shared.strategy_of("orders-us"), SharedStrategy::HashTopic);
        assert_eq!(shared.strategy_of("other"), SharedStrategy::LeastInFlight);
        assert_eq!(SharedSubscriptions::default().strategy_of("other"), SharedStrategy::RoundRobin);
    }

    #[test]
    fn names_that_no_group_can_have_or_get_are_refused() {
        let names = [
            (0, "[{name: '', strategy: random}]"),
            (0, "[{name: 'a/b', strategy: random}]"),
            (0, "[{name: '+', strategy: random}]"),
            (1, "[{name: a, strategy: random}, {name: a, strategy: sticky}]"),
            (1, "[{name: 'a*', strategy: random}, {name: 'ab*', strategy: sticky}]"),
        ];

        for (index, groups) in names {
            let config = parse(&format!("sharedSubscriptions: {{groups: {groups}}}\n")).unwrap();
            let refused = config.check().unwrap_err().to_string();
            assert!(refused.starts_with(&format!("sharedSubscriptions.groups[{index}].name: ")), "{refused}");
        }
    }

    #[test]
    fn unknown_strategies_and_keys_are_refused_by_name() {
        for (yaml, named) in [
            ("sharedSubscriptions: {strategy: roundrobin}\n", "roundrobin"),
            ("sharedSubscriptions: {strategies: random}\n", "strategies"),
            ("sharedSubscriptions: {groups: [{name: a, strategy: random, weight: 1}]}\n", "weight"),
        ] {
            let error = parse(yaml).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn a_cluster_does_not_take_what_it_does_not_serve() {
        let shared = "sharedSubscriptions: {strategy: sticky}\n";
        let cluster = "coordination: kubernetes\nkafka: {bootstrapServers: 'k:9092'}\n\
                       peers: {tls: {caFile: a, certificateFile: b, keyFile: c}}\n";

        assert_eq!(parse(cluster).unwrap().check(), Ok(()));
        let refused = parse(&format!("{cluster}{shared}")).unwrap().check();
        assert!(matches!(refused, Err(ConfigError::Conflict { key, .. }) if key == "sharedSubscriptions"));
    }
}
