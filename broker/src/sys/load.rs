//! Moving averages: how much happened per minute, over the last 1, 5 and 15 minutes.

use crate::metrics::Totals;
use std::time::Duration;

/// Minutes that the averages look back.
pub(super) const MINUTES: [u32; 3] = [1, 5, 15];

/// Reads one count.
type Count = fn(&Totals) -> u64;

/// What has averages: its name below `$SYS/broker/load/` and its count.
pub(super) const KINDS: [(&str, Count); 8] = [
    ("bytes/received", |totals| totals.bytes_received),
    ("bytes/sent", |totals| totals.bytes_sent),
    ("connections", |totals| totals.connections_opened),
    ("messages/received", |totals| totals.packets_received),
    ("messages/sent", |totals| totals.packets_sent),
    ("publish/dropped", |totals| totals.messages_dropped),
    ("publish/received", |totals| totals.messages_received),
    ("publish/sent", |totals| totals.messages_sent),
];

/// The averages of every kind.
#[derive(Debug, Default)]
pub(super) struct Loads {
    last: Totals,
    averages: [[Average; MINUTES.len()]; KINDS.len()],
}

/// An average in which what is older counts less. Younger than its minutes, it is the average since the start.
#[derive(Debug, Default, Clone, Copy)]
struct Average {
    sum: f64,
    weight: f64,
}

impl Average {
    fn add(&mut self, per_minute: f64, elapsed: Duration, minutes: u32) {
        let remains = (-elapsed.as_secs_f64() / (60.0 * f64::from(minutes))).exp();
        self.sum = remains * self.sum + (1.0 - remains) * per_minute;
        self.weight = remains * self.weight + (1.0 - remains);
    }

    fn get(self) -> f64 {
        if self.weight > 0.0 { self.sum / self.weight } else { 0.0 }
    }
}

impl Loads {
    /// Takes what was counted up to now; `elapsed` since the call before, `None` in the first one.
    pub(super) fn handle_totals(&mut self, totals: &Totals, elapsed: Option<Duration>) {
        let last = std::mem::replace(&mut self.last, *totals);
        let Some(elapsed) = elapsed.filter(|elapsed| !elapsed.is_zero()) else { return };
        for ((_, count), averages) in KINDS.iter().zip(&mut self.averages) {
            let new = count(totals).saturating_sub(count(&last));
            let new = f64::from(u32::try_from(new).unwrap_or(u32::MAX));
            let per_minute = new * 60.0 / elapsed.as_secs_f64();
            for (average, minutes) in averages.iter_mut().zip(MINUTES) {
                average.add(per_minute, elapsed, minutes);
            }
        }
    }

    /// Name, minutes and value of every average.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, u32, f64)> {
        KINDS.iter().zip(&self.averages).flat_map(|((name, _), averages)| {
            averages.iter().zip(MINUTES).map(move |(average, minutes)| (*name, minutes, average.get()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(loads: &Loads, minutes: u32) -> f64 {
        loads.iter().find(|(name, of, _)| *name == "publish/received" && *of == minutes).unwrap().2
    }

    fn totals(messages_received: u64) -> Totals {
        Totals { messages_received, ..Totals::default() }
    }

    #[test]
    fn a_steady_rate_is_the_average_from_the_first_minute_on() {
        let mut loads = Loads::default();
        loads.handle_totals(&totals(1_000), None);
        for round in 1..=4 {
            loads.handle_totals(&totals(1_000 + 100 * round), Some(Duration::from_secs(10)));
        }

        for minutes in MINUTES {
            assert!((published(&loads, minutes) - 600.0).abs() < 0.001, "{minutes} minutes");
        }
    }

    #[test]
    fn what_has_ended_is_forgotten_by_the_short_average_first() {
        let mut loads = Loads::default();
        loads.handle_totals(&totals(0), None);
        loads.handle_totals(&totals(60_000), Some(Duration::from_secs(900)));
        for _ in 0..30 {
            loads.handle_totals(&totals(60_000), Some(Duration::from_secs(10)));
        }

        assert!(published(&loads, 1) < 30.0);
        assert!(published(&loads, 15) > 2_000.0);
    }
}
