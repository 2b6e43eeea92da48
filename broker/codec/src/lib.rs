//! The MQTT codec.
