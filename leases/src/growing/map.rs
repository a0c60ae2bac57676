//! A map that grows in small steps.

use std::borrow::Borrow;
use std::hash::{BuildHasher as _, Hash};

use super::table::Table;
use crate::hashing::SeededState;

/// A hash map that moves at most some thousands of entries in each insertion.
#[derive(Clone, Debug)]
pub struct GrowingMap<K, V> {
    table: Table<(K, V)>,
    hashes: SeededState,
}

impl<K, V> Default for GrowingMap<K, V> {
    fn default() -> GrowingMap<K, V> {
        GrowingMap {
            table: Table::default(),
            hashes: SeededState::default(),
        }
    }
}

impl<K, V> GrowingMap<K, V> {
    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over all keys and their values, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.table.iter().map(|(key, value)| (key, value))
    }

    /// Iterates over all values, in the order of [`iter`](Self::iter).
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.table.iter_mut().map(|(_, value)| value)
    }
}

impl<K: Hash + Eq, V> GrowingMap<K, V> {
    /// Returns the value of `key`.
    #[inline]
    pub fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.get_key_value(key).map(|(_, value)| value)
    }

    /// Returns the key as it was inserted, and its value.
    #[inline]
    pub fn get_key_value<Q>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let found = self.table.find(self.hashes.hash_one(key), is(key));
        found.map(|(key, value)| (key, value))
    }

    /// Returns the value of `key`.
    #[inline]
    pub fn get_mut<Q>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let found = self.table.find_mut(self.hashes.hash_one(key), is(key));
        found.map(|(_, value)| value)
    }

    /// Whether `key` has a value.
    #[inline]
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.get(key).is_some()
    }

    /// Inserts or replaces the value of `key`. Returns its previous value.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let hashes = self.hashes;
        let hash = hashes.hash_one(&key);
        if let Some((_, old)) = self.table.find_mut(hash, is(&key)) {
            return Some(std::mem::replace(old, value));
        }
        self.table
            .insert(hash, (key, value), |(key, _)| hashes.hash_one(key));
        None
    }

    /// Removes `key`. Returns its value.
    pub fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let removed = self.table.remove(self.hashes.hash_one(key), is(key));
        removed.map(|(_, value)| value)
    }
}

/// Returns a predicate that is true for the entry of `key`.
#[inline]
fn is<K, V, Q>(key: &Q) -> impl Fn(&(K, V)) -> bool
where
    K: Borrow<Q>,
    Q: Eq + ?Sized,
{
    move |(own, _)| own.borrow() == key
}
