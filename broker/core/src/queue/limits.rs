//! What a queue may hold, and what happens beyond it.

/// Bounds of every queue of a broker, and which messages are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// Messages that may wait.
    pub messages: u64,
    /// Bytes of the messages that may wait, as [`Message::held_bytes`](crate::message::Message::held_bytes) counts. The
    /// newest message stays whatever its size.
    pub bytes: u64,
    /// Milliseconds after its publish from which on a message that still waits is dropped; `None`: never.
    pub age_ms: Option<u64>,
    /// What gives way at the bounds.
    pub policy: QueuePolicy,
    /// How often a message is handed out before it is given up; `None`: for as long as it takes.
    pub deliveries_max: Option<u16>,
}

impl QueueLimits {
    /// No bound at all.
    pub const NONE: Self = Self {
        messages: u64::MAX,
        bytes: u64::MAX,
        age_ms: None,
        policy: QueuePolicy::DropOldest,
        deliveries_max: None,
    };
}

/// What gives way when a queue is at its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueuePolicy {
    /// The messages that have waited longest.
    DropOldest,
    /// The messages that come; the queue takes again once it has drained to 7/8 of its bounds.
    DropNewest,
    /// As [`Self::DropOldest`], but each goes to a dead-letter topic first.
    DeadLetter,
}

/// Why a queue gave a message up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// Too many messages waited.
    Messages = 1,
    /// Too many bytes waited.
    Bytes = 2,
    /// It had waited too long.
    Age = 3,
    /// Its own expiry had passed.
    Expired = 4,
    /// It was handed out too often.
    MaxDeliveries = 5,
}

impl DropReason {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Messages, Self::Bytes, Self::Age, Self::Expired, Self::MaxDeliveries];

    /// The reason with this number, as it is stored.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| *reason as u8 == number)
    }

    /// Its name in metrics, in the admin API and in dead letters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::Bytes => "bytes",
            Self::Age => "age",
            Self::Expired => "expired",
            Self::MaxDeliveries => "maxDeliveries",
        }
    }
}

/// Messages that were given up, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drops([u64; DropReason::ALL.len()]);

impl Drops {
    /// Counts `messages` more.
    pub fn add(&mut self, reason: DropReason, messages: u64) {
        if let Some(count) = self.0.get_mut(usize::from(reason as u8 - 1)) {
            *count += messages;
        }
    }

    /// Each reason with its count, in order.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.into_iter().zip(self.0)
    }

    /// Whether nothing was given up.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|count| *count == 0)
    }
}
