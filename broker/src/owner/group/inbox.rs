//! How questions and reports reach the task of a group.

use crate::owner::sessions::{SessionDetail, SessionQuery, SessionStanding};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidemill_core::attach::{
    Acked, AttachGrant, AttachRequest, ConnectionEpoch, Detach, ExactlyOnceRequest, HostAttachments,
    OwnerError, SubscribeRequest, SubscriptionReasons, UnsubscribeRequest, WillOver,
};
use tidemill_core::member::Member;
use tokio::sync::{Notify, mpsc, oneshot};
use tracing::error;

/// Questions that wait for the task; more wait at the asker.
const REQUESTS_MAX: usize = 1_024;
/// Reports that wait for the task. Acknowledgements are bounded by what was delivered, detaches by what is attached;
/// only a broken host gets here.
const NOTICES_MAX: usize = 1 << 20;

/// Where an answer goes.
pub(super) type Answer<T> = oneshot::Sender<Result<T, OwnerError>>;

/// Answers of a re-attach frame.
pub(super) type Reattached = Vec<Result<ConnectionEpoch, OwnerError>>;

/// A question.
pub(in crate::owner) enum Request {
    /// Let a connection in.
    Attach(Box<AttachRequest>, Answer<AttachGrant>),
    /// Subscribe.
    Subscribe(SubscribeRequest, Answer<SubscriptionReasons>),
    /// Unsubscribe.
    Unsubscribe(UnsubscribeRequest, Answer<SubscriptionReasons>),
    /// Store how far QoS 2 publishes are.
    ExactlyOnce(ExactlyOnceRequest, Answer<()>),
    /// All attachments of a host.
    Reattach {
        /// The host.
        host: Member,
        /// Its connections in the group.
        attachments: HostAttachments,
        /// For the new connection epochs.
        answer: Answer<Reattached>,
    },
    /// Tell of sessions.
    ListSessions(SessionQuery, Answer<Vec<SessionStanding>>),
    /// Tell of the session of this client id; `None` when it has none.
    ShowSession(String, Answer<Option<SessionDetail>>),
}

/// A report that nobody waits for.
pub(super) enum Notice {
    /// A client is done with messages.
    Acked(Acked),
    /// A connection ended.
    Detach(Detach),
    /// A will that was due later is over.
    WillOver(WillOver),
}

/// Reports in the order they came.
#[derive(Default)]
pub(super) struct Notices {
    waiting: Mutex<Vec<Notice>>,
    arrived: Notify,
}

impl Notices {
    fn push(&self, notice: Notice) {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= NOTICES_MAX {
            error!("report of a host dropped: it sends more than it was given");
            return;
        }
        waiting.push(notice);
        drop(waiting);
        self.arrived.notify_one();
    }

    /// All reports that wait.
    pub(super) fn take_now(&self) -> Vec<Notice> {
        std::mem::take(&mut *self.waiting.lock())
    }

    /// All reports that wait, at least one. Cancel-safe.
    pub(super) async fn take(&self) -> Vec<Notice> {
        loop {
            let waiting = self.take_now();
            if !waiting.is_empty() {
                return waiting;
            }
            self.arrived.notified().await;
        }
    }
}

/// The task's end.
pub(super) struct Inbox {
    pub(super) requests: mpsc::Receiver<Request>,
    pub(super) notices: Arc<Notices>,
    /// Completes when the group is to stop; an error means that its handle is gone.
    pub(super) stop: oneshot::Receiver<oneshot::Sender<()>>,
    has_ended: Arc<AtomicBool>,
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::Release);
    }
}

/// The others' end. The task stops when the last copy is dropped.
#[derive(Clone)]
pub(in crate::owner) struct GroupHandle {
    requests: mpsc::Sender<Request>,
    notices: Arc<Notices>,
    stop: Arc<Mutex<Option<oneshot::Sender<oneshot::Sender<()>>>>>,
    has_ended: Arc<AtomicBool>,
}

pub(super) fn open() -> (GroupHandle, Inbox) {
    let (requests, requests_here) = mpsc::channel(REQUESTS_MAX);
    let (stop, stop_here) = oneshot::channel();
    let notices = Arc::new(Notices::default());
    let has_ended = Arc::new(AtomicBool::new(false));
    let inbox = Inbox {
        requests: requests_here,
        notices: Arc::clone(&notices),
        stop: stop_here,
        has_ended: Arc::clone(&has_ended),
    };
    (GroupHandle { requests, notices, stop: Arc::new(Mutex::new(Some(stop))), has_ended }, inbox)
}

impl GroupHandle {
    /// Hands a question to the task; waits for room. `Err` when the task has ended.
    pub(in crate::owner) async fn ask(&self, request: Request) -> Result<(), ()> {
        self.requests.send(request).await.map_err(drop)
    }

    /// Reports acknowledgements, in order with everything reported here.
    pub(in crate::owner) fn acked(&self, acked: Acked) {
        self.notices.push(Notice::Acked(acked));
    }

    /// Reports the end of a connection.
    pub(in crate::owner) fn detach(&self, detach: Detach) {
        self.notices.push(Notice::Detach(detach));
    }

    /// Reports that a will is over.
    pub(in crate::owner) fn will_over(&self, over: WillOver) {
        self.notices.push(Notice::WillOver(over));
    }

    /// Stops the task; it answers when it has stopped, or at once when it had ended before.
    pub(in crate::owner) fn stop(&self, stopped: oneshot::Sender<()>) {
        let stop = self.stop.lock().take();
        let unsent = match stop {
            Some(stop) => stop.send(stopped).err(),
            None => Some(stopped),
        };
        // A receiver that is gone does not want to know.
        unsent.map(|stopped| stopped.send(()));
    }

    /// Whether the task is over.
    pub(in crate::owner) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }
}
