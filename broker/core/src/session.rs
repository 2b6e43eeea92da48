//! One client's session, without I/O: what it publishes ([`inbound`]), what it is sent ([`outbound`]), how long it may
//! be silent ([`timers`]) and what it subscribed to ([`state`]). The shell keeps `outbound` and the acknowledgement
//! window under the lock of the mailbox, because any thread may deliver or complete; the rest belongs to the
//! connection's task alone.

pub mod inbound;
pub mod outbound;
pub mod state;
pub mod timers;
