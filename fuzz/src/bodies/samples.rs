//! Samples of every message and of every stored value. No field of a sample has its default value.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use leasehold_leases::config::KeyVersions;
use leasehold_leases::demand::{Delta, TallyReport};
use leasehold_leases::{
    Ballot, ClockBound, ConfigChange, ConfigId, Configs, CostSettings, KeyRange, LeaseMessage,
    LeaseParams, Promise, RangeChange, ReplicaId, ReplicaSet, Slot, StrategySpec, UnlistedHolders,
};
use leasehold_replica::action::ConfigFrames;
use leasehold_replica::lease_set::{Durations, InForce, LeaseSet, Refusal};
use leasehold_replica::message::{
    Accept, Batch, DemandReport, LogId, LogNews, Message, Proposal, ReadAnswer, ReportedEntry,
    RequestId, Value,
};
use leasehold_wire::command::Op;
use leasehold_wire::comparison::Condition;
use leasehold_wire::op_result::Result as OpAnswer;
use leasehold_wire::txn_op::Op as Listed;
use leasehold_wire::{
    Command, Comparison, Delete, Entry, Error, ErrorCode, FailedComparison, Field, Get, KeyValue,
    Missing, OpResult, Outcome, Path, Put, PutFields, Txn, TxnOp, TxnResult, Version,
};

const VERSION: Version = Version {
    slot: 300,
    index: 2,
};

const BALLOT: Ballot = Ballot {
    round: 129,
    replica: ReplicaId(4),
};

pub fn commands() -> Vec<Command> {
    let pair = |key: &'static str| KeyValue {
        key: key.into(),
        value: "a value".into(),
    };
    let field = |name: &'static str| Field {
        name: name.into(),
        value: "its value".into(),
    };
    let ops = [
        Op::get("key"),
        Op::put("key", "value"),
        Op::delete("key"),
        Op::cas("key", "value", Some(VERSION)),
        Op::cas("key", "value", None),
        Op::put_fields("key", vec![field("one"), field("two")]),
        Op::multi_get(vec!["one".into(), "two".into(), "three".into()]),
        Op::multi_put(vec![pair("one"), pair("two")]),
        Op::scan("from", "to", 100),
    ];
    let txns = txns("key", "two").into_iter().map(Op::txn);
    let ops = ops.into_iter().chain(txns);
    ops.map(|op| Command::session(1 << 63, 9, 5, op)).collect()
}

fn listed(operations: impl IntoIterator<Item = Listed>) -> Vec<TxnOp> {
    operations.into_iter().map(TxnOp::from).collect()
}

/// Returns an operation of a transaction of each kind.
fn operations(key: &'static str) -> [Listed; 7] {
    let field = Field {
        name: "one".into(),
        value: "its value".into(),
    };
    let (key, value) = (Bytes::from(key), Bytes::from("7"));
    [
        Listed::Get(Get { key: key.clone() }),
        Listed::Put(Put {
            key: key.clone(),
            value: value.clone(),
        }),
        Listed::Delete(Delete { key: key.clone() }),
        Listed::PutFields(PutFields {
            key: key.clone(),
            fields: vec![field],
        }),
        Listed::delete_fields(key.clone(), vec!["one".into(), "two".into()]),
        Listed::add(key.clone(), -70),
        Listed::append(key, value),
    ]
}

fn comparison(key: &'static str, condition: Condition) -> Comparison {
    Comparison {
        key: key.into(),
        condition: Some(condition),
    }
}

/// Returns a comparison of each kind.
fn comparisons(key: &'static str) -> Vec<Comparison> {
    let value = || Bytes::from("value");
    let conditions = [
        Condition::Present(true),
        Condition::Version(VERSION),
        Condition::Equal(value()),
        Condition::Less(value()),
        Condition::AtMost(value()),
        Condition::Greater(value()),
        Condition::AtLeast(value()),
        Condition::Present(false),
    ];
    let conditions = conditions.into_iter();
    conditions
        .map(|condition| comparison(key, condition))
        .collect()
}

