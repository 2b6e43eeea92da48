//! What the tests of leases run in: the objects of one cluster, pods without a kubelet, members whose owner keeps books.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::api::{Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use std::collections::BTreeMap;
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
use tidemill_core::membership::lease::{LeaseContent, MemberLease};
use tidemill_core::membership::timings::Timings;
use tidemill_core::partition::PartitionGroup;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub(crate) const CLUSTER: &str = "demo";
pub(crate) const GROUPS: u16 = 6;
/// Far beyond what anything here takes; a test that gets there has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn timings() -> Timings {
    Timings {
        renew: Duration::from_secs(1),
        stop_after: Duration::from_secs(4),
        duration: Duration::from_secs(6),
        hold_limit: Duration::from_secs(300),
    }
}

/// The leases of one cluster in a namespace of its own, as the operator makes them.
pub(crate) struct Leases {
    config: Config,
    namespace: String,
    pub(crate) api: Api<Lease>,
}

impl Leases {
    pub(crate) async fn create(members: &[&str]) -> Self {
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

    pub(crate) async fn get(&self, name: &str) -> Lease {
        self.api.get(name).await.unwrap()
    }

    /// Holder and epoch of a member lease.
    pub(crate) async fn member(&self, member: &str) -> (Option<String>, i32) {
        let spec = self.get(&names::member_lease(CLUSTER, member)).await.spec.unwrap();
        (spec.holder_identity.filter(|holder| !holder.is_empty()), spec.lease_transitions.unwrap())
    }

    /// Writes an object that nobody uses.
    pub(crate) async fn write(&self, name: &str, content: &LeaseContent) {
        let lease = replacement(&self.get(name).await, content);
        self.api.replace(name, &PostParams::default(), &lease).await.unwrap();
    }

    /// Expires a member as another one would, but without waiting.
    pub(crate) async fn expire(&self, member: &str) {
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
    pub(crate) fn start(&self, id: &str) -> Member {
        self.start_at(id, Place::DataDirectory { uid: format!("directory-of-{id}") }, timings())
    }

    pub(crate) fn start_at(&self, id: &str, place: Place, timings: Timings) -> Member {
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
pub(crate) struct Pods {
    api: Api<Pod>,
}

impl Pods {
    pub(crate) async fn create(leases: &Leases, names: &[&str]) -> Self {
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
                // Where a scheduler and a kubelet run, they would write a status of their own.
                "spec": {"schedulerName": "nobody", "containers": [{"name": "broker", "image": "none"}]},
            });
            let pod = serde_json::from_value(pod).unwrap();
            pods.api.create(&PostParams::default(), &pod).await.unwrap();
        }
        pods
    }

    pub(crate) async fn place(&self, name: &str) -> Place {
        Place::Pod { uid: self.api.get(name).await.unwrap().metadata.uid.unwrap() }
    }

    /// Writes what a kubelet would say of the broker's container.
    pub(crate) async fn report(&self, name: &str, container_id: &str, state: serde_json::Value) {
        let container = serde_json::json!({
            "name": "broker", "image": "none", "imageID": "", "ready": true, "restartCount": 0,
            "containerID": container_id, "state": state,
        });
        let status = serde_json::json!({"status": {"containerStatuses": [container]}});
        let parameters = PatchParams::default();
        self.api.patch_status(name, &parameters, &Patch::Merge(&status)).await.unwrap();
    }
}

pub(crate) type Owned = BTreeMap<PartitionGroup, OwnerEpoch>;

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
pub(crate) struct Member {
    pub(crate) id: MemberId,
    pub(crate) coordination: Arc<LeaseCoordination>,
    driver: JoinHandle<()>,
    owner: JoinHandle<()>,
    pub(crate) owned: watch::Sender<Owned>,
}

impl Member {
    pub(crate) fn owned(&self) -> Owned {
        self.owned.borrow().clone()
    }

    pub(crate) async fn owns(&self, count: usize) {
        let mut owned = self.owned.subscribe();
        let owns = timeout(PATIENCE, owned.wait_for(|owned| owned.len() == count)).await.is_ok();
        assert!(owns, "{} owns {:?} instead of {count} groups", self.id, self.owned());
    }

    pub(crate) async fn sees(&self, what: &str, is_so: impl Fn(&ClusterView) -> bool) -> Arc<ClusterView> {
        let mut view = self.coordination.view();
        match timeout(PATIENCE, view.wait_for(|view| is_so(view))).await {
            Ok(view) => view.unwrap().clone(),
            Err(_) => panic!("{} never sees that {what}", self.id),
        }
    }

    /// Dies without a word: nothing of it runs any more.
    pub(crate) async fn die(self) {
        self.driver.abort();
        self.owner.abort();
        let _ = self.driver.await;
    }
}
