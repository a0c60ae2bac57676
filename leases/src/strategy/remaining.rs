//! Changes that a pass has found, and that several configurations make, one after the other.
//!
//! A pass may find new holders for millions of keys. If one configuration made all these changes,
//! every replica would take a long step, and its links would be busy for seconds. So each
//! configuration makes some of the changes. Changes with the largest gains are made first. An
//! eighth of each configuration is reserved for changes in the order of their keys, regardless of
//! gain. So every change is made eventually.

use std::collections::{BTreeMap, BTreeSet};

use super::chooser::HolderChange;
use super::gathered_changes::{GatheredChanges, RoundRobin, by_gain};
use crate::config::{ConfigChange, Configs, RangeChange};
use crate::types::{ConfigId, Key, ReplicaSet};

/// Maximum number of keys that one configuration changes. A replica applies a configuration with
/// this many changes in about a millisecond.
pub const KEYS_A_CONFIGURATION: usize = 4096;

/// Divisor that reserves a part of each configuration for changes in the order of their keys. The
/// value 8 reserves one eighth.
const ROUND_ROBIN_SHARE: usize = 8;

/// Number of bytes that a configuration needs for a key, besides the bytes of the key itself.
const KEY_BYTES: usize = 3;

/// Number of bytes for a set of holders in a configuration.
const HOLDERS_BYTES: usize = 16;

/// Returns the approximate size, in bytes, of the keys that are listed in `change`.
pub fn bytes_of_keys(change: &ConfigChange) -> usize {
    let group = |(_, keys): &(ReplicaSet, Vec<Key>)| {
        let keys = keys.iter().map(|key| key.len() + KEY_BYTES);
        HOLDERS_BYTES + keys.sum::<usize>()
    };
    change.keys.iter().map(group).sum()
}

/// Changes that a pass has found, and that have not been made yet.
#[derive(Clone, Debug)]
pub struct RemainingChanges {
    /// The configuration that the next change is based on.
    of: ConfigId,
    /// Changes of single keys, in no particular order.
    changes: Vec<(Key, HolderChange)>,
    /// Whether the pass found further changes, which are not kept here.
    dropped: bool,
    round_robin: RoundRobin,
    /// Changes of ranges. They are made together with the last changes of keys, unless changes of
    /// keys were dropped. In that case another pass will find the changes of ranges again.
    pub(super) last: Vec<RangeChange>,
}

impl RemainingChanges {
    /// Creates the list of remaining changes from the changes that a pass over the configuration
    /// `of` has gathered.
    pub(super) fn new(of: ConfigId, gathered: GatheredChanges) -> RemainingChanges {
        RemainingChanges {
            of,
            changes: gathered.changes,
            dropped: gathered.dropped,
            round_robin: gathered.round_robin,
            last: Vec::new(),
        }
    }

    /// Returns the configuration that the next change is based on. If another configuration is in
    /// force, a new pass must find the changes again.
    pub fn of(&self) -> ConfigId {
        self.of
    }

    /// Records that the last change was proposed as the next configuration. Further changes will be
    /// based on that configuration.
    pub fn proposed(&mut self) {
        self.of = ConfigId(self.of.0 + 1);
    }

    /// Whether no changes of keys remain.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Whether the pass found further changes that are not kept here. If so, another pass should
    /// follow.
    pub fn has_more(&self) -> bool {
        self.dropped
    }

    /// Returns the last key that was changed in the order of keys; the next pass continues after
    /// this key. Returns `None` if the next pass begins with the first key.
    pub fn round_robin_after(&self) -> Option<Key> {
        self.round_robin.after()
    }

    /// Returns the changes for the configuration that follows `current`. The changed keys have a
    /// total size of up to about `bytes` bytes. If the first key alone is longer, this key is still
    /// changed. If `bytes` is 0, no key is changed.
    ///
    /// # Panics
    /// If the configuration in force is not the one that these changes are based on.
    pub fn next(&mut self, current: &Configs, bytes: usize) -> ConfigChange {
        let keys = self.next_keys(current, bytes);
        let last = self.is_empty() && !self.dropped;
        let ranges = if last {
            std::mem::take(&mut self.last)
        } else {
            Vec::new()
        };
        ConfigChange {
            keys,
            ranges,
            ..ConfigChange::default()
        }
    }

