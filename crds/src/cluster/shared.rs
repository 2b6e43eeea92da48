//! How the members of shared subscriptions share their messages.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Shared subscriptions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema, Default)]
#[serde(rename_all = "camelCase")]
pub struct SharedSubscriptions {
    /// Of every group that none of `groups` names. Default: `roundRobin`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<SharedStrategy>,
    /// Strategies of single groups, at most 64; the first that names a group decides.
    // The order counts, so that the list is replaced as a whole and not merged by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("self.all(one, self.exists_one(other, other.name == one.name))")
        .message("two groups of sharedSubscriptions have the same name"))]
    pub groups: Vec<SharedGroup>,
}

/// The strategy of the groups with some ShareName.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SharedGroup {
    /// A ShareName, in which `*` stands for any characters, also none. No earlier name may take all groups of it.
    #[schemars(length(min = 1, max = 256))]
    #[x_kube(validation = Rule::new(r"!self.matches('[/+#\\x00]')").message("a ShareName has no /, + or #"))]
    pub name: String,
    /// Who gets a message of such a group.
    pub strategy: SharedStrategy,
}

/// Who gets a message of a group: `random`, `roundRobin`, `sticky`, `leastInFlight`, `hashPublisher` or `hashTopic`.
/// Default: `roundRobin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum SharedStrategy {
    /// Any member, with equal chances.
    Random,
    /// One member after the other.
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
