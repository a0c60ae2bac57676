//! Prepares the events of one key for judging. Values are replaced by small numbers, and open
//! writes (writes without an answer) get an end or are omitted. Answers that no order can explain
//! are reported here, because here the reason is easiest to describe.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::Flaw;
use super::explain::{list, operation, time};
use crate::history::{HistoryAction, HistoryEvent, TIME_NS_MAX, ValueId};

/// Content of a register: absence, or the value of one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct RegisterValue(u32);

impl RegisterValue {
    pub const ABSENT: RegisterValue = RegisterValue(0);
    /// Value that an operation expected, but that no operation wrote.
    pub const NEVER_WRITTEN: RegisterValue = RegisterValue(u32::MAX);

    /// Returns the index of the content. Indexes run from 0 without a gap. `NEVER_WRITTEN` has no
    /// index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Map from the id of a value to a `T`.
type ValueMap<T> = HashMap<ValueId, T, FixedState>;

/// Time of a moment in the history, plus one. The number 0 is therefore before every moment.
pub(super) type OpTime = u64;
/// End of an operation that may take effect at any time, or never.
pub(super) const NEVER: OpTime = u64::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OpKind {
    Read(RegisterValue),
    Write(RegisterValue),
    Delete,
    /// A compare-and-swap that took effect.
    Swap {
        expected: RegisterValue,
        new: RegisterValue,
    },
    /// A compare-and-swap that found another value than the expected one.
    Fail {
        expected: RegisterValue,
    },
}

#[derive(Debug)]
pub(super) struct Op<'a> {
    pub event: &'a HistoryEvent,
    pub kind: OpKind,
    pub begin: OpTime,
    /// End of the operation; `NEVER` if the operation may or may not have taken effect.
    pub end: OpTime,
}

#[derive(Debug)]
pub(super) struct PreparedKey<'a> {
    /// Operations in the order in which they began.
    pub ops: Vec<Op<'a>>,
    /// Operation that wrote each value. The list is indexed by [`RegisterValue::index`]. The entry
    /// for absence is `None`.
    pub writers: Vec<Option<&'a HistoryEvent>>,
    /// Whether an operation saw that the key was absent, or requires an absent key.
    pub absence_observed: bool,
}

impl<'a> PreparedKey<'a> {
    pub fn is_plain(&self) -> bool {
        let plain = |op: &Op| matches!(op.kind, OpKind::Read(_) | OpKind::Write(_));
        self.ops.iter().all(plain)
    }

    /// Returns a description of the value for explanations.
    pub fn describe(&self, held: RegisterValue) -> String {
        let writer = self.writer(held).and_then(written_by);
        writer.map_or("nothing".to_owned(), |value| format!("value {}", value.0))
    }

    /// Returns the operation that wrote this value; `None` for absence.
    pub fn writer(&self, held: RegisterValue) -> Option<&'a HistoryEvent> {
        self.writers.get(held.index()).copied().flatten()
    }
}

pub(super) fn prepare<'a>(events: &[&'a HistoryEvent]) -> Result<PreparedKey<'a>, Flaw> {
    check_times(events)?;
    let writers = find_writers(events)?;
    let ends = complete_open(events, &writers)?;
    check_swaps(events, &ends)?;
    Ok(PreparedKeyBuilder::new(events, &writers, &ends).build())
}

fn check_times(events: &[&HistoryEvent]) -> Result<(), Flaw> {
    let backwards =
        |event: &&&HistoryEvent| event.return_ns.is_some_and(|end| end < event.invoke_ns);
    let too_late =
        |event: &&&HistoryEvent| event.return_ns.unwrap_or(event.invoke_ns) > TIME_NS_MAX;
    let reason = if let Some(event) = events.iter().find(backwards) {
        format!("an operation ends before it begins: {}", operation(event))
    } else if let Some(event) = events.iter().find(too_late) {
        format!("an operation has an impossible time: {}", operation(event))
    } else {
        return Ok(());
    };
    Err(Flaw::Unknown { reason })
}

