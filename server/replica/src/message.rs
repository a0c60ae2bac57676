//! Messages between replicas in the form that the core uses. `codec.rs` translates between this
//! form and the wire form.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use leasehold_leases::demand::TallyReport;
use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{
    Ballot, ConfigChange, Incarnation, Key, LeaseMessage, ReplicaId, ReplicaSet, Slot,
};
use leasehold_wire::command::Op;
use leasehold_wire::{Command, Outcome, Path, Txn};
use smallvec::SmallVec;

use super::lease_set::{LeaseAnswer, LeaseSet};

pub use super::per_log::{LogId, PerLog};

/// A message with the incarnations of its sender and its addressee. A replica ignores lease
/// messages and forwarded requests if these incarnations are not the current runs of both replicas.
#[derive(Clone, Debug, Hash)]
pub struct Envelope {
    /// Replica that sent the message.
    pub from: ReplicaId,
    /// Run of the sender in which the message was sent.
    pub from_incarnation: Incarnation,
    /// Newest run of the addressee that the sender knew; 0 if the sender knew none.
    pub to_incarnation: Incarnation,
    /// Content of the envelope.
    pub message: Message,
}

/// Name of one attempt to get an answer to a request. The name consists of the origin's incarnation
/// and a counter that rises with every attempt. So the origin never confuses the answers to two
/// attempts, even if the attempts belong to different runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A command that is to be proposed in the log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Proposal {
    /// Replica that the client is connected to.
    pub origin: ReplicaId,
    /// Name that the origin gave to this attempt.
    pub request: RequestId,
    /// Command that the client requested.
    pub command: Command,
}

/// Commands of one slot. They are encoded at most once, even if they are sent to several replicas.
#[derive(Debug, Default)]
pub struct Batch {
    /// Log time of the leader, in ms. It never decreases from slot to slot.
    pub log_time_ms: u64,
    /// Maximum number of sessions, from the settings of the leader; 0 if there is no maximum.
    pub sessions_max: u32,
    /// Commands in the order of their execution.
    pub commands: Vec<Proposal>,
    /// Wire form of the batch, made on first use.
    pub encoded: OnceLock<Bytes>,
}

impl PartialEq for Batch {
    fn eq(&self, other: &Batch) -> bool {
        (self.log_time_ms, self.sessions_max) == (other.log_time_ms, other.sessions_max)
            && self.commands == other.commands
    }
}

/// Declares that every batch equals itself. So two copies of the same `Arc` are equal without a
/// comparison of their commands.
impl Eq for Batch {}

impl Hash for Batch {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.log_time_ms, self.sessions_max, &self.commands).hash(state);
    }
}

/// Content of a slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// A no-op. It fills slots without a known value. A new leader also proposes it as the opening
    /// no-op of its ballot.
    Noop,
    /// Commands of clients.
    Commands(Arc<Batch>),
    /// A change of the lease configuration.
    Config(Arc<ConfigChange>),
}

impl Value {
    /// Returns the commands of the value. A no-op and a configuration have no commands.
    pub fn commands(&self) -> &[Proposal] {
        match self {
            Value::Commands(batch) => &batch.commands,
            _ => &[],
        }
    }

    /// Returns every key that the commands of the value may write, in order. Readers of these keys
    /// must be notified of the value. For a transaction, the keys of both lists are returned,
    /// because the list that will be executed is not known yet (hazard 130).
    pub fn written_keys(&self) -> impl Iterator<Item = &Key> {
        let commands = self.commands().iter().map(|proposed| &proposed.command);
        commands.flat_map(|command| {
            let counted = match &command.op {
                Some(Op::Txn(txn)) if off(Rule::H130Lists) => first_writes(txn),
                _ => usize::MAX,
            };
            command.written_keys().take(counted)
        })
    }

    /// Returns the change of the lease configuration; `None` for commands and for a no-op.
    pub fn config_change(&self) -> Option<&ConfigChange> {
        match self {
            Value::Config(change) => Some(change),
            _ => None,
        }
    }
}

/// Number of operations of the first list that write.
fn first_writes(txn: &Txn) -> usize {
    let operations = txn.then.iter().filter_map(|listed| listed.op.as_ref());
    operations.filter(|operation| operation.is_write()).count()
}

