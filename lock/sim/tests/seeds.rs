//! Random runs.

use leasehold_kernel::campaign::Sums as _;
use leasehold_lock_sim::{GroupScenario, GroupWorld, RunSums, SimulatedClocks};

#[test]
fn random_runs_with_bounded_rates_break_no_property() {
    random_runs(SimulatedClocks::Bounded);
}

#[test]
fn random_runs_with_synchronised_clocks_break_no_property() {
    random_runs(SimulatedClocks::Synchronised);
}

fn random_runs(clocks: SimulatedClocks) {
    let mut sums = RunSums::default();
    for seed in 0..2000 {
        let mut world = GroupWorld::new(GroupScenario::draw(seed, clocks), 100);
        match world.run() {
            Ok(run) => sums.merge(&run),
            Err(violation) => {
                let trace: Vec<_> = world.trace().lines().collect();
                panic!("{}\nseed {seed}: {violation}", trace.join("\n"));
            }
        }
    }
    let missing = sums.named().into_iter().filter(|(_, count)| *count == 0);
    let missing: Vec<_> = missing.map(|(name, _)| name).collect();
    assert_eq!(missing, ["members that distrusted clocks"], "{sums:?}");
}

#[test]
fn a_seed_determines_a_run() {
    let all = SimulatedClocks::ALL.map(|clocks| [(1, clocks), (17, clocks), (40, clocks)]);
    for (seed, clocks) in all.concat() {
        let lines = || {
            let mut world = GroupWorld::new(GroupScenario::draw(seed, clocks), 0);
            world.run().expect("no property is broken");
            world.trace().lines().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(lines(), lines());
    }
}

/// Clocks that differ by more than `epsilon` are noticed in most runs.
#[test]
fn wrong_clocks_are_noticed() {
    let (mut runs, mut noticed) = (0, 0);
    for seed in 0..300 {
        let mut scenario = GroupScenario::draw(seed, SimulatedClocks::Synchronised);
        if scenario.clock_difference_ns == 0 {
            continue;
        }
        scenario.clock_difference_ns *= 3;
        runs += 1;
        // Members that hold nothing any more are no owners in the end.
        let result = GroupWorld::new(scenario, 1).run();
        noticed += u32::from(result.is_err_and(|it| it.oracle == "liveness"));
    }
    assert!(runs > 150 && noticed * 10 > runs * 8, "{noticed} of {runs}");
}
