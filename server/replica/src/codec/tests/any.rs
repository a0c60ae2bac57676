//! Generators of random values of everything that may be encoded.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use leasehold_leases::config::{FRAMES_SAVED, KeyVersions, SavedFrame, SavedPolicy};
use leasehold_leases::demand::{Delta, TallyReport};
use leasehold_leases::{
    Ballot, ClockBound, ConfigChange, ConfigId, CostSettings, Incarnation, KeyRange, LeaseMessage,
    LeaseParams, Promise, RangeChange, ReplicaId, ReplicaSet, Slot, StrategySpec, UnlistedHolders,
};
use leasehold_wire::command::Op;
use leasehold_wire::comparison::Condition;
use leasehold_wire::op_result::Result as OpAnswer;
use leasehold_wire::txn_op::Op as Listed;
use leasehold_wire::{
    Command, Comparison, Delete, Entry, Error, ErrorCode, FailedComparison, Field, Get, KeyValue,
    Missing, OpResult, Outcome, Path, Put, PutFields, Txn, TxnOp, TxnResult, Version,
};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

use crate::action::ConfigFrames;
use crate::codec::{Envelope, NUMBER_MAX};
use crate::lease_set::{Durations, InForce, LeaseAnswer, LeaseSet, Refusal};
use crate::message::{
    Accept, Batch, DemandReport, LogId, LogNews, Message, Proposal, ReadAnswer, ReportedEntry,
    RequestId, Value,
};

pub(super) fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..10u64, 0..=NUMBER_MAX, Just(NUMBER_MAX)]
}

fn slot() -> impl Strategy<Value = Slot> {
    number().prop_map(Slot)
}

fn replica_id() -> impl Strategy<Value = ReplicaId> {
    (0..64u8).prop_map(ReplicaId)
}

fn set() -> impl Strategy<Value = ReplicaSet> {
    any::<u64>().prop_map(ReplicaSet)
}

pub(super) fn ballot() -> impl Strategy<Value = Ballot> {
    (number(), replica_id()).prop_map(|(round, replica)| Ballot { round, replica })
}

fn duration() -> impl Strategy<Value = Duration> {
    number().prop_map(Duration::from_nanos)
}

pub(super) fn key() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 1..20).prop_map(Bytes::from)
}

fn log_id() -> impl Strategy<Value = LogId> {
    prop_oneof![Just(LogId::Commands), Just(LogId::Configs)]
}

fn request() -> impl Strategy<Value = RequestId> {
    any::<u64>().prop_map(RequestId)
}

pub(super) fn version() -> impl Strategy<Value = Version> {
    (number(), any::<u32>()).prop_map(|(slot, index)| Version { slot, index })
}

fn comparison() -> impl Strategy<Value = Comparison> {
    let condition = prop_oneof![
        version().prop_map(Condition::Version),
        any::<bool>().prop_map(Condition::Present),
        key().prop_map(Condition::Equal),
        key().prop_map(Condition::Less),
        key().prop_map(Condition::AtMost),
        key().prop_map(Condition::Greater),
        key().prop_map(Condition::AtLeast),
    ];
    (key(), condition).prop_map(|(key, condition)| Comparison {
        key,
        condition: Some(condition),
    })
}

fn txn_op() -> impl Strategy<Value = TxnOp> {
    let field = (key(), key()).prop_map(|(name, value)| Field { name, value });
    let operation = prop_oneof![
        key().prop_map(|key| Listed::Get(Get { key })),
        (key(), key()).prop_map(|(key, value)| Listed::Put(Put { key, value })),
        key().prop_map(|key| Listed::Delete(Delete { key })),
        (key(), vec(field, 1..4))
            .prop_map(|(key, fields)| Listed::PutFields(PutFields { key, fields })),
        (key(), vec(key(), 1..4)).prop_map(|(k, names)| Listed::delete_fields(k, names)),
        (key(), any::<i64>()).prop_map(|(k, delta)| Listed::add(k, delta)),
        (key(), key()).prop_map(|(k, suffix)| Listed::append(k, suffix)),
    ];
    operation.prop_map(TxnOp::from)
}

