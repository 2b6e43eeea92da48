//! `coordination: kubernetes`: membership and ownership by leases in the Kubernetes API.
//!
//! [`LeaseCoordination`] is what the broker holds; [`LeaseDriver`] is the one task that talks to the API and runs the
//! pure protocol of `core::membership`. Only this module names kube.

pub mod api;
mod driver;
pub mod identity;
pub mod object;
pub mod pods;

use super::boot_time_nanos;
use super::node::MembershipSink;
use super::peer::random_u64;
use super::wire::{PROTOCOL_MAX, PROTOCOL_MIN};
use super::{ClusterView, Coordination, GroupCommand, Validity};
use api::LeaseApi;
pub use driver::LeaseDriver;
use futures::future::BoxFuture;
use identity::Place;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tidemill_contract::config::Membership as MembershipSettings;
use tidemill_core::member::{Incarnation, Member, MemberEpoch, MemberId, OwnerEpoch};
use tidemill_core::membership::Membership;
use tidemill_core::membership::config::{MembershipConfig, StatefulSetIdentity, ViewUse};
use tidemill_core::membership::lease::ProtocolRange;
use tidemill_core::membership::message::PeerMessage;
use tidemill_core::membership::timings::{HOLD_LIMIT_DEFAULT, Mode, Timings};
use tidemill_core::partition::PartitionGroup;
use tidemill_core::time::BootTime;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::timeout;

/// Messages of peers that wait for the driver; more are dropped, which is harmless.
const MESSAGES_MAX: usize = 1_024;
/// Longest wait for giving the lease back, so that a broker stops in a bounded time however long its lease is.
const LEAVE_WAIT: Duration = Duration::from_secs(15);

/// Why leases cannot be used. The broker refuses to start.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// There is no way to the API.
    #[error("no access to the Kubernetes API: {0}")]
    Access(String),
    /// The id of the data directory can be neither read nor written.
    #[error("cannot keep the member's identity in {path}: {error}")]
    Identity {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        error: std::io::Error,
    },
}

/// What a member brings along.
#[derive(Debug, Clone)]
pub struct LeaseConfig {
    /// Its name.
    pub member: MemberId,
    /// Where it runs.
    pub place: Place,
    /// `host:port` that peers dial.
    pub endpoint: String,
    /// Number of partition groups.
    pub group_count: u16,
    /// `None`: by the number of members.
    pub timings: Option<Timings>,
    /// A pod of the same name with another UID proves nothing. Without pods it never does.
    pub strict_identity: bool,
}

/// The timings that the config file asks for; `None` when it asks for nothing. What it leaves out is as up to 16 brokers
/// have it.
#[must_use]
pub fn timings_of(settings: &MembershipSettings) -> Option<Timings> {
    let asked = [settings.renew_interval_secs, settings.stop_after_secs, settings.lease_duration_secs];
    if asked.iter().all(Option::is_none) {
        return None;
    }
    let defaults = Timings::for_members(1);
    let or =
        |secs: Option<u16>, default: Duration| secs.map_or(default, |secs| Duration::from_secs(secs.into()));
    Some(Timings {
        renew: or(settings.renew_interval_secs, defaults.renew),
        stop_after: or(settings.stop_after_secs, defaults.stop_after),
        duration: or(settings.lease_duration_secs, defaults.duration),
        hold_limit: HOLD_LIMIT_DEFAULT,
    })
}

/// The longest wait of a durable gate: the lease's duration + 5 s.
#[must_use]
pub fn durable_gate(timings: Option<Timings>, member_count: usize) -> Duration {
    timings.unwrap_or_else(|| Timings::for_members(member_count)).duration + Duration::from_secs(5)
}

/// Sends a message of the lease protocol to a peer; drops it when there is no link.
pub type MessageSender = Arc<dyn Fn(&MemberId, &PeerMessage) + Send + Sync>;

/// What the broker wants of the driver. The newest wish counts; what was taken is gone.
#[derive(Debug, Default)]
struct Wishes {
    ready: bool,
    leave: bool,
    reachable: Option<BTreeSet<MemberId>>,
    raised: BTreeMap<PartitionGroup, OwnerEpoch>,
    lost: BTreeSet<PartitionGroup>,
    digest: Option<u128>,
}

struct Shared {
    view: watch::Sender<Arc<ClusterView>>,
    validity: Arc<Validity>,
    ended: watch::Sender<Option<String>>,
    left: watch::Sender<bool>,
    wishes: Mutex<Wishes>,
    wished: Notify,
    messages: mpsc::Sender<(Member, PeerMessage)>,
    sender: OnceLock<MessageSender>,
    leave_patience: Duration,
}

/// Membership and ownership by leases, as the broker sees them.
pub struct LeaseCoordination {
    shared: Arc<Shared>,
    commands: Mutex<Option<mpsc::Receiver<GroupCommand>>>,
}

