//! The interval in which operations are measured, the same for all sites.
//!
//! An operation is measured if it *began* in the interval: if it was sent in the interval or, in an
//! open loop, was due in the interval. The full latency of a measured operation is recorded, even
//! if the operation ends after the interval. Clients of fast sites continue to send requests until
//! the interval ends, so that all sites are measured under the same load.

use super::RunPlan;
use crate::experiment::MeasurementWindow;

/// Measured interval of a run that has not ended. Times are in ns since the run began.
#[derive(Debug)]
pub(crate) struct IntervalTracker {
    window: MeasurementWindow,
    /// Number of clients that have not yet made all their warm-up requests.
    warming: u64,
    /// Number of clients that have not yet made all their requests.
    unfinished: u64,
    /// Number of requests that were made. Requests that a client makes beyond its plan are not
    /// counted.
    made: u64,
    /// Number of requests that all clients together should make.
    requested: u64,
    start_ns: u64,
    begin_ns: Option<u64>,
    end_ns: Option<u64>,
}

impl IntervalTracker {
    /// Creates the interval of a plan. Clients send the first requests at `start_ns`.
    pub(crate) fn new(plan: &RunPlan<'_>, start_ns: u64) -> IntervalTracker {
        let workload = &plan.experiment.workload;
        let clients = u64::from(workload.clients) * plan.topology().len() as u64;
        IntervalTracker::of(workload.window(), clients, start_ns)
    }

    fn of(window: MeasurementWindow, clients: u64, start_ns: u64) -> IntervalTracker {
        let after = |seconds: f64| start_ns + (seconds * 1e9) as u64;
        let (begin_ns, end_ns) = match window {
            MeasurementWindow::Counts { warmup, .. } => ((warmup == 0).then_some(start_ns), None),
            MeasurementWindow::Seconds { warmup_s, seconds } => {
                (Some(after(warmup_s)), Some(after(warmup_s + seconds)))
            }
        };
        let requested = match window {
            MeasurementWindow::Counts { requests, .. } => requests.saturating_mul(clients),
            MeasurementWindow::Seconds { .. } => 0,
        };
        IntervalTracker {
            window,
            made: 0,
            requested,
            start_ns,
            warming: clients,
            unfinished: clients,
            begin_ns,
            end_ns,
        }
    }

    /// Notes that a client's request was answered or abandoned. It was the client's `count`-th
    /// request.
    pub(crate) fn made(&mut self, count: u64, now_ns: u64) {
        let MeasurementWindow::Counts { warmup, requests } = self.window else {
            return;
        };
        self.made += u64::from(count <= requests);
        if count == warmup {
            self.warming -= 1;
            if self.warming == 0 {
                self.begin_ns = Some(now_ns);
            }
        }
        if count == requests {
            self.unfinished -= 1;
            if self.unfinished == 0 {
                self.end_ns = Some(now_ns);
            }
        }
    }

    /// Returns the time at which the interval began or will begin; `None` while this is unknown.
    pub(crate) fn begin_ns(&self) -> Option<u64> {
        self.begin_ns
    }

    /// Whether the interval has ended at `now_ns`. Operations that begin after the end of the
    /// interval are not measured.
    pub(crate) fn is_over(&self, now_ns: u64) -> bool {
        self.end_ns.is_some_and(|end_ns| now_ns >= end_ns)
    }

    /// Returns the progress of the run as (done, total), in requests or in ms.
    pub(crate) fn progress(&self, now_ns: u64) -> (u64, u64) {
        match (self.window, self.end_ns) {
            (MeasurementWindow::Seconds { .. }, Some(end_ns)) => {
                let ms = |from: u64, to: u64| to.saturating_sub(from) / 1_000_000;
                let all = ms(self.start_ns, end_ns).max(1);
                (ms(self.start_ns, now_ns).min(all), all)
            }
            _ => (self.made, self.requested),
        }
    }

    /// Returns the beginning and the end of the interval, for a run that stopped at `now_ns`.
    pub(crate) fn bounds_ns(&self, now_ns: u64) -> (u64, u64) {
        let end_ns = self.end_ns.unwrap_or(now_ns);
        (self.begin_ns.unwrap_or(end_ns).min(end_ns), end_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_client_begins_and_ends_it() {
        let window = MeasurementWindow::Counts {
            warmup: 2,
            requests: 4,
        };
        let mut interval = IntervalTracker::of(window, 2, 5);
        // One client is fast: it continues beyond its own requests.
        for (count, now_ns) in [(1, 10), (2, 20), (3, 30), (4, 40), (5, 50)] {
            interval.made(count, now_ns);
        }
        assert_eq!(interval.begin_ns(), None);
        interval.made(1, 51);
        interval.made(2, 60);
        assert_eq!(interval.begin_ns(), Some(60));
        assert!(!interval.is_over(1_000));
        interval.made(3, 70);
        interval.made(6, 75);
        interval.made(4, 80);
        assert!(interval.is_over(80) && !interval.is_over(79));
        assert_eq!(interval.bounds_ns(100), (60, 80));
    }

    #[test]
    fn without_warm_up_it_begins_with_the_first_request() {
        let window = MeasurementWindow::Counts {
            warmup: 0,
            requests: 1,
        };
        let mut interval = IntervalTracker::of(window, 2, 7);
        assert_eq!(interval.begin_ns(), Some(7));
        interval.made(1, 10);
        assert!(!interval.is_over(10));
        interval.made(1, 11);
        assert_eq!(interval.bounds_ns(99), (7, 11));
    }

    #[test]
    fn seconds_are_the_same_for_all() {
        let window = MeasurementWindow::Seconds {
            warmup_s: 1.0,
            seconds: 2.0,
        };
        let mut interval = IntervalTracker::of(window, 2, 1_000_000_000);
        interval.made(1, 1_000);
        assert_eq!(interval.begin_ns(), Some(2_000_000_000));
        assert!(interval.is_over(4_000_000_000) && !interval.is_over(3_999_999_999));
    }
}
