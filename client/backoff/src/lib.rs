//! Back-off for a replica that repeatedly fails soon after it was chosen: as the leader, as a
//! holder of leases, or as the replica that a client uses. Choosing it again each time costs more
//! than waiting.

use std::time::Duration;

/// A failure is early if it occurs within this time after the replica was chosen.
const EARLY: Duration = Duration::from_secs(600);
/// Base of the waiting time. After its first early failure, a replica must be healthy for twice
/// this time without a break. Each further early failure doubles the required time.
const BASE: Duration = Duration::from_secs(5);
/// A replica that has been healthy for this time without a break may always be chosen again.
const WAIT_MAX: Duration = Duration::from_secs(3600);
/// A replica's early failures are forgotten after the replica has been healthy for this time
/// without a break.
const FORGET: Duration = Duration::from_secs(3600);

/// Decides when a replica that failed may be chosen again. The replica may be chosen immediately,
/// unless it failed soon after it was chosen. After the k-th such failure, the replica must first
/// be healthy for 2^k x 5 s without a break, or for an hour if this is shorter. After an hour of
/// health without a break, all failures are forgotten.
///
/// The back-off reads no clock. The caller passes times as durations since one fixed moment. These
/// times must not decrease from one call to the next.
///
/// ```
/// use std::time::Duration;
/// use leasehold_backoff::FlapBackoff;
///
/// let at = Duration::from_secs;
/// let mut backoff = FlapBackoff::new(at(0));
/// backoff.chosen(at(0));
/// backoff.failed(at(60));
/// assert!(!backoff.may_return(at(69)));
/// assert!(backoff.may_return(at(70)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlapBackoff {
    /// Number of early failures that have not been forgotten.
    failures: u32,
    /// Time at which the replica was chosen; `None` while it is not chosen.
    chosen: Option<Duration>,
    /// Time at which the replica last became healthy.
    healthy_since: Duration,
}

impl FlapBackoff {
    /// Returns the back-off of a replica that has been healthy since `now` and is not chosen.
    pub fn new(now: Duration) -> FlapBackoff {
        FlapBackoff {
            failures: 0,
            chosen: None,
            healthy_since: now,
        }
    }

    /// Records that the replica is chosen. The call has no effect if the replica was chosen
    /// already.
    pub fn chosen(&mut self, now: Duration) {
        self.chosen.get_or_insert(now);
    }

    /// Records that the replica is no longer chosen, but has not failed.
    pub fn released(&mut self) {
        self.chosen = None;
    }

    /// Records that the replica has failed. The failure is early if the replica was chosen less
    /// than 10 minutes before.
    pub fn failed(&mut self, now: Duration) {
        self.interrupted(now, now);
        let chosen = self.chosen.take();
        if chosen.is_some_and(|at| now.saturating_sub(at) < EARLY) {
            self.failures = self.failures.saturating_add(1);
        }
    }

    /// Records that the replica was not healthy from `from` to `until`, and has been healthy since
    /// then.
    pub fn interrupted(&mut self, from: Duration, until: Duration) {
        if self.healthy_for(from) >= FORGET {
            self.failures = 0;
        }
        self.healthy_since = self.healthy_since.max(until);
    }

    /// Returns the time for which the replica must be healthy without a break before it may be
    /// chosen again.
    pub fn wait(&self) -> Duration {
        match self.failures {
            0 => Duration::ZERO,
            failures => BASE
                .saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX))
                .min(WAIT_MAX),
        }
    }

    /// Returns the time for which the replica has been healthy without a break.
    pub fn healthy_for(&self, now: Duration) -> Duration {
        now.saturating_sub(self.healthy_since)
    }

    /// Returns whether the replica may be chosen.
    pub fn may_return(&self, now: Duration) -> bool {
        self.healthy_for(now) >= self.wait()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks each line of the table. A line lists events with their times, then how long the
    /// replica must be healthy, and then when the replica may be chosen. All times are in seconds.
    #[test]
    fn every_case_of_the_table() {
        let mut cases = 0;
        for (number, line) in include_str!("testdata/flap.txt").lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let Some((events, expected)) = line.split_once("=>") else {
                assert!(line.trim().is_empty(), "line {}: no =>", number + 1);
                continue;
            };
            let mut backoff = FlapBackoff::new(Duration::ZERO);
            let second = |text: &str| Duration::from_secs(text.parse().expect("a second"));
            for event in events.split_whitespace() {
                let (what, at) = event.split_once('@').expect("what@when");
                match what {
                    "chosen" => backoff.chosen(second(at)),
                    "failed" => backoff.failed(second(at)),
                    "released" => backoff.released(),
                    "silent" => {
                        let (from, until) = at.split_once('-').expect("from-until");
                        backoff.interrupted(second(from), second(until));
                    }
                    other => panic!("line {}: {other}", number + 1),
                }
            }
            let (wait, returns) = expected.trim().split_once(" at ").expect("wait at when");
            let (wait, returns) = (second(wait), second(returns));
            assert_eq!(backoff.wait(), wait, "line {}: {line}", number + 1);
            assert!(backoff.may_return(returns), "line {}: {line}", number + 1);
            if !wait.is_zero() {
                let before = returns - Duration::from_millis(1);
                assert!(!backoff.may_return(before), "line {}: {line}", number + 1);
            }
            cases += 1;
        }
        assert!(cases >= 10, "the table was read");
    }

    #[test]
    fn waits_double_up_to_an_hour() {
        let mut backoff = FlapBackoff::new(Duration::ZERO);
        let mut now = Duration::ZERO;
        let mut waits = Vec::new();
        for _ in 0..40 {
            backoff.chosen(now);
            now += Duration::from_secs(1);
            backoff.failed(now);
            waits.push(backoff.wait().as_secs());
        }
        assert_eq!(
            waits[..11],
            [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]
        );
        assert!(waits[11..].iter().all(|wait| *wait == 3600));
    }
}
