//! Simulated runs, one for each seed: contending clients in worlds with every kind of fault, under
//! every strategy. `LEASEHOLD_SEEDS` is the number of seeds (default 2,000), `LEASEHOLD_SEED_FROM`
//! the first seed, and `LEASEHOLD_SECONDS` the virtual time of each (default 60).

#![allow(clippy::print_stdout)] // output of a report

mod common;

use common::{each, number};
use leasehold_kernel::campaign::Sums as _;
use leasehold_kernel::trace::Trace;
use leasehold_sim::run::run;
use leasehold_sim::scenario::{Choices, Scenario};
use leasehold_sim::tally::CampaignTally;

/// Number of lines, from the end of the trace, that are printed if a seed fails.
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
    // A few seeds cannot exercise everything.
    if hours >= 5.0 {
        assert_eq!(all.missing(&choices), Vec::<String>::new());
    }
}

/// Runs a seed and returns the tally of the run. If there is a violation, prints the end of the
/// trace and panics.
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

/// When all faults are healed, one replica lags by thousands of slots, and each read of a disk
/// returns few entries. So a request to this replica may have to wait for longer than the lease and
/// election durations allow for.
#[test]
fn who_is_far_behind_has_the_time_to_catch_up() {
    tally(13_007_956, &Choices::default());
}

/// Real nodes hash with different secrets, so the entries of a map are in a different order in each
/// node. The result of a seed must not depend on this order.
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
