//! Checks that every listener makes before it passes a command on to the replica, and the limits of
//! commands.

use bytes::Bytes;

use super::command::Op;
use super::request::Body;
use super::txn_op::Op as Operation;
use super::{
    Command, Comparison, DeleteFields, Error, ErrorCode, FRAME_BYTES_MAX, KEY_BYTES_MAX, KeyValue,
    LeaseRequest, NAME_BYTES_MAX, NODES_MAX, Put, PutFields, Scan, Txn, TxnOp, VALUE_BYTES_MAX,
    comparison::Condition,
};

/// Maximum number of entries that one Scan may request.
pub const SCAN_ENTRIES_MAX: u32 = 10_000;
/// Maximum number of keys of one MultiGet, entries of one MultiPut, or fields of one PutFields that
/// a replica accepts from a client. For a Txn, it is the maximum number of comparisons, operations
/// and fields together. This maximum limits the work of one command, because other
/// commands wait while the command is executed.
pub const COMMAND_PARTS_MAX: usize = 1024;
/// Maximum number of operations of one Txn that read a stored value as a whole and write it again:
/// PutFields, DeleteFields and Append, in both lists together. Each of them may take as long as a
/// thousand other operations.
pub const TXN_REWRITES_MAX: usize = 16;
/// Maximum number of parts of a command that a replica accepts from another replica or reads from
/// its disk. This maximum is higher than [`COMMAND_PARTS_MAX`], because older versions accepted
/// this many parts from clients.
const LOGGED_PARTS_MAX: usize = 10_000;
/// Maximum difference between a write's sequence number and its low-water mark. For each session, a
/// replica keeps the results of all writes in this range, with 24 bytes for each result, and up to
/// 5 KiB more for the results of transactions. Whenever a result is added, the replica stores all
/// results of the session again. A client with more writes in flight uses several sessions.
pub const UNACKNOWLEDGED_MAX: u64 = 64;

/// Maximum length of an encoded command in bytes. The rest of a frame is for the data that replicas
/// add when they forward the command.
pub const COMMAND_BYTES_MAX: usize = FRAME_BYTES_MAX - (64 << 10);

/// Refuses a request that every replica would refuse, regardless of the client. A command is
/// refused if [`validate`] refuses it, or if it has more than [`COMMAND_PARTS_MAX`] parts. A write
/// is refused if its session would have to keep too many results. An operator's request is refused
/// if its names or keys are too long.
///
/// # Errors
/// The same errors as [`validate`]. The message does not quote fields that are too long.
pub fn validate_body(body: Option<&Body>) -> Result<(), Error> {
    match body {
        Some(Body::Command(command)) => {
            validate_parts(command, COMMAND_PARTS_MAX)?;
            check_unacknowledged(command)
        }
        Some(Body::Status(request)) => check_size("status.key", request.key.len(), KEY_BYTES_MAX),
        Some(Body::Move(request)) => check_name("move.to", &request.to),
        Some(Body::Lease(request)) => check_lease(request),
        None => Err(bad_request(
            "request.body is not set, a command or a status is required",
        )),
    }
}

/// Refuses a command that would be unacceptable in every state of the store.
///
/// # Errors
/// `BAD_REQUEST` or `TOO_LARGE`, ready to be sent. The message names the field, its content and the
/// limit.
pub fn validate(command: &Command) -> Result<(), Error> {
    validate_parts(command, LOGGED_PARTS_MAX)
}

fn validate_parts(command: &Command, parts_max: usize) -> Result<(), Error> {
    let Some(op) = &command.op else {
        return Err(bad_request("op is not set, one operation is required"));
    };
    check_op(op, parts_max)?;
    if op.is_write() {
        validate_session(command)?;
    }
    Ok(())
}

/// Checks an operation in the same way as [`validate_body`], but without a session.
///
/// # Errors
/// The same errors as [`validate`].
pub fn validate_op(op: &Op) -> Result<(), Error> {
    check_op(op, COMMAND_PARTS_MAX)
}

fn check_op(op: &Op, parts_max: usize) -> Result<(), Error> {
    match op {
        Op::Get(get) => check_key("get.key", &get.key),
        Op::Delete(delete) => check_key("delete.key", &delete.key),
        Op::Put(put) => check_put(put),
        Op::Cas(cas) => {
            check_key("cas.key", &cas.key)?;
            check_size("cas.value", cas.value.len(), VALUE_BYTES_MAX)
        }
        Op::PutFields(put) => check_fields(put, parts_max),
        Op::MultiGet(get) => {
            check_count("multi_get.keys", get.keys.len(), parts_max)?;
            get.keys
                .iter()
                .try_for_each(|key| check_key("multi_get.keys[]", key))?;
            check_size("multi_get", op.encoded_len(), COMMAND_BYTES_MAX)
        }
        Op::MultiPut(put) => {
            check_count("multi_put.entries", put.entries.len(), parts_max)?;
            put.entries.iter().try_for_each(check_entry)?;
            check_size("multi_put", op.encoded_len(), COMMAND_BYTES_MAX)
        }
        Op::Scan(scan) => check_scan(scan),
        Op::Txn(txn) => {
            check_txn(txn, parts_max)?;
            check_size("txn", op.encoded_len(), COMMAND_BYTES_MAX)
        }
    }
}

