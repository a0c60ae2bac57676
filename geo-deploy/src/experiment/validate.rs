//! Checks of the fields of an experiment, both of single fields and of combinations.

use leasehold_leases::StrategySpec;

use super::{Experiment, ExperimentError, MeasurementWindow, StrategyPlan, lease};
use crate::fault::{self, FaultSpec};
use crate::topology::{Topology, is_plain_name};

/// Maximum number of runs of a strategy.
const RUNS_MAX: u32 = 10_000;

impl Experiment {
    pub(super) fn validate(&self) -> Result<(), ExperimentError> {
        plain_name("name", &self.name, "of a directory")?;
        let known = self.topology.index(&self.leader).is_some();
        check(known, "leader", &self.leader, || {
            let names = self.topology.names();
            format!(
                "no such site; the sites are {}: say which leads, as in --set leader={}",
                names.join(", "),
                names[0]
            )
        })?;
        self.validate_workload()?;
        lease::validate(&self.lease)?;
        check(
            (1..=RUNS_MAX).contains(&self.runs),
            "runs",
            self.runs,
            || format!("1 to {RUNS_MAX} runs are accepted"),
        )?;
        self.validate_timing()?;
        self.validate_faults("", &self.fault)?;
        self.validate_strategies()
    }

    fn validate_timing(&self) -> Result<(), ExperimentError> {
        for (field, value) in [
            ("timing.heartbeat_ms", self.timing.heartbeat_ms),
            (
                "timing.election_timeout_ms",
                self.timing.election_timeout_ms,
            ),
        ] {
            let good = value.is_none_or(|ms| (1..=3_600_000).contains(&ms));
            check(good, field, value.unwrap_or(0), || {
                "1 ms to 3600000 ms (an hour) are accepted".into()
            })?;
        }
        let timing = self.timing_of_replicas();
        let (election, heartbeat) = (timing.election_timeout, timing.heartbeat);
        let found = election.as_millis();
        check(
            election >= heartbeat * 2,
            "timing.election_timeout_ms",
            found,
            || {
                format!(
                    "it must be at least twice timing.heartbeat_ms ({}), or one lost heartbeat \
                 deposes a leader",
                    heartbeat.as_millis()
                )
            },
        )
    }

    /// Checks faults. In errors, the text `of` is a prefix for the names of the faults' fields.
    fn validate_faults(&self, of: &str, faults: &[FaultSpec]) -> Result<(), ExperimentError> {
        fault::check(faults, &self.topology).map_err(|refused| ExperimentError::Invalid {
            field: format!("{of}{}", refused.field),
            found: refused.found,
            fix: refused.fix,
        })?;
        let MeasurementWindow::Seconds { seconds, .. } = self.workload.window() else {
            return Ok(());
        };
        for (i, fault) in faults.iter().enumerate() {
            let field = format!("{of}fault.{}.at_s", i + 1);
            check(fault.at_s < seconds, &field, fault.at_s, || {
                format!(
                    "{seconds} s are measured, and it would never begin: let it begin earlier, \
                     or measure longer with seconds"
                )
            })?;
        }
        Ok(())
    }

    fn validate_strategies(&self) -> Result<(), ExperimentError> {
        check(!self.strategies.is_empty(), "strategies", "[]", || {
            "name at least one strategy".to_owned()
        })?;
        for (i, plan) in self.strategies.iter().enumerate() {
            let fresh = self.strategies[..i].iter().all(|p| p.label != plan.label);
            check(fresh, "strategies.label", &plan.label, || {
                "used twice; give every strategy a label of its own".to_owned()
            })?;
            plan.validate(&self.topology)?;
            self.validate_faults(&plan.field(""), &plan.fault)?;
            self.validate_changes(plan)?;
        }
        Ok(())
    }

    fn validate_workload(&self) -> Result<(), ExperimentError> {
        let w = &self.workload;
        let positive = |field: &str, value: u64| {
            check(value > 0, field, value, || "at least 1 is needed".into())
        };
        positive("workload.keys", w.keys)?;
        positive("workload.clients", w.clients.into())?;
        share("workload.reads", w.reads)?;
        w.validate_load(&self.topology)?;
        w.validate_swap(&self.topology)?;
        let exponent = w.theta > 0.0 && w.theta < 10.0;
        check(exponent, "workload.theta", w.theta, || {
            "an exponent above 0 and below 10 is needed".into()
        })?;
        self.validate_network()
    }

    fn validate_network(&self) -> Result<(), ExperimentError> {
        share("network.loss", self.network.loss)?;
        share("network.duplication", self.network.duplication)?;
        share("network.reorder", self.network.reorder)?;
        let jitter = (0.0..=10_000.0).contains(&self.local.jitter_ms);
        check(jitter, "local.jitter_ms", self.local.jitter_ms, || {
            "0 to 10000 ms are accepted".into()
        })
    }
}

impl StrategyPlan {
    fn validate(&self, topology: &Topology) -> Result<(), ExperimentError> {
        let named = StrategySpec::NAMES.contains(&self.strategy.as_str());
        check(named, &self.field("strategy"), &self.strategy, || {
            format!(
                "no such strategy; there are {}",
                StrategySpec::NAMES.join(", ")
            )
        })?;
        plain_name("strategies.label", &self.label, "of a file")?;
        let wants_ranges = self.strategy == "fixed";
        let found = format!("{} ranges", self.ranges.len());
        check(
            wants_ranges != self.ranges.is_empty(),
            &self.field("ranges"),
            found,
            || {
                "`fixed` needs ranges, as in ranges = [{ share = 1.0, holders = [\"CA\"] }]; the other strategies take none".into()
            },
        )?;
        self.validate_ranges(topology)
    }

    fn validate_ranges(&self, topology: &Topology) -> Result<(), ExperimentError> {
        for range in &self.ranges {
            share(&self.field("ranges.share"), range.share)?;
            let found = format!("{:?}", range.holders);
            let known = |site: &String| topology.index(site).is_some();
            let good = !range.holders.is_empty() && range.holders.iter().all(known);
            check(good, &self.field("ranges.holders"), found, || {
                format!(
                    "name at least one site, of these: {}; or leave the strategy out, as in \
                     --set strategies=leader,quorum",
                    topology.names().join(", ")
                )
            })?;
        }
        let sum: f64 = self.ranges.iter().map(|range| range.share).sum();
        let whole = self.ranges.is_empty() || (sum - 1.0).abs() < 1e-6;
        let found = format!("shares summing to {sum}");
        check(whole, &self.field("ranges"), found, || {
            "the shares must sum to 1".into()
        })
    }

    /// Returns the full name of a field of this strategy, in the form that overrides use.
    pub(super) fn field(&self, name: &str) -> String {
        format!("strategies.{}.{name}", self.label)
    }
}

fn plain_name(field: &str, name: &str, becomes: &str) -> Result<(), ExperimentError> {
    check(is_plain_name(name), field, format!("{name:?}"), || {
        format!("use letters, digits, '-' or '_': it becomes the name {becomes}")
    })
}

fn share(field: &str, value: f64) -> Result<(), ExperimentError> {
    check((0.0..=1.0).contains(&value), field, value, || {
        "a share from 0 to 1 is needed".into()
    })
}

pub(super) fn check(
    good: bool,
    field: &str,
    found: impl ToString,
    fix: impl FnOnce() -> String,
) -> Result<(), ExperimentError> {
    if good {
        return Ok(());
    }
    Err(ExperimentError::Invalid {
        field: field.to_owned(),
        found: found.to_string(),
        fix: fix(),
    })
}