/// State of one log of a leader, as the leader reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LogNews {
    /// Commit point: this slot and all earlier slots are committed.
    pub commit_point: Slot,
    /// Committed ranges above the commit point in rising order: (first slot, last slot).
    pub above: Vec<(Slot, Slot)>,
    /// Slot of the opening no-op of this ballot.
    pub log_start: Slot,
}

/// Phase 2 of one slot.
#[derive(Clone, Debug, Hash)]
pub struct Accept {
    /// The leader's ballot.
    pub ballot: Ballot,
    /// Log of the slot.
    pub log: LogId,
    /// Slot in which the value is to be accepted.
    pub slot: Slot,
    /// Value that is to be accepted.
    pub value: Value,
    /// Tag of the leader's own vote; `None` if the message is no vote, because the entry is not
    /// durable at the leader yet (hazard 113).
    pub vote: Option<ReplicaSet>,
    /// Slots of this log that the leader knows to be committed.
    pub news: LogNews,
    /// Last slot that may hold a multi-key command, among `slot` and all earlier slots.
    pub last_multi: Slot,
    /// One bit for each command: set if execution cannot refuse the command.
    pub infallible: Arc<[u64]>,
}

/// An accepted entry, in the form in which Phase 1 reports it.
#[derive(Clone, Debug, Hash)]
pub struct ReportedEntry {
    /// Log of the entry.
    pub log: LogId,
    /// Slot of the entry.
    pub slot: Slot,
    /// Ballot under which the entry was accepted.
    pub ballot: Ballot,
    /// Accepted value.
    pub value: Value,
}

/// Answer to a forwarded read.
#[derive(Clone, Debug, Hash)]
pub struct ReadAnswer {
    /// Attempt that is answered.
    pub request: RequestId,
    /// Value, and the path on which the read was served. `None` if the sender of the answer cannot
    /// serve the read. In this case, the origin must ask the leader.
    pub outcome: Option<(Outcome, Path)>,
}

