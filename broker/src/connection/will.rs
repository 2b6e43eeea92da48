//! Wills: published by the host when a connection ends badly.
//!
//! A delay is honoured here, by a timer of this broker, and cancelled by a CONNECT of the same client id to this broker.
//! Those that the session's owner has stored go on after the broker has stopped or died ([`Wills::restore`]); one that is
//! not stored is published at once when the broker stops. When the broker closed the connection for a reason of its own,
//! or died, the will waits for [`OWN_REASON_SECS`], so that a client that comes back is not declared dead.

use super::OwnerHandle;
use super::handshake::CONNECT_BYTES_MAX;
use crate::mailbox::{Turn, monotonic_us, unix_ms};
use crate::owner::parts::RestoredWill;
use crate::router::{PublishDone, Publisher, RouteCache, Router};
use bytestring::ByteString;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tidemill_core::attach::{WillOutcome, WillOver};
use tidemill_core::message::Message;
use tidemill_core::packet::{QoS, ReasonCode, Will};
use tidemill_core::session::features::Features;
use tidemill_core::session::inbound::PayloadFormat;
use tokio::sync::Notify;

/// Wills that wait at the same time; further ones are published at once.
const WAITING_MAX: usize = 100_000;
/// Bytes of the wills that wait, as [`Will::held_bytes`] counts; further ones are published at once.
const WAITING_BYTES_MAX: usize = 64 << 20;

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
    // Its user properties can take far more memory than the packet had bytes.
    if will.held_bytes() as u64 > u64::from(CONNECT_BYTES_MAX) {
        return Err(ReasonCode::QUOTA_EXCEEDED);
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WillEnd {
    /// Seconds that the session outlives it.
    pub(super) session_expiry_secs: u32,
    /// The broker closed it for a reason of its own.
    pub(super) is_brokers_own: bool,
    /// What the owner is told when the will is over, if it has stored it.
    pub(super) stored: Option<WillOver>,
}

impl WillEnd {
    /// Seconds until the will is due: after its delay or at the end of the session, whichever is first.
    fn delay_secs(&self, will: &Will) -> u32 {
        let delay_secs = will.delay_secs.min(self.session_expiry_secs);
        if self.is_brokers_own { delay_secs.max(OWN_REASON_SECS) } else { delay_secs }
    }
}

/// The wills of this broker's clients whose connections have ended.
#[derive(Debug)]
pub struct Wills {
    router: Arc<Router>,
    owner: OnceLock<OwnerHandle>,
    waiting: Mutex<Waiting>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    /// When each is due, milliseconds of the process's clock.
    due: BTreeMap<(u64, ByteString), (Will, WillEnd)>,
    by_client: HashMap<ByteString, u64>,
    bytes: usize,
}

impl Waiting {
    fn has_room_for(&self, will: &Will) -> bool {
        self.due.len() < WAITING_MAX && self.bytes + will.held_bytes() <= WAITING_BYTES_MAX
    }

    fn add(&mut self, due_ms: u64, client_id: &ByteString, will: Will, end: WillEnd) {
        self.bytes += will.held_bytes();
        self.by_client.insert(client_id.clone(), due_ms);
        self.due.insert((due_ms, client_id.clone()), (will, end));
    }

    fn take(&mut self, client_id: &ByteString) -> Option<(Will, WillEnd)> {
        let due_ms = self.by_client.remove(client_id)?;
        let (will, end) = self.due.remove(&(due_ms, client_id.clone()))?;
        self.bytes -= will.held_bytes();
        Some((will, end))
    }

    fn take_due(&mut self, now_ms: u64) -> Option<(ByteString, Will, WillEnd)> {
        let entry = self.due.first_entry().filter(|entry| entry.key().0 <= now_ms)?;
        let ((_, client_id), (will, end)) = entry.remove_entry();
        self.by_client.remove(&client_id);
        self.bytes -= will.held_bytes();
        Some((client_id, will, end))
    }
}

impl Wills {
    /// Publishes through `router`.
    #[must_use]
    pub fn new(router: Arc<Router>) -> Self {
        let (waiting, changed) = (Mutex::new(Waiting::default()), Notify::new());
        Self { router, owner: OnceLock::new(), waiting, changed }
    }

    /// Names the owner that hears what becomes of stored wills. Once, before the first client.
    pub fn connect(&self, owner: OwnerHandle) {
        let is_first = self.owner.set(owner).is_ok();
        debug_assert!(is_first, "wills are connected once");
    }

    /// A connection ended without a normal DISCONNECT: its will is due, perhaps later. Says which.
    pub(super) fn handle_abnormal_end(
        &self,
        client_id: &ByteString,
        will: Will,
        end: WillEnd,
    ) -> WillOutcome {
        let in_ms = u64::from(end.delay_secs(&will)) * 1_000;
        let is_brokers_own = end.is_brokers_own;
        if in_ms > 0 && self.wait(client_id, will.clone(), end, in_ms) {
            return WillOutcome::Due { in_ms, is_brokers_own };
        }
        self.publish(client_id, will);
        WillOutcome::Over
    }

    /// A will that an owner had stored, whose broker died or stopped.
    pub fn restore(&self, restored: RestoredWill) {
        let RestoredWill { name, will, session_expiry_secs, due_in_ms, is_brokers_own } = restored;
        let client_id = name.client_id.clone();
        let end = WillEnd { session_expiry_secs, is_brokers_own, stored: Some(name) };
        let in_ms = due_in_ms.unwrap_or_else(|| u64::from(end.delay_secs(&will)) * 1_000);
        if !self.wait(&client_id, will.clone(), end.clone(), in_ms) {
            self.publish(&client_id, will);
            self.report(end);
        }
    }

    /// False if there is no room.
    fn wait(&self, client_id: &ByteString, will: Will, end: WillEnd, in_ms: u64) -> bool {
        let mut waiting = self.waiting.lock();
        if !waiting.has_room_for(&will) {
            return false;
        }
        let former = waiting.take(client_id);
        waiting.add(monotonic_us() / 1_000 + in_ms, client_id, will, end);
        drop(waiting);
        self.changed.notify_one();
        if let Some((former, end)) = former {
            self.publish(client_id, former);
            self.report(end);
        }
        true
    }

    /// The will is over: its owner need not keep it.
    fn report(&self, end: WillEnd) {
        if let (Some(name), Some(owner)) = (end.stored, self.owner.get()) {
            owner.will_over(name);
        }
    }

    /// The client is back: a will that still waits is not published, unless the client ended the session by starting
    /// anew. That it starts anew after the broker closed it says nothing: a client with a clean session always does.
    pub(super) fn handle_connect(&self, client_id: &ByteString, clean_start: bool) {
        let taken = self.waiting.lock().take(client_id);
        if let Some((will, end)) = taken {
            if clean_start && !end.is_brokers_own {
                self.publish(client_id, will);
            }
            self.report(end);
        }
    }

    /// Publishes every will that still waits and is not stored: the broker stops.
    pub fn publish_unstored(&self) {
        // Ends: nothing is added once the clients are gone.
        loop {
            let taken = self.waiting.lock().take_due(u64::MAX);
            let Some((client_id, will, end)) = taken else { return };
            if end.stored.is_none() {
                self.publish(&client_id, will);
            }
        }
    }

    /// Publishes wills as they fall due. Runs until it is dropped.
    pub async fn run(&self) {
        loop {
            let now_ms = monotonic_us() / 1_000;
            let taken = self.waiting.lock().take_due(now_ms);
            if let Some((client_id, will, end)) = taken {
                self.publish(&client_id, will);
                self.report(end);
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

    fn will(payload: &[u8], delay_secs: u32) -> Will {
        Will {
            topic: TopicName::parse("w").unwrap(),
            payload: bytes::Bytes::copy_from_slice(payload),
            qos: QoS::AtMostOnce,
            retain: false,
            delay_secs,
            properties: None,
        }
    }

    fn delay_secs(delay_secs: u32, session_expiry_secs: u32, is_brokers_own: bool) -> u32 {
        let end = WillEnd { session_expiry_secs, is_brokers_own, stored: None };
        end.delay_secs(&will(b"gone", delay_secs))
    }

    #[test]
    fn waiting_wills_are_bounded_by_their_bytes_and_what_leaves_makes_room() {
        let mut waiting = Waiting::default();
        let large = || will(&vec![0; 1 << 20], 60);
        let end = WillEnd { session_expiry_secs: 60, is_brokers_own: false, stored: None };
        let mut count: u64 = 0;
        while waiting.has_room_for(&large()) {
            waiting.add(count, &format!("c-{count}").into(), large(), end.clone());
            count += 1;
        }

        assert_eq!(count, 63, "64 MiB, and the topic of each");
        assert!(waiting.take(&"c-7".into()).is_some());
        assert!(waiting.has_room_for(&large()));
        while waiting.take_due(u64::MAX).is_some() {}
        assert_eq!(waiting.bytes, 0);
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
