//! What can go wrong, and schedules of it drawn by chance.

use std::time::Duration;

use tidemill_core::membership::config::{StatefulSetIdentity, ViewUse};
use tidemill_core::membership::lease::{LeaseContent, LeaseKey, MemberLease, PodStatus};
use tidemill_core::membership::timings::{Mode, Timings};
use tidemill_core::partition::PartitionGroup;

use super::happening::{ApiPath, Happening};
use super::random::Random;
use super::world::{GROUPS, Setup, World, member};

/// Whether the kubelet reports the end of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kubelet {
    Reports,
    Silent,
}

/// Something that is done to the world.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    Path(usize, ApiPath),
    WatchStuck(usize, bool),
    /// What the first sends to the second arrives, or does not.
    Link(usize, usize, bool),
    Pause(usize),
    Resume(usize),
    Crash(usize, Kubelet),
    RestartContainer(usize),
    StartNewPod(usize),
    /// The pod object is gone, a new pod starts, the old process runs on.
    ForceDelete(usize),
    Delete(LeaseKey),
    Create(LeaseKey),
    Settings(usize, Mode, Timings),
    DeclareDead(usize),
    Leave(usize),
}

impl World {
    pub(crate) fn act(&mut self, action: Action) {
        match action {
            Action::Path(slot, path) => {
                self.path[slot] = path;
                self.tell_watches();
            }
            Action::WatchStuck(slot, is_stuck) => {
                self.watch_is_stuck[slot] = is_stuck;
                self.tell_watches();
            }
            Action::Link(from, to, works) => self.links[from][to] = works,
            Action::Pause(slot) => {
                let current = self.current[slot];
                self.processes[current].is_paused = true;
            }
            Action::Resume(slot) => self.resume(slot),
            Action::Crash(slot, kubelet) => self.crash(slot, kubelet),
            Action::RestartContainer(slot) => {
                self.kill(slot);
                self.restart_container(slot);
            }
            Action::StartNewPod(slot) => {
                self.kill(slot);
                self.start_new_pod(slot);
            }
            Action::ForceDelete(slot) => self.start_new_pod(slot),
            Action::Delete(key) => {
                self.api.delete(&key);
                self.tell_watches();
            }
            Action::Create(key) => {
                self.api.create(key, 0);
                self.tell_watches();
            }
            Action::Settings(slot, mode, timings) => {
                let current = self.current[slot];
                if self.processes[current].is_alive && !self.processes[current].is_paused {
                    let now = self.processes[current].now(self.at);
                    self.processes[current].membership.handle_settings(mode, Some(timings), now);
                    self.pump(current, None);
                }
            }
            Action::DeclareDead(slot) => self.declare_dead(slot),
            Action::Leave(slot) => {
                let current = self.current[slot];
                if self.processes[current].is_alive && !self.processes[current].is_paused {
                    let now = self.processes[current].now(self.at);
                    self.processes[current].membership.handle_leave(now);
                    self.pump(current, None);
                }
            }
        }
    }

    fn resume(&mut self, slot: usize) {
        for index in 0..self.processes.len() {
            if self.processes[index].slot == slot && self.processes[index].is_paused {
                self.processes[index].is_paused = false;
                for input in std::mem::take(&mut self.processes[index].backlog) {
                    self.after(Duration::ZERO, Happening::Input(index, input));
                }
            }
        }
    }

    fn kill(&mut self, slot: usize) {
        for process in self.processes.iter_mut().filter(|process| process.slot == slot) {
            process.is_alive = false;
        }
    }

    fn crash(&mut self, slot: usize, kubelet: Kubelet) {
        let process = self.process(slot);
        let (pod_uid, container) = (process.pod_uid.clone(), process.container_id.clone());
        self.kill(slot);
        if kubelet == Kubelet::Reports {
            let version = self.api.next_version();
            self.report_pod(PodStatus {
                member: member(slot),
                pod_uid,
                version,
                terminated: [container].into(),
            });
        }
    }

    /// The operator records an administrator's word about the pod that the lease names.
    fn declare_dead(&mut self, slot: usize) {
        let key = LeaseKey::Member(member(slot));
        if let Some(LeaseContent::Member(lease)) = self.api.get(&key)
            && let Some(holder) = &lease.holder
        {
            let lease = MemberLease { declared_dead: Some(holder.pod_uid.clone()), ..lease.clone() };
            self.api.put(key, LeaseContent::Member(lease));
            self.tell_watches();
        }
    }

    /// Ends all faults: every way works, every object exists, every member has exactly one process, in its newest pod.
    pub(crate) fn heal(&mut self) {
        self.setup.is_noisy = false;
        for slot in 0..self.setup.members {
            self.act(Action::Path(slot, ApiPath::Works));
            self.act(Action::WatchStuck(slot, false));
            for other in 0..self.setup.members {
                self.links[slot][other] = true;
            }
            self.act(Action::Resume(slot));
            self.act(Action::Create(LeaseKey::Member(member(slot))));
            let current = self.current[slot];
            for index in 0..self.processes.len() {
                if self.processes[index].slot == slot && index != current {
                    self.processes[index].is_alive = false;
                }
            }
            if !self.processes[current].is_alive || self.processes[current].has_left {
                self.processes[current].is_alive = false;
                self.start_new_pod(slot);
            }
        }
        for group in 0..GROUPS {
            self.act(Action::Create(LeaseKey::Group(PartitionGroup(group))));
        }
        self.act(Action::Create(LeaseKey::View));
    }

