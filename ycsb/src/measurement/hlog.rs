//! Interval logs (`.hlog`), the format that HdrHistogram's log readers and plotters open.
//!
//! The library compresses histograms and writes the tagged lines. This module writes the version
//! line and the legend, which the standard readers require.

mod interval;
mod read;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{
    IntervalLogHistogram, IntervalLogIterator, IntervalLogWriterBuilder, IntervalLogWriterError,
    LogEntry, LogIteratorError, Tag,
};

pub use read::{LogInterval, each_interval};

use super::{SeriesKey, add, new_histogram, observe, sample_key};
use crate::sample::Sample;

const LEGEND: &str =
    "\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"";

/// Reason why an interval log cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum HlogError {
    /// The operating system reports an error.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The contents of a file are not an interval log.
    #[error("{path}: not an interval log: {reason}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Reason why the text is not an interval log.
        reason: String,
    },
}

/// Writes one interval log.
pub struct HlogWriter<W: Write> {
    out: W,
    serializer: V2DeflateSerializer,
}

impl<W: Write> HlogWriter<W> {
    /// Writes the head of a log. The time 0 of the log is `start`. The `title` becomes the first
    /// comment of the log.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn new(mut out: W, title: &str, start: SystemTime) -> io::Result<Self> {
        let start_s = start
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64();
        let title = title.replace(['\n', '\r'], " ");
        writeln!(out, "#[{title}]")?;
        writeln!(out, "#[Histogram log format version 1.3]")?;
        writeln!(out, "#[StartTime: {start_s:.3} (seconds since epoch)]")?;
        writeln!(out, "{LEGEND}")?;
        Ok(HlogWriter {
            out,
            serializer: V2DeflateSerializer::new(),
        })
    }

    /// Writes one interval, which began at `start`. The time `start` is counted from the log's time
    /// 0. Characters that are not allowed in a tag (commas, blanks) are replaced.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn write(
        &mut self,
        start: Duration,
        length: Duration,
        tag: Option<&str>,
        histogram: &Histogram<u64>,
    ) -> io::Result<()> {
        let tag = tag.map(clean_tag);
        // The log has whole milliseconds. Ends are rounded, not lengths, because intervals that
        // follow each other must not overlap by a millisecond.
        let (begin, end) = (whole_ms(start), whole_ms(start + length));
        let (start, length) = (begin, end - begin);
        // If it is given no comments or times, the builder writes no head.
        IntervalLogWriterBuilder::new()
            .begin_log_with(&mut self.out, &mut self.serializer)?
            .write_histogram(histogram, start, length, tag.as_deref().and_then(Tag::new))
            .map_err(|error| match error {
                IntervalLogWriterError::IoError(error) => error,
                IntervalLogWriterError::SerializeError(error) => io::Error::other(error),
            })
    }

    /// Writes the buffered data and returns `out`.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}

fn whole_ms(time: Duration) -> Duration {
    Duration::from_millis((time.as_micros() as u64 + 500) / 1_000)
}

fn clean_tag(tag: &str) -> String {
    let forbidden = |c: char| c == ',' || c.is_whitespace() || c.is_control();
    tag.chars()
        .map(|c| if forbidden(c) { '_' } else { c })
        .collect()
}

/// Returns a tag such as `site:READ:local`. If the key has no path, the tag ends after the
/// operation.
pub(super) fn tag(label: &str, site: &str, name: &str, key: &SeriesKey) -> String {
    let parts = [Some(label), Some(site), Some(name), key.path_name()];
    let parts = parts.into_iter().flatten().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join(":")
}

/// One run of an experiment, for a log of several runs.
#[derive(Clone, Copy, Debug)]
pub struct HlogRun<'a> {
    /// First part of the tags, for example the strategy. It may be empty.
    pub label: &'a str,
    /// Names of the sites. The site index of a sample refers to this list.
    pub sites: &'a [String],
    /// Measured samples.
    pub samples: &'a [Sample],
}

