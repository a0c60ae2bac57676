//! Transactions of clients: how they are drawn, and what they mean for the history.
//!
//! A transaction names the keys of the run, which have unique values that the checkers judge, and
//! a few *plain* keys. Values of plain keys are numbers, records or any bytes, so that additions,
//! appends and merges of them succeed or fail. Only the reference state machine judges plain keys.
//!
//! In histories, an answered transaction is one action on each key: a read, a write, or a
//! compare-and-swap if it found a value and then wrote another one. A transaction without an answer
//! may have executed either list. It is recorded as two transactions without an answer, one for the
//! writes of each list. This allows more than what can happen, so it causes no false alarm.

use std::collections::BTreeMap;

use bytes::Bytes;
use leasehold_histories::history::{HistoryAction, ValueId};
use leasehold_wire::comparison::Condition;
use leasehold_wire::op_result::Result as OpAnswer;
use leasehold_wire::txn_op::Op as Listed;
use leasehold_wire::{
    Comparison, Delete, Field, Get, Put, PutFields, Record, Txn, TxnOp, TxnResult, Version,
};
use prost::Message as _;
use rand::RngExt as _;

use super::choose::{Chooser, KEYS_MAX, SeenVersions, key};
use super::load::ClientLoad;
use super::operations::Parts;
use super::record_shape::rest_of;

/// Number of plain keys. Their numbers follow those of the other keys.
pub(super) const PLAIN_KEYS: u64 = 3;
/// Fraction of operations and comparisons that name a plain key.
const PLAIN: f64 = 0.4;
/// Fraction of lists that are long, and the number of operations in these.
const LONG: f64 = 0.05;
const LONG_OPERATIONS: usize = 60;
/// Fraction of transactions that continue after an operation that fails.
const KEEPS_GOING: f64 = 0.3;
/// Fraction of lists that rewrite large values, if the list may rewrite values at all.
const LARGE: f64 = 0.03;
/// Number and length of the large values of a list. The replica refuses a transaction that rewrites
/// more than 1 MiB of stored values.
const LARGE_VALUES: u64 = 2;
const LARGE_BYTES: usize = 250_000;
/// Maximum number of operations of one transaction that rewrite stored values.
const REWRITES_MAX: usize = 6;
/// Bytes that are appended to plain values, and the value of a field. A record to which they are
/// appended is no longer a record, because no field begins with the byte 7.
const TOKEN: &[u8] = &[7; 12];
const NAMES: [&str; 3] = ["a", "b", "c"];

/// Last write of a register by a transaction.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    Write(ValueId),
    Delete,
}

/// Effect of a transaction on one register.
#[derive(Clone, Copy, Debug, Default)]
struct RegisterEffect {
    /// Value that the transaction found before it changed the register; `None` if it did not look.
    found: Option<Option<ValueId>>,
    change: Option<Change>,
}

impl RegisterEffect {
    fn action(self) -> Option<HistoryAction> {
        match (self.found, self.change) {
            (found, Some(Change::Write(new))) => Some(match found {
                Some(expected) => HistoryAction::Cas {
                    expected,
                    new,
                    swapped: true,
                },
                None => HistoryAction::Write { value: new },
            }),
            (_, Some(Change::Delete)) => Some(HistoryAction::Delete),
            (Some(value), None) => Some(HistoryAction::Read { value }),
            (None, None) => None,
        }
    }
}

/// Effects of a transaction on each register. In histories, a record is two registers.
#[derive(Debug, Default)]
struct RegisterEffects(BTreeMap<u64, RegisterEffect>);

impl RegisterEffects {
    fn find(&mut self, register: u64, value: Option<ValueId>) {
        let effect = self.0.entry(register).or_default();
        if effect.change.is_none() {
            effect.found.get_or_insert(value);
        }
    }

    fn change(&mut self, register: u64, change: Change) {
        self.0.entry(register).or_default().change = Some(change);
    }

