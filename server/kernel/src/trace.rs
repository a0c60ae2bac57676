//! Trace of a run in readable form: one line for each event, with its true time.

use std::collections::VecDeque;
use std::fmt;

/// The last lines of the trace of a run.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    lines: VecDeque<String>,
    /// Number of lines that are kept; 0 if all lines are kept.
    keep: usize,
}

impl Trace {
    /// Creates a trace that keeps its last `keep` lines, or all lines if `keep` is 0.
    pub fn keeping(keep: usize) -> Trace {
        Trace {
            lines: VecDeque::new(),
            keep,
        }
    }

    /// Iterates over the lines, in order.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }

    /// Adds a line for an event at a true time, in ns.
    pub fn line(&mut self, now_ns: u64, what: fmt::Arguments<'_>) {
        if self.keep > 0 && self.lines.len() == self.keep {
            self.lines.pop_front();
        }
        let (seconds, rest) = (now_ns / 1_000_000_000, now_ns % 1_000_000_000 / 1000);
        self.lines
            .push_back(format!("{seconds:4}.{rest:06}  {what}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_lines_are_kept() {
        let mut trace = Trace::keeping(2);
        for n in 0..4_u64 {
            trace.line(n * 1_500_000_000, format_args!("line {n}"));
        }
        let lines: Vec<&str> = trace.lines().collect();
        assert_eq!(lines, ["   3.000000  line 2", "   4.500000  line 3"]);
    }
}
