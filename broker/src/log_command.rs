//! `tidemill-broker log check` and `log dump`: what is in a data directory, for people.

use crate::log::embedded::inspect::{
    Condition, Dumped, DumpedRecord, InspectError, Inspection, Report, Selection,
};
use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::ops::ControlFlow;
use std::path::Path;
use tidemill_core::partition::{Offset, Partition};
use tidemill_core::record::{Record, RecordBody};

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Everything fits, or is put right by the next start.
    Fine,
    /// Something is damaged; it was named.
    Damaged,
}

/// The log was not looked at, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum LogCommandError {
    /// The data directory cannot be looked at.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// The output cannot be written.
    #[error("output cannot be written")]
    Output(#[source] io::Error),
}

/// Whether payloads are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payloads {
    /// Their length only.
    Hidden,
    /// Yes.
    Shown,
}

/// What a dump prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DumpOptions {
    /// Only records of this partition.
    pub partition: Option<u16>,
    /// Only records from this offset on.
    pub from: Offset,
    /// At most so many records.
    pub limit: Option<u64>,
    /// Whether payloads are printed.
    pub payloads: Payloads,
}

/// Reads everything in the data directory and prints each file with its condition, then the partitions and sums.
///
/// # Errors
///
/// [`LogCommandError`] if the directory cannot be looked at, because a broker uses it for example.
pub fn check(directory: &Path, output: &mut dyn Write) -> Result<Verdict, LogCommandError> {
    let report = Inspection::open(directory)?.check()?;
    match print_report(directory, &report, output) {
        // Whoever read it has seen enough.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(LogCommandError::Output(error)),
        Ok(()) | Err(_) => {}
    }
    Ok(if report.is_fine() { Verdict::Fine } else { Verdict::Damaged })
}

fn print_report(directory: &Path, report: &Report, output: &mut dyn Write) -> io::Result<()> {
    for file in &report.files {
        let path = file.path.strip_prefix(directory).unwrap_or(&file.path);
        let condition = match file.condition {
            Condition::Whole => "whole",
            Condition::Unfinished => "unfinished",
            Condition::Damaged => "DAMAGED",
        };
        writeln!(output, "{}: {condition}: {}", path.display(), file.notes.join("; "))?;
    }
    for partition in report.partitions.iter().filter(|partition| partition.end > 0) {
        let number = partition.partition.0;
        writeln!(output, "partition {number}: offsets {} to {}", partition.floor, partition.end)?;
    }
    let Report { segment_bytes, records, copies, .. } = report;
    writeln!(output, "in all: {segment_bytes} bytes of segments, {records} records, {copies} copies")?;
    writeln!(output, "{}", if report.is_fine() { "fine" } else { "damaged" })?;
    output.flush()
}

/// Prints one line for each record to `output`, and one for each damaged place to `errors`.
///
/// # Errors
///
/// [`LogCommandError`] if the directory cannot be looked at, because a broker uses it for example.
pub fn dump(
    directory: &Path,
    options: DumpOptions,
    output: &mut dyn Write,
    errors: &mut dyn Write,
) -> Result<Verdict, LogCommandError> {
    let selection = Selection { partition: options.partition.map(Partition), from: options.from };
    let mut printer = Printer { options, printed: 0, verdict: Verdict::Fine, output, errors };
    let mut failed = None;
    if options.limit != Some(0) {
        Inspection::open(directory)?.dump(selection, &mut |dumped| match printer.print(&dumped) {
            Ok(flow) => flow,
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        })?;
    }
    let failed = failed.or_else(|| printer.output.flush().err());
    match failed {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => Err(LogCommandError::Output(error)),
        Some(_) | None => Ok(printer.verdict),
    }
}

struct Printer<'a> {
    options: DumpOptions,
    printed: u64,
    verdict: Verdict,
    output: &'a mut dyn Write,
    errors: &'a mut dyn Write,
}

impl Printer<'_> {
    fn print(&mut self, dumped: &Dumped) -> io::Result<ControlFlow<()>> {
        match dumped {
            Dumped::Damage(damage) => {
                self.verdict = Verdict::Damaged;
                writeln!(
                    self.errors,
                    "damaged: {}, bytes {} to {}: {}",
                    damage.path.display(),
                    damage.begin,
                    damage.end,
                    damage.reason
                )?;
            }
            Dumped::Record(record) => {
                self.print_record(record)?;
                self.printed += 1;
            }
        }
        let is_enough = self.options.limit.is_some_and(|limit| self.printed >= limit);
        Ok(if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    fn print_record(&mut self, dumped: &DumpedRecord) -> io::Result<()> {
        let DumpedRecord { partition, offset, append_time_ms, bytes } = dumped;
        let place = format!("partition={} offset={offset}", partition.0);
        let record = match Record::decode(bytes.clone()) {
            Ok(record) => record,
            Err(error) => {
                self.verdict = Verdict::Damaged;
                return writeln!(self.errors, "damaged: {place}: no record: {error}");
            }
        };
        let message = &record.message;
        write!(
            self.output,
            "{place} time={} bytes={} topic={:?} qos={} retain={} publisher={:?} payloadBytes={}",
            Rfc3339(*append_time_ms),
            bytes.len(),
            message.topic.as_str(),
            message.qos as u8,
            message.retain,
            &*message.publisher,
            message.payload.len(),
        )?;
        if let RecordBody::Ref { partition, offset } = record.body {
            write!(self.output, " bodyPartition={} bodyOffset={offset}", partition.0)?;
        }
        if self.options.payloads == Payloads::Shown {
            write!(self.output, " payload=\"{}\"", message.payload.escape_ascii())?;
        }
        writeln!(self.output)
    }
}

/// Milliseconds since the Unix epoch as RFC 3339 writes them.
struct Rfc3339(u64);

impl fmt::Display for Rfc3339 {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, ms) = (self.0 / 86_400_000, self.0 % 86_400_000);
        // Days are counted from 1 March of the year 0, so that leap days end a year; 400 years have 146,097 days.
        let days = days + 719_468;
        let (era, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = era * 400 + year + u64::from(month <= 2);
        let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1_000 % 60);
        write!(
            formatter,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z",
            ms % 1_000
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_as_rfc_3339() {
        let cases = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_709_251_199_001, "2024-02-29T23:59:59.001Z"),
            (1_735_689_600_000, "2025-01-01T00:00:00.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ];

        for (ms, expected) in cases {
            assert_eq!(Rfc3339(ms).to_string(), expected);
        }
        assert!(!Rfc3339(u64::MAX).to_string().is_empty());
    }
}
