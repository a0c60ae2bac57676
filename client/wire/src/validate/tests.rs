use super::*;
use crate::{Delete, Field, Get, MoveRequest, StatusRequest};

fn entry(key: &'static str, value: usize) -> KeyValue {
    KeyValue {
        key: key.into(),
        value: vec![0; value].into(),
    }
}

fn field(name: &'static str, value: usize) -> Field {
    Field {
        name: name.into(),
        value: vec![0; value].into(),
    }
}

#[test]
fn the_limits_themselves_are_allowed() {
    let key = vec![b'k'; KEY_BYTES_MAX];
    let value = vec![0; VALUE_BYTES_MAX];
    for op in [
        Op::get(key.clone()),
        Op::put(key.clone(), value.clone()),
        Op::put("k", ""),
        Op::delete("k"),
        Op::cas(key.clone(), value, None),
        Op::put_fields("k", vec![field("name", VALUE_BYTES_MAX - 4)]),
        Op::multi_get(vec![key.clone().into(); 3]),
        Op::multi_put(vec![entry("k", VALUE_BYTES_MAX), entry("l", 0)]),
        Op::scan("", "", 1),
        Op::scan(key.clone(), key, SCAN_ENTRIES_MAX),
    ] {
        assert_eq!(validate(&Command::session(1, 1, 1, op)), Ok(()));
    }
}

#[test]
fn a_refusal_names_the_field_the_finding_and_the_limit() {
    let long = vec![b'k'; KEY_BYTES_MAX + 1];
    let big = vec![0; VALUE_BYTES_MAX + 1];
    let too_many = vec![Bytes::from("k"); COMMAND_PARTS_MAX + 1];
    for (op, parts) in [
        (Op::get(""), ["get.key", "empty", "4096"]),
        (Op::get(long.clone()), ["get.key", "4097", "4096"]),
        (Op::delete(""), ["delete.key", "empty", "4096"]),
        (Op::put("", "v"), ["put.key", "empty", "4096"]),
        (
            Op::put("k", big.clone()),
            ["put.value", "1048577", "1048576"],
        ),
        (Op::cas("k", big, None), ["cas.value", "1048577", "1048576"]),
        (
            Op::put_fields("k", vec![]),
            ["put_fields.fields", "0 entries", "1024"],
        ),
        (
            Op::put_fields("k", vec![field("", 1)]),
            ["put_fields.fields[].name", "empty", "4096"],
        ),
        (
            Op::put_fields("k", vec![field("a", 1 << 19), field("b", 1 << 19)]),
            ["put_fields.fields", "1048578", "1048576"],
        ),
        (
            Op::multi_get(vec![]),
            ["multi_get.keys", "0 entries", "1024"],
        ),
        (
            Op::multi_get(too_many),
            ["multi_get.keys", "1025 entries", "1024"],
        ),
        (
            Op::multi_put(vec![entry("k", 1), entry("", 1)]),
            ["multi_put.entries[].key", "empty", "4096"],
        ),
        (
            Op::multi_put(vec![entry("k", VALUE_BYTES_MAX + 1)]),
            ["multi_put.entries[].value", "1048577", "1048576"],
        ),
        (
            Op::multi_put(vec![entry("k", VALUE_BYTES_MAX); 4]),
            ["multi_put", "41943", "4128768"],
        ),
        (Op::scan("", "", 0), ["scan.limit", "is 0", "10000"]),
        (Op::scan("", "", 10_001), ["scan.limit", "10001", "10000"]),
        (Op::scan(long, "", 1), ["scan.from", "4097", "4096"]),
    ] {
        let message = validate_body(Some(&Body::Command(Command::session(1, 1, 1, op))))
            .unwrap_err()
            .message;
        for part in parts {
            assert!(message.contains(part), "{part:?} is not in {message:?}");
        }
    }
}

