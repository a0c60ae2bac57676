//! Choice of the clients' operations, and interpretation of the answers.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};
use leasehold_histories::history::{HistoryAction, ValueId};
use leasehold_leases::Key;
use leasehold_wire::command::Op;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::{Field, KeyValue, Outcome, VALUE_BYTES_MAX, Version};
use rand::RngExt as _;
use rand_pcg::Pcg64Mcg;
use smallvec::smallvec;

use super::load::ClientLoad;
use super::operations::Parts;
use super::record_shape::{self, RecordShape};
use super::txns::PLAIN_KEYS;

/// Maximum number of keys of a run that the checkers judge.
pub(super) const KEYS_MAX: u64 = 16;
/// Range of sizes of large values, in bytes.
const LARGE_BYTES: RangeInclusive<usize> = 256 << 10..=VALUE_BYTES_MAX;
/// Size in bytes of the buffer in which values are allocated together.
const VALUES_BYTES: usize = 4096;

/// Last version and value that a client has seen, for each key. A compare-and-swap of the client
/// expects this version, and therefore also this value.
pub(super) type SeenVersions = BTreeMap<u64, (Option<Version>, Option<ValueId>)>;

/// Returns the name of a key. The name is static, so copies of the name need no reference count. A
/// reference count would be slow, because all threads of a campaign would share it.
pub fn key(number: u64) -> Key {
    static NAMES: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
        let name = |k| &*String::leak(format!("key{k:04}"));
        (0..KEYS_MAX + PLAIN_KEYS).map(name).collect()
    });
    Key::from_static(NAMES[number as usize].as_bytes())
}

/// Generator of the clients' operations.
pub(super) struct Chooser {
    pub rng: Pcg64Mcg,
    values: u64,
    /// Number of large values that the chooser may still create.
    large: u32,
    /// Shape of the records, if the values are records; otherwise `None`.
    records: Option<RecordShape>,
    /// Buffer in which the bytes of the next values are allocated side by side.
    bytes: BytesMut,
}

impl Chooser {
    /// Creates a chooser with the generator `rng`, for clients with the load `load`.
    pub fn new(rng: Pcg64Mcg, load: &ClientLoad) -> Chooser {
        Chooser {
            rng,
            values: 0,
            large: load.large,
            records: load.records,
            bytes: BytesMut::with_capacity(VALUES_BYTES),
        }
    }

    /// Returns a new name, for a value that was never written before.
    fn name(&mut self) -> ValueId {
        self.values += 1;
        ValueId(self.values)
    }

    /// Returns a value that was never written before: its name and its bytes.
    fn value(&mut self) -> (ValueId, Bytes) {
        if self.large == 0 {
            return self.small_value();
        }
        let value = self.name();
        if self.rng.random::<bool>() {
            self.large -= 1;
            return (value, value.to_value(self.rng.random_range(LARGE_BYTES)));
        }
        (value, self.bytes_of(value))
    }

    /// Returns a value that was never written before and is not large: its name and its bytes.
    pub(super) fn small_value(&mut self) -> (ValueId, Bytes) {
        let value = self.name();
        match &self.records {
            Some(records) => (value, records.whole(value)),
            None => (value, self.bytes_of(value)),
        }
    }

    fn bytes_of(&mut self, value: ValueId) -> Bytes {
        self.bytes.extend_from_slice(&value.to_bytes());
        self.bytes.split().freeze()
    }

    /// Shape of the records, if the values are records; otherwise `None`.
    pub(super) fn records(&self) -> Option<&RecordShape> {
        self.records.as_ref()
    }

    /// Returns the fields of a merge that was never requested before.
    pub(super) fn merged_fields(&mut self) -> Vec<Field> {
        let value = self.name();
        let merged = |records: &RecordShape| records.merged(value, &mut self.rng);
        self.records.as_ref().map(merged).unwrap_or_default()
    }

    /// Returns the value that stored bytes have for the register `k`.
    pub(super) fn register_value(&self, k: u64, stored: &[u8]) -> Option<ValueId> {
        match &self.records {
            Some(records) => records.register_value(k, stored),
            None => Some(ValueId::of_value(stored)),
        }
    }

    /// Returns the next operation of a client, and the effects of the operation. `seen` contains
    /// the versions and values that the client has seen. The effects of a transaction depend on its
    /// answer; none are returned.
    pub fn choose(&mut self, load: &ClientLoad, seen: &SeenVersions) -> (Op, Parts) {
        let (op, mut parts) = self.choose_any(load, seen);
        if self.records.is_some() {
            record_shape::add_rest(&op, &mut parts);
        }
        (op, parts)
    }

