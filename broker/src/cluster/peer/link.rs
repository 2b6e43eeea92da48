//! One link: its two lanes, its readers and writers, its heartbeat and its end.

use super::LinkHandler;
use super::end::LinkEnd;
use super::lane::{CREDIT_STEP_BYTES, Crowding, PushError, SendLane};
use super::table::LinkTable;
use crate::cluster::boot_time_nanos;
use crate::cluster::wire::link::{Break, Credit, Ping, Pong};
use crate::cluster::wire::{Body, Frame, Lane, WireError, take_frame};
use bytes::BytesMut;
use parking_lot::Mutex;
use prost::Message;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidemill_core::member::{Member, MemberEpoch};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

/// Deadlines are judged this often.
const TICK: Duration = Duration::from_millis(250);
/// A ping goes out every so many ticks: 500 ms.
const TICKS_PER_PING: u64 = 2;
/// So many pings without an answer break the link: 2 s. Counted, not timed: a pause of this process is no silence of
/// the peer.
const UNANSWERED_PINGS_MAX: u64 = 4;
/// How long the farewell may take.
const FAREWELL: Duration = Duration::from_millis(200);
const READ_BYTES: usize = 64 * 1024;
/// What the number of a frame adds to it, at most.
const SEQUENCE_BYTES: usize = 11;

/// Numbers the links of this process.
static LINKS: AtomicU64 = AtomicU64::new(1);

/// The two connections of a link, after `Hello`.
#[derive(Debug)]
pub struct Streams<S> {
    /// Control lane.
    pub control: S,
    /// Data lane.
    pub data: S,
}

/// The largest frames of a link, without their length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameBounds {
    /// What this broker takes.
    pub receives: usize,
    /// What the peer takes, as it has announced.
    pub sends: usize,
}

/// One link to one incarnation of a peer. Sending never waits.
#[derive(Debug)]
pub struct Link {
    number: u64,
    peer: Member,
    peer_epoch: MemberEpoch,
    own_epoch: MemberEpoch,
    frame_bytes_max: FrameBounds,
    control: SendLane,
    data: SendLane,
    data_received: AtomicU64,
    pings_sent: AtomicU64,
    pings_answered: AtomicU64,
    /// When the last ping left that the peer has answered; nanoseconds of our boot-time clock.
    answered_nanos: AtomicU64,
    end: Mutex<Option<LinkEnd>>,
    ending: CancellationToken,
    down: CancellationToken,
}

impl Link {
    /// A link that is not running yet.
    #[must_use]
    pub fn new(
        peer: Member,
        peer_epoch: MemberEpoch,
        own_epoch: MemberEpoch,
        frame_bytes_max: FrameBounds,
    ) -> Self {
        Self {
            number: LINKS.fetch_add(1, Ordering::Relaxed),
            peer,
            peer_epoch,
            own_epoch,
            frame_bytes_max,
            control: SendLane::default(),
            data: SendLane::default(),
            data_received: AtomicU64::new(0),
            pings_sent: AtomicU64::new(0),
            pings_answered: AtomicU64::new(0),
            answered_nanos: AtomicU64::new(boot_time_nanos()),
            end: Mutex::new(None),
            ending: CancellationToken::new(),
            down: CancellationToken::new(),
        }
    }

    /// Tells the link apart from every other one of this process, those that have ended included; never 0.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The incarnation at the other end.
    #[must_use]
    pub fn peer(&self) -> &Member {
        &self.peer
    }

    /// Sends on the lane that `body` belongs to. A full queue breaks the link; what was sent on a link that ends is
    /// lost.
    ///
    /// # Errors
    ///
    /// [`PushError::Shed`] only for [`Crowding::Shed`]; [`PushError::Full`] after breaking the link;
    /// [`PushError::TooLarge`] before anything was sent: only this body fails.
    pub fn send(&self, body: Body, crowding: Crowding) -> Result<(), PushError> {
        let lane = body.lane();
        let mut frame = Frame { sender_epoch: self.own_epoch.0, data_sequence: 0, body: Some(body) };
        let (bytes, bytes_max) = (frame.encoded_len() + SEQUENCE_BYTES, self.frame_bytes_max.sends);
        if bytes > bytes_max {
            tracing::warn!(peer = %self.peer.id, bytes, bytes_max, "frame is larger than the peer takes");
            return Err(PushError::TooLarge { bytes, bytes_max });
        }
        let pushed = self.lane(lane).push(crowding, move |sequence| {
            frame.data_sequence = if lane == Lane::Data { sequence } else { 0 };
            frame.to_wire()
        });
        if pushed == Err(PushError::Full) {
            self.break_off(LinkEnd::Overflow);
        }
        pushed
    }

    /// Number of the last data frame sent on this link.
    #[must_use]
    pub fn data_sent(&self) -> u64 {
        self.data.sequence()
    }

    /// Number of the last data frame of the peer that was handled.
    #[must_use]
    pub fn data_received(&self) -> u64 {
        self.data_received.load(Ordering::SeqCst)
    }

