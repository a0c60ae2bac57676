//! Measurements of a run: one HdrHistogram (microseconds, three digits) for each
//! site, operation and path, failures apart. Results are merged as histograms,
//! never as percentiles.
//!
//! Two times are taken of an operation. Its *service time* runs from the time
//! at which it was sent. With a target rate there is also the time at which it *should*
//! have been sent: what counts from there includes the wait behind slow
//! operations, which a generator that simply pauses hides ("coordinated
//! omission").
//!
//! Nothing that was due is left out of the second: an operation without an answer at
//! the end of the run counts with the time from its intended start to the end, which
//! is less than it would have taken ("censored"), and so does one that was never sent.

mod account;
mod availability;
mod export;
mod files;
mod hgrm;
mod hlog;
mod names;
mod report;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use hdrhistogram::Histogram;
use leasehold_wire::Path;

use crate::sample::{OpKind, OpOutcome, Sample};

pub use account::Account;
pub use availability::{Availability, AvailabilityGap, OpClass, ReplicaAvailability, ReplicaName};
pub use export::{Exporter, Number, ReportLine, format_lines};
pub use files::IntervalFiles;
pub use hgrm::write_hgrm;
pub use hlog::{
    HlogError, HlogRun, HlogWriter, LogInterval, each_interval, read_hlog, sum_hlog, write_hlog,
};
pub use names::{ReturnCode, kind_name, path_name};
pub use report::WorkloadReport;

/// Significant digits of every histogram.
pub const DIGITS: u8 = 3;

/// An empty histogram that grows as needed.
pub fn new_histogram() -> Histogram<u64> {
    Histogram::new(DIGITS).expect("three digits are within the allowed one to five")
}

/// Operations that a histogram counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Metric {
    /// Operations that did what was asked.
    Done(OpKind),
    /// Operations that did not.
    Failed(OpKind),
    /// Operations that were sent and had no answer at the end of the run.
    Abandoned(OpKind),
    /// Operations that were due and never sent.
    NeverSent(OpKind),
    /// Successful scans, divided by the records that each found.
    PerRecord,
    /// Checks of what was read (`dataintegrity=true`).
    Verify,
    /// Every operation that was due, whatever came of it.
    All,
}

impl Metric {
    /// YCSB's name: `READ`, `READ-FAILED`, `VERIFY`.
    pub fn name(self) -> String {
        match self {
            Metric::Done(kind) => kind_name(kind).to_owned(),
            Metric::Failed(kind) => format!("{}-FAILED", kind_name(kind)),
            Metric::Abandoned(kind) => format!("{}-ABANDONED", kind_name(kind)),
            Metric::NeverSent(kind) => format!("{}-NEVER-SENT", kind_name(kind)),
            Metric::PerRecord => "SCAN-LATENCY-PER-RECORD".to_owned(),
            Metric::Verify => "VERIFY".to_owned(),
            Metric::All => "ALL".to_owned(),
        }
    }
}

/// From when latency counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Basis {
    /// From when the operation was sent.
    Service,
    /// From when it should have been sent.
    Intended,
}

/// `measurement.interval`: which of the two times is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interval {
    /// `op`: the service time.
    Op,
    /// `intended`: the time from the intended start, under the plain names.
    Intended,
    /// `both`: both, the second under `Intended-...`.
    Both,
}

/// Key that names a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeriesKey {
    /// From when latency counts.
    pub basis: Basis,
    /// Counted operations.
    pub metric: Metric,
    /// Index of the site.
    pub site: u8,
    /// Path on which it was served; `Unspecified` for failures.
    pub path: Path,
    /// Whether it was served by another replica than the site's own.
    pub away: bool,
}

impl SeriesKey {
    /// Key of operations that are not told apart by how they were served.
    fn new(basis: Basis, metric: Metric, site: u8) -> Self {
        SeriesKey {
            basis,
            metric,
            site,
            path: Path::Unspecified,
            away: false,
        }
    }

    /// The name of how it was served. A path belongs to the replica that served: for
    /// another one than the site's own it is `away`, whatever it was.
    pub fn path_name(&self) -> Option<&'static str> {
        match (self.away, self.path) {
            (true, _) => Some("away"),
            (false, Path::Unspecified) => None,
            (false, path) => Some(path_name(path)),
        }
    }

    /// Whether this histogram is part of what is reported under the name of `what`:
    /// latencies from the intended start include operations without an answer.
    pub fn counts_as(&self, what: Metric) -> bool {
        self.reported_as().any(|name| name == what)
    }

    fn reported_as(&self) -> impl Iterator<Item = Metric> {
        let censored = match (self.basis, self.metric) {
            (Basis::Intended, Metric::Abandoned(kind) | Metric::NeverSent(kind)) => {
                Some(Metric::Done(kind))
            }
            _ => None,
        };
        std::iter::once(self.metric).chain(censored)
    }
}

