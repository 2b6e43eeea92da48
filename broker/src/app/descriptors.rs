//! File descriptors: every connection takes one, and so do the log, the links and the admin port.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tidemill_contract::config::Limits;

/// Kept for everything that is not a client.
const RESERVED: u64 = 256;

/// Raises this process's limit of open files as far as the system lets it, and answers how many clients fit: at most
/// `wanted`, and at least one.
pub(super) fn make_room_for_clients(wanted: u32) -> u32 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(error) => {
            tracing::warn!(%error, "limit of open files cannot be raised");
            limit.current
        }
    };
    let fitting = clients_that_fit(current, wanted);
    const WHY: &str =
        "the limit of open files of this process allows fewer connections than limits.connections";
    // Nobody asked for the default.
    if fitting < wanted && wanted != Limits::default().connections {
        tracing::warn!(connections = fitting, open_files = current, "{WHY}");
    } else if fitting < wanted {
        tracing::info!(connections = fitting, open_files = current, "{WHY}");
    }
    fitting
}

/// `open_files` of `None` is no limit.
fn clients_that_fit(open_files: Option<u64>, wanted: u32) -> u32 {
    let Some(open_files) = open_files else { return wanted };
    // A process with very few descriptors keeps half of them for itself.
    let reserved = RESERVED.min(open_files / 2);
    u32::try_from(open_files - reserved).unwrap_or(u32::MAX).min(wanted).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_never_take_the_descriptors_of_the_broker() {
        assert_eq!(clients_that_fit(None, 1_000_000), 1_000_000);
        assert_eq!(clients_that_fit(Some(1_024), 1_000_000), 768);
        assert_eq!(clients_that_fit(Some(1_024), 100), 100);
        assert_eq!(clients_that_fit(Some(64), 1_000), 32);
        assert_eq!(clients_that_fit(Some(0), 1_000), 1);
    }
}
