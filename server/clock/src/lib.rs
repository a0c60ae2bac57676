//! The clock that measures leases, and the clocks with which it is compared. Replicas and client
//! processes that hold leases use the same clock.
//!
//! [`now`] reads the clock. [`Clocks::reading`] also reads other clocks of the machine. From such
//! readings, [`ClockWatch`] determines whether the clock can be trusted:
//!
//! ```
//! use leasehold_clock::{ClockWatch, Clocks};
//!
//! let (clocks, mut watch) = (Clocks::default(), ClockWatch::default());
//! // The maximum drift of a clock for which leases allow, in parts per million.
//! let rho_ppm = 1000;
//! if let Some(trusted) = watch.news(clocks.reading(), rho_ppm) {
//!     // Without a clock that can be trusted, no lease may be used.
//!     println!("the clock is trusted: {trusted}");
//! }
//! ```

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_leases::Time;
use rustix::time::{ClockId, clock_gettime};

pub use leasehold_leases::clock_watch::{ClockReading, ClockWatch, Divergence, OtherClocks};

/// Maximum time for reading all clocks. If a reading takes longer, it was interrupted, and its
/// results cannot be compared.
const TOGETHER: Duration = Duration::from_micros(100);
/// Interval between comparisons of the clocks. The clocks are not compared in every step, because
/// reading the other clocks is expensive and no clock's error grows much within this time.
const COMPARE_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum number of attempts to read all clocks. An interrupted attempt is repeated.
const TRIES: u32 = 4;

/// Total time, in ns, for which the machine has been suspended since boot: the highest measured
/// value so far.
static SUSPENDED_NS: AtomicU64 = AtomicU64::new(0);

/// Returns the time since boot, including suspension, as measured by the machine's unadjusted
/// counter.
///
/// The result is the sum of `CLOCK_MONOTONIC_RAW` and the time for which the machine was suspended.
/// NTP does not steer `CLOCK_MONOTONIC_RAW`, but this clock does not advance while the machine is
/// suspended. The time of suspension is added, because a lease must have expired after a suspension
/// that was longer than the lease. This time is the difference between `CLOCK_BOOTTIME` and
/// `CLOCK_MONOTONIC`. NTP steers these two clocks alike (chronyd by up to 8%). `std::time::Instant`
/// reads `CLOCK_MONOTONIC`.
pub fn now() -> Time {
    sample(&read, &SUSPENDED_NS).now
}

/// Reads a clock that NTP steers, and that counts the time of suspensions. Its rate differs from that of
/// [`now`] by at most [`STEERING_MAX`]. One reading costs a third of a reading of [`now`].
pub fn steered() -> Time {
    Time(read(ClockId::Boottime))
}

/// Inverse of the maximum rate at which NTP daemons steer a clock: 12 stands for 8.3% (chronyd).
pub const STEERING_MAX: u32 = 12;

/// One sample of the clock that measures leases.
#[derive(Clone, Copy, Debug, Default)]
struct ClockSample {
    now: Time,
    /// Reading of the steered clock, in ns, from which `now` was computed.
    boot_ns: u64,
}

impl ClockSample {
    /// Whether less time than [`COMPARE_INTERVAL`] has passed since `earlier`. Both the unadjusted
    /// clock and the steered clock must have measured less. One clock is not sufficient, because a
    /// clock that has stopped always measures less.
    fn is_soon_after(self, earlier: ClockSample) -> bool {
        let steered = Duration::from_nanos(self.boot_ns.abs_diff(earlier.boot_ns));
        self.now.since(earlier.now) < COMPARE_INTERVAL && steered < COMPARE_INTERVAL
    }
}

fn sample(read: &impl Fn(ClockId) -> u64, suspended_ns: &AtomicU64) -> ClockSample {
    let boot_ns = read(ClockId::Boottime);
    // This clock is read after the other, so the difference is at most the duration of the
    // suspension, and never falls because of an interruption.
    let slept_ns = boot_ns.saturating_sub(read(ClockId::Monotonic));
    let known_ns = suspended_ns.fetch_max(slept_ns, Ordering::Relaxed);
    let now = Time(read(ClockId::MonotonicRaw) + known_ns.max(slept_ns));
    ClockSample { now, boot_ns }
}

/// The machine's clocks, with the time of their last comparison.
#[derive(Debug, Default)]
pub struct Clocks {
    compared: Cell<ClockSample>,
}

impl Clocks {
    /// Reads the clock that measures leases. Also reads the other clocks, unless they were read
    /// less than a millisecond ago.
    pub fn reading(&self) -> ClockReading {
        reading_of(&read, &SUSPENDED_NS, &self.compared)
    }
}

fn reading_of(
    read: &impl Fn(ClockId) -> u64,
    suspended_ns: &AtomicU64,
    compared: &Cell<ClockSample>,
) -> ClockReading {
    let first = sample(read, suspended_ns);
    if first.is_soon_after(compared.get()) {
        return ClockReading::alone(first.now);
    }
    compared.set(first);
    let mut before = first.now;
    for _ in 0..TRIES {
        let others = OtherClocks {
            steered_ns: read(ClockId::Boottime),
            wall_ns: read(ClockId::Realtime),
        };
        let after = sample(read, suspended_ns).now;
        if after.since(before) <= TOGETHER {
            let (now, others) = (after, Some(others));
            return ClockReading { now, others };
        }
        before = after;
    }
    ClockReading::alone(before)
}

/// Returns the processor time of this process so far, in µs, as the sum over all its threads.
pub fn processor_us() -> u64 {
    read(ClockId::ProcessCPUTime) / 1_000
}

fn read(clock: ClockId) -> u64 {
    let reading = clock_gettime(clock);
    let seconds = u64::try_from(reading.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(reading.tv_nsec).unwrap_or_default();
    seconds * 1_000_000_000 + nanos
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_runs_backwards_and_it_runs() {
        let first = now();
        let mut last = first;
        for _ in 0..100_000 {
            let next = now();
            assert!(next >= last);
            last = next;
        }
        while last == first {
            last = now();
        }
    }

    #[test]
    fn other_clocks_are_read_with_it() {
        let together = (0..1000).filter_map(|_| Clocks::default().reading().others);
        assert!(together.count() > 0, "some readings are not interrupted");
    }

    /// Simulates 2 ms in which a clock advances only if `runs` returns true for it. Returns whether
    /// the clocks are compared again afterwards.
    fn compared_while_others_stand_still(runs: impl Fn(ClockId) -> bool) -> bool {
        let passed_ns = Cell::new(0);
        let read = |clock| 1_000_000_000_000 + if runs(clock) { passed_ns.get() } else { 0 };
        let (suspended_ns, compared) = (AtomicU64::new(0), Cell::default());
        let are_compared = || {
            let reading = reading_of(&read, &suspended_ns, &compared);
            reading.others.is_some()
        };
        assert!(are_compared());
        assert!(!are_compared(), "not again so soon");
        passed_ns.set(2_000_000);
        are_compared()
    }

    #[test]
    fn a_clock_that_stands_still_is_compared_with_those_that_run() {
        let is_counter = |clock| matches!(clock, ClockId::MonotonicRaw);
        assert!(compared_while_others_stand_still(|_| true));
        assert!(compared_while_others_stand_still(is_counter));
        assert!(compared_while_others_stand_still(|c| !is_counter(c)));
    }
}
