//! Fetching committed entries that this replica missed, and serving them.

use std::hash::{Hash, Hasher};

use leases::{ReplicaId, Slot, Time};

use super::action::{Action, Asker};
use super::log::weigh;
use super::message::{LogId, Message, Value};
use super::parts::Room;
use super::timers::Timer;
use super::{Replica, Role};

/// What was asked for last, of one log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fetching {
    of: ReplicaId,
    from: Slot,
    sent: Time,
}

impl Hash for Fetching {
    /// When it was sent decides only when it is asked again: not before the horizon.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.of, self.from).hash(state);
    }
}

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
                self.fetch(now, leader, log, paxos.heard_commit, out);
            }
        }
    }

    /// Asks `of` for what follows the commit point, up to `to`; but not again for what
    /// it was just asked for. Everything heard of a log that lags is a reason to ask,
    /// and every answer to ask on: without this there would be more questions under way
    /// with every message, each answered with a frame of the same entries. What lies
    /// beyond the window is asked for once a checkpoint has moved it.
    pub(super) fn fetch(
        &mut self,
        now: Time,
        of: ReplicaId,
        log: LogId,
        to: Slot,
        out: &mut Vec<Action>,
    ) {
        let paxos = &self.logs[log.index()];
        let (from, to) = (paxos.commit_point.next(), to.min(paxos.end()));
        if from > to {
            return;
        }
        let patience = self.settings.timing.retransmit;
        let last = &mut self.fetching[log.index()];
        let sent = match last {
            Some(last) if (last.of, last.from) == (of, from) && now.since(last.sent) < patience => {
                last.sent
            }
            _ => {
                *last = Some(Fetching {
                    of,
                    from,
                    sent: now,
                });
                self.counters.fetches += 1;
                self.send(of, Message::Fetch { log, from, to }, out);
                now
            }
        };
        self.timers.set_earlier(Timer::Fetch, sent + patience);
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
                let to = Asker {
                    replica: from,
                    incarnation: self.peers[from.index()].incarnation,
                };
                out.push(Action::ReadLog {
                    log,
                    to,
                    from: first,
                    last,
                });
            }
            return;
        }
        let mut room = Room::default();
        let mut entries = Vec::new();
        for (slot, cell) in paxos.from(first).take_while(|(slot, _)| *slot <= last) {
            let Some(accepted) = &cell.accepted else {
                break;
            };
            if !room.takes(weigh(&accepted.value)) {
                break;
            }
            entries.push((slot, accepted.value.clone()));
        }
        self.send(from, Message::Fetched { log, entries }, out);
    }

    pub(super) fn on_log_read(
        &mut self,
        log: LogId,
        to: Asker,
        entries: Vec<(Slot, Value)>,
        out: &mut Vec<Action>,
    ) {
        let executed = self.logs[log.index()].executed;
        // The asker asks on for what does not fit into this message.
        let mut room = Room::default();
        let fits = |(slot, value): &(Slot, Value)| *slot <= executed && room.takes(weigh(value));
        let entries: Vec<(Slot, Value)> = entries.into_iter().take_while(fits).collect();
        // Its next run has not asked, and may not have promised what the asker had.
        if self.peers[to.replica.index()].incarnation == to.incarnation {
            self.send(to.replica, Message::Fetched { log, entries }, out);
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
            if !paxos.has_room(slot, &value) {
                self.counters.beyond_window += 1;
                continue;
            }
            let accepted = paxos.get(slot).and_then(|cell| cell.accepted.as_ref());
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
