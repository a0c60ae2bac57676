//! Sentences that help people to find the cause of a violation.

use crate::history::{HistoryAction, HistoryEvent, ValueId};
use crate::serializability::Transaction;

/// Describes an operation as `process 3 read value 7 (1.500000 ms to 2.250000 ms)`.
pub(crate) fn operation(event: &HistoryEvent) -> String {
    let what = describe_action(&event.action, event.return_ns.is_none());
    let when = describe_interval(event.invoke_ns, event.return_ns);
    format!("process {} {what} {when}", event.process)
}

fn describe_action(action: &HistoryAction, open: bool) -> String {
    match *action {
        HistoryAction::Read { value: Some(value) } => format!("read value {}", value.0),
        HistoryAction::Read { value: None } => "found no such key".to_owned(),
        HistoryAction::Write { value } => format!("wrote value {}", value.0),
        HistoryAction::Delete => "deleted the key".to_owned(),
        HistoryAction::Cas {
            expected,
            new,
            swapped,
        } => swap(expected, new, swapped || open),
    }
}

fn describe_interval(invoke_ns: u64, return_ns: Option<u64>) -> String {
    let begin = time(invoke_ns);
    let end = return_ns.map_or("never answered".to_owned(), |end| {
        format!("to {}", time(end))
    });
    format!("({begin} {end})")
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

/// Describes several operations, one on each line.
pub(crate) fn list<'a>(events: impl IntoIterator<Item = &'a HistoryEvent>) -> String {
    let line = |event| format!("\n  {}", operation(event));
    events.into_iter().map(line).collect()
}

/// Formats a time in nanoseconds as milliseconds, without rounding.
pub(crate) fn time(ns: u64) -> String {
    format!("{}.{:06} ms", ns / 1_000_000, ns % 1_000_000)
}

/// Describes a transaction on several keys, as [`operation`] describes one operation.
pub(crate) fn transaction(transaction: &Transaction) -> String {
    let open = transaction.return_ns.is_none();
    let part = |(key, action): &(u64, HistoryAction)| {
        format!("{} (key {key})", describe_action(action, open))
    };
    let parts: Vec<String> = transaction.parts.iter().map(part).collect();
    let when = describe_interval(transaction.invoke_ns, transaction.return_ns);
    format!(
        "process {} {} {when}",
        transaction.process,
        parts.join(", ")
    )
}
