//! What the log asks of the disk where it matters for durability. A seam, so that tests can make it fail.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Reads, writes and syncs. Every method may be called from any thread.
pub(super) trait Disk: Send + Sync + 'static {
    /// Reads at `position` as much as there is, up to the length of `buffer`; 0 at the end of the file.
    fn read_at(&self, file: &File, buffer: &mut [u8], position: u64) -> io::Result<usize>;

    /// Writes all of `bytes` at `position`; after an error any part of them may be there.
    fn write_at(&self, file: &File, bytes: &[u8], position: u64) -> io::Result<()>;

    /// Makes what was written durable. After an error nothing is known about it and asking again proves nothing.
    fn sync(&self, file: &File) -> io::Result<()>;

    /// Free bytes on the file system of `directory`.
    fn available(&self, directory: &Path) -> io::Result<u64>;

    /// All bytes of the file system of `directory`.
    fn size(&self, directory: &Path) -> io::Result<u64>;
}

/// Reads a file from a position without moving its cursor, which others share.
pub(super) struct FileAt<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) file: &'a File,
    pub(super) position: u64,
}

impl Read for FileAt<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.disk.read_at(self.file, buffer, self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}

/// How much of a disk the log takes at once and leaves free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shares {
    /// A segment is sealed when it has so many bytes. Before that its space cannot be given back.
    pub(super) segment_bytes: u64,
    /// Appends wait while less is free, so that the state can still be written: without it nothing could be trimmed.
    pub(super) reserved_bytes: u64,
}

impl Shares {
    /// What is in the last segment is read at the start: some milliseconds.
    const SEGMENT_BYTES_MAX: u64 = 16 << 20;
    const SEGMENT_BYTES_MIN: u64 = 1 << 20;
    const RESERVED_BYTES_MAX: u64 = 64 << 20;
    /// Above what the state leaves free.
    const RESERVED_BYTES_MIN: u64 = 24 << 20;

    /// Of a disk of `disk_bytes`: an eighth each, so that on a small one, too, sealed segments make the space that the
    /// log waits for.
    pub(super) fn of(disk_bytes: u64) -> Self {
        let share = disk_bytes / 8;
        Self {
            segment_bytes: share.clamp(Self::SEGMENT_BYTES_MIN, Self::SEGMENT_BYTES_MAX),
            reserved_bytes: share.clamp(Self::RESERVED_BYTES_MIN, Self::RESERVED_BYTES_MAX),
        }
    }
}

/// The disk of this machine.
pub(super) struct SystemDisk;

impl Disk for SystemDisk {
    fn read_at(&self, file: &File, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        file.read_at(buffer, position)
    }

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

    fn size(&self, directory: &Path) -> io::Result<u64> {
        let status = rustix::fs::statvfs(directory)?;
        Ok(status.f_blocks.saturating_mul(status.f_frsize))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_disk_is_shared_so_that_trimmed_segments_make_the_space_that_is_waited_for() {
        assert_eq!(Shares::of(u64::MAX), Shares { segment_bytes: 16 << 20, reserved_bytes: 64 << 20 });
        assert_eq!(Shares::of(512 << 20), Shares { segment_bytes: 16 << 20, reserved_bytes: 64 << 20 });
        assert_eq!(Shares::of(80 << 20), Shares { segment_bytes: 10 << 20, reserved_bytes: 24 << 20 });
        assert_eq!(Shares::of(0), Shares { segment_bytes: 1 << 20, reserved_bytes: 24 << 20 });
        assert!(SystemDisk.size(Path::new("/")).unwrap() >= SystemDisk.available(Path::new("/")).unwrap());
    }
}
