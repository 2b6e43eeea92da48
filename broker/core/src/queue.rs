//! The queues of one partition: who gets which record, and how far each has come. A record is matched once for all
//! queues; a queue without interest in it costs nothing.

pub mod partition;
pub mod progress;
pub mod subscription;
