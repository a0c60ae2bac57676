//! Execution of transactions, written as directly as possible: each operation changes a copy of the
//! entries, which is thrown away if an operation fails.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use bytes::Bytes;
use leasehold_leases::Key;
use leasehold_wire::comparison::Condition;
use leasehold_wire::op_result::Result as Answer;
use leasehold_wire::txn_op::Op;
use leasehold_wire::{
    Comparison, Error, ErrorCode, FRAME_BYTES_MAX, FailedComparison, Missing, OpResult, Outcome,
    Txn, TxnOp, TxnResult, Value, Version,
};
use prost::Message as _;

use super::{RECORD_BYTES_MAX, merged, record};

type Entries = BTreeMap<Key, (Bytes, Version)>;

/// Maximum size of the stored values together that a transaction may rewrite, in bytes.
const ALL_REWRITTEN_BYTES_MAX: usize = 1 << 20;
/// Maximum size of the values in an answer, in bytes. Each value that was read counts as
/// `VALUE_OVERHEAD` bytes more.
const ANSWER_BYTES_MAX: usize = FRAME_BYTES_MAX - (64 << 10);
const VALUE_OVERHEAD: usize = 64;
/// Maximum size of all values together in a result that a session keeps, in bytes.
const KEPT_VALUES_BYTES: usize = 256;
/// Maximum length of a result that a session keeps, in bytes.
const KEPT_BYTES: usize = 1024;
/// Maximum length of a result that a session always keeps, in bytes.
const SHORT_BYTES: usize = 64;
/// Maximum number of bytes by which the outcome is longer than its result.
const OUTCOME_BYTES: usize = 8;
/// Maximum length of the text of an error, in bytes.
const TEXT_BYTES_MAX: usize = 256;

/// Executes a transaction.
///
/// # Errors
/// The outcome of a transaction with an operation that cannot be executed. The entries must then
/// be thrown away.
pub(super) fn execute(
    entries: &mut Entries,
    version: Version,
    txn: &Txn,
) -> Result<TxnResult, Outcome> {
    let value = |(value, version): &(Bytes, Version)| Value {
        value: value.clone(),
        version: Some(*version),
    };
    let mut failed = None;
    for (index, comparison) in txn.comparisons.iter().enumerate() {
        let found = entries.get(&comparison.key);
        if !holds(comparison, found) {
            let found = found.map(value);
            failed = Some(FailedComparison {
                index: index as u32,
                found,
            });
            break;
        }
    }
    let mut changed = false;
    let found = failed.as_ref().and_then(|failed| failed.found.as_ref());
    let mut answer_bytes = found.map_or(0, |found| found.value.len());
    answer_bytes += list_of(txn, failed.is_some()).len() * other_bytes(txn);
    let mut results = Vec::new();
    let mut rewritten_bytes = 0;
    for listed in list_of(txn, failed.is_some()) {
        let Some(op) = &listed.op else {
            return Err(Outcome::error(ErrorCode::BadRequest, ""));
        };
        let before = entries.get(op.key()).cloned();
        let mut outcome = run(op, before.as_ref(), version);
        let bytes = before.as_ref().map_or(0, |(value, _)| value.len());
        if op.is_rewrite() && bytes <= RECORD_BYTES_MAX {
            if rewritten_bytes + bytes > ALL_REWRITTEN_BYTES_MAX {
                outcome = Err(ErrorCode::TooLarge);
            } else {
                rewritten_bytes += bytes;
            }
        }
        if let Ok((Answer::Value(value), _)) = &outcome {
            let bytes = value.value.len() + VALUE_OVERHEAD;
            if answer_bytes + bytes > ANSWER_BYTES_MAX {
                outcome = Err(ErrorCode::TooLarge);
            } else {
                answer_bytes += bytes;
            }
        }
        let result = match outcome {
            Ok((result, after)) => {
                if after != before {
                    changed = true;
                }
                match after {
                    Some(after) => entries.insert(op.key().clone(), after),
                    None => entries.remove(op.key()),
                };
                result
            }
            Err(code) if txn.keep_going => Answer::Error(Error::new(code, "")),
            Err(code) => return Err(Outcome::error(code, "")),
        };
        results.push(OpResult {
            result: Some(result),
        });
    }
    Ok(TxnResult {
        or_else: failed.is_some(),
        failed,
        version: changed.then_some(version),
        results,
        abridged: false,
    })
}

/// Returns the list that is executed.
fn list_of(txn: &Txn, has_failed: bool) -> &[TxnOp] {
    if has_failed { &txn.or_else } else { &txn.then }
}

/// Returns the number of bytes that are reserved in an answer for each operation.
fn other_bytes(txn: &Txn) -> usize {
    if txn.keep_going { 256 } else { 16 }
}

