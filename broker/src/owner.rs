//! The owner of partition groups, and the two sides of its conversation with hosts.
//!
//! [`OwnerSide`] is what a host asks; the local owner implements it for the groups this broker owns, the cluster's
//! directory for all groups. [`HostSide`] is what an owner tells hosts; the registry of connections implements it for
//! this broker, the directory for all brokers.

mod group;
mod intent_search;
pub mod metrics;
pub mod parts;
pub mod service;
pub mod sessions;

use futures::future::BoxFuture;
use std::sync::Arc;
use tidemill_core::attach::{
    Acked, AttachGrant, AttachRequest, ConnectionEpoch, Deliver, Detach, ExactlyOnceRequest, HostAttachments,
    OwnerError, Release, SubscribeRequest, SubscriptionReasons, UnsubscribeRequest, WillOver,
};
use tidemill_core::member::Member;
use tidemill_core::message::Message;
use tidemill_core::partition::PartitionGroup;

/// What hosts ask owners.
pub trait OwnerSide: Send + Sync + 'static {
    /// Lets a connection in. Answers when every older connection of the client id is closed or its host is dead, and
    /// the routes of a resumed session are live. Waits at most 10 s for an owner.
    fn attach(&self, request: AttachRequest) -> BoxFuture<'static, Result<AttachGrant, OwnerError>>;

    /// A connection ended. Never waits. What is lost with a link or an owner is made good by the next re-attach, which
    /// does not name the connection any more.
    fn detach(&self, detach: Detach);

    /// A will that was due later is published, or called off. Never waits.
    fn will_over(&self, over: WillOver);

    /// Subscribes a persistent session. The answer is durable and every member has the routes, or the entry's reason
    /// is a failure.
    fn subscribe(
        &self,
        request: SubscribeRequest,
    ) -> BoxFuture<'static, Result<SubscriptionReasons, OwnerError>>;

    /// Ends subscriptions of a persistent session, durably.
    fn unsubscribe(
        &self,
        request: UnsubscribeRequest,
    ) -> BoxFuture<'static, Result<SubscriptionReasons, OwnerError>>;

    /// Stores how far the QoS 2 publishes of a persistent session are. The answer is durable. One request of a
    /// connection at a time.
    fn store_exactly_once(&self, request: ExactlyOnceRequest) -> BoxFuture<'static, Result<(), OwnerError>>;

    /// Reports what a client is done with. Never waits; kept in order for each queue.
    fn acked(&self, acked: Acked);

    /// All attachments of `host` in `group`, in one go, after the group changed its owner or the link to it was made
    /// anew. There may be none: the new owner waits for every member's word. Answers with the connection epochs under
    /// which they go on, in order; `Err(TakenOver)` for one that a newer connection replaced.
    fn reattach(
        &self,
        group: PartitionGroup,
        host: Member,
        attachments: HostAttachments,
    ) -> BoxFuture<'static, Result<Vec<Result<ConnectionEpoch, OwnerError>>, OwnerError>>;
}

/// What owners tell hosts.
pub trait HostSide: Send + Sync + 'static {
    /// Messages for a session on `host`. Never waits: bounded by the window of the attachment. What cannot be handed
    /// over is redelivered after the next attach.
    fn deliver(&self, host: &Member, deliver: Deliver);

    /// PUBRECs that `host` reported are stored. Never waits; what is lost on the way the next grant tells.
    fn release(&self, host: &Member, release: Release);

    /// Closes the connection that a newer one replaced (0x8E). Completes when it is closed, when `host` is dead, or
    /// after 6 s.
    fn take_over(
        &self,
        host: &Member,
        client_id: &str,
        connection: ConnectionEpoch,
    ) -> BoxFuture<'static, ()>;
}

/// A dead letter was not published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeadLetterError {
    /// It never can be: the log refuses such a record. The message is dropped.
    #[error("dead letter refused: {reason}")]
    Refused {
        /// Why, in the log's words.
        reason: String,
    },
    /// Not now: the same message is published again.
    #[error("dead letter not published")]
    Unavailable,
}

/// Where owners publish what a queue gave up.
pub trait DeadLetters: Send + Sync + 'static {
    /// Publishes as a client would at QoS 1. Completes when whoever is subscribed has it as durably as the message had
    /// to be: a publisher would be acknowledged now. Bounded by itself.
    fn publish(&self, message: Arc<Message>) -> BoxFuture<'static, Result<(), DeadLetterError>>;
}
