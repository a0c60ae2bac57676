//! Elections: one Phase 1 for all slots above the commit points of both logs.

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

/// Progress of a candidate towards leadership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElectionProgress {
    /// This replica is no candidate, or too few replicas have promised.
    Waiting,
    /// A majority has promised, but a replica in this majority has a higher commit point than this
    /// replica (hazard 27). The vector contains one item for each log with missing slots: the
    /// replica with the highest commit point, the log, and that commit point.
    Behind(Vec<(ReplicaId, LogId, Slot)>),
    /// A majority has promised. Every slot up to the commit points of this majority is committed
    /// here too, so nothing will be proposed in those slots.
    Elected,
}

/// Results of Phase 1.
#[derive(Debug)]
pub struct Recovery {
    /// Time, in ms, from which the replicated clock continues.
    pub log_time_ms: u64,
    /// Values to propose again in each log, in the slots above the log's commit point.
    pub values: PerLog<Vec<Value>>,
}

/// Whether a majority has promised, the candidate included.
fn is_elected(step: &Step<'_>, candidate: &CandidateState) -> bool {
    let promised = candidate.promised().union(ReplicaSet::one(step.me()));
    step.ctx.members.is_quorum(promised)
}

/// Returns the slot of a ballot's opening no-op, at which the ballot begins. This slot is directly
/// after the recovered values. A recovered no-op is not used as the opening no-op, because it may
/// be the opening no-op of another ballot (hazard 29).
fn log_start(commit_point: Slot, recovered: &[Value]) -> Slot {
    let noop = recovered.iter().position(|value| *value == Value::Noop);
    let taken = noop.filter(|_| off(Rule::H29LogStart));
    Slot(commit_point.0 + taken.unwrap_or(recovered.len()) as u64 + 1)
}

impl Consensus {
    /// If `ballot` is below the promised ballot, sends a refusal to `from`. Returns whether the
    /// ballot was refused.
    pub fn rejects(&self, step: &mut Step<'_>, from: ReplicaId, ballot: Ballot) -> bool {
        if ballot >= self.promised {
            return false;
        }
        let promised = self.promised;
        step.send(from, Message::Rejected { promised });
        true
    }

    /// Promises to accept nothing below `ballot`. Returns whether the promise is new.
    pub fn promise(&mut self, step: &mut Step<'_>, ballot: Ballot) -> bool {
        self.round_seen = self.round_seen.max(ballot.round);
        let new = ballot > self.promised;
        if new {
            self.promised = ballot;
            step.record(Record::Promised(ballot));
        }
        new
    }

    /// Follows the leader of `ballot`. Returns whether this leader is new.
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

    /// Makes this replica a follower again, because it received a higher ballot or cannot lead.
    pub fn step_down(&mut self, step: &mut Step<'_>) {
        self.note_step_down();
        self.role = Role::Follower;
        self.leader = Ballot::ZERO;
        self.end_pre_vote();
        step.timers.stop(Timer::Heartbeat);
        step.timers.stop(Timer::Reconfigure);
        self.reset_election(step);
    }

    /// Begins a campaign. The ballot is higher than every ballot that was seen, and higher than
    /// every ballot of earlier runs. Promises are requested once this replica's own promise is
    /// durable.
    pub fn campaign(&mut self, step: &mut Step<'_>) {
        assert!(
            self.is_follower(),
            "a replica steps down before it campaigns"
        );
        let round = self.round_seen.max(self.promised.round) + 1;
        if round > NUMBER_MAX && !off(Rule::H81Leaps) {
            return; // No decoder would accept the ballot, and a restart could not read its own disk.
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

    /// Requests promises from the replicas that have not promised. Skips replicas from which a
    /// promise is already arriving. Returns whether this replica is still the candidate of
    /// `ballot`.
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

    /// Returns the ballot of this candidate, if it is time to request promises again.
    pub fn overdue_candidate(&self, step: &Step<'_>) -> Option<Ballot> {
        let Role::Candidate(candidate) = &self.role else {
            return None;
        };
        let timeout = step.ctx.settings.timing.retransmit;
        let requested = candidate.requested_at()?;
        (step.now.since(requested) >= timeout).then_some(candidate.ballot)
    }

    /// Answers a Prepare, because the promise of `ballot` is durable now. The answer reports the
    /// accepted entries that are above the commit points of both this replica and the candidate.
    /// Entries up to this replica's commit point are not reported, because the candidate fetches
    /// them.
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

    /// Returns the contents of a promise, split into one part for each message. The contents are
    /// the slots at which ballots began, and the accepted entries of the slots above the commit
    /// points of both replicas. There is at least one part, even if there are no entries.
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

    /// Adds a part of a promise. Returns true if the promise is for this candidate and the part is
    /// new. If this replica already leads under the ballot of the promise, the part only shows that
    /// the sender follows this leader.
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

    /// Returns the progress of this candidate: whether it may lead, must still wait, or lacks
    /// entries.
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

    /// Returns the values that an elected candidate would propose again. Returns `None` if the
    /// candidate's window has too little space for these values and the opening no-op. In that
    /// case, a checkpoint of every slot that is committed here provides enough space. `executed_ms`
    /// is the replicated clock of the last executed command, in ms.
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

    /// Returns the highest log time in the recovered entries, in ms. The new leader continues from
    /// this time, because log time never goes back.
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
    /// If this replica is no candidate, or is not elected.
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

    /// Begins this leader's ballot in `log`, after the recovered values. Returns the slot of the
    /// ballot's opening no-op.
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

    /// Returns the highest round seen in any message or promise.
    pub fn round_seen(&self) -> u64 {
        self.round_seen.max(self.promised.round)
    }

    /// Notes the round of a message that was refused because a number in it is too far above the
    /// numbers known here.
    pub fn note_refused_round(&mut self, round: u64) {
        self.round_seen = nearer(self.round_seen, round);
    }

    /// Notes the ballot that a peer has promised. Returns true if this replica must step down,
    /// because it leads or campaigns under a lower ballot.
    pub fn is_rejected_by(&mut self, promised: Ballot) -> bool {
        self.round_seen = self.round_seen.max(promised.round);
        match &self.role {
            Role::Candidate(candidate) => promised > candidate.ballot,
            Role::Leader(leadership) => promised > leadership.ballot,
            Role::Follower => false,
        }
    }
}