fn txn() -> impl Strategy<Value = Txn> {
    let parts = (
        vec(comparison(), 0..3),
        vec(txn_op(), 1..4),
        vec(txn_op(), 0..4),
        any::<bool>(),
    );
    parts.prop_map(|(comparisons, then, or_else, keep_going)| Txn {
        comparisons,
        then,
        or_else,
        keep_going,
    })
}

fn value() -> impl Strategy<Value = leasehold_wire::Value> {
    (key(), version()).prop_map(|(value, version)| leasehold_wire::Value {
        value,
        version: Some(version),
    })
}

fn txn_result() -> impl Strategy<Value = TxnResult> {
    let failed = (any::<u32>(), option::of(value()));
    let failed = failed.prop_map(|(index, found)| FailedComparison { index, found });
    let error = Error::new(ErrorCode::NotAnInteger, "no number");
    let result = prop_oneof![
        value().prop_map(OpAnswer::Value),
        Just(OpAnswer::Missing(Missing {})),
        any::<u64>().prop_map(OpAnswer::Count),
        any::<i64>().prop_map(OpAnswer::Number),
        Just(OpAnswer::Error(error)),
    ];
    let result = result.prop_map(|result| OpResult {
        result: Some(result),
    });
    let parts = (
        option::of(failed),
        option::of(version()),
        vec(result, 0..4),
        any::<(bool, bool)>(),
    );
    parts.prop_map(
        |(failed, version, results, (or_else, abridged))| TxnResult {
            or_else,
            failed,
            version,
            results,
            abridged,
        },
    )
}

fn command() -> impl Strategy<Value = Command> {
    let op = prop_oneof![
        key().prop_map(Op::get),
        (key(), key()).prop_map(|(k, v)| Op::put(k, v)),
        key().prop_map(Op::delete),
        (key(), key(), option::of(version())).prop_map(|(k, v, e)| Op::cas(k, v, e)),
        vec(key(), 1..4).prop_map(Op::multi_get),
        vec((key(), key()), 1..4).prop_map(|pairs| {
            let entry = |(key, value)| KeyValue { key, value };
            Op::multi_put(pairs.into_iter().map(entry).collect())
        }),
        (key(), key(), 1..100u32).prop_map(|(from, to, limit)| Op::scan(from, to, limit)),
        txn().prop_map(Op::txn),
    ];
    (1..u64::MAX, op).prop_map(|(client, op)| Command::session(client, 7, 3, op))
}

pub(super) fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        version().prop_map(Outcome::written),
        (key(), version()).prop_map(|(value, version)| Outcome::value(value, version)),
        Just(Outcome::missing()),
        option::of(version()).prop_map(Outcome::mismatch),
        vec((key(), key(), version()), 0..3).prop_map(|found| {
            let entry = |(key, value, version)| Entry {
                key,
                value,
                version: Some(version),
            };
            Outcome::entries(found.into_iter().map(entry).collect())
        }),
        Just(Outcome::error(ErrorCode::Unavailable, "no leader")),
        txn_result().prop_map(Outcome::txn),
    ]
}

fn range() -> impl Strategy<Value = KeyRange> {
    (key(), option::of(key()))
        .prop_map(|(from, to)| match to {
            Some(to) if to < from => KeyRange::new(to, Some(from)),
            to => KeyRange::new(from, to),
        })
        .prop_map(|range| range.unwrap_or_else(KeyRange::all))
}

fn lease_set() -> impl Strategy<Value = LeaseSet> {
    let durations = [(); 4].map(|()| option::of(duration()));
    let parts = (vec((range(), strategy()), 0..4), durations, any::<bool>());
    parts.prop_map(|(strategies, spans, force)| LeaseSet {
        strategies,
        durations: Durations {
            t_lease: spans[0],
            t_guard: spans[1],
            renew: spans[2],
            t_grace: spans[3],
        },
        force,
    })
}

