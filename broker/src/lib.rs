//! The broker, as a library for its binary and tests.

pub mod admin;
pub mod admission;
pub mod app;
pub mod assembly;
pub mod cluster;
pub mod config_file;
pub mod connection;
pub mod listener;
pub mod log;
pub mod log_command;
pub mod mailbox;
pub mod metrics;
pub mod owner;
pub mod registry;
pub mod router;
pub mod sys;
