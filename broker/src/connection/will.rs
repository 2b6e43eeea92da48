//! Wills: published by the host when a connection ends badly.
//!
//! A delay is honoured here, by a timer of this broker, and cancelled by a CONNECT of the same client id to this broker.
//! A will whose delay runs while the broker stops is published at once. When the broker closed the connection for a
//! reason of its own, the will waits for [`OWN_REASON_SECS`], so that a client that comes back is not declared dead.

use crate::mailbox::{Turn, monotonic_us, unix_ms};
use crate::router::{PublishDone, Publisher, RouteCache, Router};
use bytestring::ByteString;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tidemill_core::message::Message;
use tidemill_core::packet::{QoS, ReasonCode, Will};
use tidemill_core::session::features::Features;
use tidemill_core::session::inbound::PayloadFormat;
use tokio::sync::Notify;

/// Wills that wait at the same time; further ones are published at once.
const WAITING_MAX: usize = 100_000;

/// How long a will waits at least when the broker closed the connection for a reason of its own. MQTT would have it
/// published at the end of a clean session, or at once without a delay.
const OWN_REASON_SECS: u32 = 30;

/// Refuses a will that this broker cannot publish as asked.
pub(super) fn check(
    will: &Will,
    features: Features,
    payload_format: PayloadFormat,
) -> Result<(), ReasonCode> {
    if will.retain && !features.retained {
        return Err(ReasonCode::RETAIN_NOT_SUPPORTED);
    }
    if will.topic.is_of_broker() {
        return Err(ReasonCode::TOPIC_NAME_INVALID);
    }
    if will.qos == QoS::ExactlyOnce && !features.exactly_once {
        return Err(ReasonCode::QOS_NOT_SUPPORTED);
    }
    if !payload_format.allows(&will.payload, will.properties.as_deref()) {
        return Err(ReasonCode::PAYLOAD_FORMAT_INVALID);
    }
    Ok(())
}

/// How a connection that has a will ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WillEnd {
    /// Seconds that the session outlives it.
    pub(super) session_expiry_secs: u32,
    /// The broker closed it for a reason of its own.
    pub(super) is_brokers_own: bool,
}

impl WillEnd {
    /// Seconds until the will is due: after its delay or at the end of the session, whichever is first.
    fn delay_secs(self, will: &Will) -> u32 {
        let delay_secs = will.delay_secs.min(self.session_expiry_secs);
        if self.is_brokers_own { delay_secs.max(OWN_REASON_SECS) } else { delay_secs }
    }
}

/// The wills of this broker's clients whose connections have ended.
#[derive(Debug)]
pub struct Wills {
    router: Arc<Router>,
    waiting: Mutex<Waiting>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    /// When each is due, milliseconds of the process's clock.
    due: BTreeMap<(u64, ByteString), (Will, WillEnd)>,
    by_client: HashMap<ByteString, u64>,
}

impl Waiting {
    fn take(&mut self, client_id: &ByteString) -> Option<(Will, WillEnd)> {
        let due_ms = self.by_client.remove(client_id)?;
        self.due.remove(&(due_ms, client_id.clone()))
    }

    fn take_due(&mut self, now_ms: u64) -> Option<(ByteString, Will)> {
        let entry = self.due.first_entry().filter(|entry| entry.key().0 <= now_ms)?;
        let ((_, client_id), (will, _)) = entry.remove_entry();
        self.by_client.remove(&client_id);
        Some((client_id, will))
    }
}

impl Wills {
    /// Publishes through `router`.
    #[must_use]
    pub fn new(router: Arc<Router>) -> Self {
        Self { router, waiting: Mutex::new(Waiting::default()), changed: Notify::new() }
    }

    /// A connection ended without a normal DISCONNECT: its will is due, perhaps later.
    pub(super) fn handle_abnormal_end(&self, client_id: &ByteString, will: Will, end: WillEnd) {
        let delay_secs = end.delay_secs(&will);
        let mut waiting = self.waiting.lock();
        if delay_secs == 0 || waiting.due.len() >= WAITING_MAX {
            drop(waiting);
            return self.publish(client_id, will);
        }
        let due_ms = monotonic_us() / 1_000 + u64::from(delay_secs) * 1_000;
        let former = waiting.take(client_id);
        waiting.by_client.insert(client_id.clone(), due_ms);
        waiting.due.insert((due_ms, client_id.clone()), (will, end));
        drop(waiting);
        self.changed.notify_one();
        if let Some((former, _)) = former {
            self.publish(client_id, former);
        }
    }

    /// The client is back: a will that still waits is not published, unless the client ended the session by starting
    /// anew. That it starts anew after the broker closed it says nothing: a client with a clean session always does.
    pub(super) fn handle_connect(&self, client_id: &ByteString, clean_start: bool) {
        let taken = self.waiting.lock().take(client_id);
        if let Some((will, end)) = taken
            && clean_start
            && !end.is_brokers_own
        {
            self.publish(client_id, will);
        }
    }

    /// Publishes every will that still waits: the broker stops.
    pub fn publish_all(&self) {
        // Ends: nothing is added once the clients are gone.
        loop {
            let taken = self.waiting.lock().take_due(u64::MAX);
            let Some((client_id, will)) = taken else { return };
            self.publish(&client_id, will);
        }
    }

    /// Publishes wills as they fall due. Runs until it is dropped.
    pub async fn run(&self) {
        loop {
            let now_ms = monotonic_us() / 1_000;
            let taken = self.waiting.lock().take_due(now_ms);
            if let Some((client_id, will)) = taken {
                self.publish(&client_id, will);
                continue;
            }
            let next_ms = self.waiting.lock().due.keys().next().map(|(due_ms, _)| *due_ms);
            let wait =
                next_ms.map_or(Duration::MAX, |due_ms| Duration::from_millis(due_ms.saturating_sub(now_ms)));
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    fn publish(&self, client_id: &ByteString, will: Will) {
        let message = Message {
            topic: will.topic,
            payload: will.payload,
            qos: will.qos,
            retain: will.retain,
            properties: will.properties,
            publisher: client_id.clone(),
            publish_time_ms: unix_ms(),
        };
        let mut turn = Turn::begin(self.router.metrics());
        let mut cache = RouteCache::new(Publisher::Other);
        self.router.publish(&Arc::new(message), &mut cache, PublishDone::Nobody, &mut turn);
        turn.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_core::topic::TopicName;

    fn delay_secs(delay_secs: u32, session_expiry_secs: u32, is_brokers_own: bool) -> u32 {
        let will = Will {
            topic: TopicName::parse("w").unwrap(),
            payload: "gone".into(),
            qos: QoS::AtMostOnce,
            retain: false,
            delay_secs,
            properties: None,
        };
        WillEnd { session_expiry_secs, is_brokers_own }.delay_secs(&will)
    }

    #[test]
    fn a_will_is_due_after_its_delay_or_at_the_end_of_the_session_whichever_is_first() {
        assert_eq!(delay_secs(0, 3_600, false), 0);
        assert_eq!(delay_secs(60, 3_600, false), 60);
        assert_eq!(delay_secs(60, 10, false), 10);
        assert_eq!(delay_secs(60, 0, false), 0);
    }

    #[test]
    fn a_will_waits_30_s_when_the_broker_closed_for_a_reason_of_its_own() {
        assert_eq!(delay_secs(0, 0, true), 30);
        assert_eq!(delay_secs(60, 10, true), 30);
        assert_eq!(delay_secs(60, 3_600, true), 60);
    }
}
