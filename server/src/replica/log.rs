//! One log of slots: what is accepted, committed and executed here.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use client::wire::command::Op;
use leases::mutants::{Rule, off};
use leases::{Ballot, ReplicaSet, Slot, Time};

use super::commit::Votes;
use super::message::{Batch, LogNews, Value};
use super::ranges::Ranges;

/// Slots this far above the executed ones are refused: a peer cannot make the
/// log of another grow without end.
pub const WINDOW_MAX: u64 = 1 << 20;
/// Executed entries kept in memory for laggards: slots, and bytes.
const KEEP_SLOTS: usize = 8192;
const KEEP_BYTES: usize = 16 << 20;

/// An accepted value and what its leader said with it.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// At which ballot.
    pub ballot: Ballot,
    /// What.
    pub value: Value,
    /// Whether the acceptance is durable here.
    pub durable: bool,
    /// The highest slot not above this one that may hold a multi-key command.
    pub last_multi: Slot,
    /// A bit per command: execution cannot refuse it.
    pub sure: Arc<[u64]>,
    /// Origins with a command in it.
    pub origins: ReplicaSet,
    /// The tag when it was accepted, for the mutant that votes with it (hazard 7).
    pub early_tag: Option<ReplicaSet>,
    /// Leader: when it was proposed, and when it was last sent.
    pub proposed: Time,
    /// Leader: when it was last sent.
    pub sent: Time,
}

impl Accepted {
    /// Whether execution cannot refuse command `index`.
    pub fn sure(&self, index: usize) -> bool {
        self.sure
            .get(index / 64)
            .is_some_and(|word| word >> (index % 64) & 1 == 1)
    }
}

impl Hash for Accepted {
    /// When it was proposed or sent decides only whom to suspect and what to send
    /// again: not before the horizon.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.ballot, &self.value, self.durable).hash(state);
        (self.last_multi, &self.sure, self.origins).hash(state);
        self.early_tag.hash(state);
    }
}

/// One slot.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// What is accepted in it.
    pub accepted: Option<Accepted>,
    /// Acceptances heard of, possibly before the value itself.
    pub votes: Votes,
    /// The accepted value is the chosen one.
    pub committed: bool,
}

impl Hash for Cell {
    /// Nobody counts the votes of a committed slot again.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.accepted, self.committed).hash(state);
        if !self.committed {
            self.votes.hash(state);
        }
    }
}

/// One log. Invariant: `executed <= commit_point`; every cell at or below
/// `commit_point` and above `executed` is committed and has a value.
#[derive(Clone, Debug, Default, Hash)]
pub struct Log {
    cells: BTreeMap<Slot, Cell>,
    kept_bytes: usize,
    /// Every slot up to here is committed here.
    pub commit_point: Slot,
    /// Slots committed above the commit point.
    pub above: Ranges,
    /// Every slot up to here is executed.
    pub executed: Slot,
    /// The highest accepted slot, counting those on their way to disk.
    pub highest: Slot,
    /// Where ballots began.
    pub log_starts: BTreeMap<Ballot, Slot>,
    /// The adopted ballot, where it began, and its leader's commit point as heard.
    pub adopted: (Ballot, Slot),
    /// See `adopted`.
    pub heard_commit: Slot,
}

impl Log {
    /// A log whose slots up to `executed` are executed and no longer in memory.
    pub fn restored(executed: Slot) -> Log {
        Log {
            executed,
            commit_point: executed,
            highest: executed,
            ..Log::default()
        }
    }

    /// The cell of `slot`, if there is one.
    pub fn get(&self, slot: Slot) -> Option<&Cell> {
        self.cells.get(&slot)
    }

    /// The cell of `slot`, if there is one.
    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut Cell> {
        self.cells.get_mut(&slot)
    }

    /// The cell of an unexecuted slot, made if need be; `None` outside the window.
    pub fn cell(&mut self, slot: Slot) -> Option<&mut Cell> {
        let within = slot > self.executed && slot.0 - self.executed.0 <= WINDOW_MAX;
        within.then(|| self.cells.entry(slot).or_default())
    }

