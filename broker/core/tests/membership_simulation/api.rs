//! The API server: objects under compare-and-swap, consistent lists, and the log that watches follow.

use std::collections::BTreeMap;

use tidemill_core::member::MemberEpoch;
use tidemill_core::member::OwnerEpoch;
use tidemill_core::membership::lease::{
    GroupLease, LeaseContent, LeaseKey, LeaseWrite, MemberLease, Observed, ResourceVersion, View, WatchEvent,
    WriteResult,
};

#[derive(Debug, Default)]
pub(crate) struct Api {
    objects: BTreeMap<LeaseKey, (ResourceVersion, LeaseContent)>,
    version: u64,
    pub(crate) log: Vec<WatchEvent>,
}

impl Api {
    pub(crate) fn get(&self, key: &LeaseKey) -> Option<&LeaseContent> {
        self.objects.get(key).map(|(_, content)| content)
    }

    pub(crate) fn list(&self) -> Vec<Observed> {
        self.objects
            .iter()
            .map(|(key, (version, content))| Observed {
                key: key.clone(),
                version: *version,
                content: content.clone(),
            })
            .collect()
    }

    pub(crate) fn replace(&mut self, write: &LeaseWrite) -> WriteResult {
        match self.objects.get(&write.key) {
            None => WriteResult::NotFound,
            Some((version, _)) if *version != write.expected => WriteResult::Conflict,
            Some((_, stored)) => {
                let mut content = write.content.clone();
                // The annotation of the administrator's word is not the brokers' to write.
                if let (LeaseContent::Member(stored), LeaseContent::Member(written)) = (stored, &mut content)
                {
                    written.declared_dead.clone_from(&stored.declared_dead);
                }
                WriteResult::Written(self.put(write.key.clone(), content))
            }
        }
    }

    /// What the operator does: creates an object that says nothing, at epoch `epoch`.
    pub(crate) fn create(&mut self, key: LeaseKey, epoch: u32) {
        if self.objects.contains_key(&key) {
            return;
        }
        let content = match &key {
            LeaseKey::Member(_) => LeaseContent::Member(MemberLease::vacant(MemberEpoch(u64::from(epoch)))),
            LeaseKey::Group(_) => LeaseContent::Group(GroupLease { holder: None, epoch: OwnerEpoch(epoch) }),
            LeaseKey::View => LeaseContent::View(View::default()),
        };
        self.put(key, content);
    }

    pub(crate) fn delete(&mut self, key: &LeaseKey) {
        if self.objects.remove(key).is_some() {
            let version = self.next_version();
            self.log.push(WatchEvent::Deleted(key.clone(), version));
        }
    }

    pub(crate) fn put(&mut self, key: LeaseKey, content: LeaseContent) -> ResourceVersion {
        let version = self.next_version();
        self.objects.insert(key.clone(), (version, content.clone()));
        self.log.push(WatchEvent::Changed(Observed { key, version, content }));
        version
    }

    pub(crate) fn next_version(&mut self) -> ResourceVersion {
        self.version += 1;
        ResourceVersion(self.version)
    }
}
