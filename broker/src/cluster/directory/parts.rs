//! Frames that come in parts, until the last part is here.

use crate::cluster::wire::WireError;
use crate::cluster::wire::attach::Reattached;
use crate::cluster::wire::subscribe::Subscription;
use parking_lot::Mutex;
use std::collections::HashMap;
use tidemill_core::attach::Attachment;

/// Entries in the parts of one frame; more are refused. Far above what a broker can hold.
const ENTRIES_MAX: usize = 4_000_000;

/// The entries of one kind of frame, by link and request.
#[derive(Debug)]
pub(super) struct Collected<T>(Mutex<HashMap<(u64, u64), Vec<T>>>);

impl<T> Default for Collected<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Collected<T> {
    /// Takes a part of `request`; all entries when it is the last one.
    ///
    /// # Errors
    ///
    /// [`WireError::Value`] for more entries than any broker has; break the link.
    pub(super) fn add(
        &self,
        (link, request): (u64, u64),
        mut entries: Vec<T>,
        more: bool,
    ) -> Result<Option<Vec<T>>, WireError> {
        let mut collected = self.0.lock();
        if !more {
            return Ok(Some(match collected.remove(&(link, request)) {
                None => entries,
                Some(mut all) => {
                    all.append(&mut entries);
                    all
                }
            }));
        }
        let all = collected.entry((link, request)).or_default();
        all.append(&mut entries);
        if all.len() > ENTRIES_MAX {
            return Err(WireError::Value { field: "entries", value: all.len() as u64 });
        }
        Ok(None)
    }

    fn forget(&self, link: u64) {
        self.0.lock().retain(|(of, _), _| *of != link);
    }
}

/// All frames of which more is to come.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    pub(super) reattaches: Collected<Attachment>,
    pub(super) attaching: Collected<String>,
    pub(super) reattach_replies: Collected<Reattached>,
    pub(super) attach_replies: Collected<Subscription>,
    pub(super) subscribes: Collected<Subscription>,
}

impl Unfinished {
    /// Nothing more comes over a link that has ended.
    pub(super) fn forget(&self, link: u64) {
        self.reattaches.forget(link);
        self.attaching.forget(link);
        self.reattach_replies.forget(link);
        self.attach_replies.forget(link);
        self.subscribes.forget(link);
    }
}
