//! Simulated seeds: contended clients over a world in which everything goes
//! wrong that may, under every strategy. `LEASEHOLD_SEEDS` says how many (default
//! 2,000), `LEASEHOLD_SEED_FROM` where to start, `LEASEHOLD_SECONDS` how much
//! virtual time each takes (default 60).

#![allow(clippy::print_stdout)] // output of a report

mod common;

use common::{each, number};
use leasehold_kernel::campaign::Sums as _;
use leasehold_kernel::trace::Trace;
use leasehold_sim::run::run;
use leasehold_sim::scenario::{Choices, Scenario};
use leasehold_sim::tally::CampaignTally;

/// The last lines of the trace of a seed that fails.
const LINES: usize = 300;

#[test]
fn no_seed_violates_safety_or_gets_stuck() {
    let from = number("LEASEHOLD_SEED_FROM", 0);
    let seeds = number("LEASEHOLD_SEEDS", 2000);
    let choices = Choices {
        run_ns: number("LEASEHOLD_SECONDS", 60) * 1_000_000_000,
        ..Choices::default()
    };
    let mut all = CampaignTally::default();
    for tally in each(from..from + seeds, |seed| tally(seed, &choices)) {
        all.merge(&tally);
    }
    let hours = all.cluster_hours();
    println!("{seeds} seeds from {from}, {hours:.1} cluster-hours: {all:#?}");
    // A few seeds cannot meet everything.
    if hours >= 5.0 {
        assert_eq!(all.missing(&choices), Vec::<String>::new());
    }
}

/// A run without a violation, or else its trace and a panic.
fn tally(seed: u64, choices: &Choices) -> CampaignTally {
    let scenario = Scenario::draw(seed, choices);
    let outcome = run(&scenario, None);
    if let Some(violation) = &outcome.violation {
        let again = run(&scenario, Some(Trace::keeping(LINES)));
        let lines = again.trace.iter().flat_map(Trace::lines);
        lines.for_each(|line| println!("{line}"));
        panic!("seed {seed}: {}: {}", violation.oracle, violation.what);
    }
    CampaignTally::of(&scenario, &outcome)
}

/// A replica that is thousands of slots behind when all is healed, and reads of a disk that bring
/// few at a time: what is asked there waits for longer than leases and elections take.
#[test]
fn who_is_far_behind_has_the_time_to_catch_up() {
    tally(13_007_956, &Choices::default());
}

/// Each node hashes by a secret of its own, so entries of maps have another order in each.
#[test]
fn a_seed_is_a_run_by_whatever_secret_keys_are_hashed() {
    let choices = Choices {
        run_ns: 20_000_000_000,
        ..Choices::default()
    };
    let all_by = |secret| {
        let mut all = CampaignTally::default();
        let one = |seed| {
            leasehold_leases::hashing::seed_thread(secret);
            tally(seed, &choices)
        };
        each(0..48, one).iter().for_each(|tally| all.merge(tally));
        all
    };
    assert_eq!(all_by([1, 2]), all_by([3, 4]));
}

#[test]
fn a_seed_is_a_run() {
    let choices = Choices {
        run_ns: 10_000_000_000,
        ..Choices::default()
    };
    for seed in 0..24 {
        assert_eq!(tally(seed, &choices), tally(seed, &choices));
    }
}
