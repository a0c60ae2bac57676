//! Messages between replicas, as the core sees them. The wire form is made of them in `codec.rs`.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use leasehold_leases::demand::TallyReport;
use leasehold_leases::{
    Ballot, ConfigChange, Incarnation, Key, LeaseMessage, ReplicaId, ReplicaSet, Slot,
};
use leasehold_wire::{Command, Outcome, Path};
use smallvec::SmallVec;

use super::lease_set::{LeaseAnswer, LeaseSet};

pub use super::per_log::{LogId, PerLog};

/// A message with both incarnations: a mismatch rejects lease messages and
/// forwarded requests.
#[derive(Clone, Debug, Hash)]
pub struct Envelope {
    /// Replica that sent it.
    pub from: ReplicaId,
    /// In which run.
    pub from_incarnation: Incarnation,
    /// The run of the addressee that the sender knew; 0 if none.
    pub to_incarnation: Incarnation,
    /// Content of the envelope.
    pub message: Message,
}

/// Names one attempt of one request: the origin's incarnation and a counter, new
/// for every attempt, so that an answer to an earlier life or attempt is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A command on its way into the log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Proposal {
    /// The replica the client is connected to.
    pub origin: ReplicaId,
    /// The origin's name for this attempt.
    pub request: RequestId,
    /// Command that the client asked for.
    pub command: Command,
}

/// The commands of one slot, encoded at most once however many replicas it goes to.
#[derive(Debug, Default)]
pub struct Batch {
    /// The leader's log time, in ms: never falls from slot to slot.
    pub log_time_ms: u64,
    /// Maximum number of sessions, as in the settings of the leader; 0: any number.
    pub sessions_max: u32,
    /// In order.
    pub commands: Vec<Proposal>,
    /// The wire form, made on first use.
    pub encoded: OnceLock<Bytes>,
}

impl PartialEq for Batch {
    fn eq(&self, other: &Batch) -> bool {
        (self.log_time_ms, self.sessions_max) == (other.log_time_ms, other.sessions_max)
            && self.commands == other.commands
    }
}

/// So that copies of one `Arc` are known to be equal without a look at their commands.
impl Eq for Batch {}

impl Hash for Batch {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.log_time_ms, self.sessions_max, &self.commands).hash(state);
    }
}

/// Content of a slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// Nothing: fills holes and opens a ballot.
    Noop,
    /// Commands of clients.
    Commands(Arc<Batch>),
    /// A change of the lease configuration.
    Config(Arc<ConfigChange>),
}

impl Value {
    /// The commands; none for a no-op or a configuration.
    pub fn commands(&self) -> &[Proposal] {
        match self {
            Value::Commands(batch) => &batch.commands,
            _ => &[],
        }
    }
}

/// State of one of a leader's logs, as the leader reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LogNews {
    /// Every slot up to here is committed.
    pub commit_point: Slot,
    /// Ranges (first, last) committed above it, rising.
    pub above: Vec<(Slot, Slot)>,
    /// The slot of this ballot's opening no-op.
    pub log_start: Slot,
}

/// Phase 2 of one slot.
#[derive(Clone, Debug, Hash)]
pub struct Accept {
    /// The leader's ballot.
    pub ballot: Ballot,
    /// Log of the slot.
    pub log: LogId,
    /// Slot to accept at.
    pub slot: Slot,
    /// Value to accept.
    pub value: Value,
    /// The leader's own tag: this message is its vote.
    pub tag: ReplicaSet,
    /// Commits so far.
    pub news: LogNews,
    /// The highest slot not above this one that may hold a multi-key command.
    pub last_multi: Slot,
    /// A bit per command: execution cannot refuse it.
    pub infallible: Arc<[u64]>,
}

/// An accepted entry, as Phase 1 reports it.
#[derive(Clone, Debug, Hash)]
pub struct ReportedEntry {
    /// Log of the entry.
    pub log: LogId,
    /// Slot of the entry.
    pub slot: Slot,
    /// At which ballot it was accepted.
    pub ballot: Ballot,
    /// Accepted value.
    pub value: Value,
}

/// The answer to a forwarded read.
#[derive(Clone, Debug, Hash)]
pub struct ReadAnswer {
    /// The attempt it answers.
    pub request: RequestId,
    /// The value and how it was served; `None`: not here, ask the leader.
    pub outcome: Option<(Outcome, Path)>,
}

