//! What waits for a queue, as it is stored: counted to, counted (messages, bytes), passed (the same), given up and the
//! number of the reason (0: none), messages between marks, latest publish,
//! how many marks, then for each its distance from the one
//! before in offset, messages, bytes and milliseconds (which may go back: zigzag), how many skipped ranges, then for each
//! its distance from the one before and its length, 0 for the one without end.

use super::read_reason;
use crate::binary::{FormatError, Reader, Writer};
use crate::partition::Offset;
use crate::queue::backlog::{Backlog, MARKS_MAX, Mark, SKIPPED_MAX, Skipped, Tally};

const START: Mark = Mark { offset: 0, before: Tally { messages: 0, bytes: 0 }, publish_ms: 0 };

pub(super) fn write(writer: &mut Writer, backlog: &Backlog) {
    writer.number(backlog.counted_to);
    for tally in [backlog.counted, backlog.passed] {
        writer.number(tally.messages);
        writer.number(tally.bytes);
    }
    writer.number(backlog.dropped);
    writer.u8(backlog.reason.map_or(0, |reason| reason as u8));
    writer.number(backlog.every);
    writer.number(backlog.newest_ms);
    writer.number(backlog.marks.len() as u64);
    let mut last = START;
    for mark in &backlog.marks {
        writer.number(mark.offset - last.offset);
        writer.number(mark.before.messages - last.before.messages);
        writer.number(mark.before.bytes - last.before.bytes);
        writer.number(zigzag(mark.publish_ms.wrapping_sub(last.publish_ms)));
        last = *mark;
    }
    writer.number(backlog.skipped.len() as u64);
    let mut last = 0;
    for range in &backlog.skipped {
        writer.number(range.start - last);
        writer.number(if range.end == Offset::MAX { 0 } else { range.end - range.start });
        last = range.end;
    }
}

pub(super) fn read(reader: &mut Reader) -> Result<Backlog, FormatError> {
    let counted_to = reader.number("counted to")?;
    let counted = read_tally(reader)?;
    let passed = read_tally(reader)?;
    let dropped = reader.number("messages given up")?;
    if passed.messages > counted.messages || passed.bytes > counted.bytes || dropped > counted.messages {
        return Err(FormatError::Unknown { field: "messages passed", value: passed.messages });
    }
    let mut peek = reader.clone();
    let reason = if peek.u8("drop reason")? == 0 {
        *reader = peek;
        None
    } else {
        Some(read_reason(reader)?)
    };
    let every = reader.number("messages between marks")?.max(1);
    let newest_ms = reader.number("latest publish")?;
    let marks = read_marks(reader, counted_to, counted)?;
    let skipped = read_skipped(reader)?;
    Ok(Backlog { counted_to, counted, passed, dropped, reason, every, newest_ms, marks, skipped })
}

fn read_tally(reader: &mut Reader) -> Result<Tally, FormatError> {
    Ok(Tally { messages: reader.number("messages")?, bytes: reader.number("bytes")? })
}

fn read_marks(reader: &mut Reader, counted_to: Offset, counted: Tally) -> Result<Vec<Mark>, FormatError> {
    let count = read_count(reader, "marks", MARKS_MAX)?;
    let mut marks = Vec::with_capacity(count);
    let mut last = START;
    for _ in 0..count {
        let mut add = |value: u64, bound: u64| {
            let distance = reader.number("mark")?;
            let sum = value.checked_add(distance).filter(|sum| *sum <= bound);
            sum.ok_or(FormatError::Unknown { field: "mark", value: distance })
        };
        let offset = add(last.offset, counted_to)?;
        let messages = add(last.before.messages, counted.messages)?;
        let bytes = add(last.before.bytes, counted.bytes)?;
        let publish_ms = last.publish_ms.wrapping_add(unzigzag(reader.number("publish time")?));
        last = Mark { offset, before: Tally { messages, bytes }, publish_ms };
        marks.push(last);
    }
    Ok(marks)
}

fn read_skipped(reader: &mut Reader) -> Result<Vec<Skipped>, FormatError> {
    let count = read_count(reader, "skipped ranges", SKIPPED_MAX)?;
    let mut skipped = Vec::with_capacity(count);
    let mut last: Offset = 0;
    for _ in 0..count {
        let distance = reader.number("skipped range")?;
        let start = last.checked_add(distance);
        let length = reader.number("length of a skipped range")?;
        let end =
            start.and_then(|start| if length == 0 { Some(Offset::MAX) } else { start.checked_add(length) });
        let (Some(start), Some(end)) = (start, end) else {
            return Err(FormatError::Unknown { field: "skipped range", value: distance });
        };
        skipped.push(Skipped { start, end });
        last = end;
    }
    Ok(skipped)
}

fn read_count(reader: &mut Reader, field: &'static str, max: usize) -> Result<usize, FormatError> {
    let value = reader.number(field)?;
    usize::try_from(value).ok().filter(|count| *count <= max).ok_or(FormatError::Unknown { field, value })
}

/// Differences in both directions as small numbers.
fn zigzag(difference: u64) -> u64 {
    difference << 1 ^ 0_u64.wrapping_sub(difference >> 63)
}

fn unzigzag(number: u64) -> u64 {
    number >> 1 ^ 0_u64.wrapping_sub(number & 1)
}
