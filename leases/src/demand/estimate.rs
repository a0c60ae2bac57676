//! Estimate of future requests for keys, from the counts of past requests.

use smallvec::SmallVec;

use super::table::{Count, Row};

/// Upper bounds of the buckets of counts. The lowest bucket and the highest bucket have no bound
/// here. The lowest bucket is for keys that other origins have requested, but this origin has not.
/// The highest bucket is for keys with counts above all of these bounds.
const ENDS: [f32; 13] = [
    0.2, 0.6, 0.9, 1.5, 2.5, 4.0, 6.0, 10.0, 16.0, 32.0, 64.0, 128.0, 512.0,
];
const BUCKETS: usize = ENDS.len() + 2;

/// Minimum number of observed operations from which conclusions about an origin are drawn.
const OBSERVED_MIN: f32 = 50.0;

/// Weight of the latest pass in the average rate of operations on keys that are not remembered.
const LATEST: f32 = 0.3;

/// Faded counts below this value are treated as 0.
const NONE_BELOW: f32 = 1e-3;

/// Weight of the prior estimate of a bucket, as a number of observed operations. Before any
/// operations have been observed, the estimate is the prior.
const BELIEVED: f32 = 3.0;

/// Maximum number of operations from which the rate of an origin's unrequested keys is derived.
/// Older operations are dropped, because the rate falls: the busiest unrequested keys are requested
/// first, and then no longer belong to this group.
const ENOUGH: f32 = 1000.0;

/// Prior estimate of the number of operations on one unrequested key in the counting period.
const UNREQUESTED: f32 = 0.02;

/// Weight, as a number of operations, of the origin's share of reads in the estimate of a key's
/// share of reads. The key's own share of reads is weighted by the number of operations on the key.
const MIX_PRIOR: f32 = 16.0;

fn bucket(count: f32) -> usize {
    if count < NONE_BELOW {
        0
    } else {
        1 + ENDS.iter().take_while(|end| **end < count).count()
    }
}

/// Number of keys of an origin in each bucket, and the sum of the counts of these keys.
#[derive(Clone, Debug, Default)]
pub(super) struct Histogram {
    keys: [f32; BUCKETS],
    counts: [f32; BUCKETS],
}

impl Histogram {
    /// Whether the keys are not known yet, because there was no pass.
    fn is_unknown(&self) -> bool {
        self.keys.iter().all(|keys| *keys == 0.0)
    }

    pub(super) fn add(&mut self, count: f32) {
        let bucket = bucket(count);
        self.keys[bucket] += 1.0;
        self.counts[bucket] += count;
    }
}

/// Operations by clients of one origin, grouped by the number of earlier operations on the same
/// key.
#[derive(Clone, Debug, Default)]
pub(super) struct Calibration {
    /// Histogram of the keys, from the last pass over all keys.
    keys: Histogram,
    /// Number of operations on keys of each bucket.
    requests: [f32; BUCKETS],
    /// For each bucket, the expected number of operations if every key were requested at its
    /// counted rate. The counted rate is the count divided by the counting period.
    expected: [f32; BUCKETS],
    /// Total time, in seconds, for which keys of the lowest bucket were observed. The times of all
    /// these keys are added up.
    uncounted_for: f32,
    /// Counting period, in seconds: the time over which the counts were collected. The period is
    /// reduced whenever the counts fade.
    window: f32,
    /// Number of operations, since the last pass, on keys that no origin had requested.
    unknown_requests: f32,
    /// Time since the last pass, in seconds.
    since_pass: f32,
    /// Recent rate of operations on keys that no origin has requested, in operations a second.
    unknown_rate: f32,
}

impl Calibration {
    /// Adds `seconds` to the time for which the keys were observed.
    pub(super) fn observe_for(&mut self, seconds: f32) {
        self.window += seconds;
        self.since_pass += seconds;
        let part = seconds / self.window.max(1.0);
        for (expected, counts) in self.expected.iter_mut().zip(&self.keys.counts) {
            *expected += counts * part;
        }
        self.uncounted_for += self.keys.keys[0] * seconds;
    }

