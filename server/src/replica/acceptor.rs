//! The acceptor: Phase 2 (§2.1, §3.2).

use std::sync::Arc;

use leases::mutants::{Rule, off};
use leases::{Ballot, ReplicaId, ReplicaSet, Slot, Time};
use smallvec::{SmallVec, smallvec};

use super::action::{Action, Record};
use super::log::{Accepted, Cell};
use super::message::{Accept, LogId, Message, Value};
use super::parts::Room;
use super::persist::After;
use super::settings::AcceptReplies;
use super::{Replica, Role};

/// An acceptance that is durable and is to be acknowledged.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Vote {
    log: LogId,
    slot: Slot,
    ballot: Ballot,
    tag: ReplicaSet,
    origins: ReplicaSet,
}

/// Origins with a command in `value`.
pub(super) fn origins(value: &Value) -> ReplicaSet {
    value
        .commands()
        .iter()
        .map(|proposed| proposed.origin)
        .collect()
}

impl Replica {
    pub(super) fn on_accept(
        &mut self,
        now: Time,
        from: ReplicaId,
        accept: Accept,
        out: &mut Vec<Action>,
    ) {
        if accept.ballot.replica != from || accept.slot == Slot::ZERO {
            self.counters.refused_messages += 1;
            return;
        }
        if accept.ballot < self.promised {
            return self.send(
                from,
                Message::Rejected {
                    promised: self.promised,
                },
                out,
            );
        }
        self.hear_leader(now, accept.ballot, out);
        self.adopt(now, accept.ballot, accept.log, accept.news.log_start, out);
        let Accept {
            ballot,
            log,
            slot,
            tag,
            ..
        } = accept;
        let news = accept.news.clone();
        if slot <= self.log(log).executed {
            // An executed slot holds the chosen value: a new leader that proposes
            // it again still needs the votes, and their tags.
            let origins = origins(&accept.value);
            let tag = self.tag(now, &accept.value);
            self.vote_after_durable(log, slot, ballot, Some((tag, origins)));
        } else {
            self.accept(now, accept, out);
            if let Some(cell) = self.log(log).get_mut(slot) {
                cell.votes.add(from, ballot, tag);
            }
        }
        self.learn_news(now, log, ballot, &news, out);
        self.try_commit(now, log, slot, out);
    }

    /// Accepts an unexecuted slot, unless this very acceptance is there already.
    fn accept(&mut self, now: Time, accept: Accept, out: &mut Vec<Action>) {
        let Accept {
            ballot,
            log,
            slot,
            value,
            last_multi,
            sure,
            ..
        } = accept;
        let paxos = self.log(log);
        let room = paxos.has_room(slot, &value);
        let Some(cell) = paxos.cell(slot).filter(|_| room) else {
            // Its leader sends it again; by then a checkpoint may have moved the window.
            self.counters.beyond_window += 1;
            return;
        };
        match &cell.accepted {
            Some(known) if known.ballot == ballot => {
                // Again, after everything recorded so far, this entry among it.
                self.vote_after_durable(log, slot, ballot, None);
                return;
            }
            Some(known) if known.ballot > ballot => {
                // Above its own promise an acceptor holds no acceptance.
                unreachable!("accepted {:?} above the promise {ballot:?}", known.ballot)
            }
            _ => {}
        }
        self.store(now, log, slot, ballot, value, last_multi, sure, out);
        self.vote_after_durable(log, slot, ballot, None);
    }

