//! Membership and ownership by leases, against a real Kubernetes API: `TIDEMILL_E2E_KUBECONFIG` names it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::api::{Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tidemill_broker::cluster::lease::api::LeaseApi;
use tidemill_broker::cluster::lease::identity::Place;
use tidemill_broker::cluster::lease::object::{observe, replacement};
use tidemill_broker::cluster::lease::{LeaseConfig, LeaseCoordination};
use tidemill_broker::cluster::peer::random_u64;
use tidemill_broker::cluster::{ClusterView, Coordination, GroupCommand};
use tidemill_contract::names;
use tidemill_core::member::{MemberEpoch, MemberId, OwnerEpoch};
use tidemill_core::membership::lease::{GroupLease, LeaseContent, MemberLease};
use tidemill_core::membership::timings::Timings;
use tidemill_core::partition::PartitionGroup;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

const CLUSTER: &str = "demo";
const GROUPS: u16 = 6;
/// Far beyond what anything here takes; a test that gets there has failed.
const PATIENCE: Duration = Duration::from_secs(120);

fn timings() -> Timings {
    Timings {
        renew: Duration::from_secs(1),
        stop_after: Duration::from_secs(4),
        duration: Duration::from_secs(6),
        hold_limit: Duration::from_secs(300),
    }
}

/// The leases of one cluster in a namespace of its own, as the operator makes them.
struct Leases {
    config: Config,
    namespace: String,
    api: Api<Lease>,
}

impl Leases {
    async fn create(members: &[&str]) -> Self {
        // Fails only when another test of this process was first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let path =
            std::env::var("TIDEMILL_E2E_KUBECONFIG").expect("TIDEMILL_E2E_KUBECONFIG must name a kubeconfig");
        let kubeconfig = Kubeconfig::read_from(PathBuf::from(path)).unwrap();
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        let client = Client::try_from(config.clone()).unwrap();
        let namespace = format!("leases-{:016x}", random_u64());
        let mut object = Namespace::default();
        object.metadata.name = Some(namespace.clone());
        Api::all(client.clone()).create(&PostParams::default(), &object).await.unwrap();
        let api: Api<Lease> = Api::namespaced(client, &namespace);
        let members = members.iter().map(|member| names::member_lease(CLUSTER, member));
        let groups = (0..GROUPS).map(|group| names::group_lease(CLUSTER, group));
        for name in members.chain(groups) {
            let mut lease = Lease::default();
            lease.metadata.name = Some(name);
            lease.metadata.labels = Some([(names::LABEL_CLUSTER.to_owned(), CLUSTER.to_owned())].into());
            lease.metadata.annotations = Some([("of-others".to_owned(), "kept".to_owned())].into());
            api.create(&PostParams::default(), &lease).await.unwrap();
        }
        Self { config, namespace, api }
    }

    async fn get(&self, name: &str) -> Lease {
        self.api.get(name).await.unwrap()
    }

    /// Holder and epoch of a member lease.
    async fn member(&self, member: &str) -> (Option<String>, i32) {
        let spec = self.get(&names::member_lease(CLUSTER, member)).await.spec.unwrap();
        (spec.holder_identity.filter(|holder| !holder.is_empty()), spec.lease_transitions.unwrap())
    }

    /// Writes an object that nobody uses.
    async fn write(&self, name: &str, content: &LeaseContent) {
        let lease = replacement(&self.get(name).await, content);
        self.api.replace(name, &PostParams::default(), &lease).await.unwrap();
    }

    /// Expires a member as another one would, but without waiting.
    async fn expire(&self, member: &str) {
        let name = names::member_lease(CLUSTER, member);
        // A renewal may come between the reading and the writing.
        let expire = async {
            loop {
                let lease = self.get(&name).await;
                let observed = observe(CLUSTER, &lease).unwrap();
                let LeaseContent::Member(content) = observed.content else { panic!("no member lease") };
                let vacant = MemberLease::vacant(MemberEpoch(content.epoch.0 + 1));
                let expired = replacement(&lease, &LeaseContent::Member(vacant));
                match self.api.replace(&name, &PostParams::default(), &expired).await {
                    Ok(_) => return,
                    Err(kube::Error::Api(status)) if status.code == 409 => {}
                    Err(error) => panic!("{error}"),
                }
            }
        };
        timeout(PATIENCE, expire).await.expect("the lease is expired");
    }

