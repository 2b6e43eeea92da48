//! One client's session, without I/O: what it publishes ([`inbound`]), what it is sent ([`outbound`], [`aliases`]), how
//! long it may be silent ([`timers`]), what it subscribed to ([`state`]), and what of all this is served
//! ([`features`]). The shell keeps `outbound`, `aliases` and the acknowledgement window under the lock of the mailbox,
//! because any thread may deliver or complete; the rest belongs to the connection's task alone.

pub mod aliases;
pub mod features;
pub mod inbound;
pub mod outbound;
pub mod state;
pub mod timers;
