//! Effects of transactions, and answers that no correct store gives.

use leasehold_histories::history::HistoryAction;
use leasehold_wire::{Delete, Get, Missing, OpResult, Put, PutFields, Record, Value};
use prost::Message as _;

use super::super::keys::{LISTS, field, field_name, group_keys, token_bytes};
use super::super::ledger::Growth;
use super::*;
use crate::backend::key_name;

const VERSION: Version = Version { slot: 9, index: 1 };
const OLD: Version = Version { slot: 3, index: 0 };

fn get(key: u64) -> TxnOp {
    let key = key_name(key);
    Operation::Get(Get { key }).into()
}

fn put(key: u64, value: u64) -> TxnOp {
    let (key, value) = (key_name(key), stored(ValueId(value)));
    Operation::Put(Put { key, value }).into()
}

fn delete(key: u64) -> TxnOp {
    let key = key_name(key);
    Operation::Delete(Delete { key }).into()
}

fn when(key: u64, condition: Condition) -> Comparison {
    Comparison {
        key: key_name(key),
        condition: Some(condition),
    }
}

fn equal(key: u64, value: u64) -> Comparison {
    when(key, Condition::Equal(stored(ValueId(value))))
}

fn request(comparisons: &[Comparison], then: &[TxnOp], or_else: &[TxnOp]) -> TxnRequest {
    let txn = Txn {
        comparisons: comparisons.to_vec(),
        then: then.to_vec(),
        or_else: or_else.to_vec(),
        keep_going: false,
    };
    let believed = BTreeMap::from([(1, ValueId(10))]);
    TxnRequest { txn, believed }
}

fn found(value: Bytes) -> Value {
    let version = Some(OLD);
    Value { value, version }
}

fn result(results: &[OpAnswer]) -> TxnResult {
    let result = |answer: &OpAnswer| OpResult {
        result: Some(answer.clone()),
    };
    TxnResult {
        version: Some(VERSION),
        results: results.iter().map(result).collect(),
        ..TxnResult::default()
    }
}

fn failed(index: u32, value: Option<Bytes>, results: &[OpAnswer]) -> TxnResult {
    let found = value.map(found);
    TxnResult {
        or_else: true,
        failed: Some(FailedComparison { index, found }),
        ..result(results)
    }
}

const DONE: OpAnswer = OpAnswer::Count(1);

fn value(id: u64) -> OpAnswer {
    OpAnswer::Value(found(stored(ValueId(id))))
}

fn read(value: Option<u64>) -> HistoryAction {
    let value = value.map(ValueId);
    HistoryAction::Read { value }
}

fn write(value: u64) -> HistoryAction {
    let value = ValueId(value);
    HistoryAction::Write { value }
}

fn swap(expected: Option<u64>, new: u64) -> HistoryAction {
    HistoryAction::Cas {
        expected: expected.map(ValueId),
        new: ValueId(new),
        swapped: true,
    }
}

fn assert_wrong(request: &TxnRequest, result: &TxnResult, what: &str) {
    let error = request.effects_of(result).expect_err("no store answers so");
    assert!(error.contains(what), "{error}");
}

#[test]
fn a_comparison_that_held_is_a_read() {
    let comparisons = [
        when(1, Condition::Version(OLD)),
        equal(2, 20),
        when(3, Condition::Present(false)),
        when(4, Condition::Present(true)),
        when(5, Condition::Greater(stored(ValueId(50)))),
    ];
    let request = request(&comparisons, &[put(2, 21), put(4, 41), delete(1)], &[]);
    let effects = request.effects_of(&result(&[DONE, DONE, DONE])).unwrap();
    let parts = [
        (1, read(Some(10))),
        (1, HistoryAction::Delete),
        (2, swap(Some(20), 21)),
        (3, read(None)),
        (4, write(41)),
    ];
    assert_eq!(effects.parts, parts);
}

