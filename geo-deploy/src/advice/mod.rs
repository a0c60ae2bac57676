//! Forecasts for every strategy under every leader. They are computed from the files of a finished
//! run, and shown next to the measured figures.
//!
//! The demand is taken from the clients' histories, up to the middle of the measured interval.
//! Requests are counted and reported in the same way as in a cluster. So a forecast is the same as
//! the one that `lease advise` would have made in the middle of the measured interval. The forecast
//! for a strategy that was run uses the demand of its own run. The forecast for any other strategy
//! uses the demand of the first run of the file, on the assumption that clients would send the same
//! requests.

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

/// Maximum number of keys in the profile of a history. Usually a history has fewer keys, so all its
/// keys are included.
const KEYS_MAX: usize = 1 << 18;

/// One run, and the forecasts that follow from its demand.
#[derive(Clone, Debug)]
pub struct RunForecast {
    /// Label of the run.
    pub label: String,
    /// Strategy of the run.
    pub strategy: String,
    /// Plan that determined the lease holders in the run; `None` if the run has several strategies.
    pub plan: Option<HolderPlan>,
    /// Replica that led during the run.
    pub leader: ReplicaId,
    /// Mean latencies and shares that were measured in the run.
    pub measured: Means,
    /// Number of operations from which the demand was computed.
    pub operations: f64,
    /// Forecasts for every combination of a strategy and a leader. They are based on the demand of
    /// this run.
    pub forecasts: Vec<Forecast>,
}

impl RunForecast {
    /// Returns the forecast for the run's own plan and leader.
    pub fn own(&self) -> Option<&Forecast> {
        let mut all = self.forecasts.iter();
        all.find(|one| Some(one.plan) == self.plan && one.leader == self.leader)
    }

    /// Returns the relative error of the mean latency in the forecast: positive if the forecast is
    /// too high, and negative if it is too low.
    pub fn error(&self) -> Option<f64> {
        let own = self.own()?;
        Some(own.mean_ms / self.measured.mean_ms - 1.0)
    }
}

/// Experiment of a finished run, and forecasts for every strategy that was run.
#[derive(Clone, Debug)]
pub struct ForecastReport {
    /// The experiment that was run.
    pub experiment: Experiment,
    /// Forecasts for the runs of the strategies, in the report's order.
    pub runs: Vec<RunForecast>,
}

/// Reads the files of a run in `dir`, and makes its forecasts.
///
/// # Errors
/// Returns an error if a file is missing, is damaged or contradicts another file. Also returns an
/// error if no forecast is possible: the strategies were run several times, or some keys were never
/// requested.
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