    /// How long ago the last ping left that the peer has answered.
    #[must_use]
    pub fn silence(&self) -> Duration {
        Duration::from_nanos(boot_time_nanos().saturating_sub(self.answered_nanos.load(Ordering::Acquire)))
    }

    /// Ends the link; the first reason counts.
    pub fn break_off(&self, end: LinkEnd) {
        self.end.lock().get_or_insert(end);
        self.ending.cancel();
    }

    /// Completes when the link has ended and its handler was told.
    pub async fn ended(&self) {
        self.down.cancelled().await;
    }

    fn lane(&self, lane: Lane) -> &SendLane {
        match lane {
            Lane::Control => &self.control,
            Lane::Data => &self.data,
        }
    }

    /// Runs the link, which the handler knows already, until it ends; then tells the handler and leaves `table`.
    pub async fn run<S>(
        self: Arc<Self>,
        streams: Streams<S>,
        handler: Arc<dyn LinkHandler>,
        table: &LinkTable,
    ) where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (control_reader, control_writer) = split(streams.control);
        let (data_reader, data_writer) = split(streams.data);
        let mut readers = JoinSet::new();
        readers.spawn(Arc::clone(&self).read(Lane::Control, control_reader, Arc::clone(&handler)));
        readers.spawn(Arc::clone(&self).read(Lane::Data, data_reader, Arc::clone(&handler)));
        let mut writers = JoinSet::new();
        writers.spawn(Arc::clone(&self).write(Lane::Control, control_writer));
        writers.spawn(Arc::clone(&self).write(Lane::Data, data_writer));
        tokio::select! {
            () = self.ending.cancelled() => {}
            () = self.beat(&*handler) => {}
            Some(_) = readers.join_next() => {}
            Some(_) = writers.join_next() => {}
        }
        self.break_off(LinkEnd::Connection("a task of the link ended".into()));
        // No frame is handled after the handler was told that the link is down.
        readers.shutdown().await;
        // The writer of the control lane says farewell before it ends.
        let _ = timeout(FAREWELL, writers.join_all()).await;
        let end = self.end.lock().clone().unwrap_or(LinkEnd::Stopping);
        tracing::info!(peer = %self.peer.id, %end, "peer link is down");
        handler.link_down(&self, &end);
        table.remove(&self);
        self.down.cancel();
    }

    /// Heartbeat and deadlines; returns when the peer is silent.
    async fn beat(self: &Arc<Self>, handler: &dyn LinkHandler) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for tick in 0_u64.. {
            ticks.tick().await;
            handler.tick(self);
            if tick % TICKS_PER_PING != 0 {
                continue;
            }
            let sent = self.pings_sent.load(Ordering::Acquire);
            if sent - self.pings_answered.load(Ordering::Acquire) >= UNANSWERED_PINGS_MAX {
                return self.break_off(LinkEnd::NoAnswer);
            }
            self.pings_sent.store(sent + 1, Ordering::Release);
            let ping = Ping { sent_at_nanos: boot_time_nanos(), grant_asked_at_nanos: None };
            let _ = self.send(Body::Ping(ping), Crowding::Urgent);
        }
    }

    async fn read<S: AsyncRead + Send>(
        self: Arc<Self>,
        lane: Lane,
        mut reader: ReadHalf<S>,
        handler: Arc<dyn LinkHandler>,
    ) {
        let mut input = BytesMut::with_capacity(READ_BYTES);
        let mut progress = Progress::default();
        loop {
            match reader.read_buf(&mut input).await {
                Ok(0) => return self.break_off(LinkEnd::Connection("closed by the peer".into())),
                Ok(_) => {}
                Err(error) => return self.break_off(LinkEnd::Connection(error.to_string())),
            }
            if let Err(end) = self.handle_input(lane, &mut input, &mut progress, &*handler) {
                return self.break_off(end);
            }
        }
    }

    /// Handles all whole frames of `input`.
    fn handle_input(
        self: &Arc<Self>,
        lane: Lane,
        input: &mut BytesMut,
        progress: &mut Progress,
        handler: &dyn LinkHandler,
    ) -> Result<(), LinkEnd> {
        while let Some((frame, bytes)) = take_frame(input, self.frame_bytes_max.receives)? {
            progress.processed_bytes += bytes as u64;
            // Frames of an older epoch than the link's are dropped; the link itself belongs to one incarnation.
            if frame.sender_epoch >= self.peer_epoch.0 {
                self.handle_frame(lane, frame, handler)?;
            }
            if progress.processed_bytes - progress.granted_bytes >= CREDIT_STEP_BYTES {
                self.grant(lane, progress);
            }
        }
        if lane == Lane::Data {
            handler.data_processed(self, self.data_received());
        }
        input.reserve(READ_BYTES);
        Ok(())
    }

    fn handle_frame(
        self: &Arc<Self>,
        lane: Lane,
        frame: Frame,
        handler: &dyn LinkHandler,
    ) -> Result<(), LinkEnd> {
        let body = frame.body.ok_or(WireError::Missing { field: "body" })?;
        if body.lane() != lane {
            return Err(WireError::Value { field: "lane", value: lane as u64 }.into());
        }
        if lane == Lane::Data {
            if frame.data_sequence != self.data_received() + 1 {
                return Err(WireError::Value { field: "data_sequence", value: frame.data_sequence }.into());
            }
            handler.handle_data(self, body)?;
            self.data_received.store(frame.data_sequence, Ordering::SeqCst);
            return Ok(());
        }
        if let Body::Credit(credit) = body {
            self.handle_credit(credit)?;
        } else if let Body::Break(farewell) = body {
            let Break { reason, gives_up_forwards } = farewell;
            return Err(LinkEnd::ByPeer { reason, gives_up_forwards });
        } else if let Body::Pong(Pong { sent_at_nanos, granted_asked_at_nanos: None }) = body {
            self.handle_pong(sent_at_nanos);
        } else {
            if let Body::Ping(ping) = &body {
                let pong = Pong { sent_at_nanos: ping.sent_at_nanos, granted_asked_at_nanos: None };
                let _ = self.send(Body::Pong(pong), Crowding::Urgent);
            }
            handler.handle_control(self, body)?;
        }
        Ok(())
    }

    fn handle_pong(&self, sent_at_nanos: u64) {
        // Every ping is answered once and in order; grants asked with a ping of their own are answered too, so the
        // count is kept from passing what was sent.
        let sent = self.pings_sent.load(Ordering::Acquire);
        let answered = self.pings_answered.load(Ordering::Acquire) + 1;
        self.pings_answered.store(answered.min(sent), Ordering::Release);
        self.answered_nanos.fetch_max(sent_at_nanos.min(boot_time_nanos()), Ordering::AcqRel);
    }

    fn handle_credit(&self, credit: Credit) -> Result<(), WireError> {
        let lane = Lane::from_number(credit.lane)
            .ok_or(WireError::Value { field: "credit lane", value: credit.lane.into() })?;
        if self.lane(lane).grant(credit.processed_bytes) {
            Ok(())
        } else {
            Err(WireError::Value { field: "processed_bytes", value: credit.processed_bytes })
        }
    }

    fn grant(&self, lane: Lane, progress: &mut Progress) {
        progress.granted_bytes = progress.processed_bytes;
        let credit = Credit { lane: lane as u32, processed_bytes: progress.processed_bytes };
        let _ = self.send(Body::Credit(credit), Crowding::Urgent);
    }

    async fn write<S: AsyncWrite + Send>(self: Arc<Self>, lane: Lane, mut writer: WriteHalf<S>) {
        loop {
            let batch = tokio::select! {
                batch = self.lane(lane).next_batch() => batch,
                () = self.ending.cancelled() => break,
            };
            // The control lane finishes what it has begun, so that the farewell can follow; that is bounded by whoever
            // waits for the writers.
            let written = tokio::select! {
                written = async { writer.write_all(&batch).await?; writer.flush().await } => written,
                () = self.ending.cancelled(), if lane == Lane::Data => return,
            };
            if let Err(error) = written {
                return self.break_off(LinkEnd::Connection(error.to_string()));
            }
        }
        let end = self.end.lock().clone();
        if let (Lane::Control, Some(end)) = (lane, end) {
            let gives_up_forwards = end.gives_up_forwards();
            let farewell = Body::Break(Break { reason: end.to_string(), gives_up_forwards });
            let frame = Frame { sender_epoch: self.own_epoch.0, data_sequence: 0, body: Some(farewell) };
            let _ = writer.write_all(&frame.to_wire()).await;
        }
        let _ = writer.shutdown().await;
    }
}

