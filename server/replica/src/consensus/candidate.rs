//! Promises that a candidate collects (Phase 1, §2.1), for both logs together.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::time::Duration;

use leasehold_leases::{Ballot, Incarnation, ReplicaId, ReplicaSet, Slot, Time};

use super::log::is_within;
use crate::message::{LogId, PerLog, ReportedEntry, Value};
use crate::step::Step;

/// Maximum number of parts of a reply; a reply with more is refused.
const PARTS_MAX: u32 = 1 << 16;

/// One part of a replica's promise to a candidate. The replica promises not to accept below the
/// candidate's ballot.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub ballot: Ballot,
    pub answer: u64,
    pub part: u32,
    pub parts: u32,
    pub commits: PerLog<Slot>,
    pub entries: Vec<ReportedEntry>,
    pub log_starts: Vec<(LogId, Ballot, Slot)>,
}

impl Prepared {
    /// Returns whether the replier may have accepted all these entries. A replica accepts no entry
    /// that is more than a window above its own commit point. A false report of a much higher entry
    /// must not make the candidate fill all slots up to this entry. If one entry is too high, the
    /// candidate ignores the whole answer. It cannot ignore only this entry, because the entry may
    /// be chosen.
    fn is_within(&self, window: u64) -> bool {
        let within = |entry: &ReportedEntry| {
            let start = self.commits[entry.log];
            is_within(start, window, entry.slot, &entry.value)
        };
        self.entries.iter().all(within)
    }
}

/// Arrived parts of one replica's newest answer.
#[derive(Clone, Debug, Default, Hash)]
struct Reply {
    answer: (Incarnation, u64),
    parts: u32,
    seen: BTreeSet<u32>,
    commits: PerLog<Slot>,
    entries: Vec<ReportedEntry>,
    log_starts: Vec<(LogId, Ballot, Slot)>,
}

impl Reply {
    fn is_complete(&self) -> bool {
        self.parts > 0 && self.seen.len() == self.parts as usize
    }

    /// Adds a part of an answer, and returns whether the part is new. Refuses parts of an older
    /// answer, because two answers may contain different entries. A mixture of parts of two answers
    /// could lack an entry.
    fn take(&mut self, incarnation: Incarnation, prepared: Prepared) -> bool {
        let answer = (incarnation, prepared.answer);
        if self.is_complete() || answer < self.answer {
            return false;
        }
        if answer > self.answer {
            *self = Reply {
                answer,
                parts: prepared.parts,
                commits: prepared.commits,
                ..Reply::default()
            };
        }
        let new = prepared.parts == self.parts && self.seen.insert(prepared.part);
        if new {
            self.entries.extend(prepared.entries);
            self.log_starts.extend(prepared.log_starts);
        }
        new
    }
}

/// State of a candidate: the promises that it has collected so far.
#[derive(Clone, Debug)]
pub struct CandidateState {
    pub ballot: Ballot,
    /// Time at which the campaign began.
    pub(super) since: Time,
    /// Time at which promises were last requested from others; `None` until this replica's own
    /// promise is durable.
    requested_at: Option<Time>,
    /// Time of the last notification that promises are still arriving. The replicas that have
    /// already promised then wait longer.
    notified_at: Time,
    replies: BTreeMap<ReplicaId, Reply>,
    /// Time at which a new part last arrived from each replica.
    arrived: BTreeMap<ReplicaId, Time>,
}

impl Hash for CandidateState {
    /// Hashes this value, except its times. While a fingerprint is valid, the times have no effect
    /// (`Replica::fingerprint`).
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.ballot, self.requested_at.is_some(), &self.replies).hash(state);
    }
}

impl CandidateState {
    pub(super) fn new(now: Time, ballot: Ballot) -> CandidateState {
        CandidateState {
            ballot,
            since: now,
            requested_at: None,
            notified_at: now,
            replies: BTreeMap::new(),
            arrived: BTreeMap::new(),
        }
    }

    pub(super) fn requested_at(&self) -> Option<Time> {
        self.requested_at
    }

    pub(super) fn set_requested(&mut self, now: Time) {
        assert!(
            self.requested_at.is_none_or(|requested| requested <= now),
            "time does not go back"
        );
        self.requested_at = Some(now);
    }

    /// Whether `replica` has promised, and all parts of its answer have arrived.
    pub(super) fn has_promised(&self, replica: ReplicaId) -> bool {
        self.replies.get(&replica).is_some_and(Reply::is_complete)
    }

