//! The one thread that writes the log: it takes what waits, writes it with one write, syncs as often as configured, and
//! tells everyone what is done.

mod copying;
mod roll;
mod space;
mod trims;

use super::disk::Shares;
use super::durability::{Durability, Unsynced};
use super::format::{Before, Frame, FrameBody, Place, RunKind, encode_frame};
use super::segment::{PlacedRecord, Segment};
use super::shared::{LossRequest, Shared, TrimRequest};
use crate::log::intake::{BatchLimit, PendingAppend, Phase};
use crate::log::{AppendDone, AppendError, ReadError, StoredRecord};
use copying::Copying;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tidemill_core::partition::{Offset, Partition};

/// Most that one write and one sync carry, beside at most one piece of copied records.
const BATCH: BatchLimit = BatchLimit { records: 8_192, bytes: 4 << 20 };

/// Nothing can be committed any more.
struct Stopped;

pub(super) struct Committer {
    shared: Arc<Shared>,
    active: Arc<Segment>,
    shares: Shares,
    unsynced: Unsynced,
    /// Of the last batch in the active segment.
    batch: u32,
    next: Vec<Offset>,
    floors: Vec<Offset>,
    frames: Vec<u8>,
    /// The oldest segment, while its live records are being copied.
    copying: Option<Copying>,
    /// There may be further segments to remove.
    is_removing: bool,
    /// A segment that cannot be copied, because it is damaged. It stays until it is trimmed.
    uncopyable: Option<u64>,
    stopped: bool,
}

/// Where the last run of the broker left the log.
pub(super) struct Resume {
    pub(super) active: Arc<Segment>,
    pub(super) batch: u32,
    pub(super) next: Vec<Offset>,
    pub(super) floors: Vec<Offset>,
}

/// Everything that goes into one batch.
struct Work {
    appends: Vec<PendingAppend>,
    copies: Vec<(Partition, StoredRecord)>,
    trims: Vec<TrimRequest>,
}

impl Work {
    fn frames(&self) -> usize {
        self.appends.len() + self.copies.len() + self.trims.len()
    }
}

/// A batch that is laid out.
struct Laid {
    /// Places of appends, then of copies.
    records: Vec<PlacedRecord>,
    appends: Vec<Append>,
    trims: Vec<TrimRequest>,
}

/// An append that has its offset.
struct Append {
    partition: Partition,
    record: StoredRecord,
    done: AppendDone,
}

impl Committer {
    pub(super) fn new(shared: Arc<Shared>, resume: Resume, shares: Shares, durability: Durability) -> Self {
        let Resume { active, batch, next, floors } = resume;
        Self {
            shared,
            active,
            shares,
            unsynced: Unsynced::new(durability),
            batch,
            next,
            floors,
            frames: Vec::new(),
            copying: None,
            is_removing: false,
            uncopyable: None,
            stopped: false,
        }
    }

    /// Runs until the intake has ended.
    pub(super) fn run(mut self) {
        let health = Arc::clone(&self.shared.health);
        let _guard = health.guard("tidemill-log");
        self.plan_copying();
        loop {
            let is_busy = self.copying.is_some() || self.is_removing;
            let until = if is_busy { Some(Instant::now()) } else { self.unsynced.due() };
            let batch = self.shared.intake.next_batch_until(BATCH, until);
            for (done, error) in batch.answers {
                done(Err(error));
            }
            self.stopped |= health.is_closed();
            let (trims, losses) = (self.take_trims(), self.take_losses());
            if self.stopped {
                self.refuse(batch.appends);
                refuse_trims(trims);
                refuse_losses(losses);
            } else if self.turn(batch.appends, trims, losses, batch.phase).is_err() {
                self.stopped = true;
                health.close();
                self.shared.intake.close();
                let waiting = self.shared.intake.take_all();
                self.refuse(waiting);
            }
            match batch.phase {
                Phase::Open => {}
                Phase::Closing => health.close(),
                Phase::Ended => {
                    refuse_losses(self.take_losses());
                    return refuse_trims(self.take_trims());
                }
            }
        }
    }

