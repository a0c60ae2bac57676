//! Tests of execution: sessions, checkpoints, and the work of merges and transactions.

use super::*;

fn limits() -> SessionLimits {
    SessionLimits {
        ttl: std::time::Duration::from_secs(1),
        stay: std::time::Duration::ZERO,
        ..SessionLimits::default()
    }
}

fn put(client: u64, sequence: u64, value: &'static str) -> Command {
    Command {
        client,
        sequence,
        acked_below: sequence,
        op: Some(Op::put("k", value)),
        opened_ms: 0,
    }
}

#[test]
fn a_command_that_is_in_the_log_twice_is_executed_once() {
    let mut kv = Kv::new(&limits());
    let first = kv.execute(Slot(1), 0, &put(1, 1, "mine"));
    kv.execute(Slot(2), 0, &put(2, 1, "theirs"));
    assert_eq!(kv.execute(Slot(3), 0, &put(1, 1, "mine")), first);
    let found = kv.get(b"k").map(|stored| stored.value.clone());
    assert_eq!(found.as_deref(), Some(b"theirs".as_slice()));
}

#[test]
fn a_checkpoint_holds_each_key_once_as_it_is() {
    let mut kv = Kv::new(&limits());
    let mut write = |sequence: u64, op| {
        kv.execute(
            Slot(sequence),
            0,
            &Command::session(1, sequence, sequence, op),
        );
    };
    write(1, Op::put("b", "old"));
    write(2, Op::put("a", "kept"));
    write(3, Op::put("c", "gone"));
    write(4, Op::delete("c"));
    write(5, Op::put("b", "new"));
    let value = |stored: Option<StoredValue>| stored.map(|stored| stored.value);
    let taken = kv.take_dirty().into_iter();
    let taken: Vec<_> = taken.map(|(key, stored)| (key, value(stored))).collect();
    let now = |value: &'static str| Some(Bytes::from(value));
    assert_eq!(
        taken,
        [("b", now("new")), ("a", now("kept")), ("c", None)]
            .map(|(key, value)| (Key::from(key), value))
    );
    assert!(kv.take_dirty().is_empty());
}

const LONG: &str = match str::from_utf8(&[b'v'; 300_000]) {
    Ok(long) => long,
    Err(_) => unreachable!(),
};

/// The batch of changes still refers to the old record, so the first merge after the batch needs
/// new memory.
#[test]
fn the_first_merge_into_a_long_record_after_a_batch_of_changes_is_more_work() {
    let mut kv = Kv::new(&limits());
    kv.execute(Slot(1), 0, &put(2, 1, LONG));
    let mut sequence = 1;
    let mut merge = |kv: &mut Kv, key: &'static str, bytes: usize| {
        sequence += 1;
        let field = leasehold_wire::Field {
            name: "f".into(),
            value: vec![b'v'; bytes].into(),
        };
        let op = Op::put_fields(key, vec![field]);
        let command = Command::session(1, sequence, sequence, op);
        let ahead: usize = kv.merge_work_ahead(&command).iter().sum();
        kv.execute(Slot(sequence), 0, &command);
        (ahead, kv.take_merge_work())
    };
    merge(&mut kv, "long", 200_000);
    merge(&mut kv, "short", 1000);
    let again = merge(&mut kv, "long", 200_000);
    let short = merge(&mut kv, "short", 1000);
    kv.take_dirty();
    let first = merge(&mut kv, "long", 200_000);
    assert!(first.0 > 5 * again.0 && first.1 > 5 * again.1);
    assert_eq!(merge(&mut kv, "long", 200_000), again);
    assert_eq!(merge(&mut kv, "short", 1000), short);
    // A merge into a value that is too long is refused without any work.
    kv.take_dirty();
    assert_eq!(merge(&mut kv, "k", 1000), (0, 0));
}

#[test]
fn a_checkpoint_restores_state_and_sessions() {
    let mut kv = Kv::new(&limits());
    kv.begin(5, 0);
    let first = kv.execute(Slot(1), 3, &put(1, 1, "mine"));
    let image = StateChanges {
        log_time_ms: kv.log_time_ms,
        entries: kv.take_dirty(),
        sessions: kv.sessions.take_dirty(),
        ..StateChanges::default()
    };
    let mut restored = Kv::restore(&limits(), image);
    assert_eq!(restored.digest(), kv.digest());
    assert_eq!(restored.execute(Slot(2), 0, &put(1, 1, "mine")), first);
    assert!(
        restored.take_dirty().is_empty(),
        "nothing was written again"
    );
}

