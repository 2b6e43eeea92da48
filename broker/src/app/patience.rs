//! An owner that is starting is waited for, as a host waits for an owner elsewhere.

use crate::owner::OwnerSide;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use tidemill_core::attach::{
    Acked, AttachGrant, AttachRequest, Attachment, ConnectionEpoch, Detach, OwnerError, SubscribeRequest,
    SubscriptionReasons, UnsubscribeRequest,
};
use tidemill_core::member::Member;
use tidemill_core::partition::PartitionGroup;
use tokio::time::Instant;

/// A CONNECT waits this long for its owner.
const ATTACH_WAIT: Duration = Duration::from_secs(10);
const ATTACH_EVERY: Duration = Duration::from_millis(20);

/// Asks again while the owner of a client id is not there yet.
pub(super) struct PatientOwner(pub(super) Arc<dyn OwnerSide>);

impl OwnerSide for PatientOwner {
    fn attach(&self, request: AttachRequest) -> BoxFuture<'static, Result<AttachGrant, OwnerError>> {
        let owner = Arc::clone(&self.0);
        async move {
            let deadline = Instant::now() + ATTACH_WAIT;
            // Ends at the deadline.
            loop {
                match owner.attach(request.clone()).await {
                    Err(OwnerError::Unavailable) if Instant::now() < deadline => {
                        tokio::time::sleep(ATTACH_EVERY).await;
                    }
                    answer => return answer,
                }
            }
        }
        .boxed()
    }

    fn detach(&self, detach: Detach) {
        self.0.detach(detach);
    }

    fn subscribe(
        &self,
        request: SubscribeRequest,
    ) -> BoxFuture<'static, Result<SubscriptionReasons, OwnerError>> {
        self.0.subscribe(request)
    }

    fn unsubscribe(
        &self,
        request: UnsubscribeRequest,
    ) -> BoxFuture<'static, Result<SubscriptionReasons, OwnerError>> {
        self.0.unsubscribe(request)
    }

    fn acked(&self, acked: Acked) {
        self.0.acked(acked);
    }

    fn reattach(
        &self,
        group: PartitionGroup,
        host: Member,
        attachments: Vec<Attachment>,
    ) -> BoxFuture<'static, Result<Vec<Result<ConnectionEpoch, OwnerError>>, OwnerError>> {
        self.0.reattach(group, host, attachments)
    }
}
