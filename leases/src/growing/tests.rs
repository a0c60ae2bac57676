//! Tests that compare these maps with the maps of the standard library: the contents are the same,
//! and no insertion takes long.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use foldhash::fast::FixedState;
use proptest::collection::vec;
use proptest::prelude::*;

use super::table::MEAN;
use super::{GrowingIndexMap, GrowingMap};
use crate::hashing::{by_secret, colliding_keys};

thread_local! {
    static HASHED: Cell<usize> = const { Cell::new(0) };
}

/// A key that counts how often keys are hashed. A key is hashed whenever it is moved to another
/// place of a table.
#[derive(PartialEq, Eq)]
struct Counting(u64);

impl Hash for Counting {
    fn hash<H: Hasher>(&self, state: &mut H) {
        HASHED.set(HASHED.get() + 1);
        self.0.hash(state);
    }
}

const KEYS: u64 = 300_000;

/// Inserts many keys into an empty map. Returns the maximum number of keys that one insertion
/// hashed.
fn most_hashed(mut insert: impl FnMut(Counting)) -> usize {
    let of_one = |key| {
        HASHED.set(0);
        insert(Counting(key));
        HASHED.get()
    };
    (0..KEYS).map(of_one).max().unwrap_or(0)
}

/// Maximum length of a segment, including the new key.
const MOST: usize = 2 * MEAN + 200;

#[test]
fn no_insertion_moves_more_than_one_segment() {
    let mut map = GrowingMap::default();
    let most = most_hashed(|key| {
        map.insert(key, ());
    });
    assert_eq!(map.len(), KEYS as usize);
    assert!((MEAN..=MOST).contains(&most), "{most} moved");
}

/// An insertion into a map with places hashes only the inserted key. It moves only places, for
/// which the hashes are stored.
#[test]
fn an_insertion_into_a_map_with_places_hashes_its_key_alone() {
    let mut map = GrowingIndexMap::default();
    let most = most_hashed(|key| {
        map.insert_full(key, ());
    });
    assert_eq!(map.len(), KEYS as usize);
    assert_eq!(most, 1);
}

/// The number of hashed keys shows whether a map grows in one step, as the standard map does.
#[test]
fn a_standard_map_moves_all_at_once() {
    let mut map = HashMap::with_hasher(FixedState::default());
    let most = most_hashed(|key| {
        map.insert(key, ());
    });
    assert!(most > 200_000, "{most} moved");
}

#[test]
fn keys_of_one_hash_are_told_apart() {
    #[derive(Debug, PartialEq, Eq)]
    struct Colliding(u64);
    impl Hash for Colliding {
        fn hash<H: Hasher>(&self, state: &mut H) {
            0.hash(state);
        }
    }
    let mut map = GrowingMap::default();
    let mut places = GrowingIndexMap::default();
    for key in 0..2_000 {
        map.insert(Colliding(key), key);
        places.insert_full(Colliding(key), key);
    }
    for key in 0..2_000 {
        assert_eq!(map.get(&Colliding(key)), Some(&key));
        assert_eq!(places.get_index_of(&Colliding(key)), Some(key as usize));
    }
    assert_eq!(map.remove(&Colliding(7)), Some(7));
    assert!(!map.contains_key(&Colliding(7)) && map.contains_key(&Colliding(8)));
}

thread_local! {
    static COMPARED: Cell<usize> = const { Cell::new(0) };
}

/// A key that counts how often keys are compared.
#[derive(Eq)]
struct Compared(Vec<u8>);

impl Hash for Compared {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl PartialEq for Compared {
    fn eq(&self, other: &Compared) -> bool {
        COMPARED.set(COMPARED.get() + 1);
        self.0 == other.0
    }
}

/// Inserts `keys` keys, which are chosen to collide, into each of the maps. Returns the number of
/// comparisons of keys for each map.
fn compared(keys: u64) -> [usize; 2] {
    let all = || colliding_keys(keys).map(Compared);
    let mut map = GrowingMap::default();
    all().for_each(|key| assert!(map.insert(key, ()).is_none()));
    let of_map = COMPARED.replace(0);
    let mut places = GrowingIndexMap::default();
    all().for_each(|key| assert!(places.insert_full(key, ()).1.is_none()));
    [of_map, COMPARED.replace(0)]
}

#[test]
fn who_does_not_know_the_secret_cannot_choose_keys_that_are_all_compared() {
    let known = compared(2_000);
    assert_eq!(known, [2_000 * 1_999 / 2; 2], "these keys prove something");
    let secret = by_secret([7, 11], || compared(2_000));
    // A map compares only keys of which some bits of the hash are equal.
    assert!(
        secret.iter().all(|compared| *compared < 2_000),
        "{secret:?}"
    );
}

#[test]
fn a_map_keeps_the_secret_with_which_it_was_made() {
    let mut map = GrowingMap::default();
    for key in 0..5_000 {
        map.insert(key, key);
    }
    by_secret([7, 11], || {
        for key in 5_000..10_000 {
            map.insert(key, key);
        }
        assert!((0..10_000).all(|key| map.get(&key) == Some(&key)));
    });
}

#[derive(Clone, Debug)]
enum Change {
    Insert(u16, u8),
    Remove(u16),
    /// Removes the key at a place. The place is given in thousandths of the length.
    RemoveAt(usize),
    /// Keeps the keys that are divisible by this number.
    Retain(u16),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        60 => (0..4_000_u16, any::<u8>()).prop_map(|(key, value)| Change::Insert(key, value)),
        15 => (0..4_000_u16).prop_map(Change::Remove),
        15 => (0..1_000_usize).prop_map(Change::RemoveAt),
        1 => (1..4_u16).prop_map(Change::Retain),
    ]
}

