//! Counts of the operations of one replica's own clients.

use std::hash::BuildHasher;

use super::memory_budget::MemoryBudget;
use super::{Delta, TallyReport, bytes_of};
use crate::growing::GrowingIndexMap;
use crate::hashing::SeededState;
use crate::types::Key;

/// Memory, in bytes, for the place, the counts and the hash of a key, and for the allocator's
/// overhead. The key's bytes need additional memory.
const ENTRY_BYTES: usize = 72;

/// Maximum number of keys that are counted at the same time. The limit exists because a report
/// looks at each key. For this number of keys, the report takes about a millisecond.
const KEYS_MAX: usize = 65_536;

/// Number of operations on one key.
#[derive(Clone, Debug)]
struct KeyCount {
    key: Box<[u8]>,
    reads: u32,
    writes: u32,
}

impl KeyCount {
    fn all(&self) -> u64 {
        u64::from(self.reads) + u64::from(self.writes)
    }

    /// Removes the key and its counts, and returns them as an entry of a report.
    fn take(&mut self) -> Delta {
        Delta {
            key: Key::from(std::mem::take(&mut self.key)),
            reads: self.reads,
            writes: self.writes,
        }
    }
}

/// Counts of operations by one replica's own clients, since the replica's last report.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Counts, indexed by the hash of the key. The hash is the index because the key itself is
    /// usually not in the processor's cache. Two keys with the same 64-bit hash share a count.
    counts: GrowingIndexMap<u64, KeyCount>,
    hashes: SeededState,
    budget: MemoryBudget,
    /// Number of reads and number of writes on keys that were evicted to make space for new keys.
    rare: (u32, u32),
}

impl Tally {
    /// Creates an empty tally for up to 65,536 keys. The tally uses up to about `bytes_max` bytes.
    /// When there is no more space, keys with few operations are evicted to make space for new
    /// keys. The operations on evicted keys are reported as one sum.
    pub fn new(bytes_max: usize) -> Tally {
        Tally {
            counts: GrowingIndexMap::default(),
            hashes: SeededState::default(),
            budget: MemoryBudget::new(bytes_max),
            rare: (0, 0),
        }
    }

    /// Counts a read of `key`.
    #[inline]
    pub fn read(&mut self, key: &[u8]) {
        self.add(key, 1, 0);
    }

    /// Counts a write of `key`.
    #[inline]
    pub fn write(&mut self, key: &[u8]) {
        self.add(key, 0, 1);
    }

    fn add(&mut self, key: &[u8], reads: u32, writes: u32) {
        let hash = self.hashes.hash_one(key);
        if let Some(counted) = self.counts.get_mut(&hash) {
            counted.reads = counted.reads.saturating_add(reads);
            counted.writes = counted.writes.saturating_add(writes);
            return;
        }
        let bytes = key.len() + ENTRY_BYTES;
        while self.is_full(bytes) && !self.counts.is_empty() {
            self.evict_rarest();
        }
        self.budget.take(bytes);
        let key = key.into();
        self.counts
            .insert_full(hash, KeyCount { key, reads, writes });
    }

    /// Whether there is too little space for a key that needs `bytes` bytes.
    fn is_full(&self, bytes: usize) -> bool {
        self.budget.lacks(bytes) || self.counts.len() >= KEYS_MAX
    }

    /// Evicts a key with few operations.
    fn evict_rarest(&mut self) {
        let candidates = self.budget.eviction_candidates(self.counts.len());
        let rarest = candidates.min_by_key(|at| self.counts[*at].all());
        let rarest = rarest.expect("a full tally has a key to drop");
        let dropped = self.counts.swap_remove_index(rarest);
        let (_, dropped) = dropped.expect("the key to drop has a place");
        self.budget.free(dropped.key.len() + ENTRY_BYTES);
        self.rare.0 = self.rare.0.saturating_add(dropped.reads);
        self.rare.1 = self.rare.1.saturating_add(dropped.writes);
    }

    /// Removes and returns the keys with the most operations, up to about `bytes_max` bytes,
    /// because §3.4 limits this traffic. The other keys stay for the next report. Cost: each count
    /// is looked at twice, and the returned keys are moved.
    pub fn report(&mut self, bytes_max: usize) -> TallyReport {
        let (rare_reads, rare_writes) = std::mem::take(&mut self.rare);
        let deltas = if self.reported_bytes() <= bytes_max {
            self.take_all()
        } else {
            self.take_busiest(bytes_max)
        };
        TallyReport {
            deltas,
            rare_reads,
            rare_writes,
        }
    }

    /// Returns the size, in bytes, of a report that contains all keys.
    fn reported_bytes(&self) -> usize {
        let len = self.counts.len();
        self.budget.used() - len * ENTRY_BYTES + len * bytes_of(&[])
    }

