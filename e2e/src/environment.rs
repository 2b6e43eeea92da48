//! Where the services and binaries of the tests are.

use anyhow::{Context, Result};
use std::path::PathBuf;

/// Bootstrap servers of the Kafka that `make test` started.
///
/// # Errors
///
/// When `TIDEMILL_E2E_KAFKA` is not set: the test must fail, not pass unseen.
pub fn kafka() -> Result<String> {
    std::env::var("TIDEMILL_E2E_KAFKA")
        .context("TIDEMILL_E2E_KAFKA is not set; run `make test`, or see docs/local-cluster.md")
}

/// Kubeconfig of the API server that `make test` started.
///
/// # Errors
///
/// When `TIDEMILL_E2E_KUBECONFIG` is not set: the test must fail, not pass unseen.
pub fn kubeconfig() -> Result<PathBuf> {
    std::env::var_os("TIDEMILL_E2E_KUBECONFIG")
        .map(PathBuf::from)
        .context("TIDEMILL_E2E_KUBECONFIG is not set; run `make test`, or see docs/local-cluster.md")
}

/// The folder into which `make test` installed the MQTT clients of others: `python/` and `node_modules/`.
///
/// # Errors
///
/// When `TIDEMILL_E2E_INTEROP` is not set: the test must fail, not pass unseen.
pub fn interop() -> Result<PathBuf> {
    std::env::var_os("TIDEMILL_E2E_INTEROP").map(PathBuf::from).context(
        "TIDEMILL_E2E_INTEROP is not set; run `make test`, or `deploy/local/tools.sh interop` and set it to the \
         folder that it names",
    )
}

/// A binary of this workspace, built beside the test.
///
/// # Errors
///
/// When it is not there: build the workspace first.
pub fn binary(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("path of the running program")?;
    // Tests lie in target/<profile>/deps, binaries one level up.
    let folders = own.ancestors().skip(1).take(2);
    let path = folders.map(|folder| folder.join(name)).find(|path| path.is_file());
    path.with_context(|| format!("{name} is not built; run `cargo build --workspace` first"))
}

/// Whether the long forms of the tests are asked for (`make soak`).
#[must_use]
pub fn is_soak() -> bool {
    std::env::var_os("TIDEMILL_SOAK").is_some_and(|value| value == "1")
}

/// The number in the environment variable `name`, or `default` without it.
///
/// # Errors
///
/// When it is no number.
pub fn number(name: &str, default: u64) -> Result<u64> {
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name}={text} is no number")),
        Err(_) => Ok(default),
    }
}
