//! When the records that are still needed of the oldest segment are copied to the one that is written, so that a slow
//! queue does not keep everything that came after its messages on the disk.
//!
//! Segments go in order. Without copies one record keeps all segments from its own on. Copying costs writes; the rule
//! bounds them. Between two copies of one record all segments that were there at the first copy have gone. Under
//! [`LOG_SHARE`] at most a fifth of their bytes was copied, so at least four fifths were freed; under [`SEGMENT_SHARE`]
//! at most an eighth of a segment is copied for seven eighths that are freed. So for each byte appended at most a
//! quarter of a byte is copied in the long run, and while the disk is short at most one.

use super::segments::Census;

/// So many sealed segments are left in peace: they may well go by themselves.
const SEALED_MIN: usize = 4;
/// The oldest segment is copied when at most this part of it is live.
const SEGMENT_SHARE: u64 = 8;
/// It is copied however much of it is live when at most this part of the whole log is.
const LOG_SHARE: u64 = 5;
/// While the disk is short, both are this.
const SHARE_SHORT: u64 = 2;

/// How much is free on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Space {
    Ample,
    /// Appends will soon have to wait.
    Short,
    /// Appends wait, or a copy would make them.
    Full,
}

/// Whether the oldest segment is to be copied.
pub(super) fn is_worth_it(census: &Census, space: Space) -> bool {
    let at_most = |part: u64, share: u64, whole: u64| part.saturating_mul(share) <= whole;
    let (sealed_min, segment_share, log_share) = match space {
        Space::Ample => (SEALED_MIN, SEGMENT_SHARE, LOG_SHARE),
        Space::Short => (0, SHARE_SHORT, SHARE_SHORT),
        Space::Full => return false,
    };
    census.sealed > sealed_min
        && (at_most(census.oldest_live_bytes, segment_share, census.oldest_bytes)
            || at_most(census.live_bytes, log_share, census.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn census(sealed: usize, live_bytes: u64, oldest_live_bytes: u64) -> Census {
        Census { sealed, bytes: 1_000, live_bytes, oldest_bytes: 160, oldest_live_bytes }
    }

    #[test]
    fn the_oldest_of_more_than_four_sealed_segments_is_copied_when_little_of_it_or_of_the_log_is_live() {
        let cases = [
            (census(4, 20, 20), Space::Ample, false),
            (census(5, 900, 20), Space::Ample, true),
            (census(5, 900, 21), Space::Ample, false),
            (census(5, 200, 160), Space::Ample, true),
            (census(5, 201, 160), Space::Ample, false),
            (census(1, 900, 80), Space::Short, true),
            (census(1, 500, 160), Space::Short, true),
            (census(1, 501, 81), Space::Short, false),
            (census(0, 0, 0), Space::Short, false),
            (census(9, 0, 0), Space::Full, false),
        ];

        for (census, space, expected) in cases {
            assert_eq!(is_worth_it(&census, space), expected, "{census:?} {space:?}");
        }
    }
}
