//! Pre-vote: before a campaign, a replica asks the others whether it may lead. Asking does not
//! raise any round.
//!
//! After its election timeout a replica asks the others whether they would promise its next ballot.
//! It campaigns once a majority would promise it. A replica agrees unless a message from a leader
//! has reached it lately. So a replica that was cut off, receives no messages or has just started
//! does not raise its round above the round of a healthy leader.
//!
//! Safety does not depend on pre-votes: a replica that skips them, or believes a false answer, only
//! starts an election that was not needed. So the state of pre-votes is not durable.
//!
//! The replica that serves the sites best asks first. Each of the others waits for a longer time,
//! which grows with its rank (`ReplicaContext::rank`). A replica waits once more after it has
//! agreed to the pre-vote of another replica.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use leasehold_leases::{Ballot, ReplicaId, ReplicaSet, Time};
use rand::RngExt as _;

use super::{Consensus, Role};
use crate::message::Message;
use crate::sanity::NUMBER_MAX;
use crate::step::Step;
use crate::timers::Timer;

/// Limit on the wait of a candidate while promises still arrive, as a multiple of its wait for the
/// first promise. After this time the candidate abandons its campaign, because another candidate
/// may receive promises faster.
const PROMISES_TIMEOUTS: u32 = 60;
/// Maximum wait of a candidate that fetches entries, as a multiple of its wait for the first
/// promise. The wait is limited because other replicas have these entries already and could lead
/// immediately.
const FETCHES_TIMEOUTS: u32 = 10;

/// Open pre-vote of this replica. All other replicas were asked whether they would promise
/// `ballot`.
#[derive(Clone, Debug)]
struct OpenPreVote {
    ballot: Ballot,
    /// Sequence number of the first question about this ballot. `asked_at` is the time of that
    /// question.
    first: u64,
    asked_at: Time,
    agreed: ReplicaSet,
}

impl OpenPreVote {
    /// Whether this pre-vote is so recent that answers to it are valid. Old answers are not valid,
    /// because another replica may lead by now.
    fn is_fresh(&self, step: &Step<'_>) -> bool {
        step.now.since(self.asked_at) < step.ctx.majority_timeout()
    }
}

/// State of this replica's pre-votes, and the time of the last message from a leader.
#[derive(Clone, Debug)]
pub(super) struct PreVoteState {
    /// Time of the last message from a leader, or from a candidate with a ballot that this replica
    /// has promised. If an earlier run has promised a ballot, this field begins with the start time
    /// of this run, because messages of a leader have not had time to arrive.
    heard: Option<Time>,
    /// The open pre-vote, if there is one.
    open: Option<OpenPreVote>,
    /// Number of pre-vote questions that this replica has asked in this run.
    asks: u64,
    /// Whether the election timer has already waited for the replicas that should campaign before
    /// this replica.
    waited: bool,
    /// Whether this replica has already waited once to let another replica campaign first. The
    /// field is reset when a message from a leader arrives.
    yielded: bool,
}

impl Hash for PreVoteState {
    /// Hashes this value, except the time of the last message from a leader. While a fingerprint is
    /// valid, this time has no effect (`Replica::fingerprint`).
    fn hash<H: Hasher>(&self, state: &mut H) {
        let open = self.open.as_ref();
        open.map(|open| (open.ballot, open.first, open.agreed))
            .hash(state);
        self.asks.hash(state);
    }
}

impl PreVoteState {
    pub(super) fn begin(now: Time, promised: Ballot) -> PreVoteState {
        PreVoteState {
            heard: (promised > Ballot::ZERO).then_some(now),
            open: None,
            asks: 0,
            waited: false,
            yielded: false,
        }
    }

    /// Panics if the open pre-vote contradicts the other fields.
    pub(super) fn check(&self) {
        if let Some(open) = &self.open {
            assert!(
                (1..=self.asks).contains(&open.first),
                "an open pre-vote was sent"
            );
            assert!(
                open.agreed.contains(open.ballot.replica),
                "a replica agrees to its own pre-vote"
            );
        }
    }
}

