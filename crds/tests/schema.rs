//! What an API server asks of a schema before it takes the definition, and what the types promise to their users.

use serde_json::{Value, json};
use tidemill_crds::MqttCluster;

/// Calls `visit` with the path of every schema below `schema`, and the schema.
fn visit_schemas(path: &str, schema: &Value, visit: &mut impl FnMut(&str, &Value)) {
    visit(path, schema);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        visit_schemas(&format!("{path}.{name}"), property, visit);
    }
    for (key, below) in [("items", "[]"), ("additionalProperties", ".*")] {
        if schema[key].is_object() {
            visit_schemas(&format!("{path}{below}"), &schema[key], visit);
        }
    }
}

fn schema() -> Value {
    tidemill_crds::mqtt_cluster_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take()
}

#[test]
fn every_schema_is_structural() {
    visit_schemas("", &schema(), &mut |path, schema| {
        let of_number_or_text = schema["x-kubernetes-int-or-string"] == json!(true);
        assert!(schema["type"].is_string() || of_number_or_text, "{path} has no type");
        for key in ["$ref", "allOf", "anyOf", "oneOf", "not", "nullable", "definitions", "$defs"] {
            assert!(schema.get(key).is_none(), "{path} has {key}");
        }
    });
}

#[test]
fn every_number_text_and_list_of_the_spec_has_bounds() {
    // Also what rules cost at most is worked out from the bounds.
    visit_schemas("spec", &schema()["properties"]["spec"], &mut |path, schema| {
        let bounds: &[&str] = match schema["type"].as_str() {
            _ if path.starts_with("spec.resources") => &[],
            Some("integer") => &["minimum", "maximum"],
            Some("string") if schema.get("enum").is_none() => &["minLength", "maxLength"],
            Some("array") => &["maxItems"],
            _ => &[],
        };
        for bound in bounds {
            assert!(schema[*bound].is_u64(), "{path} has no {bound}");
        }
    });
}

#[test]
fn what_a_user_leaves_out_stays_left_out() {
    let sections = ["sessions", "mqtt", "limits", "membership", "sharedSubscriptions"];
    let left_out = json!({"kafka": {"bootstrapServers": "kafka:9092"}, "auth": {"anonymous": true}});
    let mut empty = left_out.clone();
    for section in sections {
        empty[section] = json!({});
    }
    empty["sessions"]["queue"] = json!({});

    for spec in [left_out, empty] {
        let document = json!({
            "apiVersion": "tidemill.dev/v1alpha1",
            "kind": "MqttCluster",
            "metadata": {"name": "demo"},
            "spec": spec,
        });
        let cluster: MqttCluster = serde_json::from_value(document).unwrap();
        let written = serde_json::to_value(&cluster.spec).unwrap();

        for section in sections {
            assert_eq!(written.get(section), spec.get(section), "{section}");
        }
        assert_eq!(written.get("threads"), None);
    }
}