/// Returns the value that an operation wrote or may have written.
fn written_by(event: &HistoryEvent) -> Option<ValueId> {
    match event.action {
        HistoryAction::Write { value } => Some(value),
        HistoryAction::Cas { new, swapped, .. } if swapped || event.return_ns.is_none() => {
            Some(new)
        }
        _ => None,
    }
}

/// Returns the value that an operation must have found, if the operation took effect.
fn found_by(event: &HistoryEvent) -> Option<ValueId> {
    match event.action {
        HistoryAction::Read { value } => value,
        HistoryAction::Cas {
            expected, swapped, ..
        } if swapped || event.return_ns.is_none() => expected,
        _ => None,
    }
}

fn is_failed_swap(event: &HistoryEvent) -> bool {
    event.return_ns.is_some() && matches!(event.action, HistoryAction::Cas { swapped: false, .. })
}

fn find_writers(events: &[&HistoryEvent]) -> Result<ValueMap<usize>, Flaw> {
    let mut writers = ValueMap::default();
    for (index, event) in events.iter().enumerate() {
        let Some(value) = written_by(event) else {
            continue;
        };
        if let Some(other) = writers.insert(value, index) {
            let both = list([events[other], event]);
            let reason = format!("value {} was written twice:{both}", value.0);
            return Err(Flaw::Unknown { reason });
        }
    }
    Ok(writers)
}

/// Returns the end of each operation. An answered operation ends at its answer. An unanswered
/// operation gets its end from the operations that found its value: it took effect before the first
/// of them ended. If no operation found its value, its end is `NEVER`.
fn complete_open(events: &[&HistoryEvent], writers: &ValueMap<usize>) -> Result<Vec<OpTime>, Flaw> {
    let end = |event: &&HistoryEvent| event.return_ns.map_or(NEVER, |end| end.saturating_add(1));
    let mut ends: Vec<OpTime> = events.iter().map(end).collect();
    let answered = |&index: &usize| events[index].return_ns.is_some();
    let mut finders: Vec<usize> = (0..events.len()).filter(answered).collect();
    // The finder with the earliest end comes first, so that each open write gets its end only once.
    finders.sort_by_key(|&index| ends[index]);
    for finder in finders {
        follow(events, writers, &mut ends, finder)?;
    }
    Ok(ends)
}

/// Checks that the write of the value that `finder` found began before `finder` ended. If the write
/// has no answer, its end becomes the end of `finder`. If such a write is a swap, the function
/// continues in the same way with the value that the swap found.
fn follow(
    events: &[&HistoryEvent],
    writers: &ValueMap<usize>,
    ends: &mut [OpTime],
    mut finder: usize,
) -> Result<(), Flaw> {
    while let Some(value) = found_by(events[finder]) {
        let Some(&writer) = writers.get(&value) else {
            return Err(from_nowhere(events, finder, value));
        };
        if ends[finder] < events[writer].invoke_ns.saturating_add(1) {
            return Err(from_the_future(events[finder], events[writer], value));
        }
        if events[writer].return_ns.is_some() || ends[writer] != NEVER {
            break;
        }
        ends[writer] = ends[finder];
        finder = writer;
    }
    Ok(())
}

fn from_nowhere(events: &[&HistoryEvent], finder: usize, value: ValueId) -> Flaw {
    let offered = |event: &&&HistoryEvent| match event.action {
        HistoryAction::Cas { new, .. } => is_failed_swap(event) && new == value,
        _ => false,
    };
    let refused = events.iter().find(offered);
    let explanation = match refused {
        None if value == ValueId::DAMAGED => {
            "bytes were found that no write stores: they were cut, changed or mixed up".to_owned()
        }
        None => format!("value {} was found, but nobody wrote it", value.0),
        Some(_) => format!(
            "value {} was found, but its write had been refused",
            value.0
        ),
    };
    let concerned = refused.into_iter().chain([&events[finder]]);
    Flaw::violation(explanation, concerned.copied())
}

fn from_the_future(finder: &HistoryEvent, writer: &HistoryEvent, value: ValueId) -> Flaw {
    let explanation = format!("value {} was found before it was written", value.0);
    Flaw::violation(explanation, [finder, writer])
}