impl LeaseCoordination {
    /// Builds both halves. Nothing is read or written before the driver runs.
    #[must_use]
    pub fn new(config: LeaseConfig, api: LeaseApi) -> (Arc<Self>, LeaseDriver) {
        let own = Member { id: config.member.clone(), incarnation: Incarnation(0) };
        let view = ClusterView {
            own,
            own_epoch: MemberEpoch(0),
            members: BTreeMap::new(),
            owners: vec![None; usize::from(config.group_count)],
        };
        let (messages, received) = mpsc::channel(MESSAGES_MAX);
        // A group has at most one command that the owner has not answered, and one start after it.
        let (commands, taken) = mpsc::channel(2 * usize::from(config.group_count) + 1);
        let timings = config.timings.unwrap_or_else(|| Timings::for_members(1));
        let shared = Arc::new(Shared {
            view: watch::Sender::new(Arc::new(view)),
            validity: Arc::new(Validity::never()),
            ended: watch::Sender::new(None),
            left: watch::Sender::new(false),
            wishes: Mutex::default(),
            wished: Notify::new(),
            messages,
            sender: OnceLock::new(),
            leave_patience: timings.duration.min(LEAVE_WAIT),
        });
        let membership = Membership::new(protocol_config(&config), BootTime(boot_time_nanos()));
        let driver = LeaseDriver::new(membership, config, api, Arc::clone(&shared), (received, commands));
        (Arc::new(Self { shared, commands: Mutex::new(Some(taken)) }), driver)
    }

    /// Gives the way to the peers, once; until then messages to them are dropped.
    pub fn set_message_sender(&self, sender: MessageSender) {
        let _ = self.shared.sender.set(sender);
    }
}

fn protocol_config(config: &LeaseConfig) -> MembershipConfig {
    MembershipConfig {
        member: config.member.clone(),
        pod_uid: config.place.uid().to_owned(),
        endpoint: config.endpoint.clone(),
        protocol: ProtocolRange { min: PROTOCOL_MIN, max: PROTOCOL_MAX },
        group_count: config.group_count,
        mode: Mode::Disconnect,
        timings: config.timings,
        view: ViewUse::Ignored,
        // Only a StatefulSet promises that there is one broker of a name.
        identity: match &config.place {
            Place::Pod { .. } if !config.strict_identity => StatefulSetIdentity::Trusted,
            Place::Pod { .. } | Place::DataDirectory { .. } => StatefulSetIdentity::Doubted,
        },
        seed: random_u64(),
    }
}

impl Shared {
    fn wish(&self, change: impl FnOnce(&mut Wishes)) {
        change(&mut self.wishes.lock());
        self.wished.notify_one();
    }
}

impl MembershipSink for LeaseCoordination {
    fn handle_message(&self, from: &Member, message: PeerMessage) {
        // Losing one is harmless: it is asked again in 500 ms.
        let _ = self.shared.messages.try_send((from.clone(), message));
    }
}

impl Coordination for LeaseCoordination {
    fn view(&self) -> watch::Receiver<Arc<ClusterView>> {
        self.shared.view.subscribe()
    }

    fn validity(&self) -> Arc<Validity> {
        Arc::clone(&self.shared.validity)
    }

    fn take_group_commands(&self) -> Option<mpsc::Receiver<GroupCommand>> {
        self.commands.lock().take()
    }

    fn raise_epoch(&self, group: PartitionGroup, epoch: OwnerEpoch) {
        self.shared.wish(|wishes| {
            wishes.raised.insert(group, epoch);
        });
    }

    fn group_lost(&self, group: PartitionGroup) {
        self.shared.wish(|wishes| {
            wishes.lost.insert(group);
        });
    }

    fn ready_to_serve(&self) {
        self.shared.wish(|wishes| wishes.ready = true);
    }

    fn set_reachable(&self, reachable: Vec<MemberId>) {
        self.shared.wish(|wishes| wishes.reachable = Some(reachable.into_iter().collect()));
    }

    fn set_route_digest(&self, digest: u128) {
        self.shared.wish(|wishes| wishes.digest = Some(digest));
    }

    fn ended(&self) -> BoxFuture<'static, String> {
        let mut ended = self.shared.ended.subscribe();
        Box::pin(async move {
            match ended.wait_for(Option::is_some).await {
                Ok(reason) => reason.clone().unwrap_or_default(),
                Err(_) => "the lease driver ended".to_owned(),
            }
        })
    }

    fn leave(&self) -> BoxFuture<'static, ()> {
        self.shared.wish(|wishes| wishes.leave = true);
        let mut left = self.shared.left.subscribe();
        let mut ended = self.shared.ended.subscribe();
        let patience = self.shared.leave_patience;
        Box::pin(async move {
            // After the lease's duration the others take everything anyway; a membership that has ended is left already.
            let gone = async {
                tokio::select! {
                    _ = left.wait_for(|left| *left) => {}
                    _ = ended.wait_for(Option::is_some) => {}
                }
            };
            let _ = timeout(patience, gone).await;
        })
    }
}