fn lease_answer() -> impl Strategy<Value = LeaseAnswer> {
    prop_oneof![
        (number(), any::<bool>()).prop_map(|(config, already)| {
            let config = ConfigId(config);
            Ok(InForce { config, already })
        }),
        "[a-z ]{0,20}".prop_map(|reason| Err(Refusal::Invalid(reason))),
        "[a-z ]{0,20}".prop_map(|reason| Err(Refusal::Busy(reason))),
    ]
}

fn range_change() -> impl Strategy<Value = RangeChange> {
    let parts = (
        range(),
        option::of(strategy()),
        option::of(set()),
        any::<bool>(),
    );
    parts.prop_map(|(range, strategy, defaults, clear)| RangeChange {
        range,
        strategy,
        defaults,
        clear,
    })
}

fn strategy() -> impl Strategy<Value = StrategySpec> {
    let quorum = |unlisted| StrategySpec::Quorum { unlisted };
    prop_oneof![
        Just(StrategySpec::None),
        Just(StrategySpec::Leader),
        Just(StrategySpec::All),
        Just(quorum(UnlistedHolders::Leader)),
        Just(quorum(UnlistedHolders::Nearest)),
        option::of(set()).prop_map(|holders| StrategySpec::Fixed { holders }),
        (0..=1000_u32, any::<u8>(), any::<bool>()).prop_map(|(weight, spare, prior)| {
            StrategySpec::Cost(CostSettings::from_thousandths(weight, spare, prior))
        }),
    ]
}

fn params() -> impl Strategy<Value = LeaseParams> {
    let rho = 0..=ClockBound::RHO_PPM_MAX;
    (
        [duration(), duration(), duration(), duration(), duration()],
        rho,
    )
        .prop_map(|(spans, rho_ppm)| LeaseParams {
            t_lease: spans[0],
            t_guard: spans[1],
            renew: spans[2],
            t_grace: spans[3],
            t0_cap: spans[4],
            clock: ClockBound { rho_ppm },
        })
}

fn change() -> impl Strategy<Value = ConfigChange> {
    let parts = (
        vec(range_change(), 0..4),
        vec((set(), vec(key(), 0..4)), 0..4),
        option::of(set()),
        option::of(params()),
    );
    parts.prop_map(|(ranges, keys, excluded, params)| ConfigChange {
        ranges,
        keys,
        excluded,
        params,
    })
}

/// Newest configurations, which need not fit together.
pub(super) fn config_frames() -> impl Strategy<Value = ConfigFrames> {
    let id = || number().prop_map(ConfigId);
    let policy =
        (key(), strategy(), set(), id()).prop_map(|(from, strategy, defaults, cleared)| {
            SavedPolicy {
                from,
                strategy,
                defaults,
                cleared,
            }
        });
    let policies = vec(policy, 1..4).prop_map(Arc::new);
    let frame = (id(), policies, set(), params(), vec(id(), 0..5)).prop_map(
        |(id, policies, excluded, params, oldest)| SavedFrame {
            id,
            policies,
            excluded,
            params,
            oldest,
        },
    );
    // A configuration may repeat the policies of the one before it.
    let frames = vec((frame, any::<bool>()), 0..=FRAMES_SAVED).prop_map(|drawn| {
        let mut frames: Vec<SavedFrame> = Vec::new();
        for (mut frame, repeats) in drawn {
            if let Some(before) = frames.last().filter(|_| repeats) {
                frame.policies = before.policies.clone();
            }
            frames.push(frame);
        }
        frames
    });
    (any::<bool>(), frames).prop_map(|(configured, frames)| ConfigFrames { configured, frames })
}

/// Versions of the holders of a listed key, in any order.
pub(super) fn versions() -> impl Strategy<Value = KeyVersions> {
    vec((number().prop_map(ConfigId), set()), 1..5).prop_map(|found| found.into_iter().collect())
}