    fn turn(
        &mut self,
        appends: Vec<PendingAppend>,
        trims: Vec<TrimRequest>,
        losses: Vec<LossRequest>,
        phase: Phase,
    ) -> Result<(), Stopped> {
        let copies = if phase == Phase::Open { self.next_copies() } else { Vec::new() };
        let trims = self.check_trims(trims);
        let outcome = self.commit(Work { appends, copies, trims });
        if outcome.is_err() {
            refuse_losses(losses);
            return outcome;
        }
        if self.is_removing {
            self.remove_segments()?;
        }
        self.end_copying()?;
        if self.active.bytes() >= self.shares.segment_bytes {
            self.roll(&[])?;
        }
        self.give_up(losses)?;
        let is_due = self.unsynced.due().is_some_and(|due| due <= Instant::now());
        if is_due || phase != Phase::Open { self.sync() } else { Ok(()) }
    }

    fn commit(&mut self, work: Work) -> Result<(), Stopped> {
        if work.frames() == 0 {
            return Ok(());
        }
        let laid = self.lay_out(work);
        let mut written = self.write();
        if written.is_ok() && self.unsynced.durability() == Durability::Fsync {
            written = self.sync();
        }
        if let Err(stopped) = written {
            self.refuse_laid(laid);
            return Err(stopped);
        }
        self.publish(laid)
    }

    /// Gives every append its offset and lays out the batch.
    fn lay_out(&mut self, work: Work) -> Laid {
        self.frames.clear();
        let append_time_ms = now_ms();
        let mut batch = Batch {
            begin: self.active.bytes(),
            number: self.batch.wrapping_add(1),
            before: if self.unsynced.is_empty() { Before::Synced } else { Before::Unsynced },
            left: work.frames(),
            segment: &self.active,
            frames: &mut self.frames,
        };
        let mut records = Vec::with_capacity(work.frames());
        let mut appends = Vec::with_capacity(work.appends.len());
        for PendingAppend { partition, bytes, done } in work.appends {
            let next = &mut self.next[usize::from(partition.0)];
            let record = StoredRecord { offset: *next, bytes: bytes.clone(), append_time_ms };
            *next += 1;
            let body = FrameBody::Record { append_time_ms, bytes };
            records.push(batch.add(partition, record.offset, body, RunKind::Own));
            appends.push(Append { partition, record, done });
        }
        for (partition, StoredRecord { offset, bytes, append_time_ms }) in work.copies {
            let body = FrameBody::Copy { append_time_ms, bytes };
            records.push(batch.add(partition, offset, body, RunKind::Copied));
        }
        for trim in &work.trims {
            batch.add(trim.partition, trim.floor, FrameBody::Floor, RunKind::Own);
        }
        Laid { records, appends, trims: work.trims }
    }

    /// Writes the batch behind the committed part. While the disk is full it waits; nothing of a partial write stays.
    fn write(&mut self) -> Result<(), Stopped> {
        let position = self.active.bytes();
        let active = Arc::clone(&self.active);
        let frames = std::mem::take(&mut self.frames);
        let written = self.when_there_is_space(&mut |shared| {
            let file = active.file()?;
            shared.disk.write_at(&file, &frames, position).inspect_err(|_| {
                // If this fails, too, the part is overwritten or cut by the next start.
                let _ = file.set_len(position);
            })
        });
        if written.is_ok() {
            self.unsynced.note_write(Instant::now());
            self.shared.metrics.written_bytes.inc_by(frames.len() as u64);
        }
        self.frames = frames;
        self.frames.shrink_to(BATCH.bytes * 2);
        written
    }

