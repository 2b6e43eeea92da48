//! What must hold at every moment.

use std::collections::BTreeMap;
use std::time::Duration;

use tidemill_core::member::{MemberEpoch, MemberId};
use tidemill_core::membership::lease::{LeaseContent, WatchEvent};

use super::api::Api;
use super::process::Process;
use super::world::{GROUPS, member};

#[derive(Debug, Default)]
pub(crate) struct Checker {
    pub(crate) violation: Option<String>,
    /// Highest epoch that a member lease ever had: an incarnation with a lower one is dead.
    epochs: BTreeMap<MemberId, MemberEpoch>,
    log_read: usize,
    /// Members that were expired on a word that may be wrong; they are not judged by it.
    pub(crate) excused: Vec<MemberId>,
}

impl Checker {
    pub(crate) fn check(&mut self, at: Duration, processes: &[Process], api: &Api) {
        self.read_log(api);
        let mut owners = [None; GROUPS as usize];
        let mut valid = 0u32;
        for process in processes.iter().filter(|process| process.is_valid(at)) {
            let name = member(process.slot);
            if self.excused.contains(&name) {
                continue;
            }
            for group in process.owned.keys() {
                if let Some(other) = owners[usize::from(group.0)].replace(process.slot) {
                    self.violation = Some(format!("{at:?}: {} and {name} own {group:?}", member(other)));
                }
            }
            if valid & (1 << process.slot) != 0 {
                self.violation = Some(format!("{at:?}: two incarnations of {name} are valid"));
            }
            valid |= 1 << process.slot;
            let epoch =
                process.undead.as_ref().or(process.own.as_ref()).map(|own| own.epoch).unwrap_or_default();
            if self.epochs.get(&name).is_some_and(|highest| *highest > epoch) {
                self.violation = Some(format!("{at:?}: {name} is valid under {epoch:?} but was expired"));
            }
        }
    }

    fn read_log(&mut self, api: &Api) {
        while let Some(event) = api.log.get(self.log_read) {
            self.log_read += 1;
            if let WatchEvent::Changed(observed) = event
                && let (tidemill_core::membership::lease::LeaseKey::Member(name), LeaseContent::Member(lease)) =
                    (&observed.key, &observed.content)
            {
                let highest = self.epochs.entry(name.clone()).or_default();
                *highest = lease.epoch.max(*highest);
            }
        }
    }
}
