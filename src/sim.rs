//! `leasehold sim`, which runs simulated seeds: thousands of them, or a single one.
//!
//! The simulator itself has no side effects. This module contains everything that has: threads
//! (`campaign`), files (`store`, `summary`), the terminal, and Ctrl-C.

mod campaign;
mod choices;
mod exclusive;
mod progress;
mod seed;
mod self_test;
mod single;
mod store;
mod summary;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::{Args, ValueEnum};
use leasehold_sim::self_test::ClockSelfTest;

use self::campaign::{CampaignEnd, CampaignProgress, Goal};
use self::choices::ChoiceArgs;
use self::progress::{CampaignClock, ProgressDisplay};
use self::seed::SeedFailure;
use self::store::CampaignStore;
use self::summary::CampaignSummary;
use crate::terminal::{Interrupted, say};

/// Number of seeds of a campaign without --seeds or --hours.
const SEEDS: u64 = 2000;
/// Size of a small campaign, in cluster-hours. In a campaign below this size, some faults and
/// checks may never occur.
const TINY: f64 = 20.0;
/// Interval at which the state of the campaign is saved.
const SAVE_EVERY: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  leasehold sim                                        2000 seeds of 60 virtual seconds
  leasehold sim --hours 500 --out campaign             go on with it: the same command again
  leasehold sim --seeds 500 --strategy quorum --replicas 5
  leasehold sim --seed 17 --trace --lines 300          the end of one run, line by line
  leasehold sim --seeds 1000 --twice                   is a seed a run, to the last event?
  leasehold sim --control drift                        clocks too fast must be noticed
  leasehold sim --exclusive --seeds 10000              groups with exclusive leases

A violation ends a campaign with exit status 1 and the line that repeats it. So does a
fault that never fired, an oracle that checked nothing, or no read within 10 ms of a lease's
end, in a campaign of at least 20 cluster-hours. A cluster-hour is an hour of virtual time of
a whole cluster.";

#[derive(Args)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub struct SimArgs {
    /// Seeds to run [default: 2000; 300 for a control]
    #[arg(long, value_name = "N", conflicts_with = "hours", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// Cluster-hours of virtual time to run, instead of a number of seeds
    #[arg(long, value_name = "H", value_parser = choices::hours)]
    hours: Option<f64>,
    /// The first seed
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=u64::MAX / 2))]
    from: u64,
    #[command(flatten)]
    choices: ChoiceArgs,
    /// Runs every seed twice and compares: a difference is a failure
    #[arg(long)]
    twice: bool,
    /// Keeps the campaign's state and its summary in DIR; goes on from there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Seeds at the same time [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Fails if a fault or a check never occurred, even if the campaign is shorter than 20
    /// cluster-hours (longer campaigns always fail for this)
    #[arg(long)]
    strict: bool,
    /// Breaks an assumption about clocks, and looks for the violation that must follow
    #[arg(long, value_enum, conflicts_with_all = ["hours", "out", "twice", "strict"])]
    control: Option<SimSelfTestArg>,
    /// Simulates groups with exclusive leases instead of clusters: one owner of each resource
    #[arg(long, conflicts_with_all = [
        "seconds", "rate", "strategies", "replicas", "drift_ppm", "no_faults", "twice", "out",
        "strict", "control",
    ])]
    exclusive: bool,
    /// Clocks on which the groups rely
    #[arg(long, value_enum, requires = "exclusive", default_value = "bounded")]
    clocks: exclusive::ClocksArg,
    /// Runs one seed and says what came of it
    #[arg(long, value_name = "S", conflicts_with_all = ["seeds", "hours", "from", "out", "twice", "threads", "strict"])]
    seed: Option<u64>,
    /// Prints the run, a line for each thing that happened
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Prints only the last N lines of it
    #[arg(long, value_name = "N", requires = "trace", value_parser = clap::value_parser!(u32).range(1..))]
    lines: Option<u32>,
}

/// An assumption to break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SimSelfTestArg {
    /// Clocks drift ten times as far as leases count with: clients must be served a stale read
    Drift,
    /// Clocks jump ahead by seconds: the oracle of containment must notice
    Jump,
}

impl From<SimSelfTestArg> for ClockSelfTest {
    fn from(control: SimSelfTestArg) -> ClockSelfTest {
        match control {
            SimSelfTestArg::Drift => ClockSelfTest::Drift,
            SimSelfTestArg::Jump => ClockSelfTest::Jump,
        }
    }
}

