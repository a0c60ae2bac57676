//! A map that grows in small steps, and that assigns a place to each entry.

use std::borrow::Borrow;
use std::hash::{BuildHasher as _, Hash};
use std::ops::{Index, IndexMut};

use super::chunks::Chunks;
use super::table::Table;
use crate::hashing::SeededState;

/// A hash map that numbers its entries from 0 in the order of insertion. The number of an entry is
/// its place. A pass over all entries may stop at a place and continue there later. When an entry
/// is removed, the last entry moves to the place of the removed entry. An insertion moves at most
/// some thousands of entries.
#[derive(Clone, Debug)]
pub struct GrowingIndexMap<K, V> {
    places: Table<Place>,
    entries: Chunks<(K, V)>,
    hashes: SeededState,
}

/// Place of the entry that belongs to a key with this hash.
#[derive(Clone, Copy, Debug)]
struct Place {
    hash: u64,
    at: usize,
}

impl<K, V> Default for GrowingIndexMap<K, V> {
    fn default() -> GrowingIndexMap<K, V> {
        GrowingIndexMap {
            places: Table::default(),
            entries: Chunks::default(),
            hashes: SeededState::default(),
        }
    }
}

impl<K, V> GrowingIndexMap<K, V> {
    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the key at a place, and its value; `None` if the place is not below
    /// [`len`](Self::len).
    #[inline]
    pub fn get_index(&self, at: usize) -> Option<(&K, &V)> {
        self.entries.get(at).map(|(key, value)| (key, value))
    }

    /// Returns the key at a place, and its value; `None` if the place is not below
    /// [`len`](Self::len).
    #[inline]
    pub fn get_index_mut(&mut self, at: usize) -> Option<(&K, &mut V)> {
        let entry = self.entries.get_mut(at);
        entry.map(|(key, value)| (&*key, value))
    }

    /// Iterates over all keys and their values, in order of place.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, value)| (key, value))
    }

    /// Iterates over all values, in order of place.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.iter().map(|(_, value)| value)
    }

    /// Iterates over all values, in order of place.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.iter_mut().map(|(_, value)| value)
    }

    /// Returns all entries, in order of place.
    pub fn into_entries(self) -> Vec<(K, V)> {
        let mut entries = Vec::with_capacity(self.len());
        entries.extend(self.entries);
        entries
    }
}

impl<K: Hash + Eq, V> GrowingIndexMap<K, V> {
    /// Returns the place of `key`.
    #[inline]
    pub fn get_index_of<Q>(&self, key: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.place_of(self.hashes.hash_one(key), key)
    }

    #[inline]
    fn place_of<Q>(&self, hash: u64, key: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let is_it = |place: &Place| place.hash == hash && self.entries[place.at].0.borrow() == key;
        self.places.find(hash, is_it).map(|place| place.at)
    }

    /// Returns the value of `key`.
    #[inline]
    pub fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let at = self.get_index_of(key)?;
        Some(&self.entries[at].1)
    }

    /// Returns the value of `key`.
    #[inline]
    pub fn get_mut<Q>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let at = self.get_index_of(key)?;
        Some(&mut self.entries[at].1)
    }

    /// Whether `key` has a value.
    #[inline]
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.get_index_of(key).is_some()
    }

    /// Inserts or replaces the value of `key`. Returns the key's place and its previous value. A
    /// new key gets the last place.
    pub fn insert_full(&mut self, key: K, value: V) -> (usize, Option<V>) {
        let hash = self.hashes.hash_one(&key);
        if let Some(at) = self.place_of(hash, &key) {
            let old = std::mem::replace(&mut self.entries[at].1, value);
            return (at, Some(old));
        }
        (self.append(hash, (key, value)), None)
    }

    /// Adds the entry of a new key. Returns its place.
    fn append(&mut self, hash: u64, entry: (K, V)) -> usize {
        let at = self.entries.len();
        self.entries.push(entry);
        self.places
            .insert(hash, Place { hash, at }, |place| place.hash);
        at
    }

    /// Removes and returns the entry at a place. The last entry moves to this place. Returns `None`
    /// if the place is not below [`len`](Self::len).
    pub fn swap_remove_index(&mut self, at: usize) -> Option<(K, V)> {
        let removed = self.entries.swap_remove(at)?;
        let place = self
            .places
            .remove(self.hashes.hash_one(&removed.0), |place| place.at == at);
        place.expect("every entry has a place");
        let last = self.entries.len();
        if let Some((moved, _)) = self.entries.get(at) {
            let place = self
                .places
                .find_mut(self.hashes.hash_one(moved), |place| place.at == last);
            place.expect("every entry has a place").at = at;
        }
        Some(removed)
    }

    /// Removes the entries for which `keep` returns false. The other entries keep their order.
    /// Cost: one call of `keep` for each entry.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        let entries = std::mem::take(&mut self.entries);
        self.places.clear();
        for mut entry in entries {
            if keep(&entry.0, &mut entry.1) {
                self.append(self.hashes.hash_one(&entry.0), entry);
            }
        }
    }
}

/// Returns the value at a place below the length.
impl<K, V> Index<usize> for GrowingIndexMap<K, V> {
    type Output = V;

    #[inline]
    fn index(&self, at: usize) -> &V {
        &self.entries[at].1
    }
}

impl<K, V> IndexMut<usize> for GrowingIndexMap<K, V> {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut V {
        &mut self.entries[at].1
    }
}