    fn take_all(&mut self) -> Vec<Delta> {
        self.budget.free(self.budget.used());
        let mut deltas = Vec::with_capacity(self.counts.len());
        self.counts.retain(|_, counted| {
            deltas.push(counted.take());
            false
        });
        deltas
    }

    fn take_busiest(&mut self, bytes_max: usize) -> Vec<Delta> {
        let least = self.least_reported(bytes_max);
        let mut left = bytes_max;
        let takes = |counted: &KeyCount| {
            let bytes = bytes_of(&counted.key);
            let fits = counted.all() >= least && bytes <= left;
            left -= if fits { bytes } else { 0 };
            fits
        };
        let mut places: Vec<usize> = Vec::new();
        let counts = self.counts.values().map(takes).enumerate();
        places.extend(counts.filter(|(_, takes)| *takes).map(|(place, _)| place));
        // Places are emptied from the last to the first, because the key in the last place moves to
        // the emptied place. The moved key is one that stays.
        let mut deltas: Vec<Delta> = Vec::with_capacity(places.len());
        for place in places.into_iter().rev() {
            let taken = self.counts.swap_remove_index(place);
            let (_, mut counted) = taken.expect("a key that was looked at has a place");
            self.budget.free(counted.key.len() + ENTRY_BYTES);
            deltas.push(counted.take());
        }
        deltas.reverse();
        deltas
    }

    /// Returns the minimum number of operations that a key must have to be in the report. This
    /// minimum is chosen so that the report has a size of about `bytes_max` bytes.
    fn least_reported(&self, bytes_max: usize) -> u64 {
        let mean = self.reported_bytes() / self.counts.len();
        let fit = (bytes_max / mean.max(1)).clamp(1, self.counts.len());
        let mut counts: Vec<u64> = self.counts.values().map(KeyCount::all).collect();
        let (_, least, _) = counts.select_nth_unstable_by(fit - 1, |a, b| b.cmp(a));
        *least
    }

    /// Returns an estimate of the memory in use, in bytes.
    pub fn bytes(&self) -> usize {
        self.budget.used()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(i: u32) -> Vec<u8> {
        format!("key-{i:08}").into_bytes()
    }

    #[test]
    fn a_report_carries_the_busiest_and_keeps_the_rest() {
        let mut tally = Tally::new(1 << 20);
        for i in 0..10 {
            (0..=i).for_each(|_| tally.read(&key(i)));
        }
        let first = tally.report(3 * bytes_of(&key(0)));
        let mut reads: Vec<u32> = first.deltas.iter().map(|d| d.reads).collect();
        reads.sort_unstable();
        assert_eq!(reads, [8, 9, 10]);
        let rest = tally.report(usize::MAX);
        let reads: u32 = rest.deltas.iter().map(|d| d.reads).sum();
        assert_eq!(reads, (1..=7).sum());
        assert!(tally.report(usize::MAX).is_empty());
        assert_eq!(tally.bytes(), 0);
    }

    #[test]
    fn memory_is_bounded_and_nothing_is_uncounted() {
        let mut tally = Tally::new(100 * (ENTRY_BYTES + 12));
        for i in 0..10_000 {
            tally.write(&key(i));
            tally.read(b"hot");
        }
        assert!(tally.bytes() <= 100 * (ENTRY_BYTES + 12));
        let report = tally.report(usize::MAX);
        let hot = report.deltas.iter().find(|d| d.key == "hot");
        assert_eq!(hot.map(|d| d.reads), Some(10_000), "a busy key stays");
        let writes: u32 = report.deltas.iter().map(|d| d.writes).sum();
        assert_eq!(writes + report.rare_writes, 10_000);
        assert!(report.rare_writes > 9_000);
    }

    /// Even if there is enough memory for more keys, a report looks at no more than the maximum
    /// number of keys.
    #[test]
    fn so_many_keys_are_counted_at_most() {
        let mut tally = Tally::new(usize::MAX);
        let keys = 2 * KEYS_MAX as u32;
        for i in 0..keys {
            tally.read(&key(i));
            tally.read(b"hot");
        }
        assert_eq!(tally.counts.len(), KEYS_MAX);
        let report = tally.report(usize::MAX);
        let reads: u32 = report.deltas.iter().map(|d| d.reads).sum();
        assert_eq!(reads + report.rare_reads, 2 * keys);
        let hot = report.deltas.iter().find(|d| d.key == "hot");
        assert_eq!(hot.map(|d| d.reads), Some(keys), "a busy key stays");
    }

    #[test]
    fn a_report_stays_within_its_bytes() {
        let mut tally = Tally::new(1 << 20);
        (0..1000).for_each(|i| tally.read(&key(i)));
        let report = tally.report(5_000);
        assert!(report.bytes() <= 5_000 && report.bytes() > 4_000);
        assert_eq!(report.deltas.len() + tally.counts.len(), 1000);
    }
}
