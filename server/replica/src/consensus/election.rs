//! Elections: Phase 1, once for every slot above the commit points, of both logs.

use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{Ballot, Incarnation, ReplicaId, ReplicaSet, Slot};
use smallvec::SmallVec;

use super::candidate::{self, CandidateState, Prepared};
use super::lead::Leadership;
use super::recover::recover_log;
use super::{Consensus, Role};
use crate::action::{Event, Record};
use crate::message::{LogId, Message, ReportedEntry, Value};
use crate::parts::chunks;
use crate::per_log::PerLog;
use crate::persist::Continuation;
use crate::sanity::{NUMBER_MAX, nearer};
use crate::size_estimate::value_size_estimate;
use crate::step::Step;
use crate::timers::Timer;

/// Piece of a promise: an accepted entry, or the slot at which a ballot began.
enum Piece {
    Entry(ReportedEntry),
    Start((LogId, Ballot, Slot)),
}

impl Piece {
    fn size_estimate(&self) -> usize {
        match self {
            Piece::Entry(reported) => value_size_estimate(&reported.value),
            Piece::Start(_) => 0,
        }
    }
}

fn unzip(pieces: Vec<Piece>) -> (Vec<ReportedEntry>, Vec<(LogId, Ballot, Slot)>) {
    let (mut entries, mut log_starts) = (Vec::new(), Vec::new());
    for piece in pieces {
        match piece {
            Piece::Entry(entry) => entries.push(entry),
            Piece::Start(start) => log_starts.push(start),
        }
    }
    (entries, log_starts)
}

/// Progress of a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElectionProgress {
    /// No candidate, or too few have promised.
    Waiting,
    /// A majority has promised, and some of them know more to be committed (hazard 27): each such
    /// replica, the log, and the slot up to which it knows more.
    Behind(Vec<(ReplicaId, LogId, Slot)>),
    /// Everything that a majority knows to be committed is here: nothing will be
    /// proposed at or below that.
    Elected,
}

/// Findings of Phase 1.
#[derive(Debug)]
pub struct Recovery {
    /// Time from which the replicated clock goes on, in ms.
    pub log_time_ms: u64,
    /// Values to propose again above the commit points.
    pub values: PerLog<Vec<Value>>,
}

/// Whether a majority has promised, the candidate included.
fn is_elected(step: &Step<'_>, candidate: &CandidateState) -> bool {
    let promised = candidate.promised().union(ReplicaSet::one(step.me()));
    step.ctx.members.is_quorum(promised)
}

/// Where a ballot's own log starts: at its opening no-op, which follows what it has
/// recovered. A no-op among that may be the opening one of another (hazard 29).
fn log_start(commit_point: Slot, recovered: &[Value]) -> Slot {
    let noop = recovered.iter().position(|value| *value == Value::Noop);
    let taken = noop.filter(|_| off(Rule::H29LogStart));
    Slot(commit_point.0 + taken.unwrap_or(recovered.len()) as u64 + 1)
}

impl Consensus {
    /// Refuses a ballot below the promised one, and says so. Returns whether it did.
    pub fn rejects(&self, step: &mut Step<'_>, from: ReplicaId, ballot: Ballot) -> bool {
        if ballot >= self.promised {
            return false;
        }
        let promised = self.promised;
        step.send(from, Message::Rejected { promised });
        true
    }

    /// Promises to accept nothing below `ballot`. Returns whether that is new.
    pub fn promise(&mut self, step: &mut Step<'_>, ballot: Ballot) -> bool {
        self.round_seen = self.round_seen.max(ballot.round);
        let new = ballot > self.promised;
        if new {
            self.promised = ballot;
            step.record(Record::Promised(ballot));
        }
        new
    }

    /// Takes the leader of `ballot` for the leader. Returns whether that is new.
    pub fn follow(&mut self, step: &mut Step<'_>, ballot: Ballot) -> bool {
        assert_eq!(
            ballot, self.promised,
            "the followed leader has the promised ballot"
        );
        self.note_leader(step, ballot);
        let new = self.leader != ballot;
        if new {
            self.leader = ballot;
            self.succession.led_since = step.now;
            self.succession.transferred_here = false;
            step.announce(Event::Following(ballot));
        }
        new
    }

    /// Follows again: a higher ballot was heard of, or this replica cannot lead.
    pub fn step_down(&mut self, step: &mut Step<'_>) {
        self.note_step_down();
        self.role = Role::Follower;
        self.leader = Ballot::ZERO;
        self.end_pre_vote();
        step.timers.stop(Timer::Heartbeat);
        step.timers.stop(Timer::Reconfigure);
        self.reset_election(step);
    }

