//! Effects that a replica requests from its environment. They are performed in order.
//!
//! If an effect must wait until a write is durable, the replica returns the effect only after the
//! `Input::Persisted` for that write. So the shell may perform sends immediately.

use std::sync::Arc;
use std::time::Duration;

use leasehold_leases::config::{KeyVersions, SavedFrame};
use leasehold_leases::{Ballot, ConfigId, Key, ReplicaId, ReplicaSet, Slot, Time};
use leasehold_wire::{Outcome, Path, Version};

pub use super::handles::{ClientHandle, FencedRead, ReadFrom, Requester, Sequence};
use super::lease_set::LeaseAnswer;
use super::message::{Envelope, LogId, PerLog, Value};

/// An effect for the shell to perform.
#[derive(Clone, Debug)]
pub enum Action {
    /// Send a message to a peer; the message may be lost.
    Send {
        /// Replica to send the message to.
        to: ReplicaId,
        /// Message to send.
        envelope: Envelope,
    },
    /// Make all records durable, in order and atomically, then return `Input::Persisted`. Several
    /// persists may be made durable together.
    Persist {
        /// Sequence number to return in `Input::Persisted`.
        sequence: Sequence,
        /// Records to make durable.
        records: Vec<Record>,
    },
    /// Flush the state, then return `Input::Flushed`. The flush covers all changes persisted so far,
    /// or fewer on a full disk. At most one flush is requested at a time.
    Flush,
    /// Free the space of the log entries up to these slots. These entries are executed and flushed,
    /// and no member needs them any more. The storage may keep some of them.
    Truncate(PerLog<Slot>),
    /// Send an answer to a client.
    Reply {
        /// Client to answer.
        to: ClientHandle,
        /// Path on which the request was served.
        path: Path,
        /// Answer to send.
        outcome: Outcome,
    },
    /// Answer a read that was served under leases, if its permit has not ended. To check this, read
    /// the clock after the step. If the time is `until` or later, return `Input::FenceMissed`
    /// instead of an answer.
    FencedReply {
        /// Client or peer to answer.
        to: ReadFrom,
        /// Path on which the read was served.
        path: Path,
        /// Answer to send.
        outcome: Outcome,
        /// Time at which the permit for the read ends.
        until: Time,
        /// Read operation to return in `Input::FenceMissed`.
        again: FencedRead,
    },
    /// Read committed entries that the core no longer keeps in memory, and return them in
    /// `Input::LogRead`. Return no more entries than fit into one frame.
    ReadLog {
        /// Log to read.
        log: LogId,
        /// Requester of the entries. `Input::LogRead` returns this value unchanged.
        to: Requester,
        /// First slot to read.
        from: Slot,
        /// Last slot to read.
        last: Slot,
    },
    /// Report an event that an operator may want to know.
    Event(Event),
}

/// One durable fact. A later record replaces an earlier record about the same slot, replica or
/// entry.
#[derive(Clone, Debug, Hash)]
pub enum Record {
    /// A promise to accept nothing below this ballot.
    Promised(Ballot),
    /// An accepted entry. It replaces an earlier entry in the same slot.
    Accepted {
        /// Log of the entry.
        log: LogId,
        /// Slot of the entry.
        slot: Slot,
        /// Ballot under which the entry was accepted.
        ballot: Ballot,
        /// Accepted value.
        value: Value,
    },
    /// The entry in this slot can no longer be chosen, because a later ballot began at a lower
    /// slot.
    Erased {
        /// Log of the entry.
        log: LogId,
        /// Slot of the entry.
        slot: Slot,
    },
    /// Slot at which a ballot began.
    LogStart {
        /// Log in which the ballot began.
        log: LogId,
        /// Ballot that began.
        ballot: Ballot,
        /// Slot of the opening no-op of the ballot.
        slot: Slot,
    },
    /// Forget the slots at which ballots lower than `below` began.
    ForgetLogStarts {
        /// Log in which the ballots began.
        log: LogId,
        /// Lowest ballot to remember. A replica forgets the slots at which lower ballots began.
        below: Ballot,
    },
    /// Restart wait that the next run of this replica needs. Each set of lease parameters under
    /// which this replica has made promises requires a restart wait, and the longest of these is
    /// recorded. Zero is recorded if this replica leaves, and no other replica relies on a promise
    /// of this replica any more.
    RestartWait(Duration),
    /// Random number that identifies the data directory of another replica (its life). Only the
    /// first number that this replica received is recorded (hazard 33).
    Life {
        /// Replica that owns the directory.
        replica: ReplicaId,
        /// Life of the data directory, never 0.
        life: u64,
    },
    /// Fact that this replica has joined: enough other replicas know the number that identifies
    /// this data directory.
    Joined,
    /// Commit points of both logs. Earlier records contain the entries up to these slots, so a
    /// restart can execute the entries before there is a leader.
    Committed(PerLog<Slot>),
    /// A batch of changes of the executed state. The storage applies the batch to the state once
    /// all earlier records are durable. The batch becomes durable at the next flush
    /// ([`Action::Flush`]) at the latest.
    Changes(Arc<StateChanges>),
}

impl From<StateChanges> for Record {
    fn from(changes: StateChanges) -> Record {
        Record::Changes(Arc::new(changes))
    }
}

impl Record {
    /// Returns whether this record must be synced under every durability setting. After a crash, a
    /// replica relies on such a record even if the crash has destroyed all other records (hazard
    /// 15).
    pub fn is_synced_always(&self) -> bool {
        matches!(self, Record::RestartWait(_))
    }
}

