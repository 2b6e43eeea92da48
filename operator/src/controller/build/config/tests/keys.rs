//! The keys of the broker's config file and those of the resource. Whoever adds one on one side only is told here.

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_contract::config::Config;

/// Keys as `a.b[].c`, each with the words that it takes; none if it takes something else than one of a few words.
pub(super) type Keys = BTreeMap<String, BTreeSet<String>>;

/// Keys of the config file that the operator sets, because they follow from Kubernetes or from what is mounted.
const OF_THE_OPERATOR: [&str; 13] = [
    // The pod's name, by the environment.
    "member",
    // The resource's name.
    "cluster",
    // The resource has the ports.
    "listeners[].address",
    "admin.address",
    // The volume.
    "data.directory",
    // The resource has `topicManagement`: topics are the operator's business.
    "kafka.createTopics",
    // Follows from `kafka` or `embedded`.
    "coordination",
    // The resource's namespace.
    "membership.namespace",
    // The pod's address, and the Secret with the certificates.
    "peers.address",
    "peers.advertised",
    "peers.tls.caFile",
    "peers.tls.certificateFile",
    "peers.tls.keyFile",
];

/// Keys of the resource that are no business of a broker.
const OF_KUBERNETES: [&str; 9] = [
    "image",
    "kafka.topicManagement",
    "listeners[].port",
    "listeners[].service.type",
    "paused",
    "replicas",
    "resources",
    "storage.size",
    "storage.storageClassName",
];

#[test]
fn every_key_of_the_config_file_is_in_the_resource_or_set_by_the_operator() {
    let (file, resource) = (config_keys(), resource_keys());
    let without = |keys: &Keys, others: &Keys| -> BTreeSet<String> {
        keys.keys().filter(|&key| !others.contains_key(key)).cloned().collect()
    };

    assert_eq!(
        without(&file, &resource),
        OF_THE_OPERATOR.map(str::to_owned).into(),
        "only in the config file"
    );
    assert_eq!(without(&resource, &file), OF_KUBERNETES.map(str::to_owned).into(), "only in the resource");
    for (key, words) in &file {
        assert!(resource.get(key).is_none_or(|of_resource| of_resource == words), "{key}: {words:?}");
    }
}

/// The keys that stand in both, and mean the same.
pub(super) fn shared_keys() -> BTreeSet<String> {
    let file = config_keys();
    resource_keys().into_keys().filter(|key| file.contains_key(key)).collect()
}

/// All keys of the resource's spec.
pub(super) fn resource_keys() -> Keys {
    let mut keys = Keys::new();
    collect_schema_keys("", &spec_schema(), &mut keys);
    keys
}

/// The schema of the resource's spec.
pub(super) fn spec_schema() -> Value {
    tidemill_crds::mqtt_cluster_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        ["spec"]
        .take()
}

fn collect_schema_keys(path: &str, schema: &Value, keys: &mut Keys) {
    if let Some(items) = schema.get("items") {
        return collect_schema_keys(&format!("{path}[]"), items, keys);
    }
    // What Kubernetes defines itself is one key.
    match schema["properties"].as_object().filter(|_| path != "resources") {
        Some(properties) => {
            for (name, property) in properties {
                collect_schema_keys(&below(path, name), property, keys);
            }
        }
        None => {
            let words = schema["enum"].as_array().into_iter().flatten();
            let words = words.map(|word| word.as_str().expect("a word").to_owned());
            keys.insert(path.to_owned(), words.collect());
        }
    }
}

/// All keys of the config file.
fn config_keys() -> Keys {
    let mut keys = Keys::new();
    collect_config_keys("", &|probe| probe, &mut keys);
    keys
}

/// Asks the parser, which says what it expected instead of a key `?`. So it needs no list that could be incomplete, and
/// optional keys are found too. `document` puts something in the place of `path`.
fn collect_config_keys(path: &str, document: &dyn Fn(Value) -> Value, keys: &mut Keys) {
    let answer =
        serde_json::from_value::<Config>(document(json!({"?": null}))).expect_err("no key has this name");
    let answer = answer.to_string();
    let expected = answer.split_once(", expected ").map(|(_, expected)| expected).unwrap_or_default();
    // Names are between backticks.
    let names = expected.split('`').skip(1).step_by(2);
    if answer.starts_with("unknown field `?`") {
        for name in names {
            collect_config_keys(&below(path, name), &|probe| document(json!({ name: probe })), keys);
        }
    } else if expected.starts_with("a sequence") {
        collect_config_keys(&format!("{path}[]"), &|probe| document(json!([probe])), keys);
    } else if answer.starts_with("unknown variant `?`") {
        keys.insert(path.to_owned(), names.map(str::to_owned).collect());
    } else {
        assert!(answer.starts_with("invalid type: map"), "{path} takes unknown keys: {answer}");
        keys.insert(path.to_owned(), BTreeSet::new());
    }
}

fn below(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// What stands in a document, by its key. Values of several items of a list come in their order.
pub(super) fn values(document: &Value) -> BTreeMap<String, Vec<Value>> {
    let mut found = BTreeMap::new();
    collect_values("", document, &mut found);
    found
}

fn collect_values(path: &str, value: &Value, found: &mut BTreeMap<String, Vec<Value>>) {
    match value {
        Value::Object(entries) => {
            entries.iter().for_each(|(name, entry)| collect_values(&below(path, name), entry, found));
        }
        Value::Array(items) => {
            items.iter().for_each(|item| collect_values(&format!("{path}[]"), item, found));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            found.entry(path.to_owned()).or_default().push(value.clone());
        }
    }
}
