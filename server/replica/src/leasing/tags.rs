//! Tags: the sets of replicas that votes must name. The tag of a vote on a write holds all replicas
//! to which the voter has promised that they will be notified of the write (§3.2).

use leasehold_leases::promise::LiveGrants;
use leasehold_leases::{Configs, ReplicaSet};

use crate::message::Value;

/// Grants in force at one moment, and the configurations that they refer to.
pub struct Tags<'a> {
    pub(super) live: LiveGrants,
    pub(super) configs: &'a Configs,
}

impl Tags<'_> {
    /// Returns the tag of an acceptance of `value`.
    pub fn of(&self, value: &Value) -> ReplicaSet {
        let keys = value.written_keys();
        self.live.tag(keys.map(|key| self.configs.view(key)))
    }
}