    /// Asks to lead, under a ballot above every one seen and above every one of an
    /// earlier run, once its own promise is durable.
    pub fn campaign(&mut self, step: &mut Step<'_>) {
        assert!(
            self.is_follower(),
            "a replica steps down before it campaigns"
        );
        let round = self.round_seen.max(self.promised.round) + 1;
        if round > NUMBER_MAX && !off(Rule::H81Leaps) {
            return; // no decoder would take the ballot, and no restart its own disk
        }
        let ballot = Ballot {
            round,
            replica: step.me(),
        };
        self.promise(step, ballot);
        self.leader = Ballot::ZERO;
        self.end_pre_vote();
        self.await_promises(step);
        self.role = Role::Candidate(CandidateState::new(step.now, ballot));
        step.when_durable(Continuation::Campaign { ballot });
        step.announce(Event::Campaigning(ballot));
    }

    /// Asks the replicas that have not promised and from which no promise arrives. Returns whether
    /// this replica is still the candidate of `ballot`.
    pub fn send_prepare(&mut self, step: &mut Step<'_>, ballot: Ballot) -> bool {
        let commits = PerLog::of(|log| self.logs[log].commit_point);
        let Role::Candidate(candidate) = &mut self.role else {
            return false;
        };
        if candidate.ballot != ballot {
            return false;
        }
        candidate.set_requested(step.now);
        let timeout = step.ctx.majority_timeout();
        for to in step.ctx.others() {
            if !candidate.hears(to, step.now, timeout) {
                step.send(to, Message::Prepare { ballot, commits });
            }
        }
        true
    }

    /// The ballot under which promises were asked for too long ago.
    pub fn overdue_candidate(&self, step: &Step<'_>) -> Option<Ballot> {
        let Role::Candidate(candidate) = &self.role else {
            return None;
        };
        let timeout = step.ctx.settings.timing.retransmit;
        let requested = candidate.requested_at()?;
        (step.now.since(requested) >= timeout).then_some(candidate.ballot)
    }

    /// The promise of `ballot` is durable: reports what is accepted above the commit
    /// points, this replica's and the candidate's. Below its own the candidate fetches
    /// what is committed, so nothing there is needed.
    pub fn answer_prepare(
        &mut self,
        step: &mut Step<'_>,
        to: ReplicaId,
        ballot: Ballot,
        commits: PerLog<Slot>,
    ) {
        if self.promised != ballot {
            return;
        }
        let parts = self.promise_pieces(commits);
        assert!(!parts.is_empty(), "a promise has at least one part");
        self.last_answer += 1;
        let count = parts.len() as u32;
        for (part, pieces) in (0..).zip(parts) {
            let (entries, log_starts) = unzip(pieces);
            let message = Message::Prepared {
                ballot,
                answer: self.last_answer,
                part,
                parts: count,
                commits: PerLog::of(|log| self.logs[log].commit_point),
                entries,
                log_starts,
            };
            step.send(to, message);
        }
    }

    /// Where ballots began, and what is accepted above both commit points, split into
    /// messages; one at least: a promise that tells nothing is one, too.
    fn promise_pieces(&self, commits: PerLog<Slot>) -> SmallVec<[Vec<Piece>; 1]> {
        let entries = LogId::ALL.into_iter().flat_map(|log| {
            let paxos = &self.logs[log];
            let first = paxos.commit_point.max(commits[log]).next();
            paxos.report(log, first)
        });
        let starts = self.log_starts().map(Piece::Start);
        let pieces = starts.chain(entries.map(Piece::Entry)).collect();
        let mut parts = chunks(pieces, Piece::size_estimate);
        if parts.is_empty() {
            parts.push(Vec::new());
        }
        parts
    }

