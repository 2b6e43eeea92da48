//! All writes of a pass, except the status: server-side apply of what was built, creation of leases, deletion of what is
//! surplus. Every write can be repeated.

use crate::controller::build::Objects;
use crate::controller::plan::Surplus;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// Who owns the fields that the operator applies.
pub const FIELD_MANAGER: &str = "tidemill-operator";

/// One write failed. What was written before it stays; the next pass goes over all of it again.
#[derive(Debug, thiserror::Error)]
#[error("{verb} of {kind} {name} failed: {source}")]
pub struct ApplyError {
    verb: &'static str,
    kind: String,
    name: String,
    #[source]
    source: Box<kube::Error>,
}

/// Applies `objects` in the order in which brokers need them, the StatefulSet last.
///
/// # Errors
///
/// The first [`ApplyError`]; the pass must be repeated.
pub async fn apply(client: &Client, namespace: &str, objects: &Objects) -> Result<StatefulSet, ApplyError> {
    apply_object(client, namespace, &objects.service_account).await?;
    if let Some(role) = &objects.role {
        apply_object(client, namespace, role).await?;
    }
    if let Some(binding) = &objects.role_binding {
        apply_object(client, namespace, binding).await?;
    }
    for lease in &objects.leases {
        create_lease(client, namespace, lease).await?;
    }
    for secret in &objects.secrets {
        apply_object(client, namespace, secret).await?;
    }
    apply_object(client, namespace, &objects.config_map).await?;
    for service in &objects.services {
        apply_object(client, namespace, service).await?;
    }
    if let Some(budget) = &objects.disruption_budget {
        apply_object(client, namespace, budget).await?;
    }
    apply_object(client, namespace, &objects.stateful_set).await
}

/// Deletes what is surplus. What is gone already counts as deleted.
///
/// # Errors
///
/// The first [`ApplyError`]; the pass must be repeated.
pub async fn delete_surplus(client: &Client, namespace: &str, surplus: &[Surplus]) -> Result<(), ApplyError> {
    for object in surplus {
        match object {
            Surplus::Service(name) => delete::<Service>(client, namespace, name).await?,
            Surplus::DisruptionBudget(name) => delete::<PodDisruptionBudget>(client, namespace, name).await?,
        }
    }
    Ok(())
}

/// Creates a lease unless it is there. It never writes over one: from its creation on it belongs to the brokers.
///
/// # Errors
///
/// [`ApplyError`] for any other answer than "created" and "exists".
pub async fn create_lease(client: &Client, namespace: &str, lease: &Lease) -> Result<(), ApplyError> {
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    match Api::<Lease>::namespaced(client.clone(), namespace).create(&params, lease).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(source) => Err(failed("creation", lease, source)),
    }
}

async fn apply_object<K>(client: &Client, namespace: &str, object: &K) -> Result<K, ApplyError>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned,
{
    // Forced: these fields are the operator's, and a hand that changed one is overruled.
    let params = PatchParams::apply(FIELD_MANAGER).force();
    Api::<K>::namespaced(client.clone(), namespace)
        .patch(&object.name_any(), &params, &Patch::Apply(object))
        .await
        .map_err(|source| failed("apply", object, source))
}

async fn delete<K>(client: &Client, namespace: &str, name: &str) -> Result<(), ApplyError>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + DeserializeOwned,
{
    match Api::<K>::namespaced(client.clone(), namespace).delete(name, &DeleteParams::background()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(source) => Err(ApplyError {
            verb: "deletion",
            kind: K::kind(&()).into_owned(),
            name: name.to_owned(),
            source: Box::new(source),
        }),
    }
}

fn failed<K: Resource<DynamicType = ()>>(verb: &'static str, object: &K, source: kube::Error) -> ApplyError {
    ApplyError { verb, kind: K::kind(&()).into_owned(), name: object.name_any(), source: Box::new(source) }
}
