//! Pauses before a replica is tried again.

use std::time::Duration;

use crate::session::random_u64;

/// First and longest pause between attempts.
const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// A replica that has served for so long is not suspected of what it did before.
const STEADY: Duration = Duration::from_secs(10);
/// Longest time for which a replica that is suspected again and again is left alone.
const PENALTY_MAX: Duration = Duration::from_secs(32);

/// Pauses that double up to a limit, each shortened at random by up to half, so
/// that clients that failed together do not return together.
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

/// How long a replica is left alone that connects, but leaves operations unanswered which
/// others answer. The first time not at all. If it fails again soon after its return, for
/// longer each time: it may answer what it is probed with, and nothing else.
#[derive(Debug)]
pub(crate) struct Penalty {
    next: Duration,
}

impl Penalty {
    pub fn new() -> Penalty {
        let next = Duration::ZERO;
        Penalty { next }
    }

    /// It is suspected after it has `served` for so long.
    pub fn pause(&mut self, served: Duration) -> Duration {
        if served >= STEADY {
            self.next = Duration::ZERO;
        }
        let pause = self.next;
        self.next = (pause * 2).clamp(BACKOFF_MAX, PENALTY_MAX);
        shortened(pause)
    }
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

    #[test]
    fn who_fails_soon_after_each_return_is_left_alone_for_longer() {
        let mut penalty = Penalty::new();
        for longest_s in [0, 1, 2, 4, 8, 16, 32, 32] {
            is_about(penalty.pause(STEADY / 2), Duration::from_secs(longest_s));
        }
        is_about(penalty.pause(STEADY), Duration::ZERO);
        is_about(penalty.pause(STEADY / 2), Duration::from_secs(1));
    }
}
