//! Simulated seeds: contended clients over a world in which everything goes
//! wrong that may, under every strategy. `LEASEHOLD_SEEDS` says how many (default
//! 2,000), `LEASEHOLD_SEED_FROM` where to start, `LEASEHOLD_SECONDS` how much
//! virtual time each takes (default 60).

mod common;

use common::{each, number};
use server::sim::fault::{Fault, Fired};
use server::sim::run::{Outcome, run};
use server::sim::scenario::{Choices, Scenario};
use server::sim::trace::Trace;

/// The last lines of the trace of a seed that fails.
const LINES: usize = 300;

fn one(seed: u64, choices: &Choices) -> Outcome {
    run(&Scenario::draw(seed, choices), None)
}

#[test]
fn no_seed_violates_safety_or_gets_stuck() {
    let from = number("LEASEHOLD_SEED_FROM", 0);
    let seeds = number("LEASEHOLD_SEEDS", 2000);
    let choices = Choices {
        run_ns: number("LEASEHOLD_SECONDS", 60) * 1_000_000_000,
        ..Choices::default()
    };
    let outcomes = each(from..from + seeds, |seed| one(seed, &choices));
    let (mut fired, mut answered, mut near_end, mut undecided) = (Fired::default(), 0, 0, 0);
    let (mut paths, mut checks) = (std::collections::BTreeMap::new(), paths());
    for outcome in &outcomes {
        if let Some(violation) = &outcome.violation {
            let (seed, oracle, what) = (outcome.seed, violation.oracle, &violation.what);
            let scenario = Scenario::draw(seed, &choices);
            let again = run(&scenario, Some(Trace::keeping(LINES)));
            let lines = again.trace.iter().flat_map(Trace::lines);
            lines.for_each(|line| println!("{line}"));
            panic!("seed {seed}: {oracle}: {what}");
        }
        fired.merge(&outcome.fired);
        answered += outcome.answered;
        near_end += outcome.near_end;
        undecided += u64::from(outcome.undecided);
        for (path, count) in &outcome.paths {
            *paths.entry(*path).or_insert(0) += count;
        }
        for (oracle, count) in &outcome.checks {
            *checks.entry(*oracle).or_insert(0) += count;
        }
    }
    println!("{seeds} seeds from {from}, {answered} operations: {paths:?}");
    println!("checks: {checks:?}; reads near a lease's end: {near_end}; undecided: {undecided}");
    for fault in Fault::ALL {
        println!("{:>10} {}", fired.of(fault), fault.name());
    }
    for path in ["LOCAL", "HELD", "FORWARDED", "READ_INDEX", "LOG"] {
        assert!(paths.contains_key(path), "nothing was served as {path}");
    }
    for (oracle, count) in checks {
        assert!(count > 0, "the oracle {oracle} has checked nothing");
    }
}

fn paths() -> std::collections::BTreeMap<&'static str, u64> {
    std::collections::BTreeMap::new()
}

#[test]
fn a_seed_is_a_run() {
    let choices = Choices {
        run_ns: 10_000_000_000,
        ..Choices::default()
    };
    for seed in 0..24 {
        assert_eq!(one(seed, &choices).hash, one(seed, &choices).hash);
    }
}
