//! One owner on one log, and what a test does with them.

use super::parts::{Around, DeadLetterTopic, Hosts, Routes, host};
use super::values::{message, options, request, subscription};
use bytes::Bytes;
use bytestring::ByteString;
use std::sync::Arc;
use std::time::Duration;
use tidemill_broker::cluster::{GroupCommand, Validity};
use tidemill_broker::log::memory::{MemoryLog, Offsets};
use tidemill_broker::log::state::{State, StateEntry};
use tidemill_broker::log::{AppendError, Log, Sequence};
use tidemill_broker::owner::OwnerSide;
use tidemill_broker::owner::metrics::OwnerMetrics;
use tidemill_broker::owner::parts::{OwnerParts, QueueRules};
use tidemill_broker::owner::service::OwnerService;
use tidemill_core::attach::{
    Acked, AttachGrant, AttachRequest, ConnectionEpoch, DeliveriesDone, Delivery, Detach, ExactlyOnceRequest,
    OwnerError, QueueId, SessionNumber, StoredSubscription, SubscribeRequest, SubscriptionReasons,
    UnsubscribeRequest, WillOutcome, WillOver,
};
use tidemill_core::member::OwnerEpoch;
use tidemill_core::message::Message;
use tidemill_core::packet::{PacketId, QoS};
use tidemill_core::partition::{Offset, Partition, PartitionGroup, Partitioning, QueueKind};
use tidemill_core::queue::index::BLOCK_OFFSETS;
use tidemill_core::record::{Origin, Record, RecordBody};
use tidemill_core::session::in_flight::{InFlight, Intent};
use tidemill_core::topic::SubscriptionTarget;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// Bound on everything a test waits for: it fails then, it never hangs.
const WAIT: Duration = Duration::from_secs(20);

/// One owner of all groups.
pub(crate) struct World {
    pub(crate) log: Arc<MemoryLog>,
    pub(crate) hosts: Arc<Hosts>,
    pub(crate) routes: Arc<Routes>,
    pub(crate) around: Arc<Around>,
    pub(crate) validity: Arc<Validity>,
    pub(crate) metrics: OwnerMetrics,
    pub(crate) dead: Arc<DeadLetterTopic>,
    rules: QueueRules,
    index_block: Offset,
    pub(crate) owner: Arc<OwnerService>,
    pub(crate) partitioning: Partitioning,
    commands: mpsc::Sender<GroupCommand>,
    task: JoinHandle<()>,
}

/// A client that is attached.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) id: ByteString,
    pub(crate) grant: AttachGrant,
}

impl World {
    /// Two partitions in one group, which is started.
    pub(crate) async fn new() -> Self {
        Self::with_offsets(Offsets::WithGaps).await
    }

    pub(crate) async fn with_offsets(offsets: Offsets) -> Self {
        Self::started(offsets, (QueueRules::default(), BLOCK_OFFSETS)).await
    }

    /// As [`Self::new`], with blocks of the index that small.
    pub(crate) async fn with_blocks_of(offsets: Offset) -> Self {
        Self::started(Offsets::WithGaps, (QueueRules::default(), offsets)).await
    }

    /// As [`Self::new`], with rules for the queues.
    pub(crate) async fn with_rules(rules: QueueRules) -> Self {
        Self::started(Offsets::WithGaps, (rules, BLOCK_OFFSETS)).await
    }

    async fn started(offsets: Offsets, rules: (QueueRules, Offset)) -> Self {
        let log = MemoryLog::new(Partitioning::new(2, 1).unwrap(), offsets);
        let world = Self::with_rules_on(Arc::new(log), Arc::default(), Arc::default(), rules);
        world.start(1).await;
        world
    }

    /// An owner that has started nothing yet.
    pub(crate) fn on(log: Arc<MemoryLog>, around: Arc<Around>, routes: Arc<Routes>) -> Self {
        Self::with_rules_on(log, around, routes, (QueueRules::default(), BLOCK_OFFSETS))
    }

    fn with_rules_on(
        log: Arc<MemoryLog>,
        around: Arc<Around>,
        routes: Arc<Routes>,
        (rules, index_block): (QueueRules, Offset),
    ) -> Self {
        let partitioning = Partitioning::new(2, 1).unwrap();
        let hosts = Arc::new(Hosts::default());
        hosts.closes.send_replace(true);
        let validity = Arc::new(Validity::always());
        let dead = Arc::new(DeadLetterTopic::default());
        let metrics = OwnerMetrics::register(&prometheus::Registry::new()).unwrap();
        let owner = OwnerService::new(OwnerParts {
            partitioning,
            trim_interval: around.trim_interval,
            subscriptions_max: 100,
            queues: rules.clone(),
            index_block_offsets: index_block,
            log: log.clone(),
            state: log.clone(),
            hosts: hosts.clone(),
            dead_letters: dead.clone(),
            route_exchange: routes.clone(),
            surroundings: around.clone(),
            validity: validity.clone(),
            metrics: metrics.clone(),
        });
        let (commands, commands_there) = mpsc::channel(4);
        let task = tokio::spawn(owner.clone().run(commands_there));
        Self {
            log,
            hosts,
            routes,
            around,
            validity,
            metrics,
            dead,
            rules,
            index_block,
            owner,
            partitioning,
            commands,
            task,
        }
    }