    fn parts(&self) -> Parts {
        let actions = self.0.iter();
        let parts = actions.filter_map(|(register, effect)| Some((*register, effect.action()?)));
        parts.collect()
    }
}

/// Returns a large value, which is a record if `is_record` is true.
fn large_value(is_record: bool) -> Bytes {
    let value = vec![b'v'; LARGE_BYTES];
    if !is_record {
        return value.into();
    }
    let field = Field {
        name: NAMES[0].into(),
        value: value.into(),
    };
    let fields = vec![field];
    Record { fields }.encode_to_vec().into()
}

/// Returns the number of a key that the checkers judge; `None` if the key is plain.
fn number_of(name: &[u8]) -> Option<u64> {
    (0..KEYS_MAX).find(|k| key(*k) == name)
}

impl Chooser {
    /// Draws a transaction. `seen` contains the versions and values that the client has seen.
    pub(super) fn txn(&mut self, load: &ClientLoad, seen: &SeenVersions) -> Txn {
        let comparisons = (0..self.rng.random_range(0..3))
            .map(|_| self.comparison(load, seen))
            .collect();
        let mut rewrites = if self.rng.random::<f64>() < load.txn_rewrites {
            REWRITES_MAX
        } else {
            0
        };
        let then = self.list(load, 1, &mut rewrites);
        let or_else = self.list(load, 0, &mut rewrites);
        Txn {
            comparisons,
            then,
            or_else,
            keep_going: self.rng.random::<f64>() < KEEPS_GOING,
        }
    }

    /// Draws the number of a key.
    fn any_key(&mut self, load: &ClientLoad) -> u64 {
        if self.rng.random::<f64>() < PLAIN {
            KEYS_MAX + self.rng.random_range(0..PLAIN_KEYS)
        } else {
            self.rng.random_range(0..load.keys)
        }
    }

    fn comparison(&mut self, load: &ClientLoad, seen: &SeenVersions) -> Comparison {
        let k = self.any_key(load);
        let (version, value) = seen.get(&k).copied().unwrap_or_default();
        let bytes = match value {
            Some(value) if self.rng.random() => value.to_bytes().to_vec(),
            _ if k >= KEYS_MAX => self.rng.random_range(0..20).to_string().into_bytes(),
            _ => ValueId(self.rng.random_range(0..1000)).to_bytes().to_vec(),
        };
        let bytes = Bytes::from(bytes);
        let condition = match self.rng.random_range(0..9) {
            0..3 => match version {
                Some(version) => Condition::Version(version),
                None => Condition::Present(false),
            },
            3 => Condition::Present(self.rng.random()),
            4 => Condition::Equal(bytes),
            5 => Condition::Less(bytes),
            6 => Condition::AtMost(bytes),
            7 => Condition::Greater(bytes),
            _ => Condition::AtLeast(bytes),
        };
        Comparison {
            key: key(k),
            condition: Some(condition),
        }
    }

    /// Draws a list of at least `least` operations. At most `rewrites` of them rewrite stored
    /// values.
    fn list(&mut self, load: &ClientLoad, least: usize, rewrites: &mut usize) -> Vec<TxnOp> {
        if *rewrites > 0 && self.rng.random::<f64>() < LARGE {
            return self.large_list(std::mem::take(rewrites));
        }
        let length = if self.rng.random::<f64>() < LONG {
            LONG_OPERATIONS
        } else {
            self.rng.random_range(least..4)
        };
        let operations = (0..length).map(|_| {
            let operation = self.operation(load, *rewrites > 0);
            *rewrites -= usize::from(operation.is_rewrite());
            operation.into()
        });
        operations.collect()
    }

