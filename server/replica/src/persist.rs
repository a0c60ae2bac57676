//! Work that must wait until a write is durable, and the records that are to be written.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use leasehold_leases::{Ballot, ReplicaId, ReplicaSet, Slot};
use smallvec::SmallVec;

use super::action::{Action, Record};
use super::handles::Sequence;
use super::message::LogId;
use super::per_log::PerLog;
use super::size_estimate::record_size_estimate;

/// Maximum number of bytes that may wait for the disk, not counting changes of the state. Above
/// this maximum, a replica accepts nothing more until the disk has caught up. The number is limited
/// because all waiting data stays in memory.
pub const BACKLOG_BYTES_MAX: usize = 64 << 20;
/// Size estimate of one persist without its records, in bytes.
const PERSIST_BYTES: usize = 128;

/// Work that is done once the records before it are durable.
#[derive(Clone, Debug, Hash)]
pub(super) enum Continuation {
    /// Acknowledge an acceptance with a vote.
    Vote {
        log: LogId,
        slot: Slot,
        ballot: Ballot,
        /// Tag and origins of the slot if the slot is executed already; otherwise `None`. Both are
        /// kept here because the entry of an executed slot may no longer be in memory.
        executed: Option<(ReplicaSet, ReplicaSet)>,
    },
    /// Answer a Prepare.
    Prepared {
        to: ReplicaId,
        ballot: Ballot,
        commits: PerLog<Slot>,
    },
    /// Request promises: the candidate's own promise is durable.
    Campaign { ballot: Ballot },
    /// Send to replica `to` the life that this replica remembers for the data directory of `to`.
    Joined { to: ReplicaId },
    /// Take part in the protocol, because this replica has joined.
    TakePart,
    /// Allow promises with lease parameters that require this restart wait. The restart wait is now
    /// durable.
    RestartWait(Duration),
    /// Note that the record of this replica's departure is durable. Other replicas no longer rely
    /// on the grants of this replica.
    Left,
}

/// Continuations of one persist. Most persists have only one continuation, because a step usually
/// answers one Accept.
pub(super) type Continuations = SmallVec<[Continuation; 1]>;

/// Bytes that are still to be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BacklogBytes {
    changes: usize,
    others: usize,
}

/// Collects the records of a group of steps, and the work that waits until they are durable.
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
    /// Slot of each log up to which the disk holds the chosen values.
    executed: PerLog<Slot>,
    /// Commit points that were recorded last.
    committed: PerLog<Slot>,
    /// Whether a flush of the state is requested after the records.
    wants_flush: bool,
}

/// Progress of both logs at the end of a group of steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogProgress {
    /// Commit points.
    pub(super) committed: PerLog<Slot>,
    /// Last executed slots.
    pub(super) executed: PerLog<Slot>,
}

/// A persist that is on its way to the disk.
#[derive(Clone, Debug)]
struct PendingPersist {
    sequence: Sequence,
    continuations: Continuations,
    /// Size estimate of this persist, with its records.
    bytes: BacklogBytes,
    /// Last slot of each log that was executed when the persist was requested. Everything up to
    /// this slot had been recorded before.
    executed: PerLog<Slot>,
}

impl Hash for Persister {
    /// Hashes the distances between sequence numbers instead of the numbers themselves, because the
    /// numbers are only names.
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
            Record::Changes(_) => self.bytes.changes += size,
            _ => self.bytes.others += size,
        }
        self.records.push(record);
    }

    /// Queues `continuation`, which runs once everything recorded so far is durable.
    pub(super) fn when_durable(&mut self, continuation: Continuation) {
        self.bytes.others += size_of::<Continuation>();
        self.continuations.push(continuation);
    }

    /// Whether the backlog for the disk is so large that nothing more may be accepted.
    pub(super) fn is_behind(&self) -> bool {
        self.waiting_bytes() > BACKLOG_BYTES_MAX
    }

    /// Whether further changes of the state may be handed to the storage. Such a change needs
    /// additional memory only after its value is overwritten in the state. Until then, the change
    /// and the state share the value.
    pub(super) fn takes_changes(&self) -> bool {
        self.backlog.changes + self.bytes.changes <= BACKLOG_BYTES_MAX
    }

    /// Requests a flush of the state, with all changes that were recorded so far.
    pub(super) fn flush_state(&mut self) {
        self.wants_flush = true;
    }

    /// Returns the number of bytes that wait for the disk, not counting changes of the state.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.backlog.others + self.bytes.others
    }

    pub(super) fn flush(&mut self, progress: LogProgress, out: &mut Vec<Action>) {
        if !self.records.is_empty() || !self.continuations.is_empty() {
            self.record_commits(progress.committed);
            self.persist(progress.executed, out);
        }
        if std::mem::take(&mut self.wants_flush) {
            out.push(Action::Flush);
        }
    }

    /// Records the commit points, if other records of the log are recorded, too. Changes of the
    /// state are not records of the log. The commit points come after the entries that they cover
    /// (hazard 107).
    fn record_commits(&mut self, committed: PerLog<Slot>) {
        let of_log = |record: &Record| !matches!(record, Record::Changes(_));
        if self.committed != committed && self.records.iter().any(of_log) {
            self.committed = committed;
            self.record(Record::Committed(committed));
        }
    }

    fn persist(&mut self, executed: PerLog<Slot>, out: &mut Vec<Action>) {
        self.last.0 += 1;
        let sequence = self.last;
        let before = self.waiting.back().map(|waiting| waiting.sequence);
        assert!(before < Some(sequence), "persists are numbered in order");
        let records = std::mem::take(&mut self.records);
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.others += PERSIST_BYTES;
        self.backlog.changes += bytes.changes;
        self.backlog.others += bytes.others;
        self.waiting.push_back(PendingPersist {
            sequence,
            continuations: std::mem::take(&mut self.continuations),
            bytes,
            executed,
        });
        out.push(Action::Persist { sequence, records });
    }

    /// Returns the last slot of `log` up to which the disk holds the entries as they were executed.
    /// In later slots the disk may still hold entries of an earlier ballot.
    pub(super) fn executed(&self, log: LogId) -> Slot {
        self.executed[log]
    }

    /// Returns the persister of a new run. `progress` contains the last executed slots and the
    /// commit points, according to the disk.
    pub(super) fn begin(progress: LogProgress) -> Persister {
        let LogProgress {
            committed,
            executed,
        } = progress;
        Persister {
            committed,
            executed,
            ..Persister::default()
        }
    }

    /// Notes that everything up to `sequence` is durable. Returns the work that waited for this, in
    /// order.
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
            self.backlog.changes -= waiting.bytes.changes;
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
