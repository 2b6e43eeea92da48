//! What holds and what does not, in words for the user. Pure.

use super::Replicas;
use crate::controller::dereference::Observed;
use crate::controller::membership::Membership;
use crate::controller::plan::{Operation, Plan};
use crate::controller::topics::KafkaObservation;
use crate::controller::validate::{Store, ValidatedCluster};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use tidemill_crds::{Kafka, MqttClusterStatus, TopicManagement, condition};

/// Kafka keeps one copy and does not flush it for each record.
pub(crate) const NOT_POWER_LOSS_DURABLE: &str =
    "replicationFactor 1 is not power-loss durable: Kafka acknowledges before the disk has it";
/// Brokers that are not ready this long after a change are not on their way any more.
const START_TIMEOUT: SignedDuration = SignedDuration::from_mins(10);
const PAUSED: &str = "spec.paused is set: nothing is changed";
const MESSAGE_LENGTH_MAX: usize = 1_024;

/// Status of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It holds.
    True,
    /// It does not.
    False,
    /// Nobody can tell at the moment.
    Unknown,
}

impl Verdict {
    /// As Kubernetes writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }

    fn of(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// One condition before it is compared with the former one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which condition.
    pub type_: &'static str,
    /// Whether it holds.
    pub verdict: Verdict,
    /// One word for machines.
    pub reason: &'static str,
    /// A sentence for people, at most 1,024 bytes.
    pub message: String,
}

impl Finding {
    /// Makes a finding; a message that is too long for a status is cut.
    #[must_use]
    pub fn new(type_: &'static str, verdict: Verdict, reason: &'static str, message: &str) -> Self {
        let mut end = message.len().min(MESSAGE_LENGTH_MAX);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        Self { type_, verdict, reason, message: message[..end].to_owned() }
    }

    fn holds(&self) -> bool {
        self.verdict == Verdict::True
    }
}

/// What conditions are judged by.
pub(crate) struct Sight<'a> {
    pub(crate) cluster: &'a ValidatedCluster,
    pub(crate) plan: &'a Plan,
    pub(crate) observed: &'a Observed,
    pub(crate) membership: &'a Membership,
    pub(crate) replicas: Replicas,
    /// A change is recent enough for brokers to be still on their way.
    pub(crate) starting: bool,
}

/// Whether brokers that are not ready are still on their way: something was being changed when the cluster was last
/// looked at, and that began less than ten minutes ago.
pub(crate) fn is_starting(old: Option<&MqttClusterStatus>, now: Timestamp) -> bool {
    let progressing =
        old.and_then(|old| old.conditions.iter().find(|one| one.type_ == condition::PROGRESSING));
    match progressing {
        None => true,
        Some(progressing) => {
            let since = progressing.last_transition_time.0;
            progressing.status == Verdict::True.as_str() && now.duration_since(since) < START_TIMEOUT
        }
    }
}

/// All conditions of a cluster.
pub(crate) fn findings(sight: &Sight<'_>) -> Vec<Finding> {
    let cluster = sight.cluster;
    let mut findings = Vec::new();
    if let (Store::Kafka { kafka, .. }, Some(seen)) = (&cluster.store, &sight.observed.kafka) {
        findings.push(kafka_ready(seen));
        findings.push(topics_ready(sight.plan, seen, kafka));
    }
    let membership = membership_healthy(cluster, sight.membership);
    let progressing = progressing(sight, &membership);
    let degraded = degraded(cluster, &progressing, &membership, &findings, sight.replicas);
    findings.push(ready(cluster, &progressing, &degraded, &membership, sight.replicas));
    findings.push(available(sight.replicas));
    findings.push(paused(cluster));
    findings.extend([progressing, membership, degraded]);
    findings
}

fn kafka_ready(seen: &KafkaObservation) -> Finding {
    match seen {
        KafkaObservation::Reached { .. } => {
            Finding::new(condition::KAFKA_READY, Verdict::True, "Reached", "Kafka answers")
        }
        KafkaObservation::Unreachable { reason } => {
            Finding::new(condition::KAFKA_READY, Verdict::False, "Unreachable", reason)
        }
    }
}

/// Reason of missing topics that the operator makes: they are there in the next pass, so nobody needs to care.
const CREATING: &str = "Creating";

fn topics_ready(plan: &Plan, seen: &KafkaObservation, kafka: &Kafka) -> Finding {
    let finding =
        |verdict, reason, message: &str| Finding::new(condition::TOPICS_READY, verdict, reason, message);
    if let KafkaObservation::Unreachable { .. } = seen {
        return finding(Verdict::Unknown, "KafkaUnreachable", "Kafka does not answer");
    }
    if !plan.topics.problems.is_empty() {
        return finding(Verdict::False, "Mismatch", &plan.topics.problems.join("; "));
    }
    if !plan.topics.missing.is_empty() {
        let names: Vec<_> = plan.topics.missing.iter().map(|topic| topic.name.as_str()).collect();
        return match kafka.topic_management {
            TopicManagement::Managed => {
                finding(Verdict::False, CREATING, &format!("being created: {}", names.join(", ")))
            }
            TopicManagement::Observe => {
                finding(Verdict::False, "Missing", &format!("missing: {}", names.join(", ")))
            }
        };
    }
    match kafka.replication_factor {
        1 => finding(Verdict::True, "SingleReplica", NOT_POWER_LOSS_DURABLE),
        _ => finding(Verdict::True, "AsSpecified", "all topics are as specified"),
    }
}

