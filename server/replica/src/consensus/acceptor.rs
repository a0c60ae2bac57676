//! The acceptor: the side of Phase 2 that accepts values and votes (§2.1, §3.2).

use std::sync::Arc;

use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{Ballot, Key, ReplicaId, ReplicaSet, Slot};
use smallvec::{SmallVec, smallvec};

use super::Consensus;
use super::cell::Accepted;
use crate::action::Record;
use crate::leasing::Tags;
use crate::message::{Accept, LogId, Message, Value};
use crate::parts::Capacity;
use crate::per_log::PerLog;
use crate::persist::Continuation;
use crate::settings::AcceptReplies;
use crate::step::Step;

/// Value for a slot, with its ballot and with information from the leader about the value.
#[derive(Clone, Debug)]
pub struct SlotEntry {
    pub ballot: Ballot,
    pub value: Value,
    /// Highest slot, up to and including the slot of this entry, that may hold a multi-key command.
    pub last_multi: Slot,
    /// One bit for each command: set if execution cannot reject the command.
    pub infallible: Arc<[u64]>,
    /// Tag at the time of acceptance. Only mutants use this field: deliberately broken variants of
    /// this program, for tests (hazard 7).
    pub early_tag: Option<ReplicaSet>,
}

impl SlotEntry {
    /// Returns an entry without information from a leader. The commands of such an entry are
    /// answered only after execution.
    pub fn plain(ballot: Ballot, value: Value) -> SlotEntry {
        SlotEntry {
            ballot,
            value,
            last_multi: Slot::ZERO,
            infallible: Arc::from([]),
            early_tag: None,
        }
    }

    /// Returns the entry that an Accept carries.
    pub fn of(accept: &Accept) -> SlotEntry {
        SlotEntry {
            last_multi: accept.last_multi,
            infallible: accept.infallible.clone(),
            ..SlotEntry::plain(accept.ballot, accept.value.clone())
        }
    }
}

/// A durable acceptance that is not acknowledged yet.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Vote {
    log: LogId,
    slot: Slot,
    ballot: Ballot,
    tag: ReplicaSet,
    origins: ReplicaSet,
}

/// Acceptances that another replica has reported, all under one ballot.
#[derive(Clone, Debug)]
pub struct Acceptances {
    pub ballot: Ballot,
    pub log: LogId,
    pub votes: SmallVec<[(Slot, ReplicaSet); 1]>,
}

/// Newly chosen slots of each log.
pub type ChosenSlots = PerLog<SmallVec<[Slot; 8]>>;

/// Returns the origins of the commands in `value`.
pub fn origins(value: &Value) -> ReplicaSet {
    let commands = value.commands().iter();
    commands.map(|proposed| proposed.origin).collect()
}

/// Returns the tag for a vote on `accepted` that is sent now (hazard 7). The tag also contains the
/// holders of promises that were made while the entry was being written to disk.
pub(super) fn vote_tag(tags: &Tags<'_>, accepted: &mut Accepted) -> ReplicaSet {
    match accepted.early_tag.take() {
        Some(early) => early,
        None => tags.of(&accepted.value),
    }
}

impl Consensus {
    /// Adopts a ballot that began at slot `start`. Drops all entries of lower ballots in slots
    /// above `start`, because these entries can no longer be chosen. Removes the marks of the
    /// dropped entries, too. Returns the keys that the dropped entries write.
    pub fn adopt(
        &mut self,
        step: &mut Step<'_>,
        ballot: Ballot,
        log: LogId,
        start: Slot,
    ) -> Vec<Key> {
        let paxos = &mut self.logs[log];
        if paxos.adopted.0 >= ballot || start == Slot::ZERO {
            return Vec::new();
        }
        paxos.begin_ballot(ballot, start);
        step.record(Record::LogStart {
            log,
            ballot,
            slot: start,
        });
        let mut keys = Vec::new();
        for (slot, value) in paxos.drop_dead(ballot, start) {
            step.record(Record::Erased { log, slot });
            if log == LogId::Commands && !off(Rule::H18Marks) {
                self.marks
                    .unmark(slot, &value, |key| keys.push(key.clone()));
            }
        }
        keys
    }

    /// Whether the slot of this Accept already holds an entry under the ballot of the Accept.
    pub fn has_accepted(&self, accept: &Accept) -> bool {
        let Accept {
            ballot, log, slot, ..
        } = *accept;
        let known = self.logs[log].accepted(slot).map(|known| known.ballot);
        assert!(
            known.is_none_or(|known| known <= ballot),
            "an acceptor holds no acceptance above its own promise"
        );
        known == Some(ballot)
    }

