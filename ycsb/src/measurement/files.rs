//! The histogram files of a load generator (`hdrhistogram.fileoutput=true`): as
//! it runs, YCSB's interval log for each operation (`READ.hdr`) and one with all
//! of them, tagged by site, operation and path (`latency.hlog`); at its end, a
//! percentile distribution for each operation (`READ.hgrm`).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use hdrhistogram::Histogram;

use super::report::reported_name;
use super::{
    Basis, HlogError, HlogWriter, Interval, Key, Measurements, What, hlog, reported_names,
    write_hgrm,
};

type Log = HlogWriter<BufWriter<File>>;

/// The files of one run.
pub struct IntervalFiles {
    /// Put before every file's name, as it is: a folder ends with `/`.
    prefix: String,
    start: SystemTime,
    sites: Vec<String>,
    interval: Interval,
    all: Log,
    by_name: BTreeMap<String, Log>,
}

impl IntervalFiles {
    /// Creates the files of a run that measures `interval` and starts at `start`, and the
    /// folder that they are in.
    /// `sites` names the sites by index.
    ///
    /// # Errors
    /// If a file cannot be created.
    pub fn create(
        prefix: &str,
        start: SystemTime,
        sites: Vec<String>,
        interval: Interval,
    ) -> Result<Self, HlogError> {
        let all = open(prefix, "latency.hlog", "Logged by leasehold", start)?;
        Ok(IntervalFiles {
            prefix: prefix.to_owned(),
            start,
            sites,
            interval,
            all,
            by_name: BTreeMap::new(),
        })
    }

    /// Adds what was measured in one interval, which began `start` after the run.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(
        &mut self,
        start: Duration,
        length: Duration,
        measured: &[(Key, Histogram<u64>)],
    ) -> Result<(), HlogError> {
        for (key, histogram) in measured {
            let name = reported_name(key.what, key.basis, self.interval);
            let unnamed = key.site.to_string();
            let site = self.sites.get(usize::from(key.site)).unwrap_or(&unnamed);
            let tag = hlog::tag("", site, &name, key);
            let written = self.all.write(start, length, Some(&tag), histogram);
            written.map_err(|e| failed(&self.prefix, "latency.hlog", e))?;
        }
        for (name, histogram) in reported_names(measured, self.interval) {
            self.write_named(&name, start, length, &histogram)?;
        }
        Ok(())
    }

    fn write_named(
        &mut self,
        name: &str,
        start: Duration,
        length: Duration,
        histogram: &Histogram<u64>,
    ) -> Result<(), HlogError> {
        let file = format!("{name}.hdr");
        if !self.by_name.contains_key(name) {
            let title = format!("Logging for: {name}");
            let log = open(&self.prefix, &file, &title, self.start)?;
            self.by_name.insert(name.to_owned(), log);
        }
        let Some(log) = self.by_name.get_mut(name) else {
            return Ok(());
        };
        let written = log.write(start, length, None, histogram);
        written.map_err(|error| failed(&self.prefix, &file, error))
    }

    /// Closes the logs and writes the percentile distributions of the whole run.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn finish(self, measurements: &Measurements) -> Result<(), HlogError> {
        let prefix = self.prefix;
        self.all
            .finish()
            .map_err(|error| failed(&prefix, "latency.hlog", error))?;
        for (name, log) in self.by_name {
            log.finish()
                .map_err(|error| failed(&prefix, &format!("{name}.hdr"), error))?;
        }
        let mut names: Vec<(What, Basis)> = measurements
            .keys()
            .flat_map(|key| key.reported_as().map(|what| (what, key.basis)))
            .collect();
        names.sort_unstable();
        names.dedup();
        for (what, basis) in names {
            let total = measurements.total(|key| key.basis == basis && key.counts_as(what));
            let file = format!("{}.hgrm", reported_name(what, basis, self.interval));
            let write = || {
                let mut out = BufWriter::new(File::create(path(&prefix, &file))?);
                write_hgrm(&mut out, &total, 1.0)?;
                io::Write::flush(&mut out)
            };
            write().map_err(|error| failed(&prefix, &file, error))?;
        }
        Ok(())
    }
}

fn open(prefix: &str, file: &str, title: &str, start: SystemTime) -> Result<Log, HlogError> {
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