    /// Returns the counting period, in seconds.
    pub(super) fn window(&self) -> f32 {
        self.window
    }

    /// Adds `operations` on a key that had the count `count` before. The second and later
    /// operations may belong to higher buckets, because each operation raises the count.
    pub(super) fn observe(&mut self, count: f32, operations: u32) {
        if operations == 0 || self.keys.is_unknown() {
            return;
        }
        self.requests[bucket(count)] += 1.0;
        if operations > 1 {
            self.requests[bucket(count + 1.0)] += 1.0;
        }
        if operations > 2 {
            self.requests[bucket(count + 2.0)] += (operations - 2) as f32;
        }
    }

    /// Adds operations on keys that are not remembered.
    pub(super) fn observe_unknown(&mut self, operations: f32) {
        self.unknown_requests += operations;
    }

    /// Lets the observations fade by the same factor as the counts.
    pub(super) fn fade(&mut self, factor: f32) {
        self.window *= factor;
        self.uncounted_for *= factor;
        for value in self.requests.iter_mut().chain(&mut self.expected) {
            *value *= factor;
        }
    }

    /// Drops the observations, because the counts were divided by `by`. The relation between counts
    /// and rates must then be learned again.
    pub(super) fn forget(&mut self, by: f32) {
        let keys = self.keys.keys.iter().sum();
        *self = Calibration {
            window: self.window / by,
            unknown_rate: self.unknown_rate,
            ..Calibration::default()
        };
        self.keys.keys[0] = keys;
    }

    /// Records the result of a pass over all keys.
    pub(super) fn take(&mut self, keys: Histogram) {
        self.keys = keys;
        if self.since_pass > 0.0 {
            let latest = self.unknown_requests / self.since_pass;
            let first = self.unknown_rate == 0.0;
            let weight = if first { 1.0 } else { LATEST };
            self.unknown_rate += (latest - self.unknown_rate) * weight;
        }
        (self.unknown_requests, self.since_pass) = (0.0, 0.0);
        if self.requests[0] > ENOUGH {
            self.uncounted_for *= ENOUGH / self.requests[0];
            self.requests[0] = ENOUGH;
        }
    }

    /// Returns the forecast as a curve with one point for each bucket that has keys. The point
    /// consists of the mean count of these keys and their rate, in operations a second. The rate
    /// never decreases when the count increases.
    fn curve(&self) -> Curve {
        let window = self.window.max(1.0);
        let mut points = SmallVec::new();
        let mut least = 0.0_f32;
        for b in 0..BUCKETS {
            let keys = self.keys.keys[b];
            if b > 0 && keys < 0.5 {
                continue;
            }
            let count = self.keys.counts[b] / keys.max(1.0);
            let requests = self.requests[b] + BELIEVED;
            let rate = match b {
                0 => requests / (self.uncounted_for + BELIEVED * window / UNREQUESTED),
                _ => requests / (self.expected[b] + BELIEVED) * count / window,
            };
            least = least.max(rate);
            points.push((count, least));
        }
        Curve { points }
    }
}

/// A function from the count of a key to its rate. It is defined by points in ascending order:
/// (count, operations a second).
#[derive(Clone, Debug)]
struct Curve {
    points: SmallVec<[(f32, f32); BUCKETS]>,
}

impl Curve {
    /// Returns the rate of a key with this count, in operations a second. Between two points the
    /// curve is a straight line. Beyond the last point the rate is proportional to the count.
    #[inline]
    fn at(&self, count: f32) -> f32 {
        let (mut before, rest) = (self.points[0], &self.points[1..]);
        if count < NONE_BELOW {
            return before.1;
        }
        for point in rest {
            if count <= point.0 {
                let part = (count - before.0) / (point.0 - before.0).max(1e-9);
                return before.1 + (point.1 - before.1) * part;
            }
            before = *point;
        }
        // Counts that have faded to almost 0 give no information about other counts.
        if before.0 >= NONE_BELOW {
            before.1 * count / before.0
        } else {
            before.1
        }
    }
}