/// A message from one replica to another.
#[derive(Clone, Debug, Hash)]
pub enum Message {
    /// Measures the round trip and makes incarnations known.
    Ping {
        /// The sender's clock, in ns; returned as it came.
        stamp: u64,
        /// Average wait of a client if the sender led, in ms; 0: it should not lead, or cannot
        /// estimate it.
        cost_ms: u32,
    },
    /// The answer.
    Pong {
        /// Stamp of the ping.
        stamp: u64,
    },
    /// The sender starts on a directory that nobody may know yet (hazard 33).
    Join {
        /// The directory's life.
        life: u64,
    },
    /// The answer, once that is durable at the sender.
    Joined {
        /// The first life that the sender ever heard of the addressee.
        life: u64,
    },
    /// Would the addressee promise this ballot? Nothing is raised yet. Once it has promised:
    /// the sender is collecting promises still, and they arrive.
    PreVote {
        /// The ballot that the sender would campaign under.
        ballot: Ballot,
        /// Number of this question among the sender's.
        ask: u64,
    },
    /// The answer, if it would.
    PreVoted {
        /// Ballot of the question.
        ballot: Ballot,
        /// Number of the question.
        ask: u64,
    },
    /// Phase 1, for every slot above the commit points, of both logs.
    Prepare {
        /// The candidate's ballot.
        ballot: Ballot,
        /// The candidate's commit points.
        commits: PerLog<Slot>,
    },
    /// One part of a promise not to accept below `ballot`.
    Prepared {
        /// The candidate's ballot.
        ballot: Ballot,
        /// Number of the answer, in the replier's run, of which this is a part, from 1: entries may
        /// differ between two, and only parts of one make a promise.
        answer: u64,
        /// This part, from 0.
        part: u32,
        /// Number of parts.
        parts: u32,
        /// The replier's commit points.
        commits: PerLog<Slot>,
        /// Accepted entries above the candidate's commit points; this part's share.
        entries: Vec<ReportedEntry>,
        /// Where each ballot accepted at here began; this part's share.
        log_starts: Vec<(LogId, Ballot, Slot)>,
    },
    /// Phase 2.
    Accept(Accept),
    /// Acceptances, durable at the sender, with their tags.
    Accepted {
        /// At which ballot.
        ballot: Ballot,
        /// Log of the slots.
        log: LogId,
        /// Slots and tags.
        votes: SmallVec<[(Slot, ReplicaSet); 1]>,
    },
    /// A ballot was too low.
    Rejected {
        /// Ballot that the sender has promised.
        promised: Ballot,
    },
    /// The leader lives; these slots are committed.
    Heartbeat {
        /// The leader's ballot.
        ballot: Ballot,
        /// To be returned; 0: news of commits only, no answer wanted.
        probe: u64,
        /// State of each log.
        logs: PerLog<LogNews>,
    },
    /// The answer to a heartbeat with a probe.
    HeartbeatAck {
        /// Ballot of the heartbeat.
        ballot: Ballot,
        /// Probe of the heartbeat.
        probe: u64,
        /// Peers that have not answered the sender's promises for t_grace.
        suspects: ReplicaSet,
    },
    /// Send me committed entries.
    Fetch {
        /// Log to read.
        log: LogId,
        /// First slot wanted.
        from: Slot,
        /// Last slot wanted.
        to: Slot,
    },
    /// Entries known to be committed, rising by slot.
    Fetched {
        /// Log of the entries.
        log: LogId,
        /// Slots and contents.
        entries: Vec<(Slot, Value)>,
    },
    /// Commands for the leader to propose.
    Forward {
        /// With the origin's names for the attempts.
        commands: Vec<(RequestId, Command)>,
    },
    /// Results that the leader knows of commands that it need not propose again.
    Answered {
        /// By attempt.
        answers: Vec<(RequestId, Outcome)>,
    },
    /// Reads for a holder, or (`read_index`) for the leader to confirm.
    ForwardRead {
        /// Whether to confirm with a majority instead of under a lease.
        read_index: bool,
        /// Attempts and keys.
        reads: Vec<(RequestId, Key)>,
    },
    /// The answers.
    ReadAnswers(Vec<ReadAnswer>),
    /// Between grantor and holder.
    Lease(LeaseMessage),
    /// Reads and writes of the sender's clients since its last report.
    Demand(DemandReport),
    /// The preferred leader asks the leader to transfer leadership.
    TransferRequest,
    /// The leader transfers leadership: everything it proposed is committed.
    Transfer {
        /// The ballot that ends.
        ballot: Ballot,
        /// Whether an operator wants it: then nobody asks for leadership back by
        /// preference.
        by_operator: bool,
    },
    /// An operator wants this replica to lead.
    Move {
        /// Replica that is to lead.
        to: ReplicaId,
    },
    /// An operator wants leases to change: for the leader.
    SetLease {
        /// The sender's number of it.
        ask: u64,
        /// Changes that the operator wants.
        set: LeaseSet,
    },
    /// Answer to `SetLease`.
    LeaseAnswer {
        /// The number.
        ask: u64,
        /// In force, or why not.
        answer: LeaseAnswer,
    },
}

/// Report of a replica to the leader, so that it can choose holders.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DemandReport {
    /// Reads and writes of its clients since its last report.
    pub report: TallyReport,
    /// Its round trips to all replicas, in us; 0 where none was measured.
    pub rtts_us: Vec<u32>,
}

impl Message {
    /// Name of the message's kind, for people: a whole message may be long.
    pub fn name(&self) -> &'static str {
        match self {
            Message::Ping { .. } => "Ping",
            Message::Pong { .. } => "Pong",
            Message::Join { .. } => "Join",
            Message::Joined { .. } => "Joined",
            Message::PreVote { .. } => "PreVote",
            Message::PreVoted { .. } => "PreVoted",
            Message::Prepare { .. } => "Prepare",
            Message::Prepared { .. } => "Prepared",
            Message::Accept(_) => "Accept",
            Message::Accepted { .. } => "Accepted",
            Message::Rejected { .. } => "Rejected",
            Message::Heartbeat { .. } => "Heartbeat",
            Message::HeartbeatAck { .. } => "HeartbeatAck",
            Message::Fetch { .. } => "Fetch",
            Message::Fetched { .. } => "Fetched",
            Message::Forward { .. } => "Forward",
            Message::Answered { .. } => "Answered",
            Message::ForwardRead { .. } => "ForwardRead",
            Message::ReadAnswers(_) => "ReadAnswers",
            Message::Lease(_) => "Lease",
            Message::Demand(_) => "Demand",
            Message::TransferRequest => "TransferRequest",
            Message::Transfer { .. } => "Transfer",
            Message::Move { .. } => "Move",
            Message::SetLease { .. } => "SetLease",
            Message::LeaseAnswer { .. } => "LeaseAnswer",
        }
    }
}
