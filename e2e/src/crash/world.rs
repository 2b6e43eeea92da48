//! What all clients of one run share.

use super::auditor::{Auditor, Verdict, Violation};
use super::plan::{Disaster, Event, Plan};
use crate::mosquitto::Endpoint;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;

/// Between a connection that failed and the next attempt.
pub(super) const RECONNECT_PAUSE: Duration = Duration::from_millis(10);

pub(super) struct World {
    pub(super) endpoint: Endpoint,
    pub(super) plan: Plan,
    pub(super) auditor: Mutex<Auditor>,
    pub(super) counts: watch::Sender<Counts>,
    pub(super) phase: watch::Sender<Phase>,
    /// By publisher: the last round in which it got everything acknowledged that it had to publish.
    finished: Mutex<BTreeMap<u32, u32>>,
    /// By client: why its last connection ended.
    errors: Mutex<BTreeMap<String, String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Phase {
    pub(super) round: u32,
    pub(super) stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Everybody behaves as planned for the round.
    Storm,
    /// Every subscriber is online and prompt.
    Draining,
    /// The clients end.
    Over,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    connected: u64,
    subscribed: u64,
    acknowledged: u64,
    delivered: u64,
}

/// Client id of publisher `number`.
pub(super) fn publisher_name(number: u32) -> String {
    format!("publisher-{number}")
}

impl Counts {
    pub(super) fn of(&self, event: Event) -> u64 {
        match event {
            Event::Connected => self.connected,
            Event::Subscribed => self.subscribed,
            Event::Acknowledged => self.acknowledged,
            Event::Delivered => self.delivered,
        }
    }
}

impl World {
    pub(super) fn new(endpoint: Endpoint, plan: Plan) -> Self {
        Self {
            endpoint,
            plan,
            auditor: Mutex::default(),
            counts: watch::Sender::default(),
            phase: watch::Sender::new(Phase { round: 0, stage: Stage::Storm }),
            finished: Mutex::default(),
            errors: Mutex::default(),
        }
    }

    pub(super) fn begin_next_round(&self) {
        self.phase.send_modify(|phase| *phase = Phase { round: phase.round + 1, stage: Stage::Storm });
    }

    /// Whether a connection of `round` is at its end in another one.
    pub(super) fn is_broken(&self, round: u32) -> bool {
        self.plan.disaster == Disaster::ConnectionsBroken && self.phase.borrow().round != round
    }

    pub(super) fn set_stage(&self, stage: Stage) {
        self.phase.send_modify(|phase| phase.stage = stage);
    }

    pub(super) fn count(&self, event: Event) {
        self.counts.send_modify(|counts| match event {
            Event::Connected => counts.connected += 1,
            Event::Subscribed => counts.subscribed += 1,
            Event::Acknowledged => counts.acknowledged += 1,
            Event::Delivered => counts.delivered += 1,
        });
    }

    pub(super) fn finish_round(&self, publisher: u32, round: u32) {
        self.finished.lock().insert(publisher, round);
    }

    /// Whether every publisher has got everything acknowledged that it had to publish in this round.
    pub(super) fn is_idle(&self) -> bool {
        let round = self.phase.borrow().round;
        let finished = self.finished.lock();
        (0..self.plan.publishers()).all(|publisher| finished.get(&publisher) == Some(&round))
    }

    pub(super) fn record_violation(&self, violation: Violation) {
        self.auditor.lock().record_violation(violation);
    }

    pub(super) fn record_error(&self, client: &str, error: &anyhow::Error) {
        self.errors.lock().insert(client.to_owned(), format!("{error:#}"));
    }

    /// Grows with every message that arrives and every acknowledgement.
    pub(super) fn progress(&self) -> u64 {
        let counts = *self.counts.borrow();
        counts.delivered + counts.acknowledged
    }

    /// By client: why its last connection ended.
    pub(super) fn last_errors(&self) -> BTreeMap<String, String> {
        self.errors.lock().clone()
    }

    /// What the auditor says, and which publishers never got to the end of the last round.
    pub(super) fn verdict(&self) -> Verdict {
        let mut auditor = self.auditor.lock();
        let round = self.phase.borrow().round;
        for publisher in 0..self.plan.publishers() {
            if self.finished.lock().get(&publisher) != Some(&round) {
                let client = publisher_name(publisher);
                auditor.record_violation(Violation::NeverAcknowledged { client });
            }
        }
        auditor.verdict()
    }
}
