//! A pass over all listed keys, in steps: it forgets data that no configuration can see any more,
//! and determines the numbers of listed keys by holders.
//!
//! The pass goes from the last place to the first. When a key is removed, the key in the last place
//! moves to the place of the removed key. The pass has already looked at the moved key, so it omits
//! no key.

use super::counts::HolderCounts;
use super::ranges::RangeMap;
use super::{Configs, Policy};
use crate::types::ReplicaSet;

/// Number of keys that the pass looks at in one step. A step takes well below a millisecond.
pub(super) const KEYS_A_STEP: usize = 4096;

/// State of a pass over all listed keys.
#[derive(Clone, Debug, Hash)]
pub(super) struct Sweep {
    /// Number of keys that the pass has not looked at yet. Their places are the places below this
    /// number.
    place: usize,
    /// Counts of the keys that the pass has looked at, by range and by set of holders.
    counts: RangeMap<HolderCounts>,
}

impl Sweep {
    /// Updates the counts of the pass, because the holders of the key at `place` have changed.
    /// `before` are the old holders; `None` if the key was not listed. `after` are the new holders.
    pub(super) fn note(
        &mut self,
        place: usize,
        key: &[u8],
        before: Option<ReplicaSet>,
        after: ReplicaSet,
    ) {
        if place < self.place {
            return;
        }
        let counts = self.counts.get_mut(key);
        before.into_iter().for_each(|before| counts.remove(before));
        counts.add(after);
    }
}

impl Configs {
    /// Whether a pass over the listed keys is under way. If true,
    /// [`forget_before`](Self::forget_before) should be called again to continue the pass.
    pub fn is_sweeping(&self) -> bool {
        self.sweep.is_some()
    }

    /// Begins a new pass, which looks at the last key first. If a pass is under way, it is
    /// abandoned.
    pub(super) fn begin_sweep(&mut self) {
        self.sweep = Some(Sweep {
            place: self.keys.len(),
            counts: self.policies().map(|_| HolderCounts::default()),
        });
    }

    /// Looks at up to [`KEYS_A_STEP`] more keys, if a pass is under way.
    pub(super) fn sweep_on(&mut self) {
        let Some(mut sweep) = self.sweep.take() else {
            return;
        };
        let end = sweep.place.saturating_sub(KEYS_A_STEP);
        for place in (end..sweep.place).rev() {
            if let Some((key, holders)) = self.forget_at(place) {
                sweep.counts.get_mut(&key).add(holders);
            }
        }
        sweep.place = end;
        match end {
            0 => self.recount(&sweep.counts),
            _ => self.sweep = Some(sweep),
        }
    }

    /// Forgets the versions of the key at `place` that are older than the last clearing of the
    /// key's range. Clearings by configurations after the oldest one that is kept are ignored.
    /// Returns the key and its holders, if the newest configuration lists the key.
    fn forget_at(&mut self, place: usize) -> Option<(crate::types::Key, ReplicaSet)> {
        let (key, versions) = self.keys.get_index_mut(place).expect("the place has a key");
        let cleared = self.frames[0].policy(key).cleared;
        versions.retain(|(since, _)| *since >= cleared);
        if versions.is_empty() {
            let (key, _) = self.keys.swap_remove_index(place)?;
            self.unsaved.forget(key);
            return None;
        }
        let (key, holders) = self.listed_at(place)?;
        Some((key.clone(), holders))
    }

    /// Replaces the counts of listed keys by the counts that a complete pass has determined.
    fn recount(&mut self, counted: &RangeMap<HolderCounts>) {
        let mut counts = counted.iter();
        let policies = self.policies().map(|policy| {
            let (_, listed) = counts
                .next()
                .expect("the counts have the ranges of the policies");
            policy.recounted(listed)
        });
        drop(counts);
        let newest = self
            .frames
            .back_mut()
            .expect("there is always a configuration");
        newest.take_counts(policies);
    }
}

impl Policy {
    fn recounted(&self, listed: &HolderCounts) -> Policy {
        assert!(
            listed.is_within(&self.listed) || crate::mutants::mutated(),
            "no listed key was left out"
        );
        Policy {
            listed: listed.clone(),
            ..self.clone()
        }
    }
}
