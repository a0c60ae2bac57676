//! Store that is correct by construction. It shares no code with the replicas.

use std::collections::BTreeMap;

use bytes::Bytes;
use leasehold_wire::command::Op;
use leasehold_wire::comparison::Condition;
use leasehold_wire::op_result::Result as OpAnswer;
use leasehold_wire::txn_op::Op as Operation;
use leasehold_wire::{
    Comparison, Entry, Error, ErrorCode, FailedComparison, Field, Missing, OpResult, Outcome,
    Record, Txn, TxnOp, TxnResult, Value, Version,
};
use prost::Message as _;

/// Store that executes one operation after the other.
#[derive(Default)]
pub(super) struct Store {
    keys: BTreeMap<Bytes, (Bytes, Version)>,
    slot: u64,
    /// Number of changes of keys.
    changes: u64,
}

impl Store {
    pub(super) fn execute(&mut self, op: &Op) -> Outcome {
        self.slot += 1;
        let version = Version {
            slot: self.slot,
            index: 0,
        };
        match op {
            Op::Get(get) => match self.keys.get(&get.key) {
                Some((value, version)) => Outcome::value(value.clone(), *version),
                None => Outcome::missing(),
            },
            Op::Put(put) => self.write(&put.key, &put.value, version),
            Op::Delete(delete) => {
                self.keys.remove(&delete.key);
                Outcome::written(version)
            }
            Op::Cas(cas) => {
                let actual = self.keys.get(&cas.key).map(|(_, version)| *version);
                if actual == cas.expected {
                    self.write(&cas.key, &cas.value, version)
                } else {
                    Outcome::mismatch(actual)
                }
            }
            Op::MultiGet(get) => self.found(get.keys.iter()),
            Op::MultiPut(put) => {
                for entry in &put.entries {
                    self.write(&entry.key, &entry.value, version);
                }
                Outcome::written(version)
            }
            Op::Scan(scan) => {
                let range = scan.from.clone()..scan.to.clone();
                let keys: Vec<Bytes> = self.keys.range(range).map(|(key, _)| key.clone()).collect();
                self.found(keys.iter())
            }
            Op::Txn(txn) => self.txn(txn, version),
            Op::PutFields(_) => unreachable!("clients do not ask for it"),
        }
    }

    /// Executes a transaction on a copy of the state, which becomes the state if nothing is refused.
    fn txn(&mut self, txn: &Txn, version: Version) -> Outcome {
        let failed = (txn.comparisons.iter().zip(0..)).find_map(|(comparison, index)| {
            let found = self.keys.get(&comparison.key).cloned();
            let found = found.map(|(value, version)| Value {
                value,
                version: Some(version),
            });
            let failed = FailedComparison { index, found };
            (!holds(comparison, failed.found.as_ref())).then_some(failed)
        });
        let list = if failed.is_some() {
            &txn.or_else
        } else {
            &txn.then
        };
        let mut copy = Store {
            keys: self.keys.clone(),
            ..*self
        };
        let mut results = Vec::new();
        for TxnOp { op } in list {
            let operation = op.as_ref().expect("an operation");
            let result = match copy.operate(operation, version) {
                Err(code) if !txn.keep_going => return Outcome::error(code, "refused"),
                Err(code) => OpAnswer::Error(Error::new(code, "refused")),
                Ok(answer) => answer,
            };
            results.push(OpResult {
                result: Some(result),
            });
        }
        let has_written = copy.changes > self.changes;
        *self = copy;
        Outcome::txn(TxnResult {
            or_else: failed.is_some(),
            failed,
            version: has_written.then_some(version),
            results,
            abridged: false,
        })
    }

    fn operate(&mut self, operation: &Operation, version: Version) -> Result<OpAnswer, ErrorCode> {
        let key = operation.key().clone();
        let old = self.keys.get(&key).cloned();
        let bytes = old.as_ref().map(|(value, _)| value.clone());
        let (value, answer) = match operation {
            Operation::Get(_) => {
                return Ok(match old {
                    Some((value, version)) => OpAnswer::Value(Value {
                        value,
                        version: Some(version),
                    }),
                    None => OpAnswer::Missing(Missing {}),
                });
            }
            Operation::Delete(_) => {
                let count = u64::from(self.keys.remove(&key).is_some());
                self.changes += count;
                return Ok(OpAnswer::Count(count));
            }
            Operation::Put(put) => (put.value.clone(), OpAnswer::Count(1)),
            Operation::PutFields(put) => {
                let mut fields = fields(bytes)?;
                for field in &put.fields {
                    fields.retain(|other| other.name != field.name);
                    fields.push(field.clone());
                }
                (encoded(fields), OpAnswer::Count(1))
            }
            Operation::DeleteFields(delete) => {
                let mut fields = fields(bytes)?;
                let before = fields.len();
                fields.retain(|field| !delete.names.contains(&field.name));
                let removed = before - fields.len();
                if removed == 0 {
                    return Ok(OpAnswer::Count(0));
                }
                (encoded(fields), OpAnswer::Count(removed as u64))
            }
            Operation::Add(add) => {
                let text = bytes.unwrap_or_else(|| "0".into());
                let text = String::from_utf8_lossy(&text).into_owned();
                let number: i64 = text.parse().map_err(|_| ErrorCode::NotAnInteger)?;
                let sum = number + add.delta;
                (sum.to_string().into(), OpAnswer::Number(sum))
            }
            Operation::Append(append) => {
                let joined = [bytes.unwrap_or_default(), append.suffix.clone()].concat();
                let length = joined.len() as u64;
                (joined.into(), OpAnswer::Count(length))
            }
        };
        self.keys.insert(key, (value, version));
        self.changes += 1;
        Ok(answer)
    }

    fn write(&mut self, key: &Bytes, value: &Bytes, version: Version) -> Outcome {
        self.keys.insert(key.clone(), (value.clone(), version));
        Outcome::written(version)
    }

    fn found<'a>(&self, keys: impl Iterator<Item = &'a Bytes>) -> Outcome {
        let entry = |key: &Bytes| {
            let (value, version) = self.keys.get(key)?;
            Some(Entry {
                key: key.clone(),
                value: value.clone(),
                version: Some(*version),
            })
        };
        Outcome::entries(keys.filter_map(entry).collect())
    }
}

fn holds(comparison: &Comparison, found: Option<&Value>) -> bool {
    // With a leading byte for values that exist, absence is below every value.
    let ranked = |value: &Bytes| [&[1][..], value].concat();
    let value = found.map_or(Vec::new(), |found| ranked(&found.value));
    match comparison.condition.as_ref().expect("a condition") {
        Condition::Version(version) => found.is_some_and(|found| found.version == Some(*version)),
        Condition::Present(present) => *present != value.is_empty(),
        Condition::Equal(other) => value == ranked(other),
        Condition::Less(other) => value < ranked(other),
        Condition::AtMost(other) => value <= ranked(other),
        Condition::Greater(other) => value > ranked(other),
        Condition::AtLeast(other) => value >= ranked(other),
    }
}

fn fields(bytes: Option<Bytes>) -> Result<Vec<Field>, ErrorCode> {
    let record = Record::decode(bytes.unwrap_or_default());
    record
        .map(|record| record.fields)
        .map_err(|_| ErrorCode::NotARecord)
}

fn encoded(fields: Vec<Field>) -> Bytes {
    Record { fields }.encode_to_vec().into()
}
