//! Makes a profile of the demand that a leader has counted.

use smallvec::SmallVec;

use super::{KeyGroup, Profile, ProfileBuilder};
use crate::demand::{Demand, Estimator};
use crate::types::ReplicaSet;

/// Keys that nobody has asked are at least so many: clients may ask for keys that do not
/// exist. Of many keys none is asked so often that its reads would wait for its writes.
const UNREQUESTED_MIN: usize = 1000;

/// A pass over all keys in demand, in slices: a leader goes on leading meanwhile.
#[derive(Clone, Debug)]
pub struct ProfilePass {
    estimator: Estimator,
    builder: ProfileBuilder,
    /// The next key's place in the demand.
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

    /// Looks at up to `keys` more keys; `holders` returns the holders of a key. Returns whether
    /// those were all. Keys that come and go between two slices may be missed, or be counted
    /// twice.
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

    /// Returns the profile, once all keys were looked at. There are `keys` in all. `holders`
    /// hold the keys that nobody has asked.
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
