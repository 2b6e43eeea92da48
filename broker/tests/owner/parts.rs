//! Hosts, peers and surroundings, played by the test.

use bytestring::ByteString;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tidemill_broker::cluster::wire::{Body, Frame};
use tidemill_broker::cluster::{GateClosed, Route, RouteChange, RouteExchange};
use tidemill_broker::owner::parts::{RestoredWill, Surroundings};
use tidemill_broker::owner::{DeadLetterError, DeadLetters, HostSide};
use tidemill_core::attach::{ConnectionEpoch, Deliver, Delivery, Release};
use tidemill_core::member::{Incarnation, Member, MemberId, OwnerEpoch};
use tidemill_core::message::Message;
use tidemill_core::packet::PacketId;
use tidemill_core::partition::{Partition, PartitionGroup};
use tidemill_core::topic::{TopicFilter, TopicName};
use tokio::sync::watch;
use tokio::time::Instant;

/// A host by number.
pub(crate) fn host(number: u64) -> Member {
    Member { id: MemberId::new(&format!("host-{number}")), incarnation: Incarnation(number) }
}

/// Where dead letters go.
#[derive(Default)]
pub(crate) struct DeadLetterTopic {
    /// What was published, in its order.
    pub(crate) published: Mutex<Vec<Message>>,
    /// Refuses to publish while it is set.
    pub(crate) is_away: AtomicBool,
}

impl DeadLetters for DeadLetterTopic {
    fn publish(&self, message: Arc<Message>) -> BoxFuture<'static, Result<(), DeadLetterError>> {
        if self.is_away.load(Ordering::SeqCst) {
            return futures::future::ready(Err(DeadLetterError::Unavailable)).boxed();
        }
        self.published.lock().push(Message::clone(&message));
        futures::future::ready(Ok(())).boxed()
    }
}

/// All hosts: keeps what was delivered to each connection.
#[derive(Default)]
pub(crate) struct Hosts {
    delivered: Mutex<BTreeMap<(ByteString, ConnectionEpoch), Vec<Delivery>>>,
    taken_over: Mutex<Vec<(ByteString, ConnectionEpoch)>>,
    /// Packet ids whose PUBRECs are stored.
    released: Mutex<BTreeMap<(ByteString, ConnectionEpoch), Vec<PacketId>>>,
    /// Client id and number of messages of each frame, in the order they came.
    pub(crate) frames: Mutex<Vec<(ByteString, usize)>>,
    /// Bytes of the largest frame, as a link would carry it.
    frame_bytes: AtomicUsize,
    /// Old connections stay open while it is false.
    pub(crate) closes: watch::Sender<bool>,
    /// Counts everything that came.
    pub(crate) arrived: watch::Sender<u64>,
}

impl Hosts {
    pub(crate) fn delivered(&self, client_id: &str, connection: ConnectionEpoch) -> Vec<Delivery> {
        self.delivered.lock().get(&(client_id.into(), connection)).cloned().unwrap_or_default()
    }

    pub(crate) fn released(&self, client_id: &str, connection: ConnectionEpoch) -> Vec<PacketId> {
        self.released.lock().get(&(client_id.into(), connection)).cloned().unwrap_or_default()
    }

    pub(crate) fn delivered_count(&self, client_id: &str, connection: ConnectionEpoch) -> usize {
        self.delivered.lock().get(&(client_id.into(), connection)).map_or(0, Vec::len)
    }

    /// Bytes of the largest frame so far, as a link would carry it.
    pub(crate) fn largest_frame_bytes(&self) -> usize {
        self.frame_bytes.load(Ordering::SeqCst)
    }

    pub(crate) fn taken_over(&self) -> Vec<(ByteString, ConnectionEpoch)> {
        self.taken_over.lock().clone()
    }
}

impl HostSide for Hosts {
    fn deliver(&self, _host: &Member, deliver: Deliver) {
        self.frames.lock().push((deliver.queue.name.clone(), deliver.deliveries.len()));
        let body = Some(Body::Deliver((&deliver).into()));
        let frame = Frame { sender_epoch: u64::MAX, data_sequence: u64::MAX, body };
        self.frame_bytes.fetch_max(frame.to_wire().len(), Ordering::SeqCst);
        let key = (deliver.queue.name.clone(), deliver.connection);
        self.delivered.lock().entry(key).or_default().extend(deliver.deliveries);
        self.arrived.send_modify(|arrived| *arrived += 1);
    }

    fn release(&self, _host: &Member, release: Release) {
        let key = (release.queue.name, release.connection);
        self.released.lock().entry(key).or_default().extend(release.packet_ids);
        self.arrived.send_modify(|arrived| *arrived += 1);
    }

    fn take_over(
        &self,
        _host: &Member,
        client_id: &str,
        connection: ConnectionEpoch,
    ) -> BoxFuture<'static, ()> {
        self.taken_over.lock().push((client_id.into(), connection));
        self.arrived.send_modify(|arrived| *arrived += 1);
        let mut closes = self.closes.subscribe();
        async move {
            // An error means that the test is over.
            let _ = closes.wait_for(|closes| *closes).await;
        }
        .boxed()
    }
}