fn check_txn(txn: &Txn, parts_max: usize) -> Result<(), Error> {
    if txn.then.is_empty() && txn.or_else.is_empty() {
        return Err(bad_request(
            "txn.then and txn.or_else are empty, at least one operation is required",
        ));
    }
    let parts = txn.comparisons.len() + txn.operations().map(Operation::parts).sum::<usize>();
    if parts > parts_max {
        return Err(too_many_txn_parts(parts, parts_max));
    }
    let rewrites = txn.rewritten_keys().count();
    if rewrites > TXN_REWRITES_MAX {
        return Err(bad_request(format!(
            "txn has {rewrites} put_fields, delete_fields and append, allowed are at most \
             {TXN_REWRITES_MAX}: split it into several commands, or put whole values"
        )));
    }
    for (index, comparison) in txn.comparisons.iter().enumerate() {
        check_comparison(comparison).map_err(|error| within(error, "comparisons", index))?;
    }
    for (name, list) in [("then", &txn.then), ("or_else", &txn.or_else)] {
        for (index, listed) in list.iter().enumerate() {
            check_listed(listed, parts_max).map_err(|error| within(error, name, index))?;
        }
    }
    Ok(())
}

/// Adds the place of a part of a transaction to an error. The error's message must begin with a
/// field of this part.
fn within(error: Error, list: &str, index: usize) -> Error {
    let message = format!("txn.{list}[{index}].{}", error.message);
    Error { message, ..error }
}

fn check_comparison(comparison: &Comparison) -> Result<(), Error> {
    check_key("key", &comparison.key)?;
    match &comparison.condition {
        Some(Condition::Version(_) | Condition::Present(_)) => Ok(()),
        Some(Condition::Equal(value)) => check_size("equal", value.len(), VALUE_BYTES_MAX),
        Some(Condition::Less(value)) => check_size("less", value.len(), VALUE_BYTES_MAX),
        Some(Condition::AtMost(value)) => check_size("at_most", value.len(), VALUE_BYTES_MAX),
        Some(Condition::Greater(value)) => check_size("greater", value.len(), VALUE_BYTES_MAX),
        Some(Condition::AtLeast(value)) => check_size("at_least", value.len(), VALUE_BYTES_MAX),
        None => Err(bad_request(
            "condition is not set, one condition is required",
        )),
    }
}

fn check_listed(listed: &TxnOp, parts_max: usize) -> Result<(), Error> {
    match &listed.op {
        Some(Operation::Get(get)) => check_key("get.key", &get.key),
        Some(Operation::Put(put)) => check_put(put),
        Some(Operation::Delete(delete)) => check_key("delete.key", &delete.key),
        Some(Operation::PutFields(put)) => check_fields(put, parts_max),
        Some(Operation::DeleteFields(delete)) => check_names(delete, parts_max),
        Some(Operation::Add(add)) => check_key("add.key", &add.key),
        Some(Operation::Append(append)) => {
            check_key("append.key", &append.key)?;
            check_size("append.suffix", append.suffix.len(), VALUE_BYTES_MAX)
        }
        None => Err(bad_request("op is not set, one operation is required")),
    }
}

fn check_put(put: &Put) -> Result<(), Error> {
    check_key("put.key", &put.key)?;
    check_size("put.value", put.value.len(), VALUE_BYTES_MAX)
}

fn check_names(delete: &DeleteFields, parts_max: usize) -> Result<(), Error> {
    check_key("delete_fields.key", &delete.key)?;
    check_count("delete_fields.names", delete.names.len(), parts_max)?;
    let mut names = delete.names.iter();
    names.try_for_each(|name| check_key("delete_fields.names[]", name))
}

fn validate_session(command: &Command) -> Result<(), Error> {
    if command.client == 0 {
        return Err(bad_request("client is 0, a write needs a session above 0"));
    }
    if command.sequence == 0 {
        return Err(bad_request("sequence is 0, a write needs one above 0"));
    }
    if command.acked_below > command.sequence {
        return Err(bad_request(format!(
            "acked_below is {}, the limit is this command's own sequence {}",
            command.acked_below, command.sequence
        )));
    }
    Ok(())
}