    /// Starts a member that is ready at once.
    fn start(&self, id: &str) -> Member {
        self.start_at(id, Place::DataDirectory { uid: format!("directory-of-{id}") }, timings())
    }

    fn start_at(&self, id: &str, place: Place, timings: Timings) -> Member {
        let config = LeaseConfig {
            member: MemberId::new(id),
            place,
            endpoint: format!("{id}.example:7883"),
            group_count: GROUPS,
            timings: Some(timings),
            strict_identity: true,
        };
        let api = LeaseApi::with_config(CLUSTER, Some(&self.namespace), self.config.clone()).unwrap();
        let (coordination, driver) = LeaseCoordination::new(config, api);
        let driver = tokio::spawn(driver.run(CancellationToken::new()));
        let owned = watch::Sender::new(BTreeMap::new());
        let mut commands = coordination.take_group_commands().unwrap();
        let owner = tokio::spawn({
            let owned = owned.clone();
            async move {
                while let Some(command) = commands.recv().await {
                    keep_books(&owned, command);
                }
            }
        });
        coordination.ready_to_serve();
        Member { id: MemberId::new(id), coordination, driver, owner, owned }
    }
}

/// Pods as objects only: no kubelet runs them, and the test writes their status.
struct Pods {
    api: Api<Pod>,
}

impl Pods {
    async fn create(leases: &Leases, names: &[&str]) -> Self {
        let client = Client::try_from(leases.config.clone()).unwrap();
        let mut account = ServiceAccount::default();
        account.metadata.name = Some("default".into());
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &leases.namespace);
        match accounts.create(&PostParams::default(), &account).await {
            Ok(_) => {}
            // Where a controller manager runs it makes this account.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(error) => panic!("{error}"),
        }
        let pods = Self { api: Api::namespaced(client, &leases.namespace) };
        for name in names {
            let pod = serde_json::json!({
                "metadata": {"name": name, "labels": {names::LABEL_CLUSTER: CLUSTER}},
                "spec": {"containers": [{"name": "broker", "image": "none"}]},
            });
            let pod = serde_json::from_value(pod).unwrap();
            pods.api.create(&PostParams::default(), &pod).await.unwrap();
        }
        pods
    }

    async fn place(&self, name: &str) -> Place {
        Place::Pod { uid: self.api.get(name).await.unwrap().metadata.uid.unwrap() }
    }

    /// Writes what a kubelet would say of the broker's container.
    async fn report(&self, name: &str, container_id: &str, state: serde_json::Value) {
        let container = serde_json::json!({
            "name": "broker", "image": "none", "imageID": "", "ready": true, "restartCount": 0,
            "containerID": container_id, "state": state,
        });
        let status = serde_json::json!({"status": {"containerStatuses": [container]}});
        let parameters = PatchParams::default();
        self.api.patch_status(name, &parameters, &Patch::Merge(&status)).await.unwrap();
    }
}

type Owned = BTreeMap<PartitionGroup, OwnerEpoch>;

fn keep_books(owned: &watch::Sender<Owned>, command: GroupCommand) {
    match command {
        GroupCommand::Start { group, epoch } => owned.send_modify(|owned| {
            assert!(owned.insert(group, epoch).is_none(), "started twice");
        }),
        GroupCommand::Stop { group, stopped } => {
            owned.send_modify(|owned| {
                assert!(owned.remove(&group).is_some(), "stopped what was not started");
            });
            let _ = stopped.send(());
        }
    }
}

