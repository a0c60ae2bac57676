//! The figures of a run. A figure has YCSB's name if YCSB has one for it.

use hdrhistogram::Histogram;

use super::export::ordinal;
use super::{
    Account, Availability, Basis, Interval, Measurements, Metric, Number, ReportLine, SeriesKey,
};
use crate::sample::OpKind;

/// Data from which a report is made.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadReport<'a> {
    /// All measurements of the run.
    pub measurements: &'a Measurements,
    /// Outcome of every operation.
    pub account: &'a Account,
    /// Times of the answers to each site, and the replicas that answered.
    pub availability: &'a Availability,
    /// Names of the sites, in the order of their indexes. Empty if there is only one site and this
    /// site has no name.
    pub sites: &'a [String],
    /// Percentiles to report, in percent.
    pub percentiles: &'a [f64],
}

impl WorkloadReport<'_> {
    /// Returns all figures: first the overall figures, then the figures of each operation, failure
    /// and path, and finally the figures of each site and replica.
    pub fn lines(&self) -> Vec<ReportLine> {
        let mut lines = ReportBuilder {
            lines: Vec::new(),
            percentiles: self.percentiles,
        };
        self.overall(&mut lines);
        for basis in [Basis::Service, Basis::Intended] {
            for what in all_kinds() {
                self.operation(&mut lines, what, basis);
            }
        }
        self.read_paths(&mut lines, None);
        if self.sites.is_empty() {
            self.gaps(&mut lines, 0, "");
        }
        for (site, name) in (0..).zip(self.sites) {
            self.site(&mut lines, site, name);
        }
        self.replicas(&mut lines);
        lines.lines
    }

    fn overall(&self, lines: &mut ReportBuilder<'_>) {
        let account = self.account;
        let runtime_ms = whole_ms(account.runtime);
        lines.push("OVERALL", "RunTime(ms)", Number::Whole(runtime_ms));
        let throughput = Number::Real(account.throughput());
        lines.push("OVERALL", "Throughput(ops/sec)", throughput);
        let parts = [
            ("Operations", account.intended()),
            ("Succeeded", account.succeeded),
            ("Failed", account.failed),
            ("Abandoned", account.abandoned),
            ("NeverSent", account.never_sent),
        ];
        for (name, count) in parts {
            lines.push("OVERALL", name, Number::Whole(count));
        }
        if let Some(target) = account.target {
            lines.push("OVERALL", "Target(ops/sec)", Number::Real(target));
        }
        if account.overwrote > 0 {
            lines.push("INSERT-OVERWRITES", "Probed", Number::Whole(account.probed));
            lines.push(
                "INSERT-OVERWRITES",
                "Found",
                Number::Whole(account.overwrote),
            );
        }
        if account.missed_target().is_some() {
            let behind = Number::Whole(account.behind_target());
            lines.push("TARGET-MISSED", "Operations", behind);
        }
    }

    fn operation(&self, lines: &mut ReportBuilder<'_>, what: Metric, basis: Basis) {
        let measurements = self.measurements;
        let histogram = measurements.total(|key| key.basis == basis && key.counts_as(what));
        let main = basis == measurements.main_basis();
        let returns: Vec<_> = measurements.returns(what).filter(|_| main).collect();
        if histogram.is_empty() && returns.is_empty() {
            return;
        }
        let metric = reported_name(what, basis, measurements.interval());
        lines.latencies(&metric, &histogram);
        for (returned, count) in returns {
            let measurement = format!("Return={}", returned.name());
            lines.push(&metric, &measurement, Number::Whole(count));
        }
    }

    /// Adds the latencies of all operations that read records. There is a separate figure for each
    /// path. If `site` (index and name) is given, only operations of that site are included.
    fn read_paths(&self, lines: &mut ReportBuilder<'_>, site: Option<(u8, &str)>) {
        let basis = self.measurements.main_basis();
        let here = |key: &SeriesKey| site.is_none_or(|(index, _)| key.site == index);
        for (what, path) in read_paths(self.measurements.keys().filter(|key| here(key))) {
            let wanted = |key: &SeriesKey| {
                here(key)
                    && key.basis == basis
                    && key.metric == what
                    && key.path_name() == Some(path)
            };
            let histogram = self.measurements.total(wanted);
            let of = site.map(|(_, name)| format!("{name}:")).unwrap_or_default();
            let metric = format!("{}@{of}{}", what.name(), path);
            lines.latencies(&metric, &histogram);
        }
    }

    fn site(&self, lines: &mut ReportBuilder<'_>, site: u8, name: &str) {
        let interval = self.measurements.interval();
        for basis in [Basis::Service, Basis::Intended] {
            for what in all_kinds() {
                let wanted =
                    |key: &SeriesKey| key.site == site && key.basis == basis && key.counts_as(what);
                let histogram = self.measurements.total(wanted);
                if !histogram.is_empty() {
                    let metric = format!("{}@{name}", reported_name(what, basis, interval));
                    lines.latencies(&metric, &histogram);
                }
            }
        }
        self.read_paths(lines, Some((site, name)));
        self.gaps(lines, site, &format!("@{name}"));
    }

    fn gaps(&self, lines: &mut ReportBuilder<'_>, site: u8, at: &str) {
        for (_, class, gap) in self.availability.gaps().filter(|(of, ..)| *of == site) {
            let metric = format!("{}{at}", class.name());
            lines.push(&metric, "LongestGap(ms)", in_ms(gap.length));
            lines.push(&metric, "LongestGapStart(ms)", in_ms(gap.began));
        }
    }

    fn replicas(&self, lines: &mut ReportBuilder<'_>) {
        for (name, replica) in self.availability.replicas() {
            let metric = format!("REPLICA@{name}");
            lines.push(&metric, "Answered", Number::Whole(replica.answered));
            lines.push(&metric, "Unanswered", Number::Whole(replica.unanswered));
            if let Some(gap) = replica.longest_silence() {
                lines.push(&metric, "LongestSilence(ms)", in_ms(gap.length));
                lines.push(&metric, "LongestSilenceStart(ms)", in_ms(gap.began));
            }
            if let Some(since) = replica.silent_since() {
                lines.push(&metric, "SilentSince(ms)", in_ms(since));
            }
        }
    }
}

