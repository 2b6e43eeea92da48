//! Tells every new owner of a group which connections this broker has in it.

use super::{Directory, Shared};
use crate::cluster::GroupOwner;
use bytestring::ByteString;
use std::sync::Arc;
use std::time::Duration;
use tidemill_core::attach::{Attachment, ConnectionEpoch, HostAttachments, OwnerError};
use tidemill_core::partition::PartitionGroup;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Pause before an owner that could not take the attachments is told again; doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The connections of this broker. The registry implements it.
pub trait AttachmentSource: Send + Sync + 'static {
    /// Client ids in `group` that are attaching: asked before [`Self::attachments`], so that one that is attached
    /// meanwhile is in either.
    fn attaching(&self, group: PartitionGroup) -> Vec<ByteString>;

    /// All attachments whose client id is in `group`.
    fn attachments(&self, group: PartitionGroup) -> Vec<Attachment>;

    /// What the new owner made of them, in the order of [`Self::attachments`]. For a connection that has ended since,
    /// `Detach` must be sent again, with the new name: the first one may have come too early.
    fn reattached(&self, group: PartitionGroup, outcomes: Vec<ReattachOutcome>);
}

/// What became of one attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReattachOutcome {
    /// As it was told.
    pub attachment: Attachment,
    /// The connection's new name. [`OwnerError::TakenOver`]: close it with 0x8E. Other errors: the owner cannot have it
    /// now; close it, so that the client comes again.
    pub result: Result<ConnectionEpoch, OwnerError>,
}

/// To whom the attachments of a group were told, or are being told: an owner, over one link.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    owner: GroupOwner,
    /// The link, or 0 for this broker itself.
    link: u64,
}

impl Directory {
    /// Follows the owners of all groups until `stop`. A new link to the same owner counts as a new owner: what was on
    /// its way over the old one is lost, and the attachments say what arrived.
    pub async fn keep_attached(self, stop: CancellationToken) {
        let mut tasks = JoinSet::new();
        for group in self.shared.partitioning.groups() {
            tasks.spawn(Arc::clone(&self.shared).keep_group_attached(group));
        }
        tokio::select! {
            () = stop.cancelled() => {}
            ended = tasks.join_next() => if let Some(Err(error)) = ended {
                std::panic::resume_unwind(error.into_panic());
            },
        }
        tasks.shutdown().await;
    }
}

impl Shared {
    fn told_now(&self, group: PartitionGroup) -> Option<Told> {
        let owner = self.owner_of(group)?;
        if owner.member == self.view().own {
            return self.local.get().map(|_| Told { owner, link: 0 });
        }
        let link = self.links.to(&owner.member)?.number();
        Some(Told { owner, link })
    }

    /// One telling at a time, each with the attachments as they are then. Ends with the view's sender.
    async fn keep_group_attached(self: Arc<Self>, group: PartitionGroup) {
        let mut view = self.view.clone();
        let mut links = self.links.changes();
        let mut told = None;
        let mut pause = PAUSE_MIN;
        loop {
            view.borrow_and_update();
            links.borrow_and_update();
            let target = self.told_now(group);
            if target.is_some() && target != told {
                if self.tell(group).await {
                    told = target;
                    pause = PAUSE_MIN;
                } else {
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                continue;
            }
            tokio::select! {
                changed = view.changed() => if changed.is_err() { std::future::pending::<()>().await },
                _ = links.changed() => {}
            }
        }
    }

    /// Tells the attachments once; whether the owner took them.
    async fn tell(&self, group: PartitionGroup) -> bool {
        let Some(local) = self.local.get() else { return false };
        // In this order: whoever was granted a connection before is attaching, attached, or gone.
        let granted = self.granted.lock().get(&group).copied();
        let attaching = local.attachments.attaching(group);
        let attached = local.attachments.attachments(group);
        let host = self.view().own.clone();
        let word = HostAttachments { attached, attaching, granted };
        match self.reattach_once(group, host, &word).await {
            Ok(results) => {
                results.iter().flatten().for_each(|connection| self.note_granted(group, *connection));
                let outcomes = word
                    .attached
                    .into_iter()
                    .zip(results)
                    .map(|(attachment, result)| ReattachOutcome { attachment, result })
                    .collect();
                local.attachments.reattached(group, outcomes);
                true
            }
            Err(refusal) => {
                tracing::debug!(
                    group = group.0,
                    ?refusal,
                    "owner did not take the attachments; telling again"
                );
                false
            }
        }
    }
}
