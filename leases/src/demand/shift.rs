//! Detection of a change in the keys that the clients of an origin request.
//!
//! Each requested key has a share of all counts. While clients keep their habits, the mean share of
//! the requested keys stays the same. If the mean share becomes much lower, the counts no longer
//! describe which keys are requested.

/// Number of operations in a window. Each operation has a share: the share of its key in all
/// counts. After each window, the mean of these shares is compared with the usual mean.
const WINDOW: u32 = 128;

/// Number of windows at the beginning that are not judged, because the counts are too new.
const UNJUDGED: u32 = 4;

/// Decrease of the mean share of the requested keys that counts as a change of habits. The decrease
/// is a logarithm to base 2: the value 2 means that the mean share falls to a quarter.
const DROP_LOG2: f32 = 2.0;

/// Weight of the latest window in the usual mean.
const LATEST: f32 = 0.2;

/// Detects that the clients of one origin begin to request other keys.
#[derive(Clone, Debug, Default)]
pub(super) struct ShiftDetector {
    /// Number of operations since the last judgement.
    operations: u32,
    /// Sum of the logarithms of shares since the last judgement. Each operation adds log2 of the
    /// share that its key has in all counts.
    log2_shares: f32,
    /// Number of windows since the counts began.
    windows: u32,
    /// Usual mean of the logarithms in a window (see `log2_shares`).
    usual: f32,
}

impl ShiftDetector {
    /// Adds operations on a key. Of the `total` remembered operations, `count` are on this key.
    pub(super) fn observe(&mut self, operations: u32, count: f32, total: f32) {
        let share = (count + 0.25) / (total + 1.0);
        self.log2_shares += log2(share) * operations as f32;
        self.operations = self.operations.saturating_add(operations);
    }

    /// Whether clients have begun to request other keys. This is judged once in every window.
    pub(super) fn has_shifted(&mut self) -> bool {
        if self.operations < WINDOW {
            return false;
        }
        let latest = self.log2_shares / self.operations as f32;
        (self.operations, self.log2_shares) = (0, 0.0);
        self.windows += 1;
        if self.windows > UNJUDGED && latest < self.usual - DROP_LOG2 {
            *self = ShiftDetector::default();
            return true;
        }
        let weight = if self.windows <= 2 { 1.0 } else { LATEST };
        self.usual += (latest - self.usual) * weight;
        false
    }
}

/// Returns log2 of a positive number, with an error of at most 0.09. The result is the same on
/// every machine.
fn log2(x: f32) -> f32 {
    const MANTISSA: u32 = 23;
    let bits = x.to_bits();
    let exponent = (bits >> MANTISSA) as f32 - 127.0;
    let mantissa = (bits & ((1 << MANTISSA) - 1)) as f32 / (1 << MANTISSA) as f32;
    exponent + mantissa
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_about_right() {
        for x in [1e-6_f32, 0.25, 0.9, 1.0, 3.0, 1e6] {
            assert!((log2(x) - x.log2()).abs() < 0.09, "{x}");
        }
    }

    /// Adds `times` windows of operations on keys. Each of these keys has `count` of the 1,000
    /// remembered operations. Returns whether a change was detected.
    fn windows(detector: &mut ShiftDetector, count: f32, times: usize) -> bool {
        let mut shifted = false;
        for _ in 0..times {
            detector.observe(WINDOW, count, 1000.0);
            shifted |= detector.has_shifted();
        }
        shifted
    }

    #[test]
    fn habits_that_last_are_kept_and_others_noticed_at_once() {
        let mut detector = ShiftDetector::default();
        assert!(!windows(&mut detector, 40.0, 20));
        assert!(!windows(&mut detector, 20.0, 5), "a little less is chance");
        assert!(windows(&mut detector, 1.0, 1));
        assert!(
            !windows(&mut detector, 0.0, UNJUDGED as usize),
            "new counts"
        );
    }

    #[test]
    fn too_few_operations_say_nothing() {
        let mut detector = ShiftDetector::default();
        windows(&mut detector, 40.0, 20);
        detector.observe(WINDOW - 1, 0.0, 1000.0);
        assert!(!detector.has_shifted());
    }
}
