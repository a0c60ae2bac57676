//! Time and memory of the linearizability checker for a million operations: `cargo bench -p
//! leasehold-histories --bench checker`. It does not use criterion, because a run takes seconds,
//! and the peak of memory matters as much as the time.

#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program: output, files and the time that it takes"
)]

use std::time::Instant;

use leasehold_histories::history::{self, History, HistoryAction, HistoryEvent};
use leasehold_histories::linearizability::{LinearizabilityVerdict, check};

#[path = "../src/linearizability/generate.rs"]
#[allow(dead_code)]
mod generate;
use generate::{HistoryShape, honest};

const OPS: usize = 1_000_000;

/// Shapes of histories. Each shape has a name, a number of keys and a number of processes. The
/// array contains the numbers of reads, deletions, swaps and unanswered operations in a hundred
/// operations. The other operations are writes. Processes are always busy. So on one key nearly as
/// many operations are in flight as there are processes.
const SHAPES: [(&str, u64, u32, [u32; 4]); 14] = [
    ("reads and writes, many keys", 10_000, 50, [50, 0, 0, 1]),
    ("reads and writes, one key", 1, 50, [50, 0, 0, 1]),
    (
        "reads and writes, one key, 200 at once",
        1,
        200,
        [50, 0, 0, 1],
    ),
    ("with deletions, many keys", 1_000, 50, [50, 10, 0, 1]),
    (
        "with deletions, one key, 200 at once",
        1,
        200,
        [50, 10, 0, 1],
    ),
    ("with swaps, many keys", 1_000, 50, [50, 0, 25, 1]),
    ("with swaps, one key", 1, 50, [50, 0, 25, 1]),
    ("with swaps, one key, 200 at once", 1, 200, [50, 0, 25, 1]),
    ("with both, 100 keys", 100, 50, [50, 10, 20, 1]),
    ("with both, five keys, 200 at once", 5, 200, [50, 10, 20, 1]),
    ("with both, one key, 200 at once", 1, 200, [50, 10, 20, 1]),
    ("with both, one key, few writes", 1, 200, [80, 4, 10, 1]),
    ("with both, one key, few deletions", 1, 160, [26, 2, 17, 8]),
    ("with both, one key, ten at once", 1, 10, [30, 20, 30, 1]),
];

fn main() {
    println!("{OPS} operations           seconds  peak MiB (with the history)  verdict");
    for (name, keys, processes, [reads, deletes, swaps, unanswered]) in SHAPES {
        let history = honest(&HistoryShape {
            seed: 1,
            ops: OPS,
            keys,
            processes,
            duration_ns: 100_000_000,
            reads,
            deletes,
            swaps,
            unanswered,
        });
        measure(name, &history);
        measure("  one read stale", &stale(&history));
    }
}

/// Returns the history with one changed answer. The last read of a key finds the value that the
/// first read of the key found.
fn stale(history: &History) -> History {
    let mut events = history.events().to_vec();
    let found =
        |event: &HistoryEvent| matches!(event.action, HistoryAction::Read { value: Some(_) });
    let first = events.iter().position(found).expect("there are reads");
    let key = events[first].key;
    let is_late = |event: &HistoryEvent| event.key == key && found(event);
    let late = events
        .iter()
        .rposition(is_late)
        .expect("the first at least");
    events[late].action = events[first].action;
    events.into_iter().collect()
}

fn measure(name: &str, history: &History) {
    forget_peak();
    let begun = Instant::now();
    let verdict = check(history);
    let seconds = begun.elapsed().as_secs_f64();
    let verdict = match verdict {
        LinearizabilityVerdict::Linearizable { .. } => "linearizable".to_owned(),
        LinearizabilityVerdict::Violation { events, .. } => {
            format!("violation, {} operations", events.len())
        }
        LinearizabilityVerdict::Unknown { reason, .. } => format!("unknown: {reason}"),
    };
    println!("{name:40} {seconds:6.2}  {:5.0}  {verdict}", peak_mib());
}

/// Resets the peak memory use that the kernel records for this process.
fn forget_peak() {
    if let Err(error) = std::fs::write("/proc/self/clear_refs", "5") {
        eprintln!("the peak counts from the start of the process: {error}");
    }
}

/// Returns the peak memory use of this process since the last call of `forget_peak`, in MiB.
fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}
