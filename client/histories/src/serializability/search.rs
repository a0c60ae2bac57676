//! Follows all possible orders in parallel, as `linearizability::search` does for one key (Wing &
//! Gong 1993, Lowe 2017). The search goes through begins and ends in order of time. A [`TxnState`]
//! is a possible content of the keys at the current moment. At the end of a transaction, states in
//! which the transaction has not taken effect are expanded until it has. States in which it cannot
//! take effect are dropped.
//!
//! Rules that keep the number of states small, with the reasons why they lose no order:
//!
//! - A transaction that changes nothing takes effect as soon as it can.
//! - A value is overwritten only when every transaction that reads it has begun, because it is
//!   written only once. If it is known which swap replaced a value, no other transaction may
//!   overwrite it.
//! - If no later transaction has to find the values of a blind write, the write takes effect just
//!   before another write that overwrites all its keys. A write that a failed swap may need is
//!   exempt from this rule.
//! - Of several writes to the same keys with values that no transaction finds, the one that ends
//!   first takes effect first.
//! - Take two states that differ only in which unanswered transactions took effect. If one set is
//!   contained in the other, the state with the smaller set is enough.

use smallvec::SmallVec;

use super::prepare::{ABSENT, Effect, NEVER, PreparedTransactions, Txn, TxnTime, ValueNumber};
use crate::linearizability::frontier::{self, Bounds, SLOTS, bits};

/// Maximum number of states that may be expanded when one transaction ends.
const STATES_DEVELOPED: usize = 1 << 18;

type TxnState = frontier::SearchState<SmallVec<[ValueNumber; 8]>>;

/// Result of a search.
#[derive(Debug)]
pub(super) enum SearchOutcome {
    /// There is an order that explains every answer.
    Ordered,
    /// There is no such order.
    Contradiction,
    /// The bounds were reached before there was a result.
    TooMany { reason: String },
}

/// Searches for an order. Expands at most `steps` states, and subtracts the number of expanded
/// states from `steps`.
pub(super) fn run(prepared: &PreparedTransactions, steps: &mut usize) -> SearchOutcome {
    let mut search = TxnSearch::new(prepared, *steps);
    let outcome = search.run();
    *steps = search.steps;
    outcome.map_or_else(|outcome| outcome, |()| SearchOutcome::Ordered)
}

/// Kind of a tick. At one moment, begins come before ends. So if one transaction ends at the moment
/// at which another transaction begins, the two transactions overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TickKind {
    Begin,
    End,
    /// The transaction never ends, and no answer can depend on it any more.
    Forget,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct TxnTick {
    at: TxnTime,
    kind: TickKind,
    txn: usize,
}

/// Keys that a transaction changes. The flag of a key is true if the transaction deletes the key.
type Changes = SmallVec<[(usize, bool); 2]>;

struct TxnSearch<'p> {
    prepared: &'p PreparedTransactions,
    /// For each slot, the transaction in flight that occupies it.
    slots: [usize; SLOTS],
    taken: u128,
    /// Slots of the transactions that never end, as a set of bits.
    unanswered: u128,
    /// Slots of the transactions that change nothing, as a set of bits.
    reads: u128,
    states: Vec<TxnState>,
    now: TxnTime,
    /// Number of states that may still be expanded.
    steps: usize,
}

impl<'p> TxnSearch<'p> {
    fn new(prepared: &'p PreparedTransactions, steps: usize) -> Self {
        let held = SmallVec::from_elem(ABSENT, prepared.keys.len());
        TxnSearch {
            prepared,
            slots: [0; SLOTS],
            taken: 0,
            unanswered: 0,
            reads: 0,
            states: vec![TxnState { held, done: 0 }],
            now: 0,
            steps,
        }
    }

