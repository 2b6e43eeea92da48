//! Carrying out what a membership asks for.

use std::time::Duration;

use tidemill_core::member::MemberId;
use tidemill_core::membership::event::{MembershipEvent, StopUrgency};
use tidemill_core::membership::lease::{LeaseWrite, ListId, WriteId, WriteResult};
use tidemill_core::membership::message::PeerMessage;
use tidemill_core::time::BootTime;

use super::happening::{Answer, ApiPath, Happening, Input};
use super::process::Mutation;
use super::world::{CALL_DEADLINE, World};

impl World {
    /// Polls everything of a process after an input. A message to the sender of the input goes back on the same link.
    pub(crate) fn pump(&mut self, index: usize, reply_to: Option<usize>) {
        while let Some((id, write)) = self.processes[index].membership.poll_write() {
            self.send_write(index, id, write);
        }
        while let Some(id) = self.processes[index].membership.poll_list() {
            self.processes[index].lists_asked += 1;
            self.send_list(index, id);
        }
        while let Some((to, message)) = self.processes[index].membership.poll_message() {
            self.send_message(index, &to, message, reply_to);
        }
        while let Some(event) = self.processes[index].membership.poll_event() {
            self.take_event(index, event);
        }
        let process = &mut self.processes[index];
        if process.undead.is_none() {
            process.valid_until = process.membership.valid_until();
            process.own = process.membership.own();
        }
        let due = process.membership.poll_timeout();
        if due == process.timer_due {
            return;
        }
        process.timer += 1;
        process.timer_due = due;
        let generation = process.timer;
        if due < BootTime::MAX {
            let at = process.clock.truth(due).max(self.at);
            let late = Duration::from_micros(self.random.below(5_000));
            self.after(
                at.saturating_sub(self.at) + late,
                Happening::Input(index, Input::Timer { generation }),
            );
        }
    }

    fn send_write(&mut self, process: usize, id: WriteId, write: LeaseWrite) {
        self.waits_for_write(process, id);
        let no_answer = Happening::Input(process, Input::WriteAnswer { id, result: WriteResult::NoAnswer });
        self.after(CALL_DEADLINE, no_answer);
        let slot = self.processes[process].slot;
        let (way, answer) = match self.path[slot] {
            ApiPath::Works | ApiPath::ReadsLost => self.way_and_answer(),
            ApiPath::RequestsLost => {
                if self.random.percent(20) {
                    let refused =
                        Happening::Input(process, Input::WriteAnswer { id, result: WriteResult::Refused });
                    self.after(Duration::from_millis(5), refused);
                }
                return;
            }
            ApiPath::AnswersLost => (self.random.millis(1, 30), Answer::Lost),
            ApiPath::RequestsLate(delay) => (delay, Answer::After(Duration::from_millis(1))),
        };
        self.after(way, Happening::Write { process, id, write, answer });
    }

    fn send_list(&mut self, process: usize, id: ListId) {
        self.waits_for_list(process, id);
        self.after(CALL_DEADLINE, Happening::Input(process, Input::ListAnswer { id, objects: None }));
        if self.path[self.processes[process].slot] == ApiPath::Works {
            let (way, answer) = self.way_and_answer();
            self.after(way, Happening::List { process, id, answer });
        }
    }

    fn way_and_answer(&mut self) -> (Duration, Answer) {
        let noisy = self.setup.is_noisy;
        let way = if noisy && self.random.percent(2) {
            self.random.millis(100, 4_000)
        } else {
            self.random.millis(1, 25)
        };
        let back = if noisy && self.random.percent(2) {
            self.random.millis(100, 4_000)
        } else {
            self.random.millis(1, 25)
        };
        let lost = noisy && self.random.percent(1);
        (way, if lost { Answer::Lost } else { Answer::After(back) })
    }

    fn send_message(&mut self, from: usize, to: &MemberId, message: PeerMessage, reply_to: Option<usize>) {
        let Some(sender) = self.processes[from].membership.own().map(|own| own.member) else { return };
        let slot = self.processes[from].slot;
        let is_reply = reply_to.filter(|process| super::world::member(self.processes[*process].slot) == *to);
        let newest = (0..self.setup.members)
            .find(|slot| super::world::member(*slot) == *to)
            .map(|slot| self.current[slot])
            .filter(|process| *process != usize::MAX);
        let Some(target) = is_reply.or(newest) else { return };
        let target_slot = self.processes[target].slot;
        let noisy = self.setup.is_noisy;
        if !self.links[slot][target_slot] || (noisy && self.random.percent(1)) {
            return;
        }
        let delay = if noisy && self.random.percent(2) {
            self.random.millis(100, 3_000)
        } else {
            self.random.millis(1, 15)
        };
        self.after(delay, Happening::Input(target, Input::Message { from, sender, message }));
    }

    fn take_event(&mut self, index: usize, event: MembershipEvent) {
        match event {
            MembershipEvent::Joined { member, .. } => {
                self.processes[index].joins.push(member.clone());
                let delay = self.random.millis(20, 300);
                self.after(delay, Happening::Input(index, Input::Ready { member }));
            }
            MembershipEvent::Serving => self.processes[index].was_serving = true,
            MembershipEvent::StartGroup { group, epoch } => {
                self.processes[index].owned.insert(group, epoch);
                self.processes[index].starts.push((group, epoch));
                let delay = self.random.millis(5, 500);
                self.after(delay, Happening::Input(index, Input::StateOpened { group, epoch }));
            }
            MembershipEvent::StopGroup { group, urgency } => {
                if urgency == StopUrgency::Lost {
                    self.processes[index].owned.remove(&group);
                }
                let delay = self.random.millis(1, 400);
                self.after(delay, Happening::Input(index, Input::GroupStopped { group }));
            }
            MembershipEvent::MembersChanged => {}
            MembershipEvent::Invalid { reason } => {
                self.processes[index].ends.push(reason);
                self.close(index);
            }
            MembershipEvent::Left => {
                self.processes[index].owned.clear();
                self.processes[index].has_left = true;
            }
        }
    }

    fn close(&mut self, index: usize) {
        let process = &mut self.processes[index];
        process.was_serving = false;
        if self.setup.mutation == Some(Mutation::RenewsAfterItsEnd) {
            // It believes that it may go on as long as nobody tells it otherwise.
            process.undead = process.own.clone();
            process.valid_until = BootTime::MAX;
            return;
        }
        process.owned.clear();
        let delay = self.random.millis(1, 1_500);
        self.after(delay, Happening::Input(index, Input::Closed));
    }
}