fn holds(comparison: &Comparison, found: Option<&(Bytes, Version)>) -> bool {
    // An absent key is below every value, and equal to none.
    let order = |other: &Bytes| match found {
        Some((value, _)) => value.cmp(other),
        None => Ordering::Less,
    };
    match &comparison.condition {
        Some(Condition::Version(version)) => found.is_some_and(|(_, found)| found == version),
        Some(Condition::Present(present)) => *present == found.is_some(),
        Some(Condition::Equal(other)) => order(other).is_eq(),
        Some(Condition::Less(other)) => order(other).is_lt(),
        Some(Condition::AtMost(other)) => order(other).is_le(),
        Some(Condition::Greater(other)) => order(other).is_gt(),
        Some(Condition::AtLeast(other)) => order(other).is_ge(),
        None => false,
    }
}

type Stored = (Bytes, Version);

/// Executes one operation. Returns its result and the entry of its key afterwards.
fn run(
    op: &Op,
    before: Option<&Stored>,
    version: Version,
) -> Result<(Answer, Option<Stored>), ErrorCode> {
    let value = before.map(|(value, _)| value);
    let write = |value: Bytes| Some((value, version));
    Ok(match op {
        Op::Get(_) => {
            let found = before.map(|(value, version)| {
                Answer::Value(Value {
                    value: value.clone(),
                    version: Some(*version),
                })
            });
            (
                found.unwrap_or(Answer::Missing(Missing {})),
                before.cloned(),
            )
        }
        Op::Put(put) => (Answer::Count(1), write(put.value.clone())),
        Op::Delete(_) => (Answer::Count(before.is_some().into()), None),
        Op::PutFields(put) => {
            let merged = merged(value, &put.fields).ok_or(ErrorCode::NotARecord)?;
            (Answer::Count(1), write(merged))
        }
        Op::DeleteFields(delete) => {
            let stored = value.cloned().unwrap_or_default();
            let mut record = record(&stored).ok_or(ErrorCode::NotARecord)?;
            let fields = record.fields.len();
            record
                .fields
                .retain(|field| !delete.names.contains(&field.name));
            let removed = fields - record.fields.len();
            let after = match removed {
                0 => before.cloned(),
                _ => write(record.encode_to_vec().into()),
            };
            (Answer::Count(removed as u64), after)
        }
        Op::Add(add) => {
            let number = value.map_or(Some(0), |value| parse(value));
            let sum = number.and_then(|number| number.checked_add(add.delta));
            let sum = sum.ok_or(ErrorCode::NotAnInteger)?;
            (Answer::Number(sum), write(sum.to_string().into()))
        }
        Op::Append(append) => {
            let mut longer = value.map(|value| value.to_vec()).unwrap_or_default();
            longer.extend_from_slice(&append.suffix);
            if longer.len() > RECORD_BYTES_MAX {
                return Err(ErrorCode::TooLarge);
            }
            (Answer::Count(longer.len() as u64), write(longer.into()))
        }
    })
}

/// Parses an integer: an optional minus, and digits without leading zeros. There is no "-0".
fn parse(value: &[u8]) -> Option<i64> {
    let digits = value.strip_prefix(b"-").unwrap_or(value);
    let negative = digits.len() < value.len();
    match digits {
        [] => None,
        [b'0', _, ..] => None,
        [b'0'] if negative => None,
        _ if digits.iter().all(u8::is_ascii_digit) => std::str::from_utf8(value).ok()?.parse().ok(),
        _ => None,
    }
}

/// Returns true if `answer` may be the answer to a repeated transaction with the result `known`.
/// The texts of errors have been removed from both. The session has not kept the values if they are
/// long together. It has kept no results of operations if these are long even without the values.
/// If it has many later results, it may have kept neither. It always keeps short results.
pub(in super::super) fn may_be_repeated(known: &TxnResult, answer: &TxnResult) -> bool {
    let mut kept = known.clone();
    let is_error = |it: &&OpResult| matches!(it.result, Some(Answer::Error(_)));
    let texts = known.results.iter().filter(is_error).count() * TEXT_BYTES_MAX;
    let may_be_shortened = known.encoded_len() + OUTCOME_BYTES + texts > SHORT_BYTES;
    let shortest = may_be_shortened && answer.results.is_empty() && value_bytes(answer) == 0;
    let long = shortest || value_bytes(&kept) > KEPT_VALUES_BYTES;
    if long {
        let found = kept.failed.iter_mut().filter_map(|it| it.found.as_mut());
        found.for_each(|value| value.value = Bytes::new());
        for result in &mut kept.results {
            if let Some(Answer::Value(value)) = &mut result.result {
                value.value = Bytes::new();
            }
        }
    }
    let too_long = kept.encoded_len() + texts > KEPT_BYTES;
    if (shortest || too_long) && answer.results.is_empty() {
        kept.results = Vec::new();
    } else if !long {
        return false;
    }
    kept.abridged = true;
    kept == *answer
}

fn value_bytes(result: &TxnResult) -> usize {
    let found = result.failed.iter().filter_map(|it| it.found.as_ref());
    let read = result.results.iter().filter_map(|it| match &it.result {
        Some(Answer::Value(value)) => Some(value),
        _ => None,
    });
    found.chain(read).map(|value| value.value.len()).sum()
}
