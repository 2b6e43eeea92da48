//! The sections of the config file that the user decides alone. What the spec leaves out is as the broker's default.

use tidemill_contract::config::{
    Durability, Embedded, Limits, Mqtt, QueuePolicy, SessionQueue, Sessions, SharedGroup, SharedStrategy,
    SharedSubscriptions,
};
use tidemill_crds::MqttClusterSpec;

pub(super) fn embedded(wanted: &tidemill_crds::Embedded) -> Embedded {
    Embedded {
        partitions: wanted.partitions,
        partition_groups: Some(super::groups_of(wanted.partition_groups, wanted.partitions)),
        durability: wanted.durability.map_or_else(Durability::default, durability),
        sync_interval_ms: wanted.sync_interval_ms,
    }
}

fn durability(wanted: tidemill_crds::Durability) -> Durability {
    match wanted {
        tidemill_crds::Durability::Fsync => Durability::Fsync,
        tidemill_crds::Durability::Interval => Durability::Interval,
        tidemill_crds::Durability::None => Durability::None,
    }
}

pub(super) fn sessions(spec: &MqttClusterSpec) -> Sessions {
    let wanted = spec.sessions.clone().unwrap_or_default();
    let default = Sessions::default();
    Sessions {
        max_expiry_secs: wanted.max_expiry_secs.unwrap_or(default.max_expiry_secs),
        queue: queue(wanted.queue.unwrap_or_default()),
        park_after_secs: wanted.park_after_secs.unwrap_or(default.park_after_secs),
        max_deliveries: wanted.max_deliveries,
        replay_per_session: wanted.replay_per_session,
        replay_total: wanted.replay_total,
    }
}

fn queue(wanted: tidemill_crds::SessionQueue) -> SessionQueue {
    let default = SessionQueue::default();
    SessionQueue {
        messages: wanted.messages.unwrap_or(default.messages),
        bytes: wanted.bytes.unwrap_or(default.bytes),
        age_secs: wanted.age_secs,
        policy: wanted.policy.map_or(default.policy, queue_policy),
        dead_letter_topic: wanted.dead_letter_topic.unwrap_or(default.dead_letter_topic),
    }
}

fn queue_policy(wanted: tidemill_crds::QueuePolicy) -> QueuePolicy {
    match wanted {
        tidemill_crds::QueuePolicy::DropOldest => QueuePolicy::DropOldest,
        tidemill_crds::QueuePolicy::DropNewest => QueuePolicy::DropNewest,
        tidemill_crds::QueuePolicy::DeadLetter => QueuePolicy::DeadLetter,
    }
}

pub(super) fn shared_subscriptions(spec: &MqttClusterSpec) -> SharedSubscriptions {
    let wanted = spec.shared_subscriptions.clone().unwrap_or_default();
    let group = |group: tidemill_crds::SharedGroup| SharedGroup {
        name: group.name,
        strategy: shared_strategy(group.strategy),
    };
    SharedSubscriptions {
        strategy: wanted.strategy.map_or_else(SharedStrategy::default, shared_strategy),
        groups: wanted.groups.into_iter().map(group).collect(),
    }
}

fn shared_strategy(wanted: tidemill_crds::SharedStrategy) -> SharedStrategy {
    match wanted {
        tidemill_crds::SharedStrategy::Random => SharedStrategy::Random,
        tidemill_crds::SharedStrategy::RoundRobin => SharedStrategy::RoundRobin,
        tidemill_crds::SharedStrategy::Sticky => SharedStrategy::Sticky,
        tidemill_crds::SharedStrategy::LeastInFlight => SharedStrategy::LeastInFlight,
        tidemill_crds::SharedStrategy::HashPublisher => SharedStrategy::HashPublisher,
        tidemill_crds::SharedStrategy::HashTopic => SharedStrategy::HashTopic,
    }
}

pub(super) fn mqtt(spec: &MqttClusterSpec) -> Mqtt {
    let wanted = spec.mqtt.clone().unwrap_or_default();
    let default = Mqtt::default();
    Mqtt {
        maximum_keep_alive_secs: wanted.maximum_keep_alive_secs,
        response_information: wanted.response_information,
        check_payload_format: wanted.check_payload_format.unwrap_or(default.check_payload_format),
        sys_interval_secs: wanted.sys_interval_secs.unwrap_or(default.sys_interval_secs),
    }
}

pub(super) fn limits(spec: &MqttClusterSpec) -> Limits {
    let wanted = spec.limits.clone().unwrap_or_default();
    let default = Limits::default();
    Limits {
        maximum_packet_bytes: wanted.maximum_packet_bytes.unwrap_or(default.maximum_packet_bytes),
        connections: wanted.connections.unwrap_or(default.connections),
        receive_maximum: wanted.receive_maximum.unwrap_or(default.receive_maximum),
        in_flight: wanted.in_flight.unwrap_or(default.in_flight),
        mailbox_messages: wanted.mailbox_messages.unwrap_or(default.mailbox_messages),
        mailbox_bytes: wanted.mailbox_bytes.unwrap_or(default.mailbox_bytes),
        subscriptions: wanted.subscriptions.unwrap_or(default.subscriptions),
        retained_bytes: wanted.retained_bytes.unwrap_or(default.retained_bytes),
    }
}
