//! The queues of one partition: who gets which record, and how far each has come. A record is matched once for all
//! queues; a queue without interest in it costs nothing.

pub mod backlog;
pub mod dead_letter;
pub mod index;
pub mod limits;
pub mod pace;
pub mod partition;
pub mod progress;
mod sorted;
pub mod subscription;

/// Bytes of open messages, handed out and not acknowledged, from which on a queue hands out no further one, as if its
/// window were full. Below it the next message goes out whatever its size: at most this much and one message are at a
/// receiver, and large messages flow one at a time.
pub const IN_FLIGHT_BYTES: usize = 1 << 20;
