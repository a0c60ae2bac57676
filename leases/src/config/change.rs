//! What an entry of the configuration log says.

use super::params::LeaseParams;
use super::ranges::RangeHolders;
use super::spec::StrategySpec;
use crate::types::{Key, ReplicaSet};

/// One entry of the configuration log. What is `None` or empty stays as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ConfigChange {
    /// Forget every key's own holders (before `keys` is applied).
    pub clear: bool,
    /// Holders of keys that are neither listed nor in a range. They *name*
    /// replicas: a new leader must respect the lease of the old one.
    pub defaults: Option<ReplicaSet>,
    /// Holders by key range, in rising order of `from`; replaces all ranges.
    pub ranges: Option<Vec<RangeHolders>>,
    /// Holders of single keys, grouped by quorum.
    pub keys: Vec<(ReplicaSet, Vec<Key>)>,
    /// Replicas that hold nothing, whatever the rest says (suspects, §3.7).
    pub excluded: Option<ReplicaSet>,
    /// The strategy behind this and later changes, for every key.
    pub strategy: Option<StrategySpec>,
    /// New durations.
    pub params: Option<LeaseParams>,
}
