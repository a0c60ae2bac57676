//! Demand of a cluster, in a form small enough for one message.
//!
//! A profile contains the busiest keys, and a sample of the others. A key is chosen for the sample
//! with a probability proportional to its rate. Each key of the sample represents a number of keys.
//! This number is chosen such that sums over the profile are right on average (priority sampling:
//! Duffield, Lund and Thorup). The random choice depends only on the key, so the same demand
//! results in the same profile.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::hash::BuildHasher as _;

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use crate::demand::{Count, Rates};
use crate::types::ReplicaSet;

/// Maximum number of keys in a profile that is sent in a message.
pub const KEYS_MAX: usize = 4096;

/// Maximum number of values (rates, counts and weights) in a profile that is sent in a message.
/// This number of values has a size of 1 MiB.
const NUMBERS_MAX: usize = 1 << 18;

/// Keys with the same demand.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyGroup {
    /// Number of keys that the group represents.
    pub keys: f32,
    /// Expected rates of each key, in operations a second: the reads of every origin, then the
    /// writes of every origin.
    pub rates: Rates,
    /// Number of reads by each origin so far. The strategy `quorum` uses these numbers to choose
    /// holders.
    pub reads: SmallVec<[f32; 5]>,
    /// Current holders of the keys.
    pub holders: ReplicaSet,
}

impl KeyGroup {
    /// Returns the rate of each key, in operations a second.
    fn rate(&self) -> f32 {
        self.rates.iter().sum()
    }
}

/// Demand of a cluster of `n` replicas.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    n: usize,
    keys: Vec<KeyGroup>,
    unrequested: KeyGroup,
    operations: f64,
}

/// Reason why a profile is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// The length of a list does not match the number of replicas.
    #[error("a key of the profile does not have the numbers of {0} replicas")]
    Length(usize),
    /// A rate, a count or a weight is negative or not a finite number.
    #[error("a number of the profile is negative or infinite")]
    Number,
}

impl Profile {
    /// Creates a profile of the groups in `keys`. `unrequested` represents the keys that no client
    /// has requested. `operations` is the number of operations from which the profile was made.
    ///
    /// # Errors
    /// If the length of a list does not match `n` replicas, or a number is negative or infinite.
    pub fn new(
        n: usize,
        keys: Vec<KeyGroup>,
        unrequested: KeyGroup,
        operations: f64,
    ) -> Result<Profile, ProfileError> {
        let usable = |x: &f32| x.is_finite() && *x >= 0.0;
        for group in keys.iter().chain([&unrequested]) {
            if group.rates.len() != 2 * n || group.reads.len() != n {
                return Err(ProfileError::Length(n));
            }
            let mut numbers = group.rates.iter().chain(&group.reads).chain([&group.keys]);
            if !numbers.all(usable) {
                return Err(ProfileError::Number);
            }
        }
        if !operations.is_finite() || operations < 0.0 {
            return Err(ProfileError::Number);
        }
        Ok(Profile {
            n,
            keys,
            unrequested,
            operations,
        })
    }

    /// Returns the number of replicas.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Returns the keys that clients have requested.
    pub fn keys(&self) -> &[KeyGroup] {
        &self.keys
    }

    /// Returns the keys that no client has requested.
    pub fn unrequested(&self) -> &KeyGroup {
        &self.unrequested
    }

    /// Returns the number of operations on which the profile is based. Operations that the demand
    /// has forgotten are not included.
    pub fn operations(&self) -> f64 {
        self.operations
    }
}

/// Collects keys one by one, and makes a profile of them.
#[derive(Clone, Debug)]
pub struct ProfileBuilder {
    n: usize,
    keys_max: usize,
    /// Keys with the highest priorities, with the lowest of these priorities at the top. The heap
    /// contains one key more than the profile will contain.
    sampled: BinaryHeap<SampledGroup>,
    operations: f64,
}

#[derive(Clone, Debug)]
struct SampledGroup {
    priority: f32,
    group: KeyGroup,
}

