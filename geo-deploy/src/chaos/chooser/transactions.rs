//! Choice of transactions.

use std::collections::BTreeMap;

use bytes::Bytes;
use leasehold_wire::comparison::Condition;
use leasehold_wire::txn_op::Op as Operation;
use leasehold_wire::{Comparison, Delete, Get, Put, PutFields, Txn, TxnOp};
use rand::RngExt as _;
use rand::seq::{IndexedRandom as _, SliceRandom as _};

use super::super::keys::{COUNTERS, LISTS, field, field_name, stored, token_bytes};
use super::super::txn::TxnRequest;
use super::{Chooser, weighted};
use crate::backend::key_name;

/// Largest number that is added to a counter. It is so large that few sums of several numbers are
/// equal by accident, and so small that no counter of a round overflows.
const DELTA_MAX: i64 = 1 << 45;
/// Probability that a transaction has an operation that cannot be executed.
const REFUSED_SHARE: f64 = 0.06;
/// Probability that a transaction executes the other operations even if one of them is refused.
const KEEP_GOING_SHARE: f64 = 0.1;
/// Probability that a transaction on lists or counters has a comparison.
const COMPARED_SHARE: f64 = 0.3;

/// Kinds of comparisons.
#[derive(Clone, Copy)]
enum Compared {
    Version,
    Present,
    Equal,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

const COMPARISONS: [(Compared, u32); 7] = [
    (Compared::Version, 4),
    (Compared::Present, 3),
    (Compared::Equal, 4),
    (Compared::Less, 1),
    (Compared::AtMost, 1),
    (Compared::Greater, 1),
    (Compared::AtLeast, 1),
];

/// Kinds of operations on registers.
#[derive(Clone, Copy)]
enum Single {
    Get,
    Put,
    Delete,
}

const THEN: [(Single, u32); 3] = [(Single::Get, 6), (Single::Put, 10), (Single::Delete, 3)];
const OR_ELSE: [(Single, u32); 3] = [(Single::Get, 8), (Single::Put, 3), (Single::Delete, 1)];

/// Kinds of operations on records.
#[derive(Clone, Copy)]
enum OnRecord {
    Get,
    PutFields,
    DeleteFields,
    Delete,
}

const RECORD: [(OnRecord, u32); 4] = [
    (OnRecord::Get, 5),
    (OnRecord::PutFields, 8),
    (OnRecord::DeleteFields, 4),
    (OnRecord::Delete, 1),
];

fn get(key: u64) -> TxnOp {
    let key = key_name(key);
    Operation::Get(Get { key }).into()
}

fn comparison(key: u64, condition: Condition) -> Comparison {
    Comparison {
        key: key_name(key),
        condition: Some(condition),
    }
}

impl Chooser {
    /// Chooses a transaction on registers with these keys.
    pub(super) fn txn(&mut self, keys: &[u64]) -> TxnRequest {
        let mut believed = BTreeMap::new();
        let number = self.rng.random_range(0..3);
        let mut comparisons: Vec<Comparison> = (0..number)
            .map(|_| {
                let key = self.one_of(keys);
                self.comparison(key, &mut believed)
            })
            .collect();
        let number = self.rng.random_range(1..=keys.len() + 1);
        let mut then: Vec<TxnOp> = (0..number).map(|_| self.single_op(keys, &THEN)).collect();
        let number = if comparisons.is_empty() {
            0
        } else {
            self.rng.random_range(0..3)
        };
        let or_else = (0..number)
            .map(|_| self.single_op(keys, &OR_ELSE))
            .collect();
        let mut keep_going = self.rng.random_bool(KEEP_GOING_SHARE);
        if self.rng.random_bool(REFUSED_SHARE) {
            let key = self.one_of(keys);
            comparisons.push(comparison(key, Condition::Present(true)));
            then.insert(0, self.refused_op(key));
            keep_going = self.rng.random_bool(0.5);
        }
        let txn = Txn {
            comparisons,
            then,
            or_else,
            keep_going,
        };
        TxnRequest { txn, believed }
    }

    fn one_of(&mut self, keys: &[u64]) -> u64 {
        let key = keys.choose(&mut self.rng);
        *key.expect("an operation has a key")
    }

    /// Chooses a comparison. Stores the value of the version that it expects.
    fn comparison(&mut self, key: u64, believed: &mut BTreeMap<u64, super::ValueId>) -> Comparison {
        let belief = self.beliefs.get(&key).copied();
        let present = belief.map_or(self.rng.random_bool(0.5), |belief| belief.is_some());
        let kind = weighted(&COMPARISONS, &mut self.rng);
        let condition = match (kind, belief.flatten()) {
            (Compared::Version, Some((value, version))) => {
                believed.insert(key, value);
                Condition::Version(version)
            }
            (Compared::Equal, Some((value, _))) => Condition::Equal(stored(value)),
            (Compared::Version | Compared::Present | Compared::Equal, _) => {
                Condition::Present(present ^ self.rng.random_bool(0.1))
            }
            (Compared::Less, _) => Condition::Less(self.bound(key)),
            (Compared::AtMost, _) => Condition::AtMost(self.bound(key)),
            (Compared::Greater, _) => Condition::Greater(self.bound(key)),
            (Compared::AtLeast, _) => Condition::AtLeast(self.bound(key)),
        };
        comparison(key, condition)
    }

