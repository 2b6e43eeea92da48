//! The broker, as a library for its binary and tests.

pub mod log;