    fn run(&mut self) -> Result<(), SearchOutcome> {
        for tick in ticks(&self.prepared.txns) {
            self.now = tick.at;
            match tick.kind {
                TickKind::Begin => self.begin(tick.txn)?,
                TickKind::End => self.end(tick.txn)?,
                TickKind::Forget => {
                    let slot = bits(self.unanswered).find(|&slot| self.slots[slot] == tick.txn);
                    self.forget(slot.map_or(0, |slot| 1 << slot));
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, txn: usize) -> Result<(), SearchOutcome> {
        let slot = (!self.taken).trailing_zeros() as usize;
        if slot >= SLOTS {
            let reason = format!("more than {SLOTS} transactions in flight at once");
            return Err(SearchOutcome::TooMany { reason });
        }
        let bit = 1 << slot;
        self.slots[slot] = txn;
        self.taken |= bit;
        let txn = &self.prepared.txns[txn];
        if txn.end == NEVER {
            self.unanswered |= bit;
        }
        if txn.is_read {
            self.reads |= bit;
            for state in &mut self.states {
                if is_possible(txn, &state.held) {
                    state.done |= bit;
                }
            }
        }
        Ok(())
    }

    fn end(&mut self, txn: usize) -> Result<(), SearchOutcome> {
        let slot = bits(self.taken).find(|&slot| self.slots[slot] == txn);
        let slot = slot.expect("every transaction begins before it ends");
        let bit = 1 << slot;
        if !self.states.iter().all(|state| state.done & bit != 0) {
            self.states = self.develop(bit)?;
            if self.states.is_empty() {
                return Err(SearchOutcome::Contradiction);
            }
        }
        self.forget(bit);
        if self.unanswered != 0 {
            self.forget(frontier::completed_in_all(&self.states, self.unanswered));
            frontier::drop_wasteful(&mut self.states, self.unanswered);
        }
        Ok(())
    }

    /// Frees slots, and merges states that have become equal.
    fn forget(&mut self, slots: u128) {
        self.taken &= !slots;
        self.unanswered &= !slots;
        self.reads &= !slots;
        for state in &mut self.states {
            state.done &= !slots;
        }
        self.states.sort_unstable();
        self.states.dedup();
    }

    /// Returns every state in which the transaction that `bit` denotes has just taken effect.
    fn develop(&mut self, bit: u128) -> Result<Vec<TxnState>, SearchOutcome> {
        let mut steps = self.steps;
        let bounds = Bounds {
            steps: &mut steps,
            at_once: STATES_DEVELOPED,
        };
        let states = std::mem::take(&mut self.states);
        let developed = frontier::develop(states, bit, self.unanswered, bounds, |state, next| {
            for slot in self.choices(state) {
                next.push(self.apply(state, slot));
            }
        });
        self.steps = steps;
        developed.ok_or_else(|| SearchOutcome::TooMany {
            reason: frontier::TOO_MANY.to_owned(),
        })
    }

    /// Returns the slots of transactions that could take effect next and change the keys.
    fn choices(&self, state: &TxnState) -> impl Iterator<Item = usize> + use<> {
        let mut possible: u128 = 0;
        // Of writes with the same effect, keeps the one that ends first.
        let mut alike: SmallVec<[(Changes, usize); 8]> = SmallVec::new();
        for slot in bits(self.taken & !self.reads & !state.done) {
            let txn = self.txn(slot);
            if !is_possible(txn, &state.held) || !self.may_overwrite(slot, state) {
                continue;
            }
            let Some(kind) = self.alike(txn) else {
                possible |= 1 << slot;
                continue;
            };
            match alike.iter_mut().find(|(of, _)| *of == kind) {
                None => alike.push((kind, slot)),
                Some((_, first)) if self.txn(*first).end > txn.end => *first = slot,
                Some(_) => {}
            }
        }
        for (_, slot) in alike {
            possible |= 1 << slot;
        }
        bits(possible)
    }

    /// Returns the changes that a blind write makes. Returns `None` if the transaction is not a
    /// blind write, or if an answer depends on a value that it writes.
    fn alike(&self, txn: &Txn) -> Option<Changes> {
        let change = |&(key, effect): &(usize, Effect)| {
            let Effect::Write(value) = effect else {
                return None;
            };
            let is_wanted = self.prepared.keys[key].uses[value as usize].is_wanted;
            let is_alike = value == ABSENT || !is_wanted;
            is_alike.then_some((key, value == ABSENT))
        };
        let mut changes = txn.parts.iter().map(change).collect::<Option<Changes>>()?;
        changes.sort_unstable();
        Some(changes)
    }

    /// Whether the transaction in `slot` may now overwrite the present values of the keys that it
    /// changes.
    fn may_overwrite(&self, slot: usize, state: &TxnState) -> bool {
        let changed = |(_, effect): &&(usize, Effect)| effect.leaves().is_some();
        let may_leave = |&(key, _): &(usize, Effect)| {
            let uses = self.prepared.keys[key].uses[state.held[key] as usize];
            let successor = uses.successor;
            uses.last_read <= self.now && successor.is_none_or(|next| next == self.slots[slot])
        };
        self.txn(slot).parts.iter().filter(changed).all(may_leave)
    }

    fn apply(&self, state: &TxnState, slot: usize) -> TxnState {
        let txn = self.txn(slot);
        let mut state = state.clone();
        if txn.is_blind {
            for other in bits(self.taken & !self.reads & !state.done & !(1 << slot)) {
                if self.may_hide(other, txn) {
                    self.hide(&mut state, other);
                }
            }
        }
        self.change(&mut state, slot);
        state
    }

    /// Whether `over` may overwrite the values of the transaction in `slot` immediately. This is
    /// possible if no later transaction needs these values. Transactions in flight are not
    /// considered here, because `hide` checks them.
    fn may_hide(&self, slot: usize, over: &Txn) -> bool {
        let txn = self.txn(slot);
        let is_gone = |&(key, effect): &(usize, Effect)| {
            let Effect::Write(value) = effect else {
                return false;
            };
            let uses = self.prepared.keys[key].uses[value as usize];
            let is_done = value != ABSENT && uses.successor.is_none() && uses.last_read <= self.now;
            (is_done || !uses.is_wanted) && over.parts.iter().any(|(of, _)| *of == key)
        };
        !txn.explains_a_failure && txn.parts.iter().all(is_gone)
    }

    /// Lets the transaction in `slot` take effect, if no transaction in flight still has to read
    /// one of its values afterwards.
    fn hide(&self, state: &mut TxnState, slot: usize) {
        let mut hidden = state.clone();
        self.change(&mut hidden, slot);
        let waits = |&reader: &usize| {
            let wrote = |part| self.txn(slot).parts.contains(&part);
            let needs = |&(key, effect): &(usize, Effect)| match effect {
                Effect::Read(value) => wrote((key, Effect::Write(value))),
                _ => false,
            };
            self.txn(reader).parts.iter().any(needs)
        };
        if !bits(self.taken & !hidden.done).any(|reader| waits(&reader)) {
            *state = hidden;
        }
    }

    /// Lets the transaction in `slot` change the keys. Then lets each read take effect, if the
    /// answer of the read matches the new contents.
    fn change(&self, state: &mut TxnState, slot: usize) {
        state.done |= 1 << slot;
        for &(key, effect) in &self.txn(slot).parts {
            if let Some(new) = effect.leaves() {
                state.held[key] = new;
            }
        }
        for read in bits(self.reads & !state.done) {
            if is_possible(self.txn(read), &state.held) {
                state.done |= 1 << read;
            }
        }
    }

    fn txn(&self, slot: usize) -> &'p Txn {
        &self.prepared.txns[self.slots[slot]]
    }
}

/// Whether the answer of a transaction is right if the keys hold `held` when the transaction takes
/// effect.
fn is_possible(txn: &Txn, held: &[ValueNumber]) -> bool {
    txn.parts.iter().all(|&(key, effect)| match effect {
        Effect::Read(found) => held[key] == found,
        Effect::Fail(expected) => held[key] != expected,
        Effect::Swap { expected, .. } => held[key] == expected,
        Effect::Write(_) => true,
    })
}

fn ticks(txns: &[Txn]) -> Vec<TxnTick> {
    let mut ticks = Vec::with_capacity(txns.len() * 2);
    for (txn, of) in txns.iter().enumerate() {
        let (last, kind) = match of.end {
            NEVER => (of.last_use, TickKind::Forget),
            end => (end, TickKind::End),
        };
        let tick = |at, kind| TxnTick { at, kind, txn };
        ticks.extend([tick(of.begin, TickKind::Begin), tick(last, kind)]);
    }
    ticks.sort_unstable();
    ticks
}
