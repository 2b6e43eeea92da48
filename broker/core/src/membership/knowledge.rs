//! What this broker has read of the leases, and the facts that follow from it for ever.

use std::collections::{BTreeMap, BTreeSet};

use super::lease::{
    GroupLease, LeaseContent, LeaseKey, MemberLease, NamedMember, Observed, PodStatus, ResourceVersion, View,
};
use crate::member::{Incarnation, Member, MemberEpoch, MemberId, OwnerEpoch};
use crate::partition::PartitionGroup;
use crate::time::BootTime;

/// Old values of an epoch that are remembered per member, with the time they were first seen.
const EPOCHS_REMEMBERED_MAX: usize = 8;
/// Views that are remembered beyond those that a lease names.
const VIEWS_REMEMBERED_MAX: usize = 8;

/// An object at the newest version that was seen.
#[derive(Debug, Clone)]
pub(super) struct Known<T> {
    pub(super) version: ResourceVersion,
    /// When this version was first seen: how long it has been unchanged is counted from here.
    pub(super) since: BootTime,
    pub(super) content: T,
}

impl Known<MemberLease> {
    /// Whether the lease was seen to change within the duration it names.
    pub(super) fn is_renewed(&self, now: BootTime) -> bool {
        now < self.since + self.content.timings.duration
    }
}

/// The newest version seen of an object, also of a deleted one.
#[derive(Debug, Clone, Copy)]
struct Seen {
    version: ResourceVersion,
    at: BootTime,
}

/// Everything read, by object.
#[derive(Debug, Default)]
pub(super) struct Knowledge {
    pub(super) members: BTreeMap<MemberId, Known<MemberLease>>,
    pub(super) groups: BTreeMap<PartitionGroup, Known<GroupLease>>,
    pub(super) view: Option<Known<View>>,
    /// Members of views by number: from the view object, kept while a lease names them.
    pub(super) views: BTreeMap<u64, BTreeMap<MemberId, NamedMember>>,
    pub(super) pods: BTreeMap<MemberId, PodStatus>,
    /// The last content of a member lease that had a holder; outlives the object.
    pub(super) last_held: BTreeMap<MemberId, MemberLease>,
    /// The holder of each member lease and the version at which it was first seen as such.
    holders: BTreeMap<MemberId, (Incarnation, ResourceVersion)>,
    /// Highest epochs that each member's lease is known to have had, with the time each was learnt; increasing.
    epochs: BTreeMap<MemberId, Vec<(MemberEpoch, BootTime)>>,
    owner_epochs: BTreeMap<PartitionGroup, OwnerEpoch>,
    /// Something that others than this module care for has changed; see [`Self::take_changed`].
    changed: bool,
    seen: BTreeMap<LeaseKey, Seen>,
}

impl Knowledge {
    /// Takes an object from the watch or from the answer to an own write, and tells whether it was news: older versions than
    /// the known one are not.
    pub(super) fn learn(&mut self, observed: Observed, now: BootTime) -> bool {
        let newest = self.seen.get(&observed.key).map(|seen| seen.version);
        let is_newer = newest.is_none_or(|version| version < observed.version);
        if is_newer {
            self.store(observed, now);
        }
        is_newer
    }

    /// The newest version seen of an object, also of a deleted one.
    pub(super) fn version(&self, key: &LeaseKey) -> Option<ResourceVersion> {
        self.seen.get(key).map(|seen| seen.version)
    }

    /// Takes a consistent list that was asked for at `started`: what was known before and is not in it is gone, and what
    /// is older in it than known before was put back by a restore of the store.
    pub(super) fn learn_all(&mut self, objects: Vec<Observed>, started: BootTime, now: BootTime) {
        let listed: BTreeSet<LeaseKey> = objects.iter().map(|object| object.key.clone()).collect();
        let gone: Vec<LeaseKey> = self
            .seen
            .iter()
            .filter(|(key, seen)| seen.at < started && !listed.contains(key))
            .map(|(key, _)| key.clone())
            .collect();
        for key in gone {
            self.remove(&key);
        }
        for object in objects {
            let newest = self.seen.get(&object.key).copied();
            let newer = newest.is_none_or(|seen| seen.version < object.version);
            let restored = newest.is_some_and(|seen| seen.version > object.version && seen.at < started);
            if newer || restored {
                self.store(object, now);
            }
        }
    }