#[test]
fn a_comparison_that_failed_is_a_read_of_the_value_found() {
    let request = request(
        &[equal(1, 10), equal(2, 20), equal(3, 30)],
        &[put(1, 11)],
        &[get(3), put(2, 22)],
    );
    let found = stored(ValueId(25));
    let answer = failed(
        1,
        Some(found.clone()),
        &[OpAnswer::Missing(Missing {}), DONE],
    );
    let parts = vec![
        (1, read(Some(10))),
        (2, swap(Some(25), 22)),
        (3, read(None)),
    ];
    assert_eq!(request.effects_of(&answer), Ok(Effects::from(parts)));
    let versions = request.versions(&answer);
    assert_eq!(versions, BTreeMap::from([(2, VERSION)]));

    // The values are left out of the answer to a repetition.
    let mut answer = failed(1, Some(Bytes::new()), &[]);
    answer.abridged = true;
    let parts = vec![(1, read(Some(10))), (2, write(22))];
    assert_eq!(request.effects_of(&answer), Ok(Effects::from(parts)));
    let too_short = failed(1, Some(found), &[]);
    assert_wrong(&request, &too_short, "too few results");
}

#[test]
fn a_transaction_without_an_answer_has_taken_either_branch_or_none() {
    let both = request(
        &[equal(1, 10), equal(2, 20)],
        &[put(1, 11), put(3, 31), delete(2)],
        &[put(1, 12), put(1, 13), get(4)],
    );
    let then = vec![
        (1, swap(Some(10), 11)),
        (2, read(Some(20))),
        (2, HistoryAction::Delete),
        (3, write(31)),
    ];
    let branches = [Effects::from(then), Effects::from(vec![(1, write(13))])];
    assert_eq!(both.possible_effects(), branches);

    let always = request(&[], &[put(1, 11)], &[put(1, 12)]);
    let effects = Effects::from(vec![(1, write(11))]);
    assert_eq!(always.possible_effects(), [effects]);
}

#[test]
fn answers_that_contradict_themselves_are_wrong() {
    let request = request(
        &[when(1, Condition::Less(stored(ValueId(10))))],
        &[get(1), put(1, 11), get(1)],
        &[],
    );
    assert_wrong(&request, &result(&[value(10), DONE, value(11)]), "held");
    assert_wrong(
        &request,
        &result(&[value(9), DONE, value(9)]),
        "holds value 11",
    );
    assert_wrong(&request, &result(&[DONE, DONE, DONE]), "answered");
    assert_wrong(
        &request,
        &result(&[value(9), DONE, value(11), DONE]),
        "too many",
    );
    assert!(
        request
            .effects_of(&result(&[value(9), DONE, value(11)]))
            .is_ok()
    );
    let unwritten = TxnResult {
        version: None,
        ..result(&[value(9), DONE, value(11)])
    };
    assert_wrong(&request, &unwritten, "has version None");

    let below = stored(ValueId(9));
    assert_wrong(&request, &failed(0, Some(below), &[]), "failed, and found");
    assert_wrong(&request, &failed(0, None, &[]), "failed, and found");
    assert_wrong(&request, &failed(1, None, &[]), "comparison 1 of 1");
    let no_reason = TxnResult {
        or_else: true,
        ..result(&[])
    };
    assert_wrong(&request, &no_reason, "branch");
}

#[test]
fn a_delete_tells_whether_the_key_existed() {
    let request = request(&[], &[delete(1), delete(1)], &[]);
    let none = OpAnswer::Count(0);
    let effects = |answers: &[OpAnswer]| request.effects_of(&result(answers));
    let parts = |parts: &[(u64, HistoryAction)]| Ok(Effects::from(parts.to_vec()));
    assert_eq!(
        effects(&[none.clone(), none.clone()]),
        parts(&[(1, read(None))])
    );
    assert_eq!(
        effects(&[DONE, none.clone()]),
        parts(&[(1, HistoryAction::Delete)])
    );
    assert!(effects(&[DONE, DONE]).is_err());
    assert!(effects(&[none, DONE]).is_err());
}