/// Checks that no value is replaced twice.
fn check_swaps(events: &[&HistoryEvent], ends: &[OpTime]) -> Result<(), Flaw> {
    let mut swaps: ValueMap<&HistoryEvent> = ValueMap::default();
    for (event, &end) in events.iter().zip(ends) {
        let HistoryAction::Cas {
            expected: Some(value),
            ..
        } = event.action
        else {
            continue;
        };
        if is_failed_swap(event) || end == NEVER {
            continue;
        }
        if let Some(other) = swaps.insert(value, event) {
            let explanation = format!("value {} was replaced twice", value.0);
            return Err(Flaw::violation(explanation, [other, *event]));
        }
    }
    Ok(())
}

/// Turns events into operations. Omits an event if its effect is uncertain and could not help to
/// explain any answer.
struct PreparedKeyBuilder<'a, 'b> {
    events: &'b [&'a HistoryEvent],
    ends: &'b [OpTime],
    held: ValueMap<RegisterValue>,
    writers: Vec<Option<&'a HistoryEvent>>,
    any_failed_swap: bool,
    absence_observed: bool,
}

impl<'a, 'b> PreparedKeyBuilder<'a, 'b> {
    fn new(events: &'b [&'a HistoryEvent], found: &ValueMap<usize>, ends: &'b [OpTime]) -> Self {
        let mut builder = PreparedKeyBuilder {
            events,
            ends,
            held: ValueMap::with_capacity_and_hasher(found.len(), FixedState::default()),
            writers: vec![None],
            any_failed_swap: events.iter().any(|event| is_failed_swap(event)),
            absence_observed: false,
        };
        for event in events {
            if let Some(value) = written_by(event) {
                let held = RegisterValue(builder.writers.len() as u32);
                builder.held.insert(value, held);
                builder.writers.push(Some(event));
            }
        }
        builder.absence_observed = events.iter().any(|event| observes_absence(event));
        builder
    }

    fn build(self) -> PreparedKey<'a> {
        let ops = (0..self.events.len())
            .filter(|&index| self.is_needed(index))
            .map(|index| self.op(index))
            .collect();
        PreparedKey {
            ops,
            absence_observed: self.absence_observed,
            writers: self.writers,
        }
    }

    fn is_needed(&self, index: usize) -> bool {
        let open = self.events[index].return_ns.is_none() && self.ends[index] == NEVER;
        if !open {
            return true;
        }
        match self.events[index].action {
            HistoryAction::Read { .. } => false,
            // A value that no operation found helps only to explain a failed swap.
            HistoryAction::Write { .. } | HistoryAction::Cas { .. } => self.any_failed_swap,
            HistoryAction::Delete => self.any_failed_swap || self.absence_observed,
        }
    }

    fn op(&self, index: usize) -> Op<'a> {
        let event = self.events[index];
        let kind = match event.action {
            HistoryAction::Read { value } => OpKind::Read(self.held(value)),
            HistoryAction::Write { value } => OpKind::Write(self.held(Some(value))),
            HistoryAction::Delete => OpKind::Delete,
            HistoryAction::Cas { expected, .. } if is_failed_swap(event) => OpKind::Fail {
                expected: self.held(expected),
            },
            HistoryAction::Cas { expected, new, .. } => OpKind::Swap {
                expected: self.held(expected),
                new: self.held(Some(new)),
            },
        };
        Op {
            event,
            kind,
            begin: event.invoke_ns.saturating_add(1),
            end: self.ends[index],
        }
    }

    fn held(&self, value: Option<ValueId>) -> RegisterValue {
        let Some(value) = value else {
            return RegisterValue::ABSENT;
        };
        let held = self.held.get(&value).copied();
        held.unwrap_or(RegisterValue::NEVER_WRITTEN)
    }
}

fn observes_absence(event: &HistoryEvent) -> bool {
    match event.action {
        HistoryAction::Read { value } => value.is_none(),
        HistoryAction::Cas { expected, .. } => expected.is_none() && !is_failed_swap(event),
        _ => false,
    }
}

/// Returns a description of a moment for explanations: its time in the history.
pub(super) fn describe_time(at: OpTime) -> String {
    match at {
        0 => "the beginning".to_owned(),
        NEVER => "the end".to_owned(),
        other => time(other - 1),
    }
}