impl ProfileBuilder {
    /// Returns the maximum number of keys in a profile of `n` replicas that is sent in a message.
    pub fn fitting(n: usize) -> usize {
        KEYS_MAX.min(NUMBERS_MAX / (3 * n + 3))
    }

    /// Creates a builder for a profile of `n` replicas with at most `keys_max` keys.
    pub fn new(n: usize, keys_max: usize) -> ProfileBuilder {
        ProfileBuilder {
            n,
            keys_max: keys_max.max(1),
            sampled: BinaryHeap::new(),
            operations: 0.0,
        }
    }

    /// Adds a key. `counts` are the operations on the key so far, for each origin. `rates` are the
    /// expected rates of the key, and `holders` are its current holders.
    pub fn add(
        &mut self,
        key: &[u8],
        counts: impl Iterator<Item = Count>,
        rates: Rates,
        holders: ReplicaSet,
    ) {
        let reads = counts.map(|count| {
            self.operations += f64::from(count.all());
            count.reads
        });
        let group = KeyGroup {
            keys: 1.0,
            reads: reads.collect(),
            rates,
            holders,
        };
        let priority = group.rate() / chance(key);
        let full = self.sampled.len() > self.keys_max;
        let least = self.sampled.peek().filter(|_| full);
        if priority <= least.map_or(0.0, |sampled| sampled.priority) {
            return;
        }
        if full {
            self.sampled.pop();
        }
        self.sampled.push(SampledGroup { priority, group });
    }

    /// Returns the profile of the keys that were added. `unrequested` represents the keys that no
    /// client has requested. Its number of reads must be 0 for every origin. `totals` are the rates
    /// of all operations, one for each origin, in operations a second. The expected rates of the
    /// added keys are scaled so that the rates of all keys add up to `totals`.
    pub fn finish(mut self, unrequested: KeyGroup, totals: impl Iterator<Item = f32>) -> Profile {
        let threshold = if self.sampled.len() > self.keys_max {
            self.sampled.pop().map_or(0.0, |sampled| sampled.priority)
        } else {
            0.0
        };
        let weighed = |sampled: SampledGroup| KeyGroup {
            keys: (threshold / sampled.group.rate()).max(1.0),
            ..sampled.group
        };
        let mut keys: Vec<KeyGroup> = self.sampled.into_iter().map(weighed).collect();
        for (origin, total) in totals.take(self.n).enumerate() {
            let rest = total - requested_by(std::slice::from_ref(&unrequested), origin);
            scale(&mut keys, origin, rest.max(0.0));
        }
        let profile = Profile::new(self.n, keys, unrequested, self.operations);
        profile.expect("rates and counts are of every replica")
    }
}

/// Returns the total rate of operations by clients of `origin` on these keys, in operations a
/// second.
fn requested_by(keys: &[KeyGroup], origin: usize) -> f32 {
    let of = |group: &KeyGroup| {
        let writes = origin + group.reads.len();
        (group.rates[origin] + group.rates[writes]) * group.keys
    };
    keys.iter().map(of).sum()
}

/// Scales the rates of operations by clients of `origin` on these keys, so that the sum of these
/// rates becomes `total` operations a second.
fn scale(keys: &mut [KeyGroup], origin: usize, total: f32) {
    let sum = requested_by(keys, origin);
    if sum <= 0.0 {
        return;
    }
    for group in keys {
        let writes = origin + group.reads.len();
        group.rates[origin] *= total / sum;
        group.rates[writes] *= total / sum;
    }
}

/// Returns a pseudo-random number that is greater than 0 and at most 1. The number depends only on
/// the key.
fn chance(key: &[u8]) -> f32 {
    let hash = FixedState::default().hash_one(key) >> 40;
    (hash + 1) as f32 / (1_u64 << 24) as f32
}

