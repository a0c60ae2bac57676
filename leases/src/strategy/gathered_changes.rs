//! Changes of single keys that a pass gathers.

use std::collections::BTreeMap;

use super::chooser::HolderChange;
use crate::types::Key;

/// Maximum number of changes that a pass keeps. The pass keeps the changes with the largest gains.
/// This number is sufficient, because a leader makes fewer changes than this between two passes.
pub(super) const KEYS_MAX: usize = 20_000;

/// Maximum number of changes that [`RoundRobin`] keeps. These are the changes of the next keys in
/// order, regardless of gain.
const ROUND_ROBIN_MAX: usize = 4096;

/// Changes of single keys during a pass over all ranges. The changes with the largest gains are
/// kept.
#[derive(Clone, Debug, Default)]
pub(super) struct Listing {
    changes: Vec<(Key, HolderChange)>,
    /// Largest gain of a change that was dropped; `None` if no change was dropped.
    dropped: Option<f32>,
    round_robin: RoundRobin,
}

/// Changes that are made in the order of their keys, regardless of gain. Each pass begins at the
/// key where the previous pass ended. So every key has its turn, even if other keys always have
/// larger gains.
#[derive(Clone, Debug, Default)]
pub(super) struct RoundRobin {
    /// Key up to which changes were made in previous passes; `None` if this pass begins with the
    /// first key.
    after: Option<Key>,
    changes: BTreeMap<Key, HolderChange>,
    /// Whether the pass also found changes of keys after the last key in `changes`.
    goes_on: bool,
}

/// All changes that a pass has gathered.
pub(super) struct GatheredChanges {
    /// Changes with the largest gains, up to [`KEYS_MAX`], in no particular order.
    pub(super) changes: Vec<(Key, HolderChange)>,
    /// Whether further changes were dropped.
    pub(super) dropped: bool,
    pub(super) round_robin: RoundRobin,
}

impl Listing {
    /// Creates a listing without changes. Changes in the order of keys will begin after the key
    /// `after`.
    pub(super) fn new(after: Option<Key>) -> Listing {
        Listing {
            round_robin: RoundRobin {
                after,
                ..RoundRobin::default()
            },
            ..Listing::default()
        }
    }

    /// Adds a change of `key`. Requirement: the listing has no change of `key` yet.
    pub(super) fn add(&mut self, change: HolderChange, key: &[u8]) {
        self.round_robin.add(change, key);
        if self.dropped.is_some_and(|dropped| change.gain <= dropped) {
            return;
        }
        if self.changes.len() >= 2 * KEYS_MAX {
            self.keep_most();
        }
        self.changes.push((Key::copy_from_slice(key), change));
    }

    fn keep_most(&mut self) {
        let (_, (_, most), _) = self.changes.select_nth_unstable_by(KEYS_MAX, by_gain);
        self.dropped = Some(most.gain);
        self.changes.truncate(KEYS_MAX);
    }

    /// Returns the changes, after all keys have been looked at.
    pub(super) fn finish(mut self) -> GatheredChanges {
        if self.changes.len() > KEYS_MAX {
            self.keep_most();
        }
        GatheredChanges {
            changes: self.changes,
            dropped: self.dropped.is_some(),
            round_robin: self.round_robin,
        }
    }
}

impl RoundRobin {
    fn add(&mut self, change: HolderChange, key: &[u8]) {
        if self
            .after
            .as_ref()
            .is_some_and(|after| key <= after.as_ref())
        {
            return;
        }
        if self.changes.len() == ROUND_ROBIN_MAX {
            self.goes_on = true;
            let last = self
                .changes
                .last_entry()
                .expect("a full round has a last change");
            if last.key().as_ref() < key {
                return;
            }
            last.remove();
        }
        self.changes.insert(Key::copy_from_slice(key), change);
    }

    /// Returns the next key in order, and its change.
    pub(super) fn next(&self) -> Option<(&Key, HolderChange)> {
        let (key, change) = self.changes.first_key_value()?;
        Some((key, *change))
    }

    /// Records that the change of the next key has been made.
    pub(super) fn advance(&mut self) {
        let Some((key, _)) = self.changes.pop_first() else {
            return;
        };
        let ends = self.changes.is_empty() && !self.goes_on;
        self.after = (!ends).then_some(key);
    }

    /// Returns the key after which the next pass continues. Returns `None` if no change of a later
    /// key remains. In this case the next pass begins with the first key.
    pub(super) fn after(&self) -> Option<Key> {
        let ends = self.changes.is_empty() && !self.goes_on;
        self.after.clone().filter(|_| !ends)
    }
}

/// Orders changes by descending gain, and changes with equal gains by key.
pub(super) fn by_gain(a: &(Key, HolderChange), b: &(Key, HolderChange)) -> std::cmp::Ordering {
    b.1.gain.total_cmp(&a.1.gain).then_with(|| a.0.cmp(&b.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ReplicaSet;

    fn change(gain: f32) -> HolderChange {
        let holders = ReplicaSet::all(3);
        HolderChange { holders, gain }
    }

    /// The changes with the largest gains are kept, for any number and order of changes.
    #[test]
    fn what_gains_most_is_kept() {
        let mut listing = Listing::default();
        let keys = 100_000_u32;
        for i in 0..keys {
            // A permutation, because 7919 and the number of keys have no common factor.
            let gain = i * 7919 % keys;
            listing.add(change(gain as f32), &gain.to_be_bytes());
        }
        let GatheredChanges {
            mut changes,
            dropped,
            ..
        } = listing.finish();
        assert!(dropped, "some wait");
        assert_eq!(changes.len(), KEYS_MAX);
        changes.sort_unstable_by(by_gain);
        let least = keys - KEYS_MAX as u32;
        assert_eq!(changes[KEYS_MAX - 1].0.as_ref(), least.to_be_bytes());
    }

    /// In each pass, the changes of some keys are made in the order of keys. After enough passes
    /// all changes have been made, and the order begins again with the first key.
    #[test]
    fn every_key_has_its_turn() {
        let keys = 3 * ROUND_ROBIN_MAX as u32;
        let mut after = None;
        let mut had = Vec::new();
        while had.len() < keys as usize {
            let mut listing = Listing::new(after);
            (0..keys).for_each(|i| listing.add(change(1.0), &(i * 7919 % keys).to_be_bytes()));
            let mut round_robin = listing.finish().round_robin;
            for _ in 0..1000 {
                had.extend(round_robin.next().map(|(key, _)| key.clone()));
                round_robin.advance();
            }
            after = round_robin.after();
        }
        let all = (0..keys).map(|i| Key::copy_from_slice(&i.to_be_bytes()));
        assert!(had.into_iter().eq(all), "each once, in order");
        assert_eq!(after, None, "and from the first again");
    }
}
