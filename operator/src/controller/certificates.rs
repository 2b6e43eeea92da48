//! Which peer certificates must be issued. Pure: keys are made elsewhere (`clients/authority`).

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_128;

/// Annotation of the peer Secret: when each certificate ends, JSON `{"pod": "2027-01-01T00:00:00Z"}`.
pub const ANNOTATION_EXPIRY: &str = "tidemill.dev/certificates-expire";
/// Annotation that names the authority a Secret or a pod goes with: a hash of its certificate.
pub const ANNOTATION_AUTHORITY: &str = "tidemill.dev/peer-authority";

/// A peer certificate lasts two years.
pub const PEER_VALIDITY: SignedDuration = SignedDuration::from_hours(2 * 365 * 24);
/// It is renewed when half of that is left, so a broker that started before has a year to be restarted.
const PEER_RENEWAL: SignedDuration = SignedDuration::from_hours(365 * 24);
/// The authority lasts ten years.
pub const AUTHORITY_VALIDITY: SignedDuration = SignedDuration::from_hours(10 * 365 * 24);

/// A certificate and its private key, PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Credential(..)")
    }
}

/// The certificate of one broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerCredential {
    /// What the broker shows, as client and as server.
    pub credential: Credential,
    /// When it ends.
    pub expires: Timestamp,
}

/// The authority of a cluster and everything it has signed that is still used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The authority.
    pub authority: Credential,
    /// Certificates by pod.
    pub peers: BTreeMap<String, PeerCredential>,
}

impl PeerIdentity {
    /// Names the authority in annotations.
    #[must_use]
    pub fn authority_hash(&self) -> String {
        authority_hash(&self.authority.certificate)
    }
}

/// What must be issued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificatePlan {
    /// The authority to keep; `None`: make one.
    pub authority: Option<Credential>,
    /// Certificates to keep.
    pub keep: BTreeMap<String, PeerCredential>,
    /// Pods that need a new one.
    pub issue: Vec<String>,
}

/// Plans for `pods` from the two Secrets as they are. A certificate is kept while it is from the present authority and
/// not yet due; those of other pods are dropped.
#[must_use]
pub fn plan_certificates(
    pods: &[String],
    authority_secret: Option<&Secret>,
    peer_secret: Option<&Secret>,
    now: Timestamp,
) -> CertificatePlan {
    let authority = authority_secret.and_then(|secret| credential(secret, "ca"));
    let mut keep = BTreeMap::new();
    if let (Some(authority), Some(secret)) = (&authority, peer_secret)
        && secret.annotations().get(ANNOTATION_AUTHORITY) == Some(&authority_hash(&authority.certificate))
    {
        let expiry = expiry(secret);
        for pod in pods {
            if let (Some(credential), Some(expires)) = (credential(secret, pod), expiry.get(pod))
                && expires.duration_since(now) > PEER_RENEWAL
            {
                keep.insert(pod.clone(), PeerCredential { credential, expires: *expires });
            }
        }
    }
    let issue = pods.iter().filter(|pod| !keep.contains_key(*pod)).cloned().collect();
    CertificatePlan { authority, keep, issue }
}

/// When each certificate of the peer Secret ends, as its annotation says.
#[must_use]
pub fn expiry(secret: &Secret) -> BTreeMap<String, Timestamp> {
    secret
        .annotations()
        .get(ANNOTATION_EXPIRY)
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}

fn credential(secret: &Secret, name: &str) -> Option<Credential> {
    let data = secret.data.as_ref()?;
    let text = |key: String| String::from_utf8(data.get(&key)?.0.clone()).ok();
    Some(Credential { certificate: text(format!("{name}.crt"))?, key: text(format!("{name}.key"))? })
}

/// Names an authority in annotations.
#[must_use]
pub fn authority_hash(certificate: &str) -> String {
    format!("{:032x}", xxh3_128(certificate.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::build::secrets::{build_authority_secret, build_peer_secret};
    use crate::controller::fixtures::{identity, kafka_cluster, now};
    use crate::controller::validate::validate;

    fn secrets(peers: &[&str]) -> (Secret, Secret) {
        let cluster = validate(&kafka_cluster()).unwrap();
        let identity = identity(peers);
        (build_authority_secret(&cluster, &identity), build_peer_secret(&cluster, &identity))
    }

    #[test]
    fn a_new_cluster_gets_an_authority_and_every_certificate() {
        let pods = ["demo-0".to_owned(), "demo-1".to_owned()];

        let plan = plan_certificates(&pods, None, None, now());

        assert_eq!(plan.authority, None);
        assert_eq!(plan.issue, pods);
    }

    #[test]
    fn scaling_out_issues_only_what_is_missing() {
        let (authority, peers) = secrets(&["demo-0", "demo-1"]);
        let pods: Vec<_> = (0..3).map(|ordinal| format!("demo-{ordinal}")).collect();

        let plan = plan_certificates(&pods, Some(&authority), Some(&peers), now());

        assert!(plan.authority.is_some());
        assert_eq!(plan.keep.len(), 2);
        assert_eq!(plan.issue, ["demo-2"]);
    }

    #[test]
    fn a_certificate_is_renewed_a_year_before_it_ends() {
        let (authority, peers) = secrets(&["demo-0"]);
        let (authority, peers) = (authority, peers);
        let pods = ["demo-0".to_owned()];
        let due = now() + PEER_VALIDITY - PEER_RENEWAL;
        let issued = |at| plan_certificates(&pods, Some(&authority), Some(&peers), at).issue;

        assert!(issued(due - SignedDuration::from_secs(1)).is_empty());
        assert_eq!(issued(due), pods);
    }

    #[test]
    fn another_authority_invalidates_every_certificate() {
        let (_, peers) = secrets(&["demo-0"]);
        let cluster = validate(&kafka_cluster()).unwrap();
        let mut other = identity(&[]);
        other.authority.certificate = "another".to_owned();
        let authority = build_authority_secret(&cluster, &other);

        let plan = plan_certificates(&["demo-0".to_owned()], Some(&authority), Some(&peers), now());

        assert_eq!(plan.issue, ["demo-0"]);
    }
}
