//! One log: the slots that are accepted, committed and executed here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{Ballot, Slot};

use super::cell::{Accepted, Cell};
use super::ranges::Ranges;
use crate::message::{LogId, LogNews, ReportedEntry, Value};
use crate::parts::NEWS_RANGES_MAX;

/// Maximum size of the executed slots that stay in memory for followers that lag, in bytes.
const KEEP_BYTES: usize = 16 << 20;

/// State of one log. Invariant: `executed <= commit_point`, and every cell above `executed` and up
/// to `commit_point` is committed and has a value.
#[derive(Clone, Debug, Default, Hash)]
pub struct Log {
    /// Cells of unexecuted slots.
    open: BTreeMap<Slot, Box<Cell>>,
    /// Cells of the newest executed slots. No slot between them is missing, and the last cell
    /// belongs to the slot `executed`.
    kept: VecDeque<Box<Cell>>,
    kept_bytes: usize,
    /// Maximum number of slots in `kept`. The last executed slot stays in memory in any case.
    kept_max: usize,
    /// Commit point: this slot and all earlier slots are committed here.
    pub(super) commit_point: Slot,
    /// Cost of the slots that are committed but not executed, in units of `crate::cost`. These are
    /// the slots above `executed`, up to `commit_point`.
    to_execute_work: usize,
    /// Committed slots above the commit point.
    pub(super) above: Ranges,
    /// Last executed slot. All earlier slots are executed, too.
    pub(super) executed: Slot,
    /// Slot up to which the executed state is durable.
    flushed: Slot,
    /// Number of slots in the window; see [`Log::end`].
    window: u64,
    /// Highest accepted slot. The entry of this slot may not be durable yet.
    pub(super) highest: Slot,
    /// Slot at which each ballot began.
    pub(super) log_starts: BTreeMap<Ballot, Slot>,
    /// Adopted ballot, and the slot at which it began.
    pub(super) adopted: (Ballot, Slot),
    /// Uncommitted slots with an entry of the adopted ballot. A report of commits looks only at
    /// these, because a replica that lags may have thousands of other open slots.
    reportable: BTreeSet<Slot>,
    /// Newest commit point that the leader of the adopted ballot has reported.
    pub(super) heard_commit: Slot,
}

impl Log {
    /// Returns a log with a window of `window` slots. All slots up to `executed` are executed and
    /// durable, and are no longer in memory.
    pub fn restored(executed: Slot, window: u64, kept_max: usize) -> Log {
        Log {
            executed,
            flushed: executed,
            window,
            kept_max,
            commit_point: executed,
            highest: executed,
            ..Log::default()
        }
    }

    /// Last executed slot. All earlier slots are executed, too.
    pub fn executed(&self) -> Slot {
        self.executed
    }

    /// Commit point: this slot and all earlier slots are committed here.
    pub fn commit_point(&self) -> Slot {
        self.commit_point
    }

    /// Returns the number of slots above the commit point that are committed.
    pub fn committed_above(&self) -> u64 {
        self.above.len()
    }

    /// Highest accepted slot. The entry of this slot may not be durable yet.
    pub fn highest(&self) -> Slot {
        self.highest
    }

    /// Returns the slot at which the adopted ballot began: the slot of the ballot's opening no-op.
    pub fn start(&self) -> Slot {
        self.adopted.1
    }

    /// Whether the leader has reported commits that this replica does not know.
    pub fn misses_commits(&self) -> bool {
        self.heard_commit > self.commit_point
    }

    /// Returns the cell of `slot`, if there is one.
    pub fn get(&self, slot: Slot) -> Option<&Cell> {
        if slot > self.executed {
            return self.open.get(&slot).map(Box::as_ref);
        }
        self.kept.get(self.place(slot)?).map(Box::as_ref)
    }

    /// Returns the cell of `slot`, if there is one.
    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut Cell> {
        if slot > self.executed {
            return self.open.get_mut(&slot).map(Box::as_mut);
        }
        let place = self.place(slot)?;
        self.kept.get_mut(place).map(Box::as_mut)
    }

