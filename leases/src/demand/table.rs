//! The leader's counts of operations, by key and origin.

use std::time::Duration;

use smallvec::SmallVec;

use super::TallyReport;
use super::estimate::{Calibration, Estimator, Histogram};
use super::memory_budget::MemoryBudget;
use super::shift::ShiftDetector;
use crate::growing::GrowingIndexMap;
use crate::time::Time;
use crate::types::ReplicaId;

/// Time after which the weight of an operation is halved.
const HALF_LIFE: Duration = Duration::from_secs(600);

/// An origin's counts are divided by this number when its clients begin to request other keys.
const FORGET: f32 = 256.0;

/// Maximum weight of a current operation. When this maximum is reached, all counts are scaled down.
/// The maximum is far below the largest number that a count can hold.
const WEIGHT_MAX: f32 = 1e15;

/// Memory, in bytes, for the place and the hash of a key, and for the allocator's overhead. The
/// key's bytes and its counts need additional memory.
const ENTRY_BYTES: usize = 72;

/// Number of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Count {
    /// Number of reads.
    pub reads: f32,
    /// Number of writes.
    pub writes: f32,
}

impl Count {
    /// Returns the number of reads and writes together.
    #[inline]
    pub fn all(self) -> f32 {
        self.reads + self.writes
    }

    #[inline]
    fn times(self, factor: f32) -> Count {
        Count {
            reads: self.reads * factor,
            writes: self.writes * factor,
        }
    }

    #[inline]
    fn plus(self, reads: f32, writes: f32) -> Count {
        Count {
            reads: self.reads + reads,
            writes: self.writes + writes,
        }
    }
}

/// Counts of one key, one for each origin. Each operation was counted with the weight that its
/// origin had at that time.
type OriginCounts = SmallVec<[Count; 5]>;

/// The counts of one key.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    counts: &'a [Count],
    demand: &'a Demand,
}

impl Row<'_> {
    /// Returns the count of operations by clients of `origin`. The count fades with time.
    #[inline]
    pub fn count(&self, origin: ReplicaId) -> Count {
        let index = origin.index();
        match (self.counts.get(index), self.demand.origins.get(index)) {
            (Some(count), Some(origin)) => count.times(1.0 / origin.weight),
            _ => Count::default(),
        }
    }

    /// Iterates over the counts of operations, in order of origin. The counts fade with time.
    #[inline]
    pub fn counts(&self) -> impl Iterator<Item = Count> {
        let origins = self.demand.origins.iter();
        let each = self.counts.iter().zip(origins);
        each.map(|(count, origin)| count.times(1.0 / origin.weight))
    }

    /// Returns the sum of the counts of all origins.
    #[inline]
    fn operations(&self) -> f32 {
        self.counts().map(Count::all).sum()
    }
}

/// State of one origin.
#[derive(Clone, Debug)]
struct OriginState {
    /// Weight with which an operation is counted now. The weight grows with time, so earlier
    /// operations fade in comparison.
    weight: f32,
    /// Weighted number of all operations, including operations on keys that were forgotten. The
    /// weights are the same as in the counts.
    total: Count,
    calibration: Calibration,
    shift: ShiftDetector,
    /// Time of the origin's last report.
    reported: Time,
}

/// The leader's counts of the operations of all origins.
#[derive(Clone, Debug)]
pub struct Demand {
    rows: GrowingIndexMap<Box<[u8]>, OriginCounts>,
    /// Place of the key that is assumed to have the most operations.
    hottest: Option<usize>,
    origins: Vec<OriginState>,
    budget: MemoryBudget,
    /// Time at which counts last faded.
    aged: Time,
}

/// Numbers of keys, grouped by the counts of operations on these keys. A census is collected key by
/// key, and then passed to [`Demand::age`].
#[derive(Clone, Debug, Default)]
pub struct Census {
    by_origin: Vec<Histogram>,
}

impl Census {
    /// Includes the key with the counts `row`.
    pub fn add(&mut self, row: Row<'_>) {
        self.by_origin
            .resize_with(row.counts.len(), Histogram::default);
        for (histogram, count) in self.by_origin.iter_mut().zip(row.counts()) {
            histogram.add(count.all());
        }
    }
}

