//! The sections of the config file that the user decides alone. What the spec leaves out is as the broker's default.

use tidemill_contract::config::{Limits, Mqtt};
use tidemill_crds::MqttClusterSpec;

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
