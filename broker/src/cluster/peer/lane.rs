//! The sending half of one lane: a bounded queue and the peer's credit.

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::VecDeque;
use tokio::sync::Notify;

/// Bytes that may be on their way without the peer having processed them. A frame is sent while less than this is
/// outstanding, so one frame may exceed it.
pub const CREDIT_WINDOW_BYTES: u64 = 4 << 20;
/// The receiver grants credit after processing this much.
pub const CREDIT_STEP_BYTES: u64 = CREDIT_WINDOW_BYTES / 4;
/// Above this many waiting bytes, what may be shed is shed.
pub const SHED_ABOVE_BYTES: usize = 8 << 20;
/// Above this many waiting bytes the lane is full and its link is broken.
pub const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Bytes handed to the socket in one go, unless one frame is larger.
const BATCH_BYTES: usize = 256 * 1024;

/// What happens to a frame when the lane is crowded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crowding {
    /// Sent before all others and without credit: heartbeats and credit. Small and few.
    Urgent,
    /// Waits its turn.
    Waits,
    /// Is dropped when more than [`SHED_ABOVE_BYTES`] wait: QoS 0.
    Shed,
    /// Waits its turn and may pass [`QUEUE_BYTES_MAX`]: snapshots, bounded by the broker's own tables.
    Unbounded,
}

/// A frame was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The frame was [`Crowding::Shed`].
    #[error("lane is crowded")]
    Shed,
    /// More than [`QUEUE_BYTES_MAX`] wait: the peer does not take what it gets.
    #[error("lane is full")]
    Full,
    /// The peer does not take frames of this size; nothing was sent and the link goes on.
    #[error("frame of {bytes} bytes, the peer takes {bytes_max}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The peer's bound.
        bytes_max: usize,
    },
}

#[derive(Debug, Default)]
struct State {
    urgent: VecDeque<Bytes>,
    waiting: VecDeque<Bytes>,
    waiting_bytes: usize,
    /// Frames numbered so far.
    sequence: u64,
    sent_bytes: u64,
    /// What the peer said it has processed; never above `sent_bytes`.
    processed_bytes: u64,
}

/// The queue of one lane.
#[derive(Debug, Default)]
pub struct SendLane {
    state: Mutex<State>,
    wake: Notify,
}

impl SendLane {
    /// Takes a frame. `build` gets the frame's number on the lane (from 1) and runs under the lane's lock, so that
    /// numbers are in the order of sending.
    ///
    /// # Errors
    ///
    /// [`PushError::Shed`]: count it. [`PushError::Full`]: break the link. No number was used.
    pub fn push(&self, crowding: Crowding, build: impl FnOnce(u64) -> Bytes) -> Result<(), PushError> {
        let mut state = self.state.lock();
        match crowding {
            Crowding::Shed if state.waiting_bytes > SHED_ABOVE_BYTES => return Err(PushError::Shed),
            Crowding::Shed | Crowding::Waits if state.waiting_bytes > QUEUE_BYTES_MAX => {
                return Err(PushError::Full);
            }
            Crowding::Urgent | Crowding::Waits | Crowding::Shed | Crowding::Unbounded => {}
        }
        state.sequence += 1;
        let frame = build(state.sequence);
        if crowding == Crowding::Urgent {
            state.urgent.push_back(frame);
        } else {
            state.waiting_bytes += frame.len();
            state.waiting.push_back(frame);
        }
        drop(state);
        self.wake.notify_one();
        Ok(())
    }

    /// Number of the last frame taken.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.state.lock().sequence
    }

    /// Takes the peer's word on what it has processed. Returns false when it cannot be: more than was sent.
    #[must_use]
    pub fn grant(&self, processed_bytes: u64) -> bool {
        let mut state = self.state.lock();
        if processed_bytes > state.sent_bytes {
            return false;
        }
        state.processed_bytes = state.processed_bytes.max(processed_bytes);
        drop(state);
        self.wake.notify_one();
        true
    }

    /// Waits for something that may be sent. Cancel-safe: what was taken is returned.
    pub async fn next_batch(&self) -> Bytes {
        loop {
            if let Some(batch) = self.take_batch() {
                return batch;
            }
            self.wake.notified().await;
        }
    }

    fn take_batch(&self) -> Option<Bytes> {
        let mut state = self.state.lock();
        let mut frames: Vec<Bytes> = state.urgent.drain(..).collect();
        let mut bytes: usize = frames.iter().map(Bytes::len).sum();
        while bytes < BATCH_BYTES
            && state.sent_bytes + bytes as u64 - state.processed_bytes < CREDIT_WINDOW_BYTES
        {
            let Some(frame) = state.waiting.pop_front() else { break };
            state.waiting_bytes -= frame.len();
            bytes += frame.len();
            frames.push(frame);
        }
        state.sent_bytes += bytes as u64;
        drop(state);
        match frames.len() {
            0 => None,
            1 => frames.pop(),
            _ => {
                let mut batch = BytesMut::with_capacity(bytes);
                frames.iter().for_each(|frame| batch.extend_from_slice(frame));
                Some(batch.freeze())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(bytes: usize) -> Bytes {
        Bytes::from(vec![0; bytes])
    }

    #[test]
    fn frames_beyond_the_credit_wait_until_the_peer_has_processed_and_urgent_ones_do_not() {
        let lane = SendLane::default();
        for _ in 0..5 {
            lane.push(Crowding::Waits, |_| frame(1 << 20)).unwrap();
        }
        let mut sent = 0;
        while let Some(batch) = lane.take_batch() {
            sent += batch.len();
        }
        assert_eq!(sent as u64, CREDIT_WINDOW_BYTES);

        lane.push(Crowding::Urgent, |_| frame(10)).unwrap();
        assert_eq!(lane.take_batch().map(|batch| batch.len()), Some(10));
        assert_eq!(lane.take_batch(), None);

        assert!(lane.grant(2 << 20));
        assert_eq!(lane.take_batch().map(|batch| batch.len()), Some(1 << 20));
        assert!(!lane.grant(100 << 20), "nobody processes what was not sent");
    }

    #[test]
    fn a_crowded_lane_sheds_qos_0_first_and_is_full_only_later() {
        let lane = SendLane::default();
        while lane.push(Crowding::Shed, |_| frame(1 << 20)).is_ok() {}
        assert_eq!(lane.push(Crowding::Shed, |_| frame(1)), Err(PushError::Shed));
        while lane.push(Crowding::Waits, |_| frame(1 << 20)).is_ok() {}

        assert_eq!(lane.push(Crowding::Waits, |_| frame(1)), Err(PushError::Full));
        assert_eq!(lane.push(Crowding::Unbounded, |_| frame(1)), Ok(()));
        assert_eq!(lane.push(Crowding::Urgent, |_| frame(1)), Ok(()));
    }
}
