//! Handing inputs to a process, as its shell would.

use std::collections::BTreeSet;
use std::time::Duration;

use tidemill_core::member::{Member, MemberId, OwnerEpoch};
use tidemill_core::membership::lease::{LeaseWrite, WriteId, WriteResult};
use tidemill_core::membership::message::PeerMessage;
use tidemill_core::partition::PartitionGroup;
use tidemill_core::time::BootTime;

use super::happening::{Answer, ApiPath, Happening, Input};
use super::process::Mutation;
use super::world::{HEARD_WITHIN, HEARTBEAT, World, member};

impl World {
    /// What a process gets.
    pub(crate) fn deliver(&mut self, index: usize, input: Input) {
        let process = &mut self.processes[index];
        if !process.is_alive {
            return;
        }
        if process.is_paused {
            process.backlog.push(input);
            return;
        }
        let now = self.processes[index].now(self.at);
        let mut reply_to = None;
        match input {
            Input::Timer { generation } => {
                if generation != self.processes[index].timer {
                    return;
                }
                self.processes[index].timer_due = BootTime::MAX;
                let process = &mut self.processes[index];
                process.membership.handle_timeout(now);
                // What is due is done, or waits for something else than time.
                process.idle_timeouts =
                    if process.membership.poll_timeout() <= now { process.idle_timeouts + 1 } else { 0 };
                if process.idle_timeouts > 3 {
                    self.checker.violation = Some(format!("process {index} spins at {now:?}"));
                }
            }
            Input::WriteAnswer { id, result } => {
                if !self.waiting_writes.remove(&(index, id)) {
                    return;
                }
                self.processes[index].membership.handle_write_result(id, result, now);
            }
            Input::ListAnswer { id, objects } => {
                if !self.waiting_lists.remove(&(index, id)) {
                    return;
                }
                self.processes[index].membership.handle_list(id, objects, now);
            }
            Input::Watch { upto } => {
                if !self.watch_works(self.processes[index].slot) {
                    return;
                }
                self.deliver_watch(index, upto);
            }
            Input::Message { from, sender, message } => {
                reply_to = Some(from);
                self.take_message(index, from, &sender, &message);
            }
            Input::Ready { member } => {
                if self.processes[index].own.as_ref().is_some_and(|own| own.member == member) {
                    self.processes[index].membership.handle_ready_to_serve(now);
                }
            }
            Input::GroupStopped { group } => {
                let serves_on = self.setup.mutation == Some(Mutation::ServesAfterRelease);
                if !serves_on {
                    self.processes[index].owned.remove(&group);
                }
                self.processes[index].membership.handle_group_stopped(group, now);
            }
            Input::StateOpened { group, epoch } => self.open_state(index, group, epoch),
            Input::Closed => self.processes[index].membership.handle_closed(now),
            Input::PodSeen { status } => self.processes[index].membership.handle_pod_status(status, now),
            Input::ContainerSeen => {
                let container = self.processes[index].container_id.clone();
                self.processes[index].membership.handle_container(container, now);
            }
        }
        self.pump(index, reply_to);
    }

    /// The owner has opened the state, which knows the highest epoch that an owner ever had.
    fn open_state(&mut self, index: usize, group: PartitionGroup, epoch: OwnerEpoch) {
        let Some(owned) = self.processes[index].owned.get_mut(&group).filter(|owned| **owned == epoch) else {
            return;
        };
        let stored = self.stored_epochs.entry(group).or_default();
        let raised = epoch.max(OwnerEpoch(stored.0 + 1));
        *stored = raised;
        *owned = raised;
        if raised > epoch {
            let now = self.processes[index].now(self.at);
            self.processes[index].membership.handle_epoch_raised(group, raised, now);
        }
    }

    fn take_message(&mut self, index: usize, from: usize, sender: &Member, message: &PeerMessage) {
        let now = self.processes[index].now(self.at);
        if self.setup.mutation == Some(Mutation::ConsentsToEverything)
            && let (PeerMessage::ConsentAsk { victim, version, .. }, Some(own)) =
                (message, &self.processes[index].own)
        {
            let message = PeerMessage::Consent { victim: victim.clone(), version: *version };
            let sender = own.member.clone();
            self.after(
                Duration::from_millis(5),
                Happening::Input(from, Input::Message { from: index, sender, message }),
            );
            return;
        }
        self.processes[index].membership.handle_message(sender, message, now);
    }

    pub(crate) fn write_arrives(&mut self, process: usize, id: WriteId, write: &LeaseWrite, answer: Answer) {
        let result = self.api.replace(write);
        if matches!(result, WriteResult::Written(_)) {
            self.tell_watches();
        }
        if let Answer::After(delay) = answer {
            self.after(delay, Happening::Input(process, Input::WriteAnswer { id, result }));
        }
    }

    pub(crate) fn tell_watches(&mut self) {
        let upto = self.api.log.len();
        for process in 0..self.processes.len() {
            if self.processes[process].is_alive {
                let delay = self.random.millis(2, 80);
                self.after(delay, Happening::Input(process, Input::Watch { upto }));
            }
        }
    }

    pub(crate) fn watch_works(&self, slot: usize) -> bool {
        !self.watch_is_stuck[slot] && self.path[slot] == ApiPath::Works
    }

    fn deliver_watch(&mut self, index: usize, upto: usize) {
        while self.processes[index].watch_position < upto {
            let event = self.api.log[self.processes[index].watch_position].clone();
            self.processes[index].watch_position += 1;
            let now = self.processes[index].now(self.at);
            self.processes[index].membership.handle_watch(event, now);
            self.pump(index, None);
        }
    }

    pub(crate) fn heartbeats(&mut self) {
        self.after(HEARTBEAT, Happening::Heartbeats);
        let alive: Vec<usize> =
            (0..self.processes.len()).filter(|process| self.processes[*process].is_alive).collect();
        for &to in &alive {
            for &from in &alive {
                let (sender, receiver) = (self.processes[from].slot, self.processes[to].slot);
                if sender != receiver && self.links[sender][receiver] && !self.processes[from].is_paused {
                    self.processes[to].heard.insert(member(sender), self.at);
                }
            }
            let process = &mut self.processes[to];
            if process.is_paused {
                continue;
            }
            let fresh = |heard: &Duration| self.at - *heard < HEARD_WITHIN;
            let reachable: BTreeSet<MemberId> = process
                .heard
                .iter()
                .filter(|(_, heard)| fresh(heard))
                .map(|(member, _)| member.clone())
                .collect();
            if reachable != process.reachable {
                process.reachable = reachable.clone();
                let now = process.clock.local(self.at);
                process.membership.handle_reachable(reachable, now);
                self.pump(to, None);
            }
        }
    }
}