    /// Removes and returns the keys of the next configuration, grouped by holders.
    pub(super) fn next_keys(
        &mut self,
        current: &Configs,
        bytes: usize,
    ) -> Vec<(ReplicaSet, Vec<Key>)> {
        assert_eq!(
            self.of,
            current.newest(),
            "the changes are of the newest configuration"
        );
        let mut batch = KeyBatch::new(bytes);
        self.add_round_robin(&mut batch, current);
        self.add_by_gain(&mut batch, current);
        batch.into_keys()
    }

    fn add_round_robin(&mut self, batch: &mut KeyBatch, current: &Configs) {
        if self.changes.len() <= KEYS_A_CONFIGURATION / ROUND_ROBIN_SHARE {
            return; // all of them will be brought soon
        }
        let (bytes, keys) = (
            batch.bytes / ROUND_ROBIN_SHARE,
            KEYS_A_CONFIGURATION / ROUND_ROBIN_SHARE,
        );
        while let Some((key, change)) = self.round_robin.next() {
            if batch.keys.len() >= keys || batch.taken + batch.cost(key, change) > bytes {
                return;
            }
            if current.listed(key) != Some(change.holders) {
                batch.served.insert(key.clone());
                batch.add(key.clone(), change);
            }
            self.round_robin.advance();
        }
    }

    fn add_by_gain(&mut self, batch: &mut KeyBatch, current: &Configs) {
        let most = KEYS_A_CONFIGURATION;
        if self.changes.len() > most {
            self.changes.select_nth_unstable_by(most, by_gain);
        }
        let looked_at = self.changes.len().min(most);
        self.changes[..looked_at].sort_unstable_by(by_gain);
        let mut brought = 0;
        for (key, change) in &self.changes[..looked_at] {
            let served = batch.served.contains(key) || current.listed(key) == Some(change.holders);
            if !served && !batch.fits(key, *change) {
                break;
            }
            if !served {
                batch.add(key.clone(), *change);
            }
            brought += 1;
        }
        self.changes.drain(..brought);
    }
}

/// Keys of one configuration, while they are being chosen.
struct KeyBatch {
    bytes: usize,
    taken: usize,
    keys: Vec<(Key, ReplicaSet)>,
    served: BTreeSet<Key>,
    holders: BTreeSet<ReplicaSet>,
}

impl KeyBatch {
    fn new(bytes: usize) -> KeyBatch {
        KeyBatch {
            bytes,
            taken: 0,
            keys: Vec::new(),
            served: BTreeSet::new(),
            holders: BTreeSet::new(),
        }
    }

    fn cost(&self, key: &Key, change: HolderChange) -> usize {
        let known = self.holders.contains(&change.holders);
        let holders = if known { 0 } else { HOLDERS_BYTES };
        key.len() + KEY_BYTES + holders
    }

    fn fits(&self, key: &Key, change: HolderChange) -> bool {
        let first = self.keys.is_empty() && self.bytes > 0;
        let has_capacity = self.keys.len() < KEYS_A_CONFIGURATION;
        first || has_capacity && self.taken + self.cost(key, change) <= self.bytes
    }

    fn add(&mut self, key: Key, change: HolderChange) {
        self.taken += self.cost(&key, change);
        self.holders.insert(change.holders);
        self.keys.push((key, change.holders));
    }