impl Demand {
    /// Creates the empty counts of `n` origins at `now`. The counts use up to about `bytes_max`
    /// bytes. When there is no more space, keys with few operations are evicted to make space for
    /// new keys.
    pub fn new(now: Time, n: usize, bytes_max: usize) -> Demand {
        let origin = OriginState {
            weight: 1.0,
            total: Count::default(),
            calibration: Calibration::default(),
            shift: ShiftDetector::default(),
            reported: now,
        };
        Demand {
            rows: GrowingIndexMap::default(),
            hottest: None,
            origins: vec![origin; n],
            budget: MemoryBudget::new(bytes_max),
            aged: now,
        }
    }

    /// Adds the operations that `origin` reports at `now`. Returns whether the clients of `origin`
    /// have begun to request other keys.
    pub fn report(&mut self, now: Time, origin: ReplicaId, report: &TallyReport) -> bool {
        let index = origin.index();
        let Some(of) = self.origins.get_mut(index) else {
            return false;
        };
        let since = now.since(of.reported).as_secs_f32();
        of.reported = now;
        of.calibration.observe_for(since);
        let (rare_reads, rare_writes) = (report.rare_reads as f32, report.rare_writes as f32);
        of.calibration.observe_unknown(rare_reads + rare_writes);
        of.total = of
            .total
            .plus(rare_reads * of.weight, rare_writes * of.weight);
        for delta in &report.deltas {
            self.add(&delta.key, index, delta.reads, delta.writes);
        }
        let shifted = self.origins[index].shift.has_shifted();
        if shifted {
            self.forget(index);
        }
        shifted
    }

    fn add(&mut self, key: &[u8], index: usize, reads: u32, writes: u32) {
        let found = self.rows.get_index_of(key);
        let row = found.unwrap_or_else(|| self.insert(key));
        let origin = &mut self.origins[index];
        let count = &mut self.rows[row][index];
        let known = count.all() / origin.weight;
        let total = origin.total.all() / origin.weight;
        let operations = reads.saturating_add(writes);
        origin.shift.observe(operations, known, total);
        match found {
            Some(_) => origin.calibration.observe(known, operations),
            None => origin.calibration.observe_unknown(operations as f32),
        }
        let reads = reads as f32 * origin.weight;
        let writes = writes as f32 * origin.weight;
        *count = count.plus(reads, writes);
        origin.total = origin.total.plus(reads, writes);
        self.compare_with_hottest(row);
    }

    /// Adds a row for a new key. Returns the place of the row.
    fn insert(&mut self, key: &[u8]) -> usize {
        let bytes = self.bytes_of(key);
        while self.budget.lacks(bytes) && !self.rows.is_empty() {
            self.evict_rarest();
        }
        self.budget.take(bytes);
        let none = SmallVec::from_elem(Count::default(), self.origins.len());
        self.rows.insert_full(key.into(), none).0
    }

    fn bytes_of(&self, key: &[u8]) -> usize {
        key.len() + ENTRY_BYTES + self.origins.len() * size_of::<Count>()
    }

    /// Evicts a key with few operations.
    fn evict_rarest(&mut self) {
        let candidates = self.budget.eviction_candidates(self.rows.len());
        let operations = |at: usize| self.row(at).expect("the place has a key").1.operations();
        let rarer = |a: &usize, b: &usize| operations(*a).total_cmp(&operations(*b));
        let rarest = candidates
            .min_by(rarer)
            .expect("a full table has a key to drop");
        let dropped = self.rows.swap_remove_index(rarest);
        let (key, _) = dropped.expect("the key to drop has a place");
        self.hottest = match self.hottest {
            Some(hottest) if hottest == rarest => None,
            // The last row has moved to the place of the dropped row.
            Some(hottest) if hottest == self.rows.len() => Some(rarest),
            hottest => hottest,
        };
        self.budget.free(self.bytes_of(&key));
    }

