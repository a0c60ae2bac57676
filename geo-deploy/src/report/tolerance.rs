//! Tolerance within which a write is at its minimum latency.

use super::ExperimentReport;

/// Tolerance of the minimum latency. A write is at its minimum latency if its latency exceeds its
/// lower bound by at most the tolerance. The tolerance is the greater of an absolute and a relative
/// value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tolerance {
    ms: f64,
    share: f64,
}

impl Tolerance {
    /// Returns the tolerance for a report. In virtual time, the tolerance is large enough for a
    /// round trip within a site and a sync. With real processes, the tolerance is also large enough
    /// for delays of the scheduler, the timers and the disk.
    pub(super) fn of(report: &ExperimentReport) -> Tolerance {
        match report.backend.as_str() {
            "sim" => Tolerance {
                ms: 1.0,
                share: 0.0,
            },
            _ => Tolerance {
                ms: 3.0,
                share: 0.03,
            },
        }
    }

    /// Returns the greatest latency, in ms, that is within the tolerance for this bound.
    pub(super) fn limit_ms(self, bound_ms: f64) -> f64 {
        bound_ms + self.ms.max(bound_ms * self.share)
    }

    /// Describes the tolerance, for example "within 3 ms or 3%".
    pub(super) fn words(self) -> String {
        if self.share > 0.0 {
            format!("{} ms or {}%", self.ms, self.share * 100.0)
        } else {
            format!("{} ms", self.ms)
        }
    }
}