impl Consensus {
    /// Notes that a message has arrived from a leader, or from a candidate with a ballot that this
    /// replica has promised. The election timer starts again.
    pub(in super::super) fn heard_leader(&mut self, step: &mut Step<'_>) {
        self.pre_vote.heard = Some(step.now);
        self.pre_vote.yielded = false;
        self.pre_vote.open = None;
        self.reset_election(step);
    }

    /// Returns whether a message from a leader has arrived so recently that this leader is probably
    /// still alive.
    pub(super) fn hears_leader(&self, step: &Step<'_>) -> bool {
        let lately = |heard: Time| step.now.since(heard) < step.ctx.transfer_timeout();
        self.pre_vote.heard.is_some_and(lately)
    }

    /// Notes that the replica `leader` has restarted. A restarted leader no longer leads, so this
    /// replica does not wait for messages of `leader` any more.
    pub(in super::super) fn leader_restarted(&mut self, step: &mut Step<'_>, leader: ReplicaId) {
        if self.leader() == Some(leader) && self.is_follower() {
            self.pre_vote.heard = None;
            self.pre_vote.waited = false;
            let jitter = self.jitter(step);
            step.timers.set_earlier(Timer::Election, step.now + jitter);
        }
    }

    /// Starts the election timer again, to wait for a leader.
    pub(in super::super) fn reset_election(&mut self, step: &mut Step<'_>) {
        self.pre_vote.waited = false;
        let timeout = step.ctx.settings.timing.election_timeout + self.jitter(step);
        step.set_timer(Timer::Election, step.now + timeout);
    }

    /// Sets the election timer to wait for the promises of a majority.
    pub(super) fn await_promises(&mut self, step: &mut Step<'_>) {
        let timeout = step.ctx.majority_timeout() + self.jitter(step);
        step.set_timer(Timer::Election, step.now + timeout);
    }

    /// Extends the wait of this candidate, because a new part of a promise has arrived. Large
    /// promises take longer than an election timeout.
    pub(in super::super) fn promise_progressed(&mut self, step: &mut Step<'_>) {
        self.candidate_progressed(step, PROMISES_TIMEOUTS);
    }

    /// Extends the wait of this candidate, because entries that it fetches have arrived.
    pub(in super::super) fn fetch_progressed(&mut self, step: &mut Step<'_>) {
        self.candidate_progressed(step, FETCHES_TIMEOUTS);
    }

    /// Extends the wait of this candidate, because something that it waits for has arrived. The
    /// whole campaign lasts at most `timeouts` times `ReplicaContext::majority_timeout`. Notifies
    /// the other replicas. Those that have promised then wait longer as well.
    fn candidate_progressed(&mut self, step: &mut Step<'_>, timeouts: u32) {
        let (timeout, jitter) = (step.ctx.majority_timeout(), self.jitter(step));
        let Role::Candidate(candidate) = &mut self.role else {
            return;
        };
        let end = candidate.since + timeout * timeouts;
        if step.now >= end {
            return;
        }
        let again = step.ctx.settings.timing.election_timeout / 4;
        if candidate.is_notification_due(step.now, again) {
            let (ballot, ask) = (candidate.ballot, self.pre_vote.asks);
            step.broadcast(&Message::PreVote { ballot, ask });
        }
        step.set_timer(Timer::Election, end.min(step.now + timeout + jitter));
    }

    /// Whether this candidate has waited much longer than a first answer takes. A candidate that is
    /// still not elected after that time should let another replica try.
    pub(in super::super) fn has_waited_long(&self, step: &Step<'_>) -> bool {
        let long = step.ctx.majority_timeout() * 2;
        matches!(&self.role, Role::Candidate(it) if step.now.since(it.since) >= long)
    }

    /// Returns a short random duration. It is added to a wait, so that two replicas do not ask for
    /// votes at the same moment.
    fn jitter(&mut self, step: &Step<'_>) -> Duration {
        let most = step.ctx.settings.timing.election_timeout / 16;
        most.mul_f64(self.rng.random::<f64>())
    }

