//! Demand of a cluster, small enough for one message.
//!
//! The busiest keys are all there. The others are represented by a sample. A key is drawn with
//! a chance in proportion to how much it is asked. Each key of the sample stands for a number
//! of keys such that sums over the profile are right on average (priority sampling: Duffield,
//! Lund and Thorup). The draw depends on the key alone, so the same demand gives the same
//! profile.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::hash::BuildHasher as _;

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use crate::demand::{Count, Rates};
use crate::types::ReplicaSet;

/// Most keys of a profile that is sent.
pub const KEYS_MAX: usize = 4096;

/// Most numbers of a profile that is sent: 1 MiB.
const NUMBERS_MAX: usize = 1 << 18;

/// Keys that are asked alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// Number of keys that this stands for.
    pub keys: f32,
    /// Expected rates of each of them, in operations a second: the reads of every origin, then
    /// the writes of every origin.
    pub rates: Rates,
    /// Reads of every origin so far, by which `quorum` chooses.
    pub reads: SmallVec<[f32; 5]>,
    /// Current holders.
    pub holders: ReplicaSet,
}

impl Asked {
    /// Operations a second on one such key.
    fn rate(&self) -> f32 {
        self.rates.iter().sum()
    }
}

/// Demand of a cluster of `n` replicas.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    n: usize,
    keys: Vec<Asked>,
    unasked: Asked,
    operations: f64,
}

/// Why a profile is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// A list is shorter or longer than the number of replicas says.
    #[error("a key of the profile does not have the numbers of {0} replicas")]
    Length(usize),
    /// A rate, a count or a weight is negative or no number.
    #[error("a number of the profile is negative or infinite")]
    Number,
}

impl Profile {
    /// A profile of these keys; `unasked` are those that no origin has asked.
    /// `operations`: how many it was made from.
    ///
    /// # Errors
    /// If a list has not the numbers of `n` replicas, or a number is negative or infinite.
    pub fn new(
        n: usize,
        keys: Vec<Asked>,
        unasked: Asked,
        operations: f64,
    ) -> Result<Profile, ProfileError> {
        let usable = |x: &f32| x.is_finite() && *x >= 0.0;
        for asked in keys.iter().chain([&unasked]) {
            if asked.rates.len() != 2 * n || asked.reads.len() != n {
                return Err(ProfileError::Length(n));
            }
            let mut numbers = asked.rates.iter().chain(&asked.reads).chain([&asked.keys]);
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
            unasked,
            operations,
        })
    }

    /// Number of replicas.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Keys that were asked.
    pub fn keys(&self) -> &[Asked] {
        &self.keys
    }

    /// Keys that were not.
    pub fn unasked(&self) -> &Asked {
        &self.unasked
    }

    /// Number of operations that the profile was made from, as far as they are remembered.
    pub fn operations(&self) -> f64 {
        self.operations
    }
}

/// Makes a profile, key by key.
#[derive(Clone, Debug)]
pub struct ProfileBuilder {
    n: usize,
    keys_max: usize,
    /// The keys of highest priority, one more than the profile will have; the lowest first.
    drawn: BinaryHeap<Drawn>,
    operations: f64,
}

#[derive(Clone, Debug)]
struct Drawn {
    priority: f32,
    asked: Asked,
}

impl ProfileBuilder {
    /// Most keys of a profile of `n` replicas that fits a message.
    pub fn fitting(n: usize) -> usize {
        KEYS_MAX.min(NUMBERS_MAX / (3 * n + 3))
    }

    /// A profile of `n` replicas and at most `keys_max` keys.
    pub fn new(n: usize, keys_max: usize) -> ProfileBuilder {
        ProfileBuilder {
            n,
            keys_max: keys_max.max(1),
            drawn: BinaryHeap::new(),
            operations: 0.0,
        }
    }

    /// Adds a key: operations counted so far by origin, expected rates, and current holders.
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
        let asked = Asked {
            keys: 1.0,
            reads: reads.collect(),
            rates,
            holders,
        };
        let priority = asked.rate() / chance(key);
        let full = self.drawn.len() > self.keys_max;
        let least = self.drawn.peek().filter(|_| full);
        if priority <= least.map_or(0.0, |drawn| drawn.priority) {
            return;
        }
        if full {
            self.drawn.pop();
        }
        self.drawn.push(Drawn { priority, asked });
    }

    /// The profile; beside the keys that were added there are `unasked`, without counts, that
    /// nobody has asked. `totals`: operations a second by clients of every origin. What
    /// is expected of the keys that were added is scaled so that all adds up to them.
    pub fn finish(mut self, unasked: Asked, totals: impl Iterator<Item = f32>) -> Profile {
        let threshold = match self.drawn.len() > self.keys_max {
            true => self.drawn.pop().map_or(0.0, |drawn| drawn.priority),
            false => 0.0,
        };
        let weighed = |drawn: Drawn| Asked {
            keys: (threshold / drawn.asked.rate()).max(1.0),
            ..drawn.asked
        };
        let mut keys: Vec<Asked> = self.drawn.into_iter().map(weighed).collect();
        for (origin, total) in totals.take(self.n).enumerate() {
            let rest = total - asked_by(std::slice::from_ref(&unasked), origin);
            scale(&mut keys, origin, rest.max(0.0));
        }
        let profile = Profile::new(self.n, keys, unasked, self.operations);
        profile.expect("rates and counts are of every replica")
    }
}

