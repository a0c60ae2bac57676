//! Elections: Phase 1, once for every slot above the commit points, of both logs.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use leases::mutants::{Rule, off};
use leases::{Ballot, Incarnation, ReplicaId, Slot, Time};

use super::action::{Action, Event, Record};
use super::log::{is_within, weigh};
use super::message::{LogId, Message, Reported, Value};
use super::parts::chunks;
use super::persist::After;
use super::plausible::NUMBER_MAX;
use super::proposer::Leadership;
use super::timers::Timer;
use super::{Replica, Role};

/// After a transfer that failed a leader leads on for this many grace periods
/// before it tries another.
const TRANSFER_PAUSE_GRACES: u32 = 4;
/// A reply of more parts than this is refused.
const PARTS_MAX: u32 = 1 << 16;

/// What one replica answered, so far: parts of one answer, its newest.
#[derive(Clone, Debug, Default, Hash)]
struct Reply {
    answer: (Incarnation, u64),
    parts: u32,
    seen: std::collections::BTreeSet<u32>,
    commits: [Slot; 2],
    entries: Vec<Reported>,
    log_starts: Vec<(LogId, Ballot, Slot)>,
}

impl Reply {
    fn complete(&self) -> bool {
        self.parts > 0 && self.seen.len() == self.parts as usize
    }
}

/// What a promise tells, piece by piece.
enum Piece {
    Entry(Reported),
    Start((LogId, Ballot, Slot)),
}

impl Piece {
    fn weight(&self) -> usize {
        match self {
            Piece::Entry(reported) => weigh(&reported.value),
            Piece::Start(_) => 0,
        }
    }
}

/// A candidate's collection of promises.
#[derive(Clone, Debug)]
pub(super) struct Candidacy {
    pub(super) ballot: Ballot,
    /// The own promise is durable: others were asked.
    asked: Option<Time>,
    replies: BTreeMap<ReplicaId, Reply>,
}

impl Hash for Candidacy {
    /// When it asked decides only when it asks again: not before the horizon.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.ballot, self.asked.is_some(), &self.replies).hash(state);
    }
}

impl Candidacy {
    fn complete(&self) -> impl Iterator<Item = (ReplicaId, &Reply)> {
        self.replies
            .iter()
            .filter(|(_, reply)| reply.complete())
            .map(|(id, reply)| (*id, reply))
    }
}

/// Where a ballot's own log starts: at its opening no-op, which follows what it has
/// recovered. A no-op among that may be the opening one of another (hazard 29).
fn log_start(commit_point: Slot, recovered: &[Value]) -> Slot {
    let noop = recovered.iter().position(|value| *value == Value::Noop);
    let taken = noop.filter(|_| off(Rule::H29LogStart));
    Slot(commit_point.0 + taken.unwrap_or(recovered.len()) as u64 + 1)
}

impl Replica {
    /// A ballot was heard of from its leader.
    pub(super) fn hear_leader(&mut self, now: Time, ballot: Ballot, out: &mut Vec<Action>) {
        self.round_seen = self.round_seen.max(ballot.round);
        if ballot > self.promised {
            self.promised = ballot;
            self.persister.record(Record::Promised(ballot));
        }
        if !matches!(self.role, Role::Follower) {
            self.step_down(now, out);
        }
        if self.leader != ballot {
            self.leader = ballot;
            self.announce(Event::Following(ballot), out);
            self.reforward_all(now);
            self.ask_new_leader(now, out);
            self.note_config_lag(now);
        }
        self.reset_election(now);
    }

    /// Follows again: a higher ballot was heard of.
    pub(super) fn step_down(&mut self, now: Time, out: &mut Vec<Action>) {
        self.role = Role::Follower;
        self.leader = Ballot::ZERO;
        self.timers.stop(Timer::Heartbeat);
        self.timers.stop(Timer::Reconfigure);
        self.reset_election(now);
        self.index_elsewhere(now, out);
    }