pub fn run(args: &SimArgs) -> anyhow::Result<()> {
    seed::keep_assertions_quiet();
    let resolved = args.choices.resolve(args.control.map(ClockSelfTest::from));
    if args.trace && args.seed.is_none() {
        bail!(
            "--trace prints one run: name it, as in --seed {} --trace",
            args.from
        );
    }
    if args.exclusive {
        return exclusive::run(args);
    }
    if let Some(seed) = args.seed {
        let lines = args.lines.map_or(0, |lines| lines as usize);
        return single::run(seed, &resolved, args.trace.then_some(lines));
    }
    if args.control.is_some() {
        return self_test::run(&resolved, args.from, args.seeds, threads(args));
    }
    campaign(args, &resolved)
}

fn threads(args: &SimArgs) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    args.threads.map_or_else(cores, usize::from)
}

fn goal(args: &SimArgs) -> Goal {
    match args.hours {
        Some(hours) => Goal::Hours(hours),
        None => Goal::Seeds(args.from + args.seeds.unwrap_or(SEEDS)),
    }
}

fn campaign(args: &SimArgs, resolved: &choices::ResolvedChoices) -> anyhow::Result<()> {
    let mut store = CampaignStore::open(args.out.as_deref(), resolved, args.from, args.twice)?;
    let seconds = |ms: u64| ms as f64 / 1000.0;
    let clock = CampaignClock::begin(seconds(store.state.cpu_ms), seconds(store.state.wall_ms));
    let mut progress =
        CampaignProgress::new(goal(args), store.state.next, store.state.sums.clone());
    let mut display = ProgressDisplay::begin(&progress);
    let mut saved = Instant::now();
    let worker = {
        let (choices, twice) = (resolved.choices(), args.twice);
        move |seed| seed::seed(seed, &choices, twice)
    };
    let ended = campaign::drive(&mut progress, threads(args), worker, |progress| {
        display.update(progress, &clock);
        if saved.elapsed() >= SAVE_EVERY {
            saved = Instant::now();
            store.save(progress, &clock)?;
        }
        Ok(())
    });
    display.end();
    let saved = store.save(&progress, &clock);
    let failures = progress.failures();
    let summary = CampaignSummary::new(resolved, &progress, &clock, args.from, args.twice);
    let written = store.write_summary(&summary);
    // The summary is printed even if files cannot be written.
    say!("{}", summary.text());
    report_failures(&failures, resolved, &store)?;
    let ended = ended.and_then(|ended| saved.and(written).map(|()| ended))?;
    verdict(args, &progress, ended, &summary.missing)
}

/// Prints, for each failed seed, the command that runs the seed again. Also stores the end of the
/// seed's trace.
fn report_failures(
    failures: &[&SeedFailure],
    resolved: &choices::ResolvedChoices,
    store: &CampaignStore,
) -> anyhow::Result<()> {
    for failure in failures {
        say!(
            "seed {}: {}: {}",
            failure.seed,
            failure.oracle,
            failure.what
        );
        say!(
            "  to repeat it: {}",
            single::command(failure.seed, resolved)
        );
        if let Some(path) = store.write_violation(failure, resolved)? {
            say!("  the end of its trace: {}", path.display());
        }
    }
    match failures.first() {
        Some(SeedFailure { seed, oracle, .. }) => bail!("seed {seed} violates {oracle}"),
        None => Ok(()),
    }
}

/// Judges a campaign in which no violation was found.
///
/// # Errors
/// Returns an error if the campaign was interrupted, or if a fault or check that should occur in it
/// never occurred. In a campaign of less than `TINY` cluster-hours, a missing fault or check is an
/// error only if `--strict` is given.
fn verdict(
    args: &SimArgs,
    progress: &CampaignProgress,
    ended: CampaignEnd,
    missing: &[String],
) -> anyhow::Result<()> {
    if ended == CampaignEnd::Interrupted {
        let again = match args.out {
            Some(_) => "the same command goes on from there",
            None => "with --out DIR it could be gone on with",
        };
        let words = format!("interrupted before seed {}; {again}", progress.next());
        return Err(Interrupted(words).into());
    }
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join("; ");
    if progress.sums().cluster_hours() < TINY && !args.strict {
        say!("Too short to meet everything, and no failure for that: {missing}.");
        return Ok(());
    }
    bail!("the campaign proves less than it should: {missing}")
}