pub(super) fn batch() -> impl Strategy<Value = Batch> {
    let proposed =
        (replica_id(), request(), command()).prop_map(|(origin, request, command)| Proposal {
            origin,
            request,
            command,
        });
    let parts = (number(), any::<u32>(), vec(proposed, 0..70));
    parts.prop_map(|(log_time_ms, sessions_max, commands)| Batch {
        log_time_ms,
        sessions_max,
        commands,
        ..Default::default()
    })
}

fn value_of(log: LogId) -> BoxedStrategy<Value> {
    let noop = Just(Value::Noop);
    match log {
        LogId::Commands => {
            prop_oneof![noop, batch().prop_map(|b| Value::Commands(Arc::new(b)))].boxed()
        }
        LogId::Configs => {
            prop_oneof![noop, change().prop_map(|c| Value::Config(Arc::new(c)))].boxed()
        }
    }
}

pub(super) fn log_and_value() -> impl Strategy<Value = (LogId, Value)> {
    log_id().prop_flat_map(|log| (Just(log), value_of(log)))
}

fn reported() -> impl Strategy<Value = ReportedEntry> {
    (log_and_value(), slot(), ballot()).prop_map(|((log, value), slot, ballot)| ReportedEntry {
        log,
        slot,
        ballot,
        value,
    })
}

fn news() -> impl Strategy<Value = LogNews> {
    let above = vec((1..50u64, 0..50u64), 0..5).prop_map(|steps| {
        let mut next = 0;
        let range = |(gap, length)| {
            let first = next + gap;
            next = first + length;
            (Slot(first), Slot(next))
        };
        steps.into_iter().map(range).collect()
    });
    (slot(), above, slot()).prop_map(|(commit_point, above, log_start)| LogNews {
        commit_point,
        above,
        log_start,
    })
}

fn accept() -> impl Strategy<Value = Accept> {
    let rest = (
        ballot(),
        slot(),
        proptest::option::of(set()),
        news(),
        slot(),
        vec(any::<u64>(), 2),
    );
    (log_and_value(), rest).prop_map(
        |((log, value), (ballot, slot, vote, news, last_multi, mut infallible))| {
            infallible.truncate(value.commands().len().div_ceil(64));
            Accept {
                ballot,
                log,
                slot,
                value,
                vote,
                news,
                last_multi,
                infallible: infallible.into(),
            }
        },
    )
}

fn lease() -> impl Strategy<Value = LeaseMessage> {
    let known = || number().prop_map(ConfigId);
    let promise = (
        [number(), number(), number()],
        [duration(), duration(), duration()],
        slot(),
    );
    prop_oneof![
        number().prop_map(|sequence| LeaseMessage::Guard { sequence }),
        (number(), known())
            .prop_map(|(sequence, known)| LeaseMessage::GuardAck { sequence, known }),
        promise.prop_map(|(numbers, spans, highest_accepted)| {
            LeaseMessage::Promise(Promise {
                sequence: numbers[0],
                base: numbers[1],
                t0: spans[0],
                t_guard: spans[1],
                t_lease: spans[2],
                config: ConfigId(numbers[2]),
                highest_accepted,
            })
        }),
        (number(), known())
            .prop_map(|(sequence, known)| LeaseMessage::PromiseAck { sequence, known }),
        number().prop_map(|up_to| LeaseMessage::Relinquish { up_to }),
        number().prop_map(|recalls| LeaseMessage::Leave { recalls }),
    ]
}

