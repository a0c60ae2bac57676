//! One seed, judged: the only place that knows how the simulator says what is wrong.

use server::sim::run::run;
use server::sim::scenario::{Choices, Scenario};

/// What was noticed.
#[derive(Clone, Debug)]
pub struct Violation {
    /// By which oracle; `assertion` is the replica's own.
    pub oracle: String,
    /// What it said.
    pub text: String,
}

/// Replicas that find their own invariants broken say so by a panic, which a run
/// reports as its violation: it need not be printed as well.
pub fn silence_panics() {
    std::panic::set_hook(Box::new(|_| {}));
}

/// Runs a seed; what it violated, if anything.
pub fn seed(seed: u64, run_ns: u64) -> Option<Violation> {
    let choices = Choices {
        run_ns,
        ..Choices::default()
    };
    let outcome = run(&Scenario::draw(seed, &choices), None);
    outcome.violation.map(|violation| Violation {
        oracle: violation.oracle.to_owned(),
        text: violation.what,
    })
}
