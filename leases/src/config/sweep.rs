//! A look at every listed key, some at a time: forgets what nobody can see any more, and
//! counts the others.
//!
//! It goes from the last place to the first. A key that is removed leaves its place to the
//! last one, which was looked at already: none is left out.

use super::counts::HolderCounts;
use super::ranges::RangeMap;
use super::{Configs, Policy};
use crate::types::ReplicaSet;

/// Keys looked at in one step: well below a millisecond.
pub(super) const KEYS_A_STEP: usize = 4096;

/// See the file.
#[derive(Clone, Debug, Hash)]
pub(super) struct Sweep {
    /// Keys at lower places are still to be looked at.
    place: usize,
    /// The others, by range.
    counts: RangeMap<HolderCounts>,
}

impl Sweep {
    /// The key at `place` gets the holders `after` in place of `before`, if any.
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
    /// Whether listed keys are still to be looked at: [`forget_before`](Self::forget_before)
    /// goes on with it.
    pub fn is_sweeping(&self) -> bool {
        self.sweep.is_some()
    }

    /// Begins with the last key, whatever was looked at before.
    pub(super) fn begin_sweep(&mut self) {
        self.sweep = Some(Sweep {
            place: self.keys.len(),
            counts: self.policies().map(|_| HolderCounts::default()),
        });
    }

    /// Looks at some more keys, if any are left.
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

    /// Every configuration still kept has forgotten what was listed before the oldest of
    /// them cleared its range. Returns the key, if it is listed in the newest.
    fn forget_at(&mut self, place: usize) -> Option<(crate::types::Key, ReplicaSet)> {
        let (key, versions) = self.keys.get_index_mut(place).expect("the place has a key");
        let cleared = self.frames[0].policy(key).cleared;
        versions.retain(|(since, _)| *since >= cleared);
        if versions.is_empty() {
            self.keys.swap_remove_index(place);
            return None;
        }
        let (key, holders) = self.listed_at(place)?;
        Some((key.clone(), holders))
    }

    /// Every listed key was counted.
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