/// How far a reader has come.
#[derive(Debug, Default)]
struct Progress {
    processed_bytes: u64,
    granted_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::wire::deliver::Forward;
    use tidemill_core::member::{Incarnation, MemberId};

    fn link() -> Link {
        let peer = Member { id: MemberId::new("b"), incarnation: Incarnation(1) };
        Link::new(peer, MemberEpoch(1), MemberEpoch(1), FrameBounds { receives: 2_000, sends: 1_000 })
    }

    #[test]
    fn no_two_links_have_the_same_number_even_when_the_first_is_gone() {
        let numbers: std::collections::BTreeSet<u64> =
            (0..1_000).map(|_| Arc::new(link()).number()).collect();

        assert_eq!(numbers.len(), 1_000);
    }

    #[test]
    fn a_frame_that_the_peer_does_not_take_fails_alone_and_uses_no_number() {
        let link = link();
        let forward = |bytes| Body::Forward(Forward { sequence: 0, record: vec![0; bytes].into() });

        assert!(matches!(link.send(forward(1_000), Crowding::Waits), Err(PushError::TooLarge { .. })));
        assert_eq!(link.data_sent(), 0);
        assert_eq!(*link.end.lock(), None);
        assert_eq!(link.send(forward(900), Crowding::Waits), Ok(()));
    }
}
