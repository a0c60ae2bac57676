//! Phase 2 at an acceptor: a leader's Accept is stored as an entry and answered with a vote, and
//! votes lead to commits.

use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{Ballot, ReplicaId, ReplicaSet, Slot};
use smallvec::smallvec;

use super::Parts;
use crate::consensus::{Acceptances, SlotEntry, origins, vote_once_durable};
use crate::message::{Accept, LogId, LogNews, Message, PerLog, Value};
use crate::step::Step;

impl Parts {
    pub(super) fn on_accept(&mut self, step: &mut Step<'_>, from: ReplicaId, accept: Accept) {
        let Accept {
            ballot, log, slot, ..
        } = accept;
        if ballot.replica != from || slot == Slot::ZERO {
            step.metrics.refused_messages += 1;
            return;
        }
        if off(Rule::H66Executed) && slot <= self.consensus.log(log).executed() {
            let tag = self.leasing.tags(step.now).of(&accept.value);
            let votes = smallvec![(slot, tag)];
            step.send(from, Message::Accepted { ballot, log, votes });
        }
        // This includes executed slots. Below the promised ballot, the Accept may carry another
        // value than the slot holds (hazard 66).
        if self.consensus.rejects(step, from, ballot) {
            return;
        }
        self.hear_leader(step, ballot);
        let dropped = self
            .consensus
            .adopt(step, ballot, log, accept.news.log_start);
        self.look_again(step, dropped);
        if step.is_disk_behind() {
            // The leader sends the Accept again, or the entry is fetched once it is committed.
            step.metrics.refused_backlog += 1;
        } else if slot <= self.consensus.log(log).executed() {
            // An executed slot holds the chosen value. But a new leader that proposes the value
            // again still needs the votes and their tags.
            let tag = self.leasing.tags(step.now).of(&accept.value);
            let executed = (tag, origins(&accept.value));
            vote_once_durable(step, log, slot, ballot, Some(executed));
        } else if self.consensus.takes_nothing(step, log) && !self.consensus.has_accepted(&accept) {
            step.metrics.refused_backlog += 1; // as above
        } else {
            self.accept(step, &accept);
            self.consensus.count_leader(&accept);
        }
        self.learn_news(step, log, ballot, &accept.news);
        self.try_commit(step, log, slot);
    }

    /// Accepts an entry in an unexecuted slot, and votes once all earlier records are durable. If
    /// the slot holds an entry of this ballot already, the replica only repeats the vote.
    fn accept(&mut self, step: &mut Step<'_>, accept: &Accept) {
        let Accept {
            ballot, log, slot, ..
        } = *accept;
        if !self.consensus.log(log).has_room(slot, &accept.value) {
            // The leader sends the Accept again. A checkpoint may have moved the window before
            // that.
            step.metrics.refused_beyond_window += 1;
            return;
        }
        if !self.consensus.has_accepted(accept) {
            self.store(step, log, slot, SlotEntry::of(accept));
        }
        vote_once_durable(step, log, slot, ballot, None);
    }

    /// Puts a value into a slot and records it for the disk.
    pub(super) fn store(
        &mut self,
        step: &mut Step<'_>,
        log: LogId,
        slot: Slot,
        mut entry: SlotEntry,
    ) {
        entry.early_tag = self.early_tag(step, &entry.value);
        let replaced = self.consensus.store(step, log, slot, entry);
        self.look_again(step, replaced);
    }

    /// Returns the tag at the time of acceptance if this program is a mutant: a deliberately broken
    /// variant for tests (hazards 7 and 113). Otherwise returns `None`.
    pub(super) fn early_tag(&self, step: &Step<'_>, value: &Value) -> Option<ReplicaSet> {
        let is_early = off(Rule::H07Pending) || off(Rule::H113Tag) && self.consensus.leads();
        is_early.then(|| self.leasing.tags(step.now).of(value))
    }

    pub(super) fn on_accepted(
        &mut self,
        step: &mut Step<'_>,
        from: ReplicaId,
        accepted: &Acceptances,
    ) {
        let chosen = self.consensus.count_votes(step, from, accepted);
        self.commit(step, accepted.log, &chosen);
    }

    /// Sends votes on acceptances that have become durable.
    pub(super) fn send_votes(&mut self, step: &mut Step<'_>) {
        if !self.consensus.owes_votes() {
            return;
        }
        let tags = self.leasing.tags(step.now);
        let chosen = self.consensus.send_votes(step, &tags);
        for log in LogId::ALL {
            self.commit(step, log, &chosen[log]);
        }
    }

    /// Handles a leader's heartbeat, which reports committed slots.
    pub(super) fn on_heartbeat(
        &mut self,
        step: &mut Step<'_>,
        from: ReplicaId,
        ballot: Ballot,
        probe: u64,
        logs: PerLog<LogNews>,
    ) {
        if ballot.replica != from {
            step.metrics.refused_messages += 1;
            return;
        }
        if self.consensus.rejects(step, from, ballot) {
            return;
        }
        self.hear_leader(step, ballot);
        for (log, news) in logs.each() {
            let dropped = self.consensus.adopt(step, ballot, log, news.log_start);
            self.look_again(step, dropped);
            self.learn_news(step, log, ballot, &news);
        }
        if probe > 0 {
            let suspects: ReplicaSet = self.leasing.suspects();
            step.send(
                from,
                Message::HeartbeatAck {
                    ballot,
                    probe,
                    suspects,
                },
            );
        }
    }
}
