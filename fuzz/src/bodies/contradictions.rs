//! Panics that a lying member may cause.
//!
//! A message that contradicts facts which a replica knows may end the replica's process
//! (SECURITY.md, what is promised, 2). So a body accepts these panics, which are recognized by
//! their messages, and no others.

use std::cell::Cell;
use std::panic::{
    AssertUnwindSafe, PanicHookInfo, catch_unwind, resume_unwind, set_hook, take_hook,
};
use std::sync::Once;

/// Messages of panics, each with the lie that causes it.
const EXPECTED: &[(&str, &str)] = &[
    (
        "is committed and dead at",
        "its ballot began below a slot that a majority has accepted before",
    ),
    (
        "is committed with another value",
        "it proposes, at a later ballot, another value than the one that a majority has accepted",
    ),
];

thread_local! {
    /// Whether this thread expects a panic that a liar may cause.
    static EXPECTS_PANIC: Cell<bool> = const { Cell::new(false) };
}

/// Runs a function that processes a liar's messages. Returns false if it ended with an expected
/// panic.
///
/// # Panics
/// Panics if the function panics in any other way.
pub fn may_end(run: impl FnOnce()) -> bool {
    static QUIET: Once = Once::new();
    QUIET.call_once(keep_quiet);
    EXPECTS_PANIC.set(true);
    let ended = catch_unwind(AssertUnwindSafe(run));
    EXPECTS_PANIC.set(false);
    match ended {
        Ok(()) => true,
        Err(panic) if is_expected(&panic_message(&*panic)) => false,
        Err(panic) => resume_unwind(panic),
    }
}

/// Keeps expected panics from being reported. libFuzzer would end at any panic that it is notified
/// of.
fn keep_quiet() {
    let others = take_hook();
    set_hook(Box::new(move |panic: &PanicHookInfo<'_>| {
        if !EXPECTS_PANIC.get() || !is_expected(&panic_message(panic.payload())) {
            others(panic);
        }
    }));
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let words = panic.downcast_ref::<String>().cloned();
    let fixed = || {
        panic
            .downcast_ref::<&str>()
            .map(|words| (*words).to_owned())
    };
    words.or_else(fixed).unwrap_or_default()
}

fn is_expected(words: &str) -> bool {
    EXPECTED
        .iter()
        .any(|(expected, _)| words.contains(expected))
}
