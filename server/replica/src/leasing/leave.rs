//! A planned end (§3.7): this replica gives back what it holds and recalls what it has
//! promised, so that no write waits for it while it is away, and it need not wait after
//! its next start.
//!
//! # Why the next run need not wait
//! The restart wait is for grants that a run has forgotten. A run that leaves promises
//! nothing any more. Once every grant of its has ended, nobody believes a promise of any run
//! of this replica: each holder has erased it and refuses its sequence (its Relinquish says
//! so), or the grant has outlasted it. Nor is any left of earlier runs, once their restart
//! wait is over. Only then is a wait of zero written down. The next run begins with that,
//! and writes down a longer wait before it promises anything (hazard 23). If this run is
//! killed before, the longer wait stands.

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
    /// The last sequence sent: nothing is promised, and nobody guarded, after it.
    recalls: u64,
    /// Replicas that have given back everything, and promise this replica nothing any more.
    acknowledged: ReplicaSet,
    /// That nobody believes this replica is on its way to disk, or there.
    recorded: bool,
    durable: bool,
}

impl LeaveProgress {
    /// Panics if it is not as it must be. `last`: the last sequence of the grantor.
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

    /// Begins to leave: gives every lease back, and promises nothing any more.
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

    /// Notifies the replicas that have not answered.
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

    /// A holder has given promises back.
    pub(super) fn note_recalled(&mut self, from: ReplicaId, up_to: u64) {
        if let Some(leaving) = &mut self.leaving
            && up_to >= leaving.recalls
        {
            leaving.acknowledged.insert(from);
        }
    }

    /// Writes down that the next run need not wait, once nobody believes this replica.
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

    /// The clock that said when grants ended is not to be believed (hazard 80): the next run
    /// waits as if this one had been killed.
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

    /// Whether no replica waits for this one any more, nor will after its next start. Where it had
    /// just started, its old wait stands, and it does not wait for that. Nor does it wait for the
    /// answer of a silent replica: a promise to that one has to lapse.
    pub fn has_left(&self, step: &Step<'_>) -> bool {
        self.leaving.as_ref().is_some_and(|leaving| {
            let waits =
                |other| step.ctx.is_heard(step.now, other) && !leaving.acknowledged.contains(other);
            !step.ctx.others().any(waits) && (leaving.durable || self.in_restart_wait(step.now))
        })
    }
}