/// Executes transactions that rewrite a value several times. The estimate must be at least the
/// work, and not much more, even if the transaction itself writes the value.
#[test]
fn the_work_of_a_transaction_is_known_before() {
    const LARGE: usize = RECORD_BYTES_MAX - 1000;
    let large = || Bytes::from(vec![b'v'; LARGE]);
    let record = |fields: usize| Bytes::from([0x0A, 0].repeat(fields));
    let put = |key: &'static str, value: Bytes| {
        let key = key.into();
        Operation::Put(leasehold_wire::Put { key, value })
    };
    let append = |key: &'static str| Operation::append(key, "v");
    let field = leasehold_wire::Field {
        name: "f".into(),
        value: "v".into(),
    };
    let put_fields = || {
        Operation::PutFields(leasehold_wire::PutFields {
            key: "record".into(),
            fields: vec![field.clone()],
        })
    };
    let remove = || Operation::delete_fields("record", vec!["f".into()]);
    let get = || {
        let key = "large".into();
        Operation::Get(leasehold_wire::Get { key })
    };
    for (operations, factor) in [
        (vec![append("large"); 4], 4),
        (vec![append("large"), append("other"), append("large")], 4),
        (vec![append("absent"); 3], 4),
        (
            [vec![put("absent", large())], vec![append("absent"); 4]].concat(),
            4,
        ),
        (
            [vec![put("short", large())], vec![append("short"); 4]].concat(),
            4,
        ),
        // The estimate includes a rewrite of the old value, too.
        (
            [vec![put("large", large())], vec![append("large"); 4]].concat(),
            5,
        ),
        // The answer keeps each value that is replaced.
        (
            [[get(), append("large")], [get(), append("large")]].concat(),
            4,
        ),
        (vec![put_fields(), remove(), put_fields()], 4),
        (
            vec![
                put("record", record(900)),
                put_fields(),
                remove(),
                put_fields(),
            ],
            4,
        ),
    ] {
        let mut kv = Kv::new(&limits());
        for (number, key) in (1..).zip(["large", "other", "record", "short"]) {
            let value = match key {
                "record" => record(30),
                "short" => "v".into(),
                _ => large(),
            };
            kv.execute(
                Slot(number),
                0,
                &Command::session(number, 1, 1, Op::put(key, value)),
            );
        }
        kv.take_dirty();
        let then = operations.iter().cloned().map(Into::into).collect();
        let txn = Txn {
            then,
            ..Txn::default()
        };
        let command = Command::session(9, 1, 1, Op::txn(txn));
        let ahead: usize = kv.merge_work_ahead(&command).iter().sum();
        let outcome = kv.execute(Slot(9), 0, &command);
        assert!(matches!(
            outcome.result,
            Some(leasehold_wire::outcome::Result::Txn(_))
        ));
        let work = kv.take_merge_work();
        let shown = format!("{} operations: {ahead} for {work}", operations.len());
        assert!(
            ahead + 100 >= work && ahead <= factor * work + 1000,
            "{shown}"
        );
    }
}

/// A transaction that would rewrite more than 1 MiB of stored values changes nothing. Values that
/// the transaction itself writes count, too.
#[test]
fn a_transaction_rewrites_a_limited_number_of_bytes() {
    const LARGE: usize = 250_000;
    let large = || Bytes::from(vec![b'v'; LARGE]);
    let append = |key: &str| Operation::append(key.to_owned(), "v");
    let put = || {
        let (key, value) = ("new".into(), large());
        Operation::Put(leasehold_wire::Put { key, value })
    };
    let all = |keys: &[&str]| -> Vec<Operation> { keys.iter().map(|key| append(key)).collect() };
    let most = all(&["a", "b", "c", "d"]);
    let small = all(&["small"; 12]);
    for (operations, is_refused) in [
        ([small.clone(), most.clone()].concat(), false),
        ([most.clone(), all(&["e"])].concat(), true),
        ([vec![put()], all(&["new", "a", "b", "c"])].concat(), false),
        ([vec![put()], all(&["e", "new", "b", "c"])].concat(), false),
        (
            [vec![put()], all(&["new", "new", "a", "b", "c"])].concat(),
            true,
        ),
        (all(&["a", "a", "a", "a", "a"]), true),
    ] {
        let mut kv = Kv::new(&limits());
        for (number, key) in (1..).zip(["a", "b", "c", "d", "e", "small"]) {
            let value = if key == "small" { "v".into() } else { large() };
            let command = Command::session(number, 1, 1, Op::put(key, value));
            kv.execute(Slot(number), 0, &command);
        }
        let txn = |keep_going| Txn {
            then: operations.iter().cloned().map(Into::into).collect(),
            keep_going,
            ..Txn::default()
        };
        let before = kv.digest();
        let command = Command::session(9, 1, 1, Op::txn(txn(false)));
        let ahead: usize = kv.merge_work_ahead(&command).iter().sum();
        let outcome = kv.execute(Slot(9), 0, &command);
        assert!(ahead + 100 >= kv.take_merge_work(), "{ahead}");
        let Some(leasehold_wire::outcome::Result::Error(error)) = outcome.result else {
            assert!(!is_refused && kv.digest() != before);
            continue;
        };
        assert!(is_refused && kv.digest() == before, "{}", error.message);
        let last = operations.len() - 1;
        let expected = format!("txn.then[{last}]: append: the transaction would rewrite more than");
        assert!(error.message.starts_with(&expected), "{}", error.message);
        executed(&mut kv, 10, txn(true));
        assert_ne!(kv.digest(), before, "the other operations are executed");
    }
}
fn executed(kv: &mut Kv, slot: u64, txn: Txn) -> Outcome {
    let command = Command::session(slot, 1, 1, Op::txn(txn));
    kv.execute(Slot(slot), 0, &command)
}

