//! Display while a workload runs: on a terminal, a bar that also shows latencies; otherwise YCSB's
//! status line on stderr.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::measurement::{SeriesKey, new_histogram, reported_names};
use crate::note;
use crate::runner::{Observer, RunProgress, Tick};

/// Shows the state of a run.
pub enum RunStatus {
    /// Shows nothing.
    Silent,
    /// Shows YCSB's status line at every interval. The line begins with this label.
    Lines {
        /// Value of the property `label`.
        label: String,
    },
    /// Shows a bar.
    Bar(ProgressBar),
}

impl RunStatus {
    /// Returns a status that shows a bar on stderr.
    pub fn bar(label: &str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_prefix(label.to_owned());
        RunStatus::Bar(bar)
    }

    /// Removes those parts of the display that should not remain after the run.
    pub fn finish(&self) {
        if let RunStatus::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

impl Observer for RunStatus {
    fn interval(&mut self, tick: &Tick<'_>) {
        if let RunStatus::Lines { label } = self {
            let line = status_line(label, SystemTime::now(), tick);
            note!("{line}");
        }
    }

    fn refresh(&mut self, progress: &RunProgress) {
        if let RunStatus::Bar(bar) = self {
            draw(bar, progress);
        }
    }
}

fn draw(bar: &ProgressBar, progress: &RunProgress) {
    if bar.length().is_none() && progress.all > 0 {
        bar.set_length(progress.all);
    }
    let template = if progress.all > 0 {
        "{prefix}[{elapsed_precise}] {wide_bar} {pos}/{len} {per_sec} {msg}"
    } else {
        "{prefix}[{elapsed_precise}] {spinner} {pos} {per_sec} {msg}"
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_position(progress.done);
    bar.set_message(format!(
        "p50 {} p99 {}",
        millis(progress.p50_us),
        millis(progress.p99_us)
    ));
}

fn millis(latency_us: u64) -> String {
    format!("{:.1} ms", latency_us as f64 / 1_000.0)
}

/// Formats YCSB's status line. The time is in UTC; YCSB itself uses the local time.
fn status_line(label: &str, now: SystemTime, tick: &Tick<'_>) -> String {
    let elapsed = tick.start + tick.length;
    let mut line = format!(
        "{label}{} {} sec: {} operations; ",
        timestamp(now),
        elapsed.as_secs(),
        tick.done
    );
    if tick.done > 0 {
        let rate = tick.done_in_interval as f64 / tick.length.as_secs_f64();
        line += &format!("{} current ops/sec; ", decimal(rate));
    }
    if tick.todo > 0 && tick.done > 0 {
        let rest_s = elapsed.as_secs_f64() * tick.todo as f64 / tick.done as f64;
        let rest = Duration::try_from_secs_f64(rest_s.ceil()).unwrap_or(Duration::MAX);
        line += &format!("est completion in {}", remaining(rest));
    }
    for (name, histogram) in reported_names(tick.measured, tick.interval) {
        line += &summary(&name, &histogram);
        line.push(' ');
    }
    line
}

fn summary(name: &str, histogram: &Histogram<u64>) -> String {
    let percentiles: Vec<_> = [50.0, 90.0, 99.0, 99.9, 99.99]
        .into_iter()
        .map(|p| format!("{p}={}", histogram.value_at_quantile(p / 100.0)))
        .collect();
    format!(
        "[{name}: Count={}, Max={}, Min={}, Avg={}, {}]",
        histogram.len(),
        histogram.max(),
        histogram.min(),
        decimal(histogram.mean()),
        percentiles.join(", ")
    )
}

/// Formats a number with up to two decimals, without superfluous zeros.
fn decimal(x: f64) -> String {
    let text = format!("{x:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a duration as days and hours. Minutes are shown only if there are no days. Seconds are
/// shown only if the duration is shorter than a minute.
fn remaining(time: Duration) -> String {
    let seconds = time.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    let mut text = String::new();
    let mut part = |count: u64, unit: &str| {
        if count > 0 {
            text += &format!("{count} {unit}{} ", if count == 1 { "" } else { "s" });
        }
    };
    part(days, "day");
    part(hours, "hour");
    if days == 0 {
        part(minutes, "minute");
    }
    if text.is_empty() {
        text = format!("{seconds} second{} ", if seconds == 1 { "" } else { "s" });
    }
    text
}

/// Formats a time as `2015-03-09 12:00:00:000`, UTC.
fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs();
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    let millis = since.subsec_millis();
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}:{millis:03}")
}

/// Returns the year, month and day of the date that is `days` days after 1 January 1970.
fn civil(days: u64) -> (u64, u64, u64) {
    // If days are counted from 1 March of the year 0, a leap day is the last day of its year, and
    // months of 31 and 30 days alternate in a pattern of five.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// Several observers of one run.
pub(crate) struct TeeObserver<'a>(pub &'a mut dyn Observer, pub &'a mut dyn Observer);

impl Observer for TeeObserver<'_> {
    fn interval(&mut self, tick: &Tick<'_>) {
        self.0.interval(tick);
        self.1.interval(tick);
    }

    fn refresh(&mut self, progress: &RunProgress) {
        self.0.refresh(progress);
        self.1.refresh(progress);
    }
}

/// Observer that combines the intervals of the run into longer intervals, and passes these to
/// another observer.
pub(crate) struct CoarseObserver<'a> {
    inner: &'a mut dyn Observer,
    every: Duration,
    /// Time at which the current long interval ends.
    next: Duration,
    start: Duration,
    done_in_interval: u64,
    measured: BTreeMap<SeriesKey, Histogram<u64>>,
}

impl<'a> CoarseObserver<'a> {
    /// Creates an observer that passes intervals of about the length `every` to the observer
    /// `inner`.
    pub fn new(inner: &'a mut dyn Observer, every: Duration) -> Self {
        CoarseObserver {
            inner,
            every,
            next: every,
            start: Duration::ZERO,
            done_in_interval: 0,
            measured: BTreeMap::new(),
        }
    }

    fn pass_on(&mut self, tick: &Tick<'_>) {
        let end = tick.start + tick.length;
        let measured: Vec<_> = std::mem::take(&mut self.measured).into_iter().collect();
        self.inner.interval(&Tick {
            start: self.start,
            length: end - self.start,
            done_in_interval: self.done_in_interval,
            measured: &measured,
            ..*tick
        });
        self.start = end;
        self.done_in_interval = 0;
        while self.next <= end {
            self.next += self.every;
        }
    }
}

impl Observer for CoarseObserver<'_> {
    fn interval(&mut self, tick: &Tick<'_>) {
        self.done_in_interval += tick.done_in_interval;
        for (key, histogram) in tick.measured {
            let sum = self.measured.entry(*key).or_insert_with(new_histogram);
            // Both histograms resize themselves, so that nothing can be refused.
            let _ = sum.add(histogram);
        }
        if tick.last || tick.start + tick.length >= self.next {
            self.pass_on(tick);
        }
    }

    fn refresh(&mut self, progress: &RunProgress) {
        self.inner.refresh(progress);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::{Interval, Measurements, OpMeasurement, ReturnCode};
    use crate::sample::OpKind;
    use leasehold_wire::Path;

    fn measured(latencies_us: &[u64]) -> Vec<(SeriesKey, Histogram<u64>)> {
        let mut measurements = Measurements::new(Interval::Op);
        for (index, latency) in latencies_us.iter().enumerate() {
            measurements.record(&OpMeasurement {
                site: 0,
                kind: OpKind::Read,
                path: [Path::Local, Path::Forwarded][index % 2],
                away: false,
                returned: ReturnCode::Ok,
                service: Duration::from_micros(*latency),
                intended: Duration::from_micros(*latency),
            });
        }
        measurements.end_interval()
    }

    #[test]
    fn the_line_is_ycsbs() {
        let measured = measured(&[100, 200, 300]);
        let tick = Tick {
            start: Duration::from_secs(10),
            length: Duration::from_secs(10),
            done: 30,
            done_in_interval: 25,
            todo: 90,
            measured: &measured,
            interval: Interval::Op,
            last: false,
        };
        let now = UNIX_EPOCH + Duration::from_millis(1_425_902_400_042);
        assert_eq!(
            status_line("west ", now, &tick),
            "west 2015-03-09 12:00:00:042 20 sec: 30 operations; 2.5 current ops/sec; \
             est completion in 1 minute [READ: Count=3, Max=300, Min=100, Avg=200, \
             50=200, 90=300, 99=300, 99.9=300, 99.99=300] "
        );
    }

    #[test]
    fn short_intervals_are_summed_up() {
        struct Seen(Vec<(u64, u64, u64, u64)>);
        impl Observer for Seen {
            fn interval(&mut self, tick: &Tick<'_>) {
                let measured = tick.measured.iter().map(|(_, h)| h.len()).sum();
                let (start, length) = (tick.start.as_secs(), tick.length.as_secs());
                self.0
                    .push((start, length, tick.done_in_interval, measured));
            }

            fn refresh(&mut self, _: &RunProgress) {}
        }
        let mut seen = Seen(Vec::new());
        let mut coarse = CoarseObserver::new(&mut seen, Duration::from_secs(10));
        for second in 0..25 {
            let measured = measured(&[100, 200]);
            coarse.interval(&Tick {
                start: Duration::from_secs(second),
                length: Duration::from_secs(1),
                done: 2 * second,
                done_in_interval: 2,
                todo: 0,
                measured: &measured,
                interval: Interval::Op,
                last: second == 24,
            });
        }
        assert_eq!(seen.0, [(0, 10, 20, 20), (10, 10, 20, 20), (20, 5, 10, 10)]);
    }

    #[test]
    fn an_idle_run_has_a_line_too() {
        let tick = Tick {
            start: Duration::ZERO,
            length: Duration::ZERO,
            done: 0,
            done_in_interval: 0,
            todo: 10,
            measured: &[],
            interval: Interval::Op,
            last: true,
        };
        let line = status_line("", UNIX_EPOCH, &tick);
        assert_eq!(line, "1970-01-01 00:00:00:000 0 sec: 0 operations; ");
    }

    #[test]
    fn times_left() {
        let text = |seconds| remaining(Duration::from_secs(seconds));
        assert_eq!(text(0), "0 seconds ");
        assert_eq!(text(1), "1 second ");
        assert_eq!(text(59), "59 seconds ");
        assert_eq!(text(3_660), "1 hour 1 minute ");
        assert_eq!(text(2 * 86_400 + 7_300), "2 days 2 hours ");
    }

    #[test]
    fn dates_at_the_edges() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(11_017), (2000, 3, 1));
        assert_eq!(civil(19_722), (2023, 12, 31));
        assert_eq!(civil(47_540), (2100, 2, 28));
        assert_eq!(civil(47_541), (2100, 3, 1));
    }

    #[test]
    fn decimals() {
        assert_eq!(
            [0.0, 2.5, 1234.567, 10.0].map(decimal),
            ["0", "2.5", "1234.57", "10"]
        );
    }
}
