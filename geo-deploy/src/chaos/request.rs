//! One operation of a client: how it is encoded as a request, and how its answer is interpreted for
//! each key.

use std::collections::BTreeMap;

use bytes::Bytes;
use leasehold_histories::history::{HistoryAction, ValueId};
use leasehold_wire::command::Op;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::{Entry, KeyValue, SCAN_ENTRIES_MAX, Version};

use super::effects::{EffectCollector, Effects, Parts};
use super::keys::{key_number, stored};
use super::txn::TxnRequest;
use crate::backend::key_name;

/// Kinds of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OperationKind {
    /// Reads one key.
    Get,
    /// Writes one key.
    Put,
    /// Removes one key.
    Delete,
    /// Compare-and-swap: writes one key if the key has the state that the client expects.
    Cas,
    /// Reads all keys of a range atomically.
    Scan,
    /// Reads several keys atomically.
    MultiGet,
    /// Writes several keys atomically.
    MultiPut,
    /// Compares, reads and changes keys atomically.
    Txn,
    /// Appends to lists, as a transaction.
    Append,
    /// Adds to counters, as a transaction.
    Add,
}

impl OperationKind {
    /// All kinds of operations.
    pub const ALL: [OperationKind; 10] = [
        OperationKind::Get,
        OperationKind::Put,
        OperationKind::Delete,
        OperationKind::Cas,
        OperationKind::Scan,
        OperationKind::MultiGet,
        OperationKind::MultiPut,
        OperationKind::Txn,
        OperationKind::Append,
        OperationKind::Add,
    ];

    /// Returns the name of the kind in summaries.
    pub fn name(self) -> &'static str {
        match self {
            OperationKind::Get => "get",
            OperationKind::Put => "put",
            OperationKind::Delete => "delete",
            OperationKind::Cas => "cas",
            OperationKind::Scan => "scan",
            OperationKind::MultiGet => "multi-get",
            OperationKind::MultiPut => "multi-put",
            OperationKind::Txn => "txn",
            OperationKind::Append => "append",
            OperationKind::Add => "add",
        }
    }

    /// Whether an operation of this kind may change the state.
    pub fn is_write(self) -> bool {
        match self {
            OperationKind::Put
            | OperationKind::Delete
            | OperationKind::Cas
            | OperationKind::MultiPut
            | OperationKind::Txn
            | OperationKind::Append
            | OperationKind::Add => true,
            OperationKind::Get | OperationKind::Scan | OperationKind::MultiGet => false,
        }
    }
}

/// State that a client expects a key to have; `None` if the client expects that the key has no
/// value.
pub type Belief = Option<(ValueId, Version)>;

/// An operation that a client is about to send.
#[derive(Clone, Debug)]
pub struct OperationRequest {
    /// Kind of the operation.
    pub kind: OperationKind,
    /// Keys of the operation. For a scan, these are all keys of the range, in ascending order and
    /// without a gap. For an operation on a record, these are all keys of its group.
    pub keys: Vec<u64>,
    /// Values to write, one for each key.
    pub values: Vec<ValueId>,
    /// Expected state of the key, for a compare-and-swap. Other kinds of operations ignore this
    /// field.
    pub expected: Belief,
    /// The transaction, if the operation is one.
    pub txn: Option<TxnRequest>,
}

/// Error for an answer that a correct store could not have given in any state. The message contains
/// the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnexplainedAnswer(pub String);

impl OperationRequest {
    /// Creates an operation without values.
    pub fn read(kind: OperationKind, keys: Vec<u64>) -> OperationRequest {
        OperationRequest {
            kind,
            keys,
            values: Vec::new(),
            expected: None,
            txn: None,
        }
    }

    /// Creates an operation that is a transaction on these keys.
    pub fn txn(kind: OperationKind, keys: Vec<u64>, txn: TxnRequest) -> OperationRequest {
        OperationRequest {
            txn: Some(txn),
            ..OperationRequest::read(kind, keys)
        }
    }

    /// Returns the operation in the form in which it is sent.
    pub fn op(&self) -> Op {
        let key = |at: usize| key_name(self.keys[at]);
        let written = |at: usize| stored(self.values[at]);
        match self.kind {
            OperationKind::Get => Op::get(key(0)),
            OperationKind::Put => Op::put(key(0), written(0)),
            OperationKind::Delete => Op::delete(key(0)),
            OperationKind::Cas => Op::cas(
                key(0),
                written(0),
                self.expected.map(|(_, version)| version),
            ),
            OperationKind::Scan => Op::scan(key(0), self.end(), SCAN_ENTRIES_MAX),
            OperationKind::MultiGet => Op::multi_get((0..self.keys.len()).map(key).collect()),
            OperationKind::MultiPut => {
                let entry = |at| KeyValue {
                    key: key(at),
                    value: written(at),
                };
                Op::multi_put((0..self.keys.len()).map(entry).collect())
            }
            OperationKind::Txn | OperationKind::Append | OperationKind::Add => {
                let txn = self.txn.as_ref().map(|request| request.txn.clone());
                Op::txn(txn.unwrap_or_default())
            }
        }
    }

