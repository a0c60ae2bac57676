//! One seed, judged: the only place that knows how the simulator says what is wrong.

use std::cell::RefCell;
use std::panic::{PanicHookInfo, set_hook};

use leasehold_sim::run;
use leasehold_sim::scenario::{Choices, Scenario};

/// A violation that was noticed.
#[derive(Clone, Debug)]
pub struct Violation {
    /// By which oracle; or by an assertion of the replica's own, and where.
    pub oracle: String,
    /// Text that describes it.
    pub text: String,
}

std::thread_local! {
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps where panics happen instead of printing what they say.
pub fn silence_panics() {
    let file = |panic: &PanicHookInfo<'_>| Some(panic.location()?.file().to_owned());
    set_hook(Box::new(move |panic| PLACE.set(file(panic))));
}

/// Runs a seed; what it violated, if anything.
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
