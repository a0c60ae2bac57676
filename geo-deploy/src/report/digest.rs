//! Latencies of a report's samples. They are sorted once, and used in all tables and figures.

use leasehold_ycsb::sample::{OpKind, OpOutcome, Sample};

use super::ExperimentReport;

/// Class of operations: reads or writes. Tables and plots show the two classes separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Reads,
    Writes,
}

impl Class {
    pub(super) const BOTH: [Class; 2] = [Class::Reads, Class::Writes];

    pub(super) fn of(kind: OpKind) -> Class {
        match kind {
            OpKind::Read | OpKind::Scan => Class::Reads,
            OpKind::Update | OpKind::Insert | OpKind::ReadModifyWrite | OpKind::Txn => {
                Class::Writes
            }
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Class::Reads => "reads",
            Class::Writes => "writes",
        }
    }
}

/// Sorted latencies of answered operations. The number of failed operations and the number of
/// timed-out operations are stored, too.
#[derive(Clone, Debug, Default)]
pub(super) struct Latencies {
    sorted_ns: Vec<u64>,
    pub failed: u64,
    pub timed_out: u64,
}

impl Latencies {
    pub(super) fn count(&self) -> u64 {
        self.sorted_ns.len() as u64
    }

    /// Combines several distributions into one.
    pub(super) fn merged<'a>(parts: impl IntoIterator<Item = &'a Latencies>) -> Latencies {
        let mut all = Latencies::default();
        for part in parts {
            all.sorted_ns.extend(&part.sorted_ns);
            all.failed += part.failed;
            all.timed_out += part.timed_out;
        }
        all.sorted_ns.sort_unstable();
        all
    }

    pub(super) fn mean_ms(&self) -> f64 {
        if self.sorted_ns.is_empty() {
            return 0.0;
        }
        let sum: u128 = self.sorted_ns.iter().map(|&ns| u128::from(ns)).sum();
        ms(sum as f64 / self.sorted_ns.len() as f64)
    }

    /// Returns the quantile `q` of the latencies, in ms; 0 if there are no operations.
    pub(super) fn quantile_ms(&self, q: f64) -> f64 {
        let rank = (q * self.sorted_ns.len() as f64).ceil().max(1.0) as usize;
        let found = self
            .sorted_ns
            .get(rank.min(self.sorted_ns.len()).wrapping_sub(1));
        found.map_or(0.0, |&ns| ms(ns as f64))
    }

    /// Returns the share of operations that took at most `limit_ms`.
    pub(super) fn share_within(&self, limit_ms: f64) -> f64 {
        let within = self
            .sorted_ns
            .partition_point(|&ns| ms(ns as f64) <= limit_ms);
        share(within as u64, self.count())
    }

    /// Returns all distinct latencies in ms, in increasing order. Each latency is paired with the
    /// share of operations that took at most this time.
    pub(super) fn steps(&self) -> impl Iterator<Item = (f64, f64)> {
        let n = self.sorted_ns.len();
        let last_of_equals =
            move |i: usize| i + 1 == n || self.sorted_ns[i] != self.sorted_ns[i + 1];
        (0..n)
            .filter(move |&i| last_of_equals(i))
            .map(move |i| (ms(self.sorted_ns[i] as f64), (i + 1) as f64 / n as f64))
    }

    /// Sorts the latencies. Must be called after the last [`Latencies::take`].
    pub(super) fn sort(&mut self) {
        self.sorted_ns.sort_unstable();
    }

    pub(super) fn take(&mut self, sample: &Sample) {
        match sample.end {
            OpOutcome::Ok => self.sorted_ns.push(sample.latency_ns),
            OpOutcome::Failed => self.failed += 1,
            OpOutcome::TimedOut => self.timed_out += 1,
        }
    }
}

/// Sorted latencies of one run, by site.
#[derive(Clone, Debug)]
pub(super) struct Digest {
    pub reads: Vec<Latencies>,
    pub writes: Vec<Latencies>,
}

impl Digest {
    pub(super) fn of(&self, class: Class) -> &[Latencies] {
        match class {
            Class::Reads => &self.reads,
            Class::Writes => &self.writes,
        }
    }
}

/// Returns the sorted latencies of every run of a report. Samples of sites that are not in the
/// topology are ignored.
pub(super) fn digest(report: &ExperimentReport) -> Vec<Digest> {
    let sites = report.topology.len();
    let of_run = |samples: &[Sample]| {
        let mut digest = Digest {
            reads: vec![Latencies::default(); sites],
            writes: vec![Latencies::default(); sites],
        };
        for sample in samples {
            let class = match Class::of(sample.kind) {
                Class::Reads => &mut digest.reads,
                Class::Writes => &mut digest.writes,
            };
            if let Some(latencies) = class.get_mut(usize::from(sample.site)) {
                latencies.take(sample);
            }
        }
        for latencies in digest.reads.iter_mut().chain(&mut digest.writes) {
            latencies.sort();
        }
        digest
    };
    report.runs.iter().map(|run| of_run(&run.samples)).collect()
}

fn ms(ns: f64) -> f64 {
    ns / 1e6
}

/// Returns `part` divided by `all`; 0 if `all` is 0.
pub(super) fn share(part: u64, all: u64) -> f64 {
    match all {
        0 => 0.0,
        all => part as f64 / all as f64,
    }
}