    /// Returns the last slot of the window. This replica accepts values only in the window. The
    /// window begins at the durable state, because a restart continues from this state and must
    /// keep every entry that was accepted above it (hazard 78). The window limits the number of
    /// entries that a restart reads. It also limits how much a peer can make the log grow.
    pub fn end(&self) -> Slot {
        Slot(self.window_start().0.saturating_add(self.window))
    }

    fn window_start(&self) -> Slot {
        if off(Rule::H78Durable) {
            self.executed
        } else {
            self.flushed
        }
    }

    /// Whether the window permits this replica to accept `value` in `slot`.
    pub fn has_room(&self, slot: Slot, value: &Value) -> bool {
        is_within(self.window_start(), self.window, slot, value)
    }

    /// Returns whether a leader may propose a new value in `slot` (hazard 79). A leader proposes
    /// only in the first half of its window, because the window of a replica with an older durable
    /// state ends earlier.
    pub fn may_propose(&self, slot: Slot) -> bool {
        let last = self.window_start().0.saturating_add(self.window / 2);
        slot.0 <= last || off(Rule::H79Room)
    }

    /// Returns whether the state must be flushed early: half of the slots in which a leader may
    /// propose were executed since the last flush. `requested` is the last slot that the newest
    /// requested flush covers.
    pub fn wants_flush(&self, requested: Slot) -> bool {
        self.executed.0 - requested.0 >= self.window / 4 && !off(Rule::H78Durable)
    }

    /// Notes that the executed state up to `slot` is durable. Returns whether the window was full:
    /// every slot in it was committed.
    pub fn note_flushed(&mut self, slot: Slot) -> bool {
        assert!(
            self.flushed <= slot && slot <= self.executed,
            "the durable state does not go back, and holds only executed slots"
        );
        let waited = self.commit_point >= self.end();
        self.flushed = slot;
        waited
    }

    /// Returns the number of used slots in the window.
    pub fn used(&self) -> u64 {
        self.highest.0 - self.flushed.0
    }

    /// Returns the cell of an unexecuted slot. Creates the cell if there is none. Returns `None` if
    /// the slot is outside the window.
    pub fn cell(&mut self, slot: Slot) -> Option<&mut Cell> {
        let within = slot > self.executed && self.has_room(slot, &Value::Noop);
        within.then(|| self.restored_cell(slot))
    }

    /// Returns the cell of an unexecuted slot, without a check of the window. Creates the cell if
    /// there is none. A restart uses this function for entries that an earlier run accepted.
    pub fn restored_cell(&mut self, slot: Slot) -> &mut Cell {
        assert!(slot > self.executed, "slot {slot:?} is executed");
        self.open.entry(slot).or_default().as_mut()
    }

    /// Returns the index of an executed slot in `kept`; `None` if the slot is older than all slots
    /// in `kept`.
    fn place(&self, slot: Slot) -> Option<usize> {
        Some(slot.0.checked_sub(self.first_kept().0)? as usize)
    }

    /// Returns the cells of slot `first` and all later slots, in rising order.
    pub fn from(&self, first: Slot) -> impl Iterator<Item = (Slot, &Cell)> {
        let kept = self.first_kept().0;
        let skipped = first.0.saturating_sub(kept).min(self.kept.len() as u64);
        let executed = self.kept.range(skipped as usize..);
        let executed = (kept + skipped..).map(Slot).zip(executed);
        let open = self.open.range(first..).map(|(slot, cell)| (*slot, cell));
        executed
            .chain(open)
            .map(|(slot, cell)| (slot, cell.as_ref()))
    }

    /// Returns the cells of unexecuted slots, in rising order.
    pub fn unexecuted(&self) -> impl Iterator<Item = (Slot, &Cell)> {
        self.open.iter().map(|(slot, cell)| (*slot, cell.as_ref()))
    }

