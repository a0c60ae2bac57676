//! Rate limit for log lines that unauthenticated peers may cause by connecting. Without the limit,
//! a log on the same disk as the data could fill the disk, and important lines would be lost among
//! the others.

use std::cell::Cell;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_secs(1);

/// Limiter that lets one line per second pass, and counts the suppressed lines.
#[derive(Debug, Default)]
pub(crate) struct LogRateLimiter {
    last: Cell<Option<Instant>>,
    suppressed: Cell<u64>,
}

impl LogRateLimiter {
    /// Returns the number of lines suppressed since the last logged line, if a line may be logged
    /// now. Otherwise returns `None` and counts the line as suppressed.
    pub(crate) fn due(&self, now: Instant) -> Option<u64> {
        let last = self.last.get();
        if last.is_some_and(|last| now.saturating_duration_since(last) < PAUSE) {
            self.suppressed.set(self.suppressed.get() + 1);
            return None;
        }
        self.last.set(Some(now));
        Some(self.suppressed.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_is_told_and_says_how_many_were_not() {
        let limiter = LogRateLimiter::default();
        let begin = Instant::now();
        let at_ms = |ms| limiter.due(begin + Duration::from_millis(ms));
        assert_eq!(at_ms(0), Some(0));
        assert!((1..=999).all(|ms| at_ms(ms).is_none()));
        assert_eq!(
            (at_ms(1000), at_ms(1500), at_ms(2500)),
            (Some(999), None, Some(1))
        );
    }
}
