//! When a write counts as being at its minimum.

use super::ExperimentReport;

/// Largest excess of a write over its bound: the greater of the two.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tolerance {
    ms: f64,
    share: f64,
}

impl Tolerance {
    /// In virtual time only the way within a site and a sync are added to the bound. Real
    /// processes that share a machine add their scheduling, their timers and its disk.
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

    /// The greatest latency that counts.
    pub(super) fn limit_ms(self, bound_ms: f64) -> f64 {
        bound_ms + self.ms.max(bound_ms * self.share)
    }

    /// As in "within 3 ms or 3%".
    pub(super) fn words(self) -> String {
        if self.share > 0.0 {
            format!("{} ms or {}%", self.ms, self.share * 100.0)
        } else {
            format!("{} ms", self.ms)
        }
    }
}
