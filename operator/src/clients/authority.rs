//! Makes keys and signs certificates. This is the only place with randomness.

use crate::controller::certificates::{
    AUTHORITY_VALIDITY, CertificatePlan, Credential, PEER_VALIDITY, PeerCredential, PeerIdentity,
};
use k8s_openapi::jiff::{SignedDuration, Timestamp, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// Clocks of nodes may be behind the operator's.
const BACKDATED: SignedDuration = SignedDuration::from_hours(24);

/// A certificate could not be made, because a key in the authority's Secret is not one.
#[derive(Debug, thiserror::Error)]
#[error("the certificate authority cannot sign: {0}")]
pub struct AuthorityError(#[from] rcgen::Error);

/// Issues what `plan` asks for and keeps the rest.
///
/// # Errors
///
/// [`AuthorityError`] when the authority's Secret is damaged; an administrator must restore or delete it.
pub fn issue(plan: &CertificatePlan, cluster: &str, now: Timestamp) -> Result<PeerIdentity, AuthorityError> {
    let authority = match &plan.authority {
        Some(authority) => authority.clone(),
        None => make_authority(cluster, now)?,
    };
    let mut peers = plan.keep.clone();
    if !plan.issue.is_empty() {
        let issuer = Issuer::from_ca_cert_pem(&authority.certificate, KeyPair::from_pem(&authority.key)?)?;
        for pod in &plan.issue {
            peers.insert(pod.clone(), make_peer(pod, &issuer, now)?);
        }
    }
    Ok(PeerIdentity { authority, peers })
}

fn make_authority(cluster: &str, now: Timestamp) -> Result<Credential, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, format!("Tidemill cluster {cluster}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, now, AUTHORITY_VALIDITY);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok(Credential { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// The certificate of a broker: its name is the pod's name, and it is shown by both ends of a link.
fn make_peer(
    pod: &str,
    issuer: &Issuer<'_, KeyPair>,
    now: Timestamp,
) -> Result<PeerCredential, rcgen::Error> {
    let mut params = CertificateParams::new(vec![pod.to_owned()])?;
    params.distinguished_name.push(DnType::CommonName, pod);
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let expires = set_validity(&mut params, now, PEER_VALIDITY);
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, issuer)?;
    Ok(PeerCredential {
        credential: Credential { certificate: certificate.pem(), key: key.serialize_pem() },
        expires,
    })
}

/// Answers the end, rounded down to a day.
fn set_validity(params: &mut CertificateParams, now: Timestamp, validity: SignedDuration) -> Timestamp {
    let date = |at: Timestamp| TimeZone::UTC.to_datetime(at).date();
    let numbers = |date: k8s_openapi::jiff::civil::Date| {
        let positive = |number: i8| u8::try_from(number).expect("months and days are positive");
        rcgen::date_time_ymd(i32::from(date.year()), positive(date.month()), positive(date.day()))
    };
    let end = date(now + validity);
    params.not_before = numbers(date(now - BACKDATED));
    params.not_after = numbers(end);
    let midnight = end.to_datetime(k8s_openapi::jiff::civil::Time::midnight());
    TimeZone::UTC.to_timestamp(midnight).unwrap_or(now + validity)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::certificates::plan_certificates;
    use crate::controller::fixtures::now;
    use rustls::RootCertStore;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use std::sync::Arc;

    fn issued(pods: &[&str]) -> PeerIdentity {
        let pods: Vec<_> = pods.iter().map(|pod| (*pod).to_owned()).collect();
        issue(&plan_certificates(&pods, None, None, now()), "demo", Timestamp::now()).unwrap()
    }

    fn chain(identity: &PeerIdentity, pod: &str) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let credential = &identity.peers[pod].credential;
        (
            vec![CertificateDer::from_pem_slice(credential.certificate.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(credential.key.as_bytes()).unwrap(),
        )
    }

    #[test]
    fn two_brokers_accept_each_other_by_name_with_mutual_tls() {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let identity = issued(&["demo-0", "demo-1"]);
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(identity.authority.certificate.as_bytes()).unwrap())
            .unwrap();
        let roots = Arc::new(roots);
        let (server_chain, server_key) = chain(&identity, "demo-0");
        let (client_chain, client_key) = chain(&identity, "demo-1");
        let verifier =
            rustls::server::WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
                .build()
                .unwrap();
        let server = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(server_chain, server_key)
            .unwrap();
        let client = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(client_chain, client_key)
            .unwrap();
        let mut server = rustls::ServerConnection::new(Arc::new(server)).unwrap();
        let name = ServerName::try_from("demo-0").unwrap();
        let mut client = rustls::ClientConnection::new(Arc::new(client), name).unwrap();

        let mut rounds = 0;
        while (client.is_handshaking() || server.is_handshaking()) && rounds < 10 {
            rounds += 1;
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            server.read_tls(&mut bytes.as_slice()).unwrap();
            server.process_new_packets().unwrap();
            let mut bytes = Vec::new();
            server.write_tls(&mut bytes).unwrap();
            client.read_tls(&mut bytes.as_slice()).unwrap();
            client.process_new_packets().unwrap();
        }

        assert!(!client.is_handshaking() && !server.is_handshaking());
    }

    #[test]
    fn what_is_kept_stays_byte_for_byte() {
        let first = issued(&["demo-0"]);
        let plan = CertificatePlan {
            authority: Some(first.authority.clone()),
            keep: first.peers.clone(),
            issue: vec!["demo-1".to_owned()],
        };

        let second = issue(&plan, "demo", now()).unwrap();

        assert_eq!(second.authority, first.authority);
        assert_eq!(second.peers["demo-0"], first.peers["demo-0"]);
        assert_eq!(second.peers.len(), 2);
    }

    #[test]
    fn a_damaged_authority_is_told_and_not_replaced() {
        let damaged = Credential { certificate: "x".to_owned(), key: "y".to_owned() };
        let plan = CertificatePlan {
            authority: Some(damaged),
            keep: std::collections::BTreeMap::new(),
            issue: vec!["demo-0".to_owned()],
        };

        assert!(issue(&plan, "demo", now()).is_err());
    }
}
