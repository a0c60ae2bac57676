//! Judges keys on which a compare-and-swap failed and for which `sweep` found no order: follows all
//! possible orders in parallel.
//!
//! The search proceeds from event to event in time. An [`OpState`] is one possible state: the
//! content of the register, and the set of operations in flight that have taken effect. When an
//! operation ends, every state in which it has not taken effect is expanded: operations in flight
//! take effect one after the other, until the operation has taken effect or the state cannot be
//! continued ("just-in-time linearization", Lowe 2017, after Wing & Gong 1993). If no state
//! remains, no order exists.
//!
//! Rules that keep the number of states small, with the reasons why they lose no order:
//!
//! - An operation that changes nothing takes effect as soon as it can.
//! - A value is not replaced before all operations that found it have begun, because it has only
//!   one write. If it is known which swap replaced a value, no other operation may replace it.
//! - A write is *hidden* if it takes effect, with its readers, just before another write. A write
//!   may be hidden when all operations that found its value have begun. Only a failed swap that no
//!   other write explains could depend on a hidden write. So a write that may matter in this way is
//!   not hidden ([`Relevance`]).
//! - Of several deletions, or of several writes with values that no operation finds, the one that
//!   must end first takes effect first.
//! - Take two states that differ only in the set of unanswered operations that have taken effect.
//!   If one of these sets contains the other, the state with the smaller set is enough.

use super::Flaw;
use super::frontier::{self, Bounds, SLOTS, bits};
use super::prepare::{NEVER, Op, OpKind, OpTime, PreparedKey, RegisterValue};
use super::relevance::Relevance;
use crate::history::HistoryEvent;

/// Constant part of the maximum number of states that are expanded for one history. The other part
/// grows with the number of operations in the history.
const STEPS: usize = 20_000_000;
const STEPS_PER_OP: usize = 40;
/// Maximum number of states that are kept from one moment to the next.
const STATES: usize = 1 << 16;
/// Maximum number of states that may be expanded when one operation ends.
const STATES_DEVELOPED: usize = 1 << 20;
/// Maximum number of operations in flight that an explanation names.
const EXPLAINED: usize = 12;

type OpState = frontier::SearchState<RegisterValue>;

/// Judges one key, and subtracts the number of expanded states from `budget`.
pub(super) fn check(key: &PreparedKey, budget: &mut Budget) -> Result<(), Flaw> {
    let allowance = budget.steps / 2;
    let mut search = OpSearch::new(key, allowance);
    let result = search.run();
    budget.steps -= allowance - search.steps;
    result
}

/// Number of states that may still be expanded for a whole history. One key may use at most half of
/// this number. So a difficult key leaves enough for the other keys.
#[derive(Debug)]
pub(super) struct Budget {
    steps: usize,
}

impl Budget {
    /// Returns the budget for a history of `ops` operations. The budget is enough if each operation
    /// overlaps only a few other operations. If a million operations overlap too many others, the
    /// search uses up the budget in about ten seconds.
    pub fn for_ops(ops: usize) -> Self {
        let steps = STEPS + STEPS_PER_OP * ops;
        Budget { steps }
    }
}