/// Returns transactions about two keys: one for each kind of comparison and operation, one with all
/// of them, and one with many operations on one key.
pub fn txns(key: &'static str, other: &'static str) -> Vec<Txn> {
    let both = || comparisons(key).into_iter().chain(comparisons(other));
    let each = operations(key).into_iter().zip(operations(other));
    let mut txns: Vec<Txn> = (0..)
        .zip(each)
        .map(|(number, (one, two))| Txn {
            comparisons: both().skip(number * 2).take(1).collect(),
            then: listed([one.clone()]),
            or_else: listed([two, one]),
            keep_going: number % 2 == 0,
        })
        .collect();
    txns.push(Txn {
        comparisons: both().collect(),
        then: listed(operations(key).into_iter().chain(operations(other))),
        or_else: listed(operations(other)),
        keep_going: true,
    });
    txns.push(Txn {
        comparisons: Vec::new(),
        then: listed(vec![Listed::append(key, "a"); 16]),
        or_else: listed(vec![Listed::add(other, 1); 20]),
        keep_going: false,
    });
    txns
}

fn txn_result() -> TxnResult {
    let value = |value: &'static str| leasehold_wire::Value {
        value: value.into(),
        version: Some(VERSION),
    };
    let answers = [
        OpAnswer::Value(value("value")),
        OpAnswer::Missing(Missing {}),
        OpAnswer::Count(300),
        OpAnswer::Number(-300),
        OpAnswer::Error(Error::new(ErrorCode::NotAnInteger, "why")),
    ];
    let answers = answers.into_iter().map(Some);
    TxnResult {
        or_else: true,
        failed: Some(FailedComparison {
            index: 3,
            found: Some(value("found")),
        }),
        version: Some(VERSION),
        results: answers.map(|result| OpResult { result }).collect(),
        abridged: true,
    }
}

pub fn outcomes() -> Vec<Outcome> {
    let entry = |key: &'static str| Entry {
        key: key.into(),
        value: "value".into(),
        version: Some(VERSION),
    };
    vec![
        Outcome::written(VERSION),
        Outcome::value("value", VERSION),
        Outcome::missing(),
        Outcome::mismatch(Some(VERSION)),
        Outcome::mismatch(None),
        Outcome::entries(vec![entry("one"), entry("two")]),
        Outcome::error(ErrorCode::NotARecord, "why"),
        Outcome::error(ErrorCode::NotAnInteger, "why"),
        Outcome::txn(txn_result()),
    ]
}

fn batch() -> Value {
    let propose = |(request, command): (u64, Command)| Proposal {
        origin: ReplicaId(2),
        request: RequestId(1 << 48 | request),
        command,
    };
    Value::Commands(Arc::new(Batch {
        log_time_ms: 1_700_000,
        sessions_max: 1 << 18,
        commands: (1..).zip(commands()).map(propose).collect(),
        ..Batch::default()
    }))
}

/// Returns the checkpoint after these changes, and the holders of its listed keys.
pub fn checkpoint() -> (ConfigFrames, Vec<KeyVersions>) {
    let mut configs = Configs::new(5);
    for (id, change) in (1..).map(ConfigId).zip(changes()) {
        configs.apply(id, &change);
    }
    let saved = configs.take_unsaved().expect("there are configurations");
    let frames = ConfigFrames {
        configured: true,
        frames: saved.frames,
    };
    let rows = saved.keys.into_iter();
    (frames, rows.filter_map(|(_, versions)| versions).collect())
}