/// All routers.
#[derive(Default)]
pub(crate) struct Routes {
    announced: Mutex<BTreeSet<(Partition, TopicFilter)>>,
    epochs: Mutex<BTreeMap<Partition, OwnerEpoch>>,
    /// Gates stay closed.
    pub(crate) is_closed: AtomicBool,
    /// Gates do not answer.
    pub(crate) is_held: watch::Sender<bool>,
}

impl Routes {
    /// Partitions with a durable route that matches.
    pub(crate) fn partitions(&self, topic: &TopicName) -> BTreeSet<Partition> {
        let announced = self.announced.lock();
        announced
            .iter()
            .filter(|(_, filter)| filter.matches(topic))
            .map(|(partition, _)| *partition)
            .collect()
    }

    /// The epoch under which each partition was spoken for last.
    pub(crate) fn epochs(&self) -> Vec<OwnerEpoch> {
        self.epochs.lock().values().copied().collect()
    }

    /// All filters.
    pub(crate) fn filters(&self) -> Vec<String> {
        self.announced.lock().iter().map(|(_, filter)| filter.as_str().to_owned()).collect()
    }
}

impl RouteExchange for Routes {
    fn announce_live(&self, _changes: Vec<RouteChange>) -> BoxFuture<'static, ()> {
        futures::future::ready(()).boxed()
    }

    fn announce_durable(&self, changes: Vec<RouteChange>) -> BoxFuture<'static, Result<(), GateClosed>> {
        let mut announced = self.announced.lock();
        for change in changes {
            match change {
                RouteChange::Add(Route::Durable { partition, filter }) => {
                    announced.insert((partition, filter))
                }
                RouteChange::Remove(Route::Durable { partition, filter }) => {
                    announced.remove(&(partition, filter))
                }
                RouteChange::Add(Route::Live { .. }) | RouteChange::Remove(Route::Live { .. }) => {
                    panic!("owners announce durable routes only")
                }
            };
        }
        let is_closed = self.is_closed.load(Ordering::SeqCst);
        let closed = GateClosed { missing: vec![MemberId::new("stuck")] };
        let mut is_held = self.is_held.subscribe();
        async move {
            // An error means that the test is over.
            let _ = is_held.wait_for(|is_held| !*is_held).await;
            if is_closed { Err(closed) } else { Ok(()) }
        }
        .boxed()
    }

    fn durable_gate(&self) -> Duration {
        Duration::from_secs(14)
    }

    fn set_partition_routes(&self, partition: Partition, epoch: OwnerEpoch, filters: Vec<TopicFilter>) {
        self.epochs.lock().insert(partition, epoch);
        let mut announced = self.announced.lock();
        announced.retain(|(of, _)| *of != partition);
        announced.extend(filters.into_iter().map(|filter| (partition, filter)));
    }

    fn release_partition(&self, _partition: Partition) {}
}

/// Clock, members, and what the owner said.
pub(crate) struct Around {
    pub(crate) now_ms: AtomicU64,
    /// The clock goes on from there with the time of the runtime.
    pub(crate) since: Option<Instant>,
    pub(crate) trim_interval: Duration,
    pub(crate) awaited: Mutex<Vec<MemberId>>,
    pub(crate) dead: Mutex<Vec<Member>>,
    /// How often the owner asked who is dead: once at each look at its deadlines for each host.
    pub(crate) asked_dead: AtomicUsize,
    pub(crate) wills: Mutex<Vec<RestoredWill>>,
    pub(crate) raised: Mutex<Vec<(PartitionGroup, OwnerEpoch)>>,
    pub(crate) fenced: watch::Sender<Vec<PartitionGroup>>,
}

impl Default for Around {
    fn default() -> Self {
        Self {
            now_ms: AtomicU64::new(0),
            since: None,
            // Shorter than any wait of a test.
            trim_interval: Duration::from_millis(10),
            awaited: Mutex::default(),
            dead: Mutex::default(),
            asked_dead: AtomicUsize::new(0),
            wills: Mutex::default(),
            raised: Mutex::default(),
            fenced: watch::Sender::default(),
        }
    }
}

/// The one filter that no retained message matches.
pub(crate) const NOTHING_RETAINED: &str = "nothing/retained";

impl Surroundings for Around {
    fn now_ms(&self) -> u64 {
        let passed = self.since.map_or(0, |since| u64::try_from(since.elapsed().as_millis()).unwrap());
        self.now_ms.load(Ordering::SeqCst) + passed
    }

    fn awaited_members(&self) -> Vec<MemberId> {
        self.awaited.lock().clone()
    }

    fn is_dead(&self, host: &Member) -> bool {
        self.asked_dead.fetch_add(1, Ordering::SeqCst);
        self.dead.lock().contains(host)
    }

    fn raise_epoch(&self, group: PartitionGroup, epoch: OwnerEpoch) {
        self.raised.lock().push((group, epoch));
    }

    fn restore_will(&self, will: RestoredWill) {
        self.wills.lock().push(will);
    }

    fn may_get_retained(&self, filter: &TopicFilter) -> bool {
        filter.as_str() != NOTHING_RETAINED
    }

    fn fenced(&self, group: PartitionGroup) {
        self.fenced.send_modify(|fenced| fenced.push(group));
    }
}