    /// Puts a value into a slot and on its way to disk. Keys are marked here,
    /// before anybody can learn of the acceptance (§3.6).
    #[allow(clippy::too_many_arguments)]
    pub(super) fn store(
        &mut self,
        now: Time,
        log: LogId,
        slot: Slot,
        ballot: Ballot,
        value: Value,
        last_multi: Slot,
        sure: Arc<[u64]>,
        out: &mut Vec<Action>,
    ) {
        let early_tag = off(Rule::H07Pending).then(|| self.tag(now, &value));
        let paxos = &mut self.logs[log.index()];
        let room = paxos.has_room(slot, &value);
        // A proposer must not lead others on to what it does not hold itself (hazard 79).
        assert!(
            room || off(Rule::H79Room),
            "slot {slot:?} lies beyond the window, which ends at {:?}",
            paxos.end()
        );
        let Some(cell) = paxos.cell(slot) else {
            return;
        };
        let old = cell.accepted.take();
        if let (true, Some(old)) = (cell.committed, &old) {
            assert_eq!(
                old.value, value,
                "slot {slot:?} is committed with another value"
            );
        }
        let origins = origins(&value);
        cell.accepted = Some(Accepted {
            ballot,
            value: value.clone(),
            durable: false,
            last_multi,
            sure,
            origins,
            early_tag,
            proposed: now,
            sent: now,
        });
        paxos.highest = paxos.highest.max(slot);
        let replaces = old.is_some();
        if log == LogId::Commands && !(replaces && off(Rule::H18Marks)) {
            // The new marks come first: a key in both values is never unmarked.
            self.marks.mark(slot, &value);
            if let Some(old) = old.filter(|old| old.value != value) {
                self.replace_marks(now, slot, &old.value, &value, out);
            }
        }
        self.persister.record(Record::Accepted {
            log,
            slot,
            ballot,
            value,
        });
    }

    /// A higher ballot put another value into the slot: its marks move, and
    /// reads that waited for the old ones look again (hazard 18).
    fn replace_marks(
        &mut self,
        now: Time,
        slot: Slot,
        old: &Value,
        new: &Value,
        out: &mut Vec<Action>,
    ) {
        let mut keys = Vec::new();
        self.marks.unmark(slot, old, |key| keys.push(key.clone()));
        self.marks.mark(slot, new);
        self.look_again(now, keys, out);
    }

    /// Follows a ballot that began at `start`: entries of lower ballots above it
    /// can no longer be chosen, and are dropped.
    pub(super) fn adopt(
        &mut self,
        now: Time,
        ballot: Ballot,
        log: LogId,
        start: Slot,
        out: &mut Vec<Action>,
    ) {
        let paxos = &mut self.logs[log.index()];
        if paxos.adopted.0 >= ballot || start == Slot::ZERO {
            return;
        }
        paxos.adopted = (ballot, start);
        paxos.heard_commit = Slot::ZERO;
        paxos.log_starts.insert(ballot, start);
        self.persister.record(Record::LogStart {
            log,
            ballot,
            slot: start,
        });
        let mut keys = Vec::new();
        for (slot, value) in paxos.drop_dead(ballot, start) {
            self.persister.record(Record::Erased { log, slot });
            if log == LogId::Commands && !off(Rule::H18Marks) {
                self.marks
                    .unmark(slot, &value, |key| keys.push(key.clone()));
            }
        }
        self.look_again(now, keys, out);
    }

    fn vote_after_durable(
        &mut self,
        log: LogId,
        slot: Slot,
        ballot: Ballot,
        executed: Option<(ReplicaSet, ReplicaSet)>,
    ) {
        self.persister.after(After::Vote {
            log,
            slot,
            ballot,
            executed,
        });
    }

    /// The acceptance, and the promise behind it, are durable.
    pub(super) fn vote_durable(
        &mut self,
        log: LogId,
        slot: Slot,
        ballot: Ballot,
        executed: Option<(ReplicaSet, ReplicaSet)>,
    ) {
        if ballot < self.promised {
            return; // superseded while it went to disk
        }
        if let Some((tag, origins)) = executed {
            self.votes_due.push(Vote {
                log,
                slot,
                ballot,
                tag,
                origins,
            });
            return;
        }
        let Some(accepted) = self
            .log(log)
            .get_mut(slot)
            .and_then(|cell| cell.accepted.as_mut())
        else {
            return;
        };
        if accepted.ballot == ballot {
            accepted.durable = true;
            let origins = accepted.origins;
            self.votes_due.push(Vote {
                log,
                slot,
                ballot,
                tag: ReplicaSet::EMPTY,
                origins,
            });
        }
    }

