//! Display of the progress of an export or an import.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::terminal::note;

/// Interval at which progress is printed if there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(60);

/// Display of the progress: one changing line on a terminal, otherwise a new line at intervals.
pub struct CopyProgress {
    /// Past tense of the work, such as `exported`.
    verb: &'static str,
    bar: Option<ProgressBar>,
    is_quiet: bool,
    began: Instant,
    line: Instant,
    pub entries: u64,
    bytes: u64,
    /// Bytes of the whole work, if they are known.
    total: Option<u64>,
}

impl CopyProgress {
    /// Begins the display. If `is_quiet` is true, nothing is shown until the end.
    pub fn begin(verb: &'static str, total: Option<u64>, is_quiet: bool) -> CopyProgress {
        let is_drawn = std::io::stderr().is_terminal() && !is_quiet;
        let bar = is_drawn.then(|| {
            let style = ProgressStyle::with_template("{spinner} {msg}");
            let bar = ProgressBar::new_spinner();
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar
        });
        CopyProgress {
            verb,
            bar,
            is_quiet,
            began: Instant::now(),
            line: Instant::now(),
            entries: 0,
            bytes: 0,
            total,
        }
    }

    /// Adds entries that are finished, and the bytes of their lines.
    pub fn add(&mut self, entries: usize, bytes: usize) {
        self.entries += entries as u64;
        self.bytes += bytes as u64;
        if let Some(bar) = &self.bar {
            bar.set_message(self.describe(false));
            bar.tick();
        } else if !self.is_quiet && self.line.elapsed() >= LINE_EVERY {
            self.line = Instant::now();
            note!("{}", self.describe(false));
        }
    }

    /// Removes the changing line from the terminal.
    pub fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Prints the finished work. Prints nothing if the command has failed before any of it was
    /// finished.
    pub fn conclude(&self, has_succeeded: bool) {
        if has_succeeded || self.entries > 0 {
            note!("{}", self.describe(has_succeeded));
        }
    }

    /// Describes the finished work, its duration and its speed. If the whole work is not complete,
    /// also names the share of its bytes.
    fn describe(&self, is_complete: bool) -> String {
        let CopyProgress { verb, entries, .. } = self;
        let seconds = self.began.elapsed().as_secs_f64();
        let share = match self.total {
            Some(total) if !is_complete && self.bytes < total => {
                format!(" ({} %)", self.bytes * 100 / total)
            }
            _ => String::new(),
        };
        let noun = if *entries == 1 { "entry" } else { "entries" };
        format!(
            "{verb} {entries} {noun}, {:.1} MiB{share}, in {seconds:.1} s: {:.0} entries/s",
            self.bytes as f64 / f64::from(1 << 20),
            *entries as f64 / seconds.max(1e-3)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_part_of_the_work_has_a_share() {
        let mut progress = CopyProgress::begin("imported", Some(200), true);
        progress.add(1, 156);
        let part = progress.describe(false);
        assert!(
            part.starts_with("imported 1 entry, 0.0 MiB (78 %), in "),
            "{part}"
        );
        let whole = progress.describe(true);
        assert!(
            whole.starts_with("imported 1 entry, 0.0 MiB, in "),
            "{whole}"
        );
    }
}
