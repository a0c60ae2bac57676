//! Members without one rule: seeds notice most of them. A directed schedule of `leasehold-lock-core`
//! notices each.
#![cfg(feature = "mutants")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use leasehold_lock_core::mutants::{LockRule, with};
use leasehold_lock_sim::{GroupScenario, GroupWorld, SimulatedClocks};

/// Returns the oracle that a run without the rule violates.
fn violated(rule: LockRule, scenario: GroupScenario) -> Option<&'static str> {
    let run = || with(rule, || GroupWorld::new(scenario, 1).run());
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.err().map(|it| it.oracle),
        Err(_) => Some("assertion"),
    }
}

/// Number of seeds within which a rule is noticed; `None` if only a directed schedule notices it, or
/// if groups with these clocks do not rely on the rule.
fn seeds_max(rule: LockRule, clocks: SimulatedClocks) -> Option<u64> {
    match clocks {
        SimulatedClocks::Bounded => match rule {
            LockRule::Term | LockRule::Timer | LockRule::RestartWait => Some(10_000),
            LockRule::Acks => Some(200),
            LockRule::ReleaseBallot | LockRule::ReleaseStops => Some(1_000),
            _ => None,
        },
        SimulatedClocks::Synchronised => match rule {
            LockRule::Term | LockRule::AttemptEnd => Some(100),
            LockRule::Epsilon | LockRule::WriteBack => Some(200),
            LockRule::Acks | LockRule::AckBallot => Some(200),
            LockRule::ReleaseBallot | LockRule::ReleaseStops => Some(100),
            LockRule::RestartWait => Some(10_000),
            // They need two clocks that differ by `epsilon` to the nanosecond, a copied machine, a
            // member that hears nothing for a whole interval, or a wrong clock.
            LockRule::EpsilonStrict
            | LockRule::Run
            | LockRule::NackBallot
            | LockRule::ClockWatch => None,
            LockRule::Timer | LockRule::OneLease | LockRule::Reserve | LockRule::FreeReport => None,
        },
    }
}

#[test]
fn seeds_notice_mutants() {
    for clocks in SimulatedClocks::ALL {
        for rule in LockRule::ALL {
            let Some(max) = seeds_max(*rule, clocks) else {
                continue;
            };
            let mut seeds = 0..max;
            let caught = seeds
                .find_map(|seed| Some((seed, violated(*rule, GroupScenario::draw(seed, clocks))?)));
            println!("{clocks:?} {rule:?}: {caught:?}");
            assert!(caught.is_some(), "{rule:?} is missed by {max} seeds");
        }
    }
}

/// Negative control: if clocks differ by more than `epsilon`, and nobody notices it, there are two
/// owners.
#[test]
fn clocks_that_differ_by_two_epsilon_give_two_owners() {
    let caught = (0..1000).find_map(|seed| {
        let mut scenario = GroupScenario::draw(seed, SimulatedClocks::Synchronised);
        scenario.clock_difference_ns *= 2;
        let oracle = violated(LockRule::ClockWatch, scenario)?;
        (oracle == "exclusion").then_some(seed)
    });
    assert!(caught.is_some(), "the oracle is blind");
}

/// Negative control: if the rates of clocks are far beyond their bound, there are two owners.
#[test]
fn clocks_that_drift_ten_times_too_much_give_two_owners() {
    let caught = (0..1000).find_map(|seed| {
        let mut scenario = GroupScenario::draw(seed, SimulatedClocks::Bounded);
        // A clock runs at least at a tenth of the right rate.
        scenario.clock_error_ppm = (scenario.clock_error_ppm * 10).min(900_000);
        let oracle = GroupWorld::new(scenario, 1).run().err()?.oracle;
        (oracle == "exclusion").then_some(seed)
    });
    assert!(caught.is_some(), "the oracle is blind");
}
