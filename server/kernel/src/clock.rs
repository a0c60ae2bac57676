//! A clock that drifts from true time. It starts with an arbitrary reading and runs at a rate of
//! its own, which may change.

use leasehold_leases::Time;

/// A clock with the reading `since + (true time - from) * (1 + rate)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clock {
    /// True time, in ns, at which the clock's current rate began.
    from_ns: u64,
    /// Reading at the true time `from_ns`, in ns.
    since: u64,
    /// Amount by which the clock's rate exceeds that of true time, in parts per million.
    rate_ppm: i32,
}

impl Clock {
    /// Creates a clock that reads `reading_ns` at true time `now_ns`. Its rate exceeds that of true
    /// time by `rate_ppm` parts per million.
    pub fn new(now_ns: u64, reading_ns: u64, rate_ppm: i32) -> Clock {
        Clock {
            from_ns: now_ns,
            since: reading_ns,
            rate_ppm,
        }
    }

    /// Changes the clock's rate at the true time `now_ns`. The reading does not jump.
    pub fn set_rate(&mut self, now_ns: u64, rate_ppm: i32) {
        *self = Clock::new(now_ns, self.read(now_ns).0, rate_ppm);
    }

    /// Sets the clock forward by `by_ns` ns. Such a jump violates the bound on the clock's drift.
    /// Runs with jumps show that such a violation is detected.
    pub fn jump(&mut self, by_ns: u64) {
        self.since += by_ns;
    }

    /// Returns the reading at a true time, in ns.
    pub fn read(&self, true_ns: u64) -> Time {
        let elapsed = true_ns.saturating_sub(self.from_ns);
        // No run is long enough for an overflow.
        let drift = elapsed as i64 * i64::from(self.rate_ppm) / 1_000_000;
        Time(self.since + elapsed.wrapping_add_signed(drift))
    }

    /// Returns the first true time, in ns, at which the clock reads at least `time`.
    pub fn when(&self, time: Time) -> u64 {
        if time == Time::MAX {
            return u64::MAX;
        }
        let ahead = time.0.saturating_sub(self.since) as f64;
        let estimate = ahead / (1.0 + f64::from(self.rate_ppm) * 1e-6);
        let mut true_ns = self.from_ns + (estimate as u64).saturating_sub(2);
        while self.read(true_ns) < time {
            true_ns += 1;
        }
        true_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_inverts_read() {
        for rate_ppm in [-1000, 0, 37, 1000] {
            let clock = Clock::new(777, 12_345, rate_ppm);
            for time in [12_345, 1_000_000, 999_999_999_999] {
                let at = clock.when(Time(time));
                assert!(clock.read(at) >= Time(time));
                assert!(at == 777 || clock.read(at - 1) < Time(time));
            }
        }
    }

    #[test]
    fn a_new_rate_does_not_move_the_reading() {
        let mut clock = Clock::new(0, 5, 1000);
        let before = clock.read(1_000_000_000);
        clock.set_rate(1_000_000_000, -1000);
        assert_eq!(clock.read(1_000_000_000), before);
        assert_eq!(clock.read(2_000_000_000), Time(before.0 + 999_000_000));
    }
}
