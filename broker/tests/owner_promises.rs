//! What the owner promises, on the log in memory and with hosts and peers played by the test.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "owner/attach.rs"]
mod attach;
#[path = "owner/change.rs"]
mod change;
#[path = "owner/delivery.rs"]
mod delivery;
#[path = "owner/exactly_once.rs"]
mod exactly_once;
#[path = "owner/expiry.rs"]
mod expiry;
#[path = "owner/idle.rs"]
mod idle;
#[path = "owner/in_flight.rs"]
mod in_flight;
#[path = "owner/limits.rs"]
mod limits;
#[path = "owner/model.rs"]
mod model;
#[path = "owner/parts.rs"]
mod parts;
#[path = "owner/replay.rs"]
mod replay;
#[path = "owner/retained.rs"]
mod retained;
#[path = "owner/subscribe.rs"]
mod subscribe;
#[path = "owner/values.rs"]
mod values;
#[path = "owner/wills.rs"]
mod wills;
#[path = "owner/world.rs"]
mod world;
