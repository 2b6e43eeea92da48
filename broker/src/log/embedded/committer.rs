//! The one thread that writes the log: it takes what waits, writes it with one write, syncs once, then tells everyone.

use super::disk::{Shares, is_full};
use super::format::{Base, Frame, FrameBody, Place, SegmentHeader, encode_frame};
use super::segment::Segment;
use super::shared::{Shared, TrimRequest};
use crate::log::intake::{BatchLimit, PendingAppend, Phase};
use crate::log::{AppendDone, AppendError, Bounds, ReadError, StoredRecord};
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidemill_core::partition::{Offset, Partition};

/// Most that one write and one sync carry.
const BATCH: BatchLimit = BatchLimit { records: 8_192, bytes: 4 << 20 };
/// Pause between two tries while the disk is full.
const FULL_PAUSE: Duration = Duration::from_secs(1);

/// Nothing can be committed any more.
struct Stopped;

pub(super) struct Committer {
    shared: Arc<Shared>,
    active: Arc<Segment>,
    shares: Shares,
    /// Of the last batch in the active segment.
    batch: u32,
    next: Vec<Offset>,
    floors: Vec<Offset>,
    frames: Vec<u8>,
    stopped: bool,
}

/// Where the last run of the broker left the log.
pub(super) struct Resume {
    pub(super) active: Arc<Segment>,
    pub(super) batch: u32,
    pub(super) next: Vec<Offset>,
    pub(super) floors: Vec<Offset>,
}

/// An append that has its place in the file.
struct Placed {
    partition: Partition,
    position: u32,
    record: StoredRecord,
    done: AppendDone,
}

impl Committer {
    pub(super) fn new(shared: Arc<Shared>, resume: Resume, shares: Shares) -> Self {
        let Resume { active, batch, next, floors } = resume;
        Self { shared, active, shares, batch, next, floors, frames: Vec::new(), stopped: false }
    }

    /// Runs until the intake has ended.
    pub(super) fn run(mut self) {
        let health = Arc::clone(&self.shared.health);
        let _guard = health.guard("tidemill-log");
        loop {
            let batch = self.shared.intake.next_batch(BATCH);
            for (done, error) in batch.answers {
                done(Err(error));
            }
            self.stopped |= health.is_closed();
            let trims = self.take_trims();
            if self.stopped {
                self.refuse(batch.appends);
                refuse_trims(trims);
            } else if self.commit(batch.appends, trims).is_err() {
                self.stopped = true;
                health.close();
                self.shared.intake.close();
                let waiting = self.shared.intake.take_all();
                self.refuse(waiting);
            }
            match batch.phase {
                Phase::Open => {}
                Phase::Closing => health.close(),
                Phase::Ended => return refuse_trims(self.take_trims()),
            }
        }
    }

    fn commit(&mut self, appends: Vec<PendingAppend>, trims: Vec<TrimRequest>) -> Result<(), Stopped> {
        let trims = self.check_trims(trims);
        if appends.is_empty() && trims.is_empty() {
            return Ok(());
        }
        let placed = self.encode(appends, &trims);
        if let Err(stopped) = self.write().and_then(|()| self.sync()) {
            self.refuse_placed(placed);
            refuse_trims(trims);
            return Err(stopped);
        }
        self.publish(placed);
        self.apply_trims(trims);
        if self.active.bytes() >= self.shares.segment_bytes { self.roll() } else { Ok(()) }
    }

