//! Every commit has its quorum (oracle 3; §2.1, §3.2). Before a replica votes, it has made its
//! acceptance of the entry durable. The tag of the vote names every replica to which the voter has
//! promised keys that the entry writes. A chosen value was accepted by a majority, and also by
//! every replica that the tags of this majority name.
//!
//! Votes are recorded when they are sent. A leader's own votes are also recorded at the end of each
//! of its steps, because it does not send all of them. The rule is checked by trying every
//! majority.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use leasehold_leases::{Ballot, ConfigId, LeaseMessage, ReplicaId, ReplicaSet, Slot};
use smallvec::SmallVec;

use super::{Entry, StepContext, Verdict, Vote, WorldSnapshot, ensure, id, rewritten, writes};
use leasehold_replica::Replica;
use leasehold_replica::action::Action;
use leasehold_replica::message::{Accept, Envelope, LogId, Message, Value};

pub(super) const NAME: &str = "quorums";

#[derive(Debug, Default)]
struct Poll {
    value: Option<Value>,
    votes: SmallVec<[(ReplicaId, ReplicaSet); 6]>,
}

type LiveGrants = SmallVec<[(ConfigId, ReplicaSet); 4]>;

/// Polls in one slot. The ballot of a poll is the ballot of its votes.
type Polls = SmallVec<[(Ballot, Poll); 1]>;

type Votes = SmallVec<[Vote; 8]>;

/// Returns the poll at `ballot`. Creates the poll if there is none.
fn poll_at(polls: &mut Polls, ballot: Ballot) -> &mut Poll {
    let known = polls.iter().position(|(at, _)| *at == ballot);
    let place = known.unwrap_or_else(|| {
        polls.push((ballot, Poll::default()));
        polls.len() - 1
    });
    &mut polls[place].1
}

/// Oracle that judges quorums: every commit must have a quorum of votes.
#[derive(Debug)]
pub struct QuorumOracle {
    n: usize,
    polls: HashMap<(LogId, Slot), Polls, FixedState>,
    /// One flag for each log and slot: whether the slot is known to be chosen. Later votes in a
    /// chosen slot are ignored.
    done: [Vec<bool>; 2],
    /// Votes of this step that were already judged. If a vote is sent to several replicas, it is
    /// judged once. But it is judged again if the voter promises or persists something in between.
    judged: Votes,
    /// Number of votes and commits judged.
    pub checks: u64,
}

impl QuorumOracle {
    pub(super) fn new(n: usize) -> QuorumOracle {
        QuorumOracle {
            n,
            polls: HashMap::default(),
            done: Default::default(),
            judged: Votes::new(),
            checks: 0,
        }
    }

    /// Forgets the votes that were judged, so that equal votes are judged again. This must be
    /// called when a replica takes another step. It must also be called before the replica persists
    /// or promises something in the step.
    pub(super) fn judge_again(&mut self) {
        self.judged.clear();
    }

    /// Judges a message that a replica is about to send.
    pub(super) fn sent(&mut self, ctx: StepContext<'_>, envelope: &Envelope) -> Verdict {
        match &envelope.message {
            Message::Accept(accept) => self.proposed(accept)?,
            Message::Lease(_) => self.judge_again(),
            _ => {}
        }
        let mut votes = Vote::all_in(&envelope.message);
        votes.try_for_each(|vote| self.vote(ctx, vote))
    }

    /// Checks that at most one value is proposed in a slot at each ballot.
    fn proposed(&mut self, accept: &Accept) -> Verdict {
        let (log, slot, ballot) = (accept.log, accept.slot, accept.ballot);
        if self.is_done(log, slot) {
            return Ok(());
        }
        let poll = poll_at(self.polls.entry((log, slot)).or_default(), ballot);
        let value = poll.value.get_or_insert_with(|| accept.value.clone());
        ensure!(
            NAME,
            *value == accept.value,
            "{ballot:?} proposes two values in {log:?} {slot:?}"
        );
        Ok(())
    }

    fn is_done(&self, log: LogId, slot: Slot) -> bool {
        let done = &self.done[log.index()];
        done.get(slot.0 as usize).copied().unwrap_or(false)
    }

