//! Changes of strategy while clients send requests.

use leasehold_leases::StrategySpec;
use serde::{Deserialize, Serialize};

use super::validate::check;
use super::{Experiment, ExperimentError, MeasurementWindow, StrategyPlan};

/// Change to another strategy during a run, as written in a section `[[strategies.change]]` of an
/// experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StrategyChange {
    /// Time of the change, in s since the beginning of the measured interval. The time of a change
    /// during warm-up is negative.
    pub at_s: f64,
    /// Name of the new strategy.
    pub strategy: String,
    /// Range of keys that the change concerns. The two numbers are the beginning and the end of the
    /// range in key order, as shares of the key space from 0 to 1.
    #[serde(default = "all_keys")]
    pub keys: [f64; 2],
}

fn all_keys() -> [f64; 2] {
    [0.0, 1.0]
}

impl StrategyChange {
    /// Returns the first key that the change concerns, and the first key after the range, for a key
    /// space of `keys` keys.
    pub(crate) fn key_bounds(&self, keys: u64) -> (u64, u64) {
        let [from, to] = self.keys.map(|share| (share * keys as f64).round() as u64);
        (from, to)
    }

    /// Whether the change concerns all keys.
    pub(crate) fn covers_all_keys(&self) -> bool {
        self.keys == all_keys()
    }

    /// Describes the change, for example "quorum" or "all for keys 50% to 100%". Marks in figures
    /// and events contain this text.
    pub(crate) fn words(&self) -> String {
        if self.covers_all_keys() {
            return self.strategy.clone();
        }
        let [from, to] = self.keys.map(|share| share * 100.0);
        format!("{} for keys {from:.0}% to {to:.0}%", self.strategy)
    }
}

impl Experiment {
    pub(super) fn validate_changes(&self, plan: &StrategyPlan) -> Result<(), ExperimentError> {
        if plan.change.is_empty() {
            return Ok(());
        }
        let field = |name: &str| plan.field(&format!("change.{name}"));
        let MeasurementWindow::Seconds { warmup_s, seconds } = self.workload.window() else {
            let found = format!("{} changes", plan.change.len());
            return check(false, &plan.field("change"), found, || {
                "how long is measured must be known: give seconds and warmup_s".into()
            });
        };
        let mut before = -warmup_s;
        for change in &plan.change {
            let good = (before..seconds).contains(&change.at_s);
            check(good, &field("at_s"), change.at_s, || {
                format!(
                    "changes follow each other, from {} s (clients begin) to {seconds} s (the end)",
                    -warmup_s
                )
            })?;
            before = change.at_s;
            change.validate(&field)?;
        }
        Ok(())
    }
}

impl StrategyChange {
    fn validate(&self, field: &impl Fn(&str) -> String) -> Result<(), ExperimentError> {
        let mut names: Vec<&str> = StrategySpec::NAMES.to_vec();
        names.retain(|name| *name != "fixed");
        let known = names.contains(&self.strategy.as_str());
        check(known, &field("strategy"), &self.strategy, || {
            format!("a change may be to one of {}", names.join(", "))
        })?;
        let [from, to] = self.keys;
        let good = 0.0 <= from && from < to && to <= 1.0;
        check(good, &field("keys"), format!("{:?}", self.keys), || {
            "two rising shares of the key space are needed, as in keys = [0.5, 1.0]".into()
        })
    }
}