    /// Cells from `first` on, rising.
    pub fn from(&self, first: Slot) -> impl Iterator<Item = (Slot, &Cell)> {
        self.cells.range(first..).map(|(slot, cell)| (*slot, cell))
    }

    /// Unexecuted cells, rising.
    pub fn unexecuted(&self) -> impl Iterator<Item = (Slot, &Cell)> {
        self.from(self.executed.next())
    }

    /// Adds to `found` the slots of `first..=last`, not known to be committed, that
    /// were accepted at `ballot`; returns whether there are any others. Looks at
    /// entries, not at slots: a laggard may miss a million.
    pub fn accepted_at(
        &self,
        ballot: Ballot,
        first: Slot,
        last: Slot,
        found: &mut Vec<Slot>,
    ) -> bool {
        let (before, mut missing) = (found.len(), 0);
        for (first, last) in self.above.gaps(first.max(self.commit_point.next()), last) {
            missing += last.0 - first.0 + 1;
            let cells = self.cells.range(first..=last);
            let at = cells.filter(|(_, cell)| {
                let accepted = cell.accepted.as_ref();
                accepted.is_some_and(|accepted| accepted.ballot == ballot || off(Rule::H28Ballot))
            });
            found.extend(at.map(|(slot, _)| *slot));
        }
        missing > (found.len() - before) as u64
    }

    /// Accepted, uncommitted slots, rising.
    pub fn uncommitted(&self) -> impl Iterator<Item = (Slot, &Accepted)> {
        self.from(self.commit_point.next())
            .filter(|(_, cell)| !cell.committed)
            .filter_map(|(slot, cell)| cell.accepted.as_ref().map(|accepted| (slot, accepted)))
    }

    /// Whether `slot` is known to be committed here.
    pub fn is_committed(&self, slot: Slot) -> bool {
        slot <= self.commit_point || self.above.contains(slot)
    }

    /// Remembers that `slot` is committed. Returns whether that is new.
    pub fn commit(&mut self, slot: Slot) -> bool {
        if self.is_committed(slot) {
            return false;
        }
        self.above.insert(slot);
        if let Some(last) = self.above.take_from(self.commit_point.next()) {
            self.commit_point = last;
        }
        true
    }

    /// Forgets where ballots began that can kill no entry any more: once the
    /// opening no-op of a later one is committed, that one kills whatever they
    /// would above it, and below it every slot is decided. Returns the first
    /// ballot kept, if any was forgotten.
    pub fn forget_log_starts(&mut self) -> Option<Ballot> {
        if self.log_starts.len() < 2 {
            return None;
        }
        let committed = |(_, start): &(&Ballot, &Slot)| **start <= self.commit_point;
        let below = *self.log_starts.iter().rev().find(committed)?.0;
        let kept = self.log_starts.split_off(&below);
        let forgotten = std::mem::replace(&mut self.log_starts, kept);
        (!forgotten.is_empty()).then_some(below)
    }

    /// Whether everything up to `slot` is committed, as far as this replica or
    /// the leader of `ballot` knows.
    pub fn all_committed_to(&self, slot: Slot, ballot: Ballot) -> bool {
        slot <= self.commit_point || (self.adopted.0 == ballot && slot <= self.heard_commit)
    }

    /// Takes note of the highest accepted slot after entries were dropped.
    pub fn recount_highest(&mut self) {
        let accepted = |(_, cell): &(&Slot, &Cell)| cell.accepted.is_some();
        let top = self
            .cells
            .iter()
            .rev()
            .find(accepted)
            .map(|(slot, _)| *slot);
        self.highest = top.unwrap_or(Slot::ZERO).max(self.executed);
    }

    /// Drops accepted, uncommitted entries of ballots below `ballot` above
    /// `start`; returns them.
    pub fn drop_dead(&mut self, ballot: Ballot, start: Slot) -> Vec<(Slot, Value)> {
        let from = Slot(start.max(self.executed).0.saturating_add(1));
        let mut dead = Vec::new();
        for (slot, cell) in self.cells.range_mut(from..) {
            if cell
                .accepted
                .as_ref()
                .is_some_and(|accepted| accepted.ballot < ballot)
            {
                // §1: above log_start(b) nothing of a lower ballot was or can be chosen.
                assert!(
                    !cell.committed,
                    "slot {slot:?} is committed and dead at {ballot:?}"
                );
                dead.extend(cell.accepted.take().map(|accepted| (*slot, accepted.value)));
            }
        }
        if !dead.is_empty() {
            self.recount_highest();
        }
        dead
    }

