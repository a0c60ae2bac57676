//! The clock that leases are counted on.

use leases::Time;
use rustix::time::{ClockId, clock_gettime};

/// Time since boot, suspension included: a machine that slept through a lease
/// must find it expired. `std::time::Instant` stands still meanwhile.
pub fn now() -> Time {
    let reading = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(reading.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(reading.tv_nsec).unwrap_or_default();
    Time(seconds * 1_000_000_000 + nanos)
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_never_runs_backwards_and_it_runs() {
        let first = super::now();
        let mut last = first;
        while last == first {
            let next = super::now();
            assert!(next >= last);
            last = next;
        }
    }
}
