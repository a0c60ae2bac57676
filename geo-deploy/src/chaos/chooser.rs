//! Choice of a client's next operation.

mod transactions;

use std::collections::BTreeMap;

use leasehold_histories::history::{HistoryAction, ValueId};
use leasehold_wire::Version;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::effects::Parts;
use super::keys::{COLD, COUNTERS, HOT, LISTS, group_keys, is_record};
use super::request::{Belief, OperationKind, OperationRequest};

/// Probability that a client chooses a hot key instead of a cold key.
const HOT_SHARE: f64 = 0.7;
/// Probability that a client reads lists and counters instead of hot and cold keys.
const GROWING_SHARE: f64 = 0.12;
/// Maximum number of key states that a client remembers.
const BELIEFS_MAX: usize = 4096;

/// Kinds of operations on single keys, with their relative frequencies.
const SINGLE: [(OperationKind, u32); 10] = [
    (OperationKind::Get, 44),
    (OperationKind::Put, 20),
    (OperationKind::Delete, 5),
    (OperationKind::Cas, 12),
    (OperationKind::Scan, 3),
    (OperationKind::MultiGet, 5),
    (OperationKind::MultiPut, 5),
    (OperationKind::Txn, 16),
    (OperationKind::Append, 6),
    (OperationKind::Add, 6),
];
/// Kinds of operations on groups, with their relative frequencies.
const GROUPED: [(OperationKind, u32); 8] = [
    (OperationKind::Get, 12),
    (OperationKind::Put, 10),
    (OperationKind::Delete, 4),
    (OperationKind::Cas, 6),
    (OperationKind::Scan, 20),
    (OperationKind::MultiGet, 20),
    (OperationKind::MultiPut, 16),
    (OperationKind::Txn, 24),
];
/// Kinds of operations on groups that are stored as records, with their relative frequencies.
const RECORDS: [(OperationKind, u32); 3] = [
    (OperationKind::Get, 25),
    (OperationKind::Scan, 10),
    (OperationKind::Txn, 65),
];

/// Returns a random item. The probability of an item is proportional to the item's weight.
pub fn weighted<T: Copy>(all: &[(T, u32)], rng: &mut Pcg64Mcg) -> T {
    let weights: u32 = all.iter().map(|(_, weight)| weight).sum();
    let mut left = rng.random_range(0..weights);
    for &(one, weight) in all {
        match left.checked_sub(weight) {
            Some(rest) => left = rest,
            None => return one,
        }
    }
    unreachable!("a number below the sum of the weights falls on one of them")
}

/// Groups of keys that clients use at the moment.
#[derive(Debug)]
pub struct KeyGroups {
    /// IDs of the current groups. Each ID is paired with the number of operations that clients may
    /// still send on the group.
    open: Vec<(u64, u32)>,
    begun: u64,
    operations: u32,
}

impl KeyGroups {
    /// Creates `open` groups. Each group is replaced by a new group after `operations` operations.
    pub fn new(open: u64, operations: u32) -> KeyGroups {
        KeyGroups {
            open: (0..open).map(|group| (group, operations)).collect(),
            begun: open,
            operations,
        }
    }

    /// Returns the number of groups that clients have begun to use so far.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Returns a random group for the next operation, and replaces the group after its last
    /// operation.
    fn take(&mut self, rng: &mut Pcg64Mcg) -> u64 {
        let at = rng.random_range(0..self.open.len());
        let (group, left) = &mut self.open[at];
        let taken = *group;
        *left -= 1;
        if *left == 0 {
            self.open[at] = (self.begun, self.operations);
            self.begun += 1;
        }
        taken
    }
}

/// Set of keys from which a client chooses the keys of its operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPool {
    /// Hot and cold keys, lists and counters.
    Single,
    /// Keys of groups.
    Grouped,
}

/// Random choice of the operations of one client.
#[derive(Debug)]
pub struct Chooser {
    pool: KeyPool,
    rng: Pcg64Mcg,
    beliefs: BTreeMap<u64, Belief>,
    /// Upper bits of all values of this client. The values of all other clients have different
    /// upper bits.
    values_from: u64,
    values: u64,
}

impl Chooser {
    /// Creates the chooser of the client with the ID `client`. No other client writes the same
    /// values.
    pub fn new(pool: KeyPool, client: u32, seed: u64) -> Chooser {
        let values_from = u64::from(client + 1) << 32;
        Chooser {
            pool,
            rng: Pcg64Mcg::seed_from_u64(seed ^ values_from),
            beliefs: BTreeMap::new(),
            values_from,
            values: 0,
        }
    }

    /// Returns the time until the next operation, in seconds, for `rate` operations a second.
    pub fn pause_s(&mut self, rate: f64) -> f64 {
        -(1.0 - self.rng.random::<f64>()).ln() / rate
    }

    /// Chooses the next operation.
    pub fn next(&mut self, groups: &mut KeyGroups) -> OperationRequest {
        match self.pool {
            KeyPool::Single => self.single(),
            KeyPool::Grouped => {
                let group = groups.take(&mut self.rng);
                let keys: Vec<u64> = group_keys(group).collect();
                if is_record(group) {
                    self.on_record(keys)
                } else {
                    self.grouped(keys)
                }
            }
        }
    }

