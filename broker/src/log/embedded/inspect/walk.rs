//! Goes through the frames of a segment, over damage as well.

use super::super::format::{Before, FormatFault, Frame, SegmentHeader, decode_frame, is_plausible};
use std::ops::Range;

/// What is at a place of a segment.
pub(super) enum Step {
    /// A frame that fits.
    Frame(Range<u64>, Frame, Before),
    /// Bytes that do not fit.
    Damage(Range<u64>, FormatFault),
}

/// The frames of the segment `bytes` with `header`, one after the other. Behind damage it goes on with the next frame
/// that fits; each step moves forward.
pub(super) struct Walk<'a> {
    bytes: &'a [u8],
    header: &'a SegmentHeader,
    at: usize,
}

impl<'a> Walk<'a> {
    pub(super) fn new(bytes: &'a [u8], header: &'a SegmentHeader) -> Self {
        Self { bytes, header, at: header.length() }
    }
}

impl Iterator for Walk<'_> {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let begin = self.at;
        let rest = self.bytes.get(begin..).filter(|rest| !rest.is_empty())?;
        match decode_frame(rest, self.header) {
            Ok(placed) => {
                self.at += placed.length;
                Some(Step::Frame(begin as u64..self.at as u64, placed.frame, placed.before))
            }
            Err(fault) => {
                let fits = |at: &usize| {
                    let rest = &self.bytes[*at..];
                    is_plausible(rest, self.header, 0..u32::MAX) && decode_frame(rest, self.header).is_ok()
                };
                self.at = (begin + 1..self.bytes.len()).find(fits).unwrap_or(self.bytes.len());
                Some(Step::Damage(begin as u64..self.at as u64, fault))
            }
        }
    }
}
