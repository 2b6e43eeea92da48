//! One client's session, without I/O: what it publishes ([`inbound`]), what it is sent ([`outbound`], [`aliases`]), how
//! long it may be silent ([`timers`]), what it subscribed to ([`state`]), what of all this is served ([`features`]), and what goes on
//! after the connection ([`in_flight`]), and over a restart ([`exactly_once`], kept by the owner). The shell keeps `outbound`, `aliases` and the acknowledgement window under the lock of the
//! mailbox, because any thread may deliver or complete; the rest belongs to the connection's task alone.

pub mod ack_window;
pub mod aliases;
pub mod delivery;
pub mod exactly_once;
pub mod features;
pub mod in_flight;
pub mod inbound;
pub mod offsets;
pub mod outbound;
pub mod state;
pub mod timers;