    /// Draws a schedule of faults that begin within `span`.
    pub(crate) fn plan_faults(&mut self, span: Duration) {
        let members = self.setup.members;
        let count = 1 + self.random.below(6);
        for _ in 0..count {
            let start = self.random.millis(0, u64::try_from(span.as_millis()).unwrap());
            let end = start + self.random.millis(300, 25_000);
            let slot = self.random.index(members);
            self.plan_fault(slot, start, end);
        }
    }

    fn plan_fault(&mut self, slot: usize, start: Duration, end: Duration) {
        let members = self.setup.members;
        let begin = |world: &mut Self, action| world.after(start, Happening::Act(action));
        let kind = self.random.below(16);
        match kind {
            0 | 1 => {
                let path = random_path(&mut self.random);
                begin(self, Action::Path(slot, path));
                self.after(end, Happening::Act(Action::Path(slot, ApiPath::Works)));
            }
            2 => {
                let path = random_path(&mut self.random);
                for slot in 0..members {
                    begin(self, Action::Path(slot, path));
                    self.after(end, Happening::Act(Action::Path(slot, ApiPath::Works)));
                }
            }
            3 => {
                begin(self, Action::WatchStuck(slot, true));
                self.after(end, Happening::Act(Action::WatchStuck(slot, false)));
            }
            4 | 5 => self.plan_partition(start, end),
            6 => {
                let other = self.random.index(members);
                begin(self, Action::Link(slot, other, false));
                self.after(end, Happening::Act(Action::Link(slot, other, true)));
            }
            7 | 8 => {
                begin(self, Action::Pause(slot));
                self.after(end, Happening::Act(Action::Resume(slot)));
            }
            9 | 10 => {
                let kubelet = if self.random.percent(50) { Kubelet::Reports } else { Kubelet::Silent };
                begin(self, Action::Crash(slot, kubelet));
                let action = if self.random.percent(50) {
                    Action::RestartContainer(slot)
                } else {
                    Action::StartNewPod(slot)
                };
                self.after(end, Happening::Act(action));
            }
            11 if self.setup.identity == StatefulSetIdentity::Doubted => {
                begin(self, Action::ForceDelete(slot))
            }
            11 => begin(self, Action::Leave(slot)),
            12 | 13 => {
                let key = match self.random.below(4) {
                    0 => LeaseKey::Member(member(slot)),
                    1 => LeaseKey::View,
                    _ => LeaseKey::Group(PartitionGroup(u16::try_from(slot).unwrap() % GROUPS)),
                };
                begin(self, Action::Delete(key.clone()));
                let gone =
                    if self.random.percent(50) { Duration::ZERO } else { self.random.millis(10, 6_000) };
                self.after(start + gone, Happening::Act(Action::Create(key)));
            }
            _ => {
                let action = self.random_settings(slot);
                begin(self, action);
            }
        }
    }

    /// Two sides that cannot hear each other, or one that cannot hear the other.
    fn plan_partition(&mut self, start: Duration, end: Duration) {
        let members = self.setup.members;
        let side: Vec<bool> = (0..members).map(|_| self.random.percent(50)).collect();
        let one_way = self.random.percent(30);
        for from in 0..members {
            for to in 0..members {
                if side[from] != side[to] && (side[from] || !one_way) {
                    self.after(start, Happening::Act(Action::Link(from, to, false)));
                    self.after(end, Happening::Act(Action::Link(from, to, true)));
                }
            }
        }
    }

    fn random_settings(&mut self, slot: usize) -> Action {
        // Without a view nobody may hold.
        let mode = if self.setup.view == ViewUse::Obeyed && self.random.percent(50) {
            Mode::Hold
        } else {
            Mode::Disconnect
        };
        let members = if self.random.percent(50) { 3 } else { 20 };
        let timings = Timings { hold_limit: self.setup.timings.hold_limit, ..Timings::for_members(members) };
        Action::Settings(slot, mode, timings)
    }
}

fn random_path(random: &mut Random) -> ApiPath {
    match random.below(5) {
        0 | 1 => ApiPath::RequestsLost,
        2 => ApiPath::AnswersLost,
        3 => ApiPath::ReadsLost,
        _ => ApiPath::RequestsLate(random.millis(1_000, 14_000)),
    }
}

/// A setup drawn by chance.
pub(crate) fn random_setup(random: &mut Random) -> Setup {
    let mode = if random.percent(60) { Mode::Hold } else { Mode::Disconnect };
    let mut setup = Setup::new(3 + random.index(3), mode);
    if mode == Mode::Disconnect && random.percent(50) {
        setup.view = ViewUse::Ignored;
    }
    if random.percent(40) {
        setup.identity = StatefulSetIdentity::Doubted;
    }
    setup.is_noisy = random.percent(70);
    setup
}