fn changes() -> Vec<ConfigChange> {
    let keys = |keys: [&'static str; 2]| keys.map(Bytes::from).into();
    let quorum = |unlisted| StrategySpec::Quorum { unlisted };
    let strategies = [
        StrategySpec::None,
        StrategySpec::Leader,
        StrategySpec::All,
        quorum(UnlistedHolders::Leader),
        quorum(UnlistedHolders::Nearest),
        StrategySpec::Cost(CostSettings::from_thousandths(700, 2, false)),
        StrategySpec::Fixed { holders: None },
        StrategySpec::Fixed {
            holders: Some(ReplicaSet(0b10101)),
        },
    ];
    let range = |from: &'static str, to: Option<&'static str>| {
        KeyRange::new(from.into(), to.map(Bytes::from)).expect("some keys")
    };
    let change = |strategy| ConfigChange {
        ranges: vec![
            RangeChange::strategy(range("", None), strategy),
            RangeChange {
                defaults: Some(ReplicaSet(0b11)),
                clear: true,
                ..RangeChange::nothing(range("m", Some("p")))
            },
        ],
        keys: vec![
            (ReplicaSet(0b110), keys(["one", "two"])),
            (ReplicaSet(0b101), keys(["three", "four"])),
        ],
        excluded: Some(ReplicaSet(0b1000)),
        params: Some(params()),
    };
    strategies.map(change).into()
}

fn lease_set() -> LeaseSet {
    let range = KeyRange::new(Bytes::from("m"), None).expect("some keys");
    let unlisted = UnlistedHolders::Leader;
    LeaseSet {
        strategies: vec![
            (KeyRange::all(), StrategySpec::All),
            (range, StrategySpec::Quorum { unlisted }),
        ],
        durations: Durations::of(&params()),
        force: true,
    }
}

fn params() -> LeaseParams {
    LeaseParams {
        t_lease: Duration::from_millis(2000),
        t_guard: Duration::from_millis(1500),
        renew: Duration::from_millis(500),
        t_grace: Duration::from_millis(5000),
        t0_cap: Duration::from_millis(4000),
        clock: ClockBound { rho_ppm: 1000 },
    }
}

pub fn values() -> Vec<Value> {
    let changes = changes().into_iter();
    let changes = changes.map(|change| Value::Config(Arc::new(change)));
    [Value::Noop, batch()].into_iter().chain(changes).collect()
}

fn news() -> LogNews {
    LogNews {
        commit_point: Slot(200),
        above: vec![(Slot(202), Slot(202)), (Slot(210), Slot(1 << 55))],
        log_start: Slot(150),
    }
}

fn accept(slot: u64, value: Value) -> Message {
    let log = match value {
        Value::Config(_) => LogId::Configs,
        _ => LogId::Commands,
    };
    let words = value.commands().len().div_ceil(64);
    Message::Accept(Accept {
        ballot: BALLOT,
        log,
        slot: Slot(slot),
        value,
        vote: Some(ReplicaSet(0b1011)),
        news: news(),
        last_multi: Slot(slot),
        infallible: vec![0b101; words].into(),
    })
}

fn leases() -> Vec<Message> {
    let (sequence, known) = (77, ConfigId(3));
    let promise = Promise {
        sequence,
        base: 76,
        t0: Duration::from_millis(600),
        t_guard: Duration::from_millis(1500),
        t_lease: Duration::from_millis(2000),
        config: known,
        highest_accepted: Slot(400),
    };
    let all = [
        LeaseMessage::Guard { sequence },
        LeaseMessage::GuardAck { sequence, known },
        LeaseMessage::Promise(promise),
        LeaseMessage::PromiseAck { sequence, known },
        LeaseMessage::Relinquish { up_to: sequence },
        LeaseMessage::Leave { recalls: sequence },
    ];
    all.map(Message::Lease).into()
}

fn reported(slot: u64, value: Value) -> ReportedEntry {
    ReportedEntry {
        log: LogId::Commands,
        slot: Slot(slot),
        ballot: BALLOT,
        value,
    }
}

/// Returns messages of every kind. The test `every_kind_is_there` checks that none is missing.
pub fn messages() -> Vec<Message> {
    let slots = || (300..).zip(values());
    let attempts = || (1..).map(RequestId);
    let answer = |(request, outcome)| ReadAnswer { request, outcome };
    let outcomes_read = || {
        outcomes()
            .into_iter()
            .map(|outcome| Some((outcome, Path::Held)))
    };
    let mut messages = vec![
        Message::Ping {
            stamp: 1 << 60,
            cost_ms: 90,
            flushed: [Slot(1 << 50), Slot(7)].into(),
        },
        Message::Pong { stamp: 1 << 60 },
        Message::Join { life: 1 << 61 },
        Message::Joined { life: 1 << 62 },
        Message::Prepare {
            ballot: BALLOT,
            commits: [Slot(200), Slot(3)].into(),
        },
        Message::Prepared {
            ballot: BALLOT,
            answer: 5,
            part: 1,
            parts: 3,
            commits: [Slot(200), Slot(3)].into(),
            entries: slots().map(|(slot, value)| reported(slot, value)).collect(),
            log_starts: vec![(LogId::Configs, BALLOT, Slot(150))],
        },
        Message::Accepted {
            ballot: BALLOT,
            log: LogId::Configs,
            votes: vec![(Slot(300), ReplicaSet(0b11)), (Slot(301), ReplicaSet(0))].into(),
        },
        Message::Rejected { promised: BALLOT },
        Message::Heartbeat {
            ballot: BALLOT,
            probe: 17,
            logs: [news(), news()].into(),
        },
        Message::HeartbeatAck {
            ballot: BALLOT,
            probe: 17,
            suspects: ReplicaSet(0b100),
        },
        Message::Fetch {
            log: LogId::Configs,
            from: Slot(100),
            to: Slot(200),
        },
        Message::Fetched {
            log: LogId::Commands,
            entries: slots().map(|(slot, value)| (Slot(slot), value)).collect(),
        },
        Message::Forward {
            commands: attempts().zip(commands()).collect(),
        },
        Message::Answered {
            answers: attempts().zip(outcomes()).collect(),
        },
        Message::ForwardRead {
            read_index: true,
            reads: attempts().zip(["one", "two"].map(Bytes::from)).collect(),
        },
        Message::ReadAnswers(
            attempts()
                .zip(outcomes_read().chain([None]))
                .map(answer)
                .collect(),
        ),
        Message::Demand(DemandReport {
            report: TallyReport {
                deltas: vec![Delta {
                    key: "key".into(),
                    reads: 1000,
                    writes: 3,
                }],
                rare_reads: 5,
                rare_writes: 0,
            },
            rtts_us: vec![0, 120_000],
        }),
        Message::TransferRequest,
        Message::Transfer {
            ballot: BALLOT,
            by_operator: true,
        },
        Message::PreVote {
            ballot: BALLOT,
            ask: 4,
        },
        Message::PreVoted {
            ballot: BALLOT,
            ask: 4,
        },
        Message::Move { to: ReplicaId(1) },
        Message::SetLease {
            ask: 3,
            set: lease_set(),
        },
        Message::LeaseAnswer {
            ask: 3,
            answer: Ok(InForce {
                config: ConfigId(8),
                already: true,
            }),
        },
        Message::LeaseAnswer {
            ask: 4,
            answer: Err(Refusal::Invalid("t_guard_ms: too short".to_owned())),
        },
    ];
    messages.extend(slots().map(|(slot, value)| accept(slot, value)));
    messages.extend(leases());
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of a message's kind. If a new kind is added, this function does not
    /// compile until the new kind has a number.
    fn kind(message: &Message) -> usize {
        match message {
            Message::Ping { .. } => 0,
            Message::Pong { .. } => 1,
            Message::Prepare { .. } => 2,
            Message::Prepared { .. } => 3,
            Message::Accept(_) => 4,
            Message::Accepted { .. } => 5,
            Message::Rejected { .. } => 6,
            Message::Heartbeat { .. } => 7,
            Message::HeartbeatAck { .. } => 8,
            Message::Fetch { .. } => 9,
            Message::Fetched { .. } => 10,
            Message::Forward { .. } => 11,
            Message::Answered { .. } => 12,
            Message::ForwardRead { .. } => 13,
            Message::ReadAnswers(_) => 14,
            Message::Lease(_) => 15,
            Message::Demand(_) => 16,
            Message::TransferRequest => 17,
            Message::Transfer { .. } => 18,
            Message::Join { .. } => 19,
            Message::Joined { .. } => 20,
            Message::PreVote { .. } => 21,
            Message::PreVoted { .. } => 22,
            Message::Move { .. } => 23,
            Message::SetLease { .. } => 24,
            Message::LeaseAnswer { .. } => 25,
        }
    }

    #[test]
    fn every_kind_is_there() {
        let mut kinds: Vec<usize> = messages().iter().map(kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        assert_eq!(kinds, Vec::from_iter(0..26));
    }
}
