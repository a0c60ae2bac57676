//! Everything comes back as it was; nothing that arrives can do harm.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use client::wire::command::Op;
use client::wire::{Command, Entry, ErrorCode, FRAME_BYTES_MAX, KeyValue, Outcome, Path, Version};
use leases::demand::Delta;
use leases::{
    Ballot, ClockBound, ConfigChange, ConfigId, Incarnation, KeyRange, LeaseMessage, LeaseParams,
    Promise, ReplicaId, ReplicaSet, Slot, StrategySpec, Unlisted,
};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::replica::action::{SessionImage, Stored};
use crate::replica::message::{
    Accept, Batch, LogId, LogNews, Message, Proposed, ReadAnswer, Reported, RequestId, Value,
};

fn number() -> impl Strategy<Value = u64> {
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

fn ballot() -> impl Strategy<Value = Ballot> {
    (number(), replica_id()).prop_map(|(round, replica)| Ballot { round, replica })
}

fn span() -> impl Strategy<Value = Duration> {
    number().prop_map(Duration::from_nanos)
}

fn key() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 1..20).prop_map(Bytes::from)
}

fn log_id() -> impl Strategy<Value = LogId> {
    prop_oneof![Just(LogId::Commands), Just(LogId::Configs)]
}

fn request() -> impl Strategy<Value = RequestId> {
    any::<u64>().prop_map(RequestId)
}

fn version() -> impl Strategy<Value = Version> {
    (number(), any::<u32>()).prop_map(|(slot, index)| Version { slot, index })
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
    ];
    (1..u64::MAX, op).prop_map(|(client, op)| Command::session(client, 7, 3, op))
}

fn outcome() -> impl Strategy<Value = Outcome> {
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
    ]
}

fn ranges() -> impl Strategy<Value = Vec<KeyRange>> {
    btree_map(key(), set(), 0..4).prop_map(|ranges| {
        let range = |(from, holders)| KeyRange { from, holders };
        ranges.into_iter().map(range).collect()
    })
}

fn strategy() -> impl Strategy<Value = StrategySpec> {
    let quorum = |unlisted| StrategySpec::Quorum { unlisted };
    prop_oneof![
        Just(StrategySpec::None),
        Just(StrategySpec::Leader),
        Just(StrategySpec::All),
        Just(quorum(Unlisted::Leader)),
        Just(quorum(Unlisted::Nearest)),
        ranges().prop_map(|ranges| StrategySpec::Fixed { ranges }),
    ]
}

