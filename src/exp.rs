//! `leasehold exp` and `leasehold demo`.

mod advise;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use leasehold_geo_deploy::backend::local::LocalSettings;
use leasehold_geo_deploy::backend::{EndedRuns, ProgressFn, RunResult, sim};
use leasehold_geo_deploy::experiment::{self, Experiment};
use leasehold_geo_deploy::report::{ExperimentReport, INCOMPLETE, Manifest, prepare, replace};
use leasehold_geo_deploy::run::{HistoryVerdict, in_order};
use leasehold_geo_deploy::throughput::{self, ThroughputExperiment};
use leasehold_histories::history::History;
use tokio::sync::Notify;

use crate::pictures::Pictures;
use crate::terminal::{Bars, Interrupted, interrupted, runtime, say};

#[derive(Subcommand)]
pub enum ExpCommand {
    /// Lists the experiments
    List,
    /// Runs an experiment, by its name or from a TOML file, and reports it
    Run(RunArgs),
    /// Prints an experiment as it would run, with every field that --set can change
    Show(ExpShowArgs),
    /// Forecasts every strategy under every leader for the requests of a finished run, beside the measured
    /// latencies
    Advise(advise::ExpAdviseArgs),
}

/// The world an experiment runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendArg {
    /// Virtual time: exact and repeatable, in seconds
    Sim,
    /// Replica processes on this machine, behind an emulated WAN
    Local,
}

#[derive(Args)]
pub struct ExpShowArgs {
    /// Its name (see `exp list`), or a TOML file
    experiment: String,
    /// Changes a field: requests, warmup (both of a client), rate (a second at each site: an
    /// open loop), seconds, warmup_s (instead of requests, warmup), seed, keys, reads (their
    /// share), clients (of a site), strategies, leader, topology (a file), or any other by its
    /// dotted name
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

const EXAMPLES: &str = "\
Examples:
  leasehold exp run fig6
  leasehold exp run fig6 --set reads=0.9 --set strategies=leader,quorum --out /tmp/reads
  leasehold exp run fig6 --set rate=200 --set warmup_s=60 --set seconds=120
  leasehold exp run demo --on local --set requests=100 --set warmup=50
  leasehold exp show fig6 > mine.toml         every field; edit it, and then:
  leasehold exp run mine.toml --set seed=2";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    #[command(flatten)]
    what: ExpShowArgs,
    /// The world to run it in
    #[arg(long, value_enum, default_value = "sim")]
    on: BackendArg,
    /// Where the report goes [default: results/EXPERIMENT]. It replaces the one before when it is
    /// complete. What had ended before a Ctrl-C goes to DIR/incomplete
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Keeps the replicas' logs and configuration in DIR (local only) [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Replicas prove nothing and encrypt nothing (local only): to compare. Otherwise they and their clients
    /// use certificates
    #[arg(long)]
    insecure: bool,
    #[command(flatten)]
    pictures: Pictures,
}

#[derive(Args)]
pub struct DemoArgs {
    /// Changes a field, as `exp run` does (`leasehold exp show demo` prints them all)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Where the report goes
    #[arg(long, value_name = "DIR", default_value = "results/demo")]
    out: PathBuf,
    #[command(flatten)]
    pictures: Pictures,
}

pub fn run(command: &ExpCommand) -> anyhow::Result<()> {
    match command {
        ExpCommand::List => {
            let mut all = [experiment::list(), throughput::list()].concat();
            all.sort();
            for (name, description) in all {
                say!("{name:12} {description}");
            }
            Ok(())
        }
        ExpCommand::Show(what) => {
            if let Some(found) = ThroughputExperiment::find(&what.experiment, &what.sets) {
                say!("{}", found?.to_toml().trim_end());
                return Ok(());
            }
            say!("{}", find(what)?.shown().trim_end());
            Ok(())
        }
        ExpCommand::Advise(args) => advise::run(args),
        ExpCommand::Run(args) => {
            if let Some(found) = ThroughputExperiment::find(&args.what.experiment, &args.what.sets)
            {
                return run_throughput(&found?, args);
            }
            let experiment = find(&args.what)?;
            let out = args.out.clone();
            let out = out.unwrap_or_else(|| PathBuf::from("results").join(&experiment.name));
            let local = LocalRunOptions {
                work: args.work.as_deref(),
                insecure: args.insecure,
            };
            let to = ReportTarget {
                out: &out,
                pictures: args.pictures,
            };
            run_and_report(&experiment, args.on, to, &local)
        }
    }
}

