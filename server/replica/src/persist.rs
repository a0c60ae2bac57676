//! Work that must follow a durable write, and so waits for it.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use leasehold_leases::{Ballot, ReplicaId, ReplicaSet, Slot, Time};
use smallvec::SmallVec;

use super::action::{Action, Record};
use super::handles::Sequence;
use super::message::LogId;
use super::per_log::PerLog;
use super::size_estimate::record_size_estimate;

/// Maximum backlog that may wait for the disk, in bytes, besides one checkpoint. Past it a replica
/// accepts nothing more until the disk has caught up: what waits for a full disk stays in memory.
pub const BACKLOG_BYTES_MAX: usize = 64 << 20;
/// Size estimate of one persist without its records, in bytes.
const PERSIST_BYTES: usize = 128;

/// Done once the records before it are durable.
#[derive(Clone, Debug, Hash)]
pub(super) enum Continuation {
    /// Acknowledge an acceptance.
    Vote {
        log: LogId,
        slot: Slot,
        ballot: Ballot,
        /// For a slot executed already: its tag and origins, for the entry may be gone.
        executed: Option<(ReplicaSet, ReplicaSet)>,
    },
    /// The leader's own acceptance is durable: send the Accept.
    Propose {
        log: LogId,
        slot: Slot,
        ballot: Ballot,
    },
    /// Answer a Prepare.
    Prepared {
        to: ReplicaId,
        ballot: Ballot,
        commits: PerLog<Slot>,
    },
    /// Ask for promises.
    Campaign { ballot: Ballot },
    /// Tell a replica which life of it is remembered.
    Joined { to: ReplicaId },
    /// This replica has joined.
    TakePart,
    /// Promises may be made under parameters with this restart wait.
    RestartWait(Duration),
    /// That nobody believes this replica any more.
    Left,
    /// Values of a checkpoint are durable that were handed over then: the next may follow.
    Staged { since: Time },
    /// The checkpoint up to these slots is durable: windows move.
    Checkpointed(PerLog<Slot>),
}

/// Mostly one: a step answers one Accept.
pub(super) type Continuations = SmallVec<[Continuation; 1]>;

/// Bytes that are to be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BacklogBytes {
    checkpoints: usize,
    others: usize,
}

/// Gathers the records of a group of steps, and what waits for them.
#[derive(Clone, Debug, Default)]
pub(super) struct Persister {
    last: Sequence,
    records: Vec<Record>,
    continuations: Continuations,
    /// Size estimate of `records` and `continuations`.
    bytes: BacklogBytes,
    waiting: VecDeque<PendingPersist>,
    /// Size estimate of `waiting`.
    backlog: BacklogBytes,
    /// Up to here the log on disk holds the chosen values.
    executed: PerLog<Slot>,
}

/// A persist that is on its way to the disk.
#[derive(Clone, Debug)]
struct PendingPersist {
    sequence: Sequence,
    continuations: Continuations,
    /// Size estimate of this persist, with its records.
    bytes: BacklogBytes,
    /// By log, executed when it was asked for: all of that had been recorded before.
    executed: PerLog<Slot>,
}

impl Hash for Persister {
    /// Sequences are names: only their distances matter.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.records, &self.continuations).hash(state);
        for waiting in &self.waiting {
            (self.last.0 - waiting.sequence.0, &waiting.continuations).hash(state);
        }
    }
}

impl Persister {
    pub(super) fn record(&mut self, record: Record) {
        let size = record_size_estimate(&record);
        match record {
            Record::Checkpoint(_) | Record::Staged(_) => self.bytes.checkpoints += size,
            _ => self.bytes.others += size,
        }
        self.records.push(record);
    }

    /// Does `continuation` once everything recorded so far is durable.
    pub(super) fn when_durable(&mut self, continuation: Continuation) {
        self.bytes.others += size_of::<Continuation>();
        self.continuations.push(continuation);
    }

    /// Whether so much waits for the disk that nothing more may be accepted.
    pub(super) fn is_behind(&self) -> bool {
        self.waiting_bytes() > BACKLOG_BYTES_MAX
    }

    /// Whether a checkpoint may follow: one may always wait, several only if they are small.
    /// It holds what is in memory anyway, until that is overwritten.
    pub(super) fn may_checkpoint(&self) -> bool {
        let waiting = self.backlog.checkpoints + self.bytes.checkpoints;
        waiting <= BACKLOG_BYTES_MAX
    }

    /// Bytes that wait for the disk, but for checkpoints.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.backlog.others + self.bytes.others
    }

    pub(super) fn flush(&mut self, executed: PerLog<Slot>, out: &mut Vec<Action>) {
        if self.records.is_empty() && self.continuations.is_empty() {
            return;
        }
        self.last.0 += 1;
        let sequence = self.last;
        let before = self.waiting.back().map(|waiting| waiting.sequence);
        assert!(before < Some(sequence), "persists are numbered in order");
        let records = std::mem::take(&mut self.records);
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.others += PERSIST_BYTES;
        self.backlog.checkpoints += bytes.checkpoints;
        self.backlog.others += bytes.others;
        self.waiting.push_back(PendingPersist {
            sequence,
            continuations: std::mem::take(&mut self.continuations),
            bytes,
            executed,
        });
        out.push(Action::Persist { sequence, records });
    }

    /// Last slot of `log` that was executed and is on the disk as it was executed. Later slots on
    /// the disk may still hold what an earlier ballot had left there.
    pub(super) fn executed(&self, log: LogId) -> Slot {
        self.executed[log]
    }

    /// Creates the persister of a run that begins with what the disk says is executed.
    pub(super) fn begin(executed: PerLog<Slot>) -> Persister {
        Persister {
            executed,
            ..Persister::default()
        }
    }

    /// Everything up to `sequence` is durable: returns what waited for it, in order.
    pub(super) fn done(&mut self, sequence: Sequence) -> Continuations {
        assert!(
            sequence <= self.last,
            "only requested persists become durable"
        );
        let mut done = Continuations::new();
        while let Some(waiting) = self.waiting.front()
            && waiting.sequence <= sequence
            && let Some(waiting) = self.waiting.pop_front()
        {
            self.backlog.checkpoints -= waiting.bytes.checkpoints;
            self.backlog.others -= waiting.bytes.others;
            if done.is_empty() {
                done = waiting.continuations
            } else {
                done.extend(waiting.continuations)
            }
            assert!(
                waiting.executed.commands >= self.executed.commands
                    && waiting.executed.configs >= self.executed.configs,
                "executed slots on the disk do not go back"
            );
            self.executed = waiting.executed;
        }
        assert!(
            !self.waiting.is_empty() || self.backlog == BacklogBytes::default(),
            "an empty backlog has no bytes"
        );
        done
    }
}