/// A message from one replica to another.
#[derive(Clone, Debug, Hash)]
pub enum Message {
    /// Measures the round trip and makes incarnations known.
    Ping {
        /// Reading of the sender's clock, in ns. The answer returns it unchanged.
        stamp: u64,
        /// Average time, in ms, that clients would wait if the sender led. The sender estimates
        /// this time. The value is 0 if the sender should not lead or cannot estimate the time.
        cost_ms: u32,
        /// Last slots that the sender's flushed state covers. After a restart, the sender does not
        /// need the entries up to these slots.
        flushed: PerLog<Slot>,
    },
    /// Answer to a ping.
    Pong {
        /// Stamp of the ping that is answered.
        stamp: u64,
    },
    /// The sender has started with a data directory that may be unknown to all other replicas
    /// (hazard 33).
    Join {
        /// Random number that identifies the sender's data directory (its life).
        life: u64,
    },
    /// Answer to `Join`. Before the sender sends this answer, it stores the `life` of the answer
    /// durably.
    Joined {
        /// First life that the sender ever received for the addressee's data directory.
        life: u64,
    },
    /// Asks whether the addressee would promise this ballot. No replica raises its round because of
    /// this message. The sender also sends the message to addressees that have already promised the
    /// ballot. To them, the message says that promises are still arriving at the sender.
    PreVote {
        /// Ballot under which the sender would campaign.
        ballot: Ballot,
        /// Sequence number that the sender has given to this question.
        ask: u64,
    },
    /// Answer to `PreVote`. It is sent only if the sender of the answer would promise the ballot.
    PreVoted {
        /// Ballot of the `PreVote` that is answered.
        ballot: Ballot,
        /// Sequence number of the `PreVote` that is answered.
        ask: u64,
    },
    /// Phase 1 for all slots above the commit points of both logs.
    Prepare {
        /// The candidate's ballot.
        ballot: Ballot,
        /// The candidate's commit points.
        commits: PerLog<Slot>,
    },
    /// One part of a promise to accept nothing below `ballot`.
    Prepared {
        /// The candidate's ballot.
        ballot: Ballot,
        /// Sequence number of the answer to which this part belongs. The replier counts its answers
        /// from 1 in each run. Accepted entries may differ between two answers, so only parts with
        /// the same number make up a promise.
        answer: u64,
        /// Index of this part, from 0.
        part: u32,
        /// Total number of parts of the answer.
        parts: u32,
        /// The replier's commit points.
        commits: PerLog<Slot>,
        /// Accepted entries in this part. They are above the candidate's commit points.
        entries: Vec<ReportedEntry>,
        /// Slots at which ballots began, as (log, ballot, slot), as far as the replier knows them.
        /// Other parts of the answer may contain further slots.
        log_starts: Vec<(LogId, Ballot, Slot)>,
    },
    /// Phase 2 of one slot.
    Accept(Accept),
    /// Acceptances that are durable at the sender, with their tags.
    Accepted {
        /// Ballot under which the slots were accepted.
        ballot: Ballot,
        /// Log of the slots.
        log: LogId,
        /// Accepted slots, each with the tag of the vote.
        votes: SmallVec<[(Slot, ReplicaSet); 1]>,
    },
    /// Refuses a ballot that is below the promised one.
    Rejected {
        /// Ballot that the sender has promised.
        promised: Ballot,
    },
    /// Shows that the leader is alive, and reports which slots are committed.
    Heartbeat {
        /// The leader's ballot.
        ballot: Ballot,
        /// Sequence number of the probe; 0 if this message only reports commits and needs no
        /// answer. The answer contains the same number.
        probe: u64,
        /// State of each log, as the leader reports it.
        logs: PerLog<LogNews>,
    },
    /// Answer to a heartbeat with a probe.
    HeartbeatAck {
        /// Ballot of the heartbeat.
        ballot: Ballot,
        /// Sequence number of the probe in the heartbeat.
        probe: u64,
        /// Peers that have not answered the sender's lease promises for t_grace.
        suspects: ReplicaSet,
    },
    /// Requests committed entries.
    Fetch {
        /// Log to read.
        log: LogId,
        /// First slot requested.
        from: Slot,
        /// Last slot requested.
        to: Slot,
    },
    /// Entries that the sender knows to be committed, in rising order of slots.
    Fetched {
        /// Log of the entries.
        log: LogId,
        /// Slots, each with its value.
        entries: Vec<(Slot, Value)>,
    },
    /// Commands for the leader to propose.
    Forward {
        /// Commands, each with the name that the origin gave to the attempt.
        commands: Vec<(RequestId, Command)>,
    },
    /// Results of commands that were executed before. The leader sends these results instead of
    /// proposing the commands again.
    Answered {
        /// Results, each with the name of its attempt.
        answers: Vec<(RequestId, Outcome)>,
    },
    /// Reads that the addressee is to answer. If `read_index` is set, the leader answers the reads
    /// after a majority has confirmed its leadership. Otherwise a holder answers the reads under
    /// its lease.
    ForwardRead {
        /// True if the reads are to be answered by read-index, and false if they are to be answered
        /// under a lease.
        read_index: bool,
        /// Names of the attempts, each with the key to read.
        reads: Vec<(RequestId, Key)>,
    },
    /// Answers to forwarded reads.
    ReadAnswers(Vec<ReadAnswer>),
    /// Lease message between a grantor and a holder.
    Lease(LeaseMessage),
    /// Numbers of reads and writes by the sender's clients since the sender's last report.
    Demand(DemandReport),
    /// The preferred leader asks the leader to transfer leadership.
    TransferRequest,
    /// The leader transfers leadership to the addressee. The leader's proposals are already
    /// committed at this time. But if the leader resigns, it does not wait for its proposals.
    Transfer {
        /// Ballot of the leader that transfers leadership.
        ballot: Ballot,
        /// Whether an operator wants the transfer. If so, the preferred leader does not ask for
        /// leadership back.
        by_operator: bool,
    },
    /// Request of an operator to move leadership to another replica.
    Move {
        /// Replica that is to lead.
        to: ReplicaId,
    },
    /// Request of an operator to change leases. The origin sends it to the leader.
    SetLease {
        /// ID that the sender has given to the request.
        ask: u64,
        /// Changes that the operator wants.
        set: LeaseSet,
    },
    /// Answer to `SetLease`.
    LeaseAnswer {
        /// ID of the request that is answered.
        ask: u64,
        /// The configuration in force, or the reason for a refusal.
        answer: LeaseAnswer,
    },
}

/// Report of demand that a replica sends to the leader. The leader chooses holders by these
/// reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DemandReport {
    /// Numbers of reads and writes by the replica's clients since the replica's last report.
    pub report: TallyReport,
    /// Round trips from the replica to all replicas, in us; 0 where none was measured.
    pub rtts_us: Vec<u32>,
}

impl Message {
    /// Returns the name of the message's kind. The name appears in text for people.
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