/// Checks the difference between a write's sequence number and its low-water mark. Only requests
/// from clients are checked, because an older version may have accepted a forwarded request with a
/// larger difference.
fn check_unacknowledged(command: &Command) -> Result<(), Error> {
    let kept = command.sequence.saturating_sub(command.acked_below);
    if command.is_write() && kept > UNACKNOWLEDGED_MAX {
        return Err(bad_request(format!(
            "acked_below is {} and sequence is {}: results of at most {UNACKNOWLEDGED_MAX} writes are \
             kept for a session, so wait for the oldest, or open another session",
            command.acked_below, command.sequence
        )));
    }
    Ok(())
}

fn check_entry(entry: &KeyValue) -> Result<(), Error> {
    check_key("multi_put.entries[].key", &entry.key)?;
    check_size(
        "multi_put.entries[].value",
        entry.value.len(),
        VALUE_BYTES_MAX,
    )
}

fn check_fields(put: &PutFields, parts_max: usize) -> Result<(), Error> {
    check_key("put_fields.key", &put.key)?;
    check_count("put_fields.fields", put.fields.len(), parts_max)?;
    for field in &put.fields {
        check_key("put_fields.fields[].name", &field.name)?;
    }
    let total = put
        .fields
        .iter()
        .map(|f| f.name.len() + f.value.len())
        .sum();
    check_size("put_fields.fields", total, VALUE_BYTES_MAX)
}

fn check_scan(scan: &Scan) -> Result<(), Error> {
    check_size("scan.from", scan.from.len(), KEY_BYTES_MAX)?;
    check_size("scan.to", scan.to.len(), KEY_BYTES_MAX)?;
    if scan.limit == 0 || scan.limit > SCAN_ENTRIES_MAX {
        return Err(bad_request(format!(
            "scan.limit is {}, allowed are 1 to {SCAN_ENTRIES_MAX} entries",
            scan.limit
        )));
    }
    Ok(())
}

fn check_lease(request: &LeaseRequest) -> Result<(), Error> {
    check_size("lease.from", request.from.len(), KEY_BYTES_MAX)?;
    check_size("lease.to", request.to.len(), KEY_BYTES_MAX)?;
    check_name("lease.strategy", &request.strategy)?;
    check_name("lease.unlisted", &request.unlisted)?;
    if request.holders.len() > NODES_MAX {
        return Err(too_many_holders(request.holders.len()));
    }
    let mut holders = request.holders.iter();
    holders.try_for_each(|holder| check_name("lease.holders[]", holder))
}

fn check_name(field: &str, name: &str) -> Result<(), Error> {
    check_size(field, name.len(), NAME_BYTES_MAX)
}

fn check_key(field: &str, key: &Bytes) -> Result<(), Error> {
    if key.is_empty() {
        return Err(bad_request(format!(
            "{field} is empty, allowed are 1 to {KEY_BYTES_MAX} bytes"
        )));
    }
    check_size(field, key.len(), KEY_BYTES_MAX)
}

fn check_size(field: &str, found: usize, limit: usize) -> Result<(), Error> {
    if found > limit {
        return Err(Error::new(
            ErrorCode::TooLarge,
            format!("{field} is {found} bytes long, the limit is {limit} bytes"),
        ));
    }
    Ok(())
}

fn check_count(field: &str, found: usize, most: usize) -> Result<(), Error> {
    if found == 0 || found > most {
        return Err(too_many(field, found, most));
    }
    Ok(())
}

/// Builds the refusal of a command with `found` entries in `field`. The maximum is `most` entries.
pub(super) fn too_many(field: &str, found: usize, most: usize) -> Error {
    bad_request(format!(
        "{field} has {found} entries, allowed are 1 to {most}: split it into several commands"
    ))
}

/// Builds the refusal of a transaction with `found` comparisons, operations and fields. The maximum
/// is `most`.
pub(super) fn too_many_txn_parts(found: usize, most: usize) -> Error {
    bad_request(format!(
        "txn has {found} comparisons, operations and fields, allowed are 1 to {most}: split it into \
         several commands"
    ))
}

/// Builds the refusal of a change of leases that names `found` holders.
pub(super) fn too_many_holders(found: usize) -> Error {
    bad_request(format!(
        "lease.holders has {found} entries, a cluster has at most {NODES_MAX} nodes"
    ))
}

/// Builds the refusal of a request with more than `most` fields.
pub(super) fn too_many_fields(most: usize) -> Error {
    bad_request(format!(
        "request has more than {most} fields: leave out those that are there twice"
    ))
}

fn bad_request(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::BadRequest, message)
}

#[cfg(test)]
mod tests {
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
}