/// Returns the keys of a block. Changes apply to blocks of keys, so that maps get several segments.
fn keys_of(block: u16) -> impl Iterator<Item = u16> {
    (0..16).map(move |i| block.wrapping_mul(16).wrapping_add(i))
}

/// Reference model of a map with places, implemented as a list.
#[derive(Default)]
struct Plain(Vec<(u16, u8)>);

impl Plain {
    fn place(&self, key: u16) -> Option<usize> {
        self.0.iter().position(|(own, _)| *own == key)
    }

    fn insert(&mut self, key: u16, value: u8) -> (usize, Option<u8>) {
        match self.place(key) {
            Some(at) => (at, Some(std::mem::replace(&mut self.0[at].1, value))),
            None => {
                self.0.push((key, value));
                (self.0.len() - 1, None)
            }
        }
    }
}

fn is_as(map: &GrowingIndexMap<u16, u8>, plain: &Plain) {
    let entries = map.iter().map(|(key, value)| (*key, *value));
    assert!(entries.eq(plain.0.iter().copied()), "the same order");
    for (at, (key, value)) in plain.0.iter().enumerate() {
        assert_eq!(map.get_index_of(key), Some(at));
        assert_eq!(map.get_index(at), Some((key, value)));
        assert_eq!(map.get(key), Some(value));
    }
    assert_eq!(map.len(), plain.0.len());
    assert_eq!(map.get_index(plain.0.len()), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_map_is_as_a_standard_one(changes in vec(change(), 0..600)) {
        let mut map = GrowingMap::default();
        let mut plain = HashMap::with_hasher(FixedState::default());
        for change in changes {
            match change {
                Change::Insert(block, value) => {
                    for key in keys_of(block) {
                        prop_assert_eq!(map.insert(key, value), plain.insert(key, value));
                    }
                }
                Change::Remove(block) => {
                    for key in keys_of(block) {
                        prop_assert_eq!(map.remove(&key), plain.remove(&key));
                    }
                }
                Change::RemoveAt(_) | Change::Retain(_) => {
                    map.values_mut().for_each(|value: &mut u8| *value = !*value);
                    plain.values_mut().for_each(|value| *value = !*value);
                }
            }
            prop_assert_eq!(map.len(), plain.len());
        }
        let mut entries: Vec<_> = map.iter().map(|(k, v)| (*k, *v)).collect();
        let mut expected: Vec<_> = plain.iter().map(|(k, v)| (*k, *v)).collect();
        entries.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(entries, expected);
        for key in 0..u16::MAX {
            prop_assert_eq!(map.get_key_value(&key), plain.get_key_value(&key));
        }
    }

    #[test]
    fn a_map_with_places_keeps_the_order(changes in vec(change(), 0..120)) {
        let mut map = GrowingIndexMap::default();
        let mut plain = Plain::default();
        for change in changes {
            match change {
                Change::Insert(block, value) => {
                    for key in keys_of(block) {
                        prop_assert_eq!(map.insert_full(key, value), plain.insert(key, value));
                    }
                }
                Change::Remove(block) => {
                    for key in keys_of(block) {
                        let removed = map.get_index_of(&key).and_then(|at| map.swap_remove_index(at));
                        let expected = plain.place(key).map(|at| plain.0.swap_remove(at));
                        prop_assert_eq!(removed, expected);
                    }
                }
                Change::RemoveAt(part) => {
                    let at = plain.0.len() * part / 1000;
                    let expected = (at < plain.0.len()).then(|| plain.0.swap_remove(at));
                    prop_assert_eq!(map.swap_remove_index(at), expected);
                }
                Change::Retain(divisor) => {
                    map.retain(|key, _| key.is_multiple_of(divisor));
                    plain.0.retain(|(key, _)| key.is_multiple_of(divisor));
                }
            }
        }
        is_as(&map, &plain);
    }
}
