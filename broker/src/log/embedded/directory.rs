//! The data directory of one broker, locked by it.

use rustix::fs::{FlockOperation, flock};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const LOCK_FILE: &str = "lock";

/// A data directory that this process alone may use. Clones share the lock; it ends with the last of them, also when
/// the process is killed.
#[derive(Debug, Clone)]
pub struct DataDirectory {
    inner: Arc<Locked>,
}

#[derive(Debug)]
struct Locked {
    path: PathBuf,
    /// Holds the lock as long as it is open.
    _lock: File,
}

/// The data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process uses it.
    #[error("data directory {} is used by {}", directory.display(), holder(*pid))]
    Held {
        /// The directory.
        directory: PathBuf,
        /// Process id of the holder, as it wrote it; unknown in another process namespace or while it starts.
        pid: Option<u32>,
    },
    /// It cannot be created, written or locked.
    #[error("data directory {} cannot be used", directory.display())]
    Unusable {
        /// The directory.
        directory: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

impl DataDirectory {
    /// Creates `path` if it is missing, for the user of this process alone, and locks it.
    ///
    /// # Errors
    ///
    /// [`LockError::Held`] while another process has it; [`LockError::Unusable`] if the system refuses. The broker
    /// cannot start with this directory.
    pub fn lock(path: &Path) -> Result<Self, LockError> {
        let unusable = |source| LockError::Unusable { directory: path.to_owned(), source };
        create_private(path).map_err(unusable)?;
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path.join(LOCK_FILE))
            .map_err(unusable)?;
        if let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(unusable(error.into()));
            }
            let pid = read_pid(&mut lock);
            return Err(LockError::Held { directory: path.to_owned(), pid });
        }
        write_pid(&mut lock).and_then(|()| sync_directory(path)).map_err(unusable)?;
        Ok(Self { inner: Arc::new(Locked { path: path.to_owned(), _lock: lock }) })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }
}

/// What clients publish is in the directory: nobody else may look into it. One that is there stays as it is.
fn create_private(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        created => created,
    }
}

/// Keeps brokers out of a data directory while it is read. Nothing is written.
#[derive(Debug)]
pub(super) struct ReadLock {
    /// None if no broker was ever started with the directory: there is nothing to lock.
    lock: Option<File>,
}

/// A data directory cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadLockError {
    /// A broker uses it, or was started with it meanwhile.
    #[error(transparent)]
    Held(LockError),
    /// It is not there, or the system refuses it.
    #[error("data directory {} cannot be read", directory.display())]
    Unreadable {
        /// The directory.
        directory: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}

impl ReadLock {
    /// Locks the data directory `path` against brokers.
    pub(super) fn take(path: &Path) -> Result<Self, ReadLockError> {
        let unreadable = |source| ReadLockError::Unreadable { directory: path.to_owned(), source };
        std::fs::read_dir(path).map_err(unreadable)?;
        let mut lock = match File::open(path.join(LOCK_FILE)) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self { lock: None }),
            Err(source) => return Err(unreadable(source)),
        };
        match flock(&lock, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(Self { lock: Some(lock) }),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let pid = read_pid(&mut lock);
                Err(ReadLockError::Held(LockError::Held { directory: path.to_owned(), pid }))
            }
            Err(error) => Err(unreadable(error.into())),
        }
    }

    /// Makes sure that no broker was started with the directory meanwhile, where there was nothing to lock.
    pub(super) fn is_still_alone(&self, path: &Path) -> Result<(), ReadLockError> {
        if self.lock.is_some() {
            return Ok(());
        }
        match Self::take(path)?.lock {
            None => Ok(()),
            Some(mut lock) => {
                let pid = read_pid(&mut lock);
                Err(ReadLockError::Held(LockError::Held { directory: path.to_owned(), pid }))
            }
        }
    }
}

/// Who holds the lock, as it wrote it.
fn read_pid(lock: &mut File) -> Option<u32> {
    let mut pid = String::new();
    // Whatever stands there is only for the message.
    let _ = lock.read_to_string(&mut pid);
    pid.trim().parse().ok()
}

fn write_pid(lock: &mut File) -> io::Result<()> {
    lock.set_len(0)?;
    lock.rewind()?;
    writeln!(lock, "{}", std::process::id())
}

/// Makes creations, renames and removals in `directory` durable.
pub(super) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Writes `bytes` to `path` so that after a crash the file is there whole or not at all.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let unfinished = path.with_extension("new");
    let mut file = File::create(&unfinished)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&unfinished, path)?;
    sync_directory(path.parent().expect("a file of the log is in a directory"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_locked_directory_is_refused_with_its_name_and_the_holder() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("data");
        let held = DataDirectory::lock(&path).unwrap();

        let refused = DataDirectory::lock(&path).unwrap_err().to_string();

        let pid = std::process::id();
        assert_eq!(refused, format!("data directory {} is used by process {pid}", path.display()));
        assert_eq!(held.path(), path);
    }

    #[test]
    fn a_directory_that_is_made_is_private_and_one_that_is_there_stays_as_it_is() {
        let temporary = tempfile::tempdir().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let made = temporary.path().join("parent/data");
        let there = temporary.path().join("there");
        std::fs::create_dir(&there).unwrap();
        std::fs::set_permissions(&there, Permissions::from_mode(0o750)).unwrap();
        let link = temporary.path().join("link");
        std::os::unix::fs::symlink(&there, &link).unwrap();

        for path in [&made, &there] {
            DataDirectory::lock(path).unwrap();
        }
        assert!(DataDirectory::lock(&link).is_ok());

        assert_eq!(mode(&made), 0o700);
        assert_eq!(mode(&there), 0o750);
    }

    #[test]
    fn the_lock_ends_with_the_last_clone() {
        let temporary = tempfile::tempdir().unwrap();
        let held = DataDirectory::lock(temporary.path()).unwrap();
        let clone = held.clone();
        drop(held);
        assert!(DataDirectory::lock(temporary.path()).is_err());

        drop(clone);

        assert!(DataDirectory::lock(temporary.path()).is_ok());
    }
}
