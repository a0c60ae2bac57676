//! Intervals of all logs, by run, site and class. Logs are read twice. The first pass finds the
//! beginnings and ends of the intervals. The second pass reads the measurements and combines them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek as _};
use std::path::Path;

use anyhow::Context as _;
use leasehold_ycsb::measurement::{LogInterval, each_interval};

use super::NamedLogs;
use super::grid::{Grid, IntervalEdges};
use super::tag::{OperationTag, parse_tag};
use crate::report::figures::timeline::{Band, Series, extremes};

/// Name of the site in logs that do not name a site.
const UNNAMED_SITE: &str = "all sites";

/// Contents of all logs.
#[derive(Debug, Default)]
pub(super) struct LogData {
    /// Names of the sites, in order of first occurrence.
    pub sites: Vec<String>,
    pub runs: Vec<LogRun>,
}

/// Results of one run. The run may have used several load generators.
#[derive(Debug, Default)]
pub(super) struct LogRun {
    pub name: String,
    /// Whether latencies are measured from the intended start of an operation.
    pub intended: bool,
    times: IntervalTimes,
    grid: Grid,
    /// Results by site and class.
    rows: BTreeMap<(String, usize), SiteRow>,
}

/// Beginnings and ends of a run's intervals. There are separate lists for intervals with different
/// kinds of operations.
#[derive(Debug, Default)]
struct IntervalTimes {
    /// Beginnings and ends of the intervals for answered operations. In the first entry, latencies
    /// are measured from the actual start of an operation. In the second entry, they are measured
    /// from the intended start.
    done: [IntervalEdges; 2],
    /// Beginnings and ends of the intervals for other operations.
    others: IntervalEdges,
}

/// Results of a run at one site, for one class of operations.
#[derive(Debug, Default)]
struct SiteRow {
    /// Successes a second in each cell of time; `None` if no interval of the log covers the cell.
    cells: Vec<Option<f64>>,
    columns: Vec<Column>,
    /// Number of answered operations by latency in µs, over the whole run.
    counts: BTreeMap<u64, u64>,
    /// Intervals with failed operations. The first number is the middle of the interval, in ms
    /// since 1970, with a precision of 0.5 ms. The second number is the longest latency of the
    /// failed operations, in ms.
    failed: Vec<(f64, f64)>,
}

/// Latencies of the operations in one column of the plot.
#[derive(Clone, Debug, Default)]
struct Column {
    counts: BTreeMap<u64, u64>,
    max_us: u64,
}

/// Reads all logs.
///
/// # Errors
/// Returns an error if a file cannot be read, or is not a log.
pub(super) fn gather(logs: &[NamedLogs]) -> anyhow::Result<LogData> {
    let mut gathered = LogData::default();
    let mut files = Vec::new();
    for (name, paths) in logs {
        for path in paths {
            let mut file = open(path)?;
            gathered.each(name, path, &mut file, &mut |run, tag, interval| {
                let [from_ms, to_ms] = span_ms(interval);
                run.times.add(tag, from_ms, to_ms);
                Ok(())
            })?;
            files.push((name, path, file));
        }
    }
    gathered.runs.iter_mut().for_each(LogRun::choose_basis);
    for (name, path, mut file) in files {
        gathered.each(name, path, &mut file, &mut LogRun::add_interval)?;
    }
    gathered.runs.retain(|run| !run.rows.is_empty());
    Ok(gathered)
}

/// Opens a file so that it can be read twice. If the file is a pipe, returns a copy of its
/// contents.
fn open(path: &Path) -> anyhow::Result<File> {
    let opened = || {
        let mut file = File::open(path)?;
        if file.metadata()?.is_file() {
            return Ok(file);
        }
        let mut copy = tempfile::tempfile()?;
        io::copy(&mut file, &mut copy)?;
        Ok::<_, io::Error>(copy)
    };
    opened().with_context(|| path.display().to_string())
}

/// Function that processes one interval of a run.
type IntervalVisitor<'a> =
    &'a mut dyn FnMut(&mut LogRun, &OperationTag, &LogInterval<'_>) -> Result<(), String>;

impl LogData {
    pub(super) fn names(&self) -> Vec<&str> {
        self.runs.iter().map(|run| run.name.as_str()).collect()
    }

