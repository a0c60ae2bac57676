//! The grants to one holder: one for each configuration that it was promised under.

use smallvec::SmallVec;

use super::rules;
use crate::mutants::mutated;
use crate::time::Time;
use crate::types::ConfigId;

/// Promise that a holder may rely on under one configuration.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Grant {
    pub(super) config: ConfigId,
    /// By the grantor's clock.
    pub(super) expires: Time,
    /// The newest promise behind it.
    pub(super) sequence: u64,
}

/// The grants to one holder, rising by configuration.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Grants(SmallVec<[Grant; 2]>);

impl Grants {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Grant> {
        self.0.iter()
    }

    /// The grants in force at `now`.
    pub(super) fn live(&self, now: Time) -> impl Iterator<Item = &Grant> {
        self.0.iter().filter(move |grant| now < grant.expires)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the grant of a promise that is about to leave. Promising again never
    /// shortens: the promise before may arrive later than this one.
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

    /// The ack of the latest promise, `sequence` under `config`, ends its grant at
    /// `until`, if that is earlier. Returns whether it is.
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

    /// Drops the grants that a Relinquish ends. Returns whether there were any.
    pub(super) fn drop_up_to(&mut self, up_to: u64) -> bool {
        let before = self.0.len();
        self.0
            .retain(|grant| rules::outlives_relinquish(grant.sequence, up_to));
        self.0.len() < before
    }

    /// Drops what has expired. Returns whether anything had.
    pub(super) fn lapse(&mut self, now: Time) -> bool {
        let before = self.0.len();
        self.0.retain(|grant| now < grant.expires);
        self.0.len() < before
    }

    /// Panics if configurations or sequences do not rise.
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
