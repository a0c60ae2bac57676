//! The definition of linearizability itself, for histories of one key that are so small that every
//! order can be tried. The checker is tested against this definition. The two share no code.

#![allow(clippy::disallowed_methods)] // sets are only tested for their members

use std::collections::HashSet;

use crate::history::{HistoryAction, HistoryEvent, ValueId};

pub(super) fn is_linearizable(events: &[HistoryEvent]) -> bool {
    assert!(events.len() <= 16, "that would take too long");
    let mut seen = HashSet::new();
    extend(events, 0, None, &mut seen)
}

/// Whether an order that begins with the operations in `done` can be completed. `held` is the
/// content of the register after these operations.
fn extend(
    events: &[HistoryEvent],
    done: u32,
    held: Option<ValueId>,
    seen: &mut HashSet<(u32, Option<ValueId>)>,
) -> bool {
    let waiting = || (0..events.len()).filter(|i| done & (1 << i) == 0);
    if waiting().all(|i| events[i].return_ns.is_none()) {
        return true;
    }
    if !seen.insert((done, held)) {
        return false;
    }
    waiting().any(|next| {
        let may_be_next = waiting().all(|other| !precedes(&events[other], &events[next]));
        may_be_next
            && effect(&events[next], held)
                .is_some_and(|held| extend(events, done | (1 << next), held, seen))
    })
}

fn precedes(one: &HistoryEvent, two: &HistoryEvent) -> bool {
    one.return_ns.is_some_and(|end| end < two.invoke_ns)
}

/// Returns the value that the register holds after the operation. The outer `None` means that the
/// answer of the operation is wrong.
fn effect(event: &HistoryEvent, held: Option<ValueId>) -> Option<Option<ValueId>> {
    match event.action {
        HistoryAction::Read { value } => (value == held).then_some(held),
        HistoryAction::Write { value } => Some(Some(value)),
        HistoryAction::Delete => Some(None),
        HistoryAction::Cas {
            expected,
            new,
            swapped,
        } => {
            let swaps = expected == held;
            let as_answered = event.return_ns.is_none() || swaps == swapped;
            as_answered.then_some(if swaps { Some(new) } else { held })
        }
    }
}