impl PartialEq for SampledGroup {
    fn eq(&self, other: &SampledGroup) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for SampledGroup {}

impl PartialOrd for SampledGroup {
    fn partial_cmp(&self, other: &SampledGroup) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SampledGroup {
    /// Orders groups by descending priority. The group with the lowest priority is therefore the
    /// greatest.
    fn cmp(&self, other: &SampledGroup) -> Ordering {
        other.priority.total_cmp(&self.priority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(keys: u32, keys_max: usize, total: Option<f32>) -> Profile {
        let mut builder = ProfileBuilder::new(1, keys_max);
        for key in 0..keys {
            let rate = 100.0 / (key + 1) as f32;
            let rates = [rate, 0.0].into_iter().collect();
            let count = Count {
                reads: 1.0,
                writes: 1.0,
            };
            let counts = std::iter::once(count);
            builder.add(&key.to_be_bytes(), counts, rates, ReplicaSet::EMPTY);
        }
        let unrequested = KeyGroup {
            keys: 0.0,
            rates: [0.0, 0.0].into_iter().collect(),
            reads: [0.0].into_iter().collect(),
            holders: ReplicaSet::EMPTY,
        };
        builder.finish(unrequested, total.into_iter())
    }

    #[test]
    fn few_keys_are_all_there() {
        let all = profile(100, 100, None);
        assert_eq!(all.keys().len(), 100);
        assert!(all.keys().iter().all(|group| group.keys == 1.0));
        assert_eq!(all.operations(), 200.0);
    }

    #[test]
    fn the_busiest_are_there_and_a_sample_stands_for_the_others() {
        let (all, sample) = (profile(50_000, 50_000, None), profile(50_000, 1000, None));
        assert_eq!(sample.keys().len(), 1000);
        let total = |profile: &Profile, least: f32| -> f32 {
            let keys = profile.keys().iter().filter(|group| group.rate() >= least);
            keys.map(|group| group.keys * group.rate()).sum()
        };
        let (expected, found) = (total(&all, 0.0), total(&sample, 0.0));
        assert!(
            (found / expected - 1.0).abs() < 0.05,
            "{found} of {expected}"
        );
        let busiest = |profile: &Profile| {
            let mut rates: Vec<f32> = profile.keys().iter().map(KeyGroup::rate).collect();
            rates.sort_by(|a, b| b.total_cmp(a));
            rates.truncate(50);
            rates
        };
        assert_eq!(busiest(&all), busiest(&sample));
        let number: f32 = sample.keys().iter().map(|group| group.keys).sum();
        assert!((number / 50_000.0 - 1.0).abs() < 0.15, "{number} keys");
        assert_eq!(sample, profile(50_000, 1000, None), "the same again");
    }

    #[test]
    fn rates_add_up_to_what_is_asked() {
        for keys_max in [100, 1000] {
            let profile = profile(1000, keys_max, Some(5.0));
            let keys = profile.keys().iter();
            let total: f32 = keys.map(|group| group.keys * group.rate()).sum();
            assert!((total - 5.0).abs() < 1e-3, "{total}");
        }
    }

    #[test]
    fn lists_of_other_lengths_and_strange_numbers_are_refused() {
        let group = |rate: f32, n: usize| KeyGroup {
            keys: 1.0,
            rates: SmallVec::from_elem(rate, 2 * n),
            reads: SmallVec::from_elem(0.0, n),
            holders: ReplicaSet::EMPTY,
        };
        let new = |key, unrequested| Profile::new(3, vec![key], unrequested, 0.0);
        assert!(new(group(1.0, 3), group(0.0, 3)).is_ok());
        let length = Err(ProfileError::Length(3));
        assert_eq!(new(group(1.0, 2), group(0.0, 3)), length);
        assert_eq!(new(group(1.0, 3), group(0.0, 4)), length);
        for strange in [f32::NAN, -1.0, f32::INFINITY] {
            let found = new(group(strange, 3), group(0.0, 3));
            assert_eq!(found, Err(ProfileError::Number));
        }
    }
}
