//! Forecast for every strategy under every leader, computed from the files of a finished run, next
//! to the measured figures.
//!
//! The demand is that of the clients' histories: counted as replicas count it and learned
//! as leaders learn it, up to the middle of the measured interval. So a forecast is what
//! `lease advise` would have said then. A strategy that was run is forecast from its own
//! run's demand; every other from that of the first run of the file, as if its clients
//! would ask the same.

mod files;
mod replay;
#[cfg(test)]
mod tests;

use std::path::Path;

use anyhow::Context as _;
use leasehold_histories::history::History;
use leasehold_leases::advice::{self, Conditions, Forecast, HolderPlan, Profile};
use leasehold_leases::latency::{Replies, RoundTrips};
use leasehold_leases::{ReplicaId, Time};

use crate::backend::{self, RunPlan};
use crate::experiment::{AcceptRepliesName, Experiment};
pub use files::Means;
use files::RunFiles;

/// Most keys of a history's profile: all, as a rule.
const KEYS_MAX: usize = 1 << 18;

/// One run, and what is forecast from its demand.
#[derive(Clone, Debug)]
pub struct RunForecast {
    /// Label of the run.
    pub label: String,
    /// Its strategy.
    pub strategy: String,
    /// Plan by which its holders are forecast; `None`: it has several strategies.
    pub plan: Option<HolderPlan>,
    /// The replica that led.
    pub leader: ReplicaId,
    /// Measured means and shares.
    pub measured: Means,
    /// Operations that the demand was counted from.
    pub operations: f64,
    /// Every strategy under every leader, with the demand of this run.
    pub forecasts: Vec<Forecast>,
}

impl RunForecast {
    /// Returns the forecast for the run itself.
    pub fn own(&self) -> Option<&Forecast> {
        let mut all = self.forecasts.iter();
        all.find(|one| Some(one.plan) == self.plan && one.leader == self.leader)
    }

    /// By how much of what was measured the forecast mean is too high; below 0: too low.
    pub fn error(&self) -> Option<f64> {
        let own = self.own()?;
        Some(own.mean_ms / self.measured.mean_ms - 1.0)
    }
}

/// A finished run's experiment, and every strategy that was run in it.
#[derive(Clone, Debug)]
pub struct ForecastReport {
    /// The experiment that was run.
    pub experiment: Experiment,
    /// One for each strategy run, in the report's order.
    pub runs: Vec<RunForecast>,
}

/// Reads the files of a run in `dir`, and forecasts.
///
/// # Errors
/// If a file is missing, is damaged or contradicts another, or if the run is of a kind that
/// cannot be forecast: made of several, or with keys that nothing was asked of.
pub fn of_directory(dir: &Path) -> anyhow::Result<ForecastReport> {
    let files = RunFiles::load(dir)?;
    let runs = files.runs.iter().map(|run| {
        let history = files.history(run)?;
        let advised = advise(&files, run, &history);
        advised.with_context(|| format!("{}: {}", dir.display(), run.label))
    });
    Ok(ForecastReport {
        runs: runs.collect::<anyhow::Result<_>>()?,
        experiment: files.experiment.clone(),
    })
}

fn advise(
    files: &RunFiles,
    run: &files::RunFigures,
    history: &History,
) -> anyhow::Result<RunForecast> {
    let experiment = &files.experiment;
    let plans = &mut experiment.strategies.iter();
    let strategy = plans.find(|plan| plan.label == run.label);
    let strategy = strategy.context("manifest.json has no strategy of this name")?;
    let plan = RunPlan::new(experiment, strategy);
    files.check_sites(run, history)?;
    let middle_s = (run.measured.start_s + run.measured.end_s) / 2.0;
    let until = Time((middle_s * 1e9) as u64);
    let profile = replay::profile(&plan, history, until, KEYS_MAX)?;
    let whose = match run.strategy.as_str() {
        "fixed" => Some(HolderPlan::AsNow),
        name => HolderPlan::of_strategy(name),
    };
    let conditions = conditions(&plan, &files.backend);
    Ok(RunForecast {
        label: run.label.clone(),
        strategy: run.strategy.clone(),
        plan: whose,
        leader: ReplicaId(experiment.leader_index() as u8),
        measured: run.means(),
        operations: profile.operations(),
        forecasts: forecasts(&conditions, &profile, whose),
    })
}

fn forecasts(
    conditions: &Conditions,
    profile: &Profile,
    measured: Option<HolderPlan>,
) -> Vec<Forecast> {
    let more = measured.filter(|plan| *plan == HolderPlan::AsNow);
    let plans: Vec<HolderPlan> = HolderPlan::STRATEGIES.into_iter().chain(more).collect();
    advice::forecasts(conditions, profile, &plans)
}

fn conditions(plan: &RunPlan<'_>, backend: &str) -> Conditions {
    let topology = plan.topology();
    Conditions {
        rtts: RoundTrips::new(topology.len(), |a, b| topology.rtt_ms(a, b)),
        replies: match plan.accept_replies() {
            AcceptRepliesName::Leader => Replies::LeaderOnly,
            _ => Replies::LeaderAndOrigin,
        },
        client_ms: topology.local_rtt_ms(),
        sync_ms: match backend {
            "sim" => backend::sim::SYNC_NS as f64 / 1e6,
            _ => 0.0,
        },
        unlisted: plan.experiment.lease.unlisted.unwrap_or_default().into(),
        preference: leasehold_leases::strategy::Preference {
            read_weight: 0.5,
            spare: 0,
        },
    }
}
