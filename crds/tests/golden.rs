//! The checked-in definition and reference are what the types say. `TIDEMILL_UPDATE_GOLDEN=1` writes them anew.

use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn assert_golden(path: &Path, generated: &str) {
    if std::env::var_os("TIDEMILL_UPDATE_GOLDEN").is_some() {
        std::fs::write(path, generated).expect("the checkout is writable");
    }
    let checked_in = std::fs::read_to_string(path).unwrap_or_default();
    assert!(checked_in == generated, "{} is not what the types say: run `make crds`", path.display());
}

#[test]
fn the_checked_in_definition_is_the_generated_one() {
    let generated = tidemill_crds::mqtt_cluster_yaml();

    assert_golden(&root().join("crds/mqttclusters.yaml"), &generated);
    assert_golden(&root().join("charts/tidemill-crds/templates/mqttclusters.yaml"), &generated);
}

#[test]
fn the_definition_fits_into_a_client_side_apply() {
    // kubectl apply keeps the object in an annotation of at most 262144 bytes.
    let size = tidemill_crds::mqtt_cluster_yaml().len();

    assert!(size < 200_000, "{size} bytes");
}

#[test]
fn the_definition_has_nothing_that_a_chart_would_expand() {
    assert!(!tidemill_crds::mqtt_cluster_yaml().contains("{{"));
}

#[test]
fn the_reference_lists_every_key_of_the_spec() {
    const BEGIN: &str = "<!-- generated from the definition by `make crds`: begin spec -->\n";
    const END: &str = "<!-- end spec -->";
    let path = root().join("docs/reference/mqttcluster.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let definition = tidemill_crds::mqtt_cluster_definition();
    let spec = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let mut table = String::from("| key | default | what |\n|---|---|---|\n");
    list_keys("", spec, &mut table);

    assert_golden(&path, &format!("{before}{BEGIN}{table}{END}{after}"));
}

fn list_keys(prefix: &str, schema: &Value, table: &mut String) {
    let Some(properties) = schema["properties"].as_object() else { return };
    for (name, property) in properties {
        let (path, nested) = match property["items"].as_object() {
            Some(_) => (format!("{prefix}{name}[]"), &property["items"]),
            None => (format!("{prefix}{name}"), property),
        };
        let default = match &property["default"] {
            Value::Null | Value::Array(_) | Value::Object(_) => String::new(),
            Value::String(text) => format!("`{text}`"),
            number @ (Value::Bool(_) | Value::Number(_)) => format!("`{number}`"),
        };
        let what = property["description"].as_str().unwrap_or_default().replace('\n', " ");
        writeln!(table, "| `{path}` | {default} | {what} |").expect("a String takes everything");
        // Kubernetes documents its own types.
        if path != "resources" {
            list_keys(&format!("{path}."), nested, table);
        }
    }
}