    /// Takes a deletion from the watch.
    pub(super) fn forget(&mut self, key: &LeaseKey, version: ResourceVersion, now: BootTime) {
        if self.seen.get(key).is_none_or(|seen| seen.version <= version) {
            self.remove(key);
            self.seen.insert(key.clone(), Seen { version, at: now });
        }
    }

    /// Epoch `epoch` of `member` is over: its lease has had a higher one.
    pub(super) fn is_dead(&self, member: &MemberId, epoch: MemberEpoch) -> bool {
        self.epoch_max(member) > epoch
    }

    /// Since when at the latest the incarnation is known to be dead.
    pub(super) fn dead_since(&self, named: &NamedMember) -> Option<BootTime> {
        let epochs = self.epochs.get(&named.member.id)?;
        epochs.iter().find(|(epoch, _)| *epoch > named.epoch).map(|(_, at)| *at)
    }

    /// Highest epoch that the lease of `member` is known to have had.
    pub(super) fn epoch_max(&self, member: &MemberId) -> MemberEpoch {
        self.epochs.get(member).and_then(|epochs| epochs.last()).map(|(epoch, _)| *epoch).unwrap_or_default()
    }

    /// Highest owner epoch known of `group`.
    pub(super) fn owner_epoch_max(&self, group: PartitionGroup) -> OwnerEpoch {
        self.owner_epochs.get(&group).copied().unwrap_or_default()
    }

    /// Takes an owner epoch that is known from elsewhere.
    pub(super) fn raise_owner_epoch(&mut self, group: PartitionGroup, epoch: OwnerEpoch) {
        let known = self.owner_epochs.entry(group).or_default();
        *known = epoch.max(*known);
    }

    /// The incarnation of `member` with the highest epoch that the view or a group lease names.
    pub(super) fn named(&self, member: &MemberId) -> Option<&NamedMember> {
        let in_view = self.view.as_ref().and_then(|view| view.content.members.get(member));
        let owners = self.groups.values().filter_map(|known| known.content.holder.as_ref());
        in_view
            .into_iter()
            .chain(owners)
            .filter(|named| named.member.id == *member)
            .max_by_key(|named| named.epoch)
    }

    /// The last holder of the lease of `member`, and the version at which it was first seen as such.
    pub(super) fn holder_first_seen(&self, member: &MemberId) -> Option<(Incarnation, ResourceVersion)> {
        self.holders.get(member).copied()
    }

    /// Whether `member` is the newest known incarnation of its name and not known to be dead.
    pub(super) fn lives(&self, member: &Member) -> bool {
        self.last_held.get(&member.id).is_some_and(|lease| {
            lease.incarnation() == Some(member.incarnation) && !self.is_dead(&member.id, lease.epoch)
        })
    }

    /// The last holder of the lease of `member`.
    pub(super) fn last_incarnation(&self, member: &MemberId) -> Option<Incarnation> {
        self.holders.get(member).map(|(incarnation, _)| *incarnation)
    }

    /// Highest view number that the view object or any member lease names.
    pub(super) fn view_number_max(&self) -> u64 {
        let named = self.members.values().map(|known| known.content.view_number).max().unwrap_or(0);
        named.max(self.view.as_ref().map_or(0, |view| view.content.number))
    }

