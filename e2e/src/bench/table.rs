//! Figures of several runs as a Markdown table.

use std::fmt::Write as _;

/// One figure of one run.
#[derive(Debug, Clone, Copy)]
pub struct Figure {
    /// What it is, with its unit.
    pub name: &'static str,
    /// How much of it.
    pub value: f64,
}

impl Figure {
    /// A figure.
    #[must_use]
    pub fn new(name: &'static str, value: f64) -> Self {
        Self { name, value }
    }
}

/// The head of the table: a column for each broker, and how many times as much the second one needs.
#[must_use]
pub fn head() -> String {
    "| row | figure | tidemill | mosquitto | mosquitto / tidemill |\n|---|---|---|---|---|".to_owned()
}

/// The lines of one row: `runs` of each broker, each with the same figures in the same order.
#[must_use]
pub fn lines(row: &str, tidemill: &[Vec<Figure>], mosquitto: &[Vec<Figure>]) -> String {
    let names = tidemill.first().map(|run| run.iter().map(|figure| figure.name)).into_iter().flatten();
    let mut text = String::new();
    for (index, name) in names.enumerate() {
        let [ours, theirs] = [tidemill, mosquitto].map(|runs| spread(runs, index));
        let ratio = match (&ours, &theirs) {
            (Some(ours), Some(theirs)) if ours.median > 0.0 => format!("{:.2}", theirs.median / ours.median),
            _ => String::new(),
        };
        let cell = |spread: Option<Spread>| spread.map_or_else(String::new, |spread| spread.cell());
        let _ = writeln!(text, "| {row} | {name} | {} | {} | {ratio} |", cell(ours), cell(theirs));
    }
    text.trim_end().to_owned()
}

struct Spread {
    median: f64,
    min: f64,
    max: f64,
    runs: usize,
}

impl Spread {
    /// `median [min-max] (runs)`.
    fn cell(&self) -> String {
        let [median, min, max] = [self.median, self.min, self.max].map(number);
        if self.runs == 1 {
            format!("{median} (1)")
        } else {
            format!("{median} [{min}-{max}] ({})", self.runs)
        }
    }
}

fn spread(runs: &[Vec<Figure>], index: usize) -> Option<Spread> {
    let mut values: Vec<_> =
        runs.iter().filter_map(|run| run.get(index)).map(|figure| figure.value).collect();
    values.sort_by(f64::total_cmp);
    Some(Spread {
        median: *values.get(values.len() / 2)?,
        min: *values.first()?,
        max: *values.last()?,
        runs: values.len(),
    })
}

/// As many digits as say something.
fn number(value: f64) -> String {
    match value.abs() {
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_shows_median_least_and_most_of_its_runs_and_the_ratio_of_the_medians() {
        let runs = |values: [f64; 3]| values.map(|value| vec![Figure::new("µs", value)]);

        let text = lines("pairs", &runs([2.0, 1.0, 4.0]), &runs([20.0, 50.0, 30.0]));

        assert_eq!(text, "| pairs | µs | 2.00 [1.00-4.00] (3) | 30.0 [20.0-50.0] (3) | 15.00 |");
    }

    #[test]
    fn a_figure_that_only_one_broker_has_stands_alone() {
        let text = lines("trie", &[vec![Figure::new("ns", 123.4)]], &[]);

        assert_eq!(text, "| trie | ns | 123 (1) |  |  |");
    }
}
