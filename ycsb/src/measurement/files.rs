//! The histogram files of a load generator (`hdrhistogram.fileoutput=true`). During the run, the
//! load generator writes YCSB's interval log for each operation (`READ.hdr`), and one log of all
//! operations, tagged by site, operation and path (`latency.hlog`). At the end, it writes a
//! percentile distribution for each operation (`READ.hgrm`).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use hdrhistogram::Histogram;

use super::report::reported_name;
use super::{
    Basis, HlogError, HlogWriter, Interval, Measurements, Metric, SeriesKey, hlog, reported_names,
    write_hgrm,
};

/// Name of the log of all operations.
const ALL: &str = "latency.hlog";

/// An interval log that is being written; `None` after a write to the log has failed. After a
/// failure nothing more is written to the log, because a log with a gap would be misleading.
type Log = Option<HlogWriter<BufWriter<File>>>;

/// Histogram files of one run. An error in one file affects neither the run nor the other files.
/// The first error is returned at the end of the run.
pub struct IntervalFiles {
    /// Prefix of every file name, as the user wrote it. A prefix that is a folder must end with
    /// `/`.
    prefix: String,
    start: SystemTime,
    sites: Vec<String>,
    interval: Interval,
    all: Log,
    by_name: BTreeMap<String, Log>,
    failure: Option<HlogError>,
}

impl IntervalFiles {
    /// Creates the log of all operations, and the folder that contains the log. The other files are
    /// created later. The run starts at `start`. `interval` says which latencies the run keeps.
    /// `sites` contains the names of the sites, in the order of the site indexes.
    ///
    /// # Errors
    /// If the log cannot be created.
    pub fn create(
        prefix: &str,
        start: SystemTime,
        sites: Vec<String>,
        interval: Interval,
    ) -> Result<Self, HlogError> {
        let all = open(prefix, ALL, "Logged by leasehold", start)?;
        Ok(IntervalFiles {
            prefix: prefix.to_owned(),
            start,
            sites,
            interval,
            all: Some(all),
            by_name: BTreeMap::new(),
            failure: None,
        })
    }

    /// Adds the measurements of one interval. The interval began at `start`, counted from the start
    /// of the run.
    pub fn write(
        &mut self,
        start: Duration,
        length: Duration,
        measured: &[(SeriesKey, Histogram<u64>)],
    ) {
        for (key, histogram) in measured {
            let Some(all) = &mut self.all else { break };
            let name = reported_name(key.metric, key.basis, self.interval);
            let unnamed = key.site.to_string();
            let site = self.sites.get(usize::from(key.site)).unwrap_or(&unnamed);
            let tag = hlog::tag("", site, &name, key);
            if let Err(error) = all.write(start, length, Some(&tag), histogram) {
                self.all = None;
                self.fail(failed(&self.prefix, ALL, error));
            }
        }
        for (name, histogram) in reported_names(measured, self.interval) {
            self.write_named(&name, start, length, &histogram);
        }
    }

    fn fail(&mut self, error: HlogError) {
        self.failure.get_or_insert(error);
    }

    fn write_named(
        &mut self,
        name: &str,
        start: Duration,
        length: Duration,
        histogram: &Histogram<u64>,
    ) {
        let file = format!("{name}.hdr");
        if !self.by_name.contains_key(name) {
            let title = format!("Logging for: {name}");
            let log = open(&self.prefix, &file, &title, self.start);
            let log = log.map_err(|error| self.fail(error)).ok();
            self.by_name.insert(name.to_owned(), log);
        }
        let Some(log) = self.by_name.get_mut(name) else {
            return;
        };
        let written = log
            .as_mut()
            .map(|log| log.write(start, length, None, histogram));
        if let Some(Err(error)) = written {
            *log = None;
            self.fail(failed(&self.prefix, &file, error));
        }
    }

    /// Closes the logs and writes the percentile distributions of the whole run.
    ///
    /// # Errors
    /// If a file cannot be written, or a write failed earlier. Even then, all other files are
    /// complete.
    pub fn finish(mut self, measurements: &Measurements) -> Result<(), HlogError> {
        let named = std::mem::take(&mut self.by_name);
        let named = named
            .into_iter()
            .map(|(name, log)| (format!("{name}.hdr"), log));
        let all = (ALL.to_owned(), self.all.take());
        for (file, log) in named.chain([all]) {
            if let Some(Err(error)) = log.map(HlogWriter::finish) {
                self.fail(failed(&self.prefix, &file, error));
            }
        }
        self.write_distributions(measurements);
        self.failure.map_or(Ok(()), Err)
    }

    fn write_distributions(&mut self, measurements: &Measurements) {
        let mut names: Vec<(Metric, Basis)> = measurements
            .keys()
            .flat_map(|key| key.reported_as().map(|what| (what, key.basis)))
            .collect();
        names.sort_unstable();
        names.dedup();
        for (what, basis) in names {
            let total = measurements.total(|key| key.basis == basis && key.counts_as(what));
            let file = format!("{}.hgrm", reported_name(what, basis, self.interval));
            let write = || {
                let mut out = BufWriter::new(File::create(path(&self.prefix, &file))?);
                write_hgrm(&mut out, &total, 1.0)?;
                io::Write::flush(&mut out)
            };
            if let Err(error) = write() {
                self.fail(failed(&self.prefix, &file, error));
            }
        }
    }
}

fn open(
    prefix: &str,
    file: &str,
    title: &str,
    start: SystemTime,
) -> Result<HlogWriter<BufWriter<File>>, HlogError> {
    let create = || {
        let path = path(prefix, file);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        HlogWriter::new(BufWriter::new(File::create(path)?), title, start)
    };
    create().map_err(|error| failed(prefix, file, error))
}

fn path(prefix: &str, file: &str) -> PathBuf {
    PathBuf::from(format!("{prefix}{file}"))
}

fn failed(prefix: &str, file: &str, source: io::Error) -> HlogError {
    HlogError::Io {
        path: path(prefix, file),
        source,
    }
}
