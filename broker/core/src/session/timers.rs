//! How long a client may be silent. Times are milliseconds of any monotonic clock; a sweep asks, nothing is armed.

/// The keep alive of one connection (MQTT 5.0 section 3.1.2.10): silent for one and a half times its seconds and the
/// connection ends. It does not run while the broker itself does not read from the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAlive {
    /// 0 = no limit.
    limit_ms: u32,
    last_received_ms: u64,
    is_paused: bool,
}

impl KeepAlive {
    /// Ends a connection that is silent for `limit_ms`, such as one that sends no CONNECT.
    #[must_use]
    pub fn limit(limit_ms: u32, now_ms: u64) -> Self {
        Self { limit_ms, last_received_ms: now_ms, is_paused: false }
    }

    /// The keep alive that a CONNECT asked for; 0 never ends the connection.
    #[must_use]
    pub fn of_connect(keep_alive_secs: u16, now_ms: u64) -> Self {
        Self::limit(u32::from(keep_alive_secs) * 1_500, now_ms)
    }

    /// Something came from the client.
    pub fn handle_received(&mut self, now_ms: u64) {
        self.last_received_ms = now_ms;
        self.is_paused = false;
    }

    /// The broker stops reading (back-pressure): silence is no longer the client's.
    pub fn handle_paused(&mut self) {
        self.is_paused = true;
    }

    /// Whether the client was silent for too long.
    #[must_use]
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.limit_ms != 0
            && !self.is_paused
            && now_ms.saturating_sub(self.last_received_ms) > u64::from(self.limit_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_may_be_silent_for_one_and_a_half_times_its_keep_alive() {
        let mut keep_alive = KeepAlive::of_connect(10, 1_000);

        assert!(!keep_alive.is_expired(16_000));
        assert!(keep_alive.is_expired(16_001));
        keep_alive.handle_received(16_001);
        assert!(!keep_alive.is_expired(31_001));
        assert!(keep_alive.is_expired(31_002));
    }

    #[test]
    fn keep_alive_0_never_ends_a_connection() {
        assert!(!KeepAlive::of_connect(0, 0).is_expired(u64::MAX));
    }

    #[test]
    fn keep_alive_does_not_run_while_the_broker_does_not_read() {
        let mut keep_alive = KeepAlive::of_connect(10, 0);
        keep_alive.handle_paused();

        assert!(!keep_alive.is_expired(1_000_000));
        keep_alive.handle_received(1_000_000);
        assert!(keep_alive.is_expired(1_015_001));
    }
}
