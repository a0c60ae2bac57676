//! Panics that a lying member is allowed to cause.
//!
//! A message may contradict facts that a replica knows. In that case the process of the replica may
//! end (SECURITY.md, what is promised, 2). So a body accepts the panics for such contradictions,
//! which it recognizes by the message of the panic. The body accepts no other panics.

use std::cell::Cell;
use std::panic::{
    AssertUnwindSafe, PanicHookInfo, catch_unwind, resume_unwind, set_hook, take_hook,
};
use std::sync::Once;

/// Expected panics. Each entry contains a part of the panic's message, and the lie that causes the
/// panic.
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
    /// True while this thread runs a function in which a liar may cause an expected panic.
    static EXPECTS_PANIC: Cell<bool> = const { Cell::new(false) };
}

/// Runs a function that processes messages of a liar. Returns false if an expected panic ended the
/// function.
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

/// Suppresses reports of expected panics. Without this, libFuzzer would stop at an expected panic,
/// because it stops at every panic that is reported to it.
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
