//! Functions that run one seed without any output.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use leasehold_kernel::trace::Trace;
use leasehold_sim::oracle::Violation;
use leasehold_sim::run::{self, ScenarioOutcome};
use leasehold_sim::scenario::{Choices, Scenario};
use leasehold_sim::tally::CampaignTally;
use serde::Serialize;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
    static LOCATION: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A seed that failed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeedFailure {
    pub seed: u64,
    /// Check that failed: the name of an oracle, `assertion` (a check of the replica itself), or
    /// `determinism`.
    pub oracle: String,
    pub what: String,
}

/// Suppresses the output of panics. A simulated replica panics if one of its invariants is broken.
/// Such a panic is reported as a violation instead.
pub fn keep_assertions_quiet() {
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !QUIET.get() {
            return loud(info);
        }
        let location = info.location().map(ToString::to_string);
        LOCATION.set(location.unwrap_or_default());
    }));
}

/// Runs `body` without the output of panics.
///
/// # Errors
/// If `body` panics, the place in the code where it panicked.
pub fn catch<T>(body: impl FnOnce() -> T) -> Result<T, String> {
    QUIET.set(true);
    let result = catch_unwind(AssertUnwindSafe(body));
    QUIET.set(false);
    result.map_err(|_| LOCATION.with_borrow(String::clone))
}

/// Runs a scenario. A panic is reported as a violation, with the place in the code where it
/// occurred.
pub fn run(scenario: &Scenario, trace: Option<Trace>) -> ScenarioOutcome {
    let outcome = catch(|| run::run(scenario, trace));
    let mut outcome = outcome.unwrap_or_else(|_| ScenarioOutcome {
        seed: scenario.seed,
        violation: Some(Violation {
            oracle: "assertion",
            what: "the simulator itself panicked".to_owned(),
        }),
        ..ScenarioOutcome::default()
    });
    let location = LOCATION.take();
    if let Some(violation) = outcome.violation.as_mut().filter(|_| !location.is_empty()) {
        violation.what.push_str(&format!(" (at {location})"));
    }
    outcome
}

/// Runs a seed. If `twice` is true, runs the seed a second time, and compares the two runs.
pub fn seed(seed: u64, choices: &Choices, twice: bool) -> Result<CampaignTally, SeedFailure> {
    let first = once(seed, choices)?;
    if !twice {
        return Ok(first);
    }
    let second = once(seed, choices)?;
    if first == second {
        return Ok(first);
    }
    let (a, b) = (first.digest, second.digest);
    Err(SeedFailure {
        seed,
        oracle: "determinism".to_owned(),
        what: format!(
            "two runs of this seed differ: digests {a:016x} and {b:016x}, {} and {} operations, {} \
             and {} ns",
            first.operations, second.operations, first.virtual_ns, second.virtual_ns
        ),
    })
}

fn once(seed: u64, choices: &Choices) -> Result<CampaignTally, SeedFailure> {
    let scenario = Scenario::draw(seed, choices);
    let outcome = run(&scenario, None);
    match &outcome.violation {
        None => Ok(CampaignTally::of(&scenario, &outcome)),
        Some(violation) => Err(SeedFailure {
            seed,
            oracle: violation.oracle.to_owned(),
            what: violation.what.clone(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_violation_that_says_where() {
        keep_assertions_quiet();
        let mut scenario = Scenario::draw(1, &Choices::default());
        scenario.world.one_way_ns[0].clear();
        let violation = run(&scenario, None)
            .violation
            .expect("no run without links");
        assert_eq!(violation.oracle, "assertion");
        assert!(
            violation.what.contains("(at server/kernel/src/"),
            "{violation:?}"
        );
    }
}