/// One operation that ended.
#[derive(Clone, Copy, Debug)]
pub struct OpMeasurement {
    /// Index of the site.
    pub site: u8,
    /// Kind of the operation.
    pub kind: OpKind,
    /// Path on which it was served.
    pub path: Path,
    /// Whether another replica served it than the site's own.
    pub away: bool,
    /// Its return status.
    pub returned: ReturnCode,
    /// Time from when it was sent.
    pub service: Duration,
    /// Time from when it should have been sent.
    pub intended: Duration,
}

/// Operations that had no answer when the run ended.
#[derive(Clone, Copy, Debug)]
pub struct UnansweredOps {
    /// Index of the site.
    pub site: u8,
    /// Kind of the operation, also if it was never sent.
    pub kind: OpKind,
    /// Time from when it was sent to the end of the run; `None`: it never was.
    pub service: Option<Duration>,
    /// Time from when it should have been sent to the end of the run.
    pub intended: Duration,
    /// Number of these operations.
    pub count: u64,
}

#[derive(Clone, Debug)]
struct Series {
    /// Everything up to the end of the last interval.
    past: Histogram<u64>,
    /// Everything since then.
    current: Histogram<u64>,
}

/// All histograms of a run.
#[derive(Clone, Debug)]
pub struct Measurements {
    interval: Interval,
    series: BTreeMap<SeriesKey, Series>,
    returns: BTreeMap<(Metric, ReturnCode), u64>,
}

impl Measurements {
    /// Nothing measured yet.
    pub fn new(interval: Interval) -> Self {
        Measurements {
            interval,
            series: BTreeMap::new(),
            returns: BTreeMap::new(),
        }
    }

    /// Builds the histograms of samples. The latency of a sample is its service time.
    pub fn from_samples(samples: &[Sample]) -> Self {
        let mut measurements = Measurements::new(Interval::Op);
        for sample in samples {
            let latency = Duration::from_nanos(sample.latency_ns);
            measurements.record(&OpMeasurement {
                site: sample.site,
                kind: sample.kind,
                path: sample.path,
                away: false,
                returned: sample.end.into(),
                service: latency,
                intended: latency,
            });
        }
        measurements
    }

    /// Returns which times are kept: the service time, the time from the intended start, or
    /// both.
    pub fn interval(&self) -> Interval {
        self.interval
    }

    /// Adds an operation that ended, well or not.
    pub fn record(&mut self, measured: &OpMeasurement) {
        let (what, path) = match measured.returned {
            ReturnCode::Ok => (Metric::Done(measured.kind), measured.path),
            _ => (Metric::Failed(measured.kind), Path::Unspecified),
        };
        let away = measured.away && measured.returned == ReturnCode::Ok;
        let times = [
            (Basis::Service, Some(measured.service)),
            (Basis::Intended, Some(measured.intended)),
        ];
        for (basis, latency) in times {
            let key = SeriesKey {
                path,
                away,
                ..SeriesKey::new(basis, what, measured.site)
            };
            self.observe(key, latency, 1);
        }
        self.count(Metric::Done(measured.kind), measured.returned);
    }

    /// Adds operations that had no answer when the run ended.
    pub fn record_unanswered(&mut self, unanswered: &UnansweredOps) {
        let what = match unanswered.service {
            Some(_) => Metric::Abandoned(unanswered.kind),
            None => Metric::NeverSent(unanswered.kind),
        };
        let times = [
            (Basis::Service, unanswered.service),
            (Basis::Intended, Some(unanswered.intended)),
        ];
        for (basis, latency) in times {
            let key = SeriesKey::new(basis, what, unanswered.site);
            self.observe(key, latency, unanswered.count);
        }
    }

    /// Adds so many operations that were due, whatever came of them, with the time from
    /// their intended start.
    pub fn record_due(&mut self, site: u8, intended: Duration, count: u64) {
        let key = SeriesKey::new(Basis::Intended, Metric::All, site);
        self.observe(key, Some(intended), count);
    }

    /// Adds a successful scan that found so many records.
    pub fn record_scan(&mut self, site: u8, found: u32, took: Duration) {
        let key = SeriesKey::new(self.main_basis(), Metric::PerRecord, site);
        self.observe(key, took.checked_div(found), 1);
    }

    /// Counts a latency, if its basis is kept.
    fn observe(&mut self, key: SeriesKey, latency: Option<Duration>, count: u64) {
        let kept = match self.interval {
            Interval::Op => key.basis == Basis::Service,
            Interval::Intended => key.basis == Basis::Intended,
            Interval::Both => true,
        };
        if let Some(latency) = latency.filter(|_| kept) {
            observe(&mut self.series(key).current, micros(latency), count);
        }
    }

    /// Adds the check of a record that was read.
    pub fn record_check(&mut self, site: u8, returned: ReturnCode, took: Duration) {
        let key = SeriesKey::new(self.main_basis(), Metric::Verify, site);
        self.observe(key, Some(took), 1);
        self.count(Metric::Verify, returned);
    }

