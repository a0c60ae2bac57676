//! Who reads and writes what, in bounded memory.
//!
//! Every replica counts its own clients' operations ([`Tally`]) and sends the
//! deltas to the leader, which sums them per key and origin ([`Demand`]).
//! Counts are exact until the bound is reached; then all are halved and what
//! falls to nothing is forgotten, so that keys in demand stay and old demand fades.

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use crate::config::KeyRange;
use crate::types::{Key, ReplicaId};

/// Operations on one key by one origin since its last report.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Delta {
    /// The key.
    pub key: Key,
    /// Reads by clients of this origin.
    pub reads: u32,
    /// Writes by clients of this origin.
    pub writes: u32,
}

/// One replica's count of its own clients' operations since its last report.
#[derive(Clone, Debug)]
pub struct Tally {
    counts: HashMap<Key, (u32, u32), FixedState>,
    keys_max: usize,
}

impl Tally {
    /// Counts at most `keys_max` keys between reports; further keys wait for the next.
    pub fn new(keys_max: usize) -> Tally {
        Tally {
            counts: HashMap::with_hasher(FixedState::default()),
            keys_max,
        }
    }

    /// Counts a read of `key`.
    pub fn read(&mut self, key: &Key) {
        if let Some(count) = self.entry(key) {
            count.0 = count.0.saturating_add(1);
        }
    }

    /// Counts a write of `key`.
    pub fn write(&mut self, key: &Key) {
        if let Some(count) = self.entry(key) {
            count.1 = count.1.saturating_add(1);
        }
    }

    fn entry(&mut self, key: &Key) -> Option<&mut (u32, u32)> {
        if self.counts.len() >= self.keys_max && !self.counts.contains_key(key) {
            return None;
        }
        if !self.counts.contains_key(key) {
            // A key may be a slice of a large frame: keep its bytes alone.
            self.counts.insert(Key::copy_from_slice(key), (0, 0));
        }
        self.counts.get_mut(key)
    }

    /// Takes the busiest keys, up to about `bytes_max` bytes of them (§3.4
    /// bounds this traffic); the rest stays for the next report.
    pub fn report(&mut self, bytes_max: usize) -> Vec<Delta> {
        let mut all: Vec<Delta> = self
            .counts
            .drain()
            .map(|(key, (reads, writes))| Delta { key, reads, writes })
            .collect();
        all.sort_unstable_by(|a, b| {
            let weight = |d: &Delta| u64::from(d.reads) + u64::from(d.writes);
            weight(b).cmp(&weight(a)).then_with(|| a.key.cmp(&b.key))
        });
        let counted = all.len();
        let mut bytes = 0;
        let fits = |delta: &Delta| {
            bytes += delta.key.len() + 8;
            bytes <= bytes_max
        };
        let cut = all.iter().map(fits).take_while(|fit| *fit).count();
        for delta in all.drain(cut..) {
            self.counts.insert(delta.key, (delta.reads, delta.writes));
        }
        assert_eq!(all.len() + self.counts.len(), counted, "nothing is lost");
        all
    }
}

/// Counts of one key, by origin.
#[derive(Clone, Debug, Default)]
pub struct Counts(SmallVec<[(u32, u32); 5]>);

impl Counts {
    /// Reads by clients of `origin`.
    pub fn reads(&self, origin: ReplicaId) -> u32 {
        self.0.get(origin.index()).map_or(0, |c| c.0)
    }

    /// Writes by clients of `origin`.
    pub fn writes(&self, origin: ReplicaId) -> u32 {
        self.0.get(origin.index()).map_or(0, |c| c.1)
    }

    fn halve(&mut self) -> bool {
        self.0.iter_mut().for_each(|c| *c = (c.0 / 2, c.1 / 2));
        self.0.iter().any(|c| *c != (0, 0))
    }
}

/// The leader's sum over all origins.
#[derive(Clone, Debug)]
pub struct Demand {
    counts: HashMap<Key, Counts, FixedState>,
    touched: BTreeSet<Key>,
    n: usize,
    keys_max: usize,
}

impl Demand {
    /// For `n` origins, remembering at most `keys_max` keys.
    pub fn new(n: usize, keys_max: usize) -> Demand {
        Demand {
            counts: HashMap::with_hasher(FixedState::default()),
            touched: BTreeSet::new(),
            n,
            keys_max: keys_max.max(1),
        }
    }

    /// Adds operations on `key` by clients of `origin`.
    pub fn add(&mut self, key: &Key, origin: ReplicaId, reads: u32, writes: u32) {
        if origin.index() >= self.n {
            return;
        }
        if !self.counts.contains_key(key) {
            while self.counts.len() >= self.keys_max {
                self.age();
            }
            let key = Key::copy_from_slice(key);
            self.counts
                .insert(key, Counts(SmallVec::from_elem((0, 0), self.n)));
        }
        let owned = self.counts.get_key_value(key).map(|(k, _)| k.clone());
        let counts = owned.and_then(|key| Some((key.clone(), self.counts.get_mut(&key)?)));
        let (key, counts) = counts.expect("counted just now");
        let count = &mut counts.0[origin.index()];
        *count = (
            count.0.saturating_add(reads),
            count.1.saturating_add(writes),
        );
        if reads > 0 {
            self.touched.insert(key);
        }
    }

