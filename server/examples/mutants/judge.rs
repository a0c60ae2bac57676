//! One seed, judged: the only place that knows how the simulator says what is wrong.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook};

use server::sim::contended::{Crashes, run_crashing};

#[path = "../../tests/common/mod.rs"]
#[allow(dead_code)]
mod common;

/// What was noticed.
#[derive(Clone, Debug)]
pub struct Violation {
    /// By which oracle; `assertion …` is the replica's own.
    pub oracle: String,
    /// What it said.
    pub text: String,
}

std::thread_local! {
    static LAST: RefCell<Option<Violation>> = const { RefCell::new(None) };
}

/// Keeps what panics say instead of printing it.
pub fn silence_panics() {
    set_hook(Box::new(|panic| LAST.set(Some(read(panic)))));
}

/// An oracle is known by the file that it is in.
fn read(panic: &PanicHookInfo<'_>) -> Violation {
    let file = panic.location().map_or("", |location| location.file());
    let name = file.rsplit('/').next().unwrap_or(file);
    let name = name.trim_end_matches(".rs");
    let oracle = match file.contains("/oracle/") {
        true => name.to_owned(),
        false => format!("assertion in {name}"),
    };
    let payload = panic.payload();
    let text = match payload.downcast_ref::<String>() {
        Some(text) => text.clone(),
        None => payload.downcast_ref::<&str>().unwrap_or(&"").to_string(),
    };
    // A run that an oracle has ended says which.
    match text.split_once(": ") {
        Some((oracle, what)) if name == "contended" => found(oracle, what),
        _ => found(&oracle, &text),
    }
}

fn found(oracle: &str, text: &str) -> Violation {
    Violation {
        oracle: oracle.to_owned(),
        text: text.to_owned(),
    }
}

/// Runs a seed; what it violated, if anything.
pub fn seed(seed: u64, run_ns: u64) -> Option<Violation> {
    let outcomes = catch_unwind(AssertUnwindSafe(|| {
        let (world, contention) = common::draw(seed, run_ns);
        let plan = Crashes {
            every_ns: [1_500_000_000, 4_000_000_000, 12_000_000_000][(seed / 6 % 3) as usize],
            down_ns: [50_000_000, 1_000_000_000, 8_000_000_000][(seed / 18 % 3) as usize],
            all: 0.2,
            cuts: [0.0, 0.5][(seed / 54 % 2) as usize],
        };
        run_crashing(world, contention, Some(plan), seed)
    }));
    let Ok(outcomes) = outcomes else {
        return Some(LAST.take().unwrap_or(found("assertion", "")));
    };
    if !outcomes.verdict.is_linearizable() {
        let what = format!("{:?}", outcomes.verdict);
        return Some(found("linearizability", &what));
    }
    if outcomes.stuck > 0 {
        let what = format!("{} requests are stuck", outcomes.stuck);
        return Some(found("liveness", &what));
    }
    None
}
