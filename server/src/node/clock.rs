//! The clock that leases are counted on, and those that it is compared with.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leases::Time;
use rustix::time::{ClockId, clock_gettime};

use crate::shell::{Others, Reading};

/// Readings that took longer than this were interrupted, and cannot be compared.
const TOGETHER: Duration = Duration::from_micros(100);
/// How often clocks are compared. Reading them costs more than a step may cost, and no
/// clock goes far wrong in this time.
const COMPARED_EVERY: Duration = Duration::from_millis(1);
/// How often readings are tried, when they are interrupted.
const TRIES: u32 = 4;

/// The longest that the machine is known to have been suspended, in ns.
static SUSPENDED_NS: AtomicU64 = AtomicU64::new(0);

/// Time since boot by the machine's unadjusted counter, suspension included.
///
/// NTP steers `CLOCK_MONOTONIC` and `CLOCK_BOOTTIME` (chronyd by up to 8%), but not
/// `CLOCK_MONOTONIC_RAW`, which stands still during a suspension; a machine that slept
/// through a lease must find it expired. What it slept is the difference of the first two,
/// which are steered alike. `std::time::Instant` is the first of them.
pub fn now() -> Time {
    let boot_ns = read(ClockId::Boottime);
    // Read later, so the difference is what was slept or less: it never falls by chance.
    let slept_ns = boot_ns.saturating_sub(read(ClockId::Monotonic));
    let known_ns = SUSPENDED_NS.fetch_max(slept_ns, Ordering::Relaxed);
    Time(read(ClockId::MonotonicRaw) + known_ns.max(slept_ns))
}

/// The same, and what other clocks say at that moment, unless they were asked a moment ago:
/// at `compared`.
pub(super) fn reading(compared: &Cell<Time>) -> Reading {
    let mut before = now();
    if before.since(compared.get()) < COMPARED_EVERY {
        return Reading::alone(before);
    }
    compared.set(before);
    for _ in 0..TRIES {
        let others = Others {
            steered_ns: read(ClockId::Boottime),
            wall_ns: read(ClockId::Realtime),
        };
        let after = now();
        if after.since(before) <= TOGETHER {
            let (now, others) = (after, Some(others));
            return Reading { now, others };
        }
        before = after;
    }
    Reading::alone(before)
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
        let together = (0..1000).filter_map(|_| reading(&Cell::default()).others);
        assert!(together.count() > 0, "some readings are not interrupted");
        let compared = Cell::new(Time::MAX);
        assert_eq!(reading(&compared).others, None, "not again so soon");
    }
}
