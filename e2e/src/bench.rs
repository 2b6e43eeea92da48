//! Load and its cost: pairs of clients on raw sockets that count and check every message, and the CPU that a broker
//! process takes meanwhile. For `make bench`; nothing here asserts anything about time.

pub mod pair;
pub mod process;