    fn vote(&mut self, ctx: StepContext<'_>, vote: Vote) -> Verdict {
        let Vote { log, slot, .. } = vote;
        if self.is_done(log, slot) || self.judged.contains(&vote) {
            return Ok(());
        }
        self.judged.push(vote);
        self.judge(ctx, vote)?;
        let polls = self.polls.entry((log, slot)).or_default();
        let votes = &mut poll_at(polls, vote.ballot).votes;
        let of = (id(ctx.node), vote.tag);
        if !votes.contains(&of) {
            votes.push(of);
        }
        Ok(())
    }

    /// Judges a vote. The accepted entry must be durable. The tag of the vote must name every
    /// replica to which the voter has promised a key that the entry writes.
    fn judge(&mut self, ctx: StepContext<'_>, vote: Vote) -> Verdict {
        let StepContext {
            snapshot,
            node,
            rest,
        } = ctx;
        let (me, Vote { log, slot, .. }) = (id(node), vote);
        let (ballot, tag) = (vote.ballot, vote.tag);
        let Some(replica) = snapshot.replica(node) else {
            return Ok(());
        };
        self.checks += 1;
        ensure!(
            NAME,
            snapshot.node(node).disk().holds(log, slot, ballot),
            "{me:?} votes for {log:?} {slot:?} at {ballot:?}, which is not on its disk"
        );
        if slot <= replica.executed_of(log) {
            return Ok(());
        }
        let entry = replica.entry(log, slot);
        let entry = entry.map(|value| Entry { log, slot, value });
        let owed = entry.map_or(ReplicaSet::EMPTY, |entry| owed(ctx, entry));
        ensure!(
            NAME,
            owed.is_subset(tag) || rewritten(rest, log, slot),
            "{me:?} votes for {log:?} {slot:?} with tag {tag:?}, but has promised {owed:?}"
        );
        Ok(())
    }

    /// Judges `entry` when the acting replica is the first replica to know that the entry is
    /// chosen.
    pub(super) fn chosen(&mut self, ctx: StepContext<'_>, entry: Entry<'_>) -> Verdict {
        self.checks += 1;
        let Entry { log, slot, value } = entry;
        for vote in self.new_votes(ctx, log, slot) {
            self.vote(ctx, vote)?;
        }
        let polls = self.close(log, slot);
        let replica = ctx.snapshot.replica(ctx.node);
        let newest = replica.and_then(|replica| replica.accepted(log, slot));
        let newest = newest.map(|(ballot, _)| ballot);
        let carries =
            |poll: &Poll| poll.value.as_ref() == Some(value) && is_quorum(self.n, &poll.votes);
        // Votes commit only an entry that was received at their ballot (hazard 20).
        let received = |ballot: Ballot| newest.is_none_or(|newest| ballot <= newest);
        ensure!(
            NAME,
            polls
                .iter()
                .any(|(at, poll)| received(*at) && carries(poll)),
            "{log:?} {slot:?} counts as chosen without a majority whose tags are covered, at a \
             ballot at which it was received: {:?}",
            polls
                .iter()
                .map(|(b, poll)| (b, &poll.votes))
                .collect::<Vec<_>>()
        );
        Ok(())
    }

    /// Judges and records the votes that a leader has cast for its own proposals. The oracle cannot
    /// learn them from messages, because a leader sends only some of its own votes. It cannot learn
    /// them later, because a leader forgets them when it accepts an entry from the next leader.
    pub(super) fn step_ends(&mut self, ctx: StepContext<'_>) -> Verdict {
        let me = id(ctx.node);
        let mut votes = Votes::new();
        for ((log, slot), polls) in &self.polls {
            if polls.iter().any(|(led, _)| led.replica == me) {
                votes.extend(self.new_votes(ctx, *log, *slot));
            }
        }
        votes.into_iter().try_for_each(|vote| self.vote(ctx, vote))
    }