    pub(crate) async fn start(&self, epoch: u32) {
        let (group, epoch) = (PartitionGroup(0), OwnerEpoch(epoch));
        self.commands.send(GroupCommand::Start { group, epoch }).await.unwrap();
        // A stop that is answered proves that the start before it was taken; of a group that does not exist.
        let (stopped, is_stopped) = oneshot::channel();
        self.commands.send(GroupCommand::Stop { group: PartitionGroup(9), stopped }).await.unwrap();
        within(is_stopped).await.unwrap();
    }

    pub(crate) async fn stop(&self) {
        let (stopped, is_stopped) = oneshot::channel();
        self.commands.send(GroupCommand::Stop { group: PartitionGroup(0), stopped }).await.unwrap();
        within(is_stopped).await.unwrap();
    }

    /// The owner dies without a last word; another one starts on the same log. Routes belong to the partitions and stay.
    pub(crate) async fn crash(mut self, epoch: u32) -> Self {
        self.task.abort();
        assert!(within(&mut self.task).await.unwrap_err().is_cancelled());
        let log = Arc::new(self.log.another_broker());
        let (around, routes) = (self.around.clone(), self.routes.clone());
        let rules = (self.rules.clone(), self.index_block);
        let world = Self::with_rules_on(log, around, routes, rules);
        world.start(epoch).await;
        world
    }

    pub(crate) async fn attach(&self, request: AttachRequest) -> Result<Client, OwnerError> {
        let id = request.client_id.clone();
        within(self.owner.attach(request)).await.map(|grant| Client { id, grant })
    }

