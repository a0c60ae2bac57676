//! Duration of a campaign, and the display of its progress while it runs.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use rustix::time::{ClockId, clock_gettime};

use crate::terminal::note;
use leasehold_kernel::campaign::{Goal, Progress, Sums};

/// Interval at which progress is printed if there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(60);

/// Processor time and elapsed time of a campaign.
pub struct CampaignClock {
    /// Processor time, in seconds, of earlier runs of the program for the same campaign.
    earlier_cpu_s: f64,
    earlier_wall_s: f64,
    began: Instant,
}

impl CampaignClock {
    /// Starts to measure time. The times of earlier runs of the program (in seconds) are added.
    pub fn begin(earlier_cpu_s: f64, earlier_wall_s: f64) -> CampaignClock {
        CampaignClock {
            earlier_cpu_s,
            earlier_wall_s,
            began: Instant::now(),
        }
    }

    /// Returns the processor time of the campaign in seconds, including earlier runs of the
    /// program.
    pub fn cpu_s(&self) -> f64 {
        let spent = clock_gettime(ClockId::ProcessCPUTime);
        self.earlier_cpu_s + spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
    }

    /// Returns the elapsed time of the campaign in seconds, including earlier runs of the program.
    pub fn wall_s(&self) -> f64 {
        self.earlier_wall_s + self.began.elapsed().as_secs_f64()
    }
}

/// Display of the progress: a bar on a terminal, otherwise a new line at intervals.
pub struct ProgressDisplay {
    bar: Option<ProgressBar>,
    began: Instant,
    /// Progress of the campaign when this run of the program began, from 0 to 1.
    began_at: f64,
    line: Instant,
}

impl ProgressDisplay {
    pub fn begin<S: Sums, F>(progress: &Progress<S, F>) -> ProgressDisplay {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{wide_bar} {percent:>3}%\n{msg}");
            let bar = ProgressBar::new(1000);
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        ProgressDisplay {
            bar,
            began: Instant::now(),
            began_at: share(progress),
            line: Instant::now(),
        }
    }

    pub fn update<S: Sums, F>(&mut self, progress: &Progress<S, F>, clock: &CampaignClock) {
        if let Some(bar) = &self.bar {
            bar.set_position((share(progress) * 1000.0) as u64);
            return bar.set_message(self.describe(progress, clock));
        }
        if self.line.elapsed() >= LINE_EVERY {
            self.line = Instant::now();
            note!("{}", self.describe(progress, clock));
        }
    }

    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn describe<S: Sums, F>(&self, progress: &Progress<S, F>, clock: &CampaignClock) -> String {
        let (seeds, virtual_ns) = progress.done();
        let hours = virtual_ns as f64 / 3.6e12;
        let pace = hours / (clock.cpu_s() / 60.0).max(1e-9);
        format!(
            "{seeds} seeds, {hours:.1} cluster-hours, {pace:.1} per CPU-minute, {} violations, {}",
            progress.failed(),
            self.left(share(progress))
        )
    }

    /// Describes the remaining time, which is estimated from the speed of this run of the program.
    fn left(&self, share: f64) -> String {
        let gained = share - self.began_at;
        if gained <= 0.0 {
            return "time left unknown".to_owned();
        }
        let minutes = self.began.elapsed().as_secs_f64() * (1.0 - share) / gained / 60.0;
        let minutes = minutes.max(0.0).ceil() as u64;
        format!("{} h {:02} min left", minutes / 60, minutes % 60)
    }
}

/// Returns the finished share of a campaign, from 0 to 1.
fn share<S: Sums, F>(progress: &Progress<S, F>) -> f64 {
    let (seeds, virtual_ns) = progress.done();
    let share = match progress.goal() {
        Goal::Hours(hours) => virtual_ns as f64 / 3.6e12 / hours,
        Goal::Seeds(end) => {
            let first = progress.next() - progress.sums().seeds().min(progress.next());
            seeds as f64 / end.saturating_sub(first).max(1) as f64
        }
    };
    share.min(1.0)
}