    /// Returns true if the promise of `replica` has arrived completely, or if parts of the promise
    /// are still arriving. In both cases, the replica is not asked again, because it would send the
    /// whole answer once more.
    pub(super) fn hears(&self, replica: ReplicaId, now: Time, timeout: Duration) -> bool {
        let lately = |at: &Time| now.since(*at) < timeout;
        self.has_promised(replica) || self.arrived.get(&replica).is_some_and(lately)
    }

    /// Returns whether the next notification is due: the time `again` has passed since the last
    /// notification. A notification says that promises are still arriving. The replicas that have
    /// already promised then wait longer.
    pub(super) fn is_notification_due(&mut self, now: Time, again: Duration) -> bool {
        let due = now.since(self.notified_at) >= again;
        if due {
            self.notified_at = now;
        }
        due
    }

    /// Adds a part of a promise. Returns true if the promise is for this candidate and the part is
    /// new.
    pub(super) fn take(
        &mut self,
        step: &mut Step<'_>,
        from: ReplicaId,
        incarnation: Incarnation,
        prepared: Prepared,
    ) -> bool {
        let Prepared { part, parts, .. } = prepared;
        if prepared.ballot != self.ballot || part >= parts || parts > PARTS_MAX {
            return false;
        }
        if !prepared.is_within(step.ctx.settings.log_window) {
            step.metrics.refused_beyond_window += 1;
            return false;
        }
        let new = self
            .replies
            .entry(from)
            .or_default()
            .take(incarnation, prepared);
        if new {
            self.arrived.insert(from, step.now);
        }
        new
    }

    /// Returns the replicas that have promised and sent their whole answer.
    pub(super) fn promised(&self) -> ReplicaSet {
        self.complete().map(|(replica, _)| replica).collect()
    }

    fn complete(&self) -> impl Iterator<Item = (ReplicaId, &Reply)> {
        let complete = self.replies.iter().filter(|(_, reply)| reply.is_complete());
        complete.map(|(replica, reply)| (*replica, reply))
    }

    /// Returns the highest commit point of `log` among the replicas that have promised, and the
    /// replica that reported it.
    pub(super) fn furthest(&self, log: LogId) -> Option<(Slot, ReplicaId)> {
        self.complete()
            .map(|(replica, reply)| (reply.commits[log], replica))
            .max()
    }

    /// Returns the entries of `log` in all complete answers.
    pub(super) fn entries(&self, log: LogId) -> impl Iterator<Item = &ReportedEntry> {
        let entries = self.complete().flat_map(|(_, reply)| &reply.entries);
        entries.filter(move |entry| entry.log == log)
    }

    /// Returns the slots at which ballots began in `log`, from all complete answers.
    pub(super) fn log_starts(&self, log: LogId) -> impl Iterator<Item = (Ballot, Slot)> {
        let starts = self.complete().flat_map(|(_, reply)| &reply.log_starts);
        let of_log = starts.filter(move |(of, ..)| *of == log);
        of_log.map(|(_, ballot, slot)| (*ballot, *slot))
    }

    /// Panics if the times contradict each other, or if a reply has more parts than it announced.
    pub(super) fn check(&self) {
        let (since, requested) = (self.since, self.requested_at.unwrap_or(self.notified_at));
        assert!(
            since <= requested,
            "no replica is asked before the campaign begins"
        );
        assert!(
            since <= self.notified_at,
            "no replica is notified before the campaign begins"
        );
        let within = |reply: &Reply| reply.seen.len() <= reply.parts as usize;
        assert!(
            self.replies.values().all(within),
            "a promise has no more parts than it states"
        );
        assert!(
            self.arrived
                .keys()
                .all(|from| self.replies.contains_key(from)),
            "a replica that has sent a part has a reply"
        );
    }

    /// Returns the highest log time in the reported entries, in ms.
    pub(super) fn log_time_ms(&self) -> u64 {
        let times = self
            .entries(LogId::Commands)
            .map(|entry| time(&entry.value));
        times.max().unwrap_or(0)
    }
}

/// Returns the log time of a batch, in ms; 0 for other kinds of values.
pub(super) fn time(value: &Value) -> u64 {
    match value {
        Value::Commands(batch) => batch.log_time_ms,
        _ => 0,
    }
}