    /// An attach to be spawned.
    pub(crate) fn owner_attach(
        &self,
        request: AttachRequest,
    ) -> impl Future<Output = Result<AttachGrant, OwnerError>> + Send + 'static {
        self.owner.attach(request)
    }

    /// Ends the connection that a client has; the owner knows it afterwards.
    pub(crate) async fn detach(&self, client: &Client) {
        let attached = self.metrics.attached.get();
        self.report_detach(client);
        self.until(|| self.metrics.attached.get() < attached).await;
    }

    pub(crate) fn report(&self, detach: Detach) {
        self.owner.detach(detach);
    }

    pub(crate) fn owner_will_over(&self, over: WillOver) {
        self.owner.will_over(over);
    }

    pub(crate) fn report_detach(&self, client: &Client) {
        let (client_id, connection) = (client.id.clone(), client.grant.connection);
        self.report(Detach {
            client_id,
            connection,
            session_expiry_secs: None,
            in_flight: None,
            will: WillOutcome::Over,
        });
    }

    /// Ends a connection, whose host says what its session had in flight.
    pub(crate) fn report_in_flight(&self, client: &Client, in_flight: InFlight) {
        let (client_id, connection) = (client.id.clone(), client.grant.connection);
        let in_flight = Some(Box::new(in_flight));
        let (session_expiry_secs, will) = (None, WillOutcome::Over);
        self.report(Detach { client_id, connection, session_expiry_secs, in_flight, will });
    }

    pub(crate) async fn subscribe(
        &self,
        client: &Client,
        subscriptions: Vec<StoredSubscription>,
    ) -> Result<SubscriptionReasons, OwnerError> {
        let (client_id, connection) = (client.id.clone(), client.grant.connection);
        within(self.owner.subscribe(SubscribeRequest { client_id, connection, subscriptions })).await
    }

    pub(crate) async fn unsubscribe(
        &self,
        client: &Client,
        target: &str,
    ) -> Result<SubscriptionReasons, OwnerError> {
        let (client_id, connection) = (client.id.clone(), client.grant.connection);
        let targets = vec![SubscriptionTarget::parse(&target.into()).unwrap()];
        within(self.owner.unsubscribe(UnsubscribeRequest { client_id, connection, targets })).await
    }

    /// A persistent client with one subscription of QoS 1.
    pub(crate) async fn subscriber(&self, client_id: &str, filter: &str) -> Client {
        let client = self.attach(request(client_id)).await.unwrap();
        let granted = self.subscribe(&client, vec![subscription(filter, options(QoS::AtLeastOnce))]).await;
        assert!(!granted.unwrap()[0].is_failure());
        client
    }

    /// Publishes as the router does: to every partition with a route. Returns when it is committed.
    pub(crate) async fn publish(&self, message: Message) -> Vec<(Partition, Offset)> {
        let mut offsets = Vec::new();
        for partition in self.routes.partitions(&message.topic) {
            offsets.push((partition, self.try_append(partition, message.clone()).await.unwrap()));
        }
        offsets
    }

    /// Appends to one partition.
    pub(crate) async fn try_append(
        &self,
        partition: Partition,
        message: Message,
    ) -> Result<Offset, AppendError> {
        let (done, is_done) = oneshot::channel();
        let done = Box::new(move |result| drop(done.send(result)));
        self.log.append(partition, &mut |sequence| encode(&message, sequence), done);
        within(is_done).await.unwrap()
    }

    /// Appends to the partitions that `routes` name, and hears nothing of it.
    pub(crate) fn append_unanswered(&self, routes: &Routes, message: Message) {
        for partition in routes.partitions(&message.topic) {
            self.log.append(partition, &mut |sequence| encode(&message, sequence), Box::new(drop));
        }
    }

    pub(crate) async fn publish_text(&self, topic: &str, payload: &str) -> Vec<(Partition, Offset)> {
        self.publish(message(topic, payload)).await
    }

    pub(crate) fn queue(&self, client: &Client) -> QueueId {
        queue(&client.id, client.grant.session)
    }

    pub(crate) fn ack(&self, client: &Client, offsets: Vec<Offset>) {
        self.report_done(client, DeliveriesDone { finished: offsets, ..DeliveriesDone::default() });
    }

    /// Reports PUBRECs and PUBCOMPs.
    pub(crate) fn step(&self, client: &Client, received: Vec<Offset>, completed: Vec<PacketId>) {
        self.report_done(client, DeliveriesDone { received, completed, ..DeliveriesDone::default() });
    }

    pub(crate) fn report_done(&self, client: &Client, done: DeliveriesDone) {
        let queue = self.queue(client);
        let partition = self.partitioning.partition_of(QueueKind::Session, &client.id);
        self.owner.acked(Acked { queue, partition, connection: client.grant.connection, done });
    }

    pub(crate) async fn store_exactly_once(
        &self,
        client: &Client,
        intents: Vec<Intent>,
        releases: Vec<PacketId>,
    ) -> Result<(), OwnerError> {
        let (client_id, connection) = (client.id.clone(), client.grant.connection);
        within(self.owner.store_exactly_once(ExactlyOnceRequest { client_id, connection, intents, releases }))
            .await
    }

    /// Everything delivered to a connection once there are `count` deliveries.
    pub(crate) async fn deliveries(&self, client: &Client, count: usize) -> Vec<Delivery> {
        self.deliveries_to(&client.id, client.grant.connection, count).await
    }

    pub(crate) async fn deliveries_to(
        &self,
        id: &str,
        connection: ConnectionEpoch,
        count: usize,
    ) -> Vec<Delivery> {
        self.until(|| self.hosts.delivered_count(id, connection) >= count).await;
        self.hosts.delivered(id, connection)
    }

    /// Waits until `is_so`, looked at after everything that reaches a host and every few milliseconds.
    pub(crate) async fn until(&self, is_so: impl Fn() -> bool) {
        let mut arrived = self.hosts.arrived.subscribe();
        let mut look = tokio::time::interval(Duration::from_millis(5));
        let so = async {
            while !is_so() {
                tokio::select! {
                    changed = arrived.changed() => changed.unwrap(),
                    _ = look.tick() => {}
                }
            }
        };
        within(so).await;
    }

    /// Waits until everything reported before this call is stored: both commits come after it.
    pub(crate) async fn stored(&self) {
        for _ in 0..2 {
            let client = self.attach(request("witness")).await.unwrap();
            self.detach(&client).await;
        }
    }

    /// Where the log of a partition starts.
    pub(crate) async fn log_start(&self, partition: Partition) -> Offset {
        within(self.log.bounds(partition)).await.unwrap().start
    }

    /// The state as another broker finds it; fences this owner.
    pub(crate) async fn state(&self) -> Vec<StateEntry> {
        let opened = self.log.another_broker();
        let partitions = self.partitioning.partitions().collect();
        within(opened.open(PartitionGroup(0), partitions)).await.unwrap().entries
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) fn queue(client_id: &str, number: SessionNumber) -> QueueId {
    QueueId { kind: QueueKind::Session, name: client_id.into(), number }
}

fn encode(message: &Message, sequence: Sequence) -> Bytes {
    let mut record = record(message.clone());
    record.origin.producer = sequence.producer;
    record.origin.sequence = sequence.sequence;
    record.encode()
}

pub(crate) fn record(message: Message) -> Record {
    let origin = Origin { member: host(7), producer: 1, sequence: 0 };
    Record { body: RecordBody::Inline, retry: false, origin, unique_id: None, message }
}

pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(WAIT, future).await.expect("it happens in time")
}
