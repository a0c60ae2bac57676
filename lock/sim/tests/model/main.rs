//! Model checking with stateright.

#![allow(clippy::print_stdout)] // output of a report

mod explore;
mod model;
mod scenario;
mod scopes;
mod world;

use explore::explore;
use scopes::{synchronised, timers};

#[test]
fn try_it() {
    let which = std::env::var("MODEL_TRY").unwrap_or_default();
    let all = [
        timers::release(), timers::again(), timers::duplicate(), timers::end(), timers::end().prompt(), timers::long_attempt(), timers::wait(),
        timers::crash(), timers::owner_crash(), timers::drift(), timers::drift_and_crash(),
        synchronised::release(), synchronised::again(), synchronised::duplicate(), synchronised::told(), synchronised::end(),
        synchronised::apart(), synchronised::crash(), synchronised::crash_apart(),
    ];
    let (from, to) = which.split_once('-').unwrap();
    for scenario in &all[from.parse().unwrap()..to.parse().unwrap()] {
        let _ = std::panic::catch_unwind(|| explore(vec![scenario.clone()]));
    }
}

#[test]
#[cfg(feature = "mutants")]
fn try_mutants() {
    use leasehold_lock_core::mutants::LockRule::*;
    for (rule, scenario) in [
        (Term, timers::long_attempt()), (Timer, timers::drift()), (RestartWait, timers::drift_and_crash()),
        (RestartWait, synchronised::crash_apart()), (Term, synchronised::crash()), (AttemptEnd, synchronised::crash()),
        (AttemptEnd, timers::long_attempt()), (AckBallot, timers::again().link(1)),
    ] {
        let began = std::time::Instant::now();
        let found = explore::hunt(scenario.clone(), rule);
        println!("{rule:?} {} {found:?} {:?}", scenario.name, began.elapsed());
    }
}