/// Writes the samples of several runs as one interval log, with tags of the form
/// `label:site:OPERATION:path`. Each interval has the length `interval` and contains the operations
/// that started in this interval. All runs are logged as if they had begun at `start`, so their
/// times overlap.
///
/// # Errors
/// If the file cannot be written.
pub fn write_hlog(
    path: &Path,
    start: SystemTime,
    interval: Duration,
    runs: &[HlogRun<'_>],
) -> Result<(), HlogError> {
    let write = || {
        let file = BufWriter::new(File::create(path)?);
        let mut log = HlogWriter::new(file, "Logged by leasehold", start)?;
        write_runs(&mut log, interval, runs)?;
        log.finish().map(drop)
    };
    write().map_err(|source| HlogError::Io {
        path: path.to_owned(),
        source,
    })
}

fn write_runs<W: Write>(
    log: &mut HlogWriter<W>,
    interval: Duration,
    runs: &[HlogRun<'_>],
) -> io::Result<()> {
    let length_ns = u64::try_from(interval.as_nanos())
        .unwrap_or(u64::MAX)
        .max(1);
    let number = |sample: &Sample| sample.start_ns / length_ns;
    // A histogram takes a hundred kilobytes, so only the histograms of one interval of one run are
    // held at a time.
    let mut parts: Vec<(u64, usize, Vec<&Sample>)> = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        let mut samples: Vec<_> = run.samples.iter().collect();
        samples.sort_by_key(|sample| number(sample));
        for part in samples.chunk_by(|a, b| number(a) == number(b)) {
            parts.push((number(part[0]), index, part.to_vec()));
        }
    }
    parts.sort_by_key(|(number, run, _)| (*number, *run));
    for (number, run, samples) in parts {
        let start = Duration::from_nanos(number.saturating_mul(length_ns));
        for (tag, histogram) in part_histograms(&runs[run], &samples) {
            log.write(start, interval, Some(&tag), &histogram)?;
        }
    }
    Ok(())
}

fn part_histograms(run: &HlogRun<'_>, samples: &[&Sample]) -> BTreeMap<String, Histogram<u64>> {
    let mut by_key: BTreeMap<SeriesKey, Histogram<u64>> = BTreeMap::new();
    for sample in samples {
        let histogram = by_key
            .entry(sample_key(sample))
            .or_insert_with(new_histogram);
        observe(histogram, sample.latency_ns / 1_000, 1);
    }
    by_key
        .into_iter()
        .map(|(key, histogram)| {
            let unnamed = key.site.to_string();
            let site = run.sites.get(usize::from(key.site)).unwrap_or(&unnamed);
            (tag(run.label, site, &key.metric.name(), &key), histogram)
        })
        .collect()
}

/// Reads an interval log, and returns for each tag the sum of all intervals with that tag. Lines
/// without a tag are summed under the tag "". To merge the logs of several load generators, read
/// each log and add the sums.
///
/// # Errors
/// If the file cannot be read or is no interval log.
pub fn read_hlog(path: &Path) -> Result<BTreeMap<String, Histogram<u64>>, HlogError> {
    let text = std::fs::read(path).map_err(|source| HlogError::Io {
        path: path.to_owned(),
        source,
    })?;
    sum_hlog(&text).map_err(|reason| HlogError::Malformed {
        path: path.to_owned(),
        reason,
    })
}

/// Reads the contents of an interval log, and returns the same sums as [`read_hlog`]. Uses at most
/// a MiB of memory for each line, even if the line claims to need more.
///
/// # Errors
/// Returns the reason why the text is not an interval log.
pub fn sum_hlog(text: &[u8]) -> Result<BTreeMap<String, Histogram<u64>>, String> {
    let mut sums: BTreeMap<String, Histogram<u64>> = BTreeMap::new();
    for entry in IntervalLogIterator::new(text) {
        let entry = entry.map_err(|error| no_line_of_a_log(text, &error))?;
        let LogEntry::Interval(interval) = entry else {
            continue;
        };
        let (tag, histogram) = histogram_of(&interval)?;
        let sum = sums.entry(tag).or_insert_with(new_histogram);
        add(sum, &histogram);
    }
    Ok(sums)
}

/// Maximum number of characters of a faulty line that an error message quotes.
const SHOWN: usize = 40;

/// Describes the first line that does not belong in an interval log. The description contains the
/// number and the first characters of the line.
fn no_line_of_a_log(text: &[u8], error: &LogIteratorError) -> String {
    let LogIteratorError::ParseError { offset } = *error;
    let (before, rest) = text.split_at(offset.min(text.len()));
    no_line(
        1 + before.iter().filter(|byte| **byte == b'\n').count(),
        rest,
    )
}

/// Builds the error for a line that does not belong in an interval log. `number` is the number of
/// the line, and `rest` begins with the text of the line.
fn no_line(number: usize, rest: &[u8]) -> String {
    let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let shown: String = line.chars().take(SHOWN).collect();
    let more = if shown.len() < line.len() { " ..." } else { "" };
    format!(
        "line {number} is neither a comment nor a complete interval: {shown:?}{more}; experiments and \
         `ycsb -p hdrhistogram.fileoutput=true` leave one, latency.hlog"
    )
}

/// Returns the tag and the histogram of an interval. The tag is "" if the interval has none.
fn histogram_of(interval: &IntervalLogHistogram<'_>) -> Result<(String, Histogram<u64>), String> {
    let bytes = BASE64.decode(interval.encoded_histogram());
    let histogram = interval::decode(&bytes.map_err(|error| error.to_string())?)?;
    Ok((tag_of(interval)?, histogram))
}

/// Returns the tag of an interval; "" if the interval has no tag.
fn tag_of(interval: &IntervalLogHistogram<'_>) -> Result<String, String> {
    let tag = interval.tag().map(|tag| tag.as_str()).unwrap_or_default();
    if clean_tag(tag) == tag {
        Ok(tag.to_owned())
    } else {
        Err(format!("the tag {tag:?} holds what no tag may"))
    }
}