/// Reads that found one value, and the swap that replaced this value. These operations limit the
/// possible orders.
#[derive(Debug, Clone, Copy, Default)]
struct OpValueUses {
    /// Position in `ticks` at which the last read of the value begins.
    last_read: usize,
    /// Swap that certainly replaced the value; `None` if there is none.
    successor: Option<usize>,
    /// Whether this value is needed to explain an answer that the times alone do not explain.
    is_wanted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct OpTick {
    at: OpTime,
    /// Whether the tick is an end. At one moment, begins come before ends. So if one operation ends
    /// at the moment at which another operation begins, the two operations overlap.
    is_end: bool,
    op: u32,
}

struct OpSearch<'k, 'a> {
    key: &'k PreparedKey<'a>,
    ticks: Vec<OpTick>,
    uses: Vec<OpValueUses>,
    /// Flag of each operation: true if no failed swap needs this operation. Such an operation may
    /// stay unseen, because a write may replace its effect immediately.
    hidable: Vec<bool>,
    /// For each slot, the operation in flight that occupies it.
    slots: [usize; SLOTS],
    taken: u128,
    /// Slots of the operations that never end, as a set of bits.
    unanswered: u128,
    /// For each value, true if its write has taken effect or can never take effect. Then no later
    /// operation stores the value.
    written: Vec<bool>,
    states: Vec<OpState>,
    /// Position of the current moment in `ticks`.
    now: usize,
    /// Number of states that may still be expanded.
    steps: usize,
}

impl<'k, 'a> OpSearch<'k, 'a> {
    fn new(key: &'k PreparedKey<'a>, steps: usize) -> Self {
        let relevance = Relevance::new(key);
        let explained: Vec<bool> = (key.ops.iter())
            .map(|op| relevance.is_explained(op))
            .collect();
        let relevant = relevance.of_unexplained(key, &explained);
        let ticks = ticks(&key.ops);
        OpSearch {
            key,
            uses: uses(key, &ticks, &explained),
            ticks,
            hidable: relevant.into_iter().map(|relevant| !relevant).collect(),
            slots: [0; SLOTS],
            taken: 0,
            unanswered: 0,
            written: vec![false; key.writers.len()],
            states: vec![OpState {
                held: RegisterValue::ABSENT,
                done: 0,
            }],
            now: 0,
            steps,
        }
    }