    fn log_starts(&self) -> impl Iterator<Item = (LogId, Ballot, Slot)> + '_ {
        LogId::ALL.into_iter().flat_map(|log| {
            let starts = self.logs[log].log_starts.iter();
            starts.map(move |(ballot, slot)| (log, *ballot, *slot))
        })
    }

    /// Takes a part of a promise. Returns whether it was one, and new. Those that come late say
    /// that their senders follow this leader; what else they say may be queued behind.
    pub fn take_promise(
        &mut self,
        step: &mut Step<'_>,
        from: ReplicaId,
        incarnation: Incarnation,
        prepared: Prepared,
    ) -> bool {
        match &mut self.role {
            Role::Candidate(candidate) => candidate.take(step, from, incarnation, prepared),
            Role::Leader(leadership) if leadership.ballot == prepared.ballot => {
                self.follower_answered(step, from);
                false
            }
            _ => false,
        }
    }

    /// Returns whether this candidate may lead, or what it lacks.
    pub fn election_progress(&self, step: &Step<'_>) -> ElectionProgress {
        let Role::Candidate(candidate) = &self.role else {
            return ElectionProgress::Waiting;
        };
        if candidate.requested_at().is_none() || !is_elected(step, candidate) {
            return ElectionProgress::Waiting;
        }
        let missing = |log| {
            let (theirs, id) = candidate.furthest(log)?;
            (theirs > self.logs[log].commit_point).then_some((id, log, theirs))
        };
        let behind: Vec<_> = LogId::ALL.into_iter().filter_map(missing).collect();
        if behind.is_empty() || off(Rule::H27Ahead) {
            return ElectionProgress::Elected;
        }
        ElectionProgress::Behind(behind)
    }

    /// Returns what an elected candidate would propose again; `None` if its window has no free
    /// space for that and an opening no-op behind it. There is free space once a checkpoint covers
    /// everything committed here: each entry was accepted within a window above the commit point of
    /// the replica that reported it. `executed_ms` is the replicated clock of what is executed.
    ///
    /// # Panics
    /// If this replica is no candidate.
    pub fn recover(&self, executed_ms: u64) -> Option<Recovery> {
        let Role::Candidate(candidate) = &self.role else {
            panic!("only a candidate is elected");
        };
        let values = PerLog::of(|log| self.recovered(log, candidate));
        let has_room = |log: LogId| {
            let paxos = &self.logs[log];
            let opening = Slot(paxos.commit_point.0 + values[log].len() as u64 + 1);
            paxos.has_room(opening, &Value::Noop)
        };
        let may_lead = LogId::ALL.into_iter().all(has_room);
        let log_time_ms = self.recovered_log_time_ms(candidate).max(executed_ms);
        may_lead.then_some(Recovery {
            log_time_ms,
            values,
        })
    }

    /// The replicated clock never falls: it goes on from the highest in any entry that lives on.
    fn recovered_log_time_ms(&self, candidate: &CandidateState) -> u64 {
        let own = self.logs.commands.unexecuted();
        let own = own.filter_map(|(_, cell)| cell.accepted.as_ref());
        let own = own.map(|accepted| candidate::time(&accepted.value)).max();
        candidate.log_time_ms().max(own.unwrap_or(0))
    }

    fn recovered(&self, log: LogId, candidate: &CandidateState) -> Vec<Value> {
        let paxos = &self.logs[log];
        let own_starts = paxos.log_starts.iter().map(|(b, slot)| (*b, *slot));
        let starts: Vec<_> = own_starts.chain(candidate.log_starts(log)).collect();
        let own = paxos.report(log, paxos.commit_point.next());
        let reported = candidate.entries(log).cloned().chain(own);
        recover_log(paxos.commit_point, paxos.end(), &starts, reported)
    }

    /// Begins to lead, and returns the ballot.
    ///
    /// # Panics
    /// If this replica is no candidate, or not elected.
    pub fn become_leader(&mut self, step: &Step<'_>, log_time_ms: u64) -> Ballot {
        let Role::Candidate(candidate) = &self.role else {
            panic!("only a candidate is elected");
        };
        let ballot = candidate.ballot;
        assert_eq!(ballot, self.promised, "a candidate promises itself");
        assert!(
            is_elected(step, candidate),
            "an elected candidate has the promises of a majority"
        );
        let n = step.ctx.settings.n;
        let sessions_max = step.ctx.settings.sessions.max;
        let mut leadership = Leadership::new(ballot, n, step.now, log_time_ms, sessions_max);
        leadership.next = PerLog::of(|log| self.logs[log].commit_point.next());
        self.role = Role::Leader(Box::new(leadership));
        self.leader = ballot;
        self.succession.led_since = step.now;
        self.note_leader(step, ballot);
        ballot
    }

    /// Begins this leader's ballot in `log`, after what it has recovered. Returns the
    /// slot of its opening no-op.
    pub fn begin_ballot(&mut self, step: &mut Step<'_>, log: LogId, recovered: &[Value]) -> Slot {
        let paxos = &mut self.logs[log];
        let start = log_start(paxos.commit_point, recovered);
        let ballot = self.leader;
        assert!(
            start > paxos.commit_point,
            "a ballot begins above what is committed"
        );
        paxos.begin_ballot(ballot, start);
        step.record(Record::LogStart {
            log,
            ballot,
            slot: start,
        });
        start
    }

    /// The highest round seen anywhere.
    pub fn round_seen(&self) -> u64 {
        self.round_seen.max(self.promised.round)
    }

    /// A message was refused because its numbers jump out of range; it reported this round.
    pub fn note_refused_round(&mut self, round: u64) {
        self.round_seen = nearer(self.round_seen, round);
    }

    /// A peer has promised a higher ballot. Returns whether this replica must step down.
    pub fn is_rejected_by(&mut self, promised: Ballot) -> bool {
        self.round_seen = self.round_seen.max(promised.round);
        match &self.role {
            Role::Candidate(candidate) => promised > candidate.ballot,
            Role::Leader(leadership) => promised > leadership.ballot,
            Role::Follower => false,
        }
    }
}
