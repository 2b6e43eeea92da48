//! Encoded packets on their way to one socket.
//!
//! Small packets lie one behind the other in a buffer that comes from the thread's spare pool and goes back when it is
//! drained, so that an idle connection holds none. Large payloads stay shared and are spliced in when written.

use bytes::{Buf, Bytes, BytesMut};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::IoSlice;

/// Payloads above this many bytes are queued as shared bytes instead of being copied.
pub(super) const SHARED_PAYLOAD_BYTES_MIN: usize = 4 * 1024;
/// Slices handed to one vectored write.
const SLICES_MAX: usize = 64;
/// Spare buffers that one thread keeps.
const SPARE_BUFFERS_MAX: usize = 64;
/// Larger buffers are not kept.
const SPARE_BUFFER_BYTES_MAX: usize = 64 * 1024;
const FRESH_BUFFER_BYTES: usize = 2 * 1024;

thread_local! {
    static SPARE: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// Whole packets in order, of which a part may be written already.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    bytes: BytesMut,
    /// How much of `bytes` is written.
    position: usize,
    /// Payloads to write when `position` has reached the number. Rare, so boxed.
    #[expect(clippy::box_collection, reason = "a mailbox without large payloads pays 8 bytes")]
    shared: Option<Box<VecDeque<(usize, Bytes)>>>,
    shared_bytes: usize,
    messages: u32,
    /// Packets in it, those with a message too.
    packets: u32,
}

impl Chunk {
    /// Bytes that are not written.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.position + self.shared_bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// PUBLISH packets in it; counted until all of it is written.
    pub(super) fn messages(&self) -> usize {
        usize::try_from(self.messages).unwrap_or(usize::MAX)
    }

    /// Packets in it; known until all of it is written.
    pub(super) fn packets(&self) -> u64 {
        u64::from(self.packets)
    }

    /// Where to encode one packet; `messages` is 1 if it carries a message, else 0.
    pub(super) fn encode_into(&mut self, messages: u32) -> &mut BytesMut {
        if self.bytes.capacity() == 0 {
            self.bytes = take_spare();
        }
        self.messages += messages;
        self.packets += 1;
        &mut self.bytes
    }

    /// Takes back the count of a packet that was not encoded after all, `messages` as it was then.
    pub(super) fn uncount(&mut self, messages: u32) {
        self.messages = self.messages.saturating_sub(messages);
        self.packets = self.packets.saturating_sub(1);
    }

    /// Continues with a shared payload after what was encoded so far.
    pub(super) fn push_shared(&mut self, payload: Bytes) {
        self.shared_bytes += payload.len();
        self.shared.get_or_insert_default().push_back((self.bytes.len(), payload));
    }

    /// The unwritten bytes when they lie in one piece.
    pub(super) fn contiguous(&self) -> Option<&[u8]> {
        match &self.shared {
            Some(shared) if !shared.is_empty() => None,
            Some(_) | None => self.bytes.get(self.position..),
        }
    }

    /// The first unwritten pieces, at most [`SLICES_MAX`].
    pub(super) fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut slices = Vec::with_capacity(8);
        let mut from = self.position;
        for (at, payload) in self.shared.iter().flat_map(|shared| shared.iter()) {
            if slices.len() + 2 > SLICES_MAX {
                return slices;
            }
            if *at > from {
                slices.push(IoSlice::new(&self.bytes[from..*at]));
            }
            slices.push(IoSlice::new(payload));
            from = *at;
        }
        if from < self.bytes.len() {
            slices.push(IoSlice::new(&self.bytes[from..]));
        }
        slices
    }

    /// `count` further bytes are written.
    pub(super) fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let shared = self.shared.as_mut().and_then(|shared| shared.front_mut());
            let until = shared.as_ref().map_or(self.bytes.len(), |(at, _)| *at);
            let plain = count.min(until - self.position);
            self.position += plain;
            count -= plain;
            let Some((_, payload)) = shared else {
                debug_assert_eq!(count, 0, "no more can be written than there was");
                return;
            };
            let taken = count.min(payload.len());
            payload.advance(taken);
            self.shared_bytes -= taken;
            count -= taken;
            if payload.is_empty()
                && let Some(queue) = &mut self.shared
            {
                queue.pop_front();
            }
        }
    }

    /// Gives the buffer to the thread's spare pool.
    pub(super) fn recycle(self) {
        give_spare(self.bytes);
    }
}