    /// The key with the most reads and writes; the first of several. Looks at every key.
    pub fn hottest(&self) -> Option<&Key> {
        let all = |counts: &Counts| -> u64 {
            let each = counts.0.iter();
            each.map(|(reads, writes)| u64::from(*reads) + u64::from(*writes))
                .sum()
        };
        let by_heat = |a: &(&Key, &Counts), b: &(&Key, &Counts)| {
            all(a.1).cmp(&all(b.1)).then_with(|| b.0.cmp(a.0))
        };
        self.counts.iter().max_by(by_heat).map(|(key, _)| key)
    }

    /// Has every key considered again: holders depend on who leads.
    pub fn touch_all(&mut self) {
        self.touched.extend(self.counts.keys().cloned());
    }

    /// Takes the first key of `range`, in key order, of those read since they were
    /// last taken.
    pub fn pop_touched(&mut self, range: &KeyRange) -> Option<(Key, &Counts)> {
        let key = self
            .touched
            .range::<[u8], _>(range.bounds())
            .next()?
            .clone();
        self.touched.remove(&key);
        let counts = self.counts.get(&key);
        Some((key, counts.expect("a touched key has counts")))
    }

    /// Panics if more is remembered than may be. Cost: three comparisons.
    pub fn check(&self) {
        assert!(self.counts.len() <= self.keys_max, "memory is bounded");
        assert!(
            self.touched.len() <= self.counts.len(),
            "a touched key has counts"
        );
    }

    fn age(&mut self) {
        self.counts.retain(|_, counts| counts.halve());
        let counts = &self.counts;
        self.touched.retain(|key| counts.contains_key(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_carries_the_busiest_and_keeps_the_rest() {
        let mut tally = Tally::new(100);
        for i in 0..10u8 {
            for _ in 0..=i {
                tally.read(&Key::from(vec![i; 12]));
            }
        }
        let first = tally.report(60);
        assert_eq!(
            first.iter().map(|d| d.reads).collect::<Vec<_>>(),
            [10, 9, 8]
        );
        let rest = tally.report(usize::MAX);
        assert_eq!(rest.iter().map(|d| d.reads).sum::<u32>(), (1..=7).sum());
        assert!(tally.report(usize::MAX).is_empty());
    }

    #[test]
    fn memory_is_bounded_and_demand_in_force_survives() {
        let mut demand = Demand::new(2, 64);
        let hot = Key::from("hot");
        demand.add(&hot, ReplicaId(1), 1 << 20, 0);
        for i in 0..1000u32 {
            demand.add(&Key::from(i.to_be_bytes().to_vec()), ReplicaId(0), 1, 0);
        }
        demand.check();
        assert!(demand.counts[&hot].reads(ReplicaId(1)) > 0);
    }

    #[test]
    fn only_keys_of_the_range_are_taken() {
        let mut demand = Demand::new(2, 64);
        for key in ["a", "f", "oz", "p"] {
            demand.add(&Key::from(key), ReplicaId(0), 1, 0);
        }
        let range = KeyRange::new(Key::from("f"), Some(Key::from("p"))).expect("some keys");
        let mut taken = |range| demand.pop_touched(range).map(|(key, _)| key);
        for expected in [Some("f"), Some("oz"), None] {
            assert_eq!(taken(&range), expected.map(Key::from));
        }
        let all = KeyRange::all();
        for expected in [Some("a"), Some("p"), None] {
            assert_eq!(taken(&all), expected.map(Key::from));
        }
        demand.check();
    }

    #[test]
    fn an_origin_outside_the_cluster_counts_nothing() {
        let mut demand = Demand::new(2, 64);
        demand.add(&Key::from("k"), ReplicaId(7), 1, 1);
        assert!(demand.counts.is_empty());
    }

    #[test]
    fn the_hottest_key_has_most_reads_and_writes_of_all_origins() {
        let mut demand = Demand::new(2, 10);
        assert_eq!(demand.hottest(), None);
        let mut add = |key: &'static str, origin, reads, writes| {
            demand.add(&Key::from(key), ReplicaId(origin), reads, writes);
        };
        add("a", 0, 5, 0);
        add("b", 0, 3, 1);
        add("b", 1, 0, 2);
        add("c", 1, 6, 0);
        assert_eq!(demand.hottest(), Some(&Key::from("b")), "the first of two");
        demand.add(&Key::from("c"), ReplicaId(0), 0, 1);
        assert_eq!(demand.hottest(), Some(&Key::from("c")));
    }
}