/// A report under construction, to which lines are added.
struct ReportBuilder<'a> {
    lines: Vec<ReportLine>,
    percentiles: &'a [f64],
}

impl ReportBuilder<'_> {
    fn push(&mut self, metric: &str, measurement: &str, value: Number) {
        self.lines.push(ReportLine {
            metric: metric.to_owned(),
            measurement: measurement.to_owned(),
            value,
        });
    }

    fn latencies(&mut self, metric: &str, histogram: &Histogram<u64>) {
        let figures = [
            ("Operations", Number::Whole(histogram.len())),
            ("AverageLatency(us)", Number::Real(histogram.mean())),
            ("MinLatency(us)", Number::Whole(histogram.min())),
            ("MaxLatency(us)", Number::Whole(histogram.max())),
        ];
        for (name, value) in figures {
            self.push(metric, name, value);
        }
        for &percentile in self.percentiles {
            let measurement = format!("{}PercentileLatency(us)", ordinal(percentile));
            let value = histogram.value_at_quantile(percentile / 100.0);
            self.push(metric, &measurement, Number::Whole(value));
        }
    }
}

fn whole_ms(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn in_ms(time: std::time::Duration) -> Number {
    Number::Whole(whole_ms(time))
}

fn all_kinds() -> impl Iterator<Item = Metric> {
    let kinds = [
        OpKind::Read,
        OpKind::Update,
        OpKind::Insert,
        OpKind::Scan,
        OpKind::ReadModifyWrite,
        OpKind::Txn,
    ];
    let of_kind = |kind| {
        [
            Metric::Done(kind),
            Metric::Failed(kind),
            Metric::Abandoned(kind),
            Metric::NeverSent(kind),
        ]
    };
    let rest = [Metric::PerRecord, Metric::Verify, Metric::All];
    kinds.into_iter().flat_map(of_kind).chain(rest)
}

/// Returns the name under which a histogram is reported.
pub(super) fn reported_name(what: Metric, basis: Basis, interval: Interval) -> String {
    match (basis, interval) {
        (Basis::Intended, Interval::Both) => format!("Intended-{}", what.name()),
        _ => what.name(),
    }
}

fn read_paths<'a>(keys: impl Iterator<Item = &'a SeriesKey>) -> Vec<(Metric, &'static str)> {
    let mut found: Vec<(Metric, &SeriesKey)> = Vec::new();
    let reads = [Metric::Done(OpKind::Read), Metric::Done(OpKind::Scan)];
    for key in keys.filter(|key| reads.contains(&key.metric)) {
        found.push((key.metric, key));
    }
    // In the order of the paths; operations served by other replicas come last.
    found.sort_unstable_by_key(|(what, key)| (*what, key.away, key.path));
    let named = |(what, key): (Metric, &SeriesKey)| Some((what, key.path_name()?));
    let mut names: Vec<_> = found.into_iter().filter_map(named).collect();
    names.dedup();
    names
}
