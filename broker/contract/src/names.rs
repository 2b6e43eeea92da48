//! The names under which the operator creates objects and the brokers look for them.

/// API group of the custom resources, prefix of labels and annotations.
pub const GROUP: &str = "tidemill.dev";

/// Label that carries the cluster's name on everything that belongs to it.
pub const LABEL_CLUSTER: &str = "tidemill.dev/cluster";
/// Label that tells what kind of lease an object is: [`LEASE_MEMBER`], [`LEASE_GROUP`] or [`LEASE_VIEW`].
pub const LABEL_LEASE: &str = "tidemill.dev/lease";
/// Value of [`LABEL_LEASE`] on the lease of one broker.
pub const LEASE_MEMBER: &str = "member";
/// Value of [`LABEL_LEASE`] on the lease of one partition group.
pub const LEASE_GROUP: &str = "partition-group";
/// Value of [`LABEL_LEASE`] on the lease that holds the view.
pub const LEASE_VIEW: &str = "view";

/// Annotation of a member lease: the broker's state, `Joining`, `Serving`, `Draining` or `Leaving`.
pub const ANNOTATION_STATE: &str = "tidemill.dev/state";

/// Environment variable that names the member when the config file does not. In a pod it is the pod's name.
pub const ENV_MEMBER: &str = "TIDEMILL_MEMBER";
/// Environment variable with the pod's namespace, where the leases are.
pub const ENV_NAMESPACE: &str = "TIDEMILL_NAMESPACE";
/// Environment variable with the pod's UID.
pub const ENV_POD_UID: &str = "TIDEMILL_POD_UID";
/// Environment variable with the pod's IP address, announced as the peer endpoint.
pub const ENV_POD_IP: &str = "TIDEMILL_POD_IP";

/// Name of the member lease of `pod`.
#[must_use]
pub fn member_lease(cluster: &str, pod: &str) -> String {
    format!("{cluster}.member.{pod}")
}

/// Name of the lease of partition group `group`.
#[must_use]
pub fn group_lease(cluster: &str, group: u16) -> String {
    format!("{cluster}.pg.{group}")
}

/// Name of the lease whose annotations hold the view.
#[must_use]
pub fn view_lease(cluster: &str) -> String {
    format!("{cluster}.view")
}

/// Prefix of a cluster's Kafka topics when the spec names none.
#[must_use]
pub fn default_topic_prefix(namespace: &str, cluster: &str) -> String {
    format!("{namespace}.{cluster}")
}

/// The Kafka topics of one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topics {
    prefix: String,
}

impl Topics {
    /// The topics under `prefix` (see [`default_topic_prefix`]).
    #[must_use]
    pub fn new(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into() }
    }

    /// Records: what clients published. Policy `delete` without time or size; owners trim.
    #[must_use]
    pub fn log(&self) -> String {
        format!("{}.log", self.prefix)
    }

    /// State of queues, sessions and owners. Policy `compact`.
    #[must_use]
    pub fn state(&self) -> String {
        format!("{}.state", self.prefix)
    }

    /// Index blocks of the log. Policy `delete` without time or size.
    #[must_use]
    pub fn index(&self) -> String {
        format!("{}.index", self.prefix)
    }

    /// Retained messages. Policy `compact`.
    #[must_use]
    pub fn retained(&self) -> String {
        format!("{}.retained", self.prefix)
    }

    /// The `transactional.id` that fences the owner of partition group `group`.
    #[must_use]
    pub fn transactional_id(&self, group: u16) -> String {
        format!("{}.pg.{group}", self.prefix)
    }
}
