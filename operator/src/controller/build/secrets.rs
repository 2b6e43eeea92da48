//! The cluster's certificate authority and the brokers' certificates.

use super::metadata;
use crate::controller::certificates::{ANNOTATION_AUTHORITY, ANNOTATION_EXPIRY, PeerIdentity};
use crate::controller::validate::ValidatedCluster;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use std::collections::BTreeMap;

pub(crate) fn build_secrets(cluster: &ValidatedCluster, identity: &PeerIdentity) -> Vec<Secret> {
    vec![build_authority_secret(cluster, identity), build_peer_secret(cluster, identity)]
}

/// `ca.crt` and `ca.key`. Only the operator reads it.
pub(crate) fn build_authority_secret(cluster: &ValidatedCluster, identity: &PeerIdentity) -> Secret {
    Secret {
        metadata: metadata(cluster, cluster.authority_secret()),
        data: Some(BTreeMap::from([
            ("ca.crt".to_owned(), bytes(&identity.authority.certificate)),
            ("ca.key".to_owned(), bytes(&identity.authority.key)),
        ])),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

/// `ca.crt`, and `<pod>.crt` and `<pod>.key` for every pod.
pub(crate) fn build_peer_secret(cluster: &ValidatedCluster, identity: &PeerIdentity) -> Secret {
    let mut files = BTreeMap::from([("ca.crt".to_owned(), bytes(&identity.authority.certificate))]);
    for (pod, peer) in &identity.peers {
        files.insert(format!("{pod}.crt"), bytes(&peer.credential.certificate));
        files.insert(format!("{pod}.key"), bytes(&peer.credential.key));
    }
    let expiry: BTreeMap<_, _> = identity.peers.iter().map(|(pod, peer)| (pod, peer.expires)).collect();
    let mut metadata = metadata(cluster, cluster.peer_secret());
    metadata.annotations = Some(BTreeMap::from([
        (ANNOTATION_AUTHORITY.to_owned(), identity.authority_hash()),
        (ANNOTATION_EXPIRY.to_owned(), serde_json::to_string(&expiry).expect("a map of text is JSON")),
    ]));
    Secret { metadata, data: Some(files), type_: Some("Opaque".to_owned()), ..Secret::default() }
}

/// `data`, not `stringData`: a server-side apply does not take keys of the latter away again.
fn bytes(text: &str) -> ByteString {
    ByteString(text.as_bytes().to_vec())
}