pub fn demo(args: &DemoArgs) -> anyhow::Result<()> {
    let experiment = Experiment::find("demo")?.with(&args.sets)?;
    let to = ReportTarget {
        out: &args.out,
        pictures: args.pictures,
    };
    run_and_report(
        &experiment,
        BackendArg::Local,
        to,
        &LocalRunOptions::default(),
    )
}

fn run_throughput(experiment: &ThroughputExperiment, args: &RunArgs) -> anyhow::Result<()> {
    if args.on == BackendArg::Sim {
        anyhow::bail!(
            "{} measures processor time, and in virtual time nothing takes any: run it with \
             --on local",
            experiment.name
        );
    }
    let out = crate::throughput::out(experiment, args.out.as_ref());
    prepare(&out, &[])?;
    let to = ReportTarget {
        out: &out,
        pictures: args.pictures,
    };
    crate::throughput::run(experiment, to, args.work.as_deref(), args.insecure)
}

fn find(what: &ExpShowArgs) -> anyhow::Result<Experiment> {
    Ok(Experiment::find(&what.experiment)?.with(&what.sets)?)
}

/// Directory for a report, and the choice to write its plots also as PNG and PDF.
#[derive(Clone, Copy)]
pub struct ReportTarget<'a> {
    pub out: &'a Path,
    pub pictures: Pictures,
}

fn run_and_report(
    experiment: &Experiment,
    on: BackendArg,
    to: ReportTarget<'_>,
    local: &LocalRunOptions<'_>,
) -> anyhow::Result<()> {
    to.pictures.check()?;
    let out = to.out;
    prepare(out, &history_names(experiment))?;
    let manifest = Manifest::capture(std::env::args().collect());
    let bars = Bars::new();
    let show = |label: &str, done, total| bars.show(label, done, total);
    let mut ended = EndedRuns::default();
    let result = match on {
        BackendArg::Sim => run_sim(experiment, &show, &mut ended),
        BackendArg::Local => run_local(experiment, local, &show, &mut ended),
    };
    if ended.is_empty() {
        return result;
    }
    let incomplete = ended.shortfall(experiment);
    // The previous complete report is not replaced by a partial one.
    let dir = match &incomplete {
        None => out.to_owned(),
        Some(_) => out.join(INCOMPLETE),
    };
    let mut ran = ended.joined();
    let histories = histories(&mut ran);
    let report = ExperimentReport {
        incomplete,
        ..assemble(experiment, on, manifest, ran)
    };
    let digested = report.digested();
    let written = replace(&dir, |new| {
        digested.write(new)?;
        to.pictures.draw(&new.join("plots"))?;
        for (name, history) in &histories {
            history.save(&new.join(name))?;
        }
        Ok(())
    });
    say!("{}", digested.terminal());
    written?;
    say!("The report: {}", dir.join("report.html").display());
    result?;
    refuse_violations(&report)
}

/// Returns the names of the files in which the histories of the runs are stored.
fn history_names(experiment: &Experiment) -> Vec<String> {
    let labels = experiment.strategies.iter().map(|plan| &plan.label);
    let of = |label| (1..=experiment.runs as usize).map(move |run| (label, run));
    let names = labels.flat_map(of);
    names
        .map(|(label, run)| history_name(label, run, experiment.runs as usize))
        .collect()
}

