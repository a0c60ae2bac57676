//! One operation of a client: how it is encoded as a request, and how its answer is interpreted for
//! each key.

use std::collections::BTreeMap;

use bytes::Bytes;
use leasehold_histories::history::{HistoryAction, ValueId};
use leasehold_wire::command::Op;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::{Entry, KeyValue, SCAN_ENTRIES_MAX, Version};

use crate::backend::{key_name, value};

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
}

impl OperationKind {
    /// All kinds of operations.
    pub const ALL: [OperationKind; 7] = [
        OperationKind::Get,
        OperationKind::Put,
        OperationKind::Delete,
        OperationKind::Cas,
        OperationKind::Scan,
        OperationKind::MultiGet,
        OperationKind::MultiPut,
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
        }
    }

    /// Whether an operation of this kind may change the state.
    pub fn is_write(self) -> bool {
        match self {
            OperationKind::Put
            | OperationKind::Delete
            | OperationKind::Cas
            | OperationKind::MultiPut => true,
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
    /// without a gap.
    pub keys: Vec<u64>,
    /// Values to write, one for each key.
    pub values: Vec<ValueId>,
    /// Expected state of the key, for a compare-and-swap. Other kinds of operations ignore this
    /// field.
    pub expected: Belief,
}

/// Actions of an operation, one for each key. An action is the value that was read, or the write
/// that was performed.
pub type Parts = Vec<(u64, HistoryAction)>;

/// Error for an answer that a correct store could not have given in any state. The message contains
/// the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnexplainedAnswer(pub String);

impl OperationRequest {
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
        }
    }

    /// Returns the end of a scan's range: the first key after the range.
    fn end(&self) -> Bytes {
        key_name(self.keys.last().map_or(0, |last| last + 1))
    }

    /// Returns all writes of this operation. If the operation was never answered, these writes are
    /// its possible effects.
    pub fn possible_effects(&self) -> Parts {
        self.effects(true)
    }

    /// Returns the effects of this operation according to its answer.
    ///
    /// # Errors
    /// If the answer does not fit this operation, or contains a value that was never written.
    pub fn effects_of(&self, answer: &Answer) -> Result<Parts, UnexplainedAnswer> {
        match (self.kind, answer) {
            (OperationKind::Get, Answer::Missing(_)) => Ok(self.found(&BTreeMap::new())),
            (OperationKind::Get, Answer::Value(found)) => {
                let id = self.recognise(self.keys[0], &found.value)?;
                Ok(self.found(&BTreeMap::from([(self.keys[0], id)])))
            }
            (OperationKind::Scan | OperationKind::MultiGet, Answer::Entries(entries)) => {
                Ok(self.found(&self.entries(&entries.entries)?))
            }
            (OperationKind::Cas, Answer::Mismatch(_)) => Ok(self.effects(false)),
            (
                OperationKind::Put
                | OperationKind::Delete
                | OperationKind::Cas
                | OperationKind::MultiPut,
                Answer::Written(_),
            ) => Ok(self.effects(true)),
            (
                OperationKind::Get,
                Answer::Written(_) | Answer::Mismatch(_) | Answer::Entries(_) | Answer::Error(_),
            )
            | (
                OperationKind::Scan | OperationKind::MultiGet,
                Answer::Written(_)
                | Answer::Value(_)
                | Answer::Missing(_)
                | Answer::Mismatch(_)
                | Answer::Error(_),
            )
            | (
                OperationKind::Put | OperationKind::Delete | OperationKind::MultiPut,
                Answer::Value(_)
                | Answer::Missing(_)
                | Answer::Mismatch(_)
                | Answer::Entries(_)
                | Answer::Error(_),
            )
            | (
                OperationKind::Cas,
                Answer::Value(_) | Answer::Missing(_) | Answer::Entries(_) | Answer::Error(_),
            ) => Err(self.wrong(format!("was answered {answer:?}"))),
        }
    }

    fn found(&self, values: &BTreeMap<u64, ValueId>) -> Parts {
        let read = |key: &u64| {
            let value = values.get(key).copied();
            (*key, HistoryAction::Read { value })
        };
        self.keys.iter().map(read).collect()
    }

    /// Returns the writes of this operation; a read has none. `swapped` says whether a
    /// compare-and-swap wrote its value.
    fn effects(&self, swapped: bool) -> Parts {
        match self.kind {
            OperationKind::Get | OperationKind::Scan | OperationKind::MultiGet => Parts::new(),
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

    fn entries(&self, entries: &[Entry]) -> Result<BTreeMap<u64, ValueId>, UnexplainedAnswer> {
        let mut found = BTreeMap::new();
        for entry in entries {
            let Some(key) = self.key_of(&entry.key) else {
                let key = String::from_utf8_lossy(&entry.key);
                return Err(self.wrong(format!("found {key}, for which it did not ask")));
            };
            if found
                .insert(key, self.recognise(key, &entry.value)?)
                .is_some()
            {
                return Err(self.wrong(format!("found key {key} twice")));
            }
        }
        Ok(found)
    }

    /// Returns the ID of the key that is stored under `name`; `None` if this operation has no such
    /// key.
    pub fn key_of(&self, name: &Bytes) -> Option<u64> {
        let digits = std::str::from_utf8(name).ok()?.strip_prefix("key")?;
        let key = digits.parse().ok()?;
        (self.keys.contains(&key) && key_name(key) == *name).then_some(key)
    }

    fn recognise(&self, key: u64, bytes: &Bytes) -> Result<ValueId, UnexplainedAnswer> {
        let id = ValueId::from_value(bytes).filter(|id| stored(*id) == *bytes);
        id.ok_or_else(|| {
            let size = bytes.len();
            self.wrong(format!(
                "found {size} bytes at key {key} that no client wrote"
            ))
        })
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

/// Returns the value that is stored for an id. Most values are small, and some are as large as
/// several pages.
pub fn stored(id: ValueId) -> Bytes {
    let mixed = id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let size = match mixed % 64 {
        0 => 4096 + mixed % 4096,
        _ => 8 + mixed % 120,
    };
    value(id, size as usize)
}

#[cfg(test)]
mod tests {
    use leasehold_wire::outcome::Result as Answer;
    use leasehold_wire::{Entries, Missing, Value};

    use super::*;

    const KEYS: [u64; 3] = [4, 5, 6];

    fn request(kind: OperationKind, keys: &[u64]) -> OperationRequest {
        OperationRequest {
            kind,
            keys: keys.to_vec(),
            values: (1..=keys.len() as u64).map(ValueId).collect(),
            expected: None,
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
            found,
            [
                (4, read(None)),
                (5, read(Some(ValueId(9)))),
                (6, read(None))
            ]
        );
        assert!(
            scan.possible_effects().is_empty(),
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
        assert_eq!(put, [(4, write(1)), (5, write(2)), (6, write(3))]);
        let cas = request(OperationKind::Cas, &[4]);
        let swapped = |swapped| HistoryAction::Cas {
            expected: None,
            new: ValueId(1),
            swapped,
        };
        assert_eq!(cas.possible_effects(), [(4, swapped(true))]);
        let mismatch = Answer::Mismatch(leasehold_wire::Mismatch { actual: None });
        assert_eq!(cas.effects_of(&mismatch), Ok(vec![(4, swapped(false))]));
    }
}
