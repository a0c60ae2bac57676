//! Intervals of all logs, by run, site and class.

use std::collections::BTreeMap;

use ycsb::measurement::{LogInterval, read_intervals};

use super::super::figures::timeline::{Band, Series};
use super::NamedLogs;
use super::tag::{Counted, counted};

/// What a site is called that a log does not name.
const UNNAMED_SITE: &str = "all sites";

/// Everything that the logs hold.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// In the order in which they were met.
    pub sites: Vec<String>,
    pub runs: Vec<Run>,
}

/// One run, maybe of several load generators.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub name: String,
    /// Whether latencies count from the intended start.
    pub intended: bool,
    /// Time 0 of the pictures, in ms since 1970.
    zero_ms: u64,
    intervals: Vec<Piece>,
}

/// One line of a log.
#[derive(Debug)]
struct Piece {
    counted: Counted,
    from_ms: u64,
    to_ms: u64,
    counts: Vec<(u64, u64)>,
}

/// Reads all logs.
///
/// # Errors
/// If one cannot be read or is none.
pub(super) fn gather(logs: &[NamedLogs]) -> anyhow::Result<Gathered> {
    let mut gathered = Gathered::default();
    for (name, files) in logs {
        for file in files {
            let intervals = read_intervals(file)?;
            for interval in intervals {
                if let Some(counted) = counted(&interval.tag, file) {
                    gathered.take(name, counted, interval);
                }
            }
        }
    }
    gathered.runs.iter_mut().for_each(Run::settle);
    Ok(gathered)
}

impl Gathered {
    pub(super) fn names(&self) -> Vec<&str> {
        self.runs.iter().map(|run| run.name.as_str()).collect()
    }

    fn take(&mut self, name: &str, mut counted: Counted, interval: LogInterval) {
        if counted.site.is_empty() {
            counted.site = UNNAMED_SITE.to_owned();
        }
        if !self.sites.contains(&counted.site) {
            self.sites.push(counted.site.clone());
        }
        let parts = [name, counted.run.as_str()]
            .into_iter()
            .filter(|part| !part.is_empty());
        let name = parts.collect::<Vec<_>>().join(" ");
        let at = self.runs.iter().position(|run| run.name == name);
        let at = at.unwrap_or_else(|| {
            self.runs.push(Run {
                name,
                ..Run::default()
            });
            self.runs.len() - 1
        });
        let from_ms = interval.start.as_millis() as u64;
        self.runs[at].intervals.push(Piece {
            counted,
            from_ms,
            to_ms: from_ms + (interval.length.as_millis() as u64).max(1),
            counts: interval.counts,
        });
    }
}

impl Run {
    /// Chooses time 0, and one basis of latency: the intended start, where a log has it.
    /// What was never sent has no other.
    fn settle(&mut self) {
        self.intended = self
            .intervals
            .iter()
            .any(|piece| piece.counted.intended && piece.counted.done);
        let intended = self.intended;
        self.intervals
            .retain(|piece| piece.counted.intended == intended || !piece.counted.done);
        self.zero_ms = self
            .intervals
            .iter()
            .map(|piece| piece.from_ms)
            .min()
            .unwrap_or(0);
    }

    pub(super) fn length_s(&self) -> f64 {
        let last = self.intervals.iter().map(|piece| piece.to_ms).max();
        self.seconds(last.unwrap_or(self.zero_ms))
    }

    fn seconds(&self, at_ms: u64) -> f64 {
        (at_ms - self.zero_ms) as f64 / 1e3
    }

    fn of<'a>(
        &'a self,
        site: &'a str,
        class: usize,
        done: bool,
    ) -> impl Iterator<Item = &'a Piece> {
        self.intervals.iter().filter(move |piece| {
            let counted = &piece.counted;
            counted.site == site && counted.class as usize == class && counted.done == done
        })
    }

    /// Each latency in ms with the share of answered operations not above it.
    pub(super) fn steps(&self, site: &str, class: usize) -> Vec<(f64, f64)> {
        let merged = merged(self.of(site, class, true));
        let all: u64 = merged.values().sum();
        let mut below = 0;
        let step = |(us, count): (&u64, &u64)| {
            below += count;
            (ms(*us), below as f64 / all as f64)
        };
        merged.iter().map(step).collect()
    }

    /// What a row of the time line shows: reads and writes.
    pub(super) fn series(&self, site: &str) -> [Series; 2] {
        [0, 1].map(|class| {
            let mut series = Series::default();
            for (from_ms, to_ms, counts) in self.cut(site, class) {
                let (from, to) = (self.seconds(from_ms), self.seconds(to_ms));
                let covered = counts.iter().map(|piece| {
                    let answered: u64 = piece.counts.iter().map(|(_, count)| count).sum();
                    answered as f64 / ((piece.to_ms - piece.from_ms) as f64 / 1e3)
                });
                series.throughput.push((from, to, covered.sum()));
                series
                    .bands
                    .extend(band(from, to, &merged(counts.into_iter())));
            }
            for piece in self.of(site, class, false) {
                let middle = (self.seconds(piece.from_ms) + self.seconds(piece.to_ms)) / 2.0;
                let longest = piece.counts.iter().map(|(us, _)| *us).max();
                series.failed.extend(longest.map(|us| (middle, ms(us))));
            }
            series
        })
    }

    /// Time cut at every beginning and end of an interval, with the intervals of answered
    /// operations that cover each piece; pieces that none covers are left out.
    fn cut<'a>(&'a self, site: &'a str, class: usize) -> Vec<(u64, u64, Vec<&'a Piece>)> {
        let mut intervals: Vec<&Piece> = self.of(site, class, true).collect();
        intervals.sort_by_key(|piece| piece.from_ms);
        let ends = intervals
            .iter()
            .flat_map(|piece| [piece.from_ms, piece.to_ms]);
        let mut cuts: Vec<u64> = ends.collect();
        cuts.sort_unstable();
        cuts.dedup();
        let (mut open, mut next) = (Vec::<&Piece>::new(), 0);
        let mut pieces = Vec::new();
        for pair in cuts.windows(2) {
            open.retain(|piece| piece.to_ms > pair[0]);
            while let Some(piece) = intervals.get(next).filter(|piece| piece.from_ms <= pair[0]) {
                open.push(piece);
                next += 1;
            }
            if !open.is_empty() {
                pieces.push((pair[0], pair[1], open.clone()));
            }
        }
        pieces
    }
}

fn merged<'a>(pieces: impl Iterator<Item = &'a Piece>) -> BTreeMap<u64, u64> {
    let mut sums = BTreeMap::new();
    for (us, count) in pieces.flat_map(|piece| &piece.counts) {
        *sums.entry(*us).or_insert(0) += count;
    }
    sums
}

fn band(from_s: f64, to_s: f64, counts: &BTreeMap<u64, u64>) -> Option<Band> {
    let all: u64 = counts.values().sum();
    let quantile = |q: f64| {
        let rank = (q * all as f64).ceil().max(1.0) as u64;
        let mut below = 0;
        let mut found = counts.iter().find(|(_, count)| {
            below += **count;
            below >= rank
        });
        found.take().map(|(us, _)| ms(*us))
    };
    Some(Band {
        from_s,
        to_s,
        p50_ms: quantile(0.5)?,
        p99_ms: quantile(0.99)?,
        max_ms: quantile(1.0)?,
    })
}

fn ms(us: u64) -> f64 {
    us as f64 / 1e3
}
