//! How fast queues are served behind the head of their partition.

/// So much of a second's messages may go out at once.
const BURST_PART: u64 = 4;

/// Lets a number of messages per second pass: in bursts of at most a quarter of a second's, and of one at least.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenBucket {
    per_second: u64,
    /// Thousandths of messages that may pass now.
    thousandths: u64,
    at_ms: u64,
}

impl TokenBucket {
    /// Full at `now_ms`.
    #[must_use]
    pub fn new(per_second: u32, now_ms: u64) -> Self {
        let per_second = u64::from(per_second);
        let mut bucket = Self { per_second, thousandths: 0, at_ms: now_ms };
        bucket.thousandths = bucket.depth();
        bucket
    }

    fn depth(&self) -> u64 {
        (self.per_second * 1_000 / BURST_PART).max(1_000)
    }

    /// How many messages may pass at `now_ms`. A clock that goes back adds nothing.
    pub fn available(&mut self, now_ms: u64) -> u64 {
        let waited_ms = now_ms.saturating_sub(self.at_ms);
        self.at_ms = now_ms;
        let more = waited_ms.saturating_mul(self.per_second);
        self.thousandths = self.thousandths.saturating_add(more).min(self.depth());
        self.thousandths / 1_000
    }

    /// So many have passed.
    pub fn take(&mut self, messages: u64) {
        self.thousandths = self.thousandths.saturating_sub(messages.saturating_mul(1_000));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_full_bucket_lets_a_quarter_of_a_second_pass_and_then_its_rate() {
        let mut bucket = TokenBucket::new(100, 5_000);
        assert_eq!(bucket.available(5_000), 25);
        bucket.take(25);

        assert_eq!([5_000, 5_009, 5_010, 5_019].map(|now_ms| bucket.available(now_ms)), [0, 0, 1, 1]);
        assert_eq!(bucket.available(4_000), 1, "the clock went back");
        assert_eq!(TokenBucket::new(1, 0).available(0), 1, "one passes at any rate");
    }

    proptest! {
        #[test]
        fn never_more_than_the_rate_and_one_burst_pass(
            per_second in 1_u32..10_000,
            steps in proptest::collection::vec((0_u64..2_000, 0_u64..3_000), 0..60),
        ) {
            let mut bucket = TokenBucket::new(per_second, 0);
            let (mut now_ms, mut passed) = (0, 0);
            for (waits_ms, wants) in steps {
                now_ms += waits_ms;
                let taken = wants.min(bucket.available(now_ms));
                bucket.take(taken);
                passed += taken;
            }
            let rate = u64::from(per_second);
            prop_assert!(passed <= rate * now_ms / 1_000 + (rate / BURST_PART).max(1) + 1);
        }
    }
}