    /// Gives every append its offset and lays out the batch.
    fn encode(&mut self, appends: Vec<PendingAppend>, trims: &[TrimRequest]) -> Vec<Placed> {
        self.frames.clear();
        let begin = self.active.bytes();
        let batch = self.batch.wrapping_add(1);
        let append_time_ms = now_ms();
        let frames = appends.len() + trims.len();
        let place = |index| if index + 1 == frames { Place::LastOfBatch } else { Place::Within };
        let mut placed = Vec::with_capacity(appends.len());
        for (index, PendingAppend { partition, bytes, done }) in appends.into_iter().enumerate() {
            let next = &mut self.next[usize::from(partition.0)];
            let record = StoredRecord { offset: *next, bytes: bytes.clone(), append_time_ms };
            *next += 1;
            let position = u32::try_from(begin + self.frames.len() as u64)
                .expect("a segment is closed long before its positions are used up");
            let body = FrameBody::Record { append_time_ms, bytes };
            let frame = Frame { partition, offset: record.offset, batch, body };
            encode_frame(&mut self.frames, self.active.header.salt, &frame, place(index));
            placed.push(Placed { partition, position, record, done });
        }
        let appended = placed.len();
        for (index, trim) in trims.iter().enumerate() {
            let body = FrameBody::Floor;
            let frame = Frame { partition: trim.partition, offset: trim.floor, batch, body };
            encode_frame(&mut self.frames, self.active.header.salt, &frame, place(appended + index));
        }
        placed
    }

    /// Writes the batch behind the committed part. While the disk is full it waits; nothing of a partial write stays.
    fn write(&mut self) -> Result<(), Stopped> {
        let position = self.active.bytes();
        let active = Arc::clone(&self.active);
        let frames = std::mem::take(&mut self.frames);
        let written = self.when_there_is_space(&mut |shared| {
            shared.disk.write_at(active.file(), &frames, position).inspect_err(|_| {
                // If this fails, too, the part is overwritten or cut by the next start.
                let _ = active.file().set_len(position);
            })
        });
        self.frames = frames;
        self.frames.shrink_to(BATCH.bytes * 2);
        written
    }

    fn sync(&mut self) -> Result<(), Stopped> {
        self.shared.disk.sync(self.active.file()).map_err(|error| {
            // Whether the batch is durable can never be found out: a second sync may answer "yes" to pages that the
            // system has dropped after the first.
            self.shared.health.fail(format!("sync of {}: {error}", self.active.path.display()));
            Stopped
        })
    }

    fn publish(&mut self, placed: Vec<Placed>) {
        self.batch = self.batch.wrapping_add(1);
        let bytes = self.active.bytes() + self.frames.len() as u64;
        self.active.publish(bytes, placed.iter().map(|append| (append.partition, append.position)));
        let mut of_partition: Vec<Vec<StoredRecord>> = vec![Vec::new(); self.next.len()];
        let mut answers = Vec::with_capacity(placed.len());
        let mut bytes = 0;
        for Placed { partition, record, done, .. } in placed {
            bytes += record.bytes.len();
            answers.push((done, record.offset));
            of_partition[usize::from(partition.0)].push(record);
        }
        for (tail, records) in self.shared.tails.iter().zip(of_partition) {
            if !records.is_empty() {
                tail.push(records.into_iter());
            }
        }
        self.shared.intake.congestion.remove(answers.len(), bytes);
        for (done, offset) in answers {
            done(Ok(offset));
        }
    }

    /// Seals the active segment and begins the next.
    fn roll(&mut self) -> Result<(), Stopped> {
        let bases = self.next.iter().zip(&self.floors);
        let bases = bases.map(|(offset, floor)| Base { offset: *offset, floor: *floor }).collect();
        let header = SegmentHeader { number: self.active.header.number + 1, salt: new_salt(), bases };
        let mut created = None;
        self.when_there_is_space(&mut |shared| {
            created = Some(Segment::create(&shared.directory, header.clone(), &*shared.disk)?);
            Ok(())
        })?;
        let next = Arc::new(created.expect("there is space, so it was created"));
        self.shared.segments.write().push(Arc::clone(&next));
        let sealed = std::mem::replace(&mut self.active, next);
        self.batch = 0;
        // Without the index a later start makes it from the segment.
        self.when_there_is_space(&mut |_| sealed.seal())?;
        self.remove_segments();
        Ok(())
    }