    /// Reduces the weight of an origin's earlier operations to almost 0, because the origin's
    /// clients have begun to request other keys.
    fn forget(&mut self, index: usize) {
        let origin = &mut self.origins[index];
        origin.weight *= FORGET;
        origin.calibration.forget(FORGET);
        self.scale_if_heavy(index);
    }

    /// Lets the counts fade according to the time since the last pass over all keys. `census` is
    /// the result of the pass that has just ended.
    pub fn age(&mut self, now: Time, census: &Census) {
        let halves = now.since(self.aged).as_secs_f32() / HALF_LIFE.as_secs_f32();
        self.aged = now;
        let growth = 1.0 + std::f32::consts::LN_2 * halves;
        for index in 0..self.origins.len() {
            let histogram = census.by_origin.get(index).cloned().unwrap_or_default();
            let origin = &mut self.origins[index];
            origin.weight *= growth;
            origin.calibration.fade(1.0 / growth);
            origin.calibration.take(histogram);
            self.scale_if_heavy(index);
        }
    }

    fn scale_if_heavy(&mut self, index: usize) {
        let origin = &mut self.origins[index];
        if origin.weight < WEIGHT_MAX {
            return;
        }
        let scale = 1.0 / origin.weight;
        origin.weight = 1.0;
        origin.total = origin.total.times(scale);
        for counts in self.rows.values_mut() {
            counts[index] = counts[index].times(scale);
        }
    }

    /// Returns an estimator of future demand, made from the current counts.
    pub fn estimator(&self) -> Estimator {
        let origins = self.origins.iter();
        Estimator::new(origins.map(|origin| (&origin.calibration, origin.total)))
    }

    /// Iterates over the origins' rates of operations, in operations a second. There is one rate
    /// for each origin, in the order of the origins.
    pub fn rates(&self) -> impl Iterator<Item = f32> {
        self.origins.iter().map(|origin| {
            let window = origin.calibration.window().max(1.0);
            origin.total.all() / origin.weight / window
        })
    }

    /// Returns the number of keys that are remembered.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether no key is remembered.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the key at `place`, and the counts of this key; `None` if `place` is not below
    /// [`len`](Self::len). Places change when keys are added or dropped.
    #[inline]
    pub fn row(&self, place: usize) -> Option<(&[u8], Row<'_>)> {
        let (key, counts) = self.rows.get_index(place)?;
        let demand = self;
        Some((key, Row { counts, demand }))
    }

    /// Returns the counts of `key`; `None` if the key is not remembered.
    pub fn get(&self, key: &[u8]) -> Option<Row<'_>> {
        let counts = self.rows.get(key)?;
        Some(Row {
            counts,
            demand: self,
        })
    }

    /// Makes the key at place `row` the hottest key if it has more operations than the present
    /// hottest key. If both keys have the same number of operations, the first of them in key order
    /// becomes the hottest key.
    fn compare_with_hottest(&mut self, row: usize) {
        let of = |place: usize| self.row(place).map(|(key, row)| (row.operations(), key));
        let is_hotter = match (self.hottest.and_then(of), of(row)) {
            (Some((most, hottest)), Some((operations, key))) => {
                let order = operations.total_cmp(&most);
                order.then_with(|| hottest.cmp(key)).is_gt()
            }
            _ => true,
        };
        if is_hotter {
            self.hottest = Some(row);
        }
    }

    /// Returns the key with the most operations, without looking at all keys. The result may be
    /// wrong just after the clients of an origin have begun to request other keys.
    pub fn hottest(&self) -> Option<&[u8]> {
        let (key, _) = self.row(self.hottest?)?;
        Some(key)
    }

    /// Returns an estimate of the memory in use, in bytes.
    pub fn bytes(&self) -> usize {
        self.budget.used()
    }

    /// Panics if more memory is in use than allowed. Cost: one comparison.
    pub fn check(&self) {
        let one = self.rows.len() <= 1;
        assert!(one || !self.budget.lacks(0), "memory is bounded");
    }
}

#[cfg(test)]
mod tests;