/// Clients read the reserved key to check whether a replica responds. Nothing may be written under
/// it, whichever list of a transaction is executed.
#[test]
fn the_reserved_key_is_neither_written_nor_compared() {
    let key = || Bytes::from(PROBE_KEY);
    let comparison = Comparison {
        key: key(),
        condition: Some(Condition::Present(false)),
    };
    let put = |key: Bytes| {
        Operation::Put(Put {
            key,
            value: "v".into(),
        })
    };
    let txn = |operations: Vec<Operation>| {
        Op::txn(Txn {
            or_else: operations.into_iter().map(TxnOp::from).collect(),
            ..Txn::default()
        })
    };
    let compared = Op::txn(Txn {
        comparisons: vec![comparison],
        then: vec![put("k".into()).into()],
        ..Txn::default()
    });
    let of_second = KeyValue {
        key: key(),
        value: "v".into(),
    };
    for (op, field) in [
        (Op::put(PROBE_KEY, "v"), "put.key"),
        (Op::cas(PROBE_KEY, "v", None), "cas.key"),
        (
            Op::put_fields(PROBE_KEY, vec![field("f", 1)]),
            "put_fields.key",
        ),
        (
            Op::multi_put(vec![entry("k", 1), of_second]),
            "multi_put.entries[].key",
        ),
        (compared, "txn.comparisons[0].key"),
        (
            txn(vec![put("k".into()), put(key())]),
            "txn.or_else[1].put.key",
        ),
        (
            txn(vec![Operation::Delete(Delete { key: key() })]),
            "txn.or_else[0].delete.key",
        ),
        (
            txn(vec![Operation::append(PROBE_KEY, "v")]),
            "txn.or_else[0].append.key",
        ),
    ] {
        let of_client = validate_op(&op).unwrap_err();
        let command = Command::session(1, 1, 1, op);
        assert_eq!(validate(&command), Ok(()), "logs may contain it");
        let refused = validate_body(Some(&Body::Command(command))).unwrap_err();
        let expected = format!("{field} is {PROBE_KEY:?}: clients check");
        assert!(refused.message.starts_with(&expected), "{refused:?}");
        assert_eq!(refused, of_client);
        assert_eq!(refused.code(), ErrorCode::BadRequest);
    }
    for op in [
        Op::get(PROBE_KEY),
        Op::multi_get(vec![key()]),
        Op::delete(PROBE_KEY),
        txn(vec![Operation::Get(Get { key: key() })]),
    ] {
        let command = Command::session(1, 1, 1, op);
        assert_eq!(validate_body(Some(&Body::Command(command))), Ok(()));
    }
}

#[test]
fn a_write_needs_a_session_and_a_read_does_not() {
    assert_eq!(validate(&Op::get("k").into()), Ok(()));
    let refused = |client, sequence, acked_below| {
        let command = Command::session(client, sequence, acked_below, Op::put("k", "v"));
        validate(&command).unwrap_err().message
    };
    assert!(refused(0, 1, 0).starts_with("client is 0"));
    assert!(refused(1, 0, 0).starts_with("sequence is 0"));
    assert!(refused(1, 4, 5).starts_with("acked_below is 5"));
    let of_client = |sequence| {
        let command = Command::session(1, sequence, 7, Op::put("k", "v"));
        assert_eq!(validate(&command), Ok(()), "replicas pass it on");
        validate_body(Some(&Body::Command(command)))
    };
    assert_eq!(of_client(7 + UNACKNOWLEDGED_MAX), Ok(()));
    let message = of_client(8 + UNACKNOWLEDGED_MAX).unwrap_err().message;
    assert!(message.starts_with("acked_below is 7"), "{message}");
    assert!(validate(&Command::default()).is_err());
}

/// Older versions accepted more parts from clients. So the logs of replicas may contain such
/// commands.
#[test]
fn replicas_take_more_parts_of_each_other_than_of_clients() {
    let entries = |parts| Op::multi_put(vec![entry("k", 1); parts]);
    let command = |parts| Command::session(1, 1, 1, entries(parts));
    let of_client = |parts| validate_body(Some(&Body::Command(command(parts))));
    assert_eq!(of_client(COMMAND_PARTS_MAX), Ok(()));
    assert!(of_client(COMMAND_PARTS_MAX + 1).is_err());
    assert!(validate_op(&entries(COMMAND_PARTS_MAX + 1)).is_err());
    assert_eq!(validate(&command(LOGGED_PARTS_MAX)), Ok(()));
    assert!(validate(&command(LOGGED_PARTS_MAX + 1)).is_err());
}

