//! Panics that a member that lies on purpose may cause.
//!
//! A message that contradicts what a replica knows to be true may end its process
//! (SECURITY.md, what is promised, 2). So a body lets these pass, by their words, and no other.

use std::cell::Cell;
use std::panic::{
    AssertUnwindSafe, PanicHookInfo, catch_unwind, resume_unwind, set_hook, take_hook,
};
use std::sync::Once;

/// Words of a panic, and what a member must have said for it.
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
    /// Whether a panic that a liar may cause is expected in this thread.
    static EXPECTS_PANIC: Cell<bool> = const { Cell::new(false) };
}

/// Runs what a liar has its way with. False if it ended with a panic that is expected.
///
/// # Panics
/// With any other.
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

/// Keeps expected panics from being reported. libFuzzer, which ends at any panic, is not notified
/// of them.
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
