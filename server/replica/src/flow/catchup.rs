//! Steps that fetch the entries that this replica missed, and that handle the arrival of such
//! entries.

use leasehold_leases::{ReplicaId, Slot};

use super::Parts;
use crate::consensus::SlotEntry;
use crate::message::{LogId, Value};
use crate::per_log::PerLog;
use crate::step::Step;

impl Parts {
    /// Handles fetched entries. The sender of the entries knows that they are committed.
    pub(super) fn on_fetched(
        &mut self,
        step: &mut Step<'_>,
        from: ReplicaId,
        log: LogId,
        entries: Vec<(Slot, Value)>,
    ) {
        if !self.consensus.has_requested(from, log) {
            return; // The answer is forged, or it is an honest one that comes too late.
        }
        if self.consensus.takes_nothing(step, log) {
            step.metrics.refused_backlog += 1;
            self.consensus.fetch_refused(log);
            return;
        }
        // An empty answer is no reason to request more immediately.
        let progress = !entries.is_empty();
        let mut news = false;
        for (slot, value) in entries {
            if step.is_disk_behind() {
                step.metrics.refused_backlog += 1;
                break;
            }
            // Storing the entry under the promised ballot is safe: the value is chosen, so any
            // later Phase 1 finds the same one. It was chosen under that ballot or a lower one,
            // because this run knew the ballot when it requested the entry.
            let paxos = self.consensus.log(log);
            if paxos.is_committed(slot) {
                continue;
            }
            if !paxos.has_room(slot, &value) {
                step.metrics.refused_beyond_window += 1;
                continue;
            }
            let ballot = self.consensus.ballot_of_fetched(log, slot);
            self.store(step, log, slot, SlotEntry::plain(ballot, value));
            step.metrics.fetched_entries += 1;
            news = true;
            self.commit(step, log, &[slot]);
        }
        if self.consensus.is_candidate() {
            self.try_lead(step);
            if news {
                self.consensus.fetch_progressed(step);
            }
            return;
        }
        let more = self.consensus.log(log).misses_commits();
        if more && progress && self.consensus.leader() == Some(from) {
            self.consensus.fetch_missing(step);
        }
    }

    /// Moves the windows of both logs, because a checkpoint up to `slots` is durable. A candidate
    /// or follower that waited for space in its window then continues its work. This function does
    /// nothing more for a leader, because a leader continues at the end of the group of inputs in
    /// any case.
    pub(super) fn move_windows(&mut self, step: &mut Step<'_>, slots: PerLog<Slot>) {
        let waited = self.consensus.move_windows(slots);
        if self.consensus.is_candidate() {
            self.try_lead(step);
        } else if waited {
            self.consensus.fetch_missing(step);
        }
    }

    /// Requests the entries that are still missing.
    pub(super) fn fetch_due(&mut self, step: &mut Step<'_>) {
        if self.consensus.is_candidate() {
            self.try_lead(step)
        } else {
            self.consensus.fetch_missing(step)
        }
    }
}
