//! The end-to-end harness: real broker processes and pods, real Kafka, a real Kubernetes API, real MQTT clients.
//!
//! The tests need services and never start without them: `TIDEMILL_E2E_KAFKA` names the bootstrap servers,
//! `TIDEMILL_E2E_KUBECONFIG` a kubeconfig. `make test` starts both and sets them. A missing one fails the test.

pub mod audit;
pub mod bench;
pub mod broker;
pub mod certificates;
mod connection;
pub mod crash;
pub mod environment;
pub mod kubernetes;
pub mod mosquitto;
pub mod processes;
pub mod random;
pub mod raw_client;
pub mod wait;
pub mod wire;
