//! Measurements of a run: one HdrHistogram (microseconds, three digits) for each site, operation
//! and path. Failures have histograms of their own. Results are merged as histograms, never as
//! percentiles.
//!
//! Each operation has two times. The *service time* runs from the time at which the operation was
//! sent. With a target rate, there is also a time at which the operation *should* have been sent:
//! the intended start. The latency from the intended start includes the time that the operation
//! waited for earlier, slow operations. A generator that simply pauses during such a wait hides
//! this time ("coordinated omission").
//!
//! The latencies from the intended start cover every operation that was due. If an operation has no
//! answer at the end of the run, or was never sent, its latency is taken as the time from its
//! intended start to the end. The real latency of such an operation would have been greater
//! ("censored").

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

/// Returns an empty histogram that grows as needed.
pub fn new_histogram() -> Histogram<u64> {
    Histogram::new(DIGITS).expect("three digits are within the allowed one to five")
}

/// Kind of event that a histogram counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Metric {
    /// Operations that succeeded.
    Done(OpKind),
    /// Operations that failed.
    Failed(OpKind),
    /// Operations that were sent and had no answer at the end of the run.
    Abandoned(OpKind),
    /// Operations that were due and never sent.
    NeverSent(OpKind),
    /// Successful scans. The latency of each scan is divided by the number of records that this
    /// scan found.
    PerRecord,
    /// Checks of the contents of records that were read (`dataintegrity=true`).
    Verify,
    /// Every operation that was due, regardless of the outcome.
    All,
}

impl Metric {
    /// Returns YCSB's name of this kind, for example `READ`, `READ-FAILED` or `VERIFY`.
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

/// Moment from which a latency is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Basis {
    /// The time at which the operation was sent.
    Service,
    /// The time at which the operation should have been sent.
    Intended,
}

/// `measurement.interval`: the latencies that are kept for each operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interval {
    /// `op`: the service time is kept.
    Op,
    /// `intended`: the time from the intended start is kept, under names without a prefix.
    Intended,
    /// `both`: both times are kept. Figures of the time from the intended start have names that
    /// begin with `Intended-`.
    Both,
}

/// Key that identifies a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeriesKey {
    /// Moment from which the latencies are measured.
    pub basis: Basis,
    /// Kind of event that is counted.
    pub metric: Metric,
    /// Index of the site.
    pub site: u8,
    /// Path on which the operation was served; `Unspecified` for failures.
    pub path: Path,
    /// True if another replica served the operation, instead of the site's own replica.
    pub away: bool,
}

impl SeriesKey {
    /// Creates a key of operations that are not distinguished by path.
    fn new(basis: Basis, metric: Metric, site: u8) -> Self {
        SeriesKey {
            basis,
            metric,
            site,
            path: Path::Unspecified,
            away: false,
        }
    }

    /// Returns the name of the path on which a replica served the operation. If this replica is not
    /// the site's own replica, the name is always `away`. Returns `None` if there is no path.
    pub fn path_name(&self) -> Option<&'static str> {
        match (self.away, self.path) {
            (true, _) => Some("away"),
            (false, Path::Unspecified) => None,
            (false, path) => Some(path_name(path)),
        }
    }

    /// Returns true if the operations of this histogram are included in the figures for `what`.
    /// Figures from the intended start include operations without an answer.
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

/// An operation that ended.
#[derive(Clone, Copy, Debug)]
pub struct OpMeasurement {
    /// Index of the site.
    pub site: u8,
    /// Kind of the operation.
    pub kind: OpKind,
    /// Path on which the operation was served.
    pub path: Path,
    /// True if another replica served the operation, instead of the site's own replica.
    pub away: bool,
    /// Return status of the operation.
    pub returned: ReturnCode,
    /// Time from sending the operation to its end.
    pub service: Duration,
    /// Time from the intended start of the operation to its end.
    pub intended: Duration,
}