    /// Handles the end of the election timeout. Returns whether it is this replica's turn to start
    /// a pre-vote. Replicas that would serve the sites better have their turn first. `fit` is true
    /// if this replica is fit to lead.
    pub(in super::super) fn is_its_turn(&mut self, step: &mut Step<'_>, fit: bool) -> bool {
        let timeout = step.ctx.settings.timing.election_timeout;
        let (silent, preferred) = (self.promised.replica, self.preferred(step));
        let rank = step.ctx.rank(step.now, fit, silent, preferred);
        if rank > 0 && !std::mem::replace(&mut self.pre_vote.waited, true) {
            let turn = step.ctx.rtt_max().clamp(timeout / 16, timeout / 4);
            let wait = (turn * rank).min(timeout / 2) + self.jitter(step);
            step.set_timer(Timer::Election, step.now + wait);
            return false;
        }
        // If no replica has ever led, others may be about to join.
        let again = match self.promised {
            Ballot::ZERO => timeout / 16,
            _ => timeout / 4,
        };
        let again = again.max(step.ctx.rtt_max().min(timeout)) + self.jitter(step);
        step.set_timer(Timer::Election, step.now + again);
        true
    }

    /// Asks the others whether they would promise a ballot above every ballot that was seen.
    pub(in super::super) fn start_pre_vote(&mut self, step: &mut Step<'_>) {
        assert!(
            self.is_follower(),
            "a replica steps down before it starts a pre-vote"
        );
        let round = self.round_seen() + 1;
        if round > NUMBER_MAX {
            return;
        }
        let ballot = Ballot {
            round,
            replica: step.me(),
        };
        self.pre_vote.asks += 1;
        let ask = self.pre_vote.asks;
        // If the same ballot is asked for again, answers to the first question are still valid.
        let open = self.pre_vote.open.take();
        let open = open.filter(|open| open.ballot == ballot && open.is_fresh(step));
        self.pre_vote.open = open.or_else(|| {
            Some(OpenPreVote {
                ballot,
                first: ask,
                asked_at: step.now,
                agreed: ReplicaSet::one(step.me()),
            })
        });
        step.broadcast(&Message::PreVote { ballot, ask });
    }

    /// Returns whether this replica would promise a ballot of `from`. The result is false if this
    /// replica leads. Otherwise the result is true in two cases: this replica follows `from`, or no
    /// message of a leader has arrived for most of an election timeout. The second case does not
    /// require the whole timeout, because a leader's messages do not reach all replicas at the same
    /// time.
    pub(in super::super) fn would_promise(&self, step: &Step<'_>, from: ReplicaId) -> bool {
        let timeout = step.ctx.settings.timing.election_timeout * 7 / 8;
        let silent = |heard: Time| step.now.since(heard) >= timeout;
        let alone = self.pre_vote.heard.is_none_or(silent);
        !self.leads() && (alone || self.promised.replica == from)
    }

    /// Waits once, so that another replica can campaign first. This replica has agreed to the
    /// ballot of that replica. The next such wait is possible only after a message from a leader
    /// has arrived. Without this limit, a replica that asks again and again, but receives no
    /// answers, would keep all others from campaigning.
    pub(in super::super) fn give_way(&mut self, step: &mut Step<'_>) {
        if !std::mem::replace(&mut self.pre_vote.yielded, true) {
            let span = step.ctx.settings.timing.election_timeout / 2 + self.jitter(step);
            step.set_timer(Timer::Election, step.now + span);
        }
    }

    /// Notes that `from` would promise `ballot`. Returns true if a majority would now promise
    /// `ballot`. This replica should then campaign.
    pub(in super::super) fn take_agreement(
        &mut self,
        step: &Step<'_>,
        from: ReplicaId,
        ballot: Ballot,
        ask: u64,
    ) -> bool {
        let asks = self.pre_vote.asks;
        let Some(open) = &mut self.pre_vote.open else {
            return false;
        };
        let fresh = open.is_fresh(step);
        if fresh && open.ballot == ballot && (open.first..=asks).contains(&ask) {
            open.agreed.insert(from);
        }
        fresh && step.ctx.members.is_quorum(open.agreed)
    }

    /// Ends the open pre-vote.
    pub(in super::super) fn end_pre_vote(&mut self) {
        self.pre_vote.open = None;
    }

    /// Whether the ballot of the open pre-vote is too low, because another replica has promised the
    /// higher ballot `promised`.
    pub(in super::super) fn asks_below(&self, promised: Ballot) -> bool {
        let open = self.pre_vote.open.as_ref();
        open.is_some_and(|open| open.ballot < promised)
    }
}
