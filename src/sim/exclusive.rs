//! `leasehold sim --exclusive`, which simulates groups with exclusive leases.

use anyhow::bail;
use clap::ValueEnum;
use leasehold_kernel::campaign::Progress;
use leasehold_lock_sim::{GroupScenario, GroupWorld, RunSums, SimulatedClocks};

use super::campaign::{CampaignEnd, drive};
use super::progress::{CampaignClock, ProgressDisplay};
use super::seed::catch;
use super::single::LINES;
use super::{SEEDS, SimArgs, goal, threads};
use crate::terminal::{Interrupted, say};

/// Clocks on which simulated groups rely.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ClocksArg {
    /// The rates of all clocks are bounded
    Bounded,
    /// The clocks of all members are synchronised
    Synchronised,
}

impl From<ClocksArg> for SimulatedClocks {
    fn from(clocks: ClocksArg) -> SimulatedClocks {
        match clocks {
            ClocksArg::Bounded => SimulatedClocks::Bounded,
            ClocksArg::Synchronised => SimulatedClocks::Synchronised,
        }
    }
}

/// A seed that failed.
#[derive(Debug)]
struct GroupFailure {
    seed: u64,
    /// Oracle that noticed the failure, or `assertion` for a check of a member itself.
    oracle: &'static str,
    message: String,
}

/// Runs the seeds that the arguments name.
///
/// # Errors
/// Returns an error if a seed fails, if the user interrupts, or if something that should occur
/// never occurred in at least as many seeds as are run by default.
pub fn run(args: &SimArgs) -> anyhow::Result<()> {
    let clocks = args.clocks.into();
    if let Some(seed) = args.seed {
        let lines = args.lines.map_or(0, |lines| lines as usize);
        return single(seed, clocks, args.trace.then_some(lines));
    }
    let clock = CampaignClock::begin(0.0, 0.0);
    let mut progress = Progress::new(goal(args), args.from, RunSums::default());
    let mut display = ProgressDisplay::begin(&progress);
    let examine = move |seed| {
        let scenario = GroupScenario::draw(seed, clocks);
        examine(seed, &mut GroupWorld::new(scenario, 1))
    };
    let ended = drive(&mut progress, threads(args), examine, |progress| {
        display.update(progress, &clock);
        Ok(())
    });
    display.end();
    say!("{}", summary(progress.sums(), &clock));
    if let Some(failure) = progress.failures().first() {
        let GroupFailure {
            seed,
            oracle,
            message,
        } = failure;
        say!("seed {seed}: {oracle}: {message}");
        let clocks = args.clocks.to_possible_value();
        let clocks = clocks.as_ref().map_or("", |it| it.get_name());
        say!(
            "  to repeat it: leasehold sim --exclusive --clocks {clocks} --seed {seed} --trace --lines {LINES}"
        );
        bail!("seed {seed} violates {oracle}");
    }
    if ended? == CampaignEnd::Interrupted {
        let words = format!("interrupted before seed {}", progress.next());
        return Err(Interrupted(words).into());
    }
    verdict(progress.sums())
}

/// Runs a seed. A panic is reported as a failure.
fn examine(seed: u64, world: &mut GroupWorld) -> Result<RunSums, GroupFailure> {
    let (oracle, message) = match catch(|| world.run()) {
        Ok(Ok(sums)) => return Ok(sums),
        Ok(Err(violation)) => (violation.oracle, violation.message),
        Err(location) => ("assertion", format!("a member panicked at {location}")),
    };
    Err(GroupFailure {
        seed,
        oracle,
        message,
    })
}

/// Runs one seed, and prints its result. Before the result, prints the last `lines` lines of the
/// trace. If `lines` is 0, prints all lines; if `lines` is `None`, prints no line.
fn single(seed: u64, clocks: SimulatedClocks, lines: Option<usize>) -> anyhow::Result<()> {
    let clock = CampaignClock::begin(0.0, 0.0);
    let scenario = GroupScenario::draw(seed, clocks);
    let described = scenario.to_string();
    let mut world = GroupWorld::new(scenario, lines.unwrap_or(1));
    let result = examine(seed, &mut world);
    for line in world.trace().lines().filter(|_| lines.is_some()) {
        say!("{line}");
    }
    say!("{described}");
    match result {
        Ok(sums) => {
            say!("{}", summary(&sums, &clock));
            Ok(())
        }
        Err(failure) => {
            say!("{}: {}", failure.oracle, failure.message);
            bail!("seed {seed} violates {}", failure.oracle)
        }
    }
}

fn summary(sums: &RunSums, clock: &CampaignClock) -> String {
    let hours = sums.virtual_ns as f64 / 3.6e12;
    let mut text = format!(
        "{} seeds, {hours:.1} hours of virtual time, {:.1} s of processor time",
        sums.seeds,
        clock.cpu_s()
    );
    for (name, count) in sums.named() {
        text.push_str(&format!("\n{count:>12}  {name}"));
    }
    text
}

/// Judges a campaign in which no seed failed.
fn verdict(sums: &RunSums) -> anyhow::Result<()> {
    let named = sums.named().into_iter();
    // Members distrust clocks only in controls.
    let missing = named.filter(|(name, count)| *count == 0 && !name.contains("clocks"));
    let missing: Vec<_> = missing.map(|(name, _)| name).collect();
    if sums.seeds >= SEEDS && !missing.is_empty() {
        bail!(
            "the campaign proves less than it should: no {}",
            missing.join(", no ")
        );
    }
    Ok(())
}
