//! Replicas crash, alone and all at once, and start from their disks; others are
//! cut off, in one direction or both; over a bad network and under every strategy. `LEASEHOLD_CRASH_SEEDS` says how many seeds
//! (default 100), `LEASEHOLD_SEED_FROM` where to start, `LEASEHOLD_SECONDS` how
//! much virtual time each takes.

mod common;

use common::{draw, each, number};
use server::sim::contended::{Crashes, Outcomes, run_crashing};

fn one(seed: u64, run_ns: u64) -> Outcomes {
    let (world, contention) = draw(seed, run_ns);
    // Swarm: some seeds crash often and briefly, some seldom and for long.
    let plan = Crashes {
        every_ns: [1_500_000_000, 4_000_000_000, 12_000_000_000][(seed / 6 % 3) as usize],
        down_ns: [50_000_000, 1_000_000_000, 8_000_000_000][(seed / 18 % 3) as usize],
        all: 0.2,
        cuts: [0.0, 0.5][(seed / 54 % 2) as usize],
    };
    run_crashing(world, contention, Some(plan), seed)
}

#[test]
fn no_crash_violates_safety_or_loses_what_was_acknowledged() {
    let from = number("LEASEHOLD_SEED_FROM", 0);
    let seeds = number("LEASEHOLD_CRASH_SEEDS", 100);
    let run_ns = number("LEASEHOLD_SECONDS", 30) * 1_000_000_000;
    let results = each(from..from + seeds, |seed| {
        let outcomes = one(seed, run_ns);
        let verdict = &outcomes.verdict;
        assert!(verdict.is_linearizable(), "seed {seed}: {verdict:?}");
        let stuck = outcomes.stuck;
        assert_eq!(stuck, 0, "seed {seed}: {stuck} requests are stuck");
        outcomes
    });
    let crashes: u64 = results.iter().map(|outcomes| outcomes.crashes).sum();
    let answered: u64 = results.iter().map(|outcomes| outcomes.answered).sum();
    println!("{seeds} seeds from {from}: {crashes} crashes, {answered} operations");
    assert!(
        crashes > seeds,
        "too few crashes to mean anything: {crashes}"
    );
    assert!(
        answered > seeds * 100,
        "hardly anything was answered: {answered}"
    );
}
