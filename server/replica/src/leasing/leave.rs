//! Planned end of a replica (§3.7). The replica gives back its leases and recalls its promises. So
//! no write waits for this replica while it is away, and this replica need not wait after its next
//! start.
//!
//! # Why the next run need not wait
//! The restart wait is for grants that a run has forgotten. A run that leaves makes no new
//! promises. Once all its grants have ended, no replica believes a promise of any run of this
//! replica. Either the holder has erased the promise and refuses its sequence, as its `Relinquish`
//! says, or the promise expired before the grant ended. Promises of earlier runs have ended once
//! their restart wait is over. The run records a wait of zero only when all these promises have
//! ended. So the next run begins without a wait. It records a longer wait before it promises
//! anything (hazard 23). If this run is killed before it records zero, its own longer wait stays in
//! force.

use std::time::Duration;

use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{LeaseMessage, ReplicaId, ReplicaSet};

use super::Leasing;
use crate::action::Record;
use crate::message::Message;
use crate::persist::Continuation;
use crate::step::Step;

/// Progress of a replica that leaves.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct LeaveProgress {
    /// Sequence number of the last promise or guard that the replica sent. The replica sends no
    /// further promises or guards.
    recalls: u64,
    /// Replicas that have given back every promise of this replica, and will make no more promises
    /// to it.
    acknowledged: ReplicaSet,
    /// Whether a restart wait of zero was recorded. This is done once no other replica relies on a
    /// promise of this replica. The record may not be durable yet.
    recorded: bool,
    durable: bool,
}

impl LeaveProgress {
    /// Checks the progress. `last` is the sequence number of the last promise or guard that this
    /// replica sent.
    ///
    /// # Panics
    /// If the progress contradicts itself.
    pub(super) fn check(&self, last: u64) {
        assert!(
            self.recorded || !self.durable,
            "a durable departure was recorded"
        );
        assert!(
            self.recalls <= last,
            "only promises that were sent are recalled"
        );
    }
}

impl Leasing {
    pub fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Begins to leave: gives every lease back, and makes no new promises.
    pub fn leave(&mut self, step: &mut Step<'_>) {
        if self.leaving.is_none() {
            self.leaving = Some(LeaveProgress {
                recalls: self.grantor.last_sequence(),
                ..LeaveProgress::default()
            });
            self.holder.relinquish();
            self.say_leave(step);
        }
    }

    /// Sends the recall to the replicas that have not acknowledged it.
    pub fn say_leave(&self, step: &mut Step<'_>) {
        let Some(leaving) = &self.leaving else {
            return;
        };
        let recalls = leaving.recalls;
        for to in step
            .ctx
            .others()
            .filter(|to| !leaving.acknowledged.contains(*to))
        {
            step.send(to, Message::Lease(LeaseMessage::Leave { recalls }));
        }
    }

    /// Notes that a holder has given back the promises up to sequence number `up_to`.
    pub(super) fn note_recalled(&mut self, from: ReplicaId, up_to: u64) {
        if let Some(leaving) = &mut self.leaving
            && up_to >= leaving.recalls
        {
            leaving.acknowledged.insert(from);
        }
    }

    /// Records a restart wait of zero for the next run, if no other replica relies on a promise of
    /// this replica any more.
    pub fn record_leaving(&mut self, step: &mut Step<'_>) {
        let believed = self.grantor.may_be_believed(step.now) && !off(Rule::H83Leave);
        let Some(leaving) = &mut self.leaving else {
            return;
        };
        if !believed && step.ctx.clock_trusted && !leaving.recorded {
            assert!(!leaving.durable, "a departure is recorded once");
            leaving.recorded = true;
            step.record(Record::RestartWait(Duration::ZERO));
            step.when_durable(Continuation::Left);
        }
    }

    /// Replaces the recorded restart wait of zero by the wait that was recorded before. Without a
    /// trusted clock, grants may not have ended in time (hazard 80). The next run then waits as if
    /// this run had been killed.
    pub(super) fn take_back_leaving(&mut self, step: &mut Step<'_>) {
        let wait = self.restart_wait.requested;
        if let Some(leaving) = &mut self.leaving
            && std::mem::take(&mut leaving.recorded)
        {
            leaving.durable = false;
            step.record(Record::RestartWait(wait));
        }
    }

    pub fn left_durable(&mut self) {
        if let Some(leaving) = &mut self.leaving {
            leaving.durable = leaving.recorded;
        }
    }

    /// Returns whether this replica may end. The first condition is that no replica waits for this
    /// replica any more. Silent replicas do not count, because the promises to them end in time by
    /// themselves. The second condition is that the recorded restart wait of zero is durable, so
    /// that no replica waits after the next start. During its own restart wait, this replica may
    /// end without this record, because that wait stays recorded on disk for the next run.
    pub fn has_left(&self, step: &Step<'_>) -> bool {
        self.leaving.as_ref().is_some_and(|leaving| {
            let waits =
                |other| step.ctx.is_heard(step.now, other) && !leaving.acknowledged.contains(other);
            !step.ctx.others().any(waits) && (leaving.durable || self.in_restart_wait(step.now))
        })
    }
}