    /// Asks to lead, under a ballot above every one seen and above every one of
    /// an earlier run, whose promise is durable.
    pub(super) fn campaign(&mut self, now: Time, out: &mut Vec<Action>) {
        if !self.storage_writable || self.is_deaf(now) {
            return; // it could not keep its promise, or nobody would hear it
        }
        if !matches!(self.role, Role::Follower) {
            self.step_down(now, out);
        }
        let round = self.round_seen.max(self.promised.round) + 1;
        if round > NUMBER_MAX && !off(Rule::H81Leaps) {
            return; // no decoder would take the ballot, and no restart its own disk
        }
        let ballot = Ballot {
            round,
            replica: self.me(),
        };
        self.round_seen = round;
        self.promised = ballot;
        self.leader = Ballot::ZERO;
        self.role = Role::Candidate(Candidacy {
            ballot,
            asked: None,
            replies: BTreeMap::new(),
        });
        self.persister.record(Record::Promised(ballot));
        self.persister.after(After::Campaign { ballot });
        self.announce(Event::Campaigning(ballot), out);
    }

    /// Whether too few others for a majority have been heard of lately. One who
    /// hears nobody but is heard would lead for ever without a commit, or stop
    /// every other leader with its campaigns.
    pub(super) fn is_deaf(&self, now: Time) -> bool {
        let patience = self.settings.timing.election_timeout * 2;
        let heard = self.others().filter(|peer| {
            let peer = &self.peers[peer.index()];
            now.since(peer.heard) < patience
        });
        heard.count() + 1 < self.majority()
    }

    pub(super) fn send_prepare(&mut self, now: Time, ballot: Ballot, out: &mut Vec<Action>) {
        let commits = [self.logs[0].commit_point, self.logs[1].commit_point];
        let Role::Candidate(candidacy) = &mut self.role else {
            return;
        };
        if candidacy.ballot != ballot {
            return;
        }
        candidacy.asked = Some(now);
        for to in self.others() {
            let heard = match &self.role {
                Role::Candidate(candidacy) => {
                    candidacy.replies.get(&to).is_some_and(Reply::complete)
                }
                _ => true,
            };
            if !heard {
                self.send(to, Message::Prepare { ballot, commits }, out);
            }
        }
        self.try_lead(now, out);
    }

    pub(super) fn retransmit_prepare(&mut self, now: Time, out: &mut Vec<Action>) {
        let patience = self.settings.timing.retransmit;
        if let Role::Candidate(candidacy) = &self.role
            && candidacy
                .asked
                .is_some_and(|asked| now.since(asked) >= patience)
        {
            let ballot = candidacy.ballot;
            self.send_prepare(now, ballot, out);
        }
    }

    pub(super) fn on_prepare(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        commits: [Slot; 2],
        out: &mut Vec<Action>,
    ) {
        if ballot.replica != from {
            self.counters.refused_messages += 1;
            return;
        }
        if ballot < self.promised {
            return self.send(
                from,
                Message::Rejected {
                    promised: self.promised,
                },
                out,
            );
        }
        if ballot > self.promised {
            self.round_seen = self.round_seen.max(ballot.round);
            self.promised = ballot;
            self.persister.record(Record::Promised(ballot));
            self.step_down(now, out);
        }
        self.persister.after(After::Prepared {
            to: from,
            ballot,
            commits,
        });
    }

    /// The promise is durable: reports what is accepted above the commit points,
    /// this replica's and the candidate's. Below its own the candidate fetches
    /// what is committed, so nothing there is needed.
    pub(super) fn answer_prepare(
        &mut self,
        to: ReplicaId,
        ballot: Ballot,
        commits: [Slot; 2],
        out: &mut Vec<Action>,
    ) {
        if self.promised != ballot {
            return;
        }
        let entries = LogId::ALL
            .into_iter()
            .flat_map(|log| self.report(log, commits[log.index()]));
        let pieces = self.log_starts().map(Piece::Start);
        let pieces = pieces.chain(entries.map(Piece::Entry)).collect();
        let mut parts = chunks(pieces, Piece::weight);
        if parts.is_empty() {
            parts.push(Vec::new()); // a promise that tells nothing is one, too
        }
        self.last_answer += 1;
        let count = parts.len() as u32;
        for (part, pieces) in (0..).zip(parts) {
            let (mut entries, mut log_starts) = (Vec::new(), Vec::new());
            for piece in pieces {
                match piece {
                    Piece::Entry(entry) => entries.push(entry),
                    Piece::Start(start) => log_starts.push(start),
                }
            }
            let message = Message::Prepared {
                ballot,
                answer: self.last_answer,
                part,
                parts: count,
                commits: [self.logs[0].commit_point, self.logs[1].commit_point],
                entries,
                log_starts,
            };
            self.send(to, message, out);
        }
    }

