//! Effects that a replica requests from its environment. They are performed in order.
//!
//! An effect that must follow a durable write is returned only after the `Input::Persisted` for
//! that write. So the shell may perform sends immediately.

use std::time::Duration;

use leasehold_leases::{Ballot, ConfigId, Key, ReplicaId, ReplicaSet, Slot, Time};
use leasehold_wire::{Outcome, Path, Version};

pub use super::handles::{ClientHandle, FencedRead, ReadFrom, Requester, Sequence};
use super::lease_set::LeaseAnswer;
use super::message::{Envelope, LogId, Value};

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
        /// Sequence to return in `Input::Persisted`.
        sequence: Sequence,
        /// Records to make durable.
        records: Vec<Record>,
    },
    /// Send an answer to a client.
    Reply {
        /// Client to answer.
        to: ClientHandle,
        /// Path on which the request was served.
        path: Path,
        /// Answer to send.
        outcome: Outcome,
    },
    /// Answer a read that was served under leases, but only if the clock is before `until` when it
    /// is sampled after the step. Otherwise return `Input::FenceMissed`.
    FencedReply {
        /// Client or peer to answer.
        to: ReadFrom,
        /// Path on which the read was served.
        path: Path,
        /// Answer to send.
        outcome: Outcome,
        /// Time at which the permit for the read ends.
        until: Time,
        /// Read to return in `Input::FenceMissed`.
        again: FencedRead,
    },
    /// Read committed entries that the core no longer keeps in memory, up to the size of one frame,
    /// and return them in `Input::LogRead`.
    ReadLog {
        /// Log to read.
        log: LogId,
        /// Requester of the entries, which is returned unchanged.
        to: Requester,
        /// First slot to read.
        from: Slot,
        /// Last slot to read.
        last: Slot,
    },
    /// Report an event that an operator may want to know.
    Event(Event),
}

/// One durable fact. A later record replaces an earlier one about the same slot, replica or entry.
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
    /// The entry in this slot is dead: a later ballot began below the slot.
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
        /// Slot of its opening no-op.
        slot: Slot,
    },
    /// The starts of ballots below a ballot are forgotten.
    ForgetLogStarts {
        /// Log in which the starts are forgotten.
        log: LogId,
        /// Lowest ballot with a start that is kept.
        below: Ballot,
    },
    /// Longest restart wait of all lease parameters under which this replica has made promises.
    RestartWait(Duration),
    /// First life that was ever learned of a replica's data directory (hazard 33).
    Life {
        /// Replica that owns the directory.
        replica: ReplicaId,
        /// Life of the data directory, never 0.
        life: u64,
    },
    /// Enough other replicas know the life of this data directory.
    Joined,
    /// Values of a checkpoint that follows later. Before the checkpoint they have no effect. The
    /// checkpoint holds them too; a disk that already has them writes only a reference.
    Staged(Vec<(Key, StoredValue)>),
    /// Changes of the state: the applied index and the data, written atomically.
    Checkpoint(Checkpoint),
}

impl Record {
    /// Whether a replica relies on this record even if no other record survives a crash (hazard
    /// 15).
    pub fn is_synced_always(&self) -> bool {
        matches!(self, Record::RestartWait(_))
    }
}

/// Changes of the executed state since the last checkpoint.
#[derive(Clone, Debug, Default, Hash)]
pub struct Checkpoint {
    /// Last executed slot of the log of commands.
    pub executed: Slot,
    /// Last executed configuration.
    pub config: ConfigId,
    /// Log time at `executed`, in ms.
    pub log_time_ms: u64,
    /// Keys that were written (`Some`) or deleted (`None`). Each occurs once.
    pub entries: Vec<(Key, Option<StoredValue>)>,
    /// Sessions that changed (`Some`) or ended (`None`). Each occurs once.
    pub sessions: Vec<(u64, Option<SessionImage>)>,
    /// Value of the replicated clock, in ms. A client with a session that began before this time
    /// cannot open that session.
    pub opens_from_ms: u64,
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
    /// Every sequence below this one has been acknowledged by the client.
    pub acked_below: u64,
    /// Log time of the session's last command, in ms.
    pub active_ms: u64,
    /// Results that the client has not acknowledged yet, in rising order of sequences.
    pub results: Vec<(u64, Outcome)>,
}

/// State that a restart finds on disk.
#[derive(Clone, Debug, Default)]
pub struct RecoveredState {
    /// Incarnation of this run, which is already durable. At least 1.
    pub incarnation: leasehold_leases::Incarnation,
    /// Life of the data directory, drawn when the directory was made; never 0.
    pub life: u64,
    /// Whether this replica has already joined with this life.
    pub joined: bool,
    /// First life that was learned of each other replica.
    pub lives: Vec<(ReplicaId, u64)>,
    /// Highest ballot that this replica has promised.
    pub promised: Ballot,
    /// Accepted commands above the checkpoint, and all accepted configurations. Configurations have
    /// no checkpoint, and are executed again from the first one.
    pub accepted: Vec<super::message::ReportedEntry>,
    /// Slots at which ballots began: (log, ballot, slot).
    pub log_starts: Vec<(LogId, Ballot, Slot)>,
    /// Longest restart wait of all parameters promised under; `None` on the first start ever.
    pub restart_wait: Option<Duration>,
    /// The whole executed state, as one checkpoint.
    pub state: Checkpoint,
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
        /// Number of keys that it changed.
        keys: usize,
        /// Names of its strategies.
        strategy: String,
        /// Replicas that it excludes.
        excluded: ReplicaSet,
    },
    /// Result of an operator's request that was made at this replica.
    LeaseAnswered {
        /// Number of the request.
        ask: u64,
        /// The configuration in force, or the reason for a refusal.
        answer: LeaseAnswer,
    },
    /// The wait for grants that an earlier run made and that this run has forgotten is over.
    RestartWaitOver,
    /// Enough other replicas know this replica's data directory: this replica takes part now.
    Joined,
    /// This replica was told to end, and no other replica waits for it any more.
    Left,
    /// The clock is trusted again (true), or is no longer trusted (false). While it is not, this
    /// replica serves no reads under leases and makes no promises.
    ClockTrusted(bool),
    /// This replica ran before, on a data directory that is lost together with all its promises and
    /// acceptances. From now on it sends nothing.
    Wiped {
        /// Replica that remembers the earlier data directory.
        witness: ReplicaId,
    },
}