/// Operations of one kind that had no answer when the run ended. Each field is the same for all of
/// these operations.
#[derive(Clone, Copy, Debug)]
pub struct UnansweredOps {
    /// Index of the site.
    pub site: u8,
    /// Kind of the operations. Operations that were never sent have a kind, too.
    pub kind: OpKind,
    /// Time from sending the operations to the end of the run; `None` if they were never sent.
    pub service: Option<Duration>,
    /// Time from the intended start of the operations to the end of the run.
    pub intended: Duration,
    /// Number of these operations.
    pub count: u64,
}

#[derive(Clone, Debug)]
struct Series {
    /// Latencies up to the end of the last interval.
    past: Histogram<u64>,
    /// Latencies since the end of the last interval.
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
    /// Creates measurements without any entry.
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

    /// Returns the setting for the times that are kept: the service time, the time from the
    /// intended start, or both.
    pub fn interval(&self) -> Interval {
        self.interval
    }

    /// Adds an operation that ended, successfully or not.
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

    /// Adds `count` operations that were due, regardless of their outcome. `intended` is the time
    /// since their intended start.
    pub fn record_due(&mut self, site: u8, intended: Duration, count: u64) {
        let key = SeriesKey::new(Basis::Intended, Metric::All, site);
        self.observe(key, Some(intended), count);
    }

    /// Adds a successful scan that found `found` records.
    pub fn record_scan(&mut self, site: u8, found: u32, took: Duration) {
        let key = SeriesKey::new(self.main_basis(), Metric::PerRecord, site);
        self.observe(key, took.checked_div(found), 1);
    }

    /// Adds a latency to the histogram of `key`. Ignores the latency if the setting `interval`
    /// excludes latencies with the basis of `key`.
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

    /// Adds all measurements of `other`.
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

    /// Ends an interval, and returns the histograms of this interval by key. The totals of the run
    /// still include these histograms.
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

    /// Returns the sum of all histograms with a key for which `wanted` returns true.
    pub fn total(&self, wanted: impl Fn(&SeriesKey) -> bool) -> Histogram<u64> {
        let mut sum = new_histogram();
        for (_, series) in self.series.iter().filter(|(key, _)| wanted(key)) {
            add(&mut sum, &series.past);
            add(&mut sum, &series.current);
        }
        sum
    }

    /// Returns the keys of all histograms, in order.
    pub fn keys(&self) -> impl Iterator<Item = &SeriesKey> {
        self.series.keys()
    }

    /// Returns the status codes of the operations of the kind `what`, and the number of operations
    /// with each status code. Failures are listed under [`Metric::Done`], not under
    /// [`Metric::Failed`].
    pub fn returns(&self, what: Metric) -> impl Iterator<Item = (ReturnCode, u64)> {
        let all = self.returns.iter();
        all.filter(move |((of, _), _)| *of == what)
            .map(|((_, returned), count)| (*returned, *count))
    }

    /// Returns the basis of the latencies that are reported under names without a prefix.
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

/// Adds up the histograms of each key. The sums are in the order of the keys.
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

/// Adds up the histograms that are reported under the same name. The sums are in the order of basis
/// and metric.
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

/// Returns the key of a sample. The tags in an interval log are made from such keys.
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

/// Adds a latency in microseconds to a histogram, `count` times. The histogram grows if necessary.
/// If the latency is too high for the histogram even after the growth, the highest value that the
/// histogram can hold is recorded instead.
fn observe(histogram: &mut Histogram<u64>, latency_us: u64, count: u64) {
    if histogram.record_n(latency_us, count).is_err() {
        histogram.saturating_record_n(latency_us, count);
    }
}

fn add(sum: &mut Histogram<u64>, part: &Histogram<u64>) {
    // Both histograms resize themselves and have the same digits, so that nothing can be refused.
    sum.add(part)
        .expect("a histogram that resizes accepts any other");
}

#[cfg(test)]
mod tests;
