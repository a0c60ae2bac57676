//! Changes of strategy while clients ask.

use leasehold_leases::StrategySpec;
use serde::{Deserialize, Serialize};

use super::validate::check;
use super::{Experiment, ExperimentError, MeasurementWindow, StrategyPlan};

/// Another strategy, from some time on: `[[strategies.change]]` of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StrategyChange {
    /// When, in s from the beginning of the measured interval; below 0: while clients warm up.
    pub at_s: f64,
    /// The strategy's name.
    pub strategy: String,
    /// For which keys: first and last share of the key space, in key order, 0 to 1.
    #[serde(default = "all_keys")]
    pub keys: [f64; 2],
}

fn all_keys() -> [f64; 2] {
    [0.0, 1.0]
}

impl StrategyChange {
    /// The first key that is concerned, and the first one after those, of `keys` keys.
    pub(crate) fn key_bounds(&self, keys: u64) -> (u64, u64) {
        let [from, to] = self.keys.map(|share| (share * keys as f64).round() as u64);
        (from, to)
    }

    /// Whether all keys are concerned.
    pub(crate) fn covers_all_keys(&self) -> bool {
        self.keys == all_keys()
    }

    /// As marks and events call it: "quorum", "all for keys 50% to 100%".
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
