//! Multi-Paxos: ballots, roles, both logs, votes and commits. The methods of this module return
//! what happened, and the caller decides what to do about it. This module changes no state of other
//! parts. The caller passes in the tags that votes carry, and the sessions, which determine the
//! writes that are *infallible*.
//!
//! `pre_vote` comes before a campaign. `candidate` and `recover` implement Phase 1; `acceptor` and
//! `proposer` implement Phase 2. `votes` is the commit rule, `transfer` transfers leadership, and
//! `preference` decides when the preferred leader may lead again. `commits` tracks commits,
//! `catchup` fetches missed entries, and `lead` is the state of a leader. A slot is *chosen* when
//! the votes commit it, and *committed* here when this replica knows that.

mod acceptor;
mod candidate;
mod catchup;
mod cell;
mod commits;
mod election;
mod lead;
mod log;
mod marks;
mod pre_vote;
mod preference;
mod proposer;
mod ranges;
mod recover;
mod restore;
mod transfer;
mod votes;

use std::time::Duration;

use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{Ballot, ReplicaId, Slot, Time};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::action::RecoveredState;
use super::message::LogId;
use super::per_log::PerLog;
use super::settings::Settings;
use super::step::Step;
use super::timers::Timer;

pub(super) use acceptor::{Acceptances, SlotEntry, origins, vote_once_durable};
pub(super) use candidate::{CandidateState, Prepared};
pub(super) use cell::Accepted;
pub(super) use commits::EarlyAnswer;
pub(super) use election::ElectionProgress;
pub(super) use lead::{CommandClass, Leadership};
pub(super) use log::Log;
pub(super) use marks::Marks;
pub use votes::committed;

use acceptor::Vote;
use catchup::FetchRequest;
use pre_vote::PreVoteState;
use preference::Preference;
use transfer::Succession;

/// Role of this replica: follower, candidate or leader.
#[derive(Clone, Debug, Hash)]
enum Role {
    Follower,
    Candidate(CandidateState),
    Leader(Box<Leadership>),
}

/// Multi-Paxos on both logs.
#[derive(Clone, Debug)]
pub(super) struct Consensus {
    role: Role,
    /// Highest ballot that this replica has promised. The replica accepts nothing under a lower
    /// ballot.
    promised: Ballot,
    /// Highest round seen in any message or promise.
    round_seen: u64,
    /// Ballot of the leader from which a message arrived last. If no leader is known, the round of
    /// this ballot is 0.
    leader: Ballot,
    /// State of pre-votes, and the time of the last message from a leader, or from a candidate with
    /// a ballot that this replica has promised.
    pre_vote: PreVoteState,
    /// Knowledge about the beginning of the present leadership, and about the next leader.
    succession: Succession,
    /// Observations that this replica has made about the preferred leader.
    preference: Preference,
    logs: PerLog<Log>,
    /// For each key, the accepted but unexecuted slots that write it.
    marks: Marks,
    votes_due: Vec<Vote>,
    fetching: PerLog<Option<FetchRequest>>,
    /// Sequence number of the last answer that this run has given in Phase 1.
    last_answer: u64,
    /// Random numbers for election timeouts.
    rng: Pcg64Mcg,
}

impl std::hash::Hash for Consensus {
    /// Hashes this value, except the random numbers. While a fingerprint is valid, the random
    /// numbers have no effect (`Replica::fingerprint`).
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (&self.role, self.promised, self.round_seen, self.leader).hash(state);
        (&self.logs, &self.marks, &self.votes_due).hash(state);
        (self.fetching, self.last_answer).hash(state);
        (&self.pre_vote, &self.succession, &self.preference).hash(state);
    }
}

impl Consensus {
    /// Restores the durable state of an earlier run, or begins with an empty state. Marks are
    /// rebuilt from all accepted, unexecuted slots before any key is read (hazard 30).
    pub(super) fn restore(
        now: Time,
        recovered: &RecoveredState,
        settings: &Settings,
        seed: u64,
    ) -> Consensus {
        let logs = restore::logs(recovered, settings);
        Consensus {
            role: Role::Follower,
            promised: recovered.promised,
            round_seen: recovered.promised.round,
            leader: Ballot::ZERO,
            succession: Succession::begin(now),
            preference: Preference::begin(now),
            pre_vote: PreVoteState::begin(now, recovered.promised),
            marks: restore::marks(&logs.commands),
            logs,
            votes_due: Vec::new(),
            fetching: PerLog::default(),
            last_answer: 0,
            rng: Pcg64Mcg::seed_from_u64(seed),
        }
    }

