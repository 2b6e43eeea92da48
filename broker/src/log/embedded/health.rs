//! Whether the storage is open, closed or broken, for everyone who waits.

use futures::future::BoxFuture;
use tokio::sync::watch;

pub(super) struct Health {
    closed: watch::Sender<bool>,
    failed: watch::Sender<Option<String>>,
}

impl Health {
    pub(super) fn new() -> Self {
        Self { closed: watch::Sender::new(false), failed: watch::Sender::new(None) }
    }

    pub(super) fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.borrow().is_some()
    }

    /// Nothing is answered any more but that it is closed.
    pub(super) fn close(&self) {
        self.closed.send_replace(true);
    }

    /// The storage broke: the process must end. The first reason counts.
    pub(super) fn fail(&self, reason: String) {
        tracing::error!(reason, "storage of the log failed; stopping");
        self.failed.send_if_modified(|failed| {
            let first = failed.is_none();
            if first {
                *failed = Some(reason);
            }
            first
        });
        self.close();
    }

    pub(super) fn closings(&self) -> watch::Receiver<bool> {
        self.closed.subscribe()
    }

    pub(super) fn failed(&self) -> BoxFuture<'static, String> {
        let mut failed = self.failed.subscribe();
        Box::pin(async move {
            let reason = failed.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
            match reason {
                Some(reason) => reason,
                None => std::future::pending().await,
            }
        })
    }

    /// Fails the storage if the thread that holds the guard panics: half a log is worse than none.
    pub(super) fn guard<'a>(&'a self, thread: &'static str) -> PanicGuard<'a> {
        PanicGuard { health: self, thread }
    }
}

pub(super) struct PanicGuard<'a> {
    health: &'a Health,
    thread: &'static str,
}

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.health.fail(format!("thread {} panicked", self.thread));
        }
    }
}