fn compared(key: &'static str, condition: Condition) -> Comparison {
    Comparison {
        key: key.into(),
        condition: Some(condition),
    }
}

fn get(key: &'static str) -> Operation {
    Operation::Get(Get { key: key.into() })
}

fn put(key: &'static str, value: usize) -> Operation {
    Operation::Put(Put {
        key: key.into(),
        value: vec![0; value].into(),
    })
}

fn put_fields(fields: Vec<Field>) -> Operation {
    let key = "k".into();
    Operation::PutFields(PutFields { key, fields })
}

fn listed(operations: Vec<Operation>) -> Vec<TxnOp> {
    operations.into_iter().map(TxnOp::from).collect()
}

fn txn(comparisons: Vec<Comparison>, then: Vec<Operation>, or_else: Vec<Operation>) -> Txn {
    Txn {
        comparisons,
        then: listed(then),
        or_else: listed(or_else),
        keep_going: false,
    }
}

fn refusal_of(txn: Txn) -> Option<Error> {
    let command = Command::session(1, 1, 1, Op::txn(txn));
    validate_body(Some(&Body::Command(command))).err()
}

#[test]
fn the_limits_of_a_transaction_are_allowed() {
    let long = || vec![b'k'; KEY_BYTES_MAX];
    let value = || Bytes::from(vec![0; VALUE_BYTES_MAX]);
    let conditions = [
        Condition::Version(crate::Version::default()),
        Condition::Present(false),
        Condition::Equal(value()),
        Condition::Less(value()),
        Condition::AtMost(value()),
        Condition::Greater(value()),
        Condition::AtLeast(value()),
    ];
    for condition in conditions {
        let comparison = Comparison {
            key: long().into(),
            condition: Some(condition),
        };
        assert_eq!(
            refusal_of(txn(vec![comparison], vec![get("k")], vec![])),
            None
        );
    }
    for operation in [
        put("k", VALUE_BYTES_MAX),
        Operation::append(long(), value()),
        Operation::add(long(), i64::MIN),
        Operation::delete_fields(long(), vec![long().into()]),
        put_fields(vec![field("name", VALUE_BYTES_MAX - 4)]),
    ] {
        assert_eq!(
            refusal_of(txn(vec![], vec![operation.clone()], vec![])),
            None
        );
        assert_eq!(refusal_of(txn(vec![], vec![], vec![operation])), None);
    }
}

