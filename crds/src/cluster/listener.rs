//! Where clients connect.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One port that clients connect to, with a Service `<cluster>-<name>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Listener {
    /// Unique name: at most 15 of a-z, 0-9 and '-'. Not `peers` and not `admin`.
    #[schemars(length(min = 1, max = 15), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    #[x_kube(validation = Rule::new("!(self in ['peers', 'admin'])")
        .message("the names peers and admin are taken by the brokers' own ports"))]
    pub name: String,
    /// What is spoken on it.
    #[serde(default)]
    pub protocol: ListenerProtocol,
    /// Port of the brokers and of the Service, from 1024 on. Not 7883 (peers) and not 8080 (admin).
    #[schemars(range(min = 1024, max = 65535))]
    #[x_kube(validation = Rule::new("!(self in [7883, 8080])")
        .message("the ports 7883 and 8080 are taken by the brokers' own ports"))]
    pub port: u16,
    /// The Service in front of it. It leads to ready brokers only.
    #[serde(default)]
    pub service: ListenerService,
}

impl Listener {
    /// The listener of a cluster that names none: MQTT on port 1883.
    #[must_use]
    pub fn default_mqtt() -> Self {
        Self {
            name: "mqtt".to_owned(),
            protocol: ListenerProtocol::Mqtt,
            port: 1883,
            service: ListenerService::default(),
        }
    }
}

/// What a listener speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "lowercase")]
pub enum ListenerProtocol {
    /// MQTT over TCP.
    #[default]
    Mqtt,
}

/// The Service in front of a listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "camelCase")]
pub struct ListenerService {
    /// How the Service is reached.
    #[serde(default, rename = "type")]
    pub type_: ServiceType,
}

/// Type of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Default)]
pub enum ServiceType {
    /// Reached from inside the Kubernetes cluster.
    #[default]
    ClusterIP,
    /// Also reached on a port of every node.
    NodePort,
    /// Also reached through a load balancer.
    LoadBalancer,
}

impl ServiceType {
    /// The value of a Service's `spec.type`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIP => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
        }
    }
}