    /// Completes the choice of an operation on registers.
    fn request(&mut self, kind: OperationKind, keys: Vec<u64>) -> OperationRequest {
        if kind == OperationKind::Txn {
            let txn = self.txn(&keys);
            return OperationRequest::txn(kind, keys, txn);
        }
        // A compare-and-swap needs a known state of the key. If it is unknown, the key is read
        // instead.
        let known = self.beliefs.get(&keys[0]).copied();
        let (kind, expected) = match (kind, known) {
            (OperationKind::Cas, None) => (OperationKind::Get, None),
            (OperationKind::Cas, Some(belief)) => (OperationKind::Cas, belief),
            (other, _) => (other, None),
        };
        let writes = kind.is_write() && kind != OperationKind::Delete;
        let values = keys.iter().filter(|_| writes).map(|_| self.value());
        OperationRequest {
            values: values.collect(),
            expected,
            ..OperationRequest::read(kind, keys)
        }
    }

    fn value(&mut self) -> ValueId {
        self.values += 1;
        ValueId(self.values_from | self.values)
    }

    fn single(&mut self) -> OperationRequest {
        let kind = weighted(&SINGLE, &mut self.rng);
        let several = self.rng.random_range(2..5);
        let reads_growing = self.rng.random_bool(GROWING_SHARE);
        let keys = match kind {
            OperationKind::Append => {
                let (keys, txn) = self.append_txn();
                return OperationRequest::txn(kind, keys, txn);
            }
            OperationKind::Add => {
                let (keys, txn) = self.add_txn();
                return OperationRequest::txn(kind, keys, txn);
            }
            OperationKind::Get if reads_growing => {
                vec![self.rng.random_range(LISTS.start..COUNTERS.end)]
            }
            OperationKind::MultiGet if reads_growing => {
                let (list, counter) = (LISTS, COUNTERS);
                vec![self.rng.random_range(list), self.rng.random_range(counter)]
            }
            OperationKind::MultiGet | OperationKind::MultiPut => self.distinct(several),
            OperationKind::Txn => self.distinct(several - 1),
            OperationKind::Scan => self.range(),
            _ => vec![self.key()],
        };
        self.request(kind, keys)
    }

    fn key(&mut self) -> u64 {
        if self.rng.random_bool(HOT_SHARE) {
            // Keys with lower numbers are drawn more often.
            (self.rng.random::<f64>().powi(2) * HOT.end as f64) as u64
        } else {
            self.rng.random_range(COLD)
        }
    }