    fn choose_any(&mut self, load: &ClientLoad, seen: &SeenVersions) -> (Op, Parts) {
        let k = self.rng.random_range(0..load.keys);
        let read = HistoryAction::Read { value: None };
        if load.txns > 0.0 && self.rng.random::<f64>() < load.txns {
            return (Op::txn(self.txn(load, seen)), Parts::new());
        }
        if load.rare > 0.0 && self.rng.random::<f64>() < load.rare {
            return self.choose_rare(load, seen, k);
        }
        if self.rng.random::<f64>() < load.reads {
            return (Op::get(key(k)), smallvec![(k, read)]);
        }
        if let Some(records) = self.records
            && records.draws_merge(&mut self.rng)
        {
            let value = self.name();
            let fields = records.merged(value, &mut self.rng);
            let op = Op::put_fields(key(k), fields);
            return (op, smallvec![(k, HistoryAction::Write { value })]);
        }
        let (value, bytes) = self.value();
        (
            Op::put(key(k), bytes),
            smallvec![(k, HistoryAction::Write { value })],
        )
    }

    /// Returns the effect that an answered operation had on key `k`; `None` if the operation
    /// failed, or if the answer says nothing about this key.
    pub fn answered(&self, k: u64, did: HistoryAction, outcome: &Outcome) -> Option<HistoryAction> {
        let found = |stored: &Bytes| self.register_value(k, stored);
        match (did, outcome.result.as_ref()?) {
            (HistoryAction::Read { .. }, Answer::Value(value)) => Some(HistoryAction::Read {
                value: found(&value.value),
            }),
            (HistoryAction::Read { .. }, Answer::Missing(_)) => {
                Some(HistoryAction::Read { value: None })
            }
            (HistoryAction::Read { .. }, Answer::Entries(all)) => {
                let name = key(k % KEYS_MAX);
                let entry = all.entries.iter().find(|entry| entry.key == name);
                Some(HistoryAction::Read {
                    value: entry.and_then(|entry| found(&entry.value)),
                })
            }
            (HistoryAction::Write { .. } | HistoryAction::Delete, Answer::Written(_)) => Some(did),
            (HistoryAction::Cas { expected, new, .. }, Answer::Written(_)) => {
                Some(HistoryAction::Cas {
                    expected,
                    new,
                    swapped: true,
                })
            }
            (HistoryAction::Cas { expected, new, .. }, Answer::Mismatch(_)) => {
                Some(HistoryAction::Cas {
                    expected,
                    new,
                    swapped: false,
                })
            }
            (
                HistoryAction::Read { .. },
                Answer::Written(_) | Answer::Mismatch(_) | Answer::Error(_) | Answer::Txn(_),
            )
            | (
                HistoryAction::Write { .. } | HistoryAction::Delete,
                Answer::Value(_)
                | Answer::Missing(_)
                | Answer::Mismatch(_)
                | Answer::Entries(_)
                | Answer::Error(_)
                | Answer::Txn(_),
            )
            | (
                HistoryAction::Cas { .. },
                Answer::Value(_)
                | Answer::Missing(_)
                | Answer::Entries(_)
                | Answer::Error(_)
                | Answer::Txn(_),
            ) => None,
        }
    }

    fn choose_rare(&mut self, load: &ClientLoad, seen: &SeenVersions, k: u64) -> (Op, Parts) {
        let other = (k + 1) % load.keys;
        let read = HistoryAction::Read { value: None };
        match self.rng.random_range(0..5) {
            0 => (Op::delete(key(k)), smallvec![(k, HistoryAction::Delete)]),
            1 => {
                let (version, expected) = seen.get(&k).copied().unwrap_or_default();
                let (new, bytes) = self.value();
                let did = HistoryAction::Cas {
                    expected,
                    new,
                    swapped: false,
                };
                let op = Op::cas(key(k), bytes, version);
                (op, smallvec![(k, did)])
            }
            2 if other != k => {
                let ((a, a_bytes), (b, b_bytes)) = (self.value(), self.value());
                let entry = |k: u64, value| KeyValue { key: key(k), value };
                let op = Op::multi_put(vec![entry(k, a_bytes), entry(other, b_bytes)]);
                let wrote = |value| HistoryAction::Write { value };
                (op, smallvec![(k, wrote(a)), (other, wrote(b))])
            }
            3 if other != k => (
                Op::multi_get(vec![key(k), key(other)]),
                smallvec![(k, read), (other, read)],
            ),
            _ => {
                let all = (0..load.keys).map(|k| (k, read)).collect();
                let limit = load.keys as u32;
                (Op::scan(Key::new(), Key::new(), limit), all)
            }
        }
    }
}

/// Returns the version of key `k` in the answer to a read, if there is one.
pub(super) fn version_of(k: u64, outcome: &Outcome) -> Option<Version> {
    match outcome.result.as_ref()? {
        Answer::Value(value) => value.version,
        Answer::Entries(all) => all.entries.iter().find(|e| e.key == key(k))?.version,
        Answer::Written(_) | Answer::Missing(_) | Answer::Mismatch(_) | Answer::Error(_) => None,
        Answer::Txn(_) => None,
    }
}