    /// Whether members or owners have changed since the last call, renewals aside.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    fn remove(&mut self, key: &LeaseKey) {
        self.changed = true;
        match key {
            LeaseKey::Member(member) => drop(self.members.remove(member)),
            LeaseKey::Group(group) => drop(self.groups.remove(group)),
            LeaseKey::View => self.view = None,
        }
    }

    fn store(&mut self, observed: Observed, now: BootTime) {
        let Observed { key, version, content } = observed;
        self.seen.insert(key.clone(), Seen { version, at: now });
        match (key, content) {
            (LeaseKey::Member(member), LeaseContent::Member(lease)) => {
                self.raise_epoch(&member, lease.epoch, now);
                if let Some(incarnation) = lease.incarnation() {
                    if self.holders.get(&member).is_none_or(|(known, _)| *known != incarnation) {
                        self.holders.insert(member.clone(), (incarnation, version));
                    }
                    self.last_held.insert(member.clone(), lease.clone());
                }
                self.changed |=
                    self.members.get(&member).is_none_or(|known| says_news(&known.content, &lease));
                self.members.insert(member, Known { version, since: now, content: lease });
            }
            (LeaseKey::Group(group), LeaseContent::Group(lease)) => {
                if let Some(holder) = &lease.holder {
                    self.raise_epoch(&holder.member.id, holder.epoch, now);
                }
                self.raise_owner_epoch(group, lease.epoch);
                self.changed = true;
                self.groups.insert(group, Known { version, since: now, content: lease });
            }
            (LeaseKey::View, LeaseContent::View(view)) => {
                self.store_view(Known { version, since: now, content: view })
            }
            // Content of another kind than its key is the caller's fault; the object counts as missing.
            (key, LeaseContent::Member(_) | LeaseContent::Group(_) | LeaseContent::View(_)) => {
                self.remove(&key)
            }
        }
    }

    fn store_view(&mut self, known: Known<View>) {
        let view = &known.content;
        let named: Vec<NamedMember> =
            view.members.values().chain(view.history.values().flat_map(BTreeMap::values)).cloned().collect();
        for (number, members) in &view.history {
            self.views.entry(*number).or_insert_with(|| members.clone());
        }
        if view.number > 0 {
            self.views.insert(view.number, view.members.clone());
        }
        for named in named {
            self.raise_epoch(&named.member.id, named.epoch, known.since);
        }
        self.view = Some(known);
        let in_use = self.view_numbers_in_use();
        let surplus = self.views.len().saturating_sub(VIEWS_REMEMBERED_MAX);
        let old: Vec<u64> =
            self.views.keys().filter(|number| !in_use.contains(number)).take(surplus).copied().collect();
        for number in old {
            self.views.remove(&number);
        }
    }

    fn view_numbers_in_use(&self) -> BTreeSet<u64> {
        self.members.values().map(|known| known.content.view_number).collect()
    }

    /// The views that the view object must go on to keep: all that a lease names, and the newest few, because a renewal
    /// that names one of them may be on its way.
    pub(super) fn view_history(&self) -> BTreeMap<u64, BTreeMap<MemberId, NamedMember>> {
        let in_use = self.view_numbers_in_use();
        let newest = self.views.len().saturating_sub(VIEWS_REMEMBERED_MAX);
        self.views
            .iter()
            .enumerate()
            .filter(|(index, (number, _))| *index >= newest || in_use.contains(number))
            .map(|(_, (number, members))| (*number, members.clone()))
            .collect()
    }

    fn raise_epoch(&mut self, member: &MemberId, epoch: MemberEpoch, now: BootTime) {
        let epochs = self.epochs.entry(member.clone()).or_default();
        if epochs.last().is_none_or(|(known, _)| *known < epoch) {
            epochs.push((epoch, now));
        }
        if epochs.len() > EPOCHS_REMEMBERED_MAX {
            // Forgetting an old value makes a death look later than it was, never earlier.
            epochs.remove(0);
        }
    }
}

/// Whether more than the renewal differs.
fn says_news(old: &MemberLease, new: &MemberLease) -> bool {
    old.holder != new.holder
        || (old.epoch, old.state, old.protocol, old.route_digest)
            != (new.epoch, new.state, new.protocol, new.route_digest)
        || old.endpoint != new.endpoint
        || old.reachable != new.reachable
}