/// Expected rates of a key, in operations a second: the reads of every origin, then the writes of
/// every origin.
pub type Rates = SmallVec<[f32; 16]>;

/// Estimator of the rates of keys, from the counts at one point in time.
#[derive(Clone, Debug)]
pub struct Estimator {
    origins: Vec<OriginForecast>,
}

#[derive(Clone, Debug)]
struct OriginForecast {
    curve: Curve,
    /// Number of operations that were observed.
    observed: f32,
    /// Rate of operations on keys that no origin has requested, in operations a second.
    unknown_rate: f32,
    /// Share of reads among all operations.
    reads: f32,
}

impl Estimator {
    pub(super) fn new<'a>(origins: impl Iterator<Item = (&'a Calibration, Count)>) -> Estimator {
        let of = |(calibration, total): (&Calibration, Count)| OriginForecast {
            curve: calibration.curve(),
            observed: calibration.requests.iter().sum::<f32>() + calibration.unknown_requests,
            unknown_rate: calibration.unknown_rate,
            reads: if total.all() > 0.0 {
                total.reads / total.all()
            } else {
                0.5
            },
        };
        Estimator {
            origins: origins.map(of).collect(),
        }
    }

    /// Whether enough operations were observed to estimate the rates of keys that no client has
    /// requested.
    pub fn has_observed(&self) -> bool {
        self.origins
            .iter()
            .any(|origin| origin.observed >= OBSERVED_MIN)
    }

    /// Returns the expected rates of a key with these counts.
    #[inline]
    pub fn rates(&self, row: Row<'_>) -> Rates {
        self.of(row.counts())
    }

    /// Returns the total expected rates of all keys that no origin has requested yet.
    pub fn unrequested(&self) -> Rates {
        let reads = |origin: &OriginForecast| origin.unknown_rate * origin.reads;
        let writes = |origin: &OriginForecast| origin.unknown_rate * (1.0 - origin.reads);
        let origins = || self.origins.iter();
        origins().map(reads).chain(origins().map(writes)).collect()
    }

    #[inline]
    fn of(&self, counts: impl Iterator<Item = Count>) -> Rates {
        let n = self.origins.len();
        let mut rates = Rates::from_elem(0.0, 2 * n);
        for (i, (count, origin)) in counts.zip(&self.origins).enumerate() {
            let all = origin.curve.at(count.all());
            let mix = (count.reads + MIX_PRIOR * origin.reads) / (count.all() + MIX_PRIOR);
            rates[i] = all * mix;
            rates[n + i] = all - all * mix;
        }
        rates
    }
}

