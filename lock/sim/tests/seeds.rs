//! Random runs.

use std::time::Instant;

use leasehold_lock_sim::{GroupScenario, GroupWorld, RunSums};

/// Number of seeds, and the first one. `SEEDS` and `FROM` set other numbers.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |it| it.parse().expect("a number"))
    };
    let from = number("FROM", 0);
    from..from + number("SEEDS", 1000)
}

#[test]
fn random_runs_break_no_property() {
    let began = Instant::now();
    let mut sums = RunSums::default();
    for seed in seeds() {
        match leasehold_lock_sim::run(seed) {
            Ok(run) => sums.merge(&run),
            Err(violation) => panic!("{violation}"),
        }
    }
    println!("{sums:?} in {:?}", began.elapsed());
    let RunSums {
        acquired,
        renewed,
        expired,
        released,
        unconfirmed,
        taken,
        no_majority,
        crashes,
        pauses,
        ..
    } = sums;
    let all = [
        acquired,
        renewed,
        expired,
        released,
        unconfirmed,
        taken,
        no_majority,
        crashes,
        pauses,
    ];
    assert!(all.iter().all(|it| *it > 0), "{sums:?}");
}

/// Clocks that differ by more than `epsilon` are noticed in most runs.
#[test]
fn wrong_clocks_are_noticed() {
    let (mut runs, mut noticed) = (0, 0);
    for seed in 0..300 {
        let mut scenario = GroupScenario::draw(seed);
        if scenario.clock_difference_ns == 0 {
            continue;
        }
        scenario.clock_difference_ns *= 3;
        runs += 1;
        // Members that hold nothing any more are no owners in the end.
        let result = GroupWorld::new(scenario).run();
        noticed += u32::from(result.is_err_and(|it| it.oracle == "liveness"));
    }
    assert!(runs > 150 && noticed * 10 > runs * 8, "{noticed} of {runs}");
}
