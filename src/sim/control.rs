//! `leasehold sim --control`: breaks an assumption and looks for the violation that must
//! follow. Success is to find it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, bail};
use leasehold_sim::scenario::Choices;
use leasehold_sim::tally::Tally;

use super::campaign::{self, Course, Ended, Goal};
use super::choices::Asked;
use super::examine::{self, Failure};
use super::meter::{Meter, Show};
use super::single;
use crate::terminal::{Interrupted, say};

/// Seeds that are tried without --seeds.
const SEEDS: u64 = 300;

pub fn run(asked: &Asked, from: u64, seeds: Option<u64>, threads: usize) -> anyhow::Result<()> {
    let control = asked.control.context("a control is asked for")?;
    let (name, judges) = (control.name(), control.judges());
    let goal = Goal::Seeds(from + seeds.unwrap_or(SEEDS));
    let mut course = Course::new(goal, from, Tally::default());
    let others = Others::default();
    let worker = worker(asked.choices(), judges, others.clone());
    let meter = Meter::begin(0.0, 0.0);
    let mut show = Show::begin(&course);
    let ended = campaign::drive(&mut course, threads, worker, |course| {
        show.update(course, &meter);
        Ok(())
    })?;
    show.end();
    let tried = course.next() - from;
    for (oracle, count) in others.lock().expect("no holder panicked").iter() {
        say!("{count} seeds were ended by {oracle}, which is not what is looked for");
    }
    if let Some(found) = course.failures().first() {
        say!("seed {}: {}: {}", found.seed, found.oracle, found.what);
        say!("  to repeat it: {}", single::command(found.seed, asked));
        say!("The control works: {name} was noticed, as it must be, after {tried} seeds without.");
        return Ok(());
    }
    if ended == Ended::Interrupted {
        return Err(Interrupted(format!("interrupted after {tried} seeds")).into());
    }
    bail!(
        "the control fails: {} noticed nothing in {tried} seeds",
        judges.join(" and ")
    )
}

/// Number of seeds that each oracle ended, for oracles that are not judges of the control.
type Others = Arc<Mutex<BTreeMap<String, u64>>>;

/// Examines a seed; only what the judges notice counts as found.
fn worker(
    choices: Choices,
    judges: &'static [&'static str],
    others: Others,
) -> impl Fn(u64) -> Result<Tally, Failure> + Send + Sync {
    move |seed| match examine::seed(seed, &choices, false) {
        Err(failure) if !judges.contains(&failure.oracle.as_str()) => {
            let mut others = others.lock().expect("no holder panics");
            *others.entry(failure.oracle).or_insert(0) += 1;
            Ok(Tally::default())
        }
        came => came,
    }
}
