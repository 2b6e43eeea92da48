//! The world of a run: true time, the network, the processes, and the order in which things happen.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::LazyLock;
use std::time::Duration;

use tidemill_core::member::{MemberId, OwnerEpoch};
use tidemill_core::membership::Membership;
use tidemill_core::membership::config::{MembershipConfig, StatefulSetIdentity, ViewUse};
use tidemill_core::membership::lease::{LeaseKey, ListId, PodStatus, ProtocolRange, WriteId};
use tidemill_core::membership::timings::{Mode, Timings};
use tidemill_core::partition::PartitionGroup;
use tidemill_core::time::BootTime;

use super::api::Api;
use super::checker::Checker;
use super::happening::{Answer, ApiPath, Happening, Input};
use super::process::{Clock, Mutation, Process};
use super::random::Random;

/// Deadline of the shell for every call to the API.
pub(crate) const CALL_DEADLINE: Duration = Duration::from_secs(3);
/// A peer that was not heard for this long is not reachable.
pub(crate) const HEARD_WITHIN: Duration = Duration::from_millis(1_600);
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(500);

/// What all brokers of a run have in common at its start.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) members: usize,
    pub(crate) mode: Mode,
    pub(crate) view: ViewUse,
    pub(crate) identity: StatefulSetIdentity,
    pub(crate) timings: Timings,
    pub(crate) mutation: Option<Mutation>,
    /// Whether the network loses and delays now and then without being told to.
    pub(crate) is_noisy: bool,
}

impl Setup {
    pub(crate) fn new(members: usize, mode: Mode) -> Self {
        let timings = Timings { hold_limit: Duration::from_secs(20), ..Timings::for_members(members) };
        let view = ViewUse::Obeyed;
        Self {
            members,
            mode,
            view,
            identity: StatefulSetIdentity::Trusted,
            timings,
            mutation: None,
            is_noisy: false,
        }
    }
}

pub(crate) const GROUPS: u16 = 4;

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) at: Duration,
    pub(crate) random: Random,
    pub(crate) api: Api,
    pub(crate) processes: Vec<Process>,
    /// The newest process of each member.
    pub(crate) current: Vec<usize>,
    pub(crate) path: Vec<ApiPath>,
    pub(crate) watch_is_stuck: Vec<bool>,
    /// `links[a][b]`: what `a` sends reaches `b`.
    pub(crate) links: Vec<Vec<bool>>,
    pub(crate) checker: Checker,
    /// Owner epochs in the state of the groups: outlive the leases.
    pub(crate) stored_epochs: BTreeMap<PartitionGroup, OwnerEpoch>,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    next: u64,
    pub(crate) waiting_writes: BTreeSet<(usize, WriteId)>,
    pub(crate) waiting_lists: BTreeSet<(usize, ListId)>,
    pods: u64,
    trace: bool,
}

/// The names of members, made once.
static NAMES: LazyLock<[MemberId; 5]> = LazyLock::new(|| ["a", "b", "c", "d", "e"].map(MemberId::new));

pub(crate) fn member(slot: usize) -> MemberId {
    NAMES[slot].clone()
}

impl World {
    /// All objects exist as the operator makes them for a new cluster; no process runs yet.
    pub(crate) fn new(setup: Setup, seed: u64) -> Self {
        let count = setup.members;
        let mut api = Api::default();
        for slot in 0..count {
            api.create(LeaseKey::Member(member(slot)), 1);
        }
        for group in 0..GROUPS {
            api.create(LeaseKey::Group(PartitionGroup(group)), 1);
        }
        api.create(LeaseKey::View, 1);
        let mut world = Self {
            at: Duration::ZERO,
            random: Random::new(seed),
            api,
            processes: Vec::new(),
            current: vec![usize::MAX; count],
            path: vec![ApiPath::Works; count],
            watch_is_stuck: vec![false; count],
            links: vec![vec![true; count]; count],
            checker: Checker::default(),
            stored_epochs: BTreeMap::new(),
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            next: 0,
            waiting_writes: BTreeSet::new(),
            waiting_lists: BTreeSet::new(),
            pods: 0,
            trace: std::env::var_os("TIDEMILL_TRACE").is_some(),
            setup,
        };
        world.after(HEARTBEAT, Happening::Heartbeats);
        world
    }

    /// A world whose processes all run, serve, and own all groups; panics if that does not come about.
    pub(crate) fn running(setup: Setup, seed: u64) -> Self {
        let mut world = Self::new(setup, seed);
        for slot in 0..world.setup.members {
            world.start_new_pod(slot);
        }
        world.settle(Duration::from_secs(60)).expect("a cluster without faults starts");
        world
    }

    pub(crate) fn after(&mut self, delay: Duration, happening: Happening) {
        let id = self.next;
        self.next += 1;
        self.queue.push(Reverse((self.at + delay, id)));
        self.happenings.insert(id, happening);
    }

    /// Lets everything happen until `end`, or until the checker finds something.
    pub(crate) fn run_until(&mut self, end: Duration) {
        while let Some(Reverse((at, id))) = self.queue.peek().copied()
            && at <= end
        {
            self.queue.pop();
            self.at = self.at.max(at);
            let happening = self.happenings.remove(&id).unwrap();
            self.happen(happening);
            self.check();
            if self.checker.violation.is_some() {
                return;
            }
        }
        self.at = end;
    }

    pub(crate) fn run(&mut self, duration: Duration) {
        self.run_until(self.at + duration);
    }

