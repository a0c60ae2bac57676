//! Changes of single keys, as a pass gathers them.

use std::collections::BTreeMap;

use super::chooser::Wish;
use crate::types::Key;

/// Maximum number of changes of a pass that are kept, those of most gain: more than
/// configurations bring before the next pass.
pub(super) const KEYS_MAX: usize = 20_000;

/// Wishes that are kept for their turn, whatever they gain.
const TURN_MAX: usize = 4096;

/// Wishes for single keys. Those of most gain are kept. All ranges share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Listing {
    wishes: Vec<(Key, Wish)>,
    /// Wishes were dropped that gain this much, or less.
    dropped: Option<f32>,
    turn: Turn,
}

/// Wishes in the order of their keys, from where the last pass got to: the least of all has
/// its turn, too, while others that gain more never end.
#[derive(Clone, Debug, Default)]
pub(super) struct Turn {
    /// Keys up to this one had their turn; `None`: it begins with the first.
    after: Option<Key>,
    wishes: BTreeMap<Key, Wish>,
    /// Keys beyond these have wishes, too.
    goes_on: bool,
}

/// Changes that a pass gathered.
pub(super) struct Gathered {
    /// At most [`KEYS_MAX`], in no order.
    pub(super) wishes: Vec<(Key, Wish)>,
    /// Whether there were more.
    pub(super) dropped: bool,
    pub(super) turn: Turn,
}

impl Listing {
    /// Starts after the key `after`: the keys that come after it have their turn.
    pub(super) fn new(after: Option<Key>) -> Listing {
        Listing {
            turn: Turn {
                after,
                ..Turn::default()
            },
            ..Listing::default()
        }
    }

    /// Notes a wish for a key that has none yet.
    pub(super) fn add(&mut self, wish: Wish, key: &[u8]) {
        self.turn.add(wish, key);
        if self.dropped.is_some_and(|dropped| wish.gain <= dropped) {
            return;
        }
        if self.wishes.len() >= 2 * KEYS_MAX {
            self.keep_most();
        }
        self.wishes.push((Key::copy_from_slice(key), wish));
    }

    fn keep_most(&mut self) {
        let (_, (_, most), _) = self.wishes.select_nth_unstable_by(KEYS_MAX, by_gain);
        self.dropped = Some(most.gain);
        self.wishes.truncate(KEYS_MAX);
    }

    /// Every key was looked at.
    pub(super) fn gathered(mut self) -> Gathered {
        if self.wishes.len() > KEYS_MAX {
            self.keep_most();
        }
        Gathered {
            wishes: self.wishes,
            dropped: self.dropped.is_some(),
            turn: self.turn,
        }
    }
}

impl Turn {
    fn add(&mut self, wish: Wish, key: &[u8]) {
        if self
            .after
            .as_ref()
            .is_some_and(|after| key <= after.as_ref())
        {
            return;
        }
        if self.wishes.len() == TURN_MAX {
            self.goes_on = true;
            let last = self.wishes.last_entry().expect("it is full");
            if last.key().as_ref() < key {
                return;
            }
            last.remove();
        }
        self.wishes.insert(Key::copy_from_slice(key), wish);
    }

    /// The next key, and what is wished for it.
    pub(super) fn next(&self) -> Option<(&Key, Wish)> {
        let (key, wish) = self.wishes.first_key_value()?;
        Some((key, *wish))
    }

    /// The next key had its turn.
    pub(super) fn pass(&mut self) {
        let Some((key, _)) = self.wishes.pop_first() else {
            return;
        };
        let ends = self.wishes.is_empty() && !self.goes_on;
        self.after = (!ends).then_some(key);
    }

    /// Where the next pass goes on. Where no key after it has a wish, it begins again.
    pub(super) fn after(&self) -> Option<Key> {
        let ends = self.wishes.is_empty() && !self.goes_on;
        self.after.clone().filter(|_| !ends)
    }
}

/// Most gain first; of equals the first key.
pub(super) fn by_gain(a: &(Key, Wish), b: &(Key, Wish)) -> std::cmp::Ordering {
    b.1.gain.total_cmp(&a.1.gain).then_with(|| a.0.cmp(&b.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ReplicaSet;

    fn wish(gain: f32) -> Wish {
        let holders = ReplicaSet::all(3);
        Wish { holders, gain }
    }

    /// However many wishes there are, and in whatever order, those of most gain are kept.
    #[test]
    fn what_gains_most_is_kept() {
        let mut listing = Listing::default();
        let keys = 100_000_u32;
        for i in 0..keys {
            // A permutation: 7919 and the number of keys share no factor.
            let gain = i * 7919 % keys;
            listing.add(wish(gain as f32), &gain.to_be_bytes());
        }
        let Gathered {
            mut wishes,
            dropped,
            ..
        } = listing.gathered();
        assert!(dropped, "some wait");
        assert_eq!(wishes.len(), KEYS_MAX);
        wishes.sort_unstable_by(by_gain);
        let least = keys - KEYS_MAX as u32;
        assert_eq!(wishes[KEYS_MAX - 1].0.as_ref(), least.to_be_bytes());
    }

    /// Pass after pass, some keys have their turn: in the end all of them, and then the first
    /// again.
    #[test]
    fn every_key_has_its_turn() {
        let keys = 3 * TURN_MAX as u32;
        let mut after = None;
        let mut had = Vec::new();
        while had.len() < keys as usize {
            let mut listing = Listing::new(after);
            (0..keys).for_each(|i| listing.add(wish(1.0), &(i * 7919 % keys).to_be_bytes()));
            let mut turn = listing.gathered().turn;
            for _ in 0..1000 {
                had.extend(turn.next().map(|(key, _)| key.clone()));
                turn.pass();
            }
            after = turn.after();
        }
        let all = (0..keys).map(|i| Key::copy_from_slice(&i.to_be_bytes()));
        assert!(had.into_iter().eq(all), "each once, in order");
        assert_eq!(after, None, "and from the first again");
    }
}