    /// Puts a value into a slot and records it for the disk. The keys of the value are marked
    /// before any replica can learn of the acceptance (§3.6). If the slot held a different value,
    /// returns the keys of that replaced value. The caller must then try again to serve the reads
    /// that waited for the replaced value (hazard 18).
    pub fn store(
        &mut self,
        step: &mut Step<'_>,
        log: LogId,
        slot: Slot,
        entry: SlotEntry,
    ) -> Vec<Key> {
        let (ballot, value) = (entry.ballot, entry.value.clone());
        let Some(old) = self.put(step, log, slot, entry) else {
            return Vec::new();
        };
        let mut replaced = Vec::new();
        let replaces = old.is_some();
        if log == LogId::Commands && !(replaces && off(Rule::H18Marks)) {
            // The new marks are set first, so a key in both values is never unmarked in between.
            self.marks.mark(slot, &value);
            if let Some(old) = old.filter(|old| *old != value) {
                self.marks
                    .unmark(slot, &old, |key| replaced.push(key.clone()));
                self.marks.mark(slot, &value);
            }
        }
        step.record(Record::Accepted {
            log,
            slot,
            ballot,
            value,
        });
        replaced
    }

    /// Puts an entry into a slot. Returns `None` if the slot is beyond the window. Otherwise
    /// returns `Some(before)`, where `before` is the value that the slot held, or `None` if it held
    /// no value.
    fn put(
        &mut self,
        step: &Step<'_>,
        log: LogId,
        slot: Slot,
        entry: SlotEntry,
    ) -> Option<Option<Value>> {
        assert!(
            entry.ballot >= self.promised,
            "nothing is accepted below the promised ballot"
        );
        let paxos = &mut self.logs[log];
        assert!(
            slot > paxos.executed,
            "an executed slot is not accepted again"
        );
        // A proposer must not propose to others an entry that it cannot hold itself (hazard 79).
        assert!(
            paxos.has_room(slot, &entry.value) || off(Rule::H79Room),
            "slot {slot:?} lies beyond the window, which ends at {:?}",
            paxos.end()
        );
        let ballot = entry.ballot;
        let cell = paxos.cell(slot)?;
        let old = cell.accepted.take().map(|old| old.value);
        assert!(
            !cell.committed || old.as_ref().is_none_or(|old| *old == entry.value),
            "slot {slot:?} is committed with another value"
        );
        cell.accepted = Some(Accepted {
            ballot,
            origins: origins(&entry.value),
            value: entry.value,
            durable: false,
            last_multi: entry.last_multi,
            infallible: entry.infallible,
            early_tag: entry.early_tag,
            proposed: step.now,
            sent: step.now,
        });
        paxos.note_accepted(slot, ballot);
        Some(old)
    }

    /// Counts the leader's vote if the Accept contains one. An Accept without a vote is sent before
    /// the leader's own entry is durable, and the leader may still lose this entry (hazard 113).
    pub fn count_leader(&mut self, accept: &Accept) {
        let Accept {
            ballot,
            log,
            slot,
            vote,
            ..
        } = *accept;
        let vote = vote.or(off(Rule::H113Accept).then_some(ReplicaSet::EMPTY));
        if let Some(tag) = vote
            && let Some(cell) = self.logs[log].get_mut(slot)
        {
            cell.count(ballot.replica, ballot, tag);
        }
    }

    /// Counts acceptances of another replica. Returns the slots that are chosen as a result.
    pub fn count_votes(
        &mut self,
        step: &mut Step<'_>,
        from: ReplicaId,
        accepted: &Acceptances,
    ) -> SmallVec<[Slot; 8]> {
        let leadership = self.leadership();
        if leadership.is_some_and(|leadership| leadership.ballot == accepted.ballot) {
            self.follower_answered(step, from);
        }
        let log = accepted.log;
        let mut chosen = SmallVec::new();
        for (slot, tag) in &accepted.votes {
            if !self.logs[log].has_room(*slot, &Value::Noop) {
                step.metrics.refused_beyond_window += 1;
                continue;
            }
            let known = self.logs[log].cell(*slot);
            if let Some(cell) = known.filter(|cell| !cell.committed) {
                cell.count(from, accepted.ballot, *tag);
                if self.is_chosen(step, log, *slot) {
                    chosen.push(*slot);
                }
            }
        }
        chosen
    }

