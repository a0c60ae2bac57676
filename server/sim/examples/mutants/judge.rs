//! Run of one seed and its verdict. Only this module depends on how the simulator reports
//! violations.

use std::cell::RefCell;
use std::panic::{PanicHookInfo, set_hook};

use leasehold_sim::run;
use leasehold_sim::scenario::{Choices, Scenario};

/// A violation that an oracle or an assertion noticed.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Name of the oracle, or the location of the replica's assertion.
    pub oracle: String,
    /// Message of the violation.
    pub text: String,
}

std::thread_local! {
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Suppresses the output of panics, and records the location of each.
pub fn silence_panics() {
    let file = |panic: &PanicHookInfo<'_>| Some(panic.location()?.file().to_owned());
    set_hook(Box::new(move |panic| PLACE.set(file(panic))));
}

/// Runs a seed. Returns the violation that the run shows, if any.
pub fn seed(seed: u64, run_ns: u64) -> Option<Violation> {
    let choices = Choices {
        run_ns,
        ..Choices::default()
    };
    let violation = run::run(&Scenario::draw(seed, &choices), None).violation?;
    let oracle = match PLACE.take() {
        Some(file) => format!("{} in `{file}`", violation.oracle),
        None => violation.oracle.to_owned(),
    };
    let text = violation.what;
    Some(Violation { oracle, text })
}
