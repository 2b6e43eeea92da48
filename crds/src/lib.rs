//! The custom resource types of Tidemill, and their definitions as YAML.
//!
//! Keys of the spec have the same names as the keys of the broker's config file.
#![allow(
    unreachable_pub,
    reason = "the schema derive repeats every struct, with its visibility, inside a function"
)]

mod cluster;
mod definition;

pub use cluster::kafka::{Durability, Embedded, Kafka, TopicManagement};
pub use cluster::listener::{Listener, ListenerProtocol, ListenerService, ServiceType};
pub use cluster::sessions::{QueuePolicy, SessionQueue, Sessions};
pub use cluster::settings::{Auth, Limits, Membership, Mqtt, Storage};
pub use cluster::shared::{SharedGroup, SharedStrategy, SharedSubscriptions};
pub use cluster::status::{Endpoint, MemberStatus, MqttClusterStatus, PartitionGroupsStatus, condition};
pub use cluster::{MqttCluster, MqttClusterSpec};
pub use definition::{mqtt_cluster_definition, mqtt_cluster_yaml};
