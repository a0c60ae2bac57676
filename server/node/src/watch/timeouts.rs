//! Warns if the election timeout is too short for the measured round-trip times.

use std::time::Duration;

use leasehold_leases::Time;

use leasehold_replica::ShortTimeout;

/// Interval between checks of the round-trip times. The first check takes place one interval after
/// the start, because the first round trips of a starting node are not typical.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Minimum interval between two warnings.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// Warns if the election timeout is too short for the measured round-trip times.
#[derive(Debug)]
pub(crate) struct TimeoutWatch {
    next: Time,
}

impl TimeoutWatch {
    pub(crate) fn new(now: Time) -> TimeoutWatch {
        TimeoutWatch {
            next: now + CHECK_INTERVAL,
        }
    }

    /// Checks the timeouts if a check is due. Returns the timeout about which a warning must be
    /// logged, if there is one.
    pub(crate) fn look(
        &mut self,
        now: Time,
        short: impl FnOnce() -> Option<ShortTimeout>,
    ) -> Option<ShortTimeout> {
        if now < self.next {
            return None;
        }
        let found = short();
        self.next = now + found.map_or(CHECK_INTERVAL, |_| WARN_INTERVAL);
        found
    }
}

/// Logs the setting that is too short, and the smallest value that would be long enough.
pub(crate) fn warn(short: ShortTimeout) {
    let ShortTimeout { set, rtt } = short;
    tracing::warn!(
        election_timeout_ms = set.as_millis() as u64,
        majority_rtt_ms = rtt.as_millis() as u64,
        least_ms = short.least_ms(),
        "timing.election_timeout_ms is less than two round trips to the nearest majority: a leader \
         may be deposed without need; set it to least_ms or more on all nodes"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_comes_at_most_once_a_minute() {
        let ms = Duration::from_millis;
        let short = ShortTimeout {
            set: ms(250),
            rtt: Duration::from_micros(150_400),
        };
        assert_eq!(short.least_ms(), 301);
        let mut watch = TimeoutWatch::new(Time::ZERO);
        let warned: Vec<u64> = (0..200)
            .filter(|s| {
                let now = Time::ZERO + Duration::from_secs(*s);
                watch.look(now, || (*s >= 12).then_some(short)).is_some()
            })
            .collect();
        assert_eq!(warned, [15, 75, 135, 195]);
    }
}