    fn report(&self, log: LogId, candidate: Slot) -> impl Iterator<Item = Reported> + '_ {
        let paxos = &self.logs[log.index()];
        let first = paxos.commit_point.max(candidate).next();
        paxos.from(first).filter_map(move |(slot, cell)| {
            let accepted = cell.accepted.as_ref()?;
            let (ballot, value) = (accepted.ballot, accepted.value.clone());
            Some(Reported {
                log,
                slot,
                ballot,
                value,
            })
        })
    }

    fn log_starts(&self) -> impl Iterator<Item = (LogId, Ballot, Slot)> + '_ {
        LogId::ALL.into_iter().flat_map(|log| {
            let starts = self.logs[log.index()].log_starts.iter();
            starts.map(move |(ballot, slot)| (log, *ballot, *slot))
        })
    }

    pub(super) fn on_prepared(
        &mut self,
        now: Time,
        from: ReplicaId,
        incarnation: Incarnation,
        message: Message,
        out: &mut Vec<Action>,
    ) {
        let Message::Prepared {
            ballot,
            answer,
            part,
            parts,
            commits,
            entries,
            log_starts,
        } = message
        else {
            return;
        };
        let Role::Candidate(candidacy) = &mut self.role else {
            return;
        };
        if candidacy.ballot != ballot || part >= parts || parts > PARTS_MAX {
            return;
        }
        // Nobody accepts further ahead. Whoever claims it must not make this replica
        // propose for years; and an entry that is left out could be a chosen one, so
        // the whole answer does not count.
        let window = self.settings.log_window;
        let within = |e: &Reported| is_within(commits[e.log.index()], window, e.slot, &e.value);
        if !entries.iter().all(within) {
            self.counters.beyond_window += 1;
            return;
        }
        let reply = candidacy.replies.entry(from).or_default();
        let answer = (incarnation, answer);
        if reply.complete() || answer < reply.answer {
            return;
        }
        if answer > reply.answer {
            // What is accepted may differ between two answers: a part of an older
            // one would stand for entries that the newer one tells elsewhere.
            *reply = Reply {
                answer,
                parts,
                commits,
                ..Reply::default()
            };
        }
        if parts == reply.parts && reply.seen.insert(part) {
            reply.entries.extend(entries);
            reply.log_starts.extend(log_starts);
        }
        self.try_lead(now, out);
    }

    /// Leads once a majority has promised and everything that it knows to be
    /// committed is here (hazard 27): nothing is proposed at or below that.
    pub(super) fn try_lead(&mut self, now: Time, out: &mut Vec<Action>) {
        let Role::Candidate(candidacy) = &self.role else {
            return;
        };
        if candidacy.asked.is_none() || candidacy.complete().count() + 1 < self.majority() {
            return;
        }
        let mut ahead_of_me = Vec::new();
        for log in LogId::ALL {
            let ahead = candidacy
                .complete()
                .map(|(id, r)| (r.commits[log.index()], id))
                .max();
            let mine = self.logs[log.index()].commit_point;
            if let Some((commit_point, id)) = ahead.filter(|(theirs, _)| *theirs > mine) {
                ahead_of_me.push((id, log, commit_point));
            }
        }
        if ahead_of_me.is_empty() || off(Rule::H27Ahead) {
            return self.lead(now, out);
        }
        for (id, log, commit_point) in ahead_of_me {
            self.fetch(now, id, log, commit_point, out);
        }
    }

    fn lead(&mut self, now: Time, out: &mut Vec<Action>) {
        let Role::Candidate(candidacy) = &self.role else {
            return;
        };
        let ballot = candidacy.ballot;
        let log_time = self.recovered_log_time(candidacy);
        let recovered = LogId::ALL.map(|log| self.recover_log(log, candidacy));
        if !self.has_room_to_lead(&recovered) {
            return self.checkpoint(); // once it is durable this candidate tries again
        }
        let mut leadership = Leadership::new(ballot, self.settings.n, now, log_time);
        for log in LogId::ALL {
            leadership.next[log.index()] = self.logs[log.index()].commit_point.next();
        }
        self.role = Role::Leader(Box::new(leadership));
        self.leader = ballot;
        for (log, values) in LogId::ALL.into_iter().zip(recovered) {
            let commit_point = self.logs[log.index()].commit_point;
            let start = log_start(commit_point, &values);
            let paxos = &mut self.logs[log.index()];
            paxos.adopted = (ballot, start);
            paxos.heard_commit = Slot::ZERO;
            paxos.log_starts.insert(ballot, start);
            self.persister.record(Record::LogStart {
                log,
                ballot,
                slot: start,
            });
            for value in values {
                self.note_in_flight(&value);
                self.propose_recovered(now, log, value, out);
            }
            if off(Rule::H13Phase1) {
                let recovered: Vec<Slot> = (commit_point.0 + 1..start.0).map(Slot).collect();
                self.commit_slots(now, log, &recovered, out);
            }
            // The opening no-op: its slot is where this ballot's own log starts.
            self.propose_recovered(now, log, Value::Noop, out);
        }
        self.announce(Event::Leading(ballot), out);
        self.suspicions.begin(now, self.configs.excluded());
        self.timers.stop(Timer::Election);
        self.timers.set(Timer::Heartbeat, now);
        self.timers.set(Timer::Reconfigure, now);
        self.timers.set(Timer::Lease, now);
        self.demand.touch_all();
        self.reforward_all(now);
        self.ask_new_leader(now, out);
    }

    /// Whether what is recovered, and an opening no-op, lie in the windows. They do
    /// once all that is committed here is in a durable checkpoint: whoever reported
    /// an entry had accepted it within a window above its own commit point.
    fn has_room_to_lead(&self, recovered: &[Vec<Value>; 2]) -> bool {
        let mut logs = self.logs.iter().zip(recovered);
        logs.all(|(paxos, values)| {
            let opening = Slot(paxos.commit_point.0 + values.len() as u64 + 1);
            paxos.has_room(opening, &Value::Noop)
        })
    }

    /// What to propose above the commit point: per slot the value of highest
    /// ballot, no-ops in holes, up to the highest entry reported.
    fn recover_log(&self, log: LogId, candidacy: &Candidacy) -> Vec<Value> {
        let commit_point = self.logs[log.index()].commit_point;
        let mut starts: Vec<(Ballot, Slot)> = self.logs[log.index()]
            .log_starts
            .iter()
            .map(|(ballot, slot)| (*ballot, *slot))
            .collect();
        let mut best: BTreeMap<Slot, (Ballot, Value)> = BTreeMap::new();
        let mut highest = commit_point;
        for (_, reply) in candidacy.complete() {
            let theirs = reply.log_starts.iter().filter(|(of, ..)| *of == log);
            starts.extend(theirs.map(|(_, ballot, slot)| (*ballot, *slot)));
        }
        let reported = candidacy
            .complete()
            .flat_map(|(_, reply)| reply.entries.iter().cloned());
        let own: Vec<Reported> = self.report(log, commit_point).collect();
        let reported = reported.filter(|entry| entry.log == log);
        for entry in reported.chain(own) {
            highest = highest.max(entry.slot);
            // A later ballot that began below this slot saw a majority without it:
            // the entry is dead, whatever a replica that slept through it reports.
            let dead = starts
                .iter()
                .any(|(b, start)| *b > entry.ballot && *start < entry.slot);
            if dead || entry.slot <= commit_point {
                continue;
            }
            let known = best
                .entry(entry.slot)
                .or_insert_with(|| (entry.ballot, Value::Noop));
            if entry.ballot >= known.0 {
                *known = (entry.ballot, entry.value);
            }
        }
        let values = (commit_point.0 + 1..=highest.0).map(|slot| {
            best.remove(&Slot(slot))
                .map_or(Value::Noop, |(_, value)| value)
        });
        let mut values: Vec<Value> = values.collect();
        // The slot behind the window is taken by the opening no-op of an earlier
        // leader. It becomes this one's own: the value is the same, and nothing lies
        // above it. Else a row of leaders without a commit would use up any reserve.
        if highest > self.logs[log.index()].end() && values.last() == Some(&Value::Noop) {
            values.pop();
        }
        values
    }

    /// Log time never falls: it goes on from the highest in any entry that lives on.
    fn recovered_log_time(&self, candidacy: &Candidacy) -> u64 {
        let time = |value: &Value| match value {
            Value::Commands(batch) => batch.log_time_ms,
            _ => 0,
        };
        let reported = candidacy.complete().flat_map(|(_, reply)| &reply.entries);
        let reported = reported.map(|entry| time(&entry.value));
        let own = self
            .commands()
            .unexecuted()
            .filter_map(|(_, cell)| cell.accepted.as_ref());
        let own = own.map(|accepted| time(&accepted.value));
        reported
            .chain(own)
            .max()
            .unwrap_or(0)
            .max(self.kv.log_time_ms)
    }

    /// Who is preferred asks for leadership, but never while grants it has
    /// forgotten may still be alive, and not before it has caught up.
    pub(super) fn seek_preferred_leadership(&mut self, now: Time, out: &mut Vec<Action>) {
        let Some(leader) = self.leader().filter(|leader| *leader != self.me()) else {
            return;
        };
        let commands = self.commands();
        let caught_up = commands.commit_point >= commands.heard_commit;
        if self.settings.preferred_leader == Some(self.me())
            && matches!(self.role, Role::Follower)
            && !self.grantor.in_restart_wait(now)
            && self.storage_writable
            && caught_up
        {
            self.send(leader, Message::TransferRequest, out);
        }
    }

    pub(super) fn on_transfer_request(&mut self, now: Time, from: ReplicaId) {
        let give_up = now + self.configs.params(self.configs.newest()).t_grace;
        if let Role::Leader(leadership) = &mut self.role
            && self.settings.preferred_leader == Some(from)
            && leadership.transfer.is_none()
            && now >= leadership.no_transfer_before
        {
            leadership.transfer = Some((from, give_up));
        }
    }

    /// Hands over once everything proposed is committed; gives up after t_grace.
    pub(super) fn continue_transfer(&mut self, now: Time, out: &mut Vec<Action>) {
        let Some(leadership) = self.leads() else {
            return;
        };
        let Some((to, give_up)) = leadership.transfer else {
            return;
        };
        let grace = self.configs.params(self.configs.newest()).t_grace;
        let drained = LogId::ALL
            .iter()
            .all(|log| leadership.next[log.index()] == self.logs[log.index()].commit_point.next());
        let ballot = leadership.ballot;
        if drained {
            self.send(to, Message::Transfer { ballot }, out);
        }
        if now >= give_up
            && let Role::Leader(leadership) = &mut self.role
        {
            // Whoever asks again at once would keep every write waiting for ever.
            leadership.transfer = None;
            leadership.no_transfer_before = now + grace * TRANSFER_PAUSE_GRACES;
        }
    }

    pub(super) fn on_transfer(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        out: &mut Vec<Action>,
    ) {
        if ballot == self.leader
            && from == ballot.replica
            && matches!(self.role, Role::Follower)
            && !self.grantor.in_restart_wait(now)
        {
            self.campaign(now, out);
        }
    }
}