#[test]
fn the_fields_of_a_record_are_keys() {
    let keys = group_keys(3);
    let record = keys.start;
    let names = |numbers: &[u64]| {
        let names = numbers.iter().map(|number| field_name(record + number));
        Operation::delete_fields(key_name(record), names.collect()).into()
    };
    let put = Operation::PutFields(PutFields {
        key: key_name(record),
        fields: vec![field(record, ValueId(1)), field(record + 1, ValueId(2))],
    });
    let request = request(&[], &[get(record), put.into(), names(&[1, 2, 3])], &[]);
    let fields = vec![field(record + 2, ValueId(3))];
    let held = OpAnswer::Value(found(Record { fields }.encode_to_vec().into()));
    let effects = request.effects_of(&result(&[held.clone(), DONE, OpAnswer::Count(2)]));
    let parts = vec![
        (record, swap(None, 1)),
        (record + 1, read(None)),
        (record + 2, read(Some(3))),
        (record + 2, HistoryAction::Delete),
        (record + 3, read(None)),
    ];
    assert_eq!(effects, Ok(Effects::from(parts)));
    for count in [1, 3] {
        let answer = result(&[held.clone(), DONE, OpAnswer::Count(count)]);
        assert_wrong(&request, &answer, "removed");
    }
    let torn = OpAnswer::Value(found(stored(ValueId(3))));
    assert_wrong(&request, &result(&[torn]), "no client wrote");
}

#[test]
fn an_operation_that_cannot_be_executed_is_refused() {
    let add = || TxnOp::from(Operation::add(key_name(1), 1));
    let present = [when(1, Condition::Present(true))];
    let mut refused = request(&present, &[add(), put(2, 21)], &[put(2, 22)]);
    assert!(refused.may_be_refused());
    let writes = |value| Effects::from(vec![(2, write(value))]);
    assert_eq!(refused.possible_effects(), [writes(22)]);
    let sum = OpAnswer::Number(1);
    assert_wrong(
        &refused,
        &result(&[sum.clone(), DONE]),
        "nothing can execute",
    );

    refused.txn.keep_going = true;
    assert!(!refused.may_be_refused());
    assert_eq!(refused.possible_effects(), [writes(21), writes(22)]);
    let error = |code| OpAnswer::Error(Error::new(code, "refused"));
    let answer = result(&[error(ErrorCode::NotAnInteger), DONE]);
    assert_eq!(refused.effects_of(&answer), Ok(writes(21)));
    let other = result(&[error(ErrorCode::NotARecord), DONE]);
    assert_wrong(&refused, &other, "answered");
    assert_wrong(&refused, &result(&[sum, DONE]), "answered");
    let right = request(&[], &[put(2, 21)], &[]);
    assert_wrong(&right, &result(&[error(ErrorCode::Internal)]), "answered");
}

#[test]
fn appends_say_their_positions() {
    let list = LISTS.start;
    let append = |token| {
        TxnOp::from(Operation::append(
            key_name(list),
            token_bytes(ValueId(token)),
        ))
    };
    let request = request(&[], &[append(7), append(8)], &[]);
    let lengths = |one, two| result(&[OpAnswer::Count(one), OpAnswer::Count(two)]);
    let growth = |token, length| {
        let token = ValueId(token);
        (list, Growth::Append { token, length })
    };
    let effects = request.effects_of(&lengths(24, 32)).unwrap();
    assert_eq!(effects.growths, [growth(7, Some(3)), growth(8, Some(4))]);
    assert_wrong(&request, &lengths(24, 40), "grew by 1");
    assert_wrong(&request, &lengths(20, 28), "20 bytes");
    let unknown = [growth(7, None), growth(8, None)];
    assert_eq!(request.possible_effects()[0].growths, unknown);
}
