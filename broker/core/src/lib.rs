//! Every decision of the broker: no I/O, no clock, no randomness. Inputs come in as `handle_*(…, now)`, outputs are
//! taken with `poll_*()`.

pub mod assignment;
pub mod member;
pub mod membership;
pub mod partition;
pub mod time;