    /// Returns the keys, grouped by holders.
    fn into_keys(self) -> Vec<(ReplicaSet, Vec<Key>)> {
        let mut groups: BTreeMap<ReplicaSet, Vec<Key>> = BTreeMap::new();
        for (key, holders) in self.keys {
            groups.entry(holders).or_default().push(key);
        }
        for keys in groups.values_mut() {
            keys.sort_unstable();
        }
        groups.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::gathered_changes::{KEYS_MAX, Listing};

    /// Number of the first key that always needs another change. All later keys also always need
    /// another change.
    const NEVER_ENDS: u32 = 10_000;
    const BYTES: usize = 10_000;

    fn key(i: u32) -> Key {
        Key::from(format!("{i:08}"))
    }

    fn number(key: &Key) -> u32 {
        let text = std::str::from_utf8(key).expect("digits");
        text.parse().expect("digits")
    }

    /// Returns the result of a pass over `keys` keys. Keys with higher numbers have larger gains.
    fn pass(current: &Configs, resume_after: Option<Key>, keys: u32) -> RemainingChanges {
        let mut listing = Listing::new(resume_after);
        for i in 0..keys {
            let listed = current.listed(&key(i));
            let some = if listed == Some(ReplicaSet::all(3)) {
                2
            } else {
                3
            };
            let change = HolderChange {
                holders: ReplicaSet::all(some),
                gain: i as f32,
            };
            if listed.is_none() || i >= NEVER_ENDS {
                listing.add(change, &key(i));
            }
        }
        RemainingChanges::new(current.newest(), listing.finish())
    }

    /// Makes the next part of the remaining changes. Returns the changed keys, and the size of
    /// these keys in bytes.
    fn bring(remaining: &mut RemainingChanges, current: &mut Configs) -> (Vec<Key>, usize) {
        let change = remaining.next(current, BYTES);
        current.apply(ConfigId(current.newest().0 + 1), &change);
        remaining.proposed();
        let bytes = bytes_of_keys(&change);
        let keys = change.keys.into_iter().flat_map(|(_, keys)| keys);
        (keys.collect(), bytes)
    }

    #[test]
    fn every_part_stays_within_its_bytes_and_most_gain_comes_first() {
        let mut current = Configs::new(5);
        let mut remaining = pass(&current, None, 5000);
        let mut by_gain = 5000;
        let mut brought = 0;
        while !remaining.is_empty() {
            let (keys, bytes) = bring(&mut remaining, &mut current);
            assert!(bytes <= BYTES, "{bytes}");
            brought += keys.len();
            // Seven of eight keys are chosen by gain, without a gap.
            let most = keys.iter().rev().map(number);
            let in_a_row = most.zip((0..by_gain).rev()).take_while(|(a, b)| a == b);
            let in_a_row = in_a_row.count() as u32;
            assert!(in_a_row as usize >= keys.len() * 7 / 8 - 1);
            by_gain -= in_a_row;
        }
        assert_eq!(brought, 5000, "each once");
        assert!(!remaining.has_more());
    }

    /// The change with the smallest gain is made eventually, although every pass finds more changes
    /// with larger gains than it keeps.
    #[test]
    fn the_least_gain_is_brought_at_last() {
        let mut current = Configs::new(5);
        let (mut resume_after, mut parts) = (None, 0);
        while (0..NEVER_ENDS).any(|i| current.listed(&key(i)).is_none()) {
            let mut remaining = pass(&current, resume_after, NEVER_ENDS + 2 * KEYS_MAX as u32);
            assert!(remaining.has_more());
            for _ in 0..10 {
                bring(&mut remaining, &mut current);
            }
            resume_after = remaining.round_robin_after();
            parts += 10;
            assert!(parts <= 100, "an eighth of each is 113 keys");
        }
    }

    #[test]
    fn a_key_longer_than_a_part_is_brought_alone() {
        let mut current = Configs::new(5);
        let mut listing = Listing::new(None);
        for long in [b'a', b'b'] {
            let change = HolderChange {
                holders: ReplicaSet::all(3),
                gain: 1.0,
            };
            listing.add(change, &vec![long; 2 * BYTES]);
        }
        let mut remaining = RemainingChanges::new(current.newest(), listing.finish());
        assert_eq!(remaining.next(&current, 0), Default::default(), "no room");
        for left in [1, 0] {
            assert_eq!(bring(&mut remaining, &mut current).0.len(), 1);
            assert_eq!(remaining.changes.len(), left);
        }
    }
}
