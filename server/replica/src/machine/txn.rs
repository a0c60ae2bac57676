//! Execution of transactions.

use std::collections::BTreeMap;

use bytes::Bytes;
use leasehold_leases::Key;
use leasehold_leases::mutants::{Rule, off};
use leasehold_wire::comparison::Condition;
use leasehold_wire::op_result::Result as OpAnswer;
use leasehold_wire::txn_op::Op as Operation;
use leasehold_wire::{
    Add, Append, Comparison, DeleteFields, Error, ErrorCode, FailedComparison, Missing, OpResult,
    Outcome, PutFields, Txn, TxnOp, TxnResult, VALUE_BYTES_MAX, Value, Version,
};

use super::kv::{ENTRY_OVERHEAD, Kv, RESULT_BYTES_MAX, own, record_error};
use super::merge::{RECORD_BYTES_MAX, merge, remove_fields};
use crate::cost;

/// Maximum size of all values together that a transaction may rewrite, in bytes. A value counts
/// each time it is rewritten, even if the transaction itself wrote it. Later commands in the log
/// wait meanwhile.
pub(super) const REWRITTEN_BYTES_MAX: usize = 1 << 20;
/// Maximum length of the result of an operation that returns a number, in bytes.
const COUNT_BYTES: usize = 16;
/// Maximum length of the result of an operation that returns an error, in bytes.
const ERROR_BYTES: usize = 256;

impl Kv {
    /// Executes a transaction. `version` is the version of every value that it writes.
    pub(super) fn txn(&mut self, version: Version, txn: &Txn) -> Outcome {
        let failed = self.failed_comparison(txn);
        let (name, list) = match failed {
            None => ("then", &txn.then),
            Some(_) => ("or_else", &txn.or_else),
        };
        let found = failed.as_ref().and_then(|failed| failed.found.as_ref());
        let mut draft = Draft {
            kv: self,
            version,
            changes: BTreeMap::new(),
            rewritten_bytes: 0,
            shares_values: txn.answers_with_values(),
            answer_bytes: found.map_or(0, |found| found.value.len())
                + list.len()
                    * if txn.keep_going {
                        ERROR_BYTES
                    } else {
                        COUNT_BYTES
                    },
            work: 0,
        };
        let results = draft.execute_all(name, list, txn.keep_going);
        let Draft { changes, work, .. } = draft;
        self.add_merge_work(work);
        // A transaction is executed as a whole or not at all (hazard 131).
        if results.is_ok() || off(Rule::H131Whole) {
            for (key, change) in &changes {
                self.apply(key, change, version);
            }
        }
        let results = match results {
            Ok(results) => results,
            Err(error) => return error.into(),
        };
        let version = (!changes.is_empty()).then_some(version);
        Outcome::txn(TxnResult {
            or_else: failed.is_some(),
            failed,
            version,
            results,
            abridged: false,
        })
    }

    fn apply(&mut self, key: &Key, change: &Change, version: Version) {
        match change {
            Change::Put(value) => self.put(key, value.clone(), version),
            Change::Delete => self.delete(key),
            Change::Replace(value) => {
                self.delete(key);
                self.put(key, value.clone(), version);
            }
        }
    }

    /// Returns the first comparison that does not hold, with the value that was found.
    fn failed_comparison(&self, txn: &Txn) -> Option<FailedComparison> {
        let mut comparisons = txn.comparisons.iter().zip(0..);
        comparisons.find_map(|(comparison, index)| {
            let found = self.get(&comparison.key);
            let found = found.map(|stored| (&stored.value, stored.version));
            (!holds(comparison, found)).then(|| FailedComparison {
                index,
                found: found.map(|(value, version)| Value {
                    value: value.clone(),
                    version: Some(version),
                }),
            })
        })
    }
}

/// Returns true if a comparison holds for the value that was found under its key. `None` stands for
/// a key that does not exist: it equals no value, and is below every value.
fn holds(comparison: &Comparison, found: Option<(&Bytes, Version)>) -> bool {
    let value = found.map(|(value, _)| value);
    match &comparison.condition {
        Some(Condition::Version(version)) => found.is_some_and(|(_, found)| found == *version),
        Some(Condition::Present(present)) => found.is_some() == *present,
        Some(Condition::Equal(other)) => value == Some(other),
        Some(Condition::Less(other)) => value < Some(other),
        Some(Condition::AtMost(other)) => value <= Some(other),
        Some(Condition::Greater(other)) => value > Some(other),
        Some(Condition::AtLeast(other)) => value >= Some(other),
        None => false,
    }
}

