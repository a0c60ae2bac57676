//! Creation of a profile from the demand that a leader has counted.

use smallvec::SmallVec;

use super::{KeyGroup, Profile, ProfileBuilder};
use crate::demand::{Demand, Estimator};
use crate::types::ReplicaSet;

/// Minimum number of unrequested keys that a profile assumes. The minimum exists because clients
/// may also request keys that do not exist. With this number of keys, each key is requested so
/// rarely that its reads do not wait for its writes.
const UNREQUESTED_MIN: usize = 1000;

/// A pass over all keys in the demand. The pass consists of steps, so that the leader can do other
/// work between two steps.
#[derive(Clone, Debug)]
pub struct ProfilePass {
    estimator: Estimator,
    builder: ProfileBuilder,
    /// Place, in the demand, of the next key that the pass looks at.
    place: usize,
    n: usize,
}

impl ProfilePass {
    /// Begins a pass over the demand of `n` replicas, for a profile of at most `keys_max` keys.
    pub fn begin(demand: &Demand, n: usize, keys_max: usize) -> ProfilePass {
        ProfilePass {
            estimator: demand.estimator(),
            builder: ProfileBuilder::new(n, keys_max),
            place: 0,
            n,
        }
    }

    /// Looks at the next keys, at most `keys`. Returns whether the pass is complete. `holders`
    /// returns the holders of a key. If keys are added to or removed from the demand between two
    /// steps, a key may be missed or included twice.
    pub fn look(
        &mut self,
        demand: &Demand,
        holders: impl Fn(&[u8]) -> ReplicaSet,
        keys: usize,
    ) -> bool {
        let end = demand.len().min(self.place.saturating_add(keys));
        for place in self.place..end {
            let (key, row) = demand.row(place).expect("the place has a key");
            let rates = self.estimator.rates(row);
            self.builder.add(key, row.counts(), rates, holders(key));
        }
        self.place = end;
        end == demand.len()
    }

    /// Returns the profile. The pass must be complete. `keys` is the total number of keys.
    /// `holders` are the holders of the keys that no client has requested.
    pub fn finish(self, demand: &Demand, keys: usize, holders: ReplicaSet) -> Profile {
        let keys = keys.saturating_sub(demand.len()).max(UNREQUESTED_MIN) as f32;
        let together = self.estimator.unrequested();
        let unrequested = KeyGroup {
            keys,
            rates: together.iter().map(|rate| rate / keys).collect(),
            reads: SmallVec::from_elem(0.0, self.n),
            holders,
        };
        self.builder.finish(unrequested, demand.rates())
    }
}