    /// Examines the slots of `first..=last` that are not known to be committed. Adds the slots with
    /// an entry of the adopted ballot to `found`. Returns true if at least one examined slot has no
    /// such entry. The cost does not grow with the number of examined slots. Every message of a
    /// leader reports commits, and a follower that lags may miss a million slots.
    pub fn reported(&self, first: Slot, last: Slot, found: &mut Vec<Slot>) -> bool {
        let (before, mut missing) = (found.len(), 0);
        for (first, last) in self.above.gaps(first.max(self.commit_point.next()), last) {
            missing += last.0 - first.0 + 1;
            if off(Rule::H28Ballot) {
                let cells = self.open.range(first..=last);
                let accepted = cells.filter(|(_, cell)| cell.accepted.is_some());
                found.extend(accepted.map(|(slot, _)| *slot));
            } else {
                found.extend(self.reportable.range(first..=last));
            }
        }
        missing > (found.len() - before) as u64
    }

    /// Notes that an entry of `ballot` was accepted in `slot`.
    pub fn note_accepted(&mut self, slot: Slot, ballot: Ballot) {
        self.highest = self.highest.max(slot);
        if ballot == self.adopted.0 && !self.is_committed(slot) {
            self.reportable.insert(slot);
        } else {
            self.reportable.remove(&slot);
        }
    }

    /// Returns the accepted entries that are not committed, in rising order of slots.
    pub fn uncommitted(&self) -> impl DoubleEndedIterator<Item = (Slot, &Accepted)> {
        let gaps = self.above.gaps(self.commit_point.next(), Slot(u64::MAX));
        let cells = gaps
            .into_iter()
            .flat_map(|(first, last)| self.open.range(first..=last));
        cells.filter_map(|(slot, cell)| Some((*slot, cell.accepted.as_ref()?)))
    }

    /// Whether `slot` is known to be committed here.
    pub fn is_committed(&self, slot: Slot) -> bool {
        slot <= self.commit_point || self.above.contains(slot)
    }

    /// Notes that `slot` is committed. Returns whether this is new to this replica.
    pub fn commit(&mut self, slot: Slot) -> bool {
        if self.is_committed(slot) {
            return false;
        }
        assert!(
            slot > self.executed,
            "an executed slot is committed already"
        );
        self.reportable.remove(&slot);
        self.above.insert(slot);
        if let Some(last) = self.above.take_from(self.commit_point.next()) {
            let committed = self.open.range(self.commit_point.next()..=last);
            let work = committed.map(|(_, cell)| cell.work());
            self.to_execute_work += work.sum::<usize>();
            self.commit_point = last;
        }
        true
    }

    /// Notes that all slots up to `last` were committed before a restart.
    ///
    /// # Panics
    /// If the entry of an unexecuted slot is missing: every entry was recorded before the commit
    /// point.
    pub fn restore_commits(&mut self, last: Slot) {
        for slot in (self.executed.0 + 1..=last.0).map(Slot) {
            let cell = self.open.get_mut(&slot);
            let cell = cell.filter(|cell| cell.accepted.is_some());
            cell.expect("the log holds the entries up to its commit point")
                .committed = true;
            self.commit(slot);
        }
    }

    /// Returns the cost of the slots that are committed but not executed, in units of
    /// [`crate::cost`].
    pub fn to_execute_work(&self) -> usize {
        self.to_execute_work
    }

    /// Forgets the slots at which earlier ballots began, once the opening no-op of a later ballot
    /// is committed. These slots are then no longer needed to find dead entries. Every slot below
    /// the no-op is decided. Above the no-op, every entry that is dead because of an earlier ballot
    /// is also dead because of the later ballot. Returns the lowest ballot that is still
    /// remembered; `None` if nothing was forgotten.
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

    /// Returns the entry accepted in `slot`, if it is still in memory.
    pub fn accepted(&self, slot: Slot) -> Option<&Accepted> {
        self.get(slot)?.accepted.as_ref()
    }