    /// Syncs what was written, if something was.
    fn sync(&mut self) -> Result<(), Stopped> {
        if self.unsynced.is_empty() {
            return Ok(());
        }
        self.shared.metrics.syncs.inc();
        let synced = self.active.file().and_then(|file| self.shared.disk.sync(&file));
        synced.map_err(|error| {
            // Whether the batch is durable can never be found out: a second sync may answer "yes" to pages that the
            // system has dropped after the first.
            self.shared.health.fail(format!("sync of {}: {error}", self.active.path.display()));
            Stopped
        })?;
        self.unsynced.note_sync();
        Ok(())
    }

    /// Makes the batch readable, then tells everyone.
    fn publish(&mut self, laid: Laid) -> Result<(), Stopped> {
        let Laid { records, appends, trims } = laid;
        self.batch = self.batch.wrapping_add(1);
        let end = self.active.bytes() + self.frames.len() as u64;
        self.active.publish(end, records.iter().copied());
        self.note_copies(&records);
        let mut of_partition: Vec<Vec<StoredRecord>> = vec![Vec::new(); self.next.len()];
        let mut answers = Vec::with_capacity(appends.len());
        let mut bytes = 0;
        for Append { partition, record, done } in appends {
            bytes += record.bytes.len();
            answers.push((done, record.offset));
            of_partition[usize::from(partition.0)].push(record);
        }
        for (tail, records) in self.shared.tails.iter().zip(of_partition) {
            if !records.is_empty() {
                tail.push(records.into_iter());
            }
        }
        self.shared.metrics.record_bytes.inc_by(bytes as u64);
        self.shared.intake.congestion.remove(answers.len(), bytes);
        for (done, offset) in answers {
            done(Ok(offset));
        }
        self.apply_trims(trims)
    }

    fn refuse(&self, appends: Vec<PendingAppend>) {
        for append in appends {
            self.shared.intake.congestion.remove(1, append.bytes.len());
            (append.done)(Err(AppendError::Closed));
        }
    }

    fn refuse_laid(&self, laid: Laid) {
        for append in laid.appends {
            self.shared.intake.congestion.remove(1, append.record.bytes.len());
            (append.done)(Err(AppendError::Closed));
        }
        refuse_trims(laid.trims);
    }
}

/// A batch while it is laid out.
struct Batch<'a> {
    /// Where it begins in the segment.
    begin: u64,
    number: u32,
    before: Before,
    /// Frames that are still to come.
    left: usize,
    segment: &'a Segment,
    frames: &'a mut Vec<u8>,
}

impl Batch<'_> {
    fn add(&mut self, partition: Partition, offset: Offset, body: FrameBody, kind: RunKind) -> PlacedRecord {
        let begin = self.frames.len();
        let position = u32::try_from(self.begin + begin as u64)
            .expect("a segment is closed long before its positions are used up");
        let place = if self.left == 1 { Place::LastOfBatch } else { Place::Within };
        self.left = self.left.saturating_sub(1);
        let frame = Frame { partition, offset, batch: self.number, body };
        encode_frame(self.frames, &self.segment.header, &frame, place, self.before);
        let bytes = (self.frames.len() - begin) as u64;
        PlacedRecord { partition, kind, offset, position, bytes }
    }
}

fn refuse_trims(trims: Vec<TrimRequest>) {
    for trim in trims {
        trims::answer(trim, Err(ReadError::Closed));
    }
}

fn refuse_losses(losses: Vec<LossRequest>) {
    for loss in losses {
        // Who asked may have stopped waiting.
        let _ = loss.reply.send(Err(ReadError::Closed));
    }
}

pub(super) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// A salt that no publisher can know.
pub(super) fn new_salt() -> u32 {
    let mut salt = [0; 4];
    // Without randomness the salt is weak, which only matters to a torn write under attack.
    if rustix::rand::getrandom(&mut salt, rustix::rand::GetRandomFlags::empty()).is_err() {
        salt = now_ms().to_le_bytes()[..4].try_into().expect("a u64 has 4 bytes");
    }
    u32::from_le_bytes(salt)
}
