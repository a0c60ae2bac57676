//! Decision, based on forecasts, whether a change is worthwhile, and a description of the decision.

use leasehold_leases::ReplicaId;
use leasehold_leases::advice::Forecast;

use crate::advice::AdviceContext;

/// Smallest gain for which a change is worthwhile, as a fraction of the present mean latency.
const GAIN_MIN: f64 = 0.02;

/// Smallest gain, in ms, for which a change is worthwhile. The gain must also reach `GAIN_MIN`.
/// These two limits prevent leadership from alternating between two equally good sites.
const GAIN_MIN_MS: f64 = 1.0;

/// `GAIN_MIN` and `GAIN_MIN_MS` as text for reports.
pub const WORTH: &str = "a change is worth it from 2% and 1 ms";

/// Comparison of the best forecast with the forecast of the plan in force.
pub struct AdviceVerdict<'a> {
    pub best: &'a Forecast,
    /// Forecast for the plan in force; `None` if no forecast was made for this plan.
    pub now: Option<&'a Forecast>,
}

impl AdviceVerdict<'_> {
    fn is_in_force(&self) -> bool {
        self.now == Some(self.best)
    }

    /// Returns true if the gain of the best forecast is large enough for a change.
    fn is_worth_it(&self) -> bool {
        self.now
            .is_none_or(|now| is_worth_it(now.mean_ms, self.best.mean_ms))
    }

    /// Returns the forecast that should be put in force; `None` if nothing should change. If
    /// `requested` names a leader other than the present one, the change is made even if the gain
    /// is small.
    pub fn change(&self, requested: Option<ReplicaId>) -> Option<&Forecast> {
        let moved = |now: &Forecast| requested.is_some_and(|leader| leader != now.leader);
        let changed = self.is_worth_it() || self.now.is_some_and(moved);
        changed.then_some(self.best)
    }

    /// Describes the best forecast and its gain in one sentence.
    pub fn sentence(&self, context: &AdviceContext<'_>) -> String {
        let best = format!(
            "{} led by {}, {:.1} ms a mean operation",
            self.best.plan.name(),
            context.name(self.best.leader),
            self.best.mean_ms
        );
        let Some(now) = self.now else {
            return format!("Best: {best}.");
        };
        if self.is_in_force() {
            return format!("Best is what is in force: {best}.");
        }
        let gain_ms = now.mean_ms - self.best.mean_ms;
        let now_ms = now.mean_ms;
        let found = format!("Best: {best}; now it is {now_ms:.1} ms, so");
        if gain_ms < 0.0 {
            return format!("{found} {:.1} ms are lost.", -gain_ms);
        }
        let percent = gain_ms / now_ms.max(1e-9) * 100.0;
        let gained = format!("{gain_ms:.1} ms ({percent:.0}%)");
        if self.is_worth_it() {
            format!("{found} {gained} are gained.")
        } else {
            format!("{found} only {gained} would be gained: {WORTH}.")
        }
    }
}

fn is_worth_it(now_ms: f64, best_ms: f64) -> bool {
    let gain_ms = now_ms - best_ms;
    gain_ms >= GAIN_MIN_MS && gain_ms >= GAIN_MIN * now_ms
}

#[cfg(test)]
mod tests {
    use leasehold_leases::advice::HolderPlan;

    use super::*;

    fn forecast(leader: u8, mean_ms: f64) -> Forecast {
        Forecast {
            plan: HolderPlan::Cost,
            leader: ReplicaId(leader),
            mean_ms,
            read_ms: mean_ms,
            write_ms: mean_ms,
            local: 0.0,
            at_minimum: 0.0,
            stalled: vec![0.0; 2],
            sites: Vec::new(),
        }
    }

    /// Returns whether a change is made, and the sentence that describes the result. At present,
    /// the leader is `CA`, with a mean latency of 80 ms. The best forecast has the strategy `cost`,
    /// the leader `OR` (Oregon) and a mean latency of `mean_ms`. `requested` is the leader that the
    /// user requires.
    fn judged(mean_ms: f64, requested: Option<u8>) -> (bool, String) {
        let (now, best) = (forecast(0, 80.0), forecast(1, mean_ms));
        let verdict = AdviceVerdict {
            best: &best,
            now: Some(&now),
        };
        let context = AdviceContext {
            names: &["CA".to_owned(), "OR".to_owned()],
            now: None,
            stall_s: 0.0,
        };
        let changed = verdict.change(requested.map(ReplicaId)).is_some();
        (changed, verdict.sentence(&context))
    }

    #[test]
    fn a_small_gain_changes_nothing_and_is_called_too_small() {
        let (changed, sentence) = judged(79.5, None);
        assert!(!changed);
        let small = "so only 0.5 ms (1%) would be gained: a change is worth it from 2% and 1 ms.";
        assert!(sentence.ends_with(small), "{sentence}");
        let (changed, sentence) = judged(72.0, None);
        assert!(changed);
        assert!(
            sentence.ends_with("so 8.0 ms (10%) are gained."),
            "{sentence}"
        );
    }

    #[test]
    fn a_leader_that_was_asked_for_leads_whatever_it_costs() {
        assert!(judged(79.5, Some(1)).0);
        let (changed, sentence) = judged(81.0, Some(1));
        assert!(changed);
        assert!(sentence.ends_with("so 1.0 ms are lost."), "{sentence}");
    }

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
            assert_eq!(is_worth_it(now_ms, best_ms), worth, "{now_ms} to {best_ms}");
        }
    }

    #[test]
    fn equal_leaders_do_not_take_turns() {
        let (one, other) = (80.0, 79.5);
        assert!(!is_worth_it(one, other));
        assert!(!is_worth_it(other, one));
    }
}
