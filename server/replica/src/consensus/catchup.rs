//! Fetching committed entries that this replica missed, and serving them.

use std::hash::{Hash, Hasher};

use leasehold_leases::{Ballot, ReplicaId, Slot, Time};

use super::Consensus;
use crate::action::Action;
use crate::handles::Requester;
use crate::message::{LogId, Message, Value};
use crate::parts::Capacity;
use crate::size_estimate::value_size_estimate;
use crate::step::Step;
use crate::timers::Timer;

/// Newest fetch request for one log: the replica that was asked, the first slot, and the time.
#[derive(Clone, Copy, Debug)]
pub(super) struct FetchRequest {
    of: ReplicaId,
    from: Slot,
    sent: Time,
}

impl Hash for FetchRequest {
    /// When it was sent decides only when it is asked again: not before the horizon.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.of, self.from).hash(state);
    }
}

impl Consensus {
    /// Something is committed, but not as accepted here. An Accept that was merely
    /// overtaken gets a moment to arrive.
    pub fn want_fetch(&self, step: &mut Step<'_>) {
        let delay = step.ctx.settings.timing.retransmit / 4;
        step.timers.set_earlier(Timer::Fetch, step.now + delay);
    }

    /// Returns whether `from` was asked for entries of this log last. Entries that were not asked
    /// for are not believed; a leader has recovered whatever it had asked for before.
    pub fn has_requested(&self, from: ReplicaId, log: LogId) -> bool {
        let requested = self.fetching[log].as_ref();
        !self.leads() && requested.is_some_and(|requested| requested.of == from)
    }

    /// Asks the leader for what is still missing.
    pub fn fetch_missing(&mut self, step: &mut Step<'_>) {
        let Some(leader) = self.leader().filter(|leader| *leader != step.me()) else {
            return;
        };
        for log in LogId::ALL {
            let paxos = &self.logs[log];
            if paxos.heard_commit > paxos.commit_point {
                self.fetch(step, leader, log, paxos.heard_commit);
            }
        }
    }

    /// Asks `of` for what follows the commit point, up to `to`; but not again for what
    /// it was just asked for. Everything heard of a log that lags is a reason to ask,
    /// and every answer to ask on: without this there would be more questions under way
    /// with every message, each answered with a frame of the same entries. What lies
    /// beyond the window is asked for once a checkpoint has moved it.
    pub fn fetch(&mut self, step: &mut Step<'_>, of: ReplicaId, log: LogId, to: Slot) {
        let paxos = &self.logs[log];
        let (from, to) = (paxos.commit_point.next(), to.min(paxos.end()));
        if from > to {
            return;
        }
        let timeout = step.ctx.settings.timing.retransmit;
        if self.takes_nothing(step, log) {
            return step.timers.set_earlier(Timer::Fetch, step.now + timeout);
        }
        let requested = self.fetching[log].filter(|last| {
            (last.of, last.from) == (of, from) && step.now.since(last.sent) < timeout
        });
        let sent = requested.map_or(step.now, |last| last.sent);
        if requested.is_none() {
            self.fetching[log] = Some(FetchRequest { of, from, sent });
            step.metrics.fetches += 1;
            step.send(of, Message::Fetch { log, from, to });
        }
        step.timers.set_earlier(Timer::Fetch, sent + timeout);
    }

    /// The fetched entries could not be taken: they may be asked for again at once.
    pub fn fetch_refused(&mut self, log: LogId) {
        self.fetching[log] = None;
    }

    /// Serves committed entries from memory, or has them read from the disk.
    pub fn on_fetch(
        &self,
        step: &mut Step<'_>,
        from: ReplicaId,
        log: LogId,
        first: Slot,
        last: Slot,
    ) {
        let paxos = &self.logs[log];
        let last = last.min(paxos.commit_point);
        if first == Slot::ZERO || first > last {
            return;
        }
        if first < paxos.first_kept() {
            return self.read_log(step, from, log, first, last);
        }
        let mut capacity = Capacity::default();
        let mut entries = Vec::new();
        for (slot, cell) in paxos.from(first).take_while(|(slot, _)| *slot <= last) {
            let Some(accepted) = &cell.accepted else {
                break;
            };
            if !capacity.takes(value_size_estimate(&accepted.value)) {
                break;
            }
            entries.push((slot, accepted.value.clone()));
        }
        step.send(from, Message::Fetched { log, entries });
    }

    /// Only what is surely on the disk as it was executed is read from it: a slot may
    /// hold there what an earlier ballot left in it, while the chosen value is on its way.
    fn read_log(&self, step: &mut Step<'_>, to: ReplicaId, log: LogId, first: Slot, last: Slot) {
        let durable = step.persister.executed(log);
        let kept = self.logs[log].first_kept();
        let last = last.min(Slot(kept.0 - 1)).min(durable);
        if first > last {
            return;
        }
        let incarnation = step.ctx.incarnation_of(to);
        step.out.push(Action::ReadLog {
            log,
            to: Requester {
                replica: to,
                incarnation,
            },
            from: first,
            last,
        });
    }

    /// The disk has read what a peer asked for.
    pub fn on_log_read(
        &self,
        step: &mut Step<'_>,
        log: LogId,
        to: Requester,
        entries: Vec<(Slot, Value)>,
    ) {
        let executed = self.logs[log].executed;
        // The asker asks on for what does not fit into this message.
        let mut capacity = Capacity::default();
        let fits = |(slot, value): &(Slot, Value)| {
            *slot <= executed && capacity.takes(value_size_estimate(value))
        };
        let entries: Vec<(Slot, Value)> = entries.into_iter().take_while(fits).collect();
        // Its next run has not asked, and may not have promised what the asker had.
        if step.ctx.incarnation_of(to.replica) == to.incarnation {
            step.send(to.replica, Message::Fetched { log, entries });
        }
    }

    /// At which ballot a fetched entry is stored: the promised one. No entry is accepted
    /// above it.
    pub fn ballot_of_fetched(&self, log: LogId, slot: Slot) -> Ballot {
        let known = self.logs[log].accepted(slot);
        known.map_or(self.promised, |a| a.ballot.max(self.promised))
    }
}
