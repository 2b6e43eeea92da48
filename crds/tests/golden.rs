//! The checked-in definition is what the types say. `TIDEMILL_UPDATE_GOLDEN=1` writes it anew.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn the_checked_in_definition_is_the_generated_one() {
    let generated = tidemill_crds::mqtt_cluster_yaml();
    let paths = [
        root().join("crds/mqttclusters.yaml"),
        root().join("charts/tidemill-crds/templates/mqttclusters.yaml"),
    ];

    for path in paths {
        if std::env::var_os("TIDEMILL_UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, &generated).unwrap();
        }
        let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(checked_in == generated, "{} is not what the types say: run `make crds`", path.display());
    }
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