    /// Returns the end of a scan's range: the first key after the range.
    fn end(&self) -> Bytes {
        key_name(self.keys.last().map_or(0, |last| last + 1))
    }

    /// Returns true if this operation is a transaction that a correct replica may refuse.
    pub fn may_be_refused(&self) -> bool {
        self.txn.as_ref().is_some_and(TxnRequest::may_be_refused)
    }

    /// Returns all writes of this operation. If the operation was never answered, these writes are
    /// its possible effects. For a transaction, there is an entry for each branch.
    pub fn possible_effects(&self) -> Vec<Effects> {
        match &self.txn {
            Some(request) => request.possible_effects(),
            None => vec![self.effects(true).into()],
        }
    }

    /// Returns the effects of this operation according to its answer.
    ///
    /// # Errors
    /// If the answer does not fit this operation, or contains a value that was never written.
    pub fn effects_of(&self, answer: &Answer) -> Result<Effects, UnexplainedAnswer> {
        match (self.kind, answer) {
            (OperationKind::Get, Answer::Missing(_)) => self.found(&BTreeMap::new()),
            (OperationKind::Get, Answer::Value(found)) => {
                self.found(&BTreeMap::from([(self.keys[0], &found.value)]))
            }
            (OperationKind::Scan | OperationKind::MultiGet, Answer::Entries(entries)) => {
                self.found(&self.entries(&entries.entries)?)
            }
            (OperationKind::Cas, Answer::Mismatch(_)) => Ok(self.effects(false).into()),
            (
                OperationKind::Put
                | OperationKind::Delete
                | OperationKind::Cas
                | OperationKind::MultiPut,
                Answer::Written(_),
            ) => Ok(self.effects(true).into()),
            (
                OperationKind::Txn | OperationKind::Append | OperationKind::Add,
                Answer::Txn(result),
            ) => match &self.txn {
                Some(request) => (request.effects_of(result)).map_err(|what| self.wrong(what)),
                None => Err(self.wrong("has no transaction".to_owned())),
            },
            (
                OperationKind::Get,
                Answer::Written(_)
                | Answer::Mismatch(_)
                | Answer::Entries(_)
                | Answer::Txn(_)
                | Answer::Error(_),
            )
            | (
                OperationKind::Scan | OperationKind::MultiGet,
                Answer::Written(_)
                | Answer::Value(_)
                | Answer::Missing(_)
                | Answer::Mismatch(_)
                | Answer::Txn(_)
                | Answer::Error(_),
            )
            | (
                OperationKind::Put | OperationKind::Delete | OperationKind::MultiPut,
                Answer::Value(_)
                | Answer::Missing(_)
                | Answer::Mismatch(_)
                | Answer::Entries(_)
                | Answer::Txn(_)
                | Answer::Error(_),
            )
            | (
                OperationKind::Cas,
                Answer::Value(_)
                | Answer::Missing(_)
                | Answer::Entries(_)
                | Answer::Txn(_)
                | Answer::Error(_),
            )
            | (
                OperationKind::Txn | OperationKind::Append | OperationKind::Add,
                Answer::Written(_)
                | Answer::Value(_)
                | Answer::Missing(_)
                | Answer::Mismatch(_)
                | Answer::Entries(_)
                | Answer::Error(_),
            ) => Err(self.wrong(format!("was answered {answer:?}"))),
        }
    }

    /// Returns the effects of a read that found these values, by key.
    fn found(&self, values: &BTreeMap<u64, &Bytes>) -> Result<Effects, UnexplainedAnswer> {
        let mut found = EffectCollector::default();
        for key in &self.keys {
            let seen = found.see(*key, values.get(key).copied());
            seen.map_err(|what| self.wrong(what))?;
        }
        Ok(found.finish())
    }

    /// Returns the writes of this operation; a read has none. `swapped` says whether a
    /// compare-and-swap wrote its value.
    fn effects(&self, swapped: bool) -> Parts {
        match self.kind {
            OperationKind::Get | OperationKind::Scan | OperationKind::MultiGet => Parts::new(),
            // The effects of a transaction depend on its branch.
            OperationKind::Txn | OperationKind::Append | OperationKind::Add => Parts::new(),
            OperationKind::Delete => vec![(self.keys[0], HistoryAction::Delete)],
            OperationKind::Cas => {
                let expected = self.expected.map(|(value, _)| value);
                let new = self.values[0];
                let action = HistoryAction::Cas {
                    expected,
                    new,
                    swapped,
                };
                vec![(self.keys[0], action)]
            }
            OperationKind::Put | OperationKind::MultiPut => {
                let keys = self.keys.iter().copied();
                let values = self.values.iter().copied();
                let write = |(key, value)| (key, HistoryAction::Write { value });
                keys.zip(values).map(write).collect()
            }
        }
    }

