//! Load and its cost: clients on raw sockets that count and check every message, and what a broker process takes
//! meanwhile. For `make bench`; nothing here asserts anything about time.

pub mod backlog;
pub mod boot;
pub mod drain;
pub mod fan_in;
pub mod fan_out;
pub mod idle;
pub mod many;
pub mod offline;
pub mod pair;
pub mod pairs;
pub mod process;
pub mod route;
pub mod subject;
pub mod table;
pub mod trie;
