//! Handles the arrival of entries that this replica missed.

use leasehold_leases::{ReplicaId, Slot};

use super::Parts;
use crate::consensus::SlotEntry;
use crate::message::{LogId, Value};
use crate::per_log::PerLog;
use crate::step::Step;

impl Parts {
    /// Takes entries that their sender knows to be committed.
    pub(super) fn on_fetched(
        &mut self,
        step: &mut Step<'_>,
        from: ReplicaId,
        log: LogId,
        entries: Vec<(Slot, Value)>,
    ) {
        if !self.consensus.has_requested(from, log) {
            return; // forged, or an honest answer that comes too late: neither is needed
        }
        if self.consensus.takes_nothing(step, log) {
            step.metrics.refused_backlog += 1;
            self.consensus.fetch_refused(log);
            return;
        }
        // An answer that brings nothing is no reason to ask for more at once.
        let progress = !entries.is_empty();
        let mut news = false;
        for (slot, value) in entries {
            if step.is_disk_behind() {
                step.metrics.refused_backlog += 1;
                break;
            }
            // Storing it at the promised ballot is safe: the value is chosen, so any later
            // Phase 1 finds the same one. And it was chosen at that ballot or below, for
            // this run had heard of the ballot when it asked.
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

    /// A checkpoint is durable, and windows move: a candidate or a follower that waited for
    /// room goes on. A leader does so by itself, at the end of the group.
    pub(super) fn move_windows(&mut self, step: &mut Step<'_>, slots: PerLog<Slot>) {
        let waited = self.consensus.move_windows(slots);
        if self.consensus.is_candidate() {
            self.try_lead(step);
        } else if waited {
            self.consensus.fetch_missing(step);
        }
    }

    /// Asks for what is missing still.
    pub(super) fn fetch_due(&mut self, step: &mut Step<'_>) {
        if self.consensus.is_candidate() {
            self.try_lead(step)
        } else {
            self.consensus.fetch_missing(step)
        }
    }
}
