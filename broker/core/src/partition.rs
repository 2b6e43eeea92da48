//! Partitions of the log, partition groups, and where a queue lives.

use xxhash_rust::xxh3::Xxh3;

/// Most partitions a log may have: a durable route is a bitmap of partitions in one `u64`.
pub const PARTITIONS_MAX: u16 = 64;

/// One ordered sequence of the log, `0..P`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(pub u16);

/// The unit of ownership: partitions `p` with `p % G == group`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionGroup(pub u16);

/// Position of a record in its partition. Increasing; only hints may rely on it being contiguous.
pub type Offset = u64;

/// What kind of receiver a queue serves. The numbers are persisted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum QueueKind {
    /// A persistent session; the name is the client id.
    Session = 1,
    /// A durable shared-subscription group; the name is the `ShareName`.
    SharedGroup = 2,
    /// A consumer of a stream.
    StreamConsumer = 3,
}

impl QueueKind {
    /// Reads the persisted number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Session),
            2 => Some(Self::SharedGroup),
            3 => Some(Self::StreamConsumer),
            _ => None,
        }
    }
}

/// How many partitions and groups a cluster has. Fixed when the log is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partitioning {
    partitions: u16,
    groups: u16,
}

/// The numbers do not make a partitioning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{partitions} partitions in {groups} groups: allowed are 1 to 64 partitions and 1 to that many groups"
)]
pub struct PartitioningError {
    /// Partitions asked for.
    pub partitions: u16,
    /// Groups asked for.
    pub groups: u16,
}

impl Partitioning {
    /// `partitions` in `1..=64`, `groups` in `1..=partitions`.
    ///
    /// # Errors
    ///
    /// [`PartitioningError`] outside these bounds; the caller refuses to start.
    pub fn new(partitions: u16, groups: u16) -> Result<Self, PartitioningError> {
        if (1..=PARTITIONS_MAX).contains(&partitions) && (1..=partitions).contains(&groups) {
            Ok(Self { partitions, groups })
        } else {
            Err(PartitioningError { partitions, groups })
        }
    }

    /// Number of partitions.
    #[must_use]
    pub fn partition_count(self) -> u16 {
        self.partitions
    }

    /// Number of partition groups.
    #[must_use]
    pub fn group_count(self) -> u16 {
        self.groups
    }

    /// All partitions in order.
    pub fn partitions(self) -> impl Iterator<Item = Partition> {
        (0..self.partitions).map(Partition)
    }

    /// All groups in order.
    pub fn groups(self) -> impl Iterator<Item = PartitionGroup> {
        (0..self.groups).map(PartitionGroup)
    }

    /// Where the queue of `kind` and `name` lives: XXH3-64 with seed 0 over the kind's number and the name, modulo `P`.
    #[must_use]
    pub fn partition_of(self, kind: QueueKind, name: &str) -> Partition {
        let mut hash = Xxh3::new();
        hash.update(&[kind as u8]);
        hash.update(name.as_bytes());
        let partition = hash.digest() % u64::from(self.partitions);
        Partition(u16::try_from(partition).expect("a remainder is below the u16 it was divided by"))
    }

    /// The group that `partition` belongs to.
    #[must_use]
    pub fn group_of(self, partition: Partition) -> PartitionGroup {
        PartitionGroup(partition.0 % self.groups)
    }

    /// The partitions of `group`, in order.
    pub fn partitions_of(self, group: PartitionGroup) -> impl Iterator<Item = Partition> {
        (group.0..self.partitions).step_by(usize::from(self.groups)).map(Partition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placement_never_changes_golden_vectors() {
        let partitioning = Partitioning::new(32, 16).unwrap();
        let place = |kind, name| partitioning.partition_of(kind, name).0;

        let placed = [
            place(QueueKind::Session, ""),
            place(QueueKind::Session, "sensor-1"),
            place(QueueKind::Session, "sensor-2"),
            place(QueueKind::Session, "Zürich"),
            place(QueueKind::SharedGroup, "sensor-1"),
            place(QueueKind::StreamConsumer, "sensor-1"),
        ];

        assert_eq!(placed, [11, 2, 2, 10, 3, 10]);
    }
    #[test]
    fn every_partition_is_in_exactly_one_group() {
        let partitioning = Partitioning::new(33, 16).unwrap();
        let mut seen: Vec<_> =
            partitioning.groups().flat_map(|group| partitioning.partitions_of(group)).collect();
        seen.sort();

        assert_eq!(seen, partitioning.partitions().collect::<Vec<_>>());
    }
}
