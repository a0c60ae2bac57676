//! Reader of interval logs, interval by interval, in bounded memory.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::time::Duration;

use hdrhistogram::serialization::interval_log::{
    IntervalLogHistogram, IntervalLogIterator, LogEntry,
};

use super::{HlogError, histogram_of, no_line, tag_of};

/// One year. This limit decides whether a time in a log is counted from 1970 or from the log's time
/// 0. If a time would be more than one year before time 0 when counted from 1970, it is counted
/// from time 0. Otherwise, it is counted from 1970.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3_600);
/// Maximum length of a line of a log, in bytes: ten times the length of a histogram of three
/// digits.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// One line of an interval log.
pub struct LogInterval<'a> {
    /// Time at which the interval began, counted from 1970. If the log does not state the date of
    /// its time 0, the time is counted from time 0 instead.
    pub start: Duration,
    /// Duration of the interval.
    pub length: Duration,
    /// Tag of the interval; "" if the interval has no tag.
    pub tag: String,
    line: &'a IntervalLogHistogram<'a>,
}

impl LogInterval<'_> {
    /// Returns each recorded value, in microseconds, and the number of times that it was recorded.
    /// The values are in rising order.
    ///
    /// # Errors
    /// If the histogram cannot be read. The error is the reason.
    pub fn counts(&self) -> Result<Vec<(u64, u64)>, String> {
        let (_, histogram) = histogram_of(self.line)?;
        let counts = histogram.iter_recorded();
        let counts = counts.map(|v| (v.value_iterated_to(), v.count_since_last_iteration()));
        Ok(counts.collect())
    }
}

/// Reads an interval log, and passes each of its intervals to `take`. Error messages call the log
/// `path`.
///
/// # Errors
/// If the log cannot be read, is not an interval log, or `take` refuses an interval.
pub fn each_interval(
    path: &Path,
    input: impl Read,
    take: &mut dyn FnMut(&LogInterval<'_>) -> Result<(), String>,
) -> Result<(), HlogError> {
    let path = || path.to_owned();
    let unreadable = |source: io::Error| HlogError::Io {
        path: path(),
        source,
    };
    let malformed = |reason| HlogError::Malformed {
        path: path(),
        reason,
    };
    let (mut input, mut line) = (BufReader::new(input), Vec::new());
    let mut epoch = LogEpoch::default();
    for number in 1.. {
        line.clear();
        let mut limited = input.by_ref().take(LINE_BYTES_MAX);
        let read = limited.read_until(b'\n', &mut line).map_err(unreadable)?;
        if read == 0 {
            break;
        }
        if read as u64 == LINE_BYTES_MAX {
            let reason = format!("line {number} is longer than any of an interval log");
            return Err(malformed(reason));
        }
        take_line(number, &line, &mut epoch, take).map_err(malformed)?;
    }
    Ok(())
}

/// Time 0 of a log, from which the log's times are counted.
#[derive(Default)]
struct LogEpoch {
    began: Duration,
    base: Option<Duration>,
}

impl LogEpoch {
    /// Converts a time in the log to a time since 1970, by the same rule as HdrHistogram's own
    /// reader.
    fn since_1970(&self, at: Duration) -> Duration {
        let absolute = at.saturating_add(YEAR) >= self.began;
        let epoch = self
            .base
            .unwrap_or(if absolute { Duration::ZERO } else { self.began });
        epoch.saturating_add(at)
    }
}

fn take_line(
    number: usize,
    line: &[u8],
    epoch: &mut LogEpoch,
    take: &mut dyn FnMut(&LogInterval<'_>) -> Result<(), String>,
) -> Result<(), String> {
    for entry in IntervalLogIterator::new(line) {
        match entry.map_err(|_| no_line(number, line))? {
            LogEntry::StartTime(time) => epoch.began = time,
            LogEntry::BaseTime(time) => epoch.base = Some(time),
            LogEntry::Interval(interval) => take(&LogInterval {
                start: epoch.since_1970(interval.start_timestamp()),
                length: interval.duration(),
                tag: tag_of(&interval)?,
                line: &interval,
            })?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::measurement::hlog::HlogWriter;
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
        let mut found = 0;
        let take = &mut |interval: &LogInterval<'_>| {
            found += 1;
            assert_eq!((interval.start, interval.length), (began + start, second));
            assert_eq!(interval.tag, "JP:READ:local");
            let read = interval.counts()?;
            let counts: Vec<u64> = read.iter().map(|(_, count)| *count).collect();
            assert_eq!(counts, [2, 1]);
            assert_eq!(read[0].0, 400);
            // With three digits, 120,000 may be read as any value within a thousandth.
            assert!(read[1].0.abs_diff(120_000) <= 120);
            Ok(())
        };
        each_interval(Path::new("a"), text.as_slice(), take).expect("an interval log");
        assert_eq!(found, 1);
    }

    #[test]
    fn the_first_line_that_is_none_of_a_log_is_shown() {
        let begin = format!("# a comment\n{}\n", "x".repeat(100));
        for (text, parts) in [
            ("this is no log\n", ["line 1 ", "\"this is no log\";"]),
            (begin.as_str(), ["line 2 ", "xxx\" ...;"]),
        ] {
            let read = each_interval(Path::new("a"), text.as_bytes(), &mut |_| Ok(()));
            let error = read.expect_err(text).to_string();
            for part in parts {
                assert!(error.contains(part), "{part:?} is missing from: {error}");
            }
            assert!(!error.contains("ParseError"), "{error}");
        }
    }
}
