//! Generated histories for testing the checker: histories of a correct register, and the same
//! histories with some answers or times changed. A change may or may not cause a violation.
//! Histories of transactions use the same [`Processes`] and [`Register`]s.

use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::history::{History, HistoryAction, HistoryEvent, ValueId};

/// Parameters of a generated history.
#[derive(Debug, Clone, Copy)]
pub(super) struct HistoryShape {
    pub seed: u64,
    pub ops: usize,
    pub keys: u64,
    pub processes: u32,
    /// Duration of the longest operation. The longest pause between two operations of one process
    /// has the same length.
    pub duration_ns: u64,
    /// Percentage of reads among the operations.
    pub reads: u32,
    /// Percentage of deletes among the operations.
    pub deletes: u32,
    /// Percentage of swaps among the operations. All other operations are writes.
    pub swaps: u32,
    /// Percentage of the operations that are never answered.
    pub unanswered: u32,
}

/// An operation and the moment at which it takes effect.
struct PlannedOp {
    effect_ns: u64,
    event: HistoryEvent,
    lost: bool,
}

/// Returns a history of a register that works correctly. Such a history is always linearizable.
pub(super) fn honest(shape: &HistoryShape) -> History {
    let mut rng = Pcg64Mcg::seed_from_u64(shape.seed);
    let mut planned = plan(shape, &mut rng);
    planned.sort_by_key(|op| op.effect_ns);
    let mut registers = vec![Register::default(); shape.keys as usize];
    for op in planned.iter_mut().filter(|op| !op.lost) {
        registers[op.event.key as usize].perform(&mut op.event.action, &mut rng);
    }
    planned.into_iter().map(|op| op.event).collect()
}

fn plan(shape: &HistoryShape, rng: &mut Pcg64Mcg) -> Vec<PlannedOp> {
    let mut processes = Processes::new(shape.processes, shape.duration_ns, shape.unanswered);
    let mut planned = Vec::with_capacity(shape.ops);
    for value in 1..=shape.ops as u64 {
        let invocation = processes.next(rng);
        let event = HistoryEvent {
            process: invocation.process,
            key: rng.random_range(0..shape.keys),
            action: action(shape, rng, ValueId(value)),
            invoke_ns: invocation.invoke_ns,
            return_ns: invocation.return_ns,
        };
        planned.push(PlannedOp {
            effect_ns: rng.random_range(invocation.invoke_ns..=invocation.latest_ns),
            event,
            lost: invocation.return_ns.is_none() && rng.random_bool(0.5),
        });
    }
    planned
}

fn action(shape: &HistoryShape, rng: &mut Pcg64Mcg, value: ValueId) -> HistoryAction {
    let kind = rng.random_range(0..100);
    if kind < shape.reads {
        HistoryAction::Read { value: None }
    } else if kind < shape.reads + shape.deletes {
        HistoryAction::Delete
    } else if kind < shape.reads + shape.deletes + shape.swaps {
        HistoryAction::Cas {
            expected: None,
            new: value,
            swapped: false,
        }
    } else {
        HistoryAction::Write { value }
    }
}

/// Changes one operation: either the value that the operation found, or the times of the operation.
pub(super) fn disturb(events: &mut [HistoryEvent], rng: &mut impl Rng) {
    let values: Vec<Option<ValueId>> = events.iter().map(|e| value_of(&e.action)).collect();
    let other = any_of(&values, rng);
    let shift_ns = rng.random_range(0..6);
    let index = rng.random_range(0..events.len());
    let event = &mut events[index];
    disturb_one(
        &mut event.action,
        &mut event.invoke_ns,
        &mut event.return_ns,
        other,
        shift_ns,
        rng,
    );
}

/// Returns one of these values, or sometimes a value that no operation wrote.
pub(crate) fn any_of(values: &[Option<ValueId>], rng: &mut impl Rng) -> Option<ValueId> {
    const NOBODYS: ValueId = ValueId(1 << 40);
    if rng.random_bool(0.1) {
        Some(NOBODYS)
    } else {
        values[rng.random_range(0..values.len())]
    }
}