/// A batch of changes of the executed state. It contains all changes since the previous batch, up
/// to the end of a slot.
#[derive(Clone, Debug, Default, Hash)]
pub struct StateChanges {
    /// Last executed slot of the log of commands.
    pub executed: Slot,
    /// Last executed configuration.
    pub config: ConfigId,
    /// Log time at `executed`, in ms.
    pub log_time_ms: u64,
    /// Keys that were written (`Some`) or deleted (`None`). Each key occurs once.
    pub entries: Vec<(Key, Option<StoredValue>)>,
    /// Sessions that changed (`Some`) or ended (`None`). Each session occurs once.
    pub sessions: Vec<(u64, Option<SessionImage>)>,
    /// Earliest start time with which a client may still open a session, in ms of the replicated
    /// clock.
    pub opens_from_ms: u64,
    /// Newest configurations, which replace those of the state; `None` if they are as they were.
    pub configs: Option<ConfigFrames>,
    /// Holders of listed keys that changed (`Some`), or that no kept configuration lists any more
    /// (`None`). Each key occurs once.
    pub listed: Vec<(Key, Option<KeyVersions>)>,
}

/// Newest configurations in the form in which they are stored on disk, without the holders of
/// listed keys.
#[derive(Clone, Debug, Default, PartialEq, Hash)]
pub struct ConfigFrames {
    /// Whether any configuration was ever put in force. The newest id does not tell this, because
    /// slots of the configuration log may contain no change.
    pub configured: bool,
    /// The configurations, in ascending order.
    pub frames: Vec<SavedFrame>,
}

/// A value in the form in which it is stored on disk.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct StoredValue {
    /// The value.
    pub value: bytes::Bytes,
    /// Version of the last write to the key.
    pub version: Version,
    /// Version of the write that created the key.
    pub created: Version,
}

/// A session in the form in which it is stored on disk.
#[derive(Clone, Debug, Default, PartialEq, Hash)]
pub struct SessionImage {
    /// Low-water mark: the client has acknowledged the results of all writes with lower sequence
    /// numbers.
    pub acked_below: u64,
    /// Log time at which the session was last active, in ms.
    pub active_ms: u64,
    /// Results that the client has not acknowledged yet, in rising order of sequence numbers.
    pub results: Vec<(u64, Outcome)>,
}

/// State that a restart finds on disk.
#[derive(Clone, Debug, Default)]
pub struct RecoveredState {
    /// Incarnation of this run. It is already durable, and at least 1.
    pub incarnation: leasehold_leases::Incarnation,
    /// Random number that identifies the data directory (its life). It was chosen when the
    /// directory was created, and is never 0.
    pub life: u64,
    /// Whether an earlier run of this replica has joined with this data directory.
    pub joined: bool,
    /// Random numbers that identify the data directories of other replicas (their lives). Only the
    /// first number that this replica received from each other replica is kept.
    pub lives: Vec<(ReplicaId, u64)>,
    /// Highest ballot that this replica has promised.
    pub promised: Ballot,
    /// Accepted entries of both logs, above the slots that `state` covers.
    pub accepted: Vec<super::message::ReportedEntry>,
    /// Slots at which ballots began: (log, ballot, slot).
    pub log_starts: Vec<(LogId, Ballot, Slot)>,
    /// Commit points that the earlier run recorded last. Every entry up to these points is in the
    /// log or is covered by `state`.
    pub committed: PerLog<Slot>,
    /// Restart wait that this replica needs; `None` at the first start on this directory. Each set
    /// of lease parameters under which this replica has made promises requires a restart wait. This
    /// is the longest of these. It is zero if the last run left, and no other replica relied on a
    /// promise of this replica any more.
    pub restart_wait: Option<Duration>,
    /// Complete executed state, as a batch of changes to an empty state.
    pub state: StateChanges,
}

/// Event that an operator may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// This replica campaigns under this ballot.
    Campaigning(Ballot),
    /// This replica leads under this ballot.
    Leading(Ballot),
    /// Another replica leads under this ballot.
    Following(Ballot),
    /// A configuration was executed at this replica.
    Configured {
        /// Id of the configuration.
        id: ConfigId,
        /// Number of keys that the configuration changed.
        keys: usize,
        /// Names of the strategies in the configuration.
        strategy: String,
        /// Replicas that the configuration excludes.
        excluded: ReplicaSet,
    },
    /// Result of a request that an operator made at this replica.
    LeaseAnswered {
        /// ID of the request.
        ask: u64,
        /// The configuration in force, or the reason for a refusal.
        answer: LeaseAnswer,
    },
    /// The restart wait is over. The grants of the earlier run, which this run has forgotten, have
    /// now ended.
    RestartWaitOver,
    /// This replica takes part now, because enough other replicas know its data directory.
    Joined,
    /// This replica was told to end, and no other replica waits for it any more.
    Left,
    /// The clock is trusted again (true), or is no longer trusted (false). Without a trusted clock,
    /// this replica serves no reads under leases and makes no promises.
    ClockTrusted(bool),
    /// An earlier run of this replica used a data directory that is now lost, together with the
    /// promises and acceptances stored in it. From now on this replica sends nothing.
    Wiped {
        /// Replica that remembers the earlier data directory.
        witness: ReplicaId,
    },
}
