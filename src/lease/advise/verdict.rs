//! What to make of forecasts: whether a change is worth it, in words.

use leases::advice::Forecast;

use crate::advice::Scene;

/// A change gains at least this share of the present mean latency, or is not worth it.
const GAIN_MIN: f64 = 0.02;

/// The same in ms. Both must be met: equal sites would otherwise take turns.
const GAIN_MIN_MS: f64 = 1.0;

/// What is forecast to be best, and what is in force.
pub struct Verdict<'a> {
    pub best: &'a Forecast,
    /// `None`: what is in force was not forecast.
    pub now: Option<&'a Forecast>,
}

impl Verdict<'_> {
    fn in_force(&self) -> bool {
        self.now == Some(self.best)
    }

    /// Whether so much is gained that a change pays.
    pub fn worth_it(&self) -> bool {
        self.now
            .is_none_or(|now| worth_it(now.mean_ms, self.best.mean_ms))
    }

    /// What is best, and what is gained by it.
    pub fn sentence(&self, scene: &Scene<'_>) -> String {
        let best = format!(
            "{} led by {}, {:.1} ms a mean operation",
            self.best.plan.name(),
            scene.name(self.best.leader),
            self.best.mean_ms
        );
        let Some(now) = self.now else {
            return format!("Best: {best}.");
        };
        if self.in_force() {
            return format!("Best is what is in force: {best}.");
        }
        let gain_ms = now.mean_ms - self.best.mean_ms;
        let now_ms = now.mean_ms;
        match gain_ms >= 0.0 {
            true => format!(
                "Best: {best}; now it is {now_ms:.1} ms, so {gain_ms:.1} ms ({:.0}%) are gained.",
                gain_ms / now_ms.max(1e-9) * 100.0
            ),
            false => format!(
                "Best: {best}; now it is {now_ms:.1} ms, so {:.1} ms are lost.",
                -gain_ms
            ),
        }
    }
}

fn worth_it(now_ms: f64, best_ms: f64) -> bool {
    let gain_ms = now_ms - best_ms;
    gain_ms >= GAIN_MIN_MS && gain_ms >= GAIN_MIN * now_ms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_worth_it_from_two_percent_and_a_millisecond() {
        for (now_ms, best_ms, worth) in [
            (100.0, 97.9, true),
            (100.0, 98.1, false),
            (10.0, 9.1, false),
            (10.0, 8.9, true),
            (80.0, 80.0, false),
            (0.0, 0.0, false),
        ] {
            assert_eq!(worth_it(now_ms, best_ms), worth, "{now_ms} to {best_ms}");
        }
    }

    #[test]
    fn equal_leaders_do_not_take_turns() {
        let (one, other) = (80.0, 79.5);
        assert!(!worth_it(one, other));
        assert!(!worth_it(other, one));
    }
}