    /// Chooses a value to compare with: the value that the key is believed to have, or another one.
    fn bound(&mut self, key: u64) -> Bytes {
        let belief = self.beliefs.get(&key).copied().flatten();
        match belief {
            Some((value, _)) if self.rng.random_bool(0.5) => stored(value),
            _ => {
                let any = super::ValueId(self.values_from | self.rng.random_range(0..4096));
                stored(any)
            }
        }
    }

    fn single_op(&mut self, keys: &[u64], kinds: &[(Single, u32)]) -> TxnOp {
        let number = self.one_of(keys);
        let key = key_name(number);
        match weighted(kinds, &mut self.rng) {
            Single::Get => get(number),
            Single::Put => {
                let value = stored(self.value());
                Operation::Put(Put { key, value }).into()
            }
            Single::Delete => Operation::Delete(Delete { key }).into(),
        }
    }

    /// Chooses an operation that cannot be executed on a register that exists.
    fn refused_op(&mut self, key: u64) -> TxnOp {
        let name = key_name(key);
        let operation = if self.rng.random_bool(0.5) {
            Operation::add(name, 1)
        } else {
            let fields = vec![field(key, self.value())];
            Operation::PutFields(PutFields { key: name, fields })
        };
        operation.into()
    }

    /// Chooses a transaction on the record that holds these keys.
    pub(super) fn record_txn(&mut self, keys: &[u64]) -> TxnRequest {
        let is_compared = self.rng.random_bool(COMPARED_SHARE);
        let present = self.rng.random_bool(0.8);
        let compared = comparison(keys[0], Condition::Present(present));
        let mut list =
            |number: usize| -> Vec<TxnOp> { (0..number).map(|_| self.record_op(keys)).collect() };
        let [then, or_else] = [list(1), list(usize::from(is_compared))];
        let mut then = then;
        let number = self.rng.random_range(0..3);
        then.extend((0..number).map(|_| self.record_op(keys)));
        let txn = Txn {
            comparisons: is_compared.then_some(compared).into_iter().collect(),
            then,
            or_else,
            keep_going: self.rng.random_bool(KEEP_GOING_SHARE),
        };
        let believed = BTreeMap::new();
        TxnRequest { txn, believed }
    }

    fn record_op(&mut self, keys: &[u64]) -> TxnOp {
        let key = key_name(keys[0]);
        let mut of_fields = keys.to_vec();
        of_fields.shuffle(&mut self.rng);
        of_fields.truncate(self.rng.random_range(1..=keys.len()));
        match weighted(&RECORD, &mut self.rng) {
            OnRecord::Get => get(keys[0]),
            OnRecord::PutFields => {
                let fields = of_fields.iter().map(|key| field(*key, self.value()));
                let fields = fields.collect();
                Operation::PutFields(PutFields { key, fields }).into()
            }
            OnRecord::DeleteFields => {
                let names = of_fields.iter().map(|key| field_name(*key)).collect();
                Operation::delete_fields(key, names).into()
            }
            OnRecord::Delete => Operation::Delete(Delete { key }).into(),
        }
    }

    /// Chooses a transaction that appends to lists. Returns its keys, too.
    pub(super) fn append_txn(&mut self) -> (Vec<u64>, TxnRequest) {
        let append = |chooser: &mut Chooser, key: u64| {
            let token = token_bytes(chooser.value());
            Operation::append(key_name(key), token).into()
        };
        self.growing_txn(LISTS, append)
    }

    /// Chooses a transaction that adds to counters. Returns its keys, too.
    pub(super) fn add_txn(&mut self) -> (Vec<u64>, TxnRequest) {
        let add = |chooser: &mut Chooser, key: u64| {
            let delta = chooser.rng.random_range(1..DELTA_MAX);
            Operation::add(key_name(key), delta).into()
        };
        self.growing_txn(COUNTERS, add)
    }

    fn growing_txn(
        &mut self,
        all: std::ops::Range<u64>,
        grow: impl Fn(&mut Chooser, u64) -> TxnOp,
    ) -> (Vec<u64>, TxnRequest) {
        let mut keys: Vec<u64> = all.collect();
        keys.shuffle(&mut self.rng);
        keys.truncate(1 + usize::from(self.rng.random_bool(0.3)));
        let mut then: Vec<TxnOp> = keys.iter().map(|key| grow(self, *key)).collect();
        if self.rng.random_bool(0.15) {
            then.push(grow(self, keys[0]));
        }
        if self.rng.random_bool(0.25) {
            let at = self.rng.random_range(0..=then.len());
            then.insert(at, get(keys[0]));
        }
        let mut believed = BTreeMap::new();
        let (mut comparisons, mut or_else) = (Vec::new(), Vec::new());
        if self.rng.random_bool(COMPARED_SHARE) {
            or_else.push(if self.rng.random_bool(0.5) {
                get(keys[0])
            } else {
                grow(self, keys[0])
            });
            let compared = if self.rng.random_bool(0.5) {
                let present = self.rng.random_bool(0.8);
                comparison(keys[0], Condition::Present(present))
            } else {
                let register = self.key();
                keys.push(register);
                self.comparison(register, &mut believed)
            };
            comparisons.push(compared);
        }
        let keep_going = self.rng.random_bool(KEEP_GOING_SHARE);
        let txn = Txn {
            comparisons,
            then,
            or_else,
            keep_going,
        };
        (keys, TxnRequest { txn, believed })
    }
}
