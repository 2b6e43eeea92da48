//! Takes appends in order and hands them in batches to the one committer thread of a log.

use super::congestion::Congestion;
use super::{AppendDone, AppendError, BuildRecord, Sequence};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tidemill_core::partition::{Partition, Partitioning};

/// An append that has its place in the order of its partition.
pub(super) struct PendingAppend {
    pub(super) partition: Partition,
    pub(super) bytes: Bytes,
    pub(super) done: AppendDone,
}

/// Whether the intake takes appends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Yes.
    Open,
    /// No: what was taken before is still committed, later appends are answered `Closed`.
    Closing,
    /// All handles are gone: the committer ends.
    Ended,
}

/// What the committer does next.
pub(super) struct Batch {
    /// To be committed, in this order.
    pub(super) appends: Vec<PendingAppend>,
    /// To be answered at once.
    pub(super) answers: Vec<(AppendDone, AppendError)>,
    pub(super) phase: Phase,
}

/// The bound of one batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchLimit {
    pub(super) records: usize,
    /// Reached, not exceeded by more than one record.
    pub(super) bytes: usize,
}

/// What becomes of appends to a partition.
enum Admission {
    Admitted,
    /// They wait, in their order.
    Held(Vec<PendingAppend>),
    /// They never will be committed, for this reason.
    Refused(String),
}

/// The queue between all appenders and the committer. Bounded by the callers' windows, which stop when
/// [`Intake::congestion`] says so.
pub(super) struct Intake {
    /// The next sequence number of each partition. Held over building and queueing: this is the partition's order.
    sequences: Vec<Mutex<Sequence>>,
    queue: Mutex<Queue>,
    arrived: Condvar,
    record_bytes_max: usize,
    pub(super) congestion: Congestion,
}

struct Queue {
    /// What becomes of the appends to each partition.
    admissions: Vec<Admission>,
    appends: VecDeque<PendingAppend>,
    answers: Vec<(AppendDone, AppendError)>,
    phase: Phase,
    poked: bool,
}

impl Intake {
    pub(super) fn new(partitioning: Partitioning, record_bytes_max: usize) -> Self {
        let first = Sequence { producer: 1, sequence: 0 };
        let queue = Queue {
            admissions: partitioning.partitions().map(|_| Admission::Admitted).collect(),
            appends: VecDeque::new(),
            answers: Vec::new(),
            phase: Phase::Open,
            poked: false,
        };
        Self {
            sequences: partitioning.partitions().map(|_| Mutex::new(first)).collect(),
            queue: Mutex::new(queue),
            arrived: Condvar::new(),
            record_bytes_max,
            congestion: Congestion::new(),
        }
    }

    /// Gives the record its sequence number and queues it. `done` is never called from here.
    pub(super) fn append(&self, partition: Partition, build: BuildRecord<'_>, done: AppendDone) {
        let Some(sequence) = self.sequences.get(usize::from(partition.0)) else {
            let reason = "there is no such partition".to_owned();
            return self.answer(done, AppendError::Refused { partition: partition.0, bytes: 0, reason });
        };
        let mut sequence = sequence.lock();
        let bytes = build(*sequence);
        if bytes.len() > self.record_bytes_max {
            let reason = format!("larger than {} bytes", self.record_bytes_max);
            return self
                .answer(done, AppendError::Refused { partition: partition.0, bytes: bytes.len(), reason });
        }
        let mut queue = self.queue.lock();
        let Queue { admissions, appends, answers, phase, .. } = &mut *queue;
        if *phase != Phase::Open {
            answers.push((done, AppendError::Closed));
        } else if let Admission::Refused(reason) = &admissions[usize::from(partition.0)] {
            let (bytes, reason) = (bytes.len(), reason.clone());
            answers.push((done, AppendError::Refused { partition: partition.0, bytes, reason }));
        } else {
            sequence.sequence += 1;
            self.congestion.add(bytes.len());
            let append = PendingAppend { partition, bytes, done };
            match &mut admissions[usize::from(partition.0)] {
                Admission::Held(held) => held.push(append),
                Admission::Admitted | Admission::Refused(_) => appends.push_back(append),
            }
        }
        self.arrived.notify_one();
    }