    /// Calls the visitor for each interval of a file. Skips intervals that are not about
    /// operations.
    fn each(
        &mut self,
        name: &str,
        path: &Path,
        file: &mut File,
        visit: IntervalVisitor<'_>,
    ) -> anyhow::Result<()> {
        file.rewind().with_context(|| path.display().to_string())?;
        each_interval(path, file, &mut |interval| {
            let Some(mut tag) = parse_tag(&interval.tag, path) else {
                return Ok(());
            };
            if tag.site.is_empty() {
                tag.site = UNNAMED_SITE.to_owned();
            }
            if !self.sites.contains(&tag.site) {
                self.sites.push(tag.site.clone());
            }
            let run = self.run(name, &tag.run);
            visit(run, &tag, interval)
        })?;
        Ok(())
    }

    /// Returns the run with this name and label. Creates the run if it does not exist.
    fn run(&mut self, name: &str, label: &str) -> &mut LogRun {
        let parts = [name, label].into_iter().filter(|part| !part.is_empty());
        let name = parts.collect::<Vec<_>>().join(" ");
        let at = self.runs.iter().position(|run| run.name == name);
        let at = at.unwrap_or_else(|| {
            self.runs.push(LogRun {
                name,
                ..LogRun::default()
            });
            self.runs.len() - 1
        });
        &mut self.runs[at]
    }
}

impl IntervalTimes {
    fn add(&mut self, tag: &OperationTag, from_ms: u64, to_ms: u64) {
        let cuts = if tag.done {
            &mut self.done[usize::from(tag.intended)]
        } else {
            &mut self.others
        };
        cuts.add(from_ms, to_ms);
    }

    /// Returns the beginning and the end of the time range of the plot, in ms.
    fn ends_ms(&self, intended: bool) -> [u64; 2] {
        let shown = [&self.done[usize::from(intended)], &self.others];
        let ends = shown.into_iter().filter_map(IntervalEdges::ends_ms);
        let all = ends.reduce(|[a, b], [from, to]| [a.min(from), b.max(to)]);
        all.unwrap_or_default()
    }
}

impl LogRun {
    /// Chooses the point from which latency is measured: the intended start of an operation if a
    /// log contains latencies from the intended start, otherwise the actual start.
    fn choose_basis(&mut self) {
        self.intended = self.times.done[1].ends_ms().is_some();
        self.grid = Grid::new(&self.times.done[usize::from(self.intended)]);
    }

    /// Adds an interval. Skips the interval if its latencies are not measured from the point that
    /// [`LogRun::choose_basis`] chose.
    fn add_interval(
        &mut self,
        tag: &OperationTag,
        interval: &LogInterval<'_>,
    ) -> Result<(), String> {
        if tag.done && tag.intended != self.intended {
            return Ok(());
        }
        let counts = interval.counts()?;
        let [from_ms, to_ms] = span_ms(interval);
        let key = (tag.site.clone(), tag.class as usize);
        let grid = &self.grid;
        let row = self.rows.entry(key).or_insert_with(|| SiteRow {
            cells: vec![None; grid.cells()],
            columns: vec![Column::default(); grid.columns()],
            ..SiteRow::default()
        });
        if !tag.done {
            let longest = counts.last().map(|(us, _)| ms(*us));
            let middle_ms = (from_ms + to_ms) as f64 / 2.0;
            row.failed.extend(longest.map(|ms| (middle_ms, ms)));
            return Ok(());
        }
        row.add(grid, from_ms, to_ms, &counts);
        Ok(())
    }

    pub(super) fn length_s(&self) -> f64 {
        self.seconds(self.times.ends_ms(self.intended)[1] as f64)
    }

    fn seconds(&self, at_ms: f64) -> f64 {
        (at_ms - self.times.ends_ms(self.intended)[0] as f64) / 1e3
    }

    /// Returns the distribution of latencies, in ms. Each latency is paired with the share of
    /// answered operations that had at most this latency.
    pub(super) fn steps(&self, site: &str, class: usize) -> Vec<(f64, f64)> {
        let Some(row) = self.rows.get(&(site.to_owned(), class)) else {
            return Vec::new();
        };
        let all: u64 = row.counts.values().sum();
        let mut below = 0;
        let step = |(us, count): (&u64, &u64)| {
            below += count;
            (ms(*us), below as f64 / all as f64)
        };
        row.counts.iter().map(step).collect()
    }

