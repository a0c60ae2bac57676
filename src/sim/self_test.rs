//! `leasehold sim --control`. This self-test breaks an assumption, and searches for the violation
//! that must follow. The command succeeds if it finds the violation.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, bail};
use leasehold_sim::scenario::Choices;
use leasehold_sim::tally::CampaignTally;

use super::campaign::{self, CampaignEnd, CampaignProgress, Goal};
use super::choices::ResolvedChoices;
use super::progress::{CampaignClock, ProgressDisplay};
use super::seed::{self, SeedFailure};
use super::single;
use crate::terminal::{Interrupted, say};

/// Number of seeds that are tried if `--seeds` is not given.
const SEEDS: u64 = 300;

pub fn run(
    resolved: &ResolvedChoices,
    from: u64,
    seeds: Option<u64>,
    threads: usize,
) -> anyhow::Result<()> {
    let control = resolved.control.context("a control is asked for")?;
    let (name, judges) = (control.name(), control.expected_oracles());
    let goal = Goal::Seeds(from + seeds.unwrap_or(SEEDS));
    let mut progress = CampaignProgress::new(goal, from, CampaignTally::default());
    let others = OtherViolations::default();
    let worker = worker(resolved.choices(), judges, others.clone());
    let clock = CampaignClock::begin(0.0, 0.0);
    let mut display = ProgressDisplay::begin(&progress);
    let ended = campaign::drive(&mut progress, threads, worker, |progress| {
        display.update(progress, &clock);
        Ok(())
    })?;
    display.end();
    let tried = progress.next() - from;
    for (oracle, count) in others.lock().expect("no holder panicked").iter() {
        say!("{count} seeds were ended by {oracle}, which is not what is looked for");
    }
    if let Some(found) = progress.failures().first() {
        say!("seed {}: {}: {}", found.seed, found.oracle, found.what);
        say!("  to repeat it: {}", single::command(found.seed, resolved));
        say!("The control works: {name} was noticed, as it must be, after {tried} seeds without.");
        return Ok(());
    }
    if ended == CampaignEnd::Interrupted {
        return Err(Interrupted(format!("interrupted after {tried} seeds")).into());
    }
    bail!(
        "the control fails: {} noticed nothing in {tried} seeds",
        judges.join(" and ")
    )
}

/// Violations that do not count for the control. The map contains, for each oracle, the number of
/// seeds in which this oracle detected such a violation.
type OtherViolations = Arc<Mutex<BTreeMap<String, u64>>>;

/// Returns a function that runs a seed. The seed fails if an oracle in the list `judges` detects a
/// violation. If another oracle detects the violation, it is only counted in `others`.
fn worker(
    choices: Choices,
    judges: &'static [&'static str],
    others: OtherViolations,
) -> impl Fn(u64) -> Result<CampaignTally, SeedFailure> + Send + Sync {
    move |seed| match seed::seed(seed, &choices, false) {
        Err(failure) if !judges.contains(&failure.oracle.as_str()) => {
            let mut others = others.lock().expect("no holder panics");
            *others.entry(failure.oracle).or_insert(0) += 1;
            Ok(CampaignTally::default())
        }
        outcome => outcome,
    }
}