    /// Appends wait from now on until their partition is admitted or refused.
    pub(super) fn hold(&self) {
        for admission in &mut self.queue.lock().admissions {
            *admission = Admission::Held(Vec::new());
        }
    }

    /// Appends to `partition` are committed, also those that were held.
    pub(super) fn admit(&self, partition: Partition) {
        let mut queue = self.queue.lock();
        let Queue { admissions, appends, .. } = &mut *queue;
        let Some(admission) = admissions.get_mut(usize::from(partition.0)) else { return };
        if let Admission::Held(held) = std::mem::replace(admission, Admission::Admitted) {
            appends.extend(held);
        }
        self.arrived.notify_one();
    }

    /// Appends to `partition` are refused, also those that were held.
    pub(super) fn refuse(&self, partition: Partition, reason: &str) {
        let mut queue = self.queue.lock();
        let Some(admission) = queue.admissions.get_mut(usize::from(partition.0)) else { return };
        let former = std::mem::replace(admission, Admission::Refused(reason.to_owned()));
        let refused =
            |bytes| AppendError::Refused { partition: partition.0, bytes, reason: reason.to_owned() };
        self.answer_held(&mut queue, former, refused);
        self.arrived.notify_one();
    }

    fn answer_held(&self, queue: &mut Queue, former: Admission, error: impl Fn(usize) -> AppendError) {
        let Admission::Held(held) = former else { return };
        for PendingAppend { bytes, done, .. } in held {
            self.congestion.remove(1, bytes.len());
            queue.answers.push((done, error(bytes.len())));
        }
    }

    fn answer(&self, done: AppendDone, error: AppendError) {
        self.queue.lock().answers.push((done, error));
        self.arrived.notify_one();
    }

    /// Waits until there is something to do and takes it. For the committer alone.
    pub(super) fn next_batch(&self, limit: BatchLimit) -> Batch {
        self.next_batch_until(limit, None)
    }

    /// The same; waits no longer than `until`, and takes nothing if nothing came.
    pub(super) fn next_batch_until(&self, limit: BatchLimit, until: Option<Instant>) -> Batch {
        let mut queue = self.queue.lock();
        let seen = queue.phase;
        while queue.appends.is_empty()
            && queue.answers.is_empty()
            && !queue.poked
            && queue.phase == seen
            && queue.phase != Phase::Ended
        {
            match until {
                None => self.arrived.wait(&mut queue),
                Some(until) if self.arrived.wait_until(&mut queue, until).timed_out() => break,
                Some(_) => {}
            }
        }
        let mut bytes = 0;
        let mut appends = Vec::new();
        while bytes < limit.bytes && appends.len() < limit.records {
            let Some(append) = queue.appends.pop_front() else { break };
            bytes += append.bytes.len();
            appends.push(append);
        }
        // The end of the intake is told with its last append, so nothing may be left behind it.
        queue.poked = !queue.appends.is_empty() && queue.phase != Phase::Open;
        let phase = if queue.poked { Phase::Open } else { queue.phase };
        Batch { appends, answers: std::mem::take(&mut queue.answers), phase }
    }

    /// Wakes the committer although nothing was appended.
    pub(super) fn poke(&self) {
        self.queue.lock().poked = true;
        self.arrived.notify_one();
    }

    /// Waits until poked, closed or the time is over; appends do not wake it. For the committer alone.
    pub(super) fn pause(&self, time: Duration) {
        let deadline = Instant::now() + time;
        let mut queue = self.queue.lock();
        while !queue.poked
            && queue.phase == Phase::Open
            && !self.arrived.wait_until(&mut queue, deadline).timed_out()
        {}
        if queue.phase == Phase::Open {
            queue.poked = false;
        }
    }

