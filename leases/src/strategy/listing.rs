//! Changes of single keys, gathered for one configuration.

use std::collections::BTreeMap;

use super::chooser::Wish;
use crate::types::{Key, ReplicaSet};

/// Most keys that one configuration changes.
const KEYS_MAX: usize = 20_000;

/// Bytes of keys after which no further key is added: an entry of the
/// configuration log stays far below a frame.
const BYTES_MAX: usize = 1 << 20;

/// Wishes for single keys. Those of most gain are kept, at least as many as one entry of
/// the log can hold. All ranges share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Listing {
    wishes: Vec<(Key, Wish)>,
    /// Wishes were dropped that gain this much, or less.
    dropped: Option<f32>,
}

impl Listing {
    /// Notes a wish for a key that has none yet.
    pub(super) fn add(&mut self, wish: Wish, key: &[u8]) {
        if self.dropped.is_some_and(|dropped| wish.gain <= dropped) {
            return;
        }
        if self.wishes.len() >= 2 * KEYS_MAX {
            let (_, (_, most), _) = self.wishes.select_nth_unstable_by(KEYS_MAX, by_gain);
            self.dropped = Some(most.gain);
            self.wishes.truncate(KEYS_MAX);
        }
        self.wishes.push((Key::copy_from_slice(key), wish));
    }

    /// Leaves what one entry of the log can hold, the most gain first. Returns whether
    /// anything was dropped.
    pub(super) fn cut(&mut self) -> bool {
        self.wishes.sort_unstable_by(by_gain);
        let mut bytes = 0;
        let fits = |(key, _): &&(Key, Wish)| {
            bytes += key.len();
            bytes <= BYTES_MAX
        };
        let fit = self.wishes.iter().take_while(fits).count().min(KEYS_MAX);
        let all_fit = fit == self.wishes.len();
        self.wishes.truncate(fit);
        self.dropped.is_some() || !all_fit
    }

    /// The keys, grouped by holders.
    pub(super) fn into_keys(self) -> Vec<(ReplicaSet, Vec<Key>)> {
        let mut quorums: BTreeMap<ReplicaSet, Vec<Key>> = BTreeMap::new();
        for (key, wish) in self.wishes {
            quorums.entry(wish.holders).or_default().push(key);
        }
        for keys in quorums.values_mut() {
            keys.sort_unstable();
        }
        quorums.into_iter().collect()
    }
}

/// Most gain first; of equals the first key.
fn by_gain(a: &(Key, Wish), b: &(Key, Wish)) -> std::cmp::Ordering {
    b.1.gain.total_cmp(&a.1.gain).then_with(|| a.0.cmp(&b.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many wishes there are, and in whatever order, those of most gain are kept.
    #[test]
    fn what_gains_most_goes_first() {
        let mut listing = Listing::default();
        let keys = 100_000_u32;
        for i in 0..keys {
            // A permutation: 7919 and the number of keys share no factor.
            let gain = (i * 7919 % keys) as f32;
            let holders = ReplicaSet::all(3);
            listing.add(Wish { holders, gain }, &(gain as u32).to_be_bytes());
        }
        assert!(listing.cut(), "some wait");
        let kept = listing.into_keys();
        let [(_, kept)] = kept.as_slice() else {
            panic!("one set of holders");
        };
        assert_eq!(kept.len(), KEYS_MAX);
        let least = keys - KEYS_MAX as u32;
        assert_eq!(kept[0].as_ref(), least.to_be_bytes());
    }
}
