//! The links that are up, by member.

use super::link::Link;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidemill_core::member::{Member, MemberId};
use tokio::sync::watch;

/// The links that are up. A link stands here from before its handler hears of it until after it heard of its end.
#[derive(Debug)]
pub struct LinkTable {
    links: Mutex<BTreeMap<MemberId, Arc<Link>>>,
    changes: watch::Sender<u64>,
}

impl Default for LinkTable {
    fn default() -> Self {
        Self { links: Mutex::default(), changes: watch::Sender::new(0) }
    }
}

impl LinkTable {
    /// The link to a member, whichever incarnation.
    #[must_use]
    pub fn get(&self, id: &MemberId) -> Option<Arc<Link>> {
        self.links.lock().get(id).cloned()
    }

    /// The link to one incarnation.
    #[must_use]
    pub fn to(&self, member: &Member) -> Option<Arc<Link>> {
        self.get(&member.id).filter(|link| link.peer() == member)
    }

    /// All links, by member id.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Link>> {
        self.links.lock().values().cloned().collect()
    }

    /// Changes whenever a link comes or goes.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Enters a link that is about to run.
    ///
    /// # Errors
    ///
    /// The link that stands in its place; it must end first.
    pub fn insert(&self, link: &Arc<Link>) -> Result<(), Arc<Link>> {
        let mut links = self.links.lock();
        if let Some(former) = links.get(&link.peer().id) {
            return Err(Arc::clone(former));
        }
        links.insert(link.peer().id.clone(), Arc::clone(link));
        drop(links);
        self.changes.send_modify(|count| *count += 1);
        Ok(())
    }

    /// Removes a link that has ended.
    pub fn remove(&self, link: &Arc<Link>) {
        let mut links = self.links.lock();
        if links.get(&link.peer().id).is_some_and(|current| Arc::ptr_eq(current, link)) {
            links.remove(&link.peer().id);
        }
        drop(links);
        self.changes.send_modify(|count| *count += 1);
    }
}