fn progressing(sight: &Sight<'_>, membership: &Finding) -> Finding {
    let Sight { cluster, plan, replicas, .. } = sight;
    if cluster.paused {
        return Finding::new(condition::PROGRESSING, Verdict::False, "Paused", PAUSED);
    }
    let finding =
        |reason, message: &str| Finding::new(condition::PROGRESSING, Verdict::True, reason, message);
    match plan.operation {
        Operation::Create => finding("Creating", "the brokers are started for the first time"),
        Operation::Expand => finding("Expanding", &format!("brokers are added up to {}", cluster.replicas)),
        Operation::Shrink => {
            let target = cluster.replicas;
            finding("Shrinking", &format!("brokers are taken away one by one down to {target}"))
        }
        Operation::Roll => finding("Rolling", "the brokers are restarted one by one with a new pod template"),
        Operation::Steady
            if !replicas.current || !replicas.settled || replicas.present != cluster.replicas =>
        {
            finding("Settling", "the brokers are not all as specified yet")
        }
        Operation::Steady if sight.starting && (replicas.ready < cluster.replicas || !membership.holds()) => {
            finding("Starting", "the brokers are starting")
        }
        Operation::Steady => {
            Finding::new(condition::PROGRESSING, Verdict::False, "Steady", "nothing is being changed")
        }
    }
}

fn membership_healthy(cluster: &ValidatedCluster, membership: &Membership) -> Finding {
    let finding = |verdict, reason, message: &str| {
        Finding::new(condition::MEMBERSHIP_HEALTHY, verdict, reason, message)
    };
    if !cluster.has_leases() {
        return finding(Verdict::True, "SingleBroker", "one broker owns everything");
    }
    let serving = |pod: &String| {
        membership.members.get(pod).and_then(|member| member.state.as_deref()) == Some("Serving")
    };
    let missing: Vec<_> = cluster.pods().into_iter().filter(|pod| !serving(pod)).collect();
    if !missing.is_empty() {
        return finding(Verdict::False, "NotServing", &format!("not serving: {}", missing.join(", ")));
    }
    let unowned = (0..cluster.group_count()).filter(|group| !membership.is_owned(*group)).count();
    if unowned > 0 {
        return finding(Verdict::False, "UnownedGroups", "some partition groups have no owner");
    }
    finding(Verdict::True, "AllServing", "every broker serves and every partition group has an owner")
}

/// Degraded is for what does not get better by waiting for a change that is under way.
fn degraded(
    cluster: &ValidatedCluster,
    progressing: &Finding,
    membership: &Finding,
    kafka: &[Finding],
    replicas: Replicas,
) -> Finding {
    let finding = |reason, message: &str| Finding::new(condition::DEGRADED, Verdict::True, reason, message);
    if let Some(problem) = kafka.iter().find(|finding| !finding.holds() && finding.reason != CREATING) {
        return finding(problem.reason, &problem.message);
    }
    if !progressing.holds() && replicas.ready < cluster.replicas {
        return finding(
            "BrokersNotReady",
            &format!("{} of {} brokers are ready", replicas.ready, cluster.replicas),
        );
    }
    if !progressing.holds() && !membership.holds() {
        return finding(membership.reason, &membership.message);
    }
    Finding::new(condition::DEGRADED, Verdict::False, "Healthy", "nothing needs attention")
}

fn ready(
    cluster: &ValidatedCluster,
    progressing: &Finding,
    degraded: &Finding,
    membership: &Finding,
    replicas: Replicas,
) -> Finding {
    let obstacle = [(degraded, true), (progressing, true), (membership, false)]
        .into_iter()
        .find(|(finding, obstructs)| finding.holds() == *obstructs)
        .map(|(finding, _)| finding);
    match obstacle {
        Some(obstacle) => Finding::new(condition::READY, Verdict::False, obstacle.reason, &obstacle.message),
        None => {
            let holds = replicas.ready == cluster.replicas;
            let message = format!("{} of {} brokers are ready", replicas.ready, cluster.replicas);
            let reason = if holds { "AllReady" } else { "BrokersNotReady" };
            Finding::new(condition::READY, Verdict::of(holds), reason, &message)
        }
    }
}

fn available(replicas: Replicas) -> Finding {
    if replicas.ready > 0 {
        Finding::new(condition::AVAILABLE, Verdict::True, "BrokerReady", "clients can connect")
    } else {
        Finding::new(condition::AVAILABLE, Verdict::False, "NoBrokerReady", "no broker is ready")
    }
}

fn paused(cluster: &ValidatedCluster) -> Finding {
    if cluster.paused {
        Finding::new(condition::PAUSED, Verdict::True, "Paused", PAUSED)
    } else {
        Finding::new(condition::PAUSED, Verdict::False, "NotPaused", "changes are applied")
    }
}
