//! Every decision of the broker: no I/O, no clock, no randomness. Inputs come in as `handle_*(…, now)`, outputs are
//! taken with `poll_*()`.

pub mod assignment;
pub mod attach;
pub mod binary;
pub mod cursor;
pub mod member;
pub mod membership;
pub mod message;
pub mod packet;
pub mod partition;
pub mod queue;
pub mod record;
pub mod retained;
pub mod session;
pub mod state;
pub mod time;
pub mod topic;
pub mod trie;
