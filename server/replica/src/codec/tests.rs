//! Tests that decoding returns what was encoded, and that no received bytes cause a panic.

mod any;

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use leasehold_leases::demand::{Delta, TallyReport};
use leasehold_leases::{Ballot, Incarnation, LeaseParams, ReplicaId, StrategySpec};
use leasehold_wire::command::Op;
use leasehold_wire::{Command, FRAME_BYTES_MAX};
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message as _;

use self::any::{
    ballot, batch, config_frames, envelope, key, log_and_value, number, outcome, version, versions,
};
use super::check::{put_ballot, put_log};
use super::*;
use crate::action::{SessionImage, StoredValue};
use crate::message::{Batch, DemandReport, LogId, Message, Proposal, RequestId, Value};

fn encoded(envelope: Envelope) -> Bytes {
    let mut buffer = BytesMut::new();
    encode_envelope(envelope, &mut buffer).unwrap();
    let frame = leasehold_wire::split_frame(&mut buffer).unwrap();
    assert!(buffer.is_empty());
    frame.unwrap()
}

fn on_disk(encode: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut out = Vec::new();
    encode(&mut out);
    out.into()
}

/// Decodes an envelope with the given message in wire form.
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
        // The clone shares its batches with the original, and with them their encoded bytes.
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
        let stored = StoredValue { value, version: versions.0, created: versions.1 };
        let named = StoredValue { value: Bytes::new(), ..stored.clone() };
        for (staged, expected) in [(true, named), (false, stored.clone())] {
            let bytes = on_disk(|out| encode_stored(&stored, staged, out));
            prop_assert_eq!(decode_stored(bytes).unwrap(), (expected, staged));
        }
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
        let _ = decode_position(bytes.clone());
        let _ = decode_frames(bytes.clone());
        let _ = decode_listed(bytes);
    }

    #[test]
    fn checkpoints_of_configurations_come_back(saved in config_frames(), versions in versions()) {
        let bytes = on_disk(|out| encode_frames(&saved, out));
        prop_assert_eq!(decode_frames(bytes).unwrap(), saved);
        let bytes = on_disk(|out| encode_listed(&versions, out));
        prop_assert_eq!(decode_listed(bytes).unwrap(), versions);
    }

    /// Nearly valid bytes reach more parts of the decoder than arbitrary bytes do.
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
        prop_assert_eq!(book.sessions_max, batch.sessions_max);
        let again = batch::decode(book.encode_to_vec().into()).unwrap();
        prop_assert_eq!(again, batch);
    }
}

#[test]
fn what_came_encoded_is_passed_on_as_it_came() {
    let batch = Batch {
        commands: vec![Proposal {
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
            proto::envelope::Message::Transfer(proto::Transfer {
                ballot: None,
                by_operator: false,
            }),
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
        commands: vec![Proposal {
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
    assert_eq!(*accept.infallible, [0]);
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
        message: Message::Demand(DemandReport {
            report: TallyReport {
                deltas,
                ..TallyReport::default()
            },
            ..DemandReport::default()
        }),
    };
    let mut buffer = BytesMut::new();
    let refused = encode_envelope(envelope, &mut buffer);
    assert!(matches!(refused, Err(CodecError::TooLong { .. })));
    assert!(buffer.is_empty());
}

#[test]
fn a_log_holds_values_of_its_own_kind() {
    let slot = |value: &Value| proto::SlotValue {
        slot: 7,
        value: Some(value::encode(value)),
    };
    let entry = |log, value: &Value| proto::Reported {
        log,
        slot: 7,
        ballot: Some(put_ballot(Ballot::ZERO)),
        value: Some(value::encode(value)),
    };
    let (commands, configs) = (put_log(LogId::Commands), put_log(LogId::Configs));
    let batch = Value::Commands(Default::default());
    let config = Value::Config(Default::default());
    for (log, value, fits) in [
        (commands, &batch, true),
        (configs, &config, true),
        (commands, &config, false),
        (configs, &batch, false),
        (configs, &Value::Noop, true),
    ] {
        let fetched = proto::envelope::Message::Fetched(proto::Fetched {
            log,
            entries: vec![slot(value)],
        });
        let prepared = proto::envelope::Message::Prepared(proto::Prepared {
            ballot: Some(put_ballot(Ballot::ZERO)),
            parts: 1,
            entries: vec![entry(log, value)],
            ..Default::default()
        });
        assert_eq!(message::decode(fetched).is_ok(), fits);
        assert_eq!(message::decode(prepared).is_ok(), fits);
    }
}

/// A row of the disk may be damaged in a way that its checksum does not detect.
#[test]
fn checkpoints_of_configurations_beyond_the_bounds_are_refused() {
    let frame = |ranges: usize| proto::ConfigFrame {
        policies: vec![
            proto::RangePolicy {
                strategy: Some(value::put_strategy(&StrategySpec::All)),
                ..Default::default()
            };
            ranges
        ],
        params: Some(value::put_params(&LeaseParams::default())),
        ..Default::default()
    };
    let decoded = |frames: Vec<proto::ConfigFrame>| {
        let configured = true;
        decode_frames(
            proto::ConfigFrames { configured, frames }
                .encode_to_vec()
                .into(),
        )
    };
    assert!(decoded(vec![frame(1024), frame(0), frame(0)]).is_ok());
    assert!(decoded(vec![frame(1); 4]).is_err(), "too many");
    assert!(decoded(vec![frame(1025)]).is_err(), "too many ranges");
    assert!(decoded(vec![frame(0)]).is_err(), "no ranges");
    let late = proto::ConfigFrame {
        id: NUMBER_MAX + 1,
        ..frame(1)
    };
    assert!(decoded(vec![late]).is_err());
    assert!(decode_listed(Bytes::new()).is_err(), "no holders");
}

/// After a restart, a replica can read everything that it may have written, including times that a
/// faulty member reported to it.
#[test]
fn sessions_open_up_to_a_step_after_the_last_log_time() {
    let mut encoded = Vec::new();
    for (ahead_ms, is_known) in [(0, true), (1000, true), (1001, false)] {
        let position = Position {
            log_time_ms: super::check::NUMBER_MAX,
            opens_from_ms: super::check::NUMBER_MAX + ahead_ms,
            ..Position::default()
        };
        encoded.clear();
        encode_position(&position, &mut encoded);
        let decoded = decode_position(encoded.clone().into()).ok();
        assert_eq!(decoded, is_known.then_some(position), "{ahead_ms} ms");
    }
}