    /// Adds everything that another has measured.
    pub fn merge(&mut self, other: &Measurements) {
        for (key, series) in &other.series {
            let mine = self.series(*key);
            add(&mut mine.past, &series.past);
            add(&mut mine.current, &series.current);
        }
        for ((what, returned), count) in &other.returns {
            *self.returns.entry((*what, *returned)).or_default() += count;
        }
    }

    /// Ends an interval: what was measured in it, by key. It stays in the totals.
    pub fn end_interval(&mut self) -> Vec<(SeriesKey, Histogram<u64>)> {
        let mut ended = Vec::new();
        for (key, series) in &mut self.series {
            if !series.current.is_empty() {
                add(&mut series.past, &series.current);
                ended.push((
                    *key,
                    std::mem::replace(&mut series.current, new_histogram()),
                ));
            }
        }
        ended
    }

    /// Returns the sum of all histograms with a key that is asked for.
    pub fn total(&self, wanted: impl Fn(&SeriesKey) -> bool) -> Histogram<u64> {
        let mut sum = new_histogram();
        for (_, series) in self.series.iter().filter(|(key, _)| wanted(key)) {
            add(&mut sum, &series.past);
            add(&mut sum, &series.current);
        }
        sum
    }

    /// The keys under which something was measured, in order.
    pub fn keys(&self) -> impl Iterator<Item = &SeriesKey> {
        self.series.keys()
    }

    /// Statuses that an operation returned, each with its number of times; failures are listed
    /// here under the operation itself.
    pub fn returns(&self, what: Metric) -> impl Iterator<Item = (ReturnCode, u64)> {
        let all = self.returns.iter();
        all.filter(move |((of, _), _)| *of == what)
            .map(|((_, returned), count)| (*returned, *count))
    }

    /// The basis that is reported under the plain names.
    pub fn main_basis(&self) -> Basis {
        match self.interval {
            Interval::Intended => Basis::Intended,
            Interval::Op | Interval::Both => Basis::Service,
        }
    }

    fn series(&mut self, key: SeriesKey) -> &mut Series {
        self.series.entry(key).or_insert_with(|| Series {
            past: new_histogram(),
            current: new_histogram(),
        })
    }

    fn count(&mut self, what: Metric, returned: ReturnCode) {
        *self.returns.entry((what, returned)).or_default() += 1;
    }
}

/// Adds up the histograms of the same key, in order.
pub(crate) fn sum_of(
    parts: impl Iterator<Item = Vec<(SeriesKey, Histogram<u64>)>>,
) -> Vec<(SeriesKey, Histogram<u64>)> {
    let mut sums: BTreeMap<SeriesKey, Histogram<u64>> = BTreeMap::new();
    for (key, histogram) in parts.flatten() {
        match sums.entry(key) {
            Entry::Vacant(sum) => {
                sum.insert(histogram);
            }
            Entry::Occupied(mut sum) => add(sum.get_mut(), &histogram),
        }
    }
    sums.into_iter().collect()
}

/// Adds up histograms by the names under which they are reported, in order.
pub fn reported_names(
    measured: &[(SeriesKey, Histogram<u64>)],
    interval: Interval,
) -> Vec<(String, Histogram<u64>)> {
    let mut sums: BTreeMap<(Basis, Metric), Histogram<u64>> = BTreeMap::new();
    for (key, histogram) in measured {
        for what in key.reported_as() {
            let sum = sums.entry((key.basis, what)).or_insert_with(new_histogram);
            add(sum, histogram);
        }
    }
    let named = |((basis, what), sum)| (report::reported_name(what, basis, interval), sum);
    sums.into_iter().map(named).collect()
}

/// The key of a sample, as an interval log tags it.
fn sample_key(sample: &Sample) -> SeriesKey {
    let (what, path) = match sample.end {
        OpOutcome::Ok => (Metric::Done(sample.kind), sample.path),
        OpOutcome::Failed | OpOutcome::TimedOut => (Metric::Failed(sample.kind), Path::Unspecified),
    };
    SeriesKey {
        path,
        ..SeriesKey::new(Basis::Service, what, sample.site)
    }
}

fn micros(latency: Duration) -> u64 {
    u64::try_from(latency.as_micros()).unwrap_or(u64::MAX)
}

/// Counts a latency so many times, in microseconds. A histogram resizes itself for it, which
/// only its `record` does; no machine has the memory for some of what 64 bits
/// can say, and those count as the highest latency there is room for.
fn observe(histogram: &mut Histogram<u64>, latency_us: u64, count: u64) {
    if histogram.record_n(latency_us, count).is_err() {
        histogram.saturating_record_n(latency_us, count);
    }
}

fn add(sum: &mut Histogram<u64>, part: &Histogram<u64>) {
    // Both resize themselves and have the same digits: nothing can be refused.
    sum.add(part)
        .expect("a histogram that resizes accepts any other");
}

#[cfg(test)]
mod tests;
