//! Who this broker is to the leases: its pod, or its data directory.

use super::LeaseError;
use crate::cluster::boot_time_nanos;
use crate::cluster::peer::random_u64;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use std::io::Write;
use std::path::Path;

const IDENTITY_FILE: &str = "member-uid";
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// What stands for the pod's UID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The broker runs in this pod; pods are watched for proofs of death.
    Pod {
        /// Its UID.
        uid: String,
    },
    /// The broker runs as a process. Its data directory, which is locked by one process, stands for the pod.
    DataDirectory {
        /// A random id that is kept there.
        uid: String,
    },
}

impl Place {
    /// In a pod `pod_uid` is given; otherwise the id kept in `directory` counts, which is made when missing. The caller
    /// holds the lock of the directory.
    ///
    /// # Errors
    ///
    /// [`LeaseError::Identity`] when the id can be neither read nor written; the broker refuses to start.
    pub fn find(pod_uid: Option<String>, directory: &Path) -> Result<Self, LeaseError> {
        if let Some(uid) = pod_uid.filter(|uid| !uid.is_empty()) {
            return Ok(Self::Pod { uid });
        }
        let path = directory.join(IDENTITY_FILE);
        let io = |error| LeaseError::Identity { path: path.clone(), error };
        match std::fs::read_to_string(&path) {
            Ok(uid) if !uid.trim().is_empty() => {
                return Ok(Self::DataDirectory { uid: uid.trim().to_owned() });
            }
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(io(error)),
        }
        let uid = format!("{:016x}{:016x}", random_u64(), random_u64());
        let draft = directory.join(format!("{IDENTITY_FILE}.new"));
        let mut file = std::fs::File::create(&draft).map_err(io)?;
        file.write_all(uid.as_bytes()).and_then(|()| file.sync_all()).map_err(io)?;
        std::fs::rename(&draft, &path).map_err(io)?;
        Ok(Self::DataDirectory { uid })
    }

    /// What the lease names.
    #[must_use]
    pub fn uid(&self) -> &str {
        match self {
            Self::Pod { uid } | Self::DataDirectory { uid } => uid,
        }
    }
}

/// When this process was started, by the clock that the kubelet of its machine uses too: what the process did before it
/// asked does not count, however slow the machine is.
#[must_use]
pub fn process_started() -> Timestamp {
    let now = Timestamp::now();
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let Some(started) = nanos_at_start(&stat, rustix::param::clock_ticks_per_second()) else { return now };
    let age = SignedDuration::from_nanos_i128(i128::from(boot_time_nanos()) - i128::from(started));
    now.checked_sub(age).unwrap_or(now)
}

/// Nanoseconds from the boot of the machine to the start of the process that `stat` describes (proc(5), field 22).
fn nanos_at_start(stat: &str, ticks_per_second: u64) -> Option<u64> {
    // The second field is a name in parentheses, and may hold blanks and parentheses itself.
    let (_, after_name) = stat.rsplit_once(')')?;
    let ticks: u64 = after_name.split_ascii_whitespace().nth(19)?.parse().ok()?;
    ticks.checked_mul(NANOS_PER_SECOND.checked_div(ticks_per_second)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_a_process_is_read_whatever_its_name_is() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194304 96 0 0 0 1 2 3 4 20 0 1 0 12345 2936832 187";

        assert_eq!(nanos_at_start(stat, 100), Some(123_450_000_000));
        assert_eq!(nanos_at_start("", 100), None);
        assert_eq!(nanos_at_start(stat, 0), None);
        assert!(process_started() <= Timestamp::now());
    }

    #[test]
    fn a_data_directory_keeps_its_identity_and_a_pod_has_its_own() {
        let directory = tempfile::TempDir::new().unwrap();

        let first = Place::find(None, directory.path()).unwrap();
        let second = Place::find(Some(String::new()), directory.path()).unwrap();
        let pod = Place::find(Some("uid-1".into()), directory.path()).unwrap();

        assert_eq!(first, second);
        assert_eq!(first.uid().len(), 32);
        assert_eq!(pod, Place::Pod { uid: "uid-1".into() });
    }
}