    /// Draws a list that puts large values and then rewrites values of plain keys.
    fn large_list(&mut self, rewrites: usize) -> Vec<TxnOp> {
        let mut operations = Vec::new();
        for k in KEYS_MAX..KEYS_MAX + LARGE_VALUES {
            let value = large_value(self.rng.random());
            operations.push(Listed::Put(Put { key: key(k), value }));
        }
        for _ in 0..rewrites {
            let key = key(KEYS_MAX + self.rng.random_range(0..PLAIN_KEYS));
            operations.push(self.rewrite(key));
        }
        operations.into_iter().map(TxnOp::from).collect()
    }

    fn rewrite(&mut self, key: Bytes) -> Listed {
        let field = self.field();
        match self.rng.random_range(0..4) {
            0 | 1 => {
                let length = self.rng.random_range(0..=TOKEN.len());
                Listed::append(key, &TOKEN[..length])
            }
            2 => Listed::PutFields(PutFields {
                key,
                fields: vec![field],
            }),
            _ => Listed::delete_fields(key, vec![field.name]),
        }
    }

    /// Draws a field of a plain key.
    fn field(&mut self) -> Field {
        let name = NAMES[self.rng.random_range(0..NAMES.len())];
        Field {
            name: name.into(),
            value: Bytes::from_static(TOKEN),
        }
    }

    fn operation(&mut self, load: &ClientLoad, may_rewrite: bool) -> Listed {
        let k = self.any_key(load);
        let key = key(k);
        if k >= KEYS_MAX {
            return self.plain_operation(key, may_rewrite);
        }
        match self.rng.random_range(0..8) {
            0..3 => Listed::Get(Get { key }),
            3 => Listed::Delete(Delete { key }),
            4..6 if may_rewrite && self.records().is_some() => {
                let fields = self.merged_fields();
                Listed::PutFields(PutFields { key, fields })
            }
            _ => Listed::Put(Put {
                key,
                value: self.small_value().1,
            }),
        }
    }

    fn plain_operation(&mut self, key: Bytes, may_rewrite: bool) -> Listed {
        match self.rng.random_range(0..12) {
            0 => Listed::Delete(Delete { key }),
            1 => Listed::Get(Get { key }),
            2 => {
                let fields = NAMES.map(|name| Field {
                    name: name.into(),
                    value: Bytes::from_static(TOKEN),
                });
                let value = Record {
                    fields: fields.into(),
                };
                let value = value.encode_to_vec().into();
                Listed::Put(Put { key, value })
            }
            3 => Listed::Put(Put {
                key,
                value: self.rng.random_range(-20..20).to_string().into(),
            }),
            4 => Listed::Put(Put {
                key,
                value: i64::MAX.to_string().into(),
            }),
            5..9 if may_rewrite => self.rewrite(key),
            _ => Listed::add(key, self.rng.random_range(-3..9)),
        }
    }

    /// Returns the actions of an answered transaction on each register. `seen` contains the versions
    /// and values that the client has seen.
    pub(super) fn answered_txn(
        &self,
        txn: &Txn,
        result: &TxnResult,
        seen: &mut SeenVersions,
    ) -> Parts {
        let mut effects = RegisterEffects::default();
        let held = result.failed.as_ref().map(|failed| failed.index as usize);
        let held = held.unwrap_or(txn.comparisons.len());
        for comparison in txn.comparisons.iter().take(held) {
            self.note_held(comparison, seen, &mut effects);
        }
        if let Some(failed) = &result.failed
            && let Some(comparison) = txn.comparisons.get(held)
            && let Some(k) = number_of(&comparison.key)
            && !result.abridged
        {
            let found = failed.found.as_ref();
            self.note_found(k, found.map(|found| &found.value), &mut effects);
        }
        let list = if result.or_else {
            &txn.or_else
        } else {
            &txn.then
        };
        for (index, listed) in list.iter().enumerate() {
            let Some(k) = listed.op.as_ref().and_then(|op| number_of(op.key())) else {
                continue;
            };
            let answer = result.results.get(index).and_then(|it| it.result.as_ref());
            let (version, found) = match answer.filter(|_| !result.abridged) {
                Some(OpAnswer::Value(value)) => (value.version, Some(&value.value)),
                Some(OpAnswer::Missing(_)) => (None, None),
                _ => {
                    self.note_change(listed, k, &mut effects);
                    continue;
                }
            };
            self.note_found(k, found, &mut effects);
            // A value that this transaction has written may have been replaced by it, too. Then the
            // version stands for another value.
            if version.is_none() || version != result.version {
                let id = found.and_then(|found| self.register_value(k, found));
                seen.insert(k, (version, id));
            }
        }
        effects.parts()
    }

