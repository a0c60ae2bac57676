//! Notices that the clients of an origin have turned to other keys.
//!
//! While their habits last, the keys they ask are on average as well remembered as those
//! they asked before. When the keys asked next are much less so, the counts describe
//! the past.

/// Operations that are judged together.
const WINDOW: u32 = 128;

/// Number of windows before the first judgement: until then memories are too young.
const UNJUDGED: u32 = 4;

/// Habits have changed when the keys asked are remembered by a quarter of the usual count.
const DROP_LOG2: f32 = 2.0;

/// Weight of the latest window in the mean of what is usual.
const LATEST: f32 = 0.2;

/// Watches one origin.
#[derive(Clone, Debug, Default)]
pub(super) struct ShiftDetector {
    /// Since the last judgement.
    operations: u32,
    /// Sum, over these operations, of log2 of the share that their keys had of all that is
    /// remembered.
    log2_shares: f32,
    /// Judgements since the counts began.
    windows: u32,
    /// The mean of `log2_shares` for an operation, usually.
    usual: f32,
}

impl ShiftDetector {
    /// Operations on a key that has `count` of the `total` operations remembered.
    pub(super) fn observe(&mut self, operations: u32, count: f32, total: f32) {
        let share = (count + 0.25) / (total + 1.0);
        self.log2_shares += log2(share) * operations as f32;
        self.operations = self.operations.saturating_add(operations);
    }

    /// Whether clients have turned to other keys.
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

/// About log2 of a positive number, within 0.09; the same on every machine.
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

    /// Windows of operations on keys with this count of 1,000.
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