    fn run(&mut self) -> Result<(), Flaw> {
        for position in 0..self.ticks.len() {
            self.now = position;
            let tick = self.ticks[position];
            let op = tick.op as usize;
            if tick.is_end {
                self.end(op)?;
            } else {
                self.begin(op)?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, op: usize) -> Result<(), Flaw> {
        let slot = (!self.taken).trailing_zeros() as usize;
        if slot >= SLOTS {
            let reason = format!("more than {SLOTS} operations in flight at once");
            return Err(Flaw::Unknown { reason });
        }
        self.taken |= 1 << slot;
        self.slots[slot] = op;
        if self.key.ops[op].end == NEVER {
            self.unanswered |= 1 << slot;
        }
        for state in &mut self.states {
            if self.key.ops[op].happens_by_itself(state.held) {
                state.done |= 1 << slot;
            }
        }
        Ok(())
    }

    fn end(&mut self, op: usize) -> Result<(), Flaw> {
        let slot = bits(self.taken).find(|&slot| self.slots[slot] == op);
        let slot = slot.expect("every operation begins before it ends");
        let bit = 1 << slot;
        if !self.states.iter().all(|state| state.done & bit != 0) {
            let developed = self.develop(bit)?;
            if developed.is_empty() {
                return Err(self.violation(op));
            }
            self.states = developed;
        }
        self.forget(bit);
        if self.unanswered != 0 {
            self.forget(frontier::completed_in_all(&self.states, self.unanswered));
            self.forget(self.hopeless());
            frontier::drop_wasteful(&mut self.states, self.unanswered);
        }
        if self.states.len() > STATES {
            return Err(too_many());
        }
        Ok(())
    }

    /// Returns the unanswered swaps that can no longer take effect, because the value that they
    /// expect will not be current again.
    fn hopeless(&self) -> u128 {
        let is_hopeless = |&slot: &usize| match self.op(slot).kind {
            OpKind::Swap { expected, .. } => {
                expected == RegisterValue::NEVER_WRITTEN
                    || self.written[expected.index()]
                        && self.states.iter().all(|state| state.held != expected)
            }
            _ => false,
        };
        set(bits(self.unanswered).filter(is_hopeless))
    }

    /// Frees slots, and merges states that have become equal.
    fn forget(&mut self, slots: u128) {
        for slot in bits(slots) {
            if let OpKind::Write(value) | OpKind::Swap { new: value, .. } = self.op(slot).kind {
                self.written[value.index()] = true;
            }
        }
        self.taken &= !slots;
        self.unanswered &= !slots;
        for state in &mut self.states {
            state.done &= !slots;
        }
        self.states.sort_unstable();
        self.states.dedup();
    }

    /// Returns every state in which the operation that `bit` denotes has just taken effect.
    fn develop(&mut self, bit: u128) -> Result<Vec<OpState>, Flaw> {
        let mut steps = self.steps;
        let bounds = Bounds {
            steps: &mut steps,
            at_once: STATES_DEVELOPED,
        };
        let states = self.states.iter().copied();
        let developed = frontier::develop(states, bit, self.unanswered, bounds, |state, next| {
            for slot in self.choices(state) {
                next.push(self.apply(state, slot));
            }
        });
        self.steps = steps;
        developed.ok_or_else(too_many)
    }

    /// Returns the slots of operations that could take effect next and change the register.
    fn choices(&self, state: &OpState) -> impl Iterator<Item = usize> {
        let waiting = self.taken & !state.done;
        let mut possible: u128 = 0;
        // Of operations with the same effect, keeps the one that has to end first.
        let mut deletion: Option<usize> = None;
        let mut hidden: Option<usize> = None;
        let mut unwanted: Option<usize> = None;
        for slot in bits(waiting) {
            match self.op(slot).kind {
                OpKind::Read(_) | OpKind::Fail { .. } => {}
                _ if !self.may_leave(state.held, self.slots[slot]) => {}
                OpKind::Swap { expected, .. } if expected != state.held => {}
                OpKind::Delete => deletion = self.earlier(deletion, slot),
                OpKind::Write(_) if self.is_hidable(slot) => hidden = self.earlier(hidden, slot),
                OpKind::Write(value) if !self.uses[value.index()].is_wanted => {
                    unwanted = self.earlier(unwanted, slot);
                }
                OpKind::Write(_) | OpKind::Swap { .. } => possible |= 1 << slot,
            }
        }
        for slot in [deletion, hidden, unwanted].into_iter().flatten() {
            possible |= 1 << slot;
        }
        bits(possible)
    }

    fn earlier(&self, one: Option<usize>, two: usize) -> Option<usize> {
        let order = |slot: usize| (self.op(slot).end, self.slots[slot]);
        match one {
            Some(one) if order(one) < order(two) => Some(one),
            _ => Some(two),
        }
    }

    fn apply(&self, state: &OpState, slot: usize) -> OpState {
        let mut done = state.done | (1 << slot);
        let held = match self.op(slot).kind {
            OpKind::Write(value) => value,
            OpKind::Swap { new, .. } => new,
            _ => RegisterValue::ABSENT,
        };
        if !matches!(self.op(slot).kind, OpKind::Swap { .. }) {
            done |= self.hidden_before(done);
        }
        for other in bits(self.taken & !done) {
            if self.op(other).happens_by_itself(held) {
                done |= 1 << other;
            }
        }
        OpState { held, done }
    }

    /// Returns the slots of the operations that can take effect unseen. They are unseen because a
    /// write replaces their effect immediately afterwards.
    fn hidden_before(&self, done: u128) -> u128 {
        let mut hidden = 0;
        for slot in bits(self.taken & !done) {
            if !self.is_hidable(slot) {
                continue;
            }
            hidden |= 1 << slot;
            if let OpKind::Write(value) = self.op(slot).kind {
                hidden |= self.readers(value);
            }
        }
        hidden
    }

    fn readers(&self, value: RegisterValue) -> u128 {
        set(bits(self.taken).filter(|&slot| self.op(slot).kind == OpKind::Read(value)))
    }

    /// Whether the operation in `slot` can take effect just before another write that replaces its
    /// effect. This is possible if no other operation needs the effect of the operation in `slot`.
    fn is_hidable(&self, slot: usize) -> bool {
        if !self.hidable[self.slots[slot]] {
            return false;
        }
        match self.op(slot).kind {
            OpKind::Write(value) => {
                let uses = self.uses[value.index()];
                uses.successor.is_none() && uses.last_read <= self.now
            }
            OpKind::Delete => !self.key.absence_observed,
            _ => false,
        }
    }

    /// Whether `op` may replace the value `held`.
    fn may_leave(&self, held: RegisterValue, op: usize) -> bool {
        let uses = self.uses[held.index()];
        uses.last_read <= self.now && uses.successor.is_none_or(|successor| successor == op)
    }

    fn op(&self, slot: usize) -> &'k Op<'a> {
        &self.key.ops[self.slots[slot]]
    }

    fn violation(&self, op: usize) -> Flaw {
        let mut held: Vec<RegisterValue> = self.states.iter().map(|state| state.held).collect();
        held.sort_unstable();
        held.dedup();
        held.truncate(EXPLAINED);
        let ended = &self.key.ops[op];
        let mut concerned: Vec<&HistoryEvent> = vec![ended.event];
        let mut possible = Vec::new();
        for held in held {
            let still_needed = self.still_needed(held);
            let suffix = still_needed.map_or("", |_| " (which is still found later)");
            possible.push(self.key.describe(held) + suffix);
            concerned.extend(self.key.writer(held));
            concerned.extend(still_needed);
        }
        let in_flight = bits(self.taken).map(|slot| self.op(slot).event);
        concerned.extend(in_flight.take(EXPLAINED));
        let explanation = format!(
            "no order explains that {}: before its end the key can only have held {}",
            super::explain::operation(ended.event),
            possible.join(" or "),
        );
        Flaw::violation(explanation, concerned)
    }

    /// Returns the last read that finds the value `held`, if this read has not begun yet.
    fn still_needed(&self, held: RegisterValue) -> Option<&'a HistoryEvent> {
        let last_read = self.uses[held.index()].last_read;
        let op = self.ticks[last_read].op as usize;
        (last_read > self.now).then(|| self.key.ops[op].event)
    }
}

impl Op<'_> {
    /// Whether the operation can take effect while the register holds `held`, and leaves the
    /// register unchanged.
    fn happens_by_itself(&self, held: RegisterValue) -> bool {
        match self.kind {
            OpKind::Read(value) => value == held,
            OpKind::Fail { expected } => expected != held,
            OpKind::Write(_) | OpKind::Delete | OpKind::Swap { .. } => false,
        }
    }
}

fn too_many() -> Flaw {
    let reason = frontier::TOO_MANY.to_owned();
    Flaw::Unknown { reason }
}

fn set(slots: impl Iterator<Item = usize>) -> u128 {
    slots.fold(0, |set, slot| set | (1 << slot))
}

fn ticks(ops: &[Op]) -> Vec<OpTick> {
    let mut ticks = Vec::with_capacity(ops.len() * 2);
    for (index, op) in ops.iter().enumerate() {
        let tick = |at, is_end| OpTick {
            at,
            is_end,
            op: index as u32,
        };
        ticks.push(tick(op.begin, false));
        if op.end != NEVER {
            ticks.push(tick(op.end, true));
        }
    }
    ticks.sort_unstable();
    ticks
}

fn uses(key: &PreparedKey, ticks: &[OpTick], explained: &[bool]) -> Vec<OpValueUses> {
    let mut uses = vec![OpValueUses::default(); key.writers.len()];
    for (index, op) in key.ops.iter().enumerate() {
        let found = match op.kind {
            OpKind::Read(found)
            | OpKind::Swap {
                expected: found, ..
            } => found,
            OpKind::Fail { expected } if !explained[index] => expected,
            _ => continue,
        };
        if found == RegisterValue::NEVER_WRITTEN {
            continue;
        }
        let of_found = &mut uses[found.index()];
        of_found.is_wanted = true;
        // Absence is not the result of a single write, so it may be replaced several times.
        if matches!(op.kind, OpKind::Swap { .. })
            && op.end != NEVER
            && found != RegisterValue::ABSENT
        {
            of_found.successor = Some(index);
        }
    }
    let absence_returns = key.ops.iter().any(|op| op.kind == OpKind::Delete);
    for (position, tick) in ticks.iter().enumerate().filter(|(_, tick)| !tick.is_end) {
        if let OpKind::Read(found) = key.ops[tick.op as usize].kind
            && !(found == RegisterValue::ABSENT && absence_returns)
        {
            uses[found.index()].last_read = position;
        }
    }
    uses
}
