//! The clocks of a member.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold_leases::Time;
use leasehold_lock_core::GroupSettings;

/// Maximum time between two readings that are compared.
const TOGETHER: Duration = Duration::from_micros(100);
/// Maximum number of attempts to read both clocks together.
const TRIES: u32 = 4;
/// Slack for two clocks that are read one after the other.
const SLACK: Duration = Duration::from_millis(1);
/// Inverse of the maximum rate at which a wall clock is steered: 10 stands for a tenth. NTP daemons
/// stay below this rate.
const STEERING: u32 = 10;

/// Readings of two clocks of this machine at about the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockReadings {
    /// Reading of the clock that nobody sets or steers. It was read first.
    pub(crate) local: Time,
    /// Reading of the wall clock. Some groups synchronise their wall clocks.
    pub(crate) wall: Time,
    /// Reading of the clock by which the group measures leases: `local` or `wall`.
    pub(crate) time: Time,
    /// Whether the thread was not interrupted between the readings, so that they can be compared.
    pub(crate) is_together: bool,
}

impl ClockReadings {
    /// Reads both clocks.
    pub(crate) fn now(settings: &GroupSettings) -> ClockReadings {
        let mut readings = ClockReadings::read(settings);
        for _ in 1..TRIES {
            if readings.is_together {
                break;
            }
            readings = ClockReadings::read(settings);
        }
        readings
    }

    fn read(settings: &GroupSettings) -> ClockReadings {
        let (local, wall) = (leasehold_clock::now(), wall());
        let has_timers = settings.has_timers();
        let time = if has_timers { local } else { wall };
        let is_together = has_timers || leasehold_clock::now().since(local) <= TOGETHER;
        ClockReadings {
            local,
            wall,
            time,
            is_together,
        }
    }

    /// Converts a moment of the clock by which the group measures leases to the local clock. The
    /// result is never too late, even if the reading was interrupted between the clocks.
    pub(crate) fn to_local(self, until: Time) -> Time {
        self.local + until.since(self.time)
    }

    /// Whether the wall clock was set between an earlier reading and this one. A clock that is only
    /// steered keeps its rate within a tenth of the right one.
    pub(crate) fn was_set_since(self, earlier: ClockReadings) -> bool {
        let passed = self.local.since(earlier.local);
        let measured = self.wall.since(earlier.wall);
        self.wall < earlier.wall || measured.abs_diff(passed) > passed / STEERING + SLACK
    }
}

/// Reads the wall clock, as the time since 1970.
pub(crate) fn wall() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Time::ZERO + since.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readings(local_ms: u64, wall_ms: u64) -> ClockReadings {
        let time = |ms: u64| Time(ms * 1_000_000);
        let (local, wall) = (time(local_ms), time(wall_ms));
        ClockReadings {
            local,
            wall,
            time: wall,
            is_together: true,
        }
    }

    #[test]
    fn a_clock_that_is_set_is_told_from_one_that_is_steered() {
        let earlier = readings(1_000, 50_000);
        for (local_ms, wall_ms, was_set) in [
            (2_000, 51_000, false),
            (2_000, 51_100, false),
            (2_000, 50_901, false),
            (2_000, 51_102, true),
            (2_000, 50_898, true),
            (1_000, 50_000, false),
            (1_001, 49_999, true),
            (61_000, 110_000, false),
        ] {
            let later = readings(local_ms, wall_ms);
            assert_eq!(later.was_set_since(earlier), was_set, "{later:?}");
        }
    }

    #[test]
    fn an_end_by_the_wall_clock_is_no_later_by_the_local_clock() {
        let now = readings(1_000, 50_000);
        assert_eq!(now.to_local(Time(50_300_000_000)), Time(1_300_000_000));
        assert_eq!(
            now.to_local(Time(49_000_000_000)),
            now.local,
            "it has ended"
        );
    }
}