    /// Returns the writes of each list of a transaction. Without an answer, either list may have
    /// been executed.
    pub(super) fn open_txn(&self, txn: &Txn) -> [Parts; 2] {
        [&txn.then, &txn.or_else].map(|list| {
            let mut effects = RegisterEffects::default();
            for listed in list {
                if let Some(k) = listed.op.as_ref().and_then(|op| number_of(op.key())) {
                    self.note_change(listed, k, &mut effects);
                }
            }
            effects.parts()
        })
    }

    /// Notes what a comparison that held says about its key.
    fn note_held(
        &self,
        comparison: &Comparison,
        seen: &SeenVersions,
        effects: &mut RegisterEffects,
    ) {
        let Some(k) = number_of(&comparison.key) else {
            return;
        };
        let version_seen = |version: &Version| {
            let (known, value) = seen.get(&k)?;
            (known.as_ref() == Some(version)).then_some(*value)
        };
        match &comparison.condition {
            Some(Condition::Present(false)) => self.note_found(k, None, effects),
            Some(Condition::Equal(value)) => self.note_found(k, Some(value), effects),
            Some(Condition::Version(version)) => {
                if let Some(value) = version_seen(version) {
                    effects.find(k, value);
                }
            }
            _ => {}
        }
    }

    fn note_found(&self, k: u64, stored: Option<&Bytes>, effects: &mut RegisterEffects) {
        let value = |register| stored.and_then(|stored| self.register_value(register, stored));
        effects.find(k, value(k));
        if self.records().is_some() {
            effects.find(rest_of(k), value(rest_of(k)));
        }
    }

    /// Notes the change of key `k` by an operation, if it changes it.
    fn note_change(&self, listed: &TxnOp, k: u64, effects: &mut RegisterEffects) {
        let is_record = self.records().is_some();
        match &listed.op {
            Some(Listed::Put(put)) => {
                for register in [k, rest_of(k)].into_iter().take(1 + usize::from(is_record)) {
                    if let Some(value) = self.register_value(register, &put.value) {
                        effects.change(register, Change::Write(value));
                    }
                }
            }
            Some(Listed::Delete(_)) => {
                effects.change(k, Change::Delete);
                if is_record {
                    effects.change(rest_of(k), Change::Delete);
                }
            }
            Some(Listed::PutFields(put)) => {
                if let Some(field) = put.fields.first() {
                    effects.change(k, Change::Write(ValueId::of_value(&field.value)));
                }
            }
            _ => {}
        }
    }
}

/// Returns the keys that a transaction may delete.
pub(super) fn deleted_keys(txn: &Txn) -> impl Iterator<Item = &Bytes> {
    txn.operations().filter_map(|operation| match operation {
        Listed::Delete(delete) => Some(&delete.key),
        _ => None,
    })
}

/// Returns the keys to which a transaction with this result has written a value, or may have. A key
/// that was deleted afterwards is returned, too.
pub(super) fn put_keys<'a>(txn: &'a Txn, result: &TxnResult) -> impl Iterator<Item = &'a Bytes> {
    let list = if result.or_else {
        &txn.or_else
    } else {
        &txn.then
    };
    list.iter().filter_map(|listed| match &listed.op {
        Some(Listed::Put(put)) => Some(&put.key),
        _ => None,
    })
}
