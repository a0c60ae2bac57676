//! Everything a replica asks of the world around it, performed in order.
//!
//! What must follow a durable write is not here before its `Input::Persisted`
//! has come: the shell may perform sends at once.

use std::time::Duration;

use leasehold_leases::{Ballot, ConfigId, Key, ReplicaId, ReplicaSet, Slot, Time};
use leasehold_wire::{Outcome, Path, Version};

pub use super::handles::{ClientHandle, FencedRead, ReadFrom, Requester, Sequence};
use super::lease_set::LeaseAnswer;
use super::message::{Envelope, LogId, Value};

/// An effect.
#[derive(Clone, Debug)]
pub enum Action {
    /// Send to a peer; may be lost.
    Send {
        /// Addressee.
        to: ReplicaId,
        /// Message to send.
        envelope: Envelope,
    },
    /// Make all records durable, in order and as one, then return
    /// `Input::Persisted`. Several may be made durable together.
    Persist {
        /// To return.
        sequence: Sequence,
        /// Records to make durable.
        records: Vec<Record>,
    },
    /// Answer a client.
    Reply {
        /// Client to answer.
        to: ClientHandle,
        /// Path on which the request was served.
        path: Path,
        /// With what.
        outcome: Outcome,
    },
    /// Answer a read made under leases: only if the clock, sampled after the
    /// step, is before `until`; else return `Input::FenceMissed`.
    FencedReply {
        /// Client or peer to answer.
        to: ReadFrom,
        /// Path on which the read was served.
        path: Path,
        /// With what.
        outcome: Outcome,
        /// When the permit ends.
        until: Time,
        /// To return in `Input::FenceMissed`.
        again: FencedRead,
    },
    /// Read committed entries that the core no longer keeps in memory, up to a
    /// frame's worth, and return `Input::LogRead`.
    ReadLog {
        /// Log to read.
        log: LogId,
        /// Requester of the entries: returned as it is.
        to: Requester,
        /// First slot.
        from: Slot,
        /// Last slot.
        last: Slot,
    },
    /// Something an operator may want to know.
    Event(Event),
}

/// One durable fact. A later record replaces an earlier one about the same slot, replica or
/// entry.
#[derive(Clone, Debug, Hash)]
pub enum Record {
    /// Nothing is accepted below this ballot.
    Promised(Ballot),
    /// An accepted entry; replaces an earlier one in the slot.
    Accepted {
        /// Log of the entry.
        log: LogId,
        /// Slot of the entry.
        slot: Slot,
        /// At which ballot.
        ballot: Ballot,
        /// Accepted value.
        value: Value,
    },
    /// The entry in this slot is dead: a later ballot began below it.
    Erased {
        /// Log of the entry.
        log: LogId,
        /// Slot of the entry.
        slot: Slot,
    },
    /// Where a ballot began.
    LogStart {
        /// Log in which the ballot began.
        log: LogId,
        /// The ballot.
        ballot: Ballot,
        /// Its opening no-op.
        slot: Slot,
    },
    /// Forget where ballots below this one began.
    ForgetLogStarts {
        /// Log to forget starts of.
        log: LogId,
        /// The first ballot to keep.
        below: Ballot,
    },
    /// The longest restart wait of any parameters promised under.
    RestartWait(Duration),
    /// The first life ever heard of a replica's data directory (hazard 33).
    Life {
        /// Replica that owns the directory.
        replica: ReplicaId,
        /// Not 0.
        life: u64,
    },
    /// Enough others know this directory's life.
    Joined,
    /// Values of a checkpoint that follows. Until then they have no effect. The checkpoint holds
    /// them too; a disk that has them writes only a reference.
    Staged(Vec<(Key, StoredValue)>),
    /// The state changed: applied index and data as one.
    Checkpoint(Checkpoint),
}

impl Record {
    /// Whether a replica relies on it even where nothing else survives a crash (hazard 15).
    pub fn is_synced_always(&self) -> bool {
        matches!(self, Record::RestartWait(_))
    }
}

/// Changes of the state since the last checkpoint.
#[derive(Clone, Debug, Default, Hash)]
pub struct Checkpoint {
    /// Commands executed.
    pub executed: Slot,
    /// Configurations executed.
    pub config: ConfigId,
    /// Log time at `executed`, in ms.
    pub log_time_ms: u64,
    /// Keys written (`Some`) or deleted (`None`), each once.
    pub entries: Vec<(Key, Option<StoredValue>)>,
    /// Sessions changed (`Some`) or ended (`None`), each once.
    pub sessions: Vec<(u64, Option<SessionImage>)>,
    /// Value of the replicated clock, in ms: a client that began a session before it cannot open
    /// that session.
    pub opens_from_ms: u64,
}

/// A value as it is stored.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct StoredValue {
    /// The value.
    pub value: bytes::Bytes,
    /// Version of the last write to the key.
    pub version: Version,
    /// Version of the write that created the key.
    pub created: Version,
}

/// A session as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Hash)]
pub struct SessionImage {
    /// Every sequence below has been acknowledged by the client.
    pub acked_below: u64,
    /// Log time of its last command, in ms.
    pub active_ms: u64,
    /// Results not yet acknowledged, rising by sequence.
    pub results: Vec<(u64, Outcome)>,
}

/// State that a restart finds on disk.
#[derive(Clone, Debug, Default)]
pub struct RecoveredState {
    /// This run's incarnation, durable already. At least 1.
    pub incarnation: leasehold_leases::Incarnation,
    /// Drawn when the directory was made; never 0.
    pub life: u64,
    /// Whether this life takes part already.
    pub joined: bool,
    /// The lives of others, as first heard.
    pub lives: Vec<(ReplicaId, u64)>,
    /// The promised ballot.
    pub promised: Ballot,
    /// Accepted commands above the checkpoint, and all accepted configurations: these have
    /// no checkpoint, and are executed again from the first.
    pub accepted: Vec<super::message::ReportedEntry>,
    /// Where ballots began.
    pub log_starts: Vec<(LogId, Ballot, Slot)>,
    /// The longest restart wait; `None` on the first start ever.
    pub restart_wait: Option<Duration>,
    /// The whole state, as one checkpoint.
    pub state: Checkpoint,
}

/// Something an operator may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// This replica asks to lead.
    Campaigning(Ballot),
    /// This replica leads.
    Leading(Ballot),
    /// Another replica leads.
    Following(Ballot),
    /// A configuration is known here.
    Configured {
        /// Id of the configuration.
        id: ConfigId,
        /// Keys it changed.
        keys: usize,
        /// The names of its strategies.
        strategy: String,
        /// Its excluded replicas.
        excluded: ReplicaSet,
    },
    /// Result of an operator's request that was made here.
    LeaseAnswered {
        /// Its number.
        ask: u64,
        /// In force, or why not.
        answer: LeaseAnswer,
    },
    /// The wait for forgotten grants is over.
    RestartWaitOver,
    /// Enough others know this replica's directory: it takes part.
    Joined,
    /// This replica was told to end, and nobody waits for it any more.
    Left,
    /// The clock is believed again, or no longer: then nothing is read under leases here,
    /// and nothing promised.
    ClockTrusted(bool),
    /// This replica ran before, on a directory that is gone, with all that it had
    /// promised and accepted. It is mute from here on.
    Wiped {
        /// Replica that remembers the earlier directory.
        witness: ReplicaId,
    },
}