#[test]
fn a_refusal_of_a_transaction_names_the_part_whichever_list_it_is_in() {
    let none = || txn(vec![], vec![], vec![]);
    let absent = || compared("k", Condition::Present(false));
    let big = || Bytes::from(vec![0; VALUE_BYTES_MAX + 1]);
    let third = |operation: Operation| vec![get("k"), get("k"), operation];
    let in_either = |operation: Operation| {
        let then = txn(vec![absent()], third(operation.clone()), vec![]);
        let or_else = txn(vec![absent()], vec![get("k")], third(operation));
        [("then", then), ("or_else", or_else)]
    };
    let of_comparison = |comparison| txn(vec![absent(), comparison], vec![get("k")], vec![]);
    for (txn, parts) in [
        (
            none(),
            [
                "txn.then and txn.or_else are empty",
                "at least one operation",
            ],
        ),
        (
            of_comparison(compared("", Condition::Present(true))),
            ["txn.comparisons[1].key is empty", "4096"],
        ),
        (
            of_comparison(Comparison {
                key: "k".into(),
                condition: None,
            }),
            ["txn.comparisons[1].condition is not set", "required"],
        ),
        (
            of_comparison(compared("k", Condition::Equal(big()))),
            ["txn.comparisons[1].equal", "1048577"],
        ),
        (
            of_comparison(compared("k", Condition::Less(big()))),
            ["txn.comparisons[1].less", "1048577"],
        ),
        (
            of_comparison(compared("k", Condition::AtMost(big()))),
            ["txn.comparisons[1].at_most", "1048577"],
        ),
        (
            of_comparison(compared("k", Condition::Greater(big()))),
            ["txn.comparisons[1].greater", "1048577"],
        ),
        (
            of_comparison(compared("k", Condition::AtLeast(big()))),
            ["txn.comparisons[1].at_least", "1048577"],
        ),
    ] {
        let message = refusal_of(txn).expect("a fault").message;
        for part in parts {
            assert!(message.contains(part), "{part:?} is not in {message:?}");
        }
        assert!(message.len() < 200, "{message}");
    }
    for (operation, part) in [
        (get(""), "get.key is empty"),
        (put("", 1), "put.key is empty"),
        (put("k", VALUE_BYTES_MAX + 1), "put.value"),
        (Operation::Delete(Delete::default()), "delete.key is empty"),
        (put_fields(vec![]), "put_fields.fields has 0 entries"),
        (
            put_fields(vec![field("", 1)]),
            "put_fields.fields[].name is empty",
        ),
        (
            Operation::delete_fields("", vec!["f".into()]),
            "delete_fields.key is empty",
        ),
        (
            Operation::delete_fields("k", vec![]),
            "delete_fields.names has 0 entries",
        ),
        (
            Operation::delete_fields("k", vec!["f".into(), "".into()]),
            "delete_fields.names[] is empty",
        ),
        (Operation::add("", 1), "add.key is empty"),
        (Operation::append("", "v"), "append.key is empty"),
        (Operation::append("k", big()), "append.suffix"),
    ] {
        for (list, txn) in in_either(operation.clone()) {
            let message = refusal_of(txn).expect("a fault").message;
            let expected = format!("txn.{list}[2].{part}");
            assert!(message.starts_with(&expected), "{expected:?}: {message:?}");
        }
    }
    let mut without = txn(vec![], vec![get("k")], vec![get("k")]);
    without.or_else.push(TxnOp::default());
    let message = refusal_of(without).expect("no operation").message;
    assert!(
        message.starts_with("txn.or_else[1].op is not set"),
        "{message}"
    );
}

/// Comparisons, operations of both lists, and fields count together.
#[test]
fn parts_of_a_transaction_count_together() {
    let counted = |parts: usize| {
        let names = vec!["f".into(); 3];
        let then = vec![put_fields(vec![field("f", 1); 2]); 2];
        let or_else = vec![Operation::delete_fields("k", names)];
        let compared = vec![compared("k", Condition::Present(true)); parts - 3 - 3 - 4];
        txn(compared, then, or_else)
    };
    for parts in [COMMAND_PARTS_MAX - 1, COMMAND_PARTS_MAX] {
        assert_eq!(refusal_of(counted(parts)), None);
    }
    let refusal = refusal_of(counted(COMMAND_PARTS_MAX + 1));
    assert_eq!(refusal, Some(too_many_txn_parts(1025, 1024)));
    let gets = |parts| txn(vec![], vec![get("k"); parts / 2], vec![get("k"); parts / 2]);
    assert_eq!(refusal_of(gets(COMMAND_PARTS_MAX)), None);
    assert!(refusal_of(gets(COMMAND_PARTS_MAX + 2)).is_some());
}

/// Rewrites of both lists count together, because it is not known which list will be executed.
#[test]
fn rewrites_of_a_transaction_are_few() {
    let rewrites = |count: usize| {
        let each = [
            Operation::append("k", "v"),
            put_fields(vec![field("f", 1)]),
            Operation::delete_fields("l", vec!["f".into()]),
        ];
        let mut all = each.into_iter().cycle();
        let then = all.by_ref().take(count / 2).collect();
        let or_else = all.take(count - count / 2).collect();
        txn(vec![], then, or_else)
    };
    for count in [1, TXN_REWRITES_MAX - 1, TXN_REWRITES_MAX] {
        assert_eq!(refusal_of(rewrites(count)), None, "{count}");
    }
    let message = refusal_of(rewrites(TXN_REWRITES_MAX + 1))
        .expect("too many")
        .message;
    assert!(
        message.starts_with("txn has 17 put_fields, delete_fields"),
        "{message}"
    );
    let other = vec![Operation::add("k", 1); 20];
    assert_eq!(refusal_of(txn(vec![], other, vec![put("k", 1); 20])), None);
}

