//! The broker, as a library for its binary and tests.

pub mod cluster;
pub mod log;
pub mod owner;