/// Change of a key by the operations executed so far.
enum Change {
    /// The key has this value.
    Put(Bytes),
    /// The key does not exist.
    Delete,
    /// The key was deleted and created again, with this value.
    Replace(Bytes),
}

impl Change {
    /// Returns the value of the key; `None` if the key does not exist.
    fn value(&self) -> Option<&Bytes> {
        match self {
            Change::Put(value) | Change::Replace(value) => Some(value),
            Change::Delete => None,
        }
    }
}

/// Effects of the operations executed so far, which the state does not have yet.
struct Draft<'s, 'a> {
    kv: &'s Kv,
    /// Version of the values that are written.
    version: Version,
    /// Changed keys.
    changes: BTreeMap<&'a Key, Change>,
    /// Size of the values rewritten so far, in bytes. A value counts each time it is rewritten.
    rewritten_bytes: usize,
    /// True if the answer may share memory with values that are rewritten.
    shares_values: bool,
    /// Upper bound on the size of the answer so far, in bytes. It includes the space reserved for
    /// the result of each operation.
    answer_bytes: usize,
    /// Work of rewriting values so far, in units of `cost::merging`.
    work: usize,
}

impl<'a> Draft<'_, 'a> {
    /// Executes the list `name` of operations. If one of them cannot be executed, returns its error,
    /// or continues if `keeps_going` is true.
    fn execute_all(
        &mut self,
        name: &str,
        list: &'a [TxnOp],
        keeps_going: bool,
    ) -> Result<Vec<OpResult>, Error> {
        let mut results = Vec::with_capacity(list.len());
        for (index, listed) in list.iter().enumerate() {
            let answer = match (self.execute(listed), keeps_going) {
                (Ok(answer), _) => answer,
                (Err(error), true) => OpAnswer::Error(error),
                (Err(error), false) => {
                    let message = format!("txn.{name}[{index}]: {}", error.message);
                    return Err(Error { message, ..error });
                }
            };
            results.push(OpResult {
                result: Some(answer),
            });
        }
        Ok(results)
    }

    fn execute(&mut self, listed: &'a TxnOp) -> Result<OpAnswer, Error> {
        let Some(operation) = &listed.op else {
            let message = "the operation is of a kind that this replica does not know";
            return Err(Error::new(ErrorCode::BadRequest, message));
        };
        match operation {
            Operation::Get(get) => self.get(&get.key),
            Operation::Put(put) => {
                self.put(&put.key, own(&put.value));
                Ok(OpAnswer::Count(1))
            }
            Operation::Delete(delete) => {
                let exists = self.find(&delete.key).is_some();
                if exists {
                    self.changes.insert(&delete.key, Change::Delete);
                }
                Ok(OpAnswer::Count(exists.into()))
            }
            Operation::PutFields(put) => self.put_fields(put),
            Operation::DeleteFields(delete) => self.delete_fields(delete),
            Operation::Add(add) => self.add(add),
            Operation::Append(append) => self.append(append),
        }
    }

    /// Returns the value of a key after the operations executed so far.
    fn find(&self, key: &Key) -> Option<(&Bytes, Version)> {
        // An operation sees the effects of those before it (hazard 132).
        let seen = |_: &&Change| !off(Rule::H132Earlier);
        match self.changes.get(key).filter(seen) {
            Some(change) => change.value().map(|value| (value, self.version)),
            None => {
                let stored = self.kv.get(key);
                stored.map(|stored| (&stored.value, stored.version))
            }
        }
    }

    fn put(&mut self, key: &'a Key, value: Bytes) {
        let change = match self.changes.get(key) {
            Some(Change::Delete | Change::Replace(_)) => Change::Replace(value),
            Some(Change::Put(_)) | None => Change::Put(value),
        };
        self.changes.insert(key, change);
    }

    fn get(&mut self, key: &Key) -> Result<OpAnswer, Error> {
        let Some((value, version)) = self.find(key) else {
            return Ok(OpAnswer::Missing(Missing {}));
        };
        let value = value.clone();
        let bytes = self.answer_bytes + value.len() + ENTRY_OVERHEAD;
        if bytes > RESULT_BYTES_MAX {
            let message = "get: the values do not fit into one answer of 4 MiB; get fewer or smaller \
                           values in one transaction";
            return Err(Error::new(ErrorCode::TooLarge, message));
        }
        self.answer_bytes = bytes;
        Ok(OpAnswer::Value(Value {
            value,
            version: Some(version),
        }))
    }

    /// Returns the value of a key that the operation `name` is about to rewrite; empty if the key
    /// does not exist.
    fn read_to_rewrite(&mut self, name: &str, key: &Key) -> Result<Bytes, Error> {
        let value = self.find(key).map(|(value, _)| value.clone());
        let value = value.unwrap_or_default();
        if value.len() > RECORD_BYTES_MAX {
            return Ok(value); // the operation refuses it without any work
        }
        let bytes = self.rewritten_bytes + value.len();
        if bytes > REWRITTEN_BYTES_MAX {
            return Err(Error::new(
                ErrorCode::TooLarge,
                format!(
                    "{name}: the transaction would rewrite more than {REWRITTEN_BYTES_MAX} bytes of \
                     stored values; use several transactions"
                ),
            ));
        }
        self.rewritten_bytes = bytes;
        Ok(value)
    }

    /// Puts a value that was rewritten, and counts the work of the memory that it needs. Later
    /// rewrites of the key reuse this memory, unless the answer may share it.
    fn put_rewritten(&mut self, key: &'a Key, value: Vec<u8>) {
        if self.shares_values || !self.changes.contains_key(key) {
            self.work += self.kv.clearing_work(key, value.len(), self.shares_values);
        }
        self.put(key, value.into());
    }

    fn put_fields(&mut self, put: &'a PutFields) -> Result<OpAnswer, Error> {
        let old = self.read_to_rewrite("put_fields", &put.key)?;
        let (merged, work) = merge(&old, &put.fields);
        self.work += work;
        let merged = merged.ok_or_else(record_error)?;
        self.put_rewritten(&put.key, merged);
        Ok(OpAnswer::Count(1))
    }

    fn delete_fields(&mut self, delete: &'a DeleteFields) -> Result<OpAnswer, Error> {
        let old = self.read_to_rewrite("delete_fields", &delete.key)?;
        let (left, work) = remove_fields(&old, &delete.names);
        self.work += work;
        let (left, removed) = left.ok_or_else(|| {
            let message = "delete_fields: the value stored under the key is not a record, or it has \
                           more than 256 KiB or 1024 fields; write it whole with put";
            Error::new(ErrorCode::NotARecord, message)
        })?;
        if removed > 0 {
            self.put_rewritten(&delete.key, left);
        }
        Ok(OpAnswer::Count(removed as u64))
    }

    fn add(&mut self, add: &'a Add) -> Result<OpAnswer, Error> {
        let number = match self.find(&add.key) {
            Some((value, _)) => integer(value),
            None => Some(0),
        };
        let Some(sum) = number.and_then(|number| number.checked_add(add.delta)) else {
            return Err(Error::new(
                ErrorCode::NotAnInteger,
                "add: the value stored under the key is no decimal integer, or it or the sum does not \
                 fit into 64 bits; write the number with put",
            ));
        };
        self.put(&add.key, sum.to_string().into());
        Ok(OpAnswer::Number(sum))
    }

    fn append(&mut self, append: &'a Append) -> Result<OpAnswer, Error> {
        let old = self.read_to_rewrite("append", &append.key)?;
        let bytes = old.len() + append.suffix.len();
        if bytes > RECORD_BYTES_MAX {
            return Err(Error::new(
                ErrorCode::TooLarge,
                format!(
                    "append: the value would have {bytes} bytes, the limit for append is \
                     {RECORD_BYTES_MAX} bytes; write it whole with put (at most {VALUE_BYTES_MAX} bytes)"
                ),
            ));
        }
        self.work += cost::merging(0, bytes);
        let joined = [&old[..], &append.suffix].concat();
        self.put_rewritten(&append.key, joined);
        Ok(OpAnswer::Count(bytes as u64))
    }
}

/// Maximum length of a decimal integer of 64 bits.
const INTEGER_BYTES_MAX: usize = "-9223372036854775808".len();

/// Parses a decimal integer as `add` writes it: without a plus sign, spaces or leading zeros. A
/// value longer than [`INTEGER_BYTES_MAX`] is refused without parsing it. Otherwise, a thousand
/// additions to one large value would take a long time.
fn integer(value: &[u8]) -> Option<i64> {
    let value = (value.len() <= INTEGER_BYTES_MAX).then_some(value)?;
    let text = std::str::from_utf8(value).ok()?;
    let number: i64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}
