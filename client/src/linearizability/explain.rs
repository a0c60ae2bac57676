//! Sentences for people who have to find out what went wrong.

use crate::history::{Action, Event, ValueId};

/// As `process 3 read value 7 (1.500000 ms to 2.250000 ms)`.
pub(super) fn operation(event: &Event) -> String {
    let what = match event.action {
        Action::Read { value: Some(value) } => format!("read value {}", value.0),
        Action::Read { value: None } => "found no such key".to_owned(),
        Action::Write { value } => format!("wrote value {}", value.0),
        Action::Delete => "deleted the key".to_owned(),
        Action::Cas {
            expected,
            new,
            swapped,
        } => swap(expected, new, swapped || event.return_ns.is_none()),
    };
    let begin = time(event.invoke_ns);
    let end = event.return_ns.map_or("never answered".to_owned(), |end| {
        format!("to {}", time(end))
    });
    format!("process {} {what} ({begin} {end})", event.process)
}

fn swap(expected: Option<ValueId>, new: ValueId, swapped: bool) -> String {
    let new = new.0;
    match (expected, swapped) {
        (Some(old), true) => format!("replaced value {} by {new}", old.0),
        (None, true) => format!("created the key with value {new}"),
        (Some(old), false) => format!("did not find value {}, to replace it by {new}", old.0),
        (None, false) => format!("found that there is a key, so did not create it with {new}"),
    }
}

/// Several operations, each on a line of its own.
pub(super) fn list<'a>(events: impl IntoIterator<Item = &'a Event>) -> String {
    let line = |event| format!("\n  {}", operation(event));
    events.into_iter().map(line).collect()
}

/// Nanoseconds as milliseconds, exactly.
pub(super) fn time(ns: u64) -> String {
    format!("{}.{:06} ms", ns / 1_000_000, ns % 1_000_000)
}