fn take_spare() -> BytesMut {
    let spare = SPARE.with_borrow_mut(Vec::pop);
    spare.unwrap_or_else(|| BytesMut::with_capacity(FRESH_BUFFER_BYTES))
}

fn give_spare(mut bytes: BytesMut) {
    if bytes.capacity() == 0 || bytes.capacity() > SPARE_BUFFER_BYTES_MAX {
        return;
    }
    bytes.clear();
    SPARE.with_borrow_mut(|spare| {
        if spare.len() < SPARE_BUFFERS_MAX {
            spare.push(bytes);
        }
    });
}

/// What waits for one socket: an older chunk whose writing has begun, and a newer one that grows.
#[derive(Debug, Default)]
pub(super) struct OutBuffer {
    /// Only of a socket that did not take all of it. Never empty.
    front: Option<Box<Chunk>>,
    back: Chunk,
    /// Of the chunk that a writer has taken and not given back.
    taken_bytes: usize,
    taken_messages: usize,
}

impl OutBuffer {
    /// Where new packets go.
    pub(super) fn back(&mut self) -> &mut Chunk {
        &mut self.back
    }

    /// Bytes that are not known to be written.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.front.as_ref().map_or(0, |front| front.len()) + self.back.len() + self.taken_bytes
    }

    /// Messages that are not known to be written.
    pub(super) fn unsent_messages(&self) -> usize {
        let front = self.front.as_ref().map_or(0, |front| front.messages());
        front + self.back.messages() + self.taken_messages
    }

    /// Takes what is to be written next. One writer at a time; it gives the rest back.
    pub(super) fn take(&mut self) -> Option<Chunk> {
        let chunk = match self.front.take() {
            Some(front) => *front,
            None => std::mem::take(&mut self.back),
        };
        if chunk.is_empty() {
            chunk.recycle();
            return None;
        }
        (self.taken_bytes, self.taken_messages) = (chunk.len(), chunk.messages());
        Some(chunk)
    }

    /// Gives back what [`OutBuffer::take`] gave, written or not.
    pub(super) fn give_back(&mut self, chunk: Chunk) {
        (self.taken_bytes, self.taken_messages) = (0, 0);
        if chunk.is_empty() {
            chunk.recycle();
        } else {
            debug_assert!(self.front.is_none(), "one writer at a time");
            self.front = Some(Box::new(chunk));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BufMut;
    use proptest::prelude::*;

    fn drain(buffer: &mut OutBuffer, mut steps: impl Iterator<Item = usize>) -> Vec<u8> {
        let mut written = Vec::new();
        while let Some(mut chunk) = buffer.take() {
            let joined: Vec<u8> = chunk.slices().iter().flat_map(|slice| slice.to_vec()).collect();
            if let Some(contiguous) = chunk.contiguous() {
                assert_eq!(contiguous, joined);
            }
            let count = steps.next().unwrap_or(joined.len()).clamp(1, joined.len());
            written.extend(&joined[..count]);
            chunk.advance(count);
            buffer.give_back(chunk);
        }
        written
    }

    proptest! {
        /// Model: one vector to which everything is appended.
        #[test]
        fn every_byte_is_written_once_and_in_order_however_writes_are_cut(
            pieces in proptest::collection::vec((any::<bool>(), 0_usize..40), 0..60),
            steps in proptest::collection::vec(1_usize..50, 0..200),
        ) {
            let mut buffer = OutBuffer::default();
            let mut expected = Vec::new();
            for (number, (is_shared, len)) in pieces.into_iter().enumerate() {
                let bytes = vec![number as u8; len];
                buffer.back().encode_into(1).put_slice(&[number as u8]);
                expected.push(number as u8);
                expected.extend(&bytes);
                if is_shared {
                    buffer.back().push_shared(bytes.into());
                } else {
                    buffer.back().encode_into(0).put_slice(&bytes);
                }
            }
            prop_assert_eq!(buffer.unsent_bytes(), expected.len());

            let written = drain(&mut buffer, steps.into_iter());

            prop_assert_eq!(written, expected);
            prop_assert_eq!((buffer.unsent_bytes(), buffer.unsent_messages()), (0, 0));
        }
    }
}
