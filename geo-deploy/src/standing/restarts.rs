//! Decides when a replica is started again after its death.
//!
//! A replica is started again only if its death was not requested. After each further death in a
//! row, the wait is longer, so that a replica that cannot run does not keep the machine busy. After
//! too many deaths in a row, the replica is not started any more.

use std::time::{Duration, Instant};

/// Delay before a replica is started again after its first death. The delay doubles after each
/// further death in a row.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Number of consecutive deaths after which a replica stays down.
const DEATHS_MAX: u32 = 5;
/// Running time after which a replica counts as recovered. Its earlier deaths are then forgotten.
const RECOVERED_AFTER: Duration = Duration::from_secs(60);

/// Restart policy of one replica. The policy depends on the past starts and deaths of the replica.
#[derive(Clone, Copy, Debug)]
pub(super) struct RestartPolicy {
    enabled: bool,
    started: Instant,
    deaths: u32,
    /// True if the replica reported a problem that must be solved before the replica can run.
    refused: bool,
    due: Option<Instant>,
}

impl RestartPolicy {
    /// Creates the policy of a replica that starts now. If `enabled` is false, the replica is never
    /// started again.
    pub fn new(enabled: bool, now: Instant) -> RestartPolicy {
        RestartPolicy {
            enabled,
            started: now,
            deaths: 0,
            refused: false,
            due: None,
        }
    }

    /// Resets the policy and forgets earlier deaths. This function is called after a request has
    /// started or ended the replica.
    pub fn reset(&mut self, now: Instant) {
        *self = RestartPolicy::new(self.enabled, now);
    }

    /// Records a death of the replica that was not caused by a request.
    pub fn died(&mut self, now: Instant) {
        if now.duration_since(self.started) >= RECOVERED_AFTER {
            self.deaths = 0;
        }
        self.deaths += 1;
        let wait = FIRST_WAIT * (1 << (self.deaths - 1).min(16));
        self.due = (self.enabled && self.deaths < DEATHS_MAX).then(|| now + wait);
    }

    /// Records the replica's report that it cannot run. The replica would end again for the same
    /// reason, so only a request starts it again.
    pub fn refused(&mut self, now: Instant) {
        self.reset(now);
        self.refused = true;
    }

    /// Returns true if the replica should be started again now. Returns true only once for each
    /// death.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let due = self.due.is_some_and(|due| due <= now);
        if due {
            self.due = None;
            self.started = now;
        }
        due
    }

    /// Returns a text for users that states whether and when the replica is started again after its
    /// death.
    pub fn words(&self, now: Instant, site: &str) -> String {
        match self.due {
            Some(due) => {
                let wait = due.saturating_duration_since(now).as_secs_f64();
                format!("it starts again in {wait:.0} s")
            }
            None if self.refused => format!(
                "a restart cannot mend that, so there is none: mend it, then \
                 `leasehold cluster start {site}`"
            ),
            None if self.enabled && self.deaths >= DEATHS_MAX => format!(
                "it died {} times in a row and is left alone: mend what is wrong, then \
                 `leasehold cluster start {site}`",
                self.deaths
            ),
            None => format!("`leasehold cluster start {site}` starts it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_keeps_dying_waits_longer_each_time_and_is_left_alone() {
        let mut now = Instant::now();
        let mut restarts = RestartPolicy::new(true, now);
        let mut waits = Vec::new();
        for _ in 1..DEATHS_MAX {
            restarts.died(now);
            assert!(!restarts.is_due(now));
            let wait = restarts.due.unwrap() - now;
            waits.push(wait.as_secs());
            now += wait;
            assert!(restarts.is_due(now));
            assert!(!restarts.is_due(now), "only once");
        }
        assert_eq!(waits, [1, 2, 4, 8]);
        restarts.died(now);
        assert!(!restarts.is_due(now + Duration::from_secs(3600)));
        assert!(restarts.words(now, "JP").contains("cluster start JP"));
        restarts.reset(now);
        restarts.died(now);
        assert!(restarts.is_due(now + FIRST_WAIT), "somebody has mended it");
    }

    #[test]
    fn a_replica_that_ran_for_a_while_begins_anew() {
        let now = Instant::now();
        let mut restarts = RestartPolicy::new(true, now);
        restarts.died(now);
        assert!(restarts.is_due(now + FIRST_WAIT));
        let later = now + FIRST_WAIT + RECOVERED_AFTER;
        restarts.died(later);
        assert!(restarts.is_due(later + FIRST_WAIT));
    }

    #[test]
    fn a_replica_that_says_that_it_cannot_run_is_left_alone_at_once() {
        let now = Instant::now();
        let mut restarts = RestartPolicy::new(true, now);
        restarts.died(now);
        assert!(restarts.is_due(now + FIRST_WAIT));
        restarts.refused(now);
        assert!(!restarts.is_due(now + Duration::from_secs(3600)));
        assert!(restarts.words(now, "JP").contains("a restart cannot mend"));
        restarts.reset(now);
        assert!(!restarts.words(now, "JP").contains("cannot mend"));
        restarts.died(now);
        assert!(restarts.is_due(now + FIRST_WAIT), "somebody has mended it");
    }

    #[test]
    fn a_replica_that_is_not_to_restart_does_not() {
        let now = Instant::now();
        let mut restarts = RestartPolicy::new(false, now);
        restarts.died(now);
        assert!(!restarts.is_due(now + Duration::from_secs(3600)));
    }
}
