//! Fetching committed entries that this replica missed, and serving them.

use leases::{ReplicaId, Slot, Time};

use super::action::Action;
use super::log::weigh;
use super::message::{LogId, Message, Value};
use super::timers::Timer;
use super::{Replica, Role};

/// Entries served at once: well below a frame.
const FETCH_BYTES_MAX: usize = 1 << 20;

impl Replica {
    /// Something is committed, but not as accepted here. An Accept that was
    /// merely overtaken gets a moment to arrive.
    pub(super) fn want_fetch(&mut self, now: Time) {
        let moment = self.settings.timing.retransmit / 4;
        self.timers.set_earlier(Timer::Fetch, now + moment);
    }

    /// Asks the leader for what is still missing.
    pub(super) fn fetch_missing(&mut self, now: Time, out: &mut Vec<Action>) {
        let Some(leader) = self.leader().filter(|leader| *leader != self.me()) else {
            return;
        };
        for log in LogId::ALL {
            let paxos = &self.logs[log.index()];
            if paxos.heard_commit > paxos.commit_point {
                let from = paxos.commit_point.next();
                let to = paxos.heard_commit;
                self.counters.fetches += 1;
                self.send(leader, Message::Fetch { log, from, to }, out);
                let again = now + self.settings.timing.retransmit;
                self.timers.set_earlier(Timer::Fetch, again);
            }
        }
    }

    pub(super) fn on_fetch(
        &mut self,
        from: ReplicaId,
        log: LogId,
        first: Slot,
        to: Slot,
        out: &mut Vec<Action>,
    ) {
        let paxos = &self.logs[log.index()];
        let last = to.min(paxos.commit_point);
        if first == Slot::ZERO || first > last {
            return;
        }
        if first < paxos.first_kept() {
            // Only what is surely on the disk as it was executed: a slot may hold there
            // what an earlier ballot left in it, while the chosen value is on its way.
            let durable = self.persister.executed(log);
            let last = last.min(Slot(paxos.first_kept().0 - 1)).min(durable);
            if first <= last {
                out.push(Action::ReadLog {
                    log,
                    to: from,
                    from: first,
                    last,
                });
            }
            return;
        }
        let mut bytes = 0;
        let mut entries = Vec::new();
        for (slot, cell) in paxos.from(first).take_while(|(slot, _)| *slot <= last) {
            let Some(accepted) = &cell.accepted else {
                break;
            };
            bytes += weigh(&accepted.value);
            if !entries.is_empty() && bytes > FETCH_BYTES_MAX {
                break;
            }
            entries.push((slot, accepted.value.clone()));
        }
        self.send(from, Message::Fetched { log, entries }, out);
    }

    pub(super) fn on_log_read(
        &mut self,
        log: LogId,
        to: ReplicaId,
        entries: Vec<(Slot, Value)>,
        out: &mut Vec<Action>,
    ) {
        let executed = self.logs[log.index()].executed;
        let known = entries.into_iter().filter(|(slot, _)| *slot <= executed);
        let entries: Vec<(Slot, Value)> = known.collect();
        if to != self.me() && to.index() < self.settings.n {
            self.send(to, Message::Fetched { log, entries }, out);
        }
    }

    /// Takes entries that their sender knows to be committed.
    pub(super) fn on_fetched(
        &mut self,
        now: Time,
        from: ReplicaId,
        log: LogId,
        entries: Vec<(Slot, Value)>,
        out: &mut Vec<Action>,
    ) {
        // An answer that brings nothing is no reason to ask for more at once.
        let progress = !entries.is_empty();
        for (slot, value) in entries {
            let paxos = &mut self.logs[log.index()];
            if paxos.is_committed(slot) {
                continue;
            }
            let Some(cell) = paxos.cell(slot) else {
                continue;
            };
            let accepted = cell.accepted.as_ref();
            let ballot = accepted.map_or(self.promised, |a| a.ballot.max(self.promised));
            // It is the chosen value, so reporting it at the promised ballot in a
            // later Phase 1 can only lead to the same value again. And it was chosen
            // at that ballot or below: this run had heard of it when it asked.
            let empty = std::sync::Arc::from([]);
            self.store(now, log, slot, ballot, value, Slot::ZERO, empty, out);
            self.counters.fetched += 1;
            self.commit_slots(now, log, &[slot], out);
        }
        match self.role {
            Role::Candidate(_) => self.try_lead(now, out),
            _ => {
                let paxos = &self.logs[log.index()];
                let more = paxos.heard_commit > paxos.commit_point;
                if more && progress && self.leader() == Some(from) {
                    self.fetch_missing(now, out);
                }
            }
        }
    }
}
