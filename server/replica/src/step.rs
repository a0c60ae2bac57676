//! Context that every part is given for one step: the time, this node, and the collections that
//! receive the effects of the step. No part reads these effects within the step.

use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{Incarnation, ReplicaId, Time};
use leasehold_wire::{Outcome, Path};

use super::action::{Action, Event, Record};
use super::context::ReplicaContext;
use super::handles::ClientHandle;
use super::message::{Message, RequestId};
use super::metrics::Metrics;
use super::persist::{Continuation, Persister};
use super::timers::{Timer, Timers};

/// Context of one step of a replica.
pub(super) struct Step<'a> {
    pub(super) now: Time,
    pub(super) ctx: &'a ReplicaContext,
    pub(super) out: &'a mut Vec<Action>,
    pub(super) persister: &'a mut Persister,
    pub(super) timers: &'a mut Timers,
    pub(super) metrics: &'a mut Metrics,
    pub(super) requests: &'a mut RequestNames,
}

impl Step<'_> {
    pub(super) fn me(&self) -> ReplicaId {
        self.ctx.me()
    }

    pub(super) fn send(&mut self, to: ReplicaId, message: Message) {
        self.metrics.messages_sent += 1;
        let envelope = self.ctx.envelope(to, message);
        self.out.push(Action::Send { to, envelope });
    }

    pub(super) fn broadcast(&mut self, message: &Message) {
        for to in self.ctx.others() {
            self.send(to, message.clone());
        }
    }

    pub(super) fn reply(&mut self, to: ClientHandle, path: Path, outcome: Outcome) {
        self.out.push(Action::Reply { to, path, outcome });
    }

    pub(super) fn announce(&mut self, event: Event) {
        self.out.push(Action::Event(event));
    }

    /// Records a fact. It is made durable together with all other facts of this group of steps.
    pub(super) fn record(&mut self, record: Record) {
        self.persister.record(record);
    }

    /// Queues `continuation`, which runs once everything recorded so far is durable.
    pub(super) fn when_durable(&mut self, continuation: Continuation) {
        self.persister.when_durable(continuation);
    }

    /// Whether the backlog for the disk is so large that nothing more may be accepted.
    pub(super) fn is_disk_behind(&self) -> bool {
        self.persister.is_behind()
    }

    pub(super) fn set_timer(&mut self, timer: Timer, at: Time) {
        self.timers.set(timer, at);
    }

    /// Returns a new name for an attempt. No run of this replica has used this name before.
    pub(super) fn name_request(&mut self) -> RequestId {
        self.requests.next(self.ctx.incarnation)
    }
}

/// Generator of names for attempts. Two runs never use the same name. Otherwise an answer to a
/// request of an earlier run could be mistaken for an answer to a request of this run (hazard 37).
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct RequestNames {
    last: u64,
}

impl RequestNames {
    fn next(&mut self, incarnation: Incarnation) -> RequestId {
        self.last += 1;
        assert!(self.last < 1 << 40, "a run has names left");
        let run = if off(Rule::H37Life) { 0 } else { incarnation.0 };
        RequestId(run << 40 | self.last)
    }
}