/// Operations a second by clients of `origin` on all these keys.
fn asked_by(keys: &[Asked], origin: usize) -> f32 {
    let of = |asked: &Asked| {
        let writes = origin + asked.reads.len();
        (asked.rates[origin] + asked.rates[writes]) * asked.keys
    };
    keys.iter().map(of).sum()
}

/// Scales what clients of `origin` ask of these keys so that it is `total` a second.
fn scale(keys: &mut [Asked], origin: usize, total: f32) {
    let sum = asked_by(keys, origin);
    if sum <= 0.0 {
        return;
    }
    for asked in keys {
        let writes = origin + asked.reads.len();
        asked.rates[origin] *= total / sum;
        asked.rates[writes] *= total / sum;
    }
}

/// A number above 0 and up to 1 that depends on the key alone.
fn chance(key: &[u8]) -> f32 {
    let hash = FixedState::default().hash_one(key) >> 40;
    (hash + 1) as f32 / (1_u64 << 24) as f32
}

impl PartialEq for Drawn {
    fn eq(&self, other: &Drawn) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Drawn {}

impl PartialOrd for Drawn {
    fn partial_cmp(&self, other: &Drawn) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Drawn {
    /// The lowest priority is the greatest.
    fn cmp(&self, other: &Drawn) -> Ordering {
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
        let unasked = Asked {
            keys: 0.0,
            rates: [0.0, 0.0].into_iter().collect(),
            reads: [0.0].into_iter().collect(),
            holders: ReplicaSet::EMPTY,
        };
        builder.finish(unasked, total.into_iter())
    }

    #[test]
    fn few_keys_are_all_there() {
        let all = profile(100, 100, None);
        assert_eq!(all.keys().len(), 100);
        assert!(all.keys().iter().all(|asked| asked.keys == 1.0));
        assert_eq!(all.operations(), 200.0);
    }

    #[test]
    fn the_busiest_are_there_and_a_sample_stands_for_the_others() {
        let (all, sample) = (profile(50_000, 50_000, None), profile(50_000, 1000, None));
        assert_eq!(sample.keys().len(), 1000);
        let total = |profile: &Profile, least: f32| -> f32 {
            let keys = profile.keys().iter().filter(|asked| asked.rate() >= least);
            keys.map(|asked| asked.keys * asked.rate()).sum()
        };
        let (expected, found) = (total(&all, 0.0), total(&sample, 0.0));
        assert!(
            (found / expected - 1.0).abs() < 0.05,
            "{found} of {expected}"
        );
        let busiest = |profile: &Profile| {
            let mut rates: Vec<f32> = profile.keys().iter().map(Asked::rate).collect();
            rates.sort_by(|a, b| b.total_cmp(a));
            rates.truncate(50);
            rates
        };
        assert_eq!(busiest(&all), busiest(&sample));
        let number: f32 = sample.keys().iter().map(|asked| asked.keys).sum();
        assert!((number / 50_000.0 - 1.0).abs() < 0.15, "{number} keys");
        assert_eq!(sample, profile(50_000, 1000, None), "the same again");
    }

    #[test]
    fn rates_add_up_to_what_is_asked() {
        for keys_max in [100, 1000] {
            let profile = profile(1000, keys_max, Some(5.0));
            let keys = profile.keys().iter();
            let total: f32 = keys.map(|asked| asked.keys * asked.rate()).sum();
            assert!((total - 5.0).abs() < 1e-3, "{total}");
        }
    }

    #[test]
    fn lists_of_other_lengths_and_strange_numbers_are_refused() {
        let asked = |rate: f32, n: usize| Asked {
            keys: 1.0,
            rates: SmallVec::from_elem(rate, 2 * n),
            reads: SmallVec::from_elem(0.0, n),
            holders: ReplicaSet::EMPTY,
        };
        let new = |key, unasked| Profile::new(3, vec![key], unasked, 0.0);
        assert!(new(asked(1.0, 3), asked(0.0, 3)).is_ok());
        let length = Err(ProfileError::Length(3));
        assert_eq!(new(asked(1.0, 2), asked(0.0, 3)), length);
        assert_eq!(new(asked(1.0, 3), asked(0.0, 4)), length);
        for strange in [f32::NAN, -1.0, f32::INFINITY] {
            let found = new(asked(strange, 3), asked(0.0, 3));
            assert_eq!(found, Err(ProfileError::Number));
        }
    }
}