fn params() -> impl Strategy<Value = LeaseParams> {
    let rho = 0..=ClockBound::RHO_PPM_MAX;
    ([span(), span(), span(), span(), span()], rho).prop_map(|(spans, rho_ppm)| LeaseParams {
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
        any::<bool>(),
        option::of(set()),
        option::of(ranges()),
        vec((set(), vec(key(), 0..4)), 0..4),
        option::of(set()),
        option::of(strategy()),
        option::of(params()),
    );
    parts.prop_map(
        |(clear, defaults, ranges, keys, excluded, strategy, params)| ConfigChange {
            clear,
            defaults,
            ranges,
            keys,
            excluded,
            strategy,
            params,
        },
    )
}

fn batch() -> impl Strategy<Value = Batch> {
    let proposed =
        (replica_id(), request(), command()).prop_map(|(origin, request, command)| Proposed {
            origin,
            request,
            command,
        });
    (number(), vec(proposed, 0..70)).prop_map(|(log_time_ms, commands)| Batch {
        log_time_ms,
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

fn log_and_value() -> impl Strategy<Value = (LogId, Value)> {
    log_id().prop_flat_map(|log| (Just(log), value_of(log)))
}

fn reported() -> impl Strategy<Value = Reported> {
    (log_and_value(), slot(), ballot()).prop_map(|((log, value), slot, ballot)| Reported {
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
        set(),
        news(),
        slot(),
        vec(any::<u64>(), 2),
    );
    (log_and_value(), rest).prop_map(
        |((log, value), (ballot, slot, tag, news, last_multi, mut sure))| {
            sure.truncate(value.commands().len().div_ceil(64));
            Accept {
                ballot,
                log,
                slot,
                value,
                tag,
                news,
                last_multi,
                sure: sure.into(),
            }
        },
    )
}

fn lease() -> impl Strategy<Value = LeaseMessage> {
    let known = || number().prop_map(ConfigId);
    let promise = (
        [number(), number(), number()],
        [span(), span(), span()],
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
        (ballot(), commits()).prop_map(|(ballot, commits)| Message::Prepare { ballot, commits }),
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
                    commits,
                    entries,
                    log_starts,
                }
            }),
        accept().prop_map(Message::Accept),
        (ballot(), log_id(), vec((slot(), set()), 0..5))
            .prop_map(|(ballot, log, votes)| Message::Accepted { ballot, log, votes }),
        ballot().prop_map(|promised| Message::Rejected { promised }),
        (ballot(), any::<u64>(), news(), news()).prop_map(|(ballot, probe, a, b)| {
            let logs = [a, b];
            Message::Heartbeat {
                ballot,
                probe,
                logs,
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
    prop_oneof![
        any::<u64>().prop_map(|stamp| Message::Ping { stamp }),
        any::<u64>().prop_map(|stamp| Message::Pong { stamp }),
        vec((request(), command()), 0..4).prop_map(|commands| Message::Forward { commands }),
        vec((request(), outcome()), 0..4).prop_map(|answers| Message::Answered { answers }),
        (any::<bool>(), vec((request(), key()), 0..4))
            .prop_map(|(read_index, reads)| Message::ForwardRead { read_index, reads }),
        vec(answer, 0..4).prop_map(Message::ReadAnswers),
        lease().prop_map(Message::Lease),
        vec(delta, 0..4).prop_map(Message::Demand),
        Just(Message::TransferRequest),
        ballot().prop_map(|ballot| Message::Transfer { ballot }),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![paxos(), the_rest()]
}

fn envelope() -> impl Strategy<Value = Envelope> {
    (replica_id(), number(), number(), message()).prop_map(|(from, mine, theirs, message)| {
        Envelope {
            from,
            from_incarnation: Incarnation(mine),
            to_incarnation: Incarnation(theirs),
            message,
        }
    })
}

fn encoded(envelope: Envelope) -> Bytes {
    let mut buffer = BytesMut::new();
    encode_envelope(envelope, &mut buffer).unwrap();
    let frame = client::wire::split_frame(&mut buffer).unwrap();
    assert!(buffer.is_empty());
    frame.unwrap()
}

fn on_disk(encode: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut out = Vec::new();
    encode(&mut out);
    out.into()
}

/// An envelope whose message is given in its wire form.
fn decode_wire(message: proto::envelope::Message) -> Result<Envelope, CodecError> {
    let envelope = proto::Envelope {
        message: Some(message),
        ..Default::default()
    };
    decode_envelope(envelope.encode_to_vec().into())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_message_comes_back(envelope in envelope()) {
        // The clone shares the batches, and with them their bytes once made.
        let sent = envelope.clone();
        let received = decode_envelope(encoded(envelope)).unwrap();
        prop_assert_eq!(format!("{received:?}"), format!("{sent:?}"));
    }

    #[test]
    fn entries_come_back(ballot in ballot(), (_, value) in log_and_value()) {
        let bytes = on_disk(|out| encode_entry(ballot, &value, out));
        prop_assert_eq!(decode_entry(bytes).unwrap(), (ballot, value));
    }

    #[test]
    fn state_comes_back(
        value in key(),
        versions in (version(), version()),
        marks in (any::<u64>(), number()),
        results in vec((any::<u64>(), outcome()), 0..4),
    ) {
        let stored = Stored { value, version: versions.0, created: versions.1 };
        let bytes = on_disk(|out| encode_stored(&stored, out));
        prop_assert_eq!(decode_stored(bytes).unwrap(), stored);
        let session = SessionImage { acked_below: marks.0, active_ms: marks.1, results };
        let bytes = on_disk(|out| encode_session(&session, out));
        prop_assert_eq!(decode_session(bytes).unwrap(), session);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..300)) {
        let bytes = Bytes::from(bytes);
        let _ = decode_envelope(bytes.clone());
        let _ = decode_entry(bytes.clone());
        let _ = decode_stored(bytes.clone());
        let _ = decode_session(bytes.clone());
        let _ = decode_position(bytes);
    }

    /// Nearly right bytes reach further into the decoder than arbitrary ones.
    #[test]
    fn damaged_messages_never_panic(
        envelope in envelope(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = encoded(envelope).to_vec();
        for (at, byte) in damage {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
        }
        let _ = decode_envelope(bytes.into());
    }

    #[test]
    fn a_batch_by_hand_is_a_batch_by_the_book(batch in batch()) {
        let bytes = batch::encoded(&batch);
        let book = proto::Batch::decode(bytes.clone()).unwrap();
        prop_assert_eq!(book.commands.len(), batch.commands.len());
        let again = batch::decode(book.encode_to_vec().into()).unwrap();
        prop_assert_eq!(again, batch);
    }
}

#[test]
fn what_came_encoded_is_passed_on_as_it_came() {
    let batch = Batch {
        commands: vec![Proposed {
            origin: ReplicaId(1),
            request: RequestId(2),
            command: Command::session(1, 1, 1, Op::put("key", "value")),
        }],
        ..Default::default()
    };
    let bytes = batch::encoded(&batch);
    let decoded = batch::decode(bytes.clone()).unwrap();
    assert_eq!(decoded.encoded.get().unwrap().as_ptr(), bytes.as_ptr());
    let Some(Op::Put(put)) = &decoded.commands[0].command.op else {
        panic!("another operation");
    };
    let inside = bytes.as_ptr_range();
    assert!(
        inside.contains(&put.value.as_ptr()),
        "values are not copied"
    );
}

#[test]
fn unknown_fields_pass() {
    let mut bytes = on_disk(|out| encode_entry(Ballot::ZERO, &Value::Noop, out)).to_vec();
    prost::encoding::string::encode(1000, &"of a later version".to_owned(), &mut bytes);
    let decoded = decode_entry(bytes.into()).unwrap();
    assert_eq!(decoded, (Ballot::ZERO, Value::Noop));

    let mut bytes = batch::encoded(&Batch::default()).to_vec();
    prost::encoding::uint64::encode(1000, &7, &mut bytes);
    assert!(batch::decode(bytes.into()).unwrap().commands.is_empty());
}

#[test]
fn an_error_names_the_field() {
    let ballot = Some(proto::Ballot {
        round: 1,
        replica: 64,
    });
    let cases: [(proto::envelope::Message, &str); 5] = [
        (
            proto::envelope::Message::Rejected(proto::Rejected { promised: ballot }),
            "rejected.promised is 64, the limit is 63",
        ),
        (
            proto::envelope::Message::Transfer(proto::Transfer { ballot: None }),
            "transfer.ballot is missing",
        ),
        (
            proto::envelope::Message::Fetch(proto::Fetch {
                log: 0,
                from: 3,
                to: 2,
            }),
            "fetch.from: above fetch.to",
        ),
        (
            proto::envelope::Message::Fetch(proto::Fetch {
                log: 2,
                from: 1,
                to: 2,
            }),
            "fetch.log is 2, which this version does not know",
        ),
        (
            proto::envelope::Message::Fetch(proto::Fetch {
                log: 0,
                from: 1,
                to: u64::MAX,
            }),
            "fetch.to is 18446744073709551615, the limit is 72057594037927936",
        ),
    ];
    for (message, expected) in cases {
        assert_eq!(decode_wire(message).unwrap_err().to_string(), expected);
    }
}

#[test]
fn a_batch_of_too_many_commands_is_refused_before_it_is_held() {
    let mut command = Vec::new();
    let proposed = proto::Proposed {
        command: Some(Op::get("k").into()),
        ..Default::default()
    };
    prost::encoding::message::encode(2, &proposed, &mut command);
    let bytes = command.repeat(BATCH_COMMANDS_MAX + 1);
    let error = batch::decode(bytes.into()).unwrap_err();
    assert!(matches!(
        error,
        CodecError::OutOfRange {
            field: "batch.commands",
            ..
        }
    ));
}

#[test]
fn absent_sure_bits_are_not_sure() {
    let batch = Batch {
        commands: vec![Proposed {
            origin: ReplicaId(0),
            request: RequestId(1),
            command: Op::get("k").into(),
        }],
        ..Default::default()
    };
    let accept = proto::Accept {
        ballot: Some(proto::Ballot::default()),
        value: Some(value::encode(&Value::Commands(Arc::new(batch)))),
        ..Default::default()
    };
    let decoded = decode_wire(proto::envelope::Message::Accept(accept)).unwrap();
    let Message::Accept(accept) = decoded.message else {
        panic!("another message");
    };
    assert_eq!(*accept.sure, [0]);
}

#[test]
fn a_forwarded_command_is_held_to_the_clients_rules() {
    let forward = proto::Forward {
        commands: vec![proto::Forwarded {
            request: 1,
            command: Some(Op::get("").into()),
        }],
    };
    assert!(decode_wire(proto::envelope::Message::Forward(forward)).is_err());
}

#[test]
fn a_message_above_the_frame_limit_is_not_sent() {
    let deltas = vec![Delta {
        key: vec![0; FRAME_BYTES_MAX].into(),
        reads: 0,
        writes: 0,
    }];
    let envelope = Envelope {
        from: ReplicaId(0),
        from_incarnation: Incarnation(1),
        to_incarnation: Incarnation(1),
        message: Message::Demand(deltas),
    };
    let mut buffer = BytesMut::new();
    let refused = encode_envelope(envelope, &mut buffer);
    assert!(matches!(refused, Err(CodecError::TooLong { .. })));
    assert!(buffer.is_empty());
}