    /// Repeats `action` until the disk is not full. Meanwhile the log is congested and floors are still applied,
    /// because they make space.
    fn when_there_is_space(
        &mut self,
        action: &mut dyn FnMut(&Shared) -> io::Result<()>,
    ) -> Result<(), Stopped> {
        let shared = Arc::clone(&self.shared);
        let mut full = false;
        loop {
            let free = shared.disk.available(&shared.directory);
            let outcome = match free {
                Ok(free) if free < self.shares.reserved_bytes => Err(io::ErrorKind::StorageFull.into()),
                Ok(_) | Err(_) => action(&shared),
            };
            match outcome {
                Ok(()) => break,
                Err(error) if is_full(&error) => {
                    if !full {
                        tracing::error!(directory = %shared.directory.display(), "disk is full; durable publishes wait");
                        shared.intake.congestion.stall();
                    }
                    full = true;
                }
                Err(error) => {
                    shared.health.fail(format!("write in {}: {error}", shared.directory.display()));
                    return Err(Stopped);
                }
            }
            let trims = self.take_trims();
            let trims = self.check_trims(trims);
            self.apply_trims(trims);
            shared.intake.pause(FULL_PAUSE);
            if shared.intake.phase() != Phase::Open || shared.health.is_closed() {
                shared.intake.congestion.unstall();
                return Err(Stopped);
            }
        }
        if full {
            tracing::info!(directory = %shared.directory.display(), "disk has space again");
            shared.intake.congestion.unstall();
        }
        Ok(())
    }

    fn take_trims(&self) -> Vec<TrimRequest> {
        std::mem::take(&mut *self.shared.trims.lock())
    }

    /// Answers floors that are out of range or old; what is left moves the floors.
    fn check_trims(&mut self, trims: Vec<TrimRequest>) -> Vec<TrimRequest> {
        let mut moving = Vec::new();
        for trim in trims {
            let partition = usize::from(trim.partition.0);
            let Some(tail) = self.shared.tails.get(partition) else { continue };
            let Bounds { start, end } = tail.bounds();
            let floor = &mut self.floors[partition];
            if trim.floor > end {
                let (partition, offset) = (trim.partition.0, trim.floor);
                let error = ReadError::OutOfRange { partition, offset, start, end };
                answer(trim, Err(error));
            } else if trim.floor <= *floor {
                answer(trim, Ok(()));
            } else {
                *floor = trim.floor;
                moving.push(trim);
            }
        }
        moving
    }

    fn apply_trims(&mut self, trims: Vec<TrimRequest>) {
        if trims.is_empty() {
            return;
        }
        for trim in &trims {
            self.shared.tails[usize::from(trim.partition.0)].trim(trim.floor);
        }
        self.remove_segments();
        for trim in trims {
            answer(trim, Ok(()));
        }
    }

    /// Removes the oldest segments as long as every floor is at or beyond the beginning of the next one.
    fn remove_segments(&mut self) {
        let mut segments = self.shared.segments.write();
        let nothing_left = |next: &Segment| {
            next.header.bases.iter().zip(&self.floors).all(|(base, floor)| base.offset <= *floor)
        };
        while let [oldest, next, ..] = segments.as_slice()
            && nothing_left(next)
        {
            // A file that stays is removed after the next start or by the administrator; nothing reads it.
            if let Err(error) = oldest.remove() {
                tracing::warn!(segment = %oldest.path.display(), %error, "trimmed segment not removed");
            }
            segments.remove(0);
        }
    }

    fn refuse(&self, appends: Vec<PendingAppend>) {
        for append in appends {
            self.shared.intake.congestion.remove(1, append.bytes.len());
            (append.done)(Err(AppendError::Closed));
        }
    }

    fn refuse_placed(&self, placed: Vec<Placed>) {
        for append in placed {
            self.shared.intake.congestion.remove(1, append.record.bytes.len());
            (append.done)(Err(AppendError::Closed));
        }
    }
}

fn refuse_trims(trims: Vec<TrimRequest>) {
    for trim in trims {
        answer(trim, Err(ReadError::Closed));
    }
}

fn answer(trim: TrimRequest, result: Result<(), ReadError>) {
    // Who asked may have stopped waiting; the floor counts anyway.
    let _ = trim.reply.send(result);
}

fn now_ms() -> u64 {
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