    /// Runs until every member serves and every group is owned; how long that took.
    pub(crate) fn settle(&mut self, bound: Duration) -> Result<Duration, String> {
        let start = self.at;
        while !self.is_settled() {
            if self.at - start > bound {
                return Err(format!("not settled within {bound:?}: {}", self.describe()));
            }
            self.run(Duration::from_millis(100));
            if let Some(violation) = &self.checker.violation {
                return Err(violation.clone());
            }
        }
        Ok(self.at - start)
    }

    pub(crate) fn is_settled(&self) -> bool {
        let all_serve = self.current.iter().all(|process| {
            let process = &self.processes[*process];
            process.is_valid(self.at) && process.was_serving
        });
        all_serve && (0..GROUPS).all(|group| self.owner(PartitionGroup(group)).is_some())
    }

    /// Which member validly owns `group`.
    pub(crate) fn owner(&self, group: PartitionGroup) -> Option<usize> {
        let owns = |process: &&Process| process.is_valid(self.at) && process.owned.contains_key(&group);
        self.processes.iter().find(owns).map(|process| process.slot)
    }

    pub(crate) fn process(&self, slot: usize) -> &Process {
        &self.processes[self.current[slot]]
    }

    pub(crate) fn describe(&self) -> String {
        let mut text = format!("at {:?}\n", self.at);
        for (index, process) in self.processes.iter().enumerate() {
            text += &format!(
                "  process {index} of {}: alive {} paused {} valid {} serving {} own {:?} owned {:?} reaches {:?}\n",
                member(process.slot),
                process.is_alive,
                process.is_paused,
                process.is_valid(self.at),
                process.was_serving,
                process.own,
                process.owned,
                process.reachable,
            );
        }
        for object in self.api.list() {
            text += &format!("  {:?} {:?}\n", object.version, object.content);
        }
        text
    }

    /// Starts a process in a new pod.
    pub(crate) fn start_new_pod(&mut self, slot: usize) {
        self.pods += 1;
        let pod_uid = format!("uid{}", self.pods);
        self.start(slot, pod_uid);
    }

    /// Starts the next container in the pod of the process before.
    pub(crate) fn restart_container(&mut self, slot: usize) {
        let pod_uid = self.process(slot).pod_uid.clone();
        self.start(slot, pod_uid);
    }

    fn start(&mut self, slot: usize, pod_uid: String) {
        let index = self.processes.len();
        let ppm = i64::try_from(self.random.below(2_001)).unwrap() - 1_000;
        let clock = Clock { origin: self.random.below(1_000_000_000_000), ppm };
        let config = MembershipConfig {
            member: member(slot),
            pod_uid: pod_uid.clone(),
            endpoint: format!("{}:7883", member(slot)),
            protocol: ProtocolRange { min: 1, max: 1 },
            group_count: GROUPS,
            mode: self.setup.mode,
            timings: Some(self.setup.timings),
            view: self.setup.view,
            identity: self.setup.identity,
            seed: self.random.next(),
        };
        let membership = Membership::new(config, clock.local(self.at));
        self.processes.push(Process {
            slot,
            pod_uid: pod_uid.clone(),
            container_id: format!("container{index}"),
            clock,
            membership,
            is_alive: true,
            is_paused: false,
            backlog: Vec::new(),
            owned: BTreeMap::new(),
            valid_until: BootTime::ZERO,
            own: None,
            was_serving: false,
            has_left: false,
            watch_position: self.api.log.len(),
            timer: 0,
            timer_due: BootTime::MAX,
            idle_timeouts: 0,
            heard: BTreeMap::new(),
            reachable: BTreeSet::new(),
            undead: None,
            lists_asked: 0,
            joins: Vec::new(),
            starts: Vec::new(),
            ends: Vec::new(),
        });
        self.current[slot] = index;
        let seen = self.random.millis(200, 1_500);
        self.after(seen, Happening::Input(index, Input::ContainerSeen));
        let status = PodStatus {
            member: member(slot),
            pod_uid,
            version: self.api.next_version(),
            terminated: BTreeSet::new(),
        };
        self.report_pod(status);
        self.pump(index, None);
    }

    /// The watch of pods shows `status` to everybody who reaches the API.
    pub(crate) fn report_pod(&mut self, status: PodStatus) {
        for process in 0..self.processes.len() {
            if self.processes[process].is_alive && self.path[self.processes[process].slot] == ApiPath::Works {
                let delay = self.random.millis(10, 300);
                self.after(delay, Happening::Input(process, Input::PodSeen { status: status.clone() }));
            }
        }
    }

    fn happen(&mut self, happening: Happening) {
        if self.trace {
            eprintln!("{:?} {happening:?}", self.at);
        }
        match happening {
            Happening::Write { process, id, write, answer } => {
                self.write_arrives(process, id, &write, answer)
            }
            Happening::List { process, id, answer } => {
                let objects = Some(self.api.list());
                if let Answer::After(delay) = answer {
                    self.after(delay, Happening::Input(process, Input::ListAnswer { id, objects }));
                }
            }
            Happening::Heartbeats => self.heartbeats(),
            Happening::Act(action) => self.act(action),
            Happening::Input(process, input) => self.deliver(process, input),
        }
    }

    pub(crate) fn waits_for_write(&mut self, process: usize, id: WriteId) {
        self.waiting_writes.insert((process, id));
    }

    pub(crate) fn waits_for_list(&mut self, process: usize, id: ListId) {
        self.waiting_lists.insert((process, id));
    }

    fn check(&mut self) {
        let (at, processes, api) = (self.at, &self.processes, &self.api);
        self.checker.check(at, processes, api);
    }
}