    fn entries<'a>(
        &self,
        entries: &'a [Entry],
    ) -> Result<BTreeMap<u64, &'a Bytes>, UnexplainedAnswer> {
        let mut found = BTreeMap::new();
        for entry in entries {
            let Some(key) = self.key_of(&entry.key) else {
                let key = String::from_utf8_lossy(&entry.key);
                return Err(self.wrong(format!("found {key}, for which it did not ask")));
            };
            if found.insert(key, &entry.value).is_some() {
                return Err(self.wrong(format!("found key {key} twice")));
            }
        }
        Ok(found)
    }

    /// Returns the ID of the key that is stored under `name`; `None` if this operation has no such
    /// key.
    pub fn key_of(&self, name: &Bytes) -> Option<u64> {
        key_number(name).filter(|key| self.keys.contains(key))
    }

    fn wrong(&self, what: String) -> UnexplainedAnswer {
        let (first, last) = (self.keys.first(), self.keys.last());
        UnexplainedAnswer(format!(
            "{} of keys {:?} to {:?} {what}",
            self.kind.name(),
            first.unwrap_or(&0),
            last.unwrap_or(&0)
        ))
    }
}

#[cfg(test)]
mod tests {
    use leasehold_wire::outcome::Result as Answer;
    use leasehold_wire::{Entries, Missing, Value};

    use super::*;

    const KEYS: [u64; 3] = [4, 5, 6];

    fn request(kind: OperationKind, keys: &[u64]) -> OperationRequest {
        OperationRequest {
            values: (1..=keys.len() as u64).map(ValueId).collect(),
            ..OperationRequest::read(kind, keys.to_vec())
        }
    }

    fn entries(all: &[(u64, ValueId)]) -> Answer {
        let entry = |&(key, id): &(u64, ValueId)| Entry {
            key: key_name(key),
            value: stored(id),
            version: Some(Version::default()),
        };
        Answer::Entries(Entries {
            entries: all.iter().map(entry).collect(),
        })
    }

    #[test]
    fn a_scan_finds_every_key_of_its_range_or_that_it_is_absent() {
        let scan = request(OperationKind::Scan, &KEYS);
        let found = scan
            .effects_of(&entries(&[(5, ValueId(9))]))
            .expect("an answer");
        let read = |value| HistoryAction::Read { value };
        assert_eq!(
            found.parts,
            [
                (4, read(None)),
                (5, read(Some(ValueId(9)))),
                (6, read(None))
            ]
        );
        assert_eq!(
            scan.possible_effects(),
            [Effects::default()],
            "a read without an answer says nothing"
        );
    }

    #[test]
    fn answers_that_nothing_explains_are_wrong() {
        let scan = request(OperationKind::Scan, &KEYS);
        let outside = scan.effects_of(&entries(&[(7, ValueId(9))]));
        assert!(outside.is_err_and(|wrong| wrong.0.contains("did not ask")));
        let twice = scan.effects_of(&entries(&[(5, ValueId(9)), (5, ValueId(9))]));
        assert!(twice.is_err_and(|wrong| wrong.0.contains("twice")));
        let mut torn = stored(ValueId(9)).to_vec();
        torn.pop();
        let get = request(OperationKind::Get, &[4]).effects_of(&Answer::Value(Value {
            value: torn.into(),
            version: None,
        }));
        assert!(get.is_err_and(|wrong| wrong.0.contains("no client wrote")));
        let put = request(OperationKind::Put, &[4]).effects_of(&Answer::Missing(Missing {}));
        assert!(put.is_err());
    }

    #[test]
    fn a_write_without_an_answer_may_have_been_executed() {
        let write = |value| HistoryAction::Write {
            value: ValueId(value),
        };
        let put = request(OperationKind::MultiPut, &KEYS).possible_effects();
        let writes = vec![(4, write(1)), (5, write(2)), (6, write(3))];
        assert_eq!(put, [Effects::from(writes)]);
        let cas = request(OperationKind::Cas, &[4]);
        let swapped = |swapped| HistoryAction::Cas {
            expected: None,
            new: ValueId(1),
            swapped,
        };
        let swaps = Effects::from(vec![(4, swapped(true))]);
        assert_eq!(cas.possible_effects(), [swaps]);
        let mismatch = Answer::Mismatch(leasehold_wire::Mismatch { actual: None });
        assert_eq!(
            cas.effects_of(&mismatch),
            Ok(vec![(4, swapped(false))].into())
        );
    }
}
