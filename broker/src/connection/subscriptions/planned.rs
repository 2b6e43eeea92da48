//! What one SUBSCRIBE or UNSUBSCRIBE asks for, entry by entry, and the reason codes of its answer.

use std::collections::BTreeSet;
use tidemill_core::attach::StoredSubscription;
use tidemill_core::packet::{PacketId, QoS, ReasonCode};
use tidemill_core::topic::SubscriptionTarget;

/// The entries of one packet: those that are refused already, and those that go on.
pub(super) struct Planned<T> {
    pub(super) packet_id: PacketId,
    pub(super) entries: Vec<Result<T, ReasonCode>>,
}

impl<T> Planned<T> {
    /// The reasons in order: the refusals, and one of `answers` for each entry that went on.
    pub(super) fn reasons(&self, answers: impl IntoIterator<Item = ReasonCode>) -> Vec<ReasonCode> {
        let mut answers = answers.into_iter();
        let mut next = || answers.next().unwrap_or(ReasonCode::UNSPECIFIED_ERROR);
        self.entries.iter().map(|entry| entry.as_ref().map_or_else(|reason| *reason, |_| next())).collect()
    }
}

impl Planned<StoredSubscription> {
    /// What goes on, each filter once: of several entries with one filter the last one counts (MQTT 5.0 section
    /// 3.8.4).
    pub(super) fn newest(&self) -> Vec<StoredSubscription> {
        let mut seen = BTreeSet::new();
        let accepted = self.entries.iter().rev().filter_map(|entry| entry.as_ref().ok());
        let mut newest: Vec<_> = accepted.filter(|entry| seen.insert(&entry.target)).cloned().collect();
        newest.reverse();
        newest
    }

    /// The reason of each entry in order: its refusal, the failure of its filter, or the QoS that it asks for.
    pub(super) fn granted_reasons(
        &self,
        failure: impl Fn(&SubscriptionTarget) -> Option<ReasonCode>,
    ) -> Vec<ReasonCode> {
        let reason = |entry: &Result<StoredSubscription, ReasonCode>| match entry {
            Ok(entry) => failure(&entry.target).unwrap_or(granted(entry.options.qos)),
            Err(refusal) => *refusal,
        };
        self.entries.iter().map(reason).collect()
    }
}

fn granted(qos: QoS) -> ReasonCode {
    match qos {
        QoS::AtMostOnce => ReasonCode::SUCCESS,
        QoS::AtLeastOnce => ReasonCode::GRANTED_QOS_1,
        QoS::ExactlyOnce => ReasonCode::GRANTED_QOS_2,
    }
}
