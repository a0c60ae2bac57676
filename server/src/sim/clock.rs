//! A replica's clock: it starts anywhere and runs at its own rate.

use leases::Time;

/// Reads `offset + true time * (1 + rate)`.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Where it starts, in ns.
    pub offset_ns: u64,
    /// How much faster than true time it runs, in parts per million.
    pub rate_ppm: i32,
}

impl Clock {
    /// The reading at a true time, in ns.
    pub fn read(&self, true_ns: u64) -> Time {
        let drift = i128::from(true_ns) * i128::from(self.rate_ppm) / 1_000_000;
        Time(self.offset_ns + (i128::from(true_ns) + drift) as u64)
    }

    /// The first true time, in ns, at which it reads at least `time`.
    pub fn when(&self, time: Time) -> u64 {
        if time == Time::MAX {
            return u64::MAX;
        }
        let elapsed = i128::from(time.0.saturating_sub(self.offset_ns));
        let estimate = elapsed * 1_000_000 / (1_000_000 + i128::from(self.rate_ppm));
        let mut true_ns = (estimate as u64).saturating_sub(1);
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
            let clock = Clock {
                offset_ns: 12_345,
                rate_ppm,
            };
            for time in [12_345, 1_000_000, 999_999_999_999] {
                let at = clock.when(Time(time));
                assert!(clock.read(at) >= Time(time));
                assert!(at == 0 || clock.read(at - 1) < Time(time));
            }
        }
    }
}