    /// Queues the vote on an acceptance. The acceptance and the earlier promise are both durable
    /// now. If the slot was executed already, `executed` contains the tag of the vote, and the
    /// origins of the slot's commands. If the slot is not executed, `executed` is `None`.
    pub fn vote_durable(
        &mut self,
        log: LogId,
        slot: Slot,
        ballot: Ballot,
        executed: Option<(ReplicaSet, ReplicaSet)>,
    ) {
        if ballot < self.promised {
            return; // The acceptance was superseded on its way to disk.
        }
        let (tag, origins) = match executed {
            Some(executed) => executed,
            None => {
                let cell = self.logs[log].get_mut(slot);
                let accepted = cell.and_then(|cell| cell.accepted.as_mut());
                let Some(accepted) = accepted.filter(|known| known.ballot == ballot) else {
                    return;
                };
                assert_eq!(
                    ballot, self.promised,
                    "an acknowledged acceptance is at the promised ballot"
                );
                accepted.durable = true;
                (ReplicaSet::EMPTY, accepted.origins)
            }
        };
        self.votes_due.push(Vote {
            log,
            slot,
            ballot,
            tag,
            origins,
        });
    }

    pub fn owes_votes(&self) -> bool {
        !self.votes_due.is_empty()
    }

    /// Sends the votes that are due. They are votes on durably accepted entries. Returns the slots
    /// that are chosen as a result of this replica's own votes. The tags are computed only now, so
    /// they also contain the holders of promises that were made while the entries were being
    /// written to disk (hazard 7).
    pub fn send_votes(&mut self, step: &mut Step<'_>, tags: &Tags<'_>) -> ChosenSlots {
        let me = step.me();
        let mut votes = std::mem::take(&mut self.votes_due);
        for vote in votes.iter_mut().filter(|v| v.log == LogId::Commands) {
            // Hazard 9: the leader is a grantor, too, so its vote needs a tag.
            if vote.ballot.replica == me && off(Rule::H09LeaderTag) {
                continue;
            }
            let cell = self.logs.commands.get_mut(vote.slot);
            if let Some(accepted) = cell.and_then(|cell| cell.accepted.as_mut()) {
                vote.tag = vote_tag(tags, accepted);
            }
        }
        for to in step.ctx.others() {
            send_votes_to(step, to, &votes);
        }
        assert!(
            votes.iter().all(|vote| vote.ballot <= self.promised),
            "no vote is above the promised ballot"
        );
        let mut chosen = ChosenSlots::default();
        for vote in &votes {
            if let Some(cell) = self.logs[vote.log].get_mut(vote.slot) {
                cell.count(step.me(), vote.ballot, vote.tag);
                if self.is_chosen(step, vote.log, vote.slot) {
                    chosen[vote.log].push(vote.slot);
                }
            }
        }
        votes.clear();
        self.votes_due = votes;
        chosen
    }

    /// Repeats the votes on uncommitted slots, with the current tags. This is done when grants have
    /// ended, because the current tags may then name fewer replicas.
    pub fn vote_again(&mut self) {
        let promised = self.promised;
        let again = self.logs.commands.uncommitted();
        let again = again.filter(|(_, known)| known.durable && known.ballot == promised);
        self.votes_due.extend(again.map(|(slot, accepted)| Vote {
            log: LogId::Commands,
            slot,
            ballot: accepted.ballot,
            tag: ReplicaSet::EMPTY,
            origins: accepted.origins,
        }));
    }
}

/// Queues the vote on a slot. The vote is sent once everything recorded so far is durable.
pub fn vote_once_durable(
    step: &mut Step<'_>,
    log: LogId,
    slot: Slot,
    ballot: Ballot,
    executed: Option<(ReplicaSet, ReplicaSet)>,
) {
    step.when_durable(Continuation::Vote {
        log,
        slot,
        ballot,
        executed,
    });
}

/// Sends to replica `to` those of `votes` that it should receive. Votes under a ballot of `to` are
/// always sent. The settings can add the votes on commands from clients of `to`, or all votes. If
/// two votes are a majority, the leader also sends its own votes to all replicas.
fn send_votes_to(step: &mut Step<'_>, to: ReplicaId, votes: &[Vote]) {
    let (me, replies) = (step.me(), step.ctx.settings.accept_replies);
    // With the leader's vote, any acceptor has a majority as soon as its own entry is durable.
    let leaders_is_enough = step.ctx.members.majority() == 2;
    let hears = |vote: &&Vote| {
        vote.ballot.replica == to
            || vote.ballot.replica == me && leaders_is_enough
            || match replies {
                AcceptReplies::Leader => false,
                AcceptReplies::Origin => vote.origins.contains(to),
                AcceptReplies::All => true,
            }
    };
    let mut rest = votes.iter().filter(hears).peekable();
    while let Some(first) = rest.next() {
        let mut list = smallvec![(first.slot, first.tag)];
        let mut capacity = Capacity::default();
        capacity.takes(0);
        let mut fits = |vote: &&Vote| {
            vote.log == first.log && vote.ballot == first.ballot && capacity.takes(0)
        };
        while let Some(next) = rest.next_if(&mut fits) {
            list.push((next.slot, next.tag));
        }
        let message = Message::Accepted {
            ballot: first.ballot,
            log: first.log,
            votes: list,
        };
        step.send(to, message);
    }
}
