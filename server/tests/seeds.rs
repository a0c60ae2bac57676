//! Simulated seeds: a contended workload over a bad network, under every
//! strategy. `LEASEHOLD_SEEDS` says how many (default 300), `LEASEHOLD_SEED_FROM`
//! where to start, `LEASEHOLD_SECONDS` how much virtual time each takes.

mod common;

use common::{draw, each, number};
use server::sim::contended::{Outcomes, run};

fn one(seed: u64, run_ns: u64) -> Outcomes {
    let (world, contention) = draw(seed, run_ns);
    run(world, contention, seed)
}

#[test]
fn no_seed_violates_safety_or_gets_stuck() {
    let from = number("LEASEHOLD_SEED_FROM", 0);
    let seeds = number("LEASEHOLD_SEEDS", 300);
    let run_ns = number("LEASEHOLD_SECONDS", 30) * 1_000_000_000;
    let (mut paths, mut answered) = (std::collections::BTreeMap::new(), 0);
    let results = each(from..from + seeds, |seed| {
        let outcomes = one(seed, run_ns);
        let verdict = &outcomes.verdict;
        assert!(verdict.is_linearizable(), "seed {seed}: {verdict:?}");
        let stuck = outcomes.stuck;
        assert_eq!(stuck, 0, "seed {seed}: {stuck} requests are stuck");
        outcomes
    });
    for outcomes in &results {
        answered += outcomes.answered;
        for (path, count) in &outcomes.paths {
            *paths.entry(*path).or_insert(0) += count;
        }
        for (oracle, checks) in outcomes.checks.clone() {
            *paths.entry(oracle).or_insert(0) += checks;
        }
    }
    println!("{seeds} seeds from {from}, {answered} operations: {paths:?}");
    for served in [
        "LOCAL",
        "HELD",
        "FORWARDED",
        "READ_INDEX",
        "LOG",
        "agreement",
        "containment",
        "freshness",
    ] {
        assert!(
            paths.get(served).copied().unwrap_or(0) > 0,
            "nothing was {served}"
        );
    }
}

#[test]
fn a_seed_is_a_run() {
    for seed in 0..6 {
        assert_eq!(
            one(seed, 5_000_000_000).trace,
            one(seed, 5_000_000_000).trace
        );
    }
}