#[test]
fn a_transaction_fits_into_one_command() {
    let of = |bytes: usize| {
        let then = vec![put("k", VALUE_BYTES_MAX); 3];
        txn(vec![], then, vec![Operation::append("k", vec![0; bytes])])
    };
    let encoded = |bytes| Op::txn(of(bytes)).encoded_len();
    let left = COMMAND_BYTES_MAX - encoded(1 << 19) + (1 << 19);
    assert_eq!(encoded(left), COMMAND_BYTES_MAX);
    assert_eq!(refusal_of(of(left - 1)), None);
    assert_eq!(refusal_of(of(left)), None);
    let refusal = refusal_of(of(left + 1)).expect("one byte too many");
    assert_eq!(refusal.code(), ErrorCode::TooLarge);
    assert!(refusal.message.starts_with("txn "), "{refusal:?}");
}

#[test]
fn a_transaction_needs_a_session_even_if_it_only_reads() {
    let only_reads = || Op::txn(txn(vec![], vec![get("k")], vec![]));
    let refusal = validate(&only_reads().into()).expect_err("no session");
    assert!(refusal.message.starts_with("client is 0"), "{refusal:?}");
    assert_eq!(validate_op(&only_reads()), Ok(()));
}

fn lease(change: impl FnOnce(&mut LeaseRequest)) -> Body {
    let mut request = LeaseRequest::default();
    change(&mut request);
    Body::Lease(request)
}

/// Returns operators' requests. One field of each request has `bytes` bytes.
fn asked_with(bytes: usize) -> [(&'static str, Body); 7] {
    let name = "n".repeat(bytes);
    let key = Bytes::from(name.clone());
    let to = MoveRequest { to: name.clone() };
    let status = StatusRequest {
        key: key.clone(),
        ..StatusRequest::default()
    };
    [
        ("move.to", Body::Move(to)),
        ("lease.strategy", lease(|it| it.strategy = name.clone())),
        ("lease.unlisted", lease(|it| it.unlisted = name.clone())),
        (
            "lease.holders[]",
            lease(|it| it.holders = vec!["CA".to_owned(), name.clone()]),
        ),
        ("lease.from", lease(|it| it.from = key.clone())),
        ("lease.to", lease(|it| it.to = key.clone())),
        ("status.key", Body::Status(status)),
    ]
}

#[test]
fn long_names_and_keys_of_operators_are_refused_and_not_quoted() {
    for (field, request) in asked_with(NAME_BYTES_MAX) {
        assert_eq!(validate_body(Some(&request)), Ok(()), "{field}");
    }
    for (field, request) in asked_with(NAME_BYTES_MAX + 1) {
        let is_key = ["lease.from", "lease.to", "status.key"].contains(&field);
        assert_eq!(validate_body(Some(&request)).is_ok(), is_key, "{field}");
    }
    for (field, request) in asked_with(FRAME_BYTES_MAX - 100) {
        let refusal = validate_body(Some(&request)).expect_err(field);
        assert_eq!(refusal.code(), ErrorCode::TooLarge);
        assert!(refusal.message.starts_with(field), "{refusal:?}");
        assert!(refusal.message.len() < 100, "{refusal:?}");
    }
}

#[test]
fn more_holders_than_a_cluster_may_have_nodes_are_refused() {
    let request = |count| lease(|it| it.holders = vec!["CA".to_owned(); count]);
    assert_eq!(validate_body(Some(&request(NODES_MAX))), Ok(()));
    let refusal = validate_body(Some(&request(NODES_MAX + 1))).expect_err("too many");
    assert_eq!(refusal, too_many_holders(NODES_MAX + 1));
}

#[test]
fn a_message_about_an_operation_is_read_without_its_place_in_the_transaction() {
    for (message, expected) in [
        ("txn.then[0]: add: no number", "add: no number"),
        ("txn.then[12].append.key: empty", "append.key: empty"),
        ("txn.or_else[1].get: denied", "get: denied"),
        ("txn.then[x]: add", "txn.then[x]: add"),
        ("txn.then[0]", "txn.then[0]"),
        ("txn has too many parts", "txn has too many parts"),
        ("add: txn.then[0]: no", "add: txn.then[0]: no"),
    ] {
        assert_eq!(without_txn_place(message), expected);
    }
}