/// The answer has the value of a failed comparison, values that are read, and an error for each
/// of a thousand other operations.
#[test]
fn the_answer_to_a_transaction_fits_into_a_frame() {
    const LARGE: usize = leasehold_wire::VALUE_BYTES_MAX;
    let mut kv = Kv::new(&limits());
    for (number, bytes) in (1..).zip([LARGE, LARGE, LARGE, 950_000, 1000]) {
        let op = Op::put(format!("k{number}"), vec![b'v'; bytes]);
        kv.execute(Slot(number), 0, &Command::session(number, 1, 1, op));
    }
    let get = |number: usize| {
        let key = format!("k{number}").into();
        Operation::Get(leasehold_wire::Get { key })
    };
    let gets = [2, 3, 4, 5, 5, 4].map(get);
    let rest = vec![Operation::add("k1", 1); leasehold_wire::COMMAND_PARTS_MAX - 7];
    let comparison = leasehold_wire::Comparison {
        key: "k1".into(),
        condition: Some(leasehold_wire::comparison::Condition::Less("".into())),
    };
    let txn = Txn {
        comparisons: vec![comparison],
        or_else: gets.into_iter().chain(rest).map(Into::into).collect(),
        keep_going: true,
        ..Txn::default()
    };
    let outcome = executed(&mut kv, 9, txn.clone());
    let bytes = outcome.encoded_len();
    assert!(bytes < leasehold_wire::FRAME_BYTES_MAX - 1000, "{bytes}");
    assert!(bytes > 3 * LARGE + 100_000, "{bytes}");
    let Some(leasehold_wire::outcome::Result::Txn(result)) = outcome.result else {
        panic!("it keeps going");
    };
    let found = |result: &leasehold_wire::OpResult| match &result.result {
        Some(leasehold_wire::op_result::Result::Value(value)) => value.value.len(),
        Some(leasehold_wire::op_result::Result::Error(_)) => 0,
        other => panic!("{other:?}"),
    };
    let found: Vec<usize> = result.results.iter().map(found).collect();
    assert_eq!(found[..7], [LARGE, LARGE, 0, 1000, 1000, 0, 0]);
    let stops = Txn {
        keep_going: false,
        ..txn
    };
    let Some(leasehold_wire::outcome::Result::Error(error)) = executed(&mut kv, 10, stops).result
    else {
        panic!("it stops");
    };
    assert!(
        error.message.starts_with("txn.or_else[5]: get: the values"),
        "{error:?}"
    );
}

#[test]
fn only_what_add_writes_itself_is_a_number() {
    let mut kv = Kv::new(&limits());
    let values = [
        ("0", Some(1)),
        ("-9223372036854775808", Some(i64::MIN + 1)),
        ("9223372036854775806", Some(i64::MAX)),
        ("9223372036854775807", None),
        ("9223372036854775808", None),
        ("00000000000000000001", None),
        ("000000000000000000001", None),
        ("-0", None),
        ("+1", None),
        (" 1", None),
        ("", None),
    ];
    for (number, (value, _)) in (1..).zip(values) {
        let op = Op::put(format!("k{number}"), value);
        kv.execute(Slot(number), 0, &Command::session(number, 1, 1, op));
    }
    let add = |number: usize| Operation::add(format!("k{number}"), 1).into();
    let txn = Txn {
        then: (1..=values.len()).map(add).collect(),
        keep_going: true,
        ..Txn::default()
    };
    let outcome = executed(&mut kv, 90, txn);
    let Some(leasehold_wire::outcome::Result::Txn(result)) = outcome.result else {
        panic!("it keeps going");
    };
    let number = |result: &leasehold_wire::OpResult| match &result.result {
        Some(leasehold_wire::op_result::Result::Number(sum)) => Some(*sum),
        _ => None,
    };
    let sums: Vec<_> = result.results.iter().map(number).collect();
    assert_eq!(sums, values.map(|(_, sum)| sum));
}