    /// Acknowledges what became durable. Tags are computed here, when the reply
    /// is sent: a promise made while the entry went to disk is in them (hazard 7).
    pub(super) fn flush_votes(&mut self, now: Time, out: &mut Vec<Action>) {
        if self.votes_due.is_empty() {
            return;
        }
        let live = self.grantor.live(now);
        let mut votes = std::mem::take(&mut self.votes_due);
        for vote in &mut votes {
            if vote.log != LogId::Commands {
                continue;
            }
            if let Some(accepted) = self.logs[0]
                .get_mut(vote.slot)
                .and_then(|cell| cell.accepted.as_mut())
            {
                vote.tag = super::leasing::vote_tag(&live, &self.configs, accepted);
            }
        }
        self.send_votes(&votes, out);
        let me = self.me();
        let mut chosen: [SmallVec<[Slot; 8]>; 2] = Default::default();
        for vote in &votes {
            if let Some(cell) = self.log(vote.log).get_mut(vote.slot) {
                cell.votes.add(me, vote.ballot, vote.tag);
                if self.is_chosen(vote.log, vote.slot) {
                    chosen[vote.log.index()].push(vote.slot);
                }
            }
        }
        for log in LogId::ALL {
            self.commit_slots(now, log, &chosen[log.index()], out);
        }
        votes.clear();
        self.votes_due = votes;
    }

    fn send_votes(&mut self, votes: &[Vote], out: &mut Vec<Action>) {
        let audience = |vote: &Vote| -> ReplicaSet {
            let origins = match self.settings.accept_replies {
                AcceptReplies::Leader => ReplicaSet::EMPTY,
                AcceptReplies::Origin => vote.origins,
                AcceptReplies::All => ReplicaSet::all(self.settings.n),
            };
            origins.union(ReplicaSet::one(vote.ballot.replica))
        };
        for to in self.others() {
            let mut rest = votes
                .iter()
                .filter(|vote| audience(vote).contains(to))
                .peekable();
            while let Some(first) = rest.next() {
                let mut list = smallvec![(first.slot, first.tag)];
                let mut room = Room::default();
                room.takes(0);
                while let Some(next) = rest
                    .next_if(|v| v.log == first.log && v.ballot == first.ballot && room.takes(0))
                {
                    list.push((next.slot, next.tag));
                }
                let message = Message::Accepted {
                    ballot: first.ballot,
                    log: first.log,
                    votes: list,
                };
                self.send(to, message, out);
            }
        }
    }

    /// Grants have lapsed: slots that still wait may now wait for fewer, so their
    /// acceptances are sent again with today's tags.
    pub(super) fn vote_again(&mut self) {
        let again = self
            .commands()
            .uncommitted()
            .filter(|(_, accepted)| accepted.durable);
        let votes: Vec<Vote> = again
            .filter(|(_, accepted)| accepted.ballot == self.promised)
            .map(|(slot, accepted)| Vote {
                log: LogId::Commands,
                slot,
                ballot: accepted.ballot,
                tag: ReplicaSet::EMPTY,
                origins: accepted.origins,
            })
            .collect();
        self.votes_due.extend(votes);
    }

    pub(super) fn on_accepted(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        log: LogId,
        votes: &[(Slot, ReplicaSet)],
        out: &mut Vec<Action>,
    ) {
        let mut chosen: SmallVec<[Slot; 8]> = SmallVec::new();
        for (slot, tag) in votes {
            if !self.log(log).has_room(*slot, &Value::Noop) {
                self.counters.beyond_window += 1;
                continue;
            }
            let known: Option<&mut Cell> = self.log(log).cell(*slot);
            if let Some(cell) = known.filter(|cell| !cell.committed) {
                cell.votes.add(from, ballot, *tag);
                if self.is_chosen(log, *slot) {
                    chosen.push(*slot);
                }
            }
        }
        self.commit_slots(now, log, &chosen, out);
    }

    pub(super) fn on_rejected(&mut self, now: Time, promised: Ballot, out: &mut Vec<Action>) {
        self.round_seen = self.round_seen.max(promised.round);
        let mine = match &self.role {
            Role::Candidate(candidacy) => candidacy.ballot,
            Role::Leader(leadership) => leadership.ballot,
            Role::Follower => return,
        };
        if promised > mine {
            self.step_down(now, out);
        }
    }
}
