//! Code that fetches committed entries that this replica missed, and serves committed entries to
//! other replicas that missed them.

use std::hash::{Hash, Hasher};

use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{Ballot, ReplicaId, Slot, Time};

use super::Consensus;
use crate::action::Action;
use crate::handles::Requester;
use crate::message::{LogId, Message, Value};
use crate::parts::Capacity;
use crate::size_estimate::value_size_estimate;
use crate::step::Step;
use crate::timers::Timer;

/// Newest fetch request for one log: the replica that was asked, the first slot requested, and the
/// time.
#[derive(Clone, Copy, Debug)]
pub(super) struct FetchRequest {
    of: ReplicaId,
    from: Slot,
    sent: Time,
}

impl Hash for FetchRequest {
    /// Hashes this value, except the time of the request. While a fingerprint is valid, this time
    /// has no effect (`Replica::fingerprint`).
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.of, self.from).hash(state);
    }
}

impl Consensus {
    /// Schedules a fetch, because this replica has not accepted the entry of a committed slot under
    /// the right ballot. The fetch begins after a short delay, because a late Accept may still
    /// arrive.
    pub fn want_fetch(&self, step: &mut Step<'_>) {
        let delay = step.ctx.settings.timing.retransmit / 4;
        step.timers.set_earlier(Timer::Fetch, step.now + delay);
    }

    /// Returns whether this replica has requested entries of `log` from `from`: its newest fetch
    /// request for this log was sent to `from`. Unrequested entries are ignored. Always returns
    /// false at a leader, because a leader had recovered all requested entries before its election.
    pub fn has_requested(&self, from: ReplicaId, log: LogId) -> bool {
        if off(Rule::H92Earlier) {
            return !self.leads();
        }
        let requested = self.fetching[log].as_ref();
        !self.leads() && requested.is_some_and(|requested| requested.of == from)
    }

    /// Asks the leader for the committed entries that are still missing here.
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

    /// Requests the entries above the commit point, up to slot `to`, from replica `of`. Does
    /// nothing if such a request was made a short time ago, because a second request would ask for
    /// the same entries. Entries beyond the window are requested only after a checkpoint has moved
    /// the window.
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

    /// Notes that fetched entries could not be accepted. These entries may then be requested again
    /// immediately.
    pub fn fetch_refused(&mut self, log: LogId) {
        self.fetching[log] = None;
    }

    /// Serves committed entries from memory, or requests to read them from the disk.
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

    /// Asks the shell to read entries from the disk. Reads only slots for which the disk certainly
    /// holds the executed value. In other slots, the disk may still hold an entry of an earlier
    /// ballot.
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

    /// Sends entries to the peer that requested them. The entries were read from the disk.
    pub fn on_log_read(
        &self,
        step: &mut Step<'_>,
        log: LogId,
        to: Requester,
        entries: Vec<(Slot, Value)>,
    ) {
        let executed = self.logs[log].executed;
        // The requester requests again the entries that do not fit into this message.
        let mut capacity = Capacity::default();
        let fits = |(slot, value): &(Slot, Value)| {
            *slot <= executed && capacity.takes(value_size_estimate(value))
        };
        let entries: Vec<(Slot, Value)> = entries.into_iter().take_while(fits).collect();
        // A later run of the requester has not requested the entries, and may not have promised the
        // ballot that the earlier run had.
        if step.ctx.incarnation_of(to.replica) == to.incarnation {
            step.send(to.replica, Message::Fetched { log, entries });
        }
    }

    /// Returns the ballot under which a fetched entry is stored. The result is the promised ballot,
    /// because no entry is accepted here under a higher ballot.
    pub fn ballot_of_fetched(&self, log: LogId, slot: Slot) -> Ballot {
        let known = self.logs[log].accepted(slot);
        known.map_or(self.promised, |a| a.ballot.max(self.promised))
    }
}