fn paxos() -> impl Strategy<Value = Message> {
    let commits = || (slot(), slot()).prop_map(|(a, b)| [a, b]);
    let starts = vec((log_id(), ballot(), slot()), 0..4);
    let entries = log_id().prop_flat_map(|log| {
        let entries = btree_map(0..NUMBER_MAX, value_of(log), 0..4);
        (Just(log), entries)
    });
    prop_oneof![
        (ballot(), commits()).prop_map(|(ballot, commits)| Message::Prepare {
            ballot,
            commits: commits.into()
        }),
        any::<u64>().prop_map(|life| Message::Join { life }),
        any::<u64>().prop_map(|life| Message::Joined { life }),
        (
            ballot(),
            any::<u64>(),
            0..5u32,
            commits(),
            vec(reported(), 0..4),
            starts
        )
            .prop_map(|(ballot, answer, part, commits, entries, log_starts)| {
                Message::Prepared {
                    ballot,
                    answer,
                    part,
                    parts: 5,
                    commits: commits.into(),
                    entries,
                    log_starts,
                }
            }),
        accept().prop_map(Message::Accept),
        (ballot(), log_id(), vec((slot(), set()), 0..5)).prop_map(|(ballot, log, votes)| {
            let votes = votes.into();
            Message::Accepted { ballot, log, votes }
        }),
        ballot().prop_map(|promised| Message::Rejected { promised }),
        (ballot(), any::<u64>(), news(), news()).prop_map(|(ballot, probe, a, b)| {
            let logs = [a, b];
            Message::Heartbeat {
                ballot,
                probe,
                logs: logs.into(),
            }
        }),
        (ballot(), any::<u64>(), set()).prop_map(|(ballot, probe, suspects)| {
            Message::HeartbeatAck {
                ballot,
                probe,
                suspects,
            }
        }),
        (log_id(), slot(), slot()).prop_map(|(log, a, b)| Message::Fetch {
            log,
            from: a.min(b),
            to: a.max(b),
        }),
        entries.prop_map(|(log, entries)| Message::Fetched {
            log,
            entries: entries.into_iter().map(|(at, v)| (Slot(at), v)).collect(),
        }),
    ]
}

fn the_rest() -> impl Strategy<Value = Message> {
    let answer = (request(), option::of((outcome(), Just(Path::Forwarded))))
        .prop_map(|(request, outcome)| ReadAnswer { request, outcome });
    let delta = (key(), any::<u32>(), any::<u32>()).prop_map(|(key, reads, writes)| Delta {
        key,
        reads,
        writes,
    });
    let demand = (
        vec(delta, 0..4),
        any::<(u32, u32)>(),
        vec(any::<u32>(), 0..6),
    )
        .prop_map(
            |(deltas, (rare_reads, rare_writes), rtts_us)| DemandReport {
                report: TallyReport {
                    deltas,
                    rare_reads,
                    rare_writes,
                },
                rtts_us,
            },
        );
    prop_oneof![
        (any::<(u64, u32)>(), slot(), slot()).prop_map(|((stamp, cost_ms), commands, configs)| {
            Message::Ping {
                stamp,
                cost_ms,
                flushed: [commands, configs].into(),
            }
        }),
        any::<u64>().prop_map(|stamp| Message::Pong { stamp }),
        vec((request(), command()), 0..4).prop_map(|commands| Message::Forward { commands }),
        vec((request(), outcome()), 0..4).prop_map(|answers| Message::Answered { answers }),
        (any::<bool>(), vec((request(), key()), 0..4))
            .prop_map(|(read_index, reads)| Message::ForwardRead { read_index, reads }),
        vec(answer, 0..4).prop_map(Message::ReadAnswers),
        lease().prop_map(Message::Lease),
        demand.prop_map(Message::Demand),
        Just(Message::TransferRequest),
        (ballot(), any::<bool>()).prop_map(|(ballot, by_operator)| Message::Transfer {
            ballot,
            by_operator,
        }),
        (ballot(), any::<u64>()).prop_map(|(ballot, ask)| Message::PreVote { ballot, ask }),
        (ballot(), any::<u64>()).prop_map(|(ballot, ask)| Message::PreVoted { ballot, ask }),
        replica_id().prop_map(|to| Message::Move { to }),
        (number(), lease_set()).prop_map(|(ask, set)| Message::SetLease { ask, set }),
        (number(), lease_answer()).prop_map(|(ask, answer)| Message::LeaseAnswer { ask, answer }),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![paxos(), the_rest()]
}

pub(super) fn envelope() -> impl Strategy<Value = Envelope> {
    (replica_id(), number(), number(), message()).prop_map(|(from, mine, theirs, message)| {
        Envelope {
            from,
            from_incarnation: Incarnation(mine),
            to_incarnation: Incarnation(theirs),
            message,
        }
    })
}
