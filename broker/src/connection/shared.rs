//! What a client has to do with shared subscriptions: it joins groups, leaves them, and takes what waits in them.

use super::Connection;
use crate::mailbox::{Turn, monotonic_us};
use crate::router::{MemberLeaves, SharedSubscription};
use tidemill_contract::config::SharedStrategy;
use tidemill_core::packet::{ReasonCode, SubscriptionOptions};
use tidemill_core::shared::strategy::Strategy;
use tidemill_core::topic::SharedFilter;

impl Connection {
    /// Becomes a member, or replaces its subscription. Messages come from now on.
    pub(super) fn join_shared(
        &mut self,
        target: SharedFilter,
        options: SubscriptionOptions,
        identifier: Option<u32>,
    ) {
        // A session may have been stored by a broker that serves them.
        if !self.services.features.shared || !self.subscriptions.insert_shared(target.clone()) {
            return;
        }
        let strategy = strategy(self.services.shared_subscriptions.strategy_of(target.share()));
        let subscription = SharedSubscription { target, strategy, options, identifier };
        self.services.router.subscribe_shared(&self.mailbox, subscription);
    }

    /// Ends one membership at the client's wish. What it has in flight is still its own.
    pub(super) fn drop_shared(&mut self, target: &SharedFilter) -> ReasonCode {
        if !self.subscriptions.remove_shared(target) {
            return ReasonCode::NO_SUBSCRIPTION_EXISTED;
        }
        self.services.router.leave_shared(&self.mailbox, [target], MemberLeaves::ForGood);
        ReasonCode::SUCCESS
    }

    /// Takes what waits in its groups, if there is anything and it has room. Cheap when nothing waits anywhere.
    pub(super) fn drain_shared(&self, turn: &mut Turn) {
        if self.services.router.has_shared_backlog() {
            self.services.router.drain_shared(&self.mailbox, self.subscriptions.shared(), turn);
        }
    }

    /// The connection begins, and has resumed its session if there was one: what waits for it follows CONNACK.
    pub(super) fn begin_shared(&self) {
        self.services.router.forget_away(&self.registered.request.client_id);
        if !self.services.router.has_shared_backlog() {
            return;
        }
        let mut turn = Turn::begin(&self.services.metrics);
        self.drain_shared(&mut turn);
        turn.finish();
    }

    /// The connection has ended and takes nothing any more: others get what it had and is not done with.
    pub(super) fn end_shared(&self) {
        let lost = self.mailbox.take_lost();
        let leaves = self.leaves(monotonic_us() / 1_000);
        self.services.router.leave_shared(&self.mailbox, self.subscriptions.shared(), leaves);
        if !lost.is_empty() {
            let mut turn = Turn::begin(&self.services.metrics);
            self.services.router.redistribute(lost, &mut turn);
            turn.finish();
        }
    }

    fn leaves(&self, now_ms: u64) -> MemberLeaves {
        match self.expiry_secs() {
            0 => MemberLeaves::ForGood,
            u32::MAX => MemberLeaves::UntilReturn { expires_at_ms: u64::MAX },
            secs => MemberLeaves::UntilReturn { expires_at_ms: now_ms + u64::from(secs) * 1_000 },
        }
    }
}

fn strategy(configured: SharedStrategy) -> Strategy {
    match configured {
        SharedStrategy::Random => Strategy::Random,
        SharedStrategy::RoundRobin => Strategy::RoundRobin,
        SharedStrategy::Sticky => Strategy::Sticky,
        SharedStrategy::LeastInFlight => Strategy::LeastInFlight,
        SharedStrategy::HashPublisher => Strategy::HashPublisher,
        SharedStrategy::HashTopic => Strategy::HashTopic,
    }
}
