//! What owners tell an administrator about persistent sessions.

use bytestring::ByteString;
use tidemill_core::attach::StoredSubscription;
use tidemill_core::member::Member;
use tidemill_core::packet::Version;
use tidemill_core::queue::partition::waiting::QueueStanding;

/// Which sessions are asked for, in the order of their client ids.
#[derive(Debug, Clone)]
pub struct SessionQuery {
    /// Client ids that begin with this.
    pub prefix: String,
    /// Client ids after this one; `None`: from the first on.
    pub after: Option<String>,
    /// At most so many, at least 1.
    pub limit: usize,
}

/// One persistent session as its owner knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionStanding {
    /// Client id.
    pub client_id: ByteString,
    /// The broker that the client is connected to.
    pub host: Option<Member>,
    /// Protocol version of its last connection.
    pub version: Version,
    /// Whose it is.
    pub user: Option<ByteString>,
    /// Seconds that it outlives its connection; `u32::MAX`: for good.
    pub expiry_secs: u32,
    /// When it began, milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// When its connection ended.
    pub disconnected_at_ms: Option<u64>,
    /// Its subscriptions, ended ones that still have messages waiting too.
    pub subscription_count: usize,
    /// Its queue.
    pub queue: QueueStanding,
    /// The owner's time, milliseconds since the Unix epoch.
    pub now_ms: u64,
}

/// One session with its subscriptions in force.
pub type SessionDetail = (SessionStanding, Vec<StoredSubscription>);