/// One member with an owner that only keeps the books.
struct Member {
    id: MemberId,
    coordination: Arc<LeaseCoordination>,
    driver: JoinHandle<()>,
    owner: JoinHandle<()>,
    owned: watch::Sender<Owned>,
}

impl Member {
    fn owned(&self) -> Owned {
        self.owned.borrow().clone()
    }

    async fn owns(&self, count: usize) {
        let mut owned = self.owned.subscribe();
        let owns = timeout(PATIENCE, owned.wait_for(|owned| owned.len() == count)).await.is_ok();
        assert!(owns, "{} owns {:?} instead of {count} groups", self.id, self.owned());
    }

    async fn sees(&self, what: &str, is_so: impl Fn(&ClusterView) -> bool) -> Arc<ClusterView> {
        let mut view = self.coordination.view();
        match timeout(PATIENCE, view.wait_for(|view| is_so(view))).await {
            Ok(view) => view.unwrap().clone(),
            Err(_) => panic!("{} never sees that {what}", self.id),
        }
    }

    /// Dies without a word: nothing of it runs any more.
    async fn die(self) {
        self.driver.abort();
        self.owner.abort();
        let _ = self.driver.await;
    }
}

/// Groups and epochs of all members together; none may be owned twice.
fn all_owned(members: &[&Member]) -> Owned {
    let mut all = BTreeMap::new();
    for member in members {
        for (group, epoch) in member.owned() {
            assert!(all.insert(group, epoch).is_none(), "group {group:?} has two owners");
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn members_share_the_groups_and_those_of_a_dead_or_leaving_one_go_to_the_others() {
    let leases = Leases::create(&["a", "b", "c"]).await;
    let (a, b, c) = (leases.start("a"), leases.start("b"), leases.start("c"));

    for member in [&a, &b, &c] {
        member.owns(2).await;
        assert!(member.coordination.validity().is_valid());
    }
    let view = a.sees("all are serving", |view| {
        view.members.len() == 3 && view.members.values().all(|info| info.serving)
    });
    assert_eq!(view.await.members[&b.id].endpoint, "b.example:7883");
    let before = all_owned(&[&a, &b, &c]);
    assert_eq!(before.len(), usize::from(GROUPS));
    let lease = leases.get("demo.member.a").await;
    assert_eq!(lease.metadata.annotations.unwrap()["of-others"], "kept");
    assert_eq!(lease.metadata.labels.unwrap()[names::LABEL_CLUSTER], CLUSTER);

    let groups_of_c: BTreeSet<_> = c.owned().into_keys().collect();
    let (_, epoch_of_c) = leases.member("c").await;
    c.die().await;
    a.owns(3).await;
    b.owns(3).await;
    let (holder, epoch) = leases.member("c").await;
    assert_eq!((holder, epoch), (None, epoch_of_c + 1), "the expiry was written");
    let after_death = all_owned(&[&a, &b]);
    for (group, epoch) in &after_death {
        if groups_of_c.contains(group) {
            assert!(epoch > &before[group], "{group:?} changed its owner");
        }
    }

    let groups_of_b: BTreeSet<_> = b.owned().into_keys().collect();
    let (_, epoch_of_b) = leases.member("b").await;
    b.coordination.leave().await;
    let (holder, epoch) = leases.member("b").await;
    assert_eq!(holder, None, "the lease was released");
    assert!(epoch >= epoch_of_b);
    assert!(!b.coordination.validity().is_valid());
    assert!(b.owned().is_empty());
    a.owns(6).await;
    let after_leave = a.owned();
    assert!(groups_of_b.iter().all(|group| after_leave[group] > after_death[group]));
    a.sees("it is alone", |view| view.members.len() == 1).await;
    a.coordination.leave().await;
    b.die().await;
    a.die().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_others_expired_ends_and_a_new_start_joins_with_a_higher_epoch() {
    let leases = Leases::create(&["a"]).await;
    let a = leases.start("a");
    a.owns(usize::from(GROUPS)).await;
    let before = a.sees("it has joined", |view| view.own_epoch.0 > 0).await;
    let epochs = a.owned();

    leases.expire("a").await;

    let reason = timeout(PATIENCE, a.coordination.ended()).await.expect("it ends");
    assert!(reason.contains("Expired"), "{reason}");
    assert!(!a.coordination.validity().is_valid());
    a.die().await;

    let again = leases.start("a");
    again.owns(usize::from(GROUPS)).await;
    let after = again.sees("it has joined", |view| view.own_epoch.0 > 0).await;
    assert!(after.own_epoch > before.own_epoch);
    assert_ne!(after.own.incarnation, before.own.incarnation);
    assert!(again.owned().iter().all(|(group, epoch)| epoch > &epochs[group]));
    again.coordination.leave().await;
    again.die().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminated_container_proves_the_death_of_its_member_without_any_wait() {
    let leases = Leases::create(&["a", "c"]).await;
    // Objects that were used before, so that nobody waits to see whether they are new.
    for group in 0..GROUPS {
        let released = GroupLease { holder: None, epoch: OwnerEpoch(1) };
        leases.write(&names::group_lease(CLUSTER, group), &LeaseContent::Group(released)).await;
    }
    for member in ["a", "c"] {
        let vacant = MemberLease::vacant(MemberEpoch(1));
        leases.write(&names::member_lease(CLUSTER, member), &LeaseContent::Member(vacant)).await;
    }
    let pods = Pods::create(&leases, &["a", "c"]).await;
    let started = k8s_openapi::jiff::Timestamp::now();
    pods.report("c", "containerd://1", serde_json::json!({"running": {"startedAt": started}})).await;
    // Without a proof nothing of this would end in time.
    let timings = Timings { duration: Duration::from_secs(3_600), ..timings() };
    let a = leases.start_at("a", pods.place("a").await, timings);
    let c = leases.start_at("c", pods.place("c").await, timings);
    a.owns(3).await;
    c.owns(3).await;
    let known = async {
        let container = |lease: Lease| lease.metadata.annotations.unwrap()["tidemill.dev/container"].clone();
        while container(leases.get("demo.member.c").await) != "containerd://1" {}
    };
    timeout(PATIENCE, known).await.expect("the lease names the container");

    c.die().await;
    let ended = serde_json::json!({
        "running": null, "terminated": {"exitCode": 137, "containerID": "containerd://1"},
    });
    pods.report("c", "containerd://1", ended).await;

    a.owns(6).await;
    assert_eq!(leases.member("c").await.0, None, "the expiry was written");
    a.coordination.leave().await;
    a.die().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_its_owner_lost_is_given_back_and_claimed_anew() {
    let leases = Leases::create(&["a"]).await;
    let a = leases.start("a");
    a.owns(usize::from(GROUPS)).await;
    let before = a.owned();

    a.owned.send_modify(|owned| {
        owned.remove(&PartitionGroup(2));
    });
    a.coordination.group_lost(PartitionGroup(2));

    a.owns(usize::from(GROUPS)).await;
    assert!(a.owned()[&PartitionGroup(2)] > before[&PartitionGroup(2)]);
    a.coordination.leave().await;
    a.die().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_that_the_owner_raised_is_written_into_the_lease() {
    let leases = Leases::create(&["a"]).await;
    let a = leases.start("a");
    a.owns(usize::from(GROUPS)).await;

    a.coordination.raise_epoch(PartitionGroup(3), OwnerEpoch(1_000));

    a.sees("the epoch is raised", |view| {
        view.owners[3].as_ref().is_some_and(|owner| owner.epoch == OwnerEpoch(1_000))
    })
    .await;
    let written =
        async { while leases.get("demo.pg.3").await.spec.unwrap().lease_transitions != Some(1_000) {} };
    timeout(PATIENCE, written).await.expect("the lease carries the epoch");
    a.coordination.leave().await;
    a.die().await;
}
