//! The TCP ports of a broker. They are the same in a pod and on one machine.

/// MQTT over TCP.
pub const MQTT: u16 = 1883;
/// MQTT over TLS.
pub const MQTTS: u16 = 8883;
/// MQTT over WebSocket.
pub const WS: u16 = 8083;
/// MQTT over WebSocket and TLS.
pub const WSS: u16 = 8084;
/// Health, readiness, metrics; on loopback also `/v1`.
pub const ADMIN: u16 = 8080;
/// Links between brokers, always mutual TLS.
pub const PEERS: u16 = 7883;
