//! What the log asks of the disk where it matters for durability. A seam, so that tests can make it fail.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Writes and syncs. Every method may be called from any thread.
pub(super) trait Disk: Send + Sync + 'static {
    /// Writes all of `bytes` at `position`; after an error any part of them may be there.
    fn write_at(&self, file: &File, bytes: &[u8], position: u64) -> io::Result<()>;

    /// Makes what was written durable. After an error nothing is known about it and asking again proves nothing.
    fn sync(&self, file: &File) -> io::Result<()>;

    /// Free bytes on the file system of `directory`.
    fn available(&self, directory: &Path) -> io::Result<u64>;
}

/// The disk of this machine.
pub(super) struct SystemDisk;

impl Disk for SystemDisk {
    fn write_at(&self, file: &File, bytes: &[u8], position: u64) -> io::Result<()> {
        file.write_all_at(bytes, position)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    fn available(&self, directory: &Path) -> io::Result<u64> {
        let status = rustix::fs::statvfs(directory)?;
        Ok(status.f_bavail.saturating_mul(status.f_frsize))
    }
}

/// Whether `error` says that there is no room now, on the disk or among the open files, which can end.
pub(super) fn is_full(error: &io::Error) -> bool {
    let is_out_of_files = matches!(
        rustix::io::Errno::from_io_error(error),
        Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE)
    );
    is_out_of_files || matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
