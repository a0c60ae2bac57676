//! `leasehold exp advise`.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use leasehold_geo_deploy::advice::{ForecastReport, RunForecast, of_directory};
use leasehold_leases::ReplicaId;
use leasehold_leases::advice::{Forecast, best};
use serde_json::json;

use crate::advice::{AdviceContext, shortlist};
use crate::terminal::say;

const ABOUT: &str = "\
The demand is counted from what clients asked, up to the middle of the measured interval, and \
learned as a leader would. Each strategy that was run is forecast from its own run's demand, and \
compared with what was measured. The others are forecast from the demand of the first run: as if \
clients would ask the same. In a closed loop that is only about so, for clients that wait less ask \
more.";

#[derive(Args)]
#[command(after_help = ABOUT)]
pub struct ExpAdviseArgs {
    /// The --out of `exp run`: manifest.json, summary.json and history-*.bin
    dir: PathBuf,
    /// Shows only forecasts under this leader
    #[arg(long, value_name = "SITE")]
    leader: Option<String>,
    /// Shows what clients of each site would see: of the best of every strategy
    #[arg(long)]
    sites: bool,
    /// Prints everything as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &ExpAdviseArgs) -> anyhow::Result<()> {
    let finished = of_directory(&args.dir)?;
    let names = finished.experiment.topology.names();
    let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
    let first = finished.runs.first();
    let first = first.context("summary.json has no runs")?;
    let context = AdviceContext {
        names: &names,
        now: None,
        stall_s: stall_s(&finished),
    };
    let leader = args.leader.as_deref().map(|name| {
        let found = names.iter().position(|known| known == name);
        found.with_context(|| {
            format!(
                "--leader: there is no site '{name}'; there are {}",
                names.join(", ")
            )
        })
    });
    let leader = leader.transpose()?.map(|index| ReplicaId(index as u8));
    let requested = |one: &&Forecast| leader.is_none_or(|leader| one.leader == leader);
    let forecasts: Vec<&Forecast> = first.forecasts.iter().filter(requested).collect();
    if args.json {
        let runs = finished.runs.iter().map(|run| run_json(&context, run));
        let all = json!({
            "runs": runs.collect::<Vec<_>>(),
            "forecasts": forecasts.iter().map(|one| context.json(one)).collect::<Vec<_>>(),
        });
        say!("{all:#}");
        return Ok(());
    }
    compare(&finished);
    show(first, &forecasts, &context, args.sites);
    Ok(())
}

/// Returns the longest time, in seconds, for which a write waits if a holder has failed.
fn stall_s(finished: &ForecastReport) -> f64 {
    let lease = &finished.experiment.lease;
    (lease.grace_ms + lease.t_guard_ms + lease.t_lease_ms) as f64 / 1e3
}

fn compare(finished: &ForecastReport) {
    say!(
        "Forecast and measured, led by {}:",
        finished.experiment.leader
    );
    say!(
        "  {:12} {:>9} {:>9} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "run",
        "mean ms",
        "measured",
        "error",
        "read ms",
        "measured",
        "write ms",
        "measured",
        "local",
        "measured"
    );
    for run in &finished.runs {
        let Some(own) = run.own() else {
            say!(
                "  {:12} has several strategies, and is not forecast",
                run.label
            );
            continue;
        };
        let measured = &run.measured;
        say!(
            "  {:12} {:>9.1} {:>9.1} {:>+6.1}% {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>8.1}% {:>8.1}%",
            run.label,
            own.mean_ms,
            measured.mean_ms,
            run.error().unwrap_or(0.0) * 100.0,
            own.read_ms,
            measured.read_ms,
            own.write_ms,
            measured.write_ms,
            own.local * 100.0,
            measured.local * 100.0
        );
    }
}

fn show(first: &RunForecast, forecasts: &[&Forecast], context: &AdviceContext<'_>, sites: bool) {
    say!(
        "\nEvery strategy and leader, with the demand of {} ({:.0} operations):",
        first.label,
        first.operations
    );
    context.table(forecasts);
    let owned: Vec<Forecast> = forecasts.iter().map(|one| (*one).clone()).collect();
    if sites {
        for forecast in shortlist(&owned, |_| false) {
            say!("");
            context.sites(forecast);
        }
    }
    if let Some(best) = best(&owned) {
        say!(
            "\nBest: {} led by {}, {:.1} ms.",
            best.plan.name(),
            context.name(best.leader),
            best.mean_ms
        );
    }
}

fn run_json(context: &AdviceContext<'_>, run: &RunForecast) -> serde_json::Value {
    json!({
        "label": run.label,
        "strategy": run.strategy,
        "leader": context.name(run.leader),
        "operations_counted": run.operations,
        "measured": {
            "mean_ms": run.measured.mean_ms,
            "read_ms": run.measured.read_ms,
            "write_ms": run.measured.write_ms,
            "local_fraction": run.measured.local,
            "min_latency_fraction": run.measured.at_minimum,
        },
        "forecast": run.own().map(|own| context.json(own)),
        "error": run.error(),
    })
}
