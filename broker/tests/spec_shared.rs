//! Shared subscriptions (MQTT 5.0 section 4.8.2), over real sockets, in the versions that serve them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "fixture/broker.rs"]
mod broker;
#[path = "fixture/client.rs"]
mod client;
#[path = "shared/delivery.rs"]
mod delivery;
#[path = "shared/grammar.rs"]
mod grammar;
#[path = "shared/loss.rs"]
mod loss;
#[path = "shared/persistent.rs"]
mod persistent;
#[path = "fixture/standalone.rs"]
mod standalone;
#[path = "shared/strategies.rs"]
mod strategies;
#[path = "shared/world.rs"]
mod world;