    /// Returns the data for the panel of one site and class in the time line.
    pub(super) fn series(&self, site: &str, class: usize) -> Series {
        let mut series = Series::default();
        let Some(row) = self.rows.get(&(site.to_owned(), class)) else {
            return series;
        };
        for (number, column) in row.columns.iter().enumerate() {
            let cells = self.grid.cells_of(number);
            let span = self.grid.span_ms(&cells);
            let [from, to] = span.map(|at_ms| self.seconds(at_ms as f64));
            let Some(per_s) = row.throughput(&self.grid, &cells) else {
                continue;
            };
            series.throughput.push((from, to, per_s));
            let range = row.range(&cells).filter(|[least, most]| least < most);
            series
                .ranges
                .extend(range.map(|range| ((from + to) / 2.0, range)));
            series.bands.extend(column.band(from, to));
        }
        let failed = row.failed.iter();
        let failed = failed.map(|(at_ms, ms)| (self.seconds(*at_ms), *ms));
        series.failed = extremes(failed.collect(), 0.0, self.length_s());
        series
    }
}

impl SiteRow {
    fn add(&mut self, grid: &Grid, from_ms: u64, to_ms: u64, counts: &[(u64, u64)]) {
        let answered: u64 = counts.iter().map(|(_, count)| count).sum();
        let per_s = answered as f64 / ((to_ms - from_ms) as f64 / 1e3);
        let mut last = None;
        for (cell, part) in grid.covered(from_ms, to_ms) {
            *self.cells[cell].get_or_insert(0.0) += per_s * part;
            let column = grid.column(cell);
            if last.replace(column) != Some(column) {
                self.columns[column].add(counts, grid.is_exact());
            }
        }
        for (us, count) in counts {
            *self.counts.entry(*us).or_insert(0) += count;
        }
    }

    /// Returns the mean throughput over the cells; `None` if no interval covers any of the cells. A
    /// cell that no interval covers has the throughput 0, because a log has no line for an interval
    /// in which no operation was answered.
    fn throughput(&self, grid: &Grid, cells: &std::ops::Range<usize>) -> Option<f64> {
        let (mut answered, mut covered) = (0.0, false);
        for cell in cells.clone() {
            let [from, to] = grid.span_ms(&(cell..cell + 1));
            answered += self.cells[cell].unwrap_or_default() * (to - from) as f64;
            covered |= self.cells[cell].is_some();
        }
        let [from, to] = grid.span_ms(cells);
        covered.then_some(answered / (to - from) as f64)
    }

    /// Returns the least and the greatest throughput of several cells.
    fn range(&self, cells: &std::ops::Range<usize>) -> Option<[f64; 2]> {
        let rates = self.cells[cells.clone()].iter();
        let rates = rates.map(|per_s| per_s.unwrap_or_default());
        let ends = rates.map(|per_s| [per_s, per_s]);
        ends.reduce(|[least, most], [per_s, _]| [least.min(per_s), most.max(per_s)])
    }
}

impl Column {
    fn add(&mut self, counts: &[(u64, u64)], exactly: bool) {
        for (us, count) in counts {
            let us = if exactly { *us } else { coarse(*us) };
            *self.counts.entry(us).or_insert(0) += count;
        }
        let longest = counts.last().map_or(0, |(us, _)| *us);
        self.max_us = self.max_us.max(longest);
    }

    fn band(&self, from_s: f64, to_s: f64) -> Option<Band> {
        let all: u64 = self.counts.values().sum();
        let quantile = |q: f64| {
            let rank = (q * all as f64).ceil().max(1.0) as u64;
            let mut below = 0;
            let mut found = self.counts.iter().find(|(_, count)| {
                below += **count;
                below >= rank
            });
            found.take().map(|(us, _)| ms((*us).min(self.max_us)))
        };
        Some(Band {
            from_s,
            to_s,
            p50_ms: quantile(0.5)?,
            p99_ms: quantile(0.99)?,
            max_ms: ms(self.max_us),
        })
    }
}

/// Returns the highest number with the same seven leading bits as `us`. The result exceeds `us` by
/// at most 1.6%, which is less than a pixel in a plot.
fn coarse(us: u64) -> u64 {
    let bits = u64::BITS - us.leading_zeros();
    us | ((1 << bits.saturating_sub(7)) - 1)
}

/// Returns the beginning and the end of an interval, in ms.
fn span_ms(interval: &LogInterval<'_>) -> [u64; 2] {
    let from = interval.start.as_millis() as u64;
    [from, from + (interval.length.as_millis() as u64).max(1)]
}

fn ms(us: u64) -> f64 {
    us as f64 / 1e3
}
