//! Pre-vote: before a campaign a replica asks the others whether it may lead, while nothing is at
//! stake yet.
//!
//! After its election timeout a replica asks the others whether they would promise its next ballot.
//! It campaigns once a majority would. A replica agrees unless it has heard of a leader lately. So
//! a replica that was cut off, hears nothing, or has just started does not raise its round above
//! that of a healthy leader.
//!
//! No safety rule rests on this: a replica that asks no other, or believes a false answer, starts
//! an election that was not needed. So nothing here is durable.
//!
//! The replica that serves the sites best asks first: the others wait longer by their rank
//! (`ReplicaContext::rank`), and once more when they agree with one that asks before them.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use leasehold_leases::{Ballot, ReplicaId, ReplicaSet, Time};
use rand::RngExt as _;

use super::{Consensus, Role};
use crate::message::Message;
use crate::sanity::NUMBER_MAX;
use crate::step::Step;
use crate::timers::Timer;

/// Maximum wait of a candidate to which promises still arrive, as a multiple of its wait for the
/// first one. The candidate then abandons its campaign: others may be reached faster.
const PROMISES_TIMEOUTS: u32 = 60;
/// The same for a candidate that fetches entries. Others have the entries, and might lead at once.
const FETCHES_TIMEOUTS: u32 = 10;

/// Pre-vote of this replica: it asks all others whether they would promise this ballot.
#[derive(Clone, Debug)]
struct OpenPreVote {
    ballot: Ballot,
    /// The first time that it was asked, and when.
    first: u64,
    asked_at: Time,
    agreed: ReplicaSet,
}

impl OpenPreVote {
    /// Whether answers to it count. Not when they are old: this replica may have stood still
    /// meanwhile, and another lead.
    fn is_fresh(&self, step: &Step<'_>) -> bool {
        step.now.since(self.asked_at) < step.ctx.majority_timeout()
    }
}

/// State of this replica's pre-votes, with the time at which it last heard of a leader.
#[derive(Clone, Debug)]
pub(super) struct PreVoteState {
    /// When a leader was last heard of, or one about to lead. A run that begins on a used
    /// disk has not had the time to hear of a leader that there may be.
    heard: Option<Time>,
    /// The question that is open.
    open: Option<OpenPreVote>,
    /// Questions asked in this run.
    asks: u64,
    /// The election timer has waited for the replicas that rank before this one.
    waited: bool,
    /// It has waited for one that asked before, in this silence.
    yielded: bool,
}

impl Hash for PreVoteState {
    /// When a leader was heard decides nothing before the horizon.
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

    /// Panics if the open question is not as it must be.
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
    /// A leader was heard of, or a candidate that this replica has promised: waits again.
    pub(in super::super) fn heard_leader(&mut self, step: &mut Step<'_>) {
        self.pre_vote.heard = Some(step.now);
        self.pre_vote.yielded = false;
        self.pre_vote.open = None;
        self.reset_election(step);
    }

    /// Whether a leader was heard of so lately that it would be heard now.
    pub(super) fn hears_leader(&self, step: &Step<'_>) -> bool {
        let lately = |heard: Time| step.now.since(heard) < step.ctx.transfer_timeout();
        self.pre_vote.heard.is_some_and(lately)
    }

    /// The leader has lost what it knew, so it leads no more: no replica waits for it.
    pub(in super::super) fn leader_restarted(&mut self, step: &mut Step<'_>, leader: ReplicaId) {
        if self.leader() == Some(leader) && self.is_follower() {
            self.pre_vote.heard = None;
            self.pre_vote.waited = false;
            let jitter = self.jitter(step);
            step.timers.set_earlier(Timer::Election, step.now + jitter);
        }
    }

    /// Waits for a leader again.
    pub(in super::super) fn reset_election(&mut self, step: &mut Step<'_>) {
        self.pre_vote.waited = false;
        let timeout = step.ctx.settings.timing.election_timeout + self.jitter(step);
        step.set_timer(Timer::Election, step.now + timeout);
    }

    /// Waits for a majority's promises.
    pub(super) fn await_promises(&mut self, step: &mut Step<'_>) {
        let timeout = step.ctx.majority_timeout() + self.jitter(step);
        step.set_timer(Timer::Election, step.now + timeout);
    }

    /// A new part of a promise has come to this candidate. Large promises take longer than an
    /// election timeout.
    pub(in super::super) fn promise_progressed(&mut self, step: &mut Step<'_>) {
        self.candidate_progressed(step, PROMISES_TIMEOUTS);
    }

    /// Entries have come that this candidate fetches.
    pub(in super::super) fn fetch_progressed(&mut self, step: &mut Step<'_>) {
        self.candidate_progressed(step, FETCHES_TIMEOUTS);
    }

    /// Part of what this candidate waits for has arrived: it waits on, for at most so many
    /// `timeouts` in all. The replicas that have promised wait with it.
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

    /// Whether this candidate has waited for much longer than for a first answer. If it is
    /// not elected all the same, it is another's turn.
    pub(in super::super) fn has_waited_long(&self, step: &Step<'_>) -> bool {
        let long = step.ctx.majority_timeout() * 2;
        matches!(&self.role, Role::Candidate(it) if step.now.since(it.since) >= long)
    }

    /// A short random span, so that two do not ask at the same moment.
    fn jitter(&mut self, step: &Step<'_>) -> Duration {
        let most = step.ctx.settings.timing.election_timeout / 16;
        most.mul_f64(self.rng.random::<f64>())
    }

    /// The election timeout has passed. Returns whether this replica should ask now: not
    /// before those that would serve the sites better had their turn. `fit`: it could lead
    /// as well as any.
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
        // Where no replica has ever led, others may be about to join.
        let again = match self.promised {
            Ballot::ZERO => timeout / 16,
            _ => timeout / 4,
        };
        let again = again.max(step.ctx.rtt_max().min(timeout)) + self.jitter(step);
        step.set_timer(Timer::Election, step.now + again);
        true
    }

    /// Asks the others whether they would promise a ballot above every one seen.
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
        // Asked again, answers to the first time count.
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

    /// Whether this replica would promise a ballot of `from`: it has heard of no leader for
    /// about an election timeout, or only of `from` itself. Leaders are heard at different
    /// times, so it waits a little less than it would before it asks itself.
    pub(in super::super) fn would_promise(&self, step: &Step<'_>, from: ReplicaId) -> bool {
        let timeout = step.ctx.settings.timing.election_timeout * 7 / 8;
        let silent = |heard: Time| step.now.since(heard) >= timeout;
        let alone = self.pre_vote.heard.is_none_or(silent);
        !self.leads() && (alone || self.promised.replica == from)
    }

    /// This replica would promise what another asked for: it lets that one campaign first. It does
    /// so once per silence: a replica that asks and hears no answers would otherwise stop all
    /// others.
    pub(in super::super) fn give_way(&mut self, step: &mut Step<'_>) {
        if !std::mem::replace(&mut self.pre_vote.yielded, true) {
            let span = step.ctx.settings.timing.election_timeout / 2 + self.jitter(step);
            step.set_timer(Timer::Election, step.now + span);
        }
    }

    /// Another would promise. Returns whether a majority would, and this replica is to
    /// campaign.
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

    /// Nothing is asked any more.
    pub(in super::super) fn end_pre_vote(&mut self) {
        self.pre_vote.open = None;
    }

    /// Whether the ballot that is asked for is too low, for `promised` was.
    pub(in super::super) fn asks_below(&self, promised: Ballot) -> bool {
        let open = self.pre_vote.open.as_ref();
        open.is_some_and(|open| open.ballot < promised)
    }
}