    /// Returns every entry accepted in slot `first` or later, in the form in which Phase 1 reports
    /// entries.
    pub fn report(&self, log: LogId, first: Slot) -> impl Iterator<Item = ReportedEntry> + '_ {
        self.from(first).filter_map(move |(slot, cell)| {
            let accepted = cell.accepted.as_ref()?;
            let (ballot, value) = (accepted.ballot, accepted.value.clone());
            Some(ReportedEntry {
                log,
                slot,
                ballot,
                value,
            })
        })
    }

    /// Adopts a ballot that began at `start`. Resets the commits that a leader has reported,
    /// because the leader of this ballot has not reported any yet.
    pub fn begin_ballot(&mut self, ballot: Ballot, start: Slot) {
        assert!(
            ballot > self.adopted.0,
            "ballots are adopted in rising order"
        );
        self.adopted = (ballot, start);
        self.heard_commit = Slot::ZERO;
        self.log_starts.insert(ballot, start);
        self.reportable = self.of_adopted_ballot().collect();
    }

    /// Returns the slots of the uncommitted entries of the adopted ballot, in rising order.
    fn of_adopted_ballot(&self) -> impl Iterator<Item = Slot> {
        let of_ballot = |(_, known): &(Slot, &Accepted)| known.ballot == self.adopted.0;
        self.uncommitted().filter(of_ballot).map(|(slot, _)| slot)
    }

    /// Whether the leader has reported commits of slots that are not executed here.
    pub fn lags(&self) -> bool {
        self.executed < self.heard_commit
    }

    /// Whether the *infallible* blind writes in this committed slot may be answered at commit
    /// (protocol §1).
    pub fn is_answerable(&self, slot: Slot, accepted: &Accepted) -> bool {
        let (ballot, start) = self.adopted;
        accepted.ballot == ballot
            && slot > start
            // `last_multi` refers only to its own ballot: everything before that must be committed
            // (hazard 38).
            && (self.all_committed_to(start, ballot) || off(Rule::H38LogStart))
            // No multi-key command before the slot may still be uncommitted (hazard 34).
            && (self.all_committed_to(accepted.last_multi, ballot) || off(Rule::H34LastMulti))
    }

    /// Whether every slot up to `slot` is committed, according to this replica's own commits or to
    /// the report of the leader of `ballot`.
    fn all_committed_to(&self, slot: Slot, ballot: Ballot) -> bool {
        slot <= self.commit_point || (self.adopted.0 == ballot && slot <= self.heard_commit)
    }

    /// Recomputes the highest accepted slot after entries were dropped.
    pub fn recount_highest(&mut self) {
        let mut cells = self.open.iter().rev();
        let top = cells.find(|(_, cell)| cell.accepted.is_some());
        let top = top.map(|(slot, _)| *slot);
        self.highest = top.unwrap_or(Slot::ZERO).max(self.executed);
        assert!(
            self.highest >= self.commit_point,
            "no committed entry is dropped"
        );
    }

    /// Drops the accepted, uncommitted entries above `start` that belong to ballots below `ballot`.
    /// Returns the dropped entries.
    pub fn drop_dead(&mut self, ballot: Ballot, start: Slot) -> Vec<(Slot, Value)> {
        let from = Slot(start.max(self.executed).0.saturating_add(1));
        let mut dead = Vec::new();
        for (slot, cell) in self.open.range_mut(from..) {
            if cell
                .accepted
                .as_ref()
                .is_some_and(|accepted| accepted.ballot < ballot)
            {
                // §1: above log_start(b) no entry of a lower ballot was or can be chosen.
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

    /// Notes that `slot` was executed. Its cell stays in memory for a while, for followers that
    /// lag.
    pub fn advance_executed(&mut self, slot: Slot) {
        assert_eq!(slot, self.executed.next(), "execution is in slot order");
        assert!(
            slot <= self.commit_point,
            "only committed slots are executed"
        );
        let cell = self
            .open
            .remove(&slot)
            .expect("a committed, unexecuted slot has a cell");
        let (size, work) = (cell.size_estimate(), cell.work());
        self.executed = slot;
        self.highest = self.highest.max(slot);
        self.to_execute_work = self.to_execute_work.saturating_sub(work);
        self.kept_bytes += size;
        while self.kept.len() >= self.kept_max || self.kept_bytes > KEEP_BYTES {
            let Some(oldest) = self.kept.pop_front() else {
                break;
            };
            self.kept_bytes = self.kept_bytes.saturating_sub(oldest.size_estimate());
        }
        self.kept.push_back(cell);
    }

    /// Returns the first executed slot that is still in memory, or else the first unexecuted slot.
    pub fn first_kept(&self) -> Slot {
        Slot(self.executed.0 + 1 - self.kept.len() as u64)
    }

    /// Returns a leader's report of the commits in this log.
    pub fn news(&self) -> LogNews {
        LogNews {
            commit_point: self.commit_point,
            above: self.above.first(NEWS_RANGES_MAX),
            log_start: self.adopted.1,
        }
    }

    /// Checks the invariants of this log.
    ///
    /// # Panics
    /// If an invariant is broken.
    pub fn check(&self) {
        assert!(
            self.executed <= self.commit_point,
            "only committed slots are executed"
        );
        assert!(
            self.commit_point <= self.highest,
            "only accepted slots are committed"
        );
        if let Some((first, cell)) = self.open.first_key_value() {
            assert!(*first > self.executed, "executed slots are not open");
            assert!(
                *first > self.commit_point || cell.committed && cell.accepted.is_some(),
                "a slot at or below the commit point is committed and has a value"
            );
        }
        let to_execute = self.open.range(..=self.commit_point);
        let work = to_execute.map(|(_, cell)| cell.work());
        assert_eq!(
            self.to_execute_work,
            work.sum::<usize>(),
            "the counted work is that of the slots to execute"
        );
        assert!(
            self.flushed <= self.executed,
            "the durable state holds only executed slots"
        );
        self.above.check();
        assert!(
            self.above
                .lowest()
                .is_none_or(|first| first > self.commit_point.next()),
            "the slot after the commit point is not committed"
        );
        assert!(
            self.of_adopted_ballot().eq(self.reportable.iter().copied()),
            "the reportable entries are the uncommitted ones of the adopted ballot"
        );
        let newest = self.log_starts.last_key_value();
        assert!(
            newest.is_none_or(|(ballot, _)| *ballot <= self.adopted.0),
            "no ballot began after the adopted one"
        );
    }
}

/// Returns whether a replica may accept `value` in `slot`. The replica's window has `window` slots
/// and begins directly above `start`. The slot directly after the window is reserved for a no-op:
/// the opening no-op of a leader that finds the window full.
pub fn is_within(start: Slot, window: u64, slot: Slot, value: &Value) -> bool {
    let reserve = u64::from(*value == Value::Noop);
    slot.0 <= start.0.saturating_add(window).saturating_add(reserve)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leasehold_leases::{ReplicaId, ReplicaSet, Time};
    use leasehold_wire::Command;
    use leasehold_wire::command::Op;

    use super::*;
    use crate::message::{Batch, Proposal, RequestId};

    const KEPT_MAX: usize = 8192;

    fn noop() -> Accepted {
        Accepted {
            ballot: Ballot::ZERO,
            value: Value::Noop,
            durable: true,
            last_multi: Slot::ZERO,
            infallible: [].into(),
            origins: ReplicaSet::EMPTY,
            early_tag: None,
            proposed: Time::ZERO,
            sent: Time::ZERO,
        }
    }

    fn put_of(bytes: usize) -> Value {
        let put = Proposal {
            origin: ReplicaId(0),
            request: RequestId(1),
            command: Command::session(1, 1, 1, Op::put("k", vec![0; bytes])),
        };
        Value::Commands(Arc::new(Batch {
            commands: vec![put],
            ..Batch::default()
        }))
    }

    fn accept(log: &mut Log, slot: u64) {
        let cell = log.cell(Slot(slot)).expect("within the window");
        cell.committed = true;
    }

    /// Returns a log in which every slot up to `executed` is executed, and the next two slots are
    /// accepted.
    fn log(executed: u64) -> Log {
        let mut log = Log::restored(Slot::ZERO, 1 << 20, KEPT_MAX);
        for slot in 1..=executed {
            accept(&mut log, slot);
            log.commit(Slot(slot));
            log.advance_executed(Slot(slot));
        }
        accept(&mut log, executed + 1);
        accept(&mut log, executed + 3);
        log
    }

    fn slots<'a>(cells: impl Iterator<Item = (Slot, &'a Cell)>) -> Vec<u64> {
        cells.map(|(slot, _)| slot.0).collect()
    }

    #[test]
    fn what_is_executed_is_found_among_what_is_not() {
        let log = log(5);
        for (first, expected) in [
            (0, &[1, 2, 3, 4, 5, 6, 8][..]),
            (4, &[4, 5, 6, 8]),
            (6, &[6, 8]),
            (7, &[8]),
            (9, &[]),
        ] {
            assert_eq!(slots(log.from(Slot(first))), expected, "from {first}");
        }
        assert_eq!(slots(log.unexecuted()), [6, 8]);
        let known = (0..10).filter(|slot| log.get(Slot(*slot)).is_some());
        assert_eq!(known.collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 8]);
    }

    #[test]
    fn a_report_of_commits_finds_the_entries_of_its_ballot() {
        let ballot = |round| Ballot {
            round,
            replica: ReplicaId(0),
        };
        let mut log = Log::restored(Slot::ZERO, 1 << 20, KEPT_MAX);
        let accept = |log: &mut Log, slot, round| {
            let ballot = ballot(round);
            let accepted = Accepted { ballot, ..noop() };
            log.cell(Slot(slot)).expect("within the window").accepted = Some(accepted);
            log.note_accepted(Slot(slot), ballot);
        };
        // The entries of slots 2 and 7 are accepted before their ballot is adopted.
        for (slot, round) in [(1, 2), (2, 3), (4, 2), (5, 2), (7, 3)] {
            accept(&mut log, slot, round);
        }
        log.cell(Slot(3)).expect("votes came before their value");
        log.begin_ballot(ballot(3), Slot(2));
        let found = |log: &Log, last| {
            let mut found = Vec::new();
            let is_behind = log.reported(Slot(1), Slot(last), &mut found);
            (
                found.iter().map(|slot| slot.0).collect::<Vec<_>>(),
                is_behind,
            )
        };
        assert_eq!(found(&log, 7), (vec![2, 7], true));
        assert_eq!(found(&log, 1), (vec![], true));
        // Slot 2 is replaced by a later ballot that is not adopted yet, and slots 4 and 5 by the
        // adopted one.
        accept(&mut log, 2, 4);
        accept(&mut log, 4, 3);
        accept(&mut log, 5, 3);
        assert_eq!(found(&log, 7), (vec![4, 5, 7], true));
        for slot in [4, 5] {
            log.cell(Slot(slot)).expect("it is there").committed = true;
            log.commit(Slot(slot));
        }
        assert_eq!(found(&log, 7), (vec![7], true));
        accept(&mut log, 4, 3);
        assert_eq!(found(&log, 7), (vec![7], true));
        log.begin_ballot(ballot(4), Slot(8));
        assert_eq!(found(&log, 2), (vec![2], true));
        log.check();
    }

    /// A replica that lags has thousands of slots with votes or entries of earlier ballots. If each
    /// report visited them, this test would visit ten billion cells.
    #[test]
    fn a_report_of_commits_visits_no_other_open_slots() {
        let most = 100_000;
        let mut log = Log::restored(Slot::ZERO, 1 << 20, KEPT_MAX);
        for slot in 1..=most {
            log.cell(Slot(slot)).expect("within the window");
        }
        for _ in 0..most {
            assert!(log.reported(Slot(1), Slot(most), &mut Vec::new()));
        }
    }

    #[test]
    fn what_is_committed_beyond_a_hole_is_not_uncommitted() {
        let mut log = Log::restored(Slot::ZERO, 1 << 20, KEPT_MAX);
        for slot in [1, 2, 4, 5, 7, 8] {
            log.cell(Slot(slot)).expect("within the window").accepted = Some(noop());
        }
        log.cell(Slot(9)).expect("votes came before their value");
        for slot in [1, 4, 7] {
            log.cell(Slot(slot)).expect("it is there").committed = true;
            log.commit(Slot(slot));
        }
        let uncommitted = log.uncommitted().map(|(slot, _)| slot.0);
        assert_eq!(uncommitted.collect::<Vec<_>>(), [2, 5, 8]);
    }

    #[test]
    fn the_oldest_executed_slots_are_forgotten_and_the_newest_never() {
        let many = KEPT_MAX as u64 + 10;
        let mut log = log(many);
        assert_eq!(log.first_kept(), Slot(11));
        assert!(log.get(Slot(10)).is_none() && log.get_mut(Slot(10)).is_none());
        assert!(log.get(Slot(11)).is_some() && log.get_mut(Slot(many)).is_some());
        assert_eq!(
            log.from(Slot(1)).next().map(|(slot, _)| slot),
            Some(Slot(11))
        );
        let large = log.cell(Slot(many + 1)).expect("within the window");
        large.accepted = Some(Accepted {
            value: put_of(2 * KEEP_BYTES),
            ..noop()
        });
        log.commit(Slot(many + 1));
        assert!(log.to_execute_work() > 2 * KEEP_BYTES);
        log.advance_executed(Slot(many + 1));
        assert_eq!(log.to_execute_work(), 0);
        assert_eq!(log.first_kept(), Slot(many + 1));
        assert!(Log::restored(Slot(7), 4, KEPT_MAX).get(Slot(7)).is_none());
    }

    /// The ballot of round 3, which began at slot 5, is adopted. The first columns are the name of the
    /// case, the round at which the slot was accepted, the slot, and its `last_multi`. The next
    /// columns are the commit point here and the commit point that the leader has reported. The
    /// last column states whether the slot's infallible blind writes may be answered at commit.
    #[test]
    fn a_committed_slot_is_answerable_only_if_nothing_before_it_can_change_the_answer() {
        type Case = (&'static str, u64, u64, u64, u64, u64, bool);
        let cases: [Case; 9] = [
            ("all before it is committed here", 3, 8, 0, 7, 0, true),
            ("slots before it are open", 3, 8, 0, 5, 0, true),
            ("accepted at another ballot", 2, 8, 0, 7, 0, false),
            ("the opening no-op's slot", 3, 5, 0, 4, 0, false),
            ("the recovered part is open (H38)", 3, 8, 0, 4, 0, false),
            ("the leader says it is committed", 3, 8, 0, 4, 5, true),
            (
                "a multi-key command before it is open (H34)",
                3,
                8,
                7,
                6,
                0,
                false,
            ),
            ("that command is committed here", 3, 8, 7, 7, 0, true),
            ("the leader says that command is", 3, 8, 7, 5, 7, true),
        ];
        for (case, round, slot, last_multi, commit_point, heard, answerable) in cases {
            let ballot = |round| Ballot {
                round,
                replica: ReplicaId(0),
            };
            let mut log = Log::restored(Slot(commit_point), 1 << 20, KEPT_MAX);
            log.begin_ballot(ballot(3), Slot(5));
            log.heard_commit = Slot(heard);
            let accepted = Accepted {
                ballot: ballot(round),
                last_multi: Slot(last_multi),
                ..noop()
            };
            assert_eq!(
                log.is_answerable(Slot(slot), &accepted),
                answerable,
                "{case}"
            );
        }
    }
}
