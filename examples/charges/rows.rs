//! Results of each case, and a comparison of the measured processor time of the case with the
//! charge.

use std::time::Duration;

use crate::cases::Case;
use crate::charge::{charge, entries};
use crate::load::{AnsweredRequests, name};

/// Largest factor by which the ratio of a row (processor time to charge) may differ from the median
/// ratio.
pub const FACTOR: f64 = 3.0;

/// Measurement of one case in one round.
#[derive(Clone, Debug)]
pub struct CaseMeasurement {
    pub answered: AnsweredRequests,
    /// Processor time of the replica that received the requests. The processor time of an idle
    /// replica has been subtracted.
    pub processor: Duration,
    /// Processor time of the event loop of the replica that received the requests. The processor
    /// time of an idle replica's event loop has been subtracted.
    pub of_loop: Duration,
}

impl CaseMeasurement {
    /// Returns the processor time per request, in ns.
    pub fn ns(&self) -> f64 {
        self.each(self.processor)
    }

    fn loop_ns(&self) -> f64 {
        self.each(self.of_loop)
    }

    fn each(&self, all: Duration) -> f64 {
        all.as_nanos() as f64 / self.answered.requests.max(1) as f64
    }
}

/// Results of a case over all rounds.
pub struct Row {
    pub kind: &'static str,
    pub size: usize,
    pub unit: &'static str,
    pub batch: usize,
    /// Reason why nothing was measured; `None` if the case was measured.
    pub skipped: Option<String>,
    pub answer: String,
    pub requests: u64,
    pub entries: usize,
    pub bytes_in: usize,
    pub bytes_out: usize,
    /// Processor time per request in ns: the least, the median and the greatest value over all
    /// rounds.
    pub ns: [f64; 3],
    /// Processor time of the event loop per request, in ns: the median over all rounds.
    pub loop_ns: f64,
    pub charge: f64,
}

impl Row {
    pub fn new(case: &Case, rounds: &[CaseMeasurement], skipped: Option<String>) -> Row {
        let last = rounds.last().map(|it| it.answered.clone());
        let last = last.unwrap_or_default();
        let all = sorted(rounds.iter().map(CaseMeasurement::ns).collect());
        let of_loop = sorted(rounds.iter().map(CaseMeasurement::loop_ns).collect());
        let end = |values: &[f64], last: bool| {
            let end = if last { values.last() } else { values.first() };
            end.copied().unwrap_or_default()
        };
        Row {
            kind: case.kind,
            size: case.size,
            unit: case.unit,
            batch: case.batch,
            skipped,
            answer: name(&last.answer),
            requests: rounds.iter().map(|it| it.answered.requests).sum(),
            entries: entries(&last),
            bytes_in: last.bytes_in,
            bytes_out: last.bytes_out,
            ns: [end(&all, false), median(&all), end(&all, true)],
            loop_ns: median(&of_loop),
            charge: charge(case, &last),
        }
    }

    /// Returns the processor time per unit of the charge, in ns.
    pub fn ratio(&self) -> f64 {
        self.ns[1] / self.charge
    }
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// Returns the middle value of a sorted list; 0 if the list is empty.
fn median(values: &[f64]) -> f64 {
    let half = values.len() / 2;
    match values {
        [] => 0.0,
        _ if values.len() % 2 == 1 => values[half],
        _ => (values[half - 1] + values[half]) / 2.0,
    }
}

/// Returns the median of the ratios of all measured rows.
pub fn median_ratio(rows: &[Row]) -> f64 {
    let measured = rows.iter().filter(|row| row.skipped.is_none());
    median(&sorted(measured.map(Row::ratio).collect()))
}

/// Returns the factor by which the ratio of a row differs from the median, upwards or downwards.
/// The factor is at least 1.
pub fn distance(row: &Row, median: f64) -> f64 {
    let of_median = row.ratio() / median;
    of_median.max(1.0 / of_median)
}
