//! Interval logs as they were written: interval by interval.

use std::path::Path;
use std::time::Duration;

use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

use super::{HlogError, histogram_of, no_line_of_a_log};

/// A year: start times are absolute if they are not that much less than the log's.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3_600);

/// One line of an interval log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogInterval {
    /// When it began, since 1970; since the log's time 0, if the log does not say when
    /// that was.
    pub start: Duration,
    /// How long it was.
    pub length: Duration,
    /// Its tag, or "".
    pub tag: String,
    /// Each value that was recorded, in microseconds, rising, and how often.
    pub counts: Vec<(u64, u64)>,
}

/// Reads an interval log, line by line.
///
/// # Errors
/// If the file cannot be read or is no interval log.
pub fn read_intervals(path: &Path) -> Result<Vec<LogInterval>, HlogError> {
    let text = std::fs::read(path).map_err(|source| HlogError::Io {
        path: path.to_owned(),
        source,
    })?;
    intervals(&text).map_err(|reason| HlogError::Malformed {
        path: path.to_owned(),
        reason,
    })
}

/// As [`read_intervals`], of the file's contents.
fn intervals(text: &[u8]) -> Result<Vec<LogInterval>, String> {
    let mut all = Vec::new();
    let (mut began, mut base) = (Duration::ZERO, None);
    for entry in IntervalLogIterator::new(text) {
        match entry.map_err(|error| no_line_of_a_log(text, &error))? {
            LogEntry::StartTime(time) => began = time,
            LogEntry::BaseTime(time) => base = Some(time),
            LogEntry::Interval(interval) => {
                let (tag, histogram) = histogram_of(&interval)?;
                let at = interval.start_timestamp();
                // As HdrHistogram's own reader has it.
                let absolute = at.saturating_add(YEAR) >= began;
                let zero = base.unwrap_or(if absolute { Duration::ZERO } else { began });
                let counts = histogram.iter_recorded();
                all.push(LogInterval {
                    start: zero.saturating_add(at),
                    length: interval.duration(),
                    tag,
                    counts: counts
                        .map(|v| (v.value_iterated_to(), v.count_since_last_iteration()))
                        .collect(),
                });
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::super::HlogWriter;
    use super::*;
    use crate::measurement::new_histogram;

    #[test]
    fn intervals_come_back_with_their_times_and_values() {
        let began = Duration::from_secs(1_700_000_000);
        let mut log = HlogWriter::new(Vec::new(), "a test", UNIX_EPOCH + began).expect("memory");
        let mut histogram = new_histogram();
        for value in [400, 400, 120_000] {
            histogram.record(value).expect("in range");
        }
        let (start, second) = (Duration::from_secs(3), Duration::from_secs(1));
        let tag = Some("JP:READ:local");
        log.write(start, second, tag, &histogram).expect("memory");
        let text = log.finish().expect("memory");
        let found = intervals(&text).expect("an interval log");
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].start, found[0].length), (began + start, second));
        assert_eq!(found[0].tag, "JP:READ:local");
        let counts: Vec<u64> = found[0].counts.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [2, 1]);
        assert_eq!(found[0].counts[0].0, 400);
        // Three digits: 120,000 may come back as anything within a thousandth.
        assert!(found[0].counts[1].0.abs_diff(120_000) <= 120);
    }

    #[test]
    fn the_first_line_that_is_none_of_a_log_is_shown() {
        let begin = format!("# a comment\n{}\n", "x".repeat(100));
        for (text, parts) in [
            ("this is no log\n", ["line 1 ", "\"this is no log\";"]),
            (begin.as_str(), ["line 2 ", "xxx\" ...;"]),
        ] {
            let error = intervals(text.as_bytes()).expect_err(text);
            for part in parts {
                assert!(error.contains(part), "{part:?} is missing from: {error}");
            }
            assert!(!error.contains("ParseError"), "{error}");
        }
    }
}
