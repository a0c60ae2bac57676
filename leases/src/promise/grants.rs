//! The grants to one holder, one for each configuration under which promises were made.

use smallvec::SmallVec;

use super::rules;
use crate::mutants::mutated;
use crate::time::Time;
use crate::types::ConfigId;

/// Record of the promises that were made to a holder under one configuration.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Grant {
    pub(super) config: ConfigId,
    /// End of the grant, by the grantor's clock.
    pub(super) expires: Time,
    /// Sequence number of the newest promise of the grant.
    pub(super) sequence: u64,
}

/// The grants to one holder, in ascending order of configuration.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Grants(SmallVec<[Grant; 2]>);

impl Grants {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Grant> {
        self.0.iter()
    }

    /// Iterates over the grants in force at `now`.
    pub(super) fn live(&self, now: Time) -> impl Iterator<Item = &Grant> {
        self.0.iter().filter(move |grant| now < grant.expires)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Registers the grant of a promise that is about to be sent. The grant never ends earlier than
    /// before, because an earlier promise may arrive after this promise.
    pub(super) fn register(&mut self, promised: Grant) {
        let mut grants = self.0.iter_mut();
        match grants.find(|grant| rules::same_grant(grant.config, promised.config)) {
            Some(grant) => {
                assert!(grant.sequence < promised.sequence, "sequences rise");
                grant.config = promised.config;
                grant.expires = grant.expires.max(promised.expires);
                grant.sequence = promised.sequence;
            }
            None => self.0.push(promised),
        }
    }

    /// Handles the ack of the latest promise, with the sequence number `sequence` and the
    /// configuration `config`. If the grant under `config` would end after `until`, it now ends at
    /// `until`. Returns whether the grant became shorter.
    pub(super) fn shorten(&mut self, sequence: u64, config: ConfigId, until: Time) -> bool {
        let mut shorter = false;
        let own = |grant: &&mut Grant| rules::only_own_grant_is_shortened(grant.config, config);
        for grant in self.0.iter_mut().filter(own) {
            assert!(
                grant.sequence == sequence || mutated(),
                "an expiry is shortened by the ack of its own newest promise"
            );
            shorter |= until < grant.expires;
            grant.expires = grant.expires.min(until);
        }
        shorter
    }

    /// Drops the grants with sequence numbers up to `up_to`, because the holder has given them back
    /// by a Relinquish. Returns whether a grant was dropped.
    pub(super) fn drop_up_to(&mut self, up_to: u64) -> bool {
        let before = self.0.len();
        self.0
            .retain(|grant| rules::outlives_relinquish(grant.sequence, up_to));
        self.0.len() < before
    }

    /// Drops grants that have expired. Returns whether a grant was dropped.
    pub(super) fn lapse(&mut self, now: Time) -> bool {
        let before = self.0.len();
        self.0.retain(|grant| now < grant.expires);
        self.0.len() < before
    }

    /// Panics unless the grants are in ascending order of configuration and of sequence number.
    pub(super) fn check(&self) {
        assert!(
            self.0.is_sorted_by(|a, b| a.config < b.config),
            "grants rise by configuration"
        );
        assert!(
            self.0.is_sorted_by(|a, b| a.sequence < b.sequence),
            "a grant under a newer configuration is of a newer promise"
        );
        let first = self.0.first().map(|grant| grant.config);
        assert_ne!(first, Some(ConfigId(0)), "configuration 0 gives nothing");
    }
}