/// Returns the counts of a key as its expected rates. These rates assume that clients will request
/// the same keys as often as before, and no other keys. A comparison with these rates shows the
/// benefit of the estimate.
pub fn as_counted(row: Row<'_>) -> Rates {
    let reads = row.counts().map(|count| count.reads);
    reads
        .chain(row.counts().map(|count| count.writes))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher as _;

    use foldhash::fast::FixedState;

    use super::*;

    #[test]
    fn a_bucket_holds_the_counts_up_to_its_end() {
        for (count, expected) in [
            (0.0, 0),
            (0.1, 1),
            (0.2, 1),
            (0.3, 2),
            (1.0, 4),
            (600.0, 14),
        ] {
            assert_eq!(bucket(count), expected, "{count}");
        }
    }

    /// There are 1,000 keys. Of these, 10 are requested once a second, and the others never. The
    /// forecast for the requested keys is this rate. For the other keys, no requests are expected.
    #[test]
    fn the_forecast_is_what_keys_of_the_same_count_were_asked() {
        let mut calibration = Calibration::default();
        for second in 0..100 {
            let count = second as f32;
            let mut keys = Histogram::default();
            (0..10).for_each(|_| keys.add(count));
            (0..990).for_each(|_| keys.add(0.0));
            calibration.take(keys);
            calibration.observe_for(1.0);
            (0..10).for_each(|_| calibration.observe(count, 1));
        }
        let mut keys = Histogram::default();
        (0..10).for_each(|_| keys.add(100.0));
        (0..990).for_each(|_| keys.add(0.0));
        calibration.take(keys);
        let curve = calibration.curve();
        let (busy, idle) = (curve.at(100.0), curve.at(0.0));
        assert!((busy - 1.0).abs() < 0.1, "{busy}");
        assert!(idle < 0.001, "{idle}");
        assert!((curve.at(200.0) / busy - 2.0).abs() < 0.01, "in proportion");
    }

    /// There are 2,000 keys with very different rates. The keys are observed from their first
    /// operations on. Keys that reach a certain count early are busier than keys that reach it
    /// late.
    #[test]
    fn the_forecast_is_right_while_counts_are_young() {
        let rate = |key: usize| (key as f32 + 1.0).powf(-0.8);
        let is_requested = |key, second: usize| {
            let hash = FixedState::default().hash_one((key, second)) >> 40;
            (hash as f32) < rate(key) * (1_u64 << 24) as f32
        };
        let mut counts = vec![0.0; 2000];
        let mut calibration = Calibration::default();
        for second in 0..300 {
            let mut keys = Histogram::default();
            counts.iter().for_each(|count| keys.add(*count));
            calibration.take(keys);
            calibration.observe_for(1.0);
            for (key, count) in counts.iter_mut().enumerate() {
                if is_requested(key, second) {
                    calibration.observe(*count, 1);
                    *count += 1.0;
                }
            }
        }
        let curve = calibration.curve();
        let keys = || (0..2000).filter(|key| counts[*key] > 0.0);
        let expected: f32 = keys().map(rate).sum();
        let found: f32 = keys().map(|key| curve.at(counts[key])).sum();
        let off = found / expected - 1.0;
        assert!(off.abs() < 0.1, "{found} for {expected}");
    }

    /// An origin makes 20 requests a second at first, and 2 requests a second later. All requests
    /// are for keys that the origin has not requested before. There are 20,000 such keys.
    #[test]
    fn what_was_asked_long_ago_says_nothing_of_keys_that_are_still_not_asked() {
        let mut calibration = Calibration::default();
        for second in 0..1600 {
            let mut keys = Histogram::default();
            (0..20_000).for_each(|_| keys.add(0.0));
            calibration.take(keys);
            calibration.observe_for(1.0);
            let requests = if second < 100 { 20 } else { 2 };
            (0..requests).for_each(|_| calibration.observe(0.0, 1));
        }
        let found = 20_000.0 * calibration.curve().at(0.0);
        assert!((found - 2.0).abs() < 0.4, "{found}");
    }

    /// The counts have almost faded away, and therefore give no information about higher counts.
    #[test]
    fn a_forecast_is_not_drawn_from_counts_that_have_faded() {
        let mut calibration = Calibration::default();
        let mut keys = Histogram::default();
        keys.add(1e-40);
        calibration.take(keys);
        let curve = calibration.curve();
        assert_eq!(curve.at(u32::MAX as f32), curve.at(0.0));
    }

    #[test]
    fn the_forecast_never_falls_with_the_count() {
        let mut calibration = Calibration::default();
        let mut keys = Histogram::default();
        for count in [1.0, 2.0, 5.0, 40.0] {
            keys.add(count);
        }
        calibration.take(keys);
        calibration.observe_for(10.0);
        calibration.observe(1.0, 1);
        let curve = calibration.curve();
        assert!(curve.points.is_sorted_by(|a, b| a.1 <= b.1));
    }
}