    /// Returns the present leader that this replica knows; `None` if no leader is known.
    pub(super) fn leader(&self) -> Option<ReplicaId> {
        (self.leader.round > 0).then_some(self.leader.replica)
    }

    /// Returns the time since this replica began to follow the present leader; zero if it knows no
    /// leader.
    pub(super) fn led_for(&self, now: Time) -> Duration {
        match self.leader() {
            Some(_) => now.since(self.succession.led_since),
            None => Duration::ZERO,
        }
    }

    /// Returns the state of the leadership; `None` if this replica does not lead.
    pub(super) fn leadership(&self) -> Option<&Leadership> {
        match &self.role {
            Role::Leader(leadership) => Some(leadership),
            _ => None,
        }
    }

    fn leadership_mut(&mut self) -> Option<&mut Leadership> {
        match &mut self.role {
            Role::Leader(leadership) => Some(leadership),
            _ => None,
        }
    }

    pub(super) fn leads(&self) -> bool {
        self.leadership().is_some()
    }

    pub(super) fn is_follower(&self) -> bool {
        matches!(self.role, Role::Follower)
    }

    pub(super) fn is_candidate(&self) -> bool {
        matches!(self.role, Role::Candidate(_))
    }

    /// Returns the lowest ballot under which this replica accepts values.
    pub(super) fn promised(&self) -> Ballot {
        self.promised
    }

    pub(super) fn log(&self, log: LogId) -> &Log {
        &self.logs[log]
    }

    pub(super) fn commands(&self) -> &Log {
        &self.logs.commands
    }

    pub(super) fn marks(&self) -> &Marks {
        &self.marks
    }

    pub(super) fn marks_mut(&mut self) -> &mut Marks {
        &mut self.marks
    }

    /// Returns the last executed slot of each log.
    pub(super) fn executed(&self) -> PerLog<Slot> {
        PerLog::of(|log| self.logs[log].executed)
    }

    /// Returns the commit points of both logs.
    pub(super) fn committed(&self) -> PerLog<Slot> {
        PerLog::of(|log| {
            let log = &self.logs[log];
            if off(Rule::H107Committed) {
                log.highest
            } else {
                log.commit_point
            }
        })
    }

    /// Whether a log has committed slots that are not executed.
    pub(super) fn has_to_execute(&self) -> bool {
        self.executed() != PerLog::of(|log| self.logs[log].commit_point)
    }

    /// Sets the first election timer. The preferred replica campaigns soon. The others wait longer,
    /// so that the preferred replica can campaign first. If `waits` is true, the preferred replica
    /// waits as long as the others, because grants that it has forgotten may still be valid.
    pub(super) fn first_election(&mut self, step: &mut Step<'_>, waits: bool) {
        let base = step.ctx.settings.timing.election_timeout;
        let head_start = match step.ctx.settings.elections.preferred {
            Some(preferred) if preferred == step.me() && !waits => base / 10,
            Some(_) => base,
            None => base / 4,
        };
        let jitter = base.mul_f64(self.rng.random::<f64>() / 4.0);
        step.set_timer(Timer::Election, step.now + head_start + jitter);
    }

    /// Whether all proposals in both logs are committed.
    fn is_drained(&self, leadership: &Leadership) -> bool {
        let drained = |log: LogId| leadership.next[log] == self.logs[log].commit_point.next();
        LogId::ALL.into_iter().all(drained)
    }

    /// Checks the invariants of this part.
    ///
    /// # Panics
    /// If an invariant is broken.
    pub(super) fn check(&self) {
        for log in LogId::ALL {
            self.logs[log].check();
        }
        let commands = &self.logs.commands;
        assert!(
            commands.highest > commands.executed || self.marks.is_empty(),
            "only open slots are marked"
        );
        assert!(
            self.leader <= self.promised,
            "the leader's ballot is not above the promised ballot"
        );
        assert!(
            self.promised.round <= self.round_seen,
            "the promised round was seen"
        );
        self.pre_vote.check();
        match &self.role {
            Role::Follower => {}
            Role::Candidate(candidate) => {
                candidate.check();
                assert_eq!(
                    candidate.ballot, self.promised,
                    "a candidate promises itself"
                );
            }
            Role::Leader(leadership) => {
                assert_eq!(leadership.ballot, self.promised, "a leader promises itself");
                assert_eq!(self.leader, leadership.ballot, "a leader follows itself");
                leadership.check();
            }
        }
    }
}