    pub(super) fn phase(&self) -> Phase {
        self.queue.lock().phase
    }

    /// Takes no more appends.
    pub(super) fn close(&self) {
        self.advance(Phase::Closing);
    }

    /// Lets the committer end.
    pub(super) fn end(&self) {
        self.advance(Phase::Ended);
    }

    fn advance(&self, phase: Phase) {
        let mut queue = self.queue.lock();
        if queue.phase != Phase::Ended {
            queue.phase = phase;
        }
        for place in 0..queue.admissions.len() {
            let former = std::mem::replace(&mut queue.admissions[place], Admission::Admitted);
            self.answer_held(&mut queue, former, |_| AppendError::Closed);
        }
        queue.poked = true;
        self.arrived.notify_all();
    }

    /// Takes everything that waits and starts the next producer number: its appends count from 0 again. For the
    /// committer alone.
    pub(super) fn restart_producer(&self) -> Vec<PendingAppend> {
        let mut sequences: Vec<_> = self.sequences.iter().map(Mutex::lock).collect();
        for sequence in &mut sequences {
            **sequence = Sequence { producer: sequence.producer + 1, sequence: 0 };
        }
        self.queue.lock().appends.drain(..).collect()
    }

    /// Takes everything that waits. For the committer alone, when nothing can be committed any more.
    pub(super) fn take_all(&self) -> Vec<PendingAppend> {
        self.queue.lock().appends.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use tidemill_core::partition::Offset;

    type Answer = mpsc::Receiver<Result<Offset, AppendError>>;

    fn append(intake: &Intake, partition: u16, bytes: &'static [u8]) -> Answer {
        let (answer, answered) = mpsc::channel();
        let build = &mut |_| Bytes::from_static(bytes);
        intake.append(Partition(partition), build, Box::new(move |result| drop(answer.send(result))));
        answered
    }

    /// What the committer takes now, as text; it answers what it is told to.
    fn taken(intake: &Intake) -> Vec<&'static str> {
        intake.poke();
        let batch = intake.next_batch(BatchLimit { records: 100, bytes: 100 });
        for (done, error) in batch.answers {
            done(Err(error));
        }
        let text = |append: &PendingAppend| String::from_utf8(append.bytes.to_vec()).unwrap().leak() as &str;
        batch.appends.iter().map(text).collect()
    }

    #[test]
    fn what_is_held_keeps_its_order_until_its_partition_is_admitted_or_refused() {
        let intake = Intake::new(Partitioning::new(3, 1).unwrap(), 1_000);
        intake.hold();
        let answers = [append(&intake, 0, b"a"), append(&intake, 1, b"b"), append(&intake, 0, b"c")];
        assert!(taken(&intake).is_empty());

        intake.admit(Partition(0));
        let behind = append(&intake, 0, b"d");
        intake.refuse(Partition(1), "lost");
        let refused = append(&intake, 1, b"e");

        assert_eq!(taken(&intake), ["a", "c", "d"]);
        for (answer, expected) in [(&answers[0], None), (&answers[1], Some("lost")), (&refused, Some("lost"))]
        {
            let reason = match answer.try_recv() {
                Ok(Err(AppendError::Refused { partition: 1, reason, .. })) => Some(reason),
                Err(mpsc::TryRecvError::Empty | mpsc::TryRecvError::Disconnected) => None,
                other => panic!("{other:?}"),
            };
            assert_eq!(reason.as_deref(), expected);
        }
        drop(behind);
    }

    #[test]
    fn what_is_held_when_the_log_closes_is_answered_so() {
        let intake = Intake::new(Partitioning::new(3, 1).unwrap(), 1_000);
        intake.hold();
        let held = append(&intake, 2, b"a");

        intake.close();

        assert!(taken(&intake).is_empty());
        assert_eq!(held.try_recv(), Ok(Err(AppendError::Closed)));
        assert!(intake.congestion.is_empty());
    }
}
