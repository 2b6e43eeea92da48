//! What the operator and the broker agree on: the config file, the names of topics, leases, labels and ports, and the
//! documents of the admin API. Serde types only; nothing here performs I/O.

pub mod admin;
pub mod config;
pub mod names;
pub mod ports;
pub mod topics;