    /// Moves past the executed `slot`, keeping what laggards may still ask for.
    pub fn executed(&mut self, slot: Slot, weight: usize) {
        assert_eq!(slot, self.executed.next(), "execution is in slot order");
        assert!(
            slot <= self.commit_point,
            "only committed slots are executed"
        );
        self.executed = slot;
        self.highest = self.highest.max(slot);
        self.kept_bytes += weight;
        while self.kept_bytes > KEEP_BYTES || self.first_kept_is_old() {
            let Some(first) = self.cells.first_key_value().map(|(slot, _)| *slot) else {
                break;
            };
            if first >= self.executed {
                break;
            }
            if let Some(value) = self.cells.remove(&first).and_then(|cell| cell.accepted) {
                self.kept_bytes = self.kept_bytes.saturating_sub(weigh(&value.value));
            }
        }
    }

    fn first_kept_is_old(&self) -> bool {
        let first = self.cells.first_key_value();
        first.is_some_and(|(slot, _)| slot.0 + (KEEP_SLOTS as u64) < self.executed.0)
    }

    /// The first slot whose entry is still in memory.
    pub fn first_kept(&self) -> Slot {
        self.cells
            .first_key_value()
            .map_or(self.executed.next(), |(slot, _)| *slot)
    }

    /// What a leader tells of its commits.
    pub fn news(&self) -> LogNews {
        LogNews {
            commit_point: self.commit_point,
            above: self.above.to_vec(),
            log_start: self.adopted.1,
        }
    }
}

/// About how many bytes a value keeps in memory.
pub fn weigh(value: &Value) -> usize {
    match value {
        Value::Noop => 64,
        Value::Config(change) => {
            let keys = change.keys.iter().flat_map(|(_, keys)| keys);
            keys.map(|key| key.len() + 32).sum::<usize>() + 128
        }
        Value::Commands(batch) => batch_weight(batch),
    }
}

fn batch_weight(batch: &Batch) -> usize {
    batch
        .commands
        .iter()
        .map(|p| 96 + command_weight(&p.command))
        .sum()
}

/// About how many bytes a command takes on the wire.
pub fn command_weight(command: &client::wire::Command) -> usize {
    match &command.op {
        Some(Op::Put(put)) => put.key.len() + put.value.len(),
        Some(Op::Cas(cas)) => cas.key.len() + cas.value.len(),
        Some(Op::PutFields(put)) => {
            let fields = put.fields.iter().map(|f| f.name.len() + f.value.len() + 8);
            put.key.len() + fields.sum::<usize>()
        }
        Some(Op::MultiPut(multi)) => multi
            .entries
            .iter()
            .map(|e| e.key.len() + e.value.len() + 8)
            .sum(),
        Some(Op::MultiGet(multi)) => multi.keys.iter().map(|k| k.len() + 4).sum(),
        Some(Op::Get(get)) => get.key.len(),
        Some(Op::Delete(delete)) => delete.key.len(),
        Some(Op::Scan(scan)) => scan.from.len() + scan.to.len(),
        None => 0,
    }
}

/// Splits `items` so that each part fits well into a frame, unless a single item
/// is larger; `weight` is about an item's bytes.
pub fn chunks<T>(items: Vec<T>, weight: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    const PART_BYTES: usize = 1 << 20;
    let mut parts = Vec::new();
    let (mut part, mut bytes) = (Vec::new(), 0);
    for item in items {
        let weight = weight(&item) + 64;
        if !part.is_empty() && bytes + weight > PART_BYTES {
            parts.push(std::mem::take(&mut part));
            bytes = 0;
        }
        bytes += weight;
        part.push(item);
    }
    parts.extend((!part.is_empty()).then_some(part));
    parts
}
