//! Readings of a clock, and the arithmetic that allows for clock drift.
//!
//! Clocks are not synchronised. Only their *rates* are bounded: over any true interval `d` a clock
//! advances between `d (1 - rho)` and `d (1 + rho)`. So if a grantor must wait until a span has
//! passed on another clock, it multiplies the span by `(1 + rho) / (1 - rho)`, rounded up. A holder
//! never lengthens a span.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use crate::mutants::{Rule, off};

/// A reading of one replica's monotonic clock, in ns since that clock's epoch. The clock includes
/// the time for which the machine was suspended. Readings of two replicas are never compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// The clock's epoch.
    pub const ZERO: Time = Time(0);
    /// A time later than any reading.
    pub const MAX: Time = Time(u64::MAX);

    /// Returns the span from `earlier` to this reading; zero if `earlier` is later than this
    /// reading.
    #[inline]
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    #[inline]
    fn add(self, duration: Duration) -> Time {
        let duration = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_add(duration))
    }
}

impl Sub<Duration> for Time {
    type Output = Time;
    #[inline]
    fn sub(self, duration: Duration) -> Time {
        let duration = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_sub(duration))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}s", self.0 as f64 / 1e9)
    }
}

/// Bound on the error of clock rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClockBound {
    /// Maximum error of a clock's rate, in parts per million. A `rho` of 0.001 is 1000 parts per
    /// million.
    pub rho_ppm: u32,
}

impl ClockBound {
    const MILLION: u128 = 1_000_000;

    /// Maximum accepted value of `rho_ppm`. With this value, a clock may run at half the true rate.
    pub const RHO_PPM_MAX: u32 = 500_000;

    /// Returns the duration that this clock must measure before `duration` has certainly passed on
    /// another clock: `duration (1 + rho) / (1 - rho)`, rounded up.
    ///
    /// # Panics
    /// If `rho` is above [`RHO_PPM_MAX`](Self::RHO_PPM_MAX). Settings and messages with such a
    /// bound are refused before they reach this method.
    pub fn outwait(self, duration: Duration) -> Duration {
        if !stretches() {
            return duration;
        }
        assert!(
            self.rho_ppm <= Self::RHO_PPM_MAX,
            "`rho` is within its bound"
        );
        let rho = u128::from(self.rho_ppm);
        let scaled = duration.as_nanos() * (Self::MILLION + rho);
        let stretched = scaled.div_ceil(Self::MILLION - rho);
        assert!(
            stretched >= duration.as_nanos(),
            "outwaiting takes no less time"
        );
        nanos(stretched)
    }

    /// Returns how long a grantor keeps a grant after *sending* its promise (§3.5): `(t_lease +
    /// t_guard + 2 rho t0) (1 + rho) / (1 - rho)`. `t0` is the age of the ack on which the promise
    /// builds. The term `2 rho t0` allows for the drift during `t0`.
    pub fn keep_from_send(self, t_lease: Duration, t_guard: Duration, t0: Duration) -> Duration {
        let aged = (t0.as_nanos() * 2 * u128::from(self.rho_ppm)).div_ceil(Self::MILLION);
        let duration = t_lease.saturating_add(t_guard).saturating_add(nanos(aged));
        self.outwait(duration)
    }

    /// Returns how long a grantor keeps a grant after receiving the ack of its latest promise:
    /// `t_lease (1 + rho) / (1 - rho)`.
    pub fn keep_from_ack(self, t_lease: Duration) -> Duration {
        self.outwait(t_lease)
    }
}

/// Rule H03: a grantor waits longer than the duration that must pass on another clock, because
/// clocks may run at different rates.
#[inline]
fn stretches() -> bool {
    !off(Rule::H03Drift)
}

/// Returns a duration of `value` ns. If `value` is above the maximum of [`Time`], returns this
/// maximum: 2^64 - 1 ns (584 years).
fn nanos(value: u128) -> Duration {
    Duration::from_nanos(u64::try_from(value).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: ClockBound = ClockBound { rho_ppm: 1000 };

    #[test]
    fn outwaiting_covers_the_fastest_waiter_and_the_slowest_holder() {
        // The waiter's clock runs fast (1 + rho), and the holder's clock runs slow (1 - rho).
        for span_ns in [1u64, 999, 2_000_000_000, 86_400_000_000_000] {
            let waited = BOUND.outwait(Duration::from_nanos(span_ns)).as_nanos() as f64;
            let true_wait = waited / 1.001;
            let true_span = span_ns as f64 / 0.999;
            assert!(true_wait * (1.0 + 1e-12) >= true_span, "{span_ns}");
        }
    }

    #[test]
    fn a_perfect_clock_needs_no_stretch() {
        let exact = ClockBound { rho_ppm: 0 };
        let s = Duration::from_secs;
        assert_eq!(exact.keep_from_send(s(2), s(2), s(4)), s(4));
        assert_eq!(exact.keep_from_ack(s(2)), s(2));
    }

    #[test]
    fn an_aged_ack_is_paid_for() {
        let s = Duration::from_secs;
        let fresh = BOUND.keep_from_send(s(2), s(2), Duration::ZERO);
        let aged = BOUND.keep_from_send(s(2), s(2), s(4));
        // 2 * 0.001 * 4 s = 8 ms, which is then stretched.
        let expected = BOUND.outwait(Duration::from_millis(8));
        assert!(
            (aged - fresh).abs_diff(expected) <= Duration::from_nanos(2),
            "rounding apart"
        );
    }

    #[test]
    fn far_ends_saturate() {
        assert_eq!(Time::MAX + Duration::from_secs(1), Time::MAX);
        assert_eq!(Time::ZERO - Duration::from_secs(1), Time::ZERO);
        let far = Duration::MAX;
        let kept = BOUND.keep_from_send(far, far, far);
        assert_eq!(Time::ZERO + kept, Time::MAX);
    }
}