fn history_name(label: &str, run: usize, runs: usize) -> String {
    match runs {
        1 => format!("history-{label}.bin"),
        _ => format!("history-{label}-{run}.bin"),
    }
}

/// Removes the histories from the results of all runs, and returns them with the names of their
/// files.
fn histories(ran: &mut [RunResult]) -> Vec<(String, History)> {
    let of = |ran: &mut RunResult| {
        let histories = std::mem::take(&mut ran.histories);
        let (label, runs) = (ran.run.label.clone(), histories.len());
        let named = move |(run, history)| (history_name(&label, run, runs), history);
        (1..).zip(histories).map(named).collect::<Vec<_>>()
    };
    ran.iter_mut().flat_map(of).collect()
}

fn refuse_violations(report: &ExperimentReport) -> anyhow::Result<()> {
    for run in &report.runs {
        if let HistoryVerdict::No(counterexample) = &run.linearizable {
            anyhow::bail!(
                "{}: the history is NOT linearizable: {counterexample}",
                run.label
            );
        }
    }
    Ok(())
}

/// Runs an experiment in virtual time, on other threads. On Ctrl-C, the experiment ends soon.
fn run_sim(
    experiment: &Experiment,
    show: ProgressFn<'_>,
    ended: &mut EndedRuns,
) -> anyhow::Result<()> {
    let (stop, over) = (AtomicBool::new(false), Notify::new());
    let runtime = runtime()?;
    let result = std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            let result = sim::run(experiment, show, &stop, ended);
            over.notify_one();
            result
        });
        runtime.block_on(async {
            tokio::select! {
                biased; // handles the signals before anything else
                () = interrupted() => stop.store(true, Ordering::Relaxed),
                () = over.notified() => {}
            }
        });
        run.join()
    });
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    if stop.into_inner() {
        Err(Interrupted("interrupted".to_owned()).into())
    } else {
        Ok(())
    }
}

/// Settings for runs with real processes.
#[derive(Default)]
struct LocalRunOptions<'a> {
    /// Directory for the logs and the configuration of the replicas. If it is `None`, a temporary
    /// directory is used.
    work: Option<&'a Path>,
    insecure: bool,
}

fn run_local(
    experiment: &Experiment,
    local: &LocalRunOptions<'_>,
    show: ProgressFn<'_>,
    ended: &mut EndedRuns,
) -> anyhow::Result<()> {
    let temporary = tempfile::tempdir().context("making a temporary directory")?;
    let dir = std::path::absolute(local.work.unwrap_or(temporary.path()))?;
    let settings = LocalSettings {
        program: std::env::current_exe().context("finding this program")?,
        cluster: format!("{}-{}", experiment.name, std::process::id()),
        dir,
        client_port: None,
        insecure: local.insecure,
    };
    // Dropping the run ends its replicas, so none remain after Ctrl-C.
    runtime()?.block_on(async {
        tokio::select! {
            biased; // a Ctrl-C is waited for before there is anything to leave behind
            () = interrupted() => {
                Err(Interrupted("interrupted; no replica is left running".to_owned()).into())
            }
            result = leasehold_geo_deploy::backend::local::run(experiment, &settings, show, ended) => result,
        }
    })
}

fn assemble(
    experiment: &Experiment,
    on: BackendArg,
    manifest: Manifest,
    ran: Vec<RunResult>,
) -> ExperimentReport {
    let backend = match on {
        BackendArg::Sim => "sim",
        BackendArg::Local => "local",
    };
    let mut events = Vec::new();
    let mut runs = Vec::new();
    for ran in ran {
        events.extend(ran.events);
        runs.push(ran.run);
    }
    ExperimentReport {
        experiment: experiment.clone(),
        topology: experiment.topology.clone(),
        backend: backend.to_string(),
        seed: experiment.seed,
        manifest,
        runs: in_order(runs),
        events,
        incomplete: None,
    }
}
