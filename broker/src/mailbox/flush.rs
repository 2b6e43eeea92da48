//! Writing a mailbox to its socket.

use super::buffer::{Chunk, OutBuffer};
use super::{CloseReason, Inner, Mailbox, wake};
use parking_lot::MutexGuard;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::Notify;

/// Chunks that one flush writes while others keep adding; then the connection's task goes on.
const CHUNKS_PER_FLUSH: usize = 8;

/// How the bytes of a mailbox leave.
#[derive(Debug, Clone)]
pub enum Flush {
    /// Plain TCP: whoever delivered writes to the socket itself.
    PlainTcp(Arc<OwnedWriteHalf>),
    /// No socket: counts what arrives. The health check subscribes with it.
    Probe(Arc<Probe>),
}

/// Counts the chunks that reached a mailbox without a socket.
#[derive(Debug, Default)]
pub struct Probe {
    arrived: AtomicU64,
    notify: Notify,
}

impl Probe {
    /// Chunks that arrived so far.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Acquire)
    }

    /// Completes when more than `count` chunks have arrived. Cancel-safe.
    pub async fn beyond(&self, count: u64) {
        loop {
            let notified = self.notify.notified();
            if self.arrived() > count {
                return;
            }
            notified.await;
        }
    }
}

enum Written {
    All,
    /// The socket takes no more now.
    Blocked,
    Failed,
}

impl Mailbox {
    /// Writes what waits, unless another thread is at it or the socket is full. No lock is held while it writes.
    pub fn flush(&self) {
        let mut inner = self.inner.lock();
        inner.is_dirty = false;
        if inner.is_blocked {
            return;
        }
        self.write(inner);
    }

    /// The socket may take bytes again.
    pub fn handle_writable(&self) {
        let mut inner = self.inner.lock();
        inner.is_blocked = false;
        self.write(inner);
    }

    fn write(&self, mut inner: MutexGuard<'_, Inner>) {
        // Whoever writes looks again before it stops, so what was added meanwhile leaves too.
        if inner.is_writing {
            return;
        }
        let Some(flush) = inner.flush.clone() else { return };
        for _ in 0..CHUNKS_PER_FLUSH {
            let Some(mut chunk) = inner.buffer.take() else {
                if inner.closing.is_some() {
                    wake(inner);
                }
                return;
            };
            inner.is_writing = true;
            let written = MutexGuard::unlocked(&mut inner, || flush.write(&mut chunk));
            inner.is_writing = false;
            inner.buffer.give_back(chunk);
            match written {
                Written::All => {}
                Written::Blocked => {
                    inner.is_blocked = true;
                    return wake(inner);
                }
                Written::Failed => {
                    inner.flush = None;
                    inner.buffer = OutBuffer::default();
                    inner.closing.get_or_insert(CloseReason::ConnectionLost);
                    return wake(inner);
                }
            }
        }
        // The bound is reached: the task waits for the socket like after a full one, then continues.
        inner.is_blocked = matches!(flush, Flush::PlainTcp(_));
        wake(inner);
    }
}

impl Flush {
    fn write(&self, chunk: &mut Chunk) -> Written {
        match self {
            Self::PlainTcp(socket) => write_socket(socket, chunk),
            Self::Probe(probe) => {
                chunk.advance(chunk.len());
                probe.arrived.fetch_add(1, Ordering::AcqRel);
                probe.notify.notify_waiters();
                Written::All
            }
        }
    }
}

fn write_socket(socket: &OwnedWriteHalf, chunk: &mut Chunk) -> Written {
    while !chunk.is_empty() {
        let outcome = match chunk.contiguous() {
            Some(bytes) => socket.try_write(bytes),
            None => socket.try_write_vectored(&chunk.slices()),
        };
        match outcome {
            Ok(0) => return Written::Failed,
            Ok(count) => chunk.advance(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Written::Blocked,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Written::Failed,
        }
    }
    Written::All
}
