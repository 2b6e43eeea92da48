//! The Tidemill operator, as a library for its binary and tests.
//!
//! One pass over a cluster is a straight line: `validate` (pure), `dereference` (all reads), `plan` and `build` (pure),
//! `apply` (all writes), `status`. Nothing is remembered between passes but what Kafka answered in the last seconds.

pub mod admin;
pub mod clients;
pub mod controller;
pub mod leases;
pub mod metrics;