    /// Returns the present votes of the acting replica on a slot, without those that are already
    /// recorded.
    fn new_votes(&self, ctx: StepContext<'_>, log: LogId, slot: Slot) -> Votes {
        let voter = id(ctx.node);
        let polls = self.polls.get(&(log, slot));
        let is_new = |vote: &Vote| {
            let mut polls = polls.into_iter().flatten();
            let poll = polls.find(|(ballot, _)| *ballot == vote.ballot);
            poll.is_none_or(|(_, poll)| !poll.votes.contains(&(voter, vote.tag)))
        };
        let replica = ctx.snapshot.replica(ctx.node);
        let votes = replica.into_iter().flat_map(|it| it.own_votes(log, slot));
        let votes = votes.map(|(ballot, tag)| Vote {
            log,
            slot,
            ballot,
            tag,
        });
        votes.filter(is_new).collect()
    }

    /// Removes and returns the polls of a slot. Later votes in the slot are ignored.
    fn close(&mut self, log: LogId, slot: Slot) -> Polls {
        let done = &mut self.done[log.index()];
        let index = slot.0 as usize;
        if done.len() <= index {
            done.resize(index + 1, false);
        }
        done[index] = true;
        self.polls.remove(&(log, slot)).unwrap_or_default()
    }
}

/// Whether an action is a promise to `holder` with a barrier at or above `slot`.
fn promises(action: &Action, holder: ReplicaId, slot: Slot) -> bool {
    let Action::Send { to, envelope } = action else {
        return false;
    };
    match &envelope.message {
        Message::Lease(LeaseMessage::Promise(promise)) => {
            *to == holder && promise.highest_accepted >= slot
        }
        _ => false,
    }
}

/// Returns the replicas to which the acting replica has promised some key that `entry` writes. The
/// grants of the acting replica show these promises. Omits each replica to which the acting replica
/// makes another promise later in the same step, if the barrier of that promise covers the slot.
fn owed(ctx: StepContext<'_>, Entry { log, slot, value }: Entry<'_>) -> ReplicaSet {
    let StepContext {
        snapshot,
        node,
        rest,
    } = ctx;
    let mut owed = ReplicaSet::EMPTY;
    let Some(replica) = snapshot.replica(node).filter(|_| log == LogId::Commands) else {
        return owed;
    };
    let live = live_grants(snapshot, node, replica);
    let granted = live.iter().map(|(_, granted)| *granted);
    let most = granted.fold(ReplicaSet::EMPTY, ReplicaSet::union);
    for key in writes(value) {
        if owed == most {
            break;
        }
        let view = replica.configs().view(key);
        for (config, granted) in &live {
            owed = owed.union(view.holders(*config).intersection(*granted));
        }
    }
    let promised_later = |holder: &ReplicaId| rest.iter().any(|a| promises(a, *holder, slot));
    owed.minus(owed.iter().filter(promised_later).collect())
}

/// Returns the replicas for which `node` keeps unexpired grants, by configuration.
fn live_grants(snapshot: &WorldSnapshot<'_>, node: usize, replica: &Replica) -> LiveGrants {
    let now = snapshot.time(node);
    let mut live = LiveGrants::new();
    for holder in (0..snapshot.n())
        .map(id)
        .filter(|holder| *holder != id(node))
    {
        let grants = replica.grants_to(holder).filter(|(_, until)| now < *until);
        for (config, _) in grants {
            match live.iter_mut().find(|(of, _)| *of == config) {
                Some((_, granted)) => granted.insert(holder),
                None => live.push((config, ReplicaSet::one(holder))),
            }
        }
    }
    live
}

/// Whether the votes satisfy the rule of §3.2. Tries every majority of the acceptors.
fn is_quorum(n: usize, votes: &[(ReplicaId, ReplicaSet)]) -> bool {
    let accepted: ReplicaSet = votes.iter().map(|(who, _)| *who).collect();
    let satisfied = |member: ReplicaId| {
        let mut tags = votes.iter().filter(|(who, _)| *who == member);
        tags.any(|(_, tag)| tag.is_subset(accepted))
    };
    let majorities = (0u64..1 << n).map(ReplicaSet);
    let mut majorities = majorities.filter(|m| 2 * m.len() > n && m.is_subset(accepted));
    majorities.any(|majority| majority.iter().all(satisfied))
}

#[cfg(test)]
mod tests;