/// Processes that are always busy. Each process has one operation at a time.
pub(crate) struct Processes {
    free_at_ns: Vec<u64>,
    duration_ns: u64,
    unanswered: u32,
}

/// Next operation of a process, with its times.
pub(crate) struct Invocation {
    pub process: u32,
    pub invoke_ns: u64,
    pub return_ns: Option<u64>,
    /// Last moment at which the operation may take effect. If the operation has no answer, the
    /// checker does not know when or whether it took effect.
    pub latest_ns: u64,
}

impl Processes {
    /// Creates `processes` processes. `duration_ns` is the longest duration of an operation. The
    /// same time is the longest pause between two operations of one process. `unanswered` is the
    /// percentage of operations that are never answered.
    pub fn new(processes: u32, duration_ns: u64, unanswered: u32) -> Processes {
        Processes {
            free_at_ns: vec![0; processes as usize],
            duration_ns,
            unanswered,
        }
    }

    pub fn next(&mut self, rng: &mut Pcg64Mcg) -> Invocation {
        let process = rng.random_range(0..self.free_at_ns.len() as u32);
        let free_at_ns = &mut self.free_at_ns[process as usize];
        let invoke_ns = *free_at_ns + rng.random_range(1..=self.duration_ns);
        let end_ns = invoke_ns + rng.random_range(0..=self.duration_ns);
        *free_at_ns = end_ns;
        let answered = rng.random_range(0..100) >= self.unanswered;
        Invocation {
            process,
            invoke_ns,
            return_ns: answered.then_some(end_ns),
            latest_ns: end_ns + if answered { 0 } else { 3 * self.duration_ns },
        }
    }
}

/// A correct register.
#[derive(Clone, Copy, Default)]
pub(crate) struct Register {
    held: Option<ValueId>,
    /// Value that the register held before `held`.
    before: Option<ValueId>,
}

impl Register {
    /// Executes an operation on the register, and stores the result of the operation in `action`.
    /// For a swap, also sets the expected value.
    pub fn perform(&mut self, action: &mut HistoryAction, rng: &mut Pcg64Mcg) {
        let was = self.held;
        match action {
            HistoryAction::Read { value } => *value = was,
            HistoryAction::Write { value } => self.held = Some(*value),
            HistoryAction::Delete => self.held = None,
            HistoryAction::Cas {
                expected,
                new,
                swapped,
            } => {
                *expected = if rng.random_bool(0.7) {
                    was
                } else {
                    self.before
                };
                *swapped = *expected == was;
                if *swapped {
                    self.held = Some(*new);
                }
            }
        }
        if self.held != was {
            self.before = was;
        }
    }
}

/// Changes one operation at random, in one of three ways. The first way replaces the found or
/// expected value by `other`. The second way inverts the success of a swap. The third way shifts
/// the begin and the end by `shift_ns`.
pub(crate) fn disturb_one(
    action: &mut HistoryAction,
    invoke_ns: &mut u64,
    return_ns: &mut Option<u64>,
    other: Option<ValueId>,
    shift_ns: u64,
    rng: &mut impl Rng,
) {
    match action {
        HistoryAction::Read { value } if rng.random_bool(0.6) => *value = other,
        HistoryAction::Cas { expected, .. } if rng.random_bool(0.3) => *expected = other,
        HistoryAction::Cas { swapped, .. } if rng.random_bool(0.5) => *swapped = !*swapped,
        _ => {
            let later = rng.random_bool(0.5);
            for at_ns in std::iter::once(invoke_ns).chain(return_ns) {
                *at_ns = if later {
                    *at_ns + shift_ns
                } else {
                    at_ns.saturating_sub(shift_ns)
                };
            }
        }
    }
}

/// Returns the value that the operation wrote or found; `None` for absence.
pub(crate) fn value_of(action: &HistoryAction) -> Option<ValueId> {
    match *action {
        HistoryAction::Read { value } => value,
        HistoryAction::Write { value } | HistoryAction::Cas { new: value, .. } => Some(value),
        HistoryAction::Delete => None,
    }
}
