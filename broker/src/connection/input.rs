//! Bytes from one socket. The read buffer belongs to the thread; a connection keeps only the rest of a packet that has
//! not come completely.

use bytes::BytesMut;
use std::cell::Cell;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, ready};
use tidemill_codec::Codec;
use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;

/// Bytes read at once.
const READ_BYTES_MAX: usize = 64 * 1024;
/// A packet of more bytes is gathered in a buffer of its own instead of being copied with every read.
const OWN_BUFFER_BYTES_MIN: usize = 16 * 1024;

thread_local! {
    static READ_BUFFER: Cell<BytesMut> = Cell::new(BytesMut::new());
}

/// The reading half of a connection.
#[derive(Debug)]
pub(super) struct Input {
    socket: OwnedReadHalf,
    /// What came of a packet that is not complete.
    rest: BytesMut,
    /// Whether the buffer that was handed out was `rest` itself.
    is_rest: bool,
    /// The last read took all that was there.
    is_drained: bool,
}

impl Input {
    pub(super) fn new(socket: OwnedReadHalf, rest: BytesMut) -> Self {
        Self { socket, rest, is_rest: false, is_drained: false }
    }

    /// Whether bytes are here that were not decoded.
    pub(super) fn has_rest(&self) -> bool {
        !self.rest.is_empty()
    }

    /// What was put back, without reading.
    pub(super) fn take_rest(&mut self) -> BytesMut {
        self.is_rest = true;
        std::mem::take(&mut self.rest)
    }

    /// Reads once; the bytes follow what was put back. Give the buffer to [`Input::put_back`] after use. Also says how
    /// many bytes are new.
    pub(super) fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<(BytesMut, usize)>> {
        if self.is_drained {
            // Most of the time: asks to be woken, and does no more.
            ready!(self.socket.as_ref().poll_read_ready(context))?;
            self.is_drained = false;
        }
        let mut buffer = self.take_buffer();
        let room = buffer.capacity() - buffer.len();
        let outcome = pin!(self.socket.read_buf(&mut buffer)).poll(context);
        match outcome {
            Poll::Ready(Ok(0)) => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            Poll::Ready(Ok(count)) => {
                self.is_drained = count < room;
                Poll::Ready(Ok((buffer, count)))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                self.put_back(buffer);
                Poll::Pending
            }
        }
    }

    /// Keeps what was not decoded and gives the thread its buffer back.
    pub(super) fn put_back(&mut self, mut buffer: BytesMut) {
        if self.is_rest && !buffer.is_empty() {
            self.rest = buffer;
            return;
        }
        if !buffer.is_empty() {
            self.rest = BytesMut::from(&buffer[..]);
            buffer.clear();
        }
        if !self.is_rest {
            READ_BUFFER.set(buffer);
        }
        self.is_rest = false;
    }

    fn take_buffer(&mut self) -> BytesMut {
        let expected = Codec::packet_bytes(&self.rest).unwrap_or(0);
        self.is_rest = expected > OWN_BUFFER_BYTES_MIN;
        if self.is_rest {
            let mut buffer = std::mem::take(&mut self.rest);
            // Not more than one read ahead of what has come, so that a length alone costs no memory.
            buffer.reserve(expected.saturating_sub(buffer.len()).clamp(1, READ_BYTES_MAX));
            return buffer;
        }
        let mut buffer = READ_BUFFER.take();
        buffer.clear();
        buffer.reserve(READ_BYTES_MAX);
        buffer.extend_from_slice(&self.rest);
        self.rest = BytesMut::new();
        buffer
    }

    /// Reads and forgets what still comes, so that closing does not cut off what was written last. Bounded by the
    /// caller's deadline and by `bytes_max`.
    pub(super) async fn discard(&mut self, bytes_max: usize) {
        let mut discarded = 0;
        let mut buffer = BytesMut::with_capacity(4 * 1024);
        while discarded < bytes_max {
            match self.socket.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(count) => discarded += count,
            }
            buffer.clear();
        }
    }

    /// Waits until bytes are here and reads them, with what was put back. For the time before CONNECT. Cancel-safe.
    pub(super) async fn read(&mut self) -> io::Result<(BytesMut, usize)> {
        std::future::poll_fn(|context| self.poll_read(context)).await
    }
}