    fn distinct(&mut self, number: usize) -> Vec<u64> {
        let mut keys: Vec<u64> = Vec::new();
        while keys.len() < number {
            let key = self.key();
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    }

    fn range(&mut self) -> Vec<u64> {
        let from = self.key();
        (from..(from + self.rng.random_range(2..12)).min(COLD.end)).collect()
    }

    fn grouped(&mut self, mut keys: Vec<u64>) -> OperationRequest {
        let kind = weighted(&GROUPED, &mut self.rng);
        if kind != OperationKind::Scan {
            let several = matches!(
                kind,
                OperationKind::MultiGet | OperationKind::MultiPut | OperationKind::Txn
            );
            let number = if several {
                self.rng.random_range(2..=keys.len())
            } else {
                1
            };
            keys.shuffle(&mut self.rng);
            keys.truncate(number);
        }
        self.request(kind, keys)
    }

    fn on_record(&mut self, keys: Vec<u64>) -> OperationRequest {
        match weighted(&RECORDS, &mut self.rng) {
            OperationKind::Txn => {
                let txn = self.record_txn(&keys);
                OperationRequest::txn(OperationKind::Txn, keys, txn)
            }
            kind => OperationRequest::read(kind, keys),
        }
    }

    /// Remembers the state of keys after an answer. `versions` are the versions of the values that
    /// were read or written.
    pub fn learn(&mut self, parts: &Parts, versions: &BTreeMap<u64, Version>) {
        if self.beliefs.len() > BELIEFS_MAX {
            self.beliefs.clear();
        }
        for &(key, action) in parts {
            let held = match action {
                HistoryAction::Read { value } => value,
                HistoryAction::Write { value } => Some(value),
                HistoryAction::Cas { new, .. } => Some(new),
                HistoryAction::Delete => None,
            };
            match (held, versions.get(&key)) {
                (None, _) => drop(self.beliefs.insert(key, None)),
                (Some(value), Some(version)) => {
                    self.beliefs.insert(key, Some((value, *version)));
                }
                (Some(_), None) => drop(self.beliefs.remove(&key)),
            }
        }
    }

    /// Forgets the state of the keys of an operation with an unknown outcome.
    pub fn forget(&mut self, keys: &[u64]) {
        for key in keys {
            self.beliefs.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use leasehold_wire::command::Op;

    use super::super::keys::group_of;
    use super::*;

    fn learn_reads(chooser: &mut Chooser, request: &OperationRequest) {
        let read = |key: &u64| {
            let value = Some(ValueId(1));
            (*key, HistoryAction::Read { value })
        };
        let parts: Parts = request.keys.iter().map(read).collect();
        let versions = request.keys.iter().map(|key| (*key, Version::default()));
        chooser.learn(&parts, &versions.collect());
    }

    #[test]
    fn every_kind_is_asked_for_on_keys_of_the_right_sets_and_no_value_twice() {
        let mut kinds = BTreeSet::new();
        for pool in [KeyPool::Single, KeyPool::Grouped] {
            let mut groups = KeyGroups::new(3, 50);
            let mut values = BTreeSet::new();
            for client in 0..2 {
                let mut chooser = Chooser::new(pool, client, 5);
                for _ in 0..3000 {
                    let request = chooser.next(&mut groups);
                    kinds.insert(request.kind);
                    for value in &request.values {
                        assert!(values.insert(*value), "{value:?} is written twice");
                    }
                    let groups: BTreeSet<_> =
                        request.keys.iter().map(|key| group_of(*key)).collect();
                    assert_eq!(groups.len(), 1, "{request:?}");
                    let grouped = groups.iter().all(Option::is_some);
                    assert_eq!(grouped, pool == KeyPool::Grouped, "{request:?}");
                    let distinct: BTreeSet<_> = request.keys.iter().collect();
                    assert_eq!(distinct.len(), request.keys.len(), "{request:?}");
                    if let Op::Txn(txn) = request.op() {
                        let named = txn.keys().map(|key| request.key_of(key));
                        assert!(named.into_iter().all(|key| key.is_some()), "{request:?}");
                    }
                    assert_eq!(leasehold_wire::validate_op(&request.op()), Ok(()));
                    learn_reads(&mut chooser, &request);
                }
            }
        }
        assert_eq!(kinds.len(), OperationKind::ALL.len(), "{kinds:?}");
    }

    /// Counts the conditions and operations of all transactions.
    #[test]
    fn transactions_have_every_condition_and_operation_in_both_lists() {
        let mut conditions = BTreeSet::new();
        let mut operations = [BTreeSet::new(), BTreeSet::new()];
        let mut numbers_of_keys = BTreeSet::new();
        for pool in [KeyPool::Single, KeyPool::Grouped] {
            let mut groups = KeyGroups::new(4, 50);
            let mut chooser = Chooser::new(pool, 0, 5);
            for _ in 0..6000 {
                let request = chooser.next(&mut groups);
                learn_reads(&mut chooser, &request);
                let Op::Txn(txn) = request.op() else {
                    continue;
                };
                numbers_of_keys.insert(txn.keys().collect::<BTreeSet<_>>().len());
                for comparison in &txn.comparisons {
                    let text = format!("{:?}", comparison.condition);
                    conditions.insert(text.split('(').nth(1).unwrap_or_default().to_owned());
                }
                for (found, list) in operations.iter_mut().zip([&txn.then, &txn.or_else]) {
                    let ops = list.iter().filter_map(|listed| listed.op.as_ref());
                    found.extend(ops.map(leasehold_wire::txn_op::Op::name));
                }
            }
        }
        assert_eq!(conditions.len(), 7, "{conditions:?}");
        assert_eq!(operations[0].len(), 7, "{operations:?}");
        assert_eq!(operations[1].len(), 7, "{operations:?}");
        assert!(numbers_of_keys.contains(&1) && numbers_of_keys.len() > 3);
    }

    #[test]
    fn a_group_has_so_many_operations_and_never_more() {
        let mut groups = KeyGroups::new(3, 50);
        let mut chooser = Chooser::new(KeyPool::Grouped, 0, 1);
        let mut operations: BTreeMap<u64, u32> = BTreeMap::new();
        for _ in 0..10_000 {
            let keys = chooser.next(&mut groups).keys;
            let group = group_of(keys[0]).expect("a group");
            assert!(keys.iter().all(|key| group_keys(group).contains(key)));
            *operations.entry(group).or_default() += 1;
        }
        assert!(operations.values().all(|count| *count <= 50));
        let full = operations.values().filter(|count| **count == 50).count();
        assert!(
            full as u64 >= groups.begun() - 3,
            "{full} of {}",
            groups.begun()
        );
    }

    #[test]
    fn a_compare_and_swap_expects_what_was_seen_last() {
        let mut groups = KeyGroups::new(1, u32::MAX);
        let mut chooser = Chooser::new(KeyPool::Grouped, 0, 1);
        let version = Version { slot: 7, index: 1 };
        let all = group_keys(0);
        let read = |value| HistoryAction::Read { value };
        let parts: Parts = all
            .clone()
            .map(|key| (key, read(Some(ValueId(key)))))
            .collect();
        chooser.learn(&parts, &all.map(|key| (key, version)).collect());
        let cas = std::iter::repeat_with(|| chooser.next(&mut groups));
        let mut cas = cas.filter(|request| request.kind == OperationKind::Cas);
        let request = cas.next().expect("one comes");
        assert_eq!(request.expected, Some((ValueId(request.keys[0]), version)));
    }
}
