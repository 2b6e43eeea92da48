//! How brokers find each other, and how clients find brokers.

use super::metadata;
use crate::controller::validate::ValidatedCluster;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tidemill_contract::ports;
use tidemill_crds::Listener;

/// The headless Service, then one Service per listener.
pub(crate) fn build_services(cluster: &ValidatedCluster) -> Vec<Service> {
    let listeners = cluster.listeners.iter().map(|listener| build_listener_service(cluster, listener));
    [build_peer_service(cluster)].into_iter().chain(listeners).collect()
}

/// Gives every pod a DNS name, ready or not: brokers that join each other are not ready yet.
fn build_peer_service(cluster: &ValidatedCluster) -> Service {
    Service {
        metadata: metadata(cluster, cluster.peer_service()),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some(cluster.selector()),
            ports: Some(vec![port("peers", ports::PEERS, "peers"), port("admin", ports::ADMIN, "admin")]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

/// Leads to ready brokers only.
fn build_listener_service(cluster: &ValidatedCluster, listener: &Listener) -> Service {
    Service {
        metadata: metadata(cluster, cluster.listener_service(listener)),
        spec: Some(ServiceSpec {
            type_: Some(listener.service.type_.as_str().to_owned()),
            selector: Some(cluster.selector()),
            ports: Some(vec![port(&listener.name, listener.port, &listener.name)]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

fn port(name: &str, number: u16, target: &str) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port: i32::from(number),
        target_port: Some(IntOrString::String(target.to_owned())),
        protocol: Some("TCP".to_owned()),
        ..ServicePort::default()
    }
}
