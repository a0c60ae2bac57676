//! Pauses before another attempt at a replica.

use std::time::Duration;

use crate::session::random_u64;

/// First pause between attempts.
const BACKOFF_MIN: Duration = Duration::from_millis(10);
/// Longest pause between attempts.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Pauses between attempts. The pauses double up to a limit. Each pause is shortened at random, by
/// up to half, so that clients that failed at the same time try again at different times.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub fn new() -> Self {
        Backoff { next: BACKOFF_MIN }
    }

    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(BACKOFF_MAX);
        shortened(pause)
    }
}

fn shortened(pause: Duration) -> Duration {
    let spread = pause.as_micros() as u64 / 2;
    pause - Duration::from_micros(random_u64() % (spread + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_about(pause: Duration, longest: Duration) {
        assert!(pause <= longest && pause >= longest / 2, "{pause:?}");
    }

    #[test]
    fn pauses_double_up_to_a_second_and_differ() {
        let mut backoff = Backoff::new();
        for longest_ms in [10, 20, 40, 80, 160, 320, 640, 1000, 1000] {
            is_about(backoff.pause(), Duration::from_millis(longest_ms));
        }
        let pauses: Vec<_> = (0..8).map(|_| backoff.pause()).collect();
        assert!(pauses.iter().any(|pause| *pause != pauses[0]), "{pauses:?}");
    }
}
