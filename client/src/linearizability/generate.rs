//! Histories to judge: those of a register that behaves, and the same with some
//! answers or times changed, which may or may not show.

use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::history::{Action, Event, History, ValueId};

/// What a generated history is made of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub seed: u64,
    pub ops: usize,
    pub keys: u64,
    pub processes: u32,
    /// Longest operation, and longest pause between two of one process.
    pub duration_ns: u64,
    /// Of a hundred operations, how many are each of these; the rest are writes.
    pub reads: u32,
    pub deletes: u32,
    pub swaps: u32,
    /// Of a hundred operations, how many are never answered.
    pub unanswered: u32,
}

/// An operation and the moment at which it takes effect.
struct Planned {
    effect_ns: u64,
    event: Event,
    lost: bool,
}

/// What a register that behaves would answer: always linearizable.
pub(super) fn honest(shape: &Shape) -> History {
    let mut rng = Pcg64Mcg::seed_from_u64(shape.seed);
    let mut planned = plan(shape, &mut rng);
    planned.sort_by_key(|op| op.effect_ns);
    let mut registers = vec![(None, None); shape.keys as usize];
    for op in &mut planned {
        let (held, before) = &mut registers[op.event.key as usize];
        if op.lost {
            continue;
        }
        let was = *held;
        match &mut op.event.action {
            Action::Read { value } => *value = *held,
            Action::Write { value } => *held = Some(*value),
            Action::Delete => *held = None,
            Action::Cas {
                expected,
                new,
                swapped,
            } => {
                *expected = if rng.random_bool(0.7) { *held } else { *before };
                *swapped = *expected == *held;
                if *swapped {
                    *held = Some(*new);
                }
            }
        }
        if *held != was {
            *before = was;
        }
    }
    planned.into_iter().map(|op| op.event).collect()
}

fn plan(shape: &Shape, rng: &mut Pcg64Mcg) -> Vec<Planned> {
    let mut free_at = vec![0; shape.processes as usize];
    let mut planned = Vec::with_capacity(shape.ops);
    for value in 1..=shape.ops as u64 {
        let process = rng.random_range(0..shape.processes);
        let begin = free_at[process as usize] + rng.random_range(1..=shape.duration_ns);
        let end = begin + rng.random_range(0..=shape.duration_ns);
        free_at[process as usize] = end;
        let answered = rng.random_range(0..100) >= shape.unanswered;
        let event = Event {
            process,
            key: rng.random_range(0..shape.keys),
            action: action(shape, rng, ValueId(value)),
            invoke_ns: begin,
            return_ns: answered.then_some(end),
        };
        // Without an answer nobody knows when, or whether, it took effect.
        let late = if answered {
            end
        } else {
            end + 3 * shape.duration_ns
        };
        planned.push(Planned {
            effect_ns: rng.random_range(begin..=late),
            event,
            lost: !answered && rng.random_bool(0.5),
        });
    }
    planned
}

fn action(shape: &Shape, rng: &mut Pcg64Mcg, value: ValueId) -> Action {
    let kind = rng.random_range(0..100);
    if kind < shape.reads {
        Action::Read { value: None }
    } else if kind < shape.reads + shape.deletes {
        Action::Delete
    } else if kind < shape.reads + shape.deletes + shape.swaps {
        Action::Cas {
            expected: None,
            new: value,
            swapped: false,
        }
    } else {
        Action::Write { value }
    }
}

/// Changes one operation: what it found, or when it was.
pub(super) fn disturb(events: &mut [Event], rng: &mut impl Rng) {
    let values: Vec<Option<ValueId>> = events.iter().map(value_of).collect();
    let other = values[rng.random_range(0..values.len())];
    let shift = rng.random_range(0..6);
    let index = rng.random_range(0..events.len());
    let event = &mut events[index];
    match &mut event.action {
        Action::Read { value } if rng.random_bool(0.6) => *value = other,
        Action::Cas { expected, .. } if rng.random_bool(0.3) => *expected = other,
        Action::Cas { swapped, .. } if rng.random_bool(0.5) => *swapped = !*swapped,
        _ if rng.random_bool(0.5) => {
            event.invoke_ns += shift;
            event.return_ns = event.return_ns.map(|end| end + shift);
        }
        _ => {
            event.invoke_ns = event.invoke_ns.saturating_sub(shift);
            let begin = event.invoke_ns;
            event.return_ns = event
                .return_ns
                .map(|end| end.saturating_sub(shift).max(begin));
        }
    }
}

fn value_of(event: &Event) -> Option<ValueId> {
    match event.action {
        Action::Read { value } => value,
        Action::Write { value } | Action::Cas { new: value, .. } => Some(value),
        Action::Delete => None,
    }
}
