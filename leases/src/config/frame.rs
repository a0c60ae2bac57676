//! The part of a configuration that does not depend on single keys.

use std::sync::Arc;

use smallvec::SmallVec;

use super::change::ConfigChange;
use super::params::LeaseParams;
use super::policy::Policy;
use super::ranges::{KeyRange, RangeMap};
use crate::membership::Membership;
use crate::mutants::mutated;
use crate::types::{ConfigId, ReplicaSet};

/// One configuration, without the holders of single keys.
#[derive(Clone, Debug, Hash)]
pub(super) struct Frame {
    pub(super) id: ConfigId,
    /// The newest configuration that removed the listed keys of at least one range.
    pub(super) cleared: ConfigId,
    pub(super) policies: Arc<RangeMap<Policy>>,
    /// Whether at least one range has a strategy that depends on demand. If true, reads and writes
    /// must be counted.
    pub(super) wants_demand: bool,
    /// Whether the counts of two ranges may both include the same listed key, because a range was
    /// split.
    pub(super) counted_twice: bool,
    /// Replicas that hold every possible key.
    pub(super) universal: ReplicaSet,
    pub(super) excluded: ReplicaSet,
    pub(super) params: LeaseParams,
    /// For each replica, the oldest configuration under which the replica may still receive
    /// promises.
    pub(super) oldest: SmallVec<[ConfigId; 8]>,
}

impl Frame {
    /// Creates configuration 0, which precedes the first entry of the configuration log.
    pub(super) fn initial(members: Membership) -> Frame {
        Frame {
            id: ConfigId(0),
            cleared: ConfigId(0),
            policies: Arc::new(RangeMap::uniform(Policy::initial())),
            wants_demand: false,
            counted_twice: false,
            universal: ReplicaSet::EMPTY,
            excluded: ReplicaSet::EMPTY,
            params: LeaseParams::default(),
            oldest: SmallVec::from_elem(ConfigId(0), members.len()),
        }
    }

    /// Returns the configuration that results if `change` is applied to this configuration. The
    /// caller must add the holders of single keys to the result.
    ///
    /// Invalid parts of the change are ignored, because a peer wrote the change. Invalid parts are
    /// replicas that do not exist, and durations that cannot work. If there would be too many
    /// ranges, all changes of ranges are invalid.
    pub(super) fn next(&self, change: &ConfigChange, members: Membership) -> Frame {
        let mut frame = self.clone();
        frame.id = ConfigId(self.id.0 + 1);
        frame.change_ranges(change, members);
        if let Some(params) = change.params.filter(LeaseParams::is_usable) {
            frame.params = params;
        }
        if let Some(excluded) = change.excluded {
            frame.exclude(excluded.intersection(members.voters()));
        }
        frame
    }

    fn change_ranges(&mut self, change: &ConfigChange, members: Membership) {
        if change.ranges.is_empty() {
            return;
        }
        let mut policies = RangeMap::clone(&self.policies);
        let split = policies.apply(&change.ranges, self.id, members.voters());
        if policies.fits() {
            let clears = change.ranges.iter().any(|range| range.clear);
            self.cleared = if clears { self.id } else { self.cleared };
            self.wants_demand = policies
                .iter()
                .any(|(_, policy)| policy.strategy.wants_demand());
            let listed = policies.iter().any(|(_, policy)| policy.any_listed());
            self.counted_twice |= split && listed;
            self.policies = Arc::new(policies);
        }
    }

    /// Sets the excluded replicas. A suspect receives no further promises under earlier
    /// configurations, because these assigned keys to the suspect (§3.7). This rule also applies if
    /// the suspect has not received the newest configuration.
    fn exclude(&mut self, excluded: ReplicaSet) {
        for suspect in excluded.minus(self.excluded).iter() {
            self.oldest[suspect.index()] = self.id;
        }
        self.excluded = excluded;
    }

    /// Returns the policy of the range that contains `key`.
    #[inline]
    pub(super) fn policy(&self, key: &[u8]) -> &Policy {
        self.policies.get(key)
    }

    /// Returns the listed holders of a key with these versions; `None` if this configuration does
    /// not list the key.
    #[inline]
    pub(super) fn listed(
        &self,
        key: &[u8],
        versions: &[(ConfigId, ReplicaSet)],
    ) -> Option<ReplicaSet> {
        let newest = versions.iter().rev().find(|(since, _)| *since <= self.id);
        let (since, holders) = newest?;
        (*since >= self.policy(key).cleared).then_some(*holders)
    }

    /// Derives the replicas that hold every key. The counts must include all listed keys.
    pub(super) fn derive_universal(&mut self) {
        let ranges = self.policies.iter().map(|(_, policy)| policy.universal());
        let everywhere = ranges.reduce(ReplicaSet::intersection);
        self.universal = everywhere.unwrap_or_default().minus(self.excluded);
    }

    /// Replaces the policies by `policies`. The caller ensures that `policies` have the same ranges
    /// as before, and that their counts include each listed key once.
    pub(super) fn take_counts(&mut self, policies: RangeMap<Policy>) {
        self.policies = Arc::new(policies);
        self.counted_twice = false;
        self.derive_universal();
    }

    /// Panics if the configuration is invalid.
    pub(super) fn check(&self, members: Membership) {
        let named = self.policies.iter().map(|(_, policy)| policy.anybody());
        let everyone = named.fold(self.excluded, ReplicaSet::union);
        assert!(everyone.is_subset(members.voters()), "holders are members");
        self.policies.check();
        assert!(self.policies.fits(), "the number of ranges is bounded");
        assert!(self.params.is_usable(), "the durations are usable");
        assert!(
            self.cleared <= self.id,
            "ranges were cleared by this configuration or an earlier one"
        );
        let mut ranges = self.policies.iter();
        assert!(
            ranges.all(|(_, policy)| policy.cleared <= self.cleared),
            "the newest configuration that cleared a range is noted"
        );
        assert_eq!(
            self.oldest.len(),
            members.len(),
            "there is one oldest configuration for each replica"
        );
        assert!(
            self.oldest.iter().all(|oldest| *oldest <= self.id),
            "replicas were excluded by this configuration or an earlier one"
        );
    }

    /// Panics unless this configuration can directly follow `before`.
    pub(super) fn check_follows(&self, before: &Frame) {
        assert_eq!(self.id.0, before.id.0 + 1, "ids rise without holes");
        let stays = |(from, _): (KeyRange, &Policy)| {
            self.policy(from.from()).cleared >= before.policy(from.from()).cleared
        };
        let same = Arc::ptr_eq(&self.policies, &before.policies);
        assert!(
            mutated()
                || same
                || self.policies.iter().all(stays) && before.policies.iter().all(stays),
            "a cleared range stays cleared"
        );
        let mut oldest = self.oldest.iter().zip(&before.oldest);
        assert!(
            oldest.all(|(now, then)| now >= then),
            "the oldest promisable configuration only rises"
        );
    }
}
