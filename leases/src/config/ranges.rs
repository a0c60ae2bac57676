//! Ranges of keys, and maps that assign a value to each range.

use crate::types::Key;

/// The keys from `from`, inclusive, to `to`, exclusive.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyRange {
    from: Key,
    /// The first key after the range; `None` if the range has no end.
    to: Option<Key>,
}

impl KeyRange {
    /// Returns the range of all possible keys.
    pub fn all() -> KeyRange {
        KeyRange {
            from: Key::new(),
            to: None,
        }
    }

    /// Returns the range from `from`, inclusive, to `to`, exclusive; `None` if it would be empty.
    /// If `to` is `None`, the range has no end.
    pub fn new(from: Key, to: Option<Key>) -> Option<KeyRange> {
        let some = to.as_ref().is_none_or(|to| from < *to);
        some.then_some(KeyRange { from, to })
    }

    /// Returns the first key of the range.
    pub fn from(&self) -> &Key {
        &self.from
    }

    /// Returns the first key after the range; `None` if the range has no end.
    pub fn to(&self) -> Option<&Key> {
        self.to.as_ref()
    }

    /// Whether `key` is in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.from.as_ref() <= key && self.to.as_ref().is_none_or(|to| key < to.as_ref())
    }

    /// Whether at least one possible key is in both ranges.
    pub fn overlaps(&self, other: &KeyRange) -> bool {
        let begins_before =
            |a: &KeyRange, b: &KeyRange| b.to.as_ref().is_none_or(|to| a.from < *to);
        begins_before(self, other) && begins_before(other, self)
    }

    /// Whether every possible key is in the range.
    pub fn is_all(&self) -> bool {
        self.from.is_empty() && self.to.is_none()
    }
}

/// A map that assigns a value to each range of keys. The ranges are disjoint, in ascending order,
/// and together cover every key: each range ends where the next one begins.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RangeMap<T> {
    /// For each range, its first key and its value. The first range begins with the empty key.
    starts: Vec<(Key, T)>,
}

/// Reason why the first keys of ranges are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangesError {
    /// Keys before the first range would have no value.
    #[error("the first range must begin with the empty key")]
    Uncovered,
    /// Two ranges would overlap, or a range would be empty.
    #[error("ranges must be in rising order, no two with the same start")]
    Unordered,
}

impl<T> RangeMap<T> {
    /// Returns the map with one range that covers every key.
    pub fn uniform(value: T) -> RangeMap<T> {
        RangeMap {
            starts: vec![(Key::new(), value)],
        }
    }

    /// Creates ranges from their first keys. Each range ends where the next one begins.
    ///
    /// # Errors
    /// If the ranges do not cover every key, or the first keys are not in ascending order.
    pub fn from_starts(starts: Vec<(Key, T)>) -> Result<RangeMap<T>, RangesError> {
        if starts.first().is_none_or(|(first, _)| !first.is_empty()) {
            return Err(RangesError::Uncovered);
        }
        if !starts.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(RangesError::Unordered);
        }
        Ok(RangeMap { starts })
    }

    /// Returns the value of `key`.
    #[inline]
    pub fn get(&self, key: &[u8]) -> &T {
        &self.starts[self.index(key)].1
    }

    /// Returns the range that contains `key`.
    pub fn range_of(&self, key: &[u8]) -> KeyRange {
        self.range(self.index(key))
    }

    /// Iterates over the ranges in ascending order, with their values.
    pub fn iter(&self) -> impl Iterator<Item = (KeyRange, &T)> {
        let values = self.starts.iter().enumerate();
        values.map(|(index, (_, value))| (self.range(index), value))
    }

    /// Iterates over the first keys of the ranges, in ascending order.
    pub fn starts(&self) -> impl Iterator<Item = &Key> {
        self.starts.iter().map(|(from, _)| from)
    }

    /// Iterates over the ranges that have keys in common with `range`, in ascending order, with
    /// their values.
    pub fn overlapping(&self, range: &KeyRange) -> impl Iterator<Item = (KeyRange, &T)> {
        let first = self.index(&range.from);
        let end = match &range.to {
            Some(to) => self.starts.partition_point(|(from, _)| from < to),
            None => self.starts.len(),
        };
        (first..end).map(|index| (self.range(index), &self.starts[index].1))
    }

    /// Returns the value of all keys if there is only one range; `None` if there are several
    /// ranges.
    pub fn single(&self) -> Option<&T> {
        match self.starts.as_slice() {
            [(_, value)] => Some(value),
            _ => None,
        }
    }

    /// Panics unless the ranges are disjoint, in ascending order, and cover every key. Cost: one
    /// comparison of keys for each range.
    pub fn check(&self) {
        assert!(
            self.starts
                .first()
                .is_some_and(|(first, _)| first.is_empty()),
            "the first range begins with the first key"
        );
        assert!(
            self.starts.is_sorted_by(|a, b| a.0 < b.0),
            "ranges are in rising order"
        );
    }

    /// Returns a map with the same ranges. The function `value` computes the new value of a range
    /// from its old value.
    pub fn map<U>(&self, mut value: impl FnMut(&T) -> U) -> RangeMap<U> {
        let starts = self.starts.iter();
        RangeMap {
            starts: starts
                .map(|(from, old)| (from.clone(), value(old)))
                .collect(),
        }
    }

    /// Changes the value of every key of `range`. Ranges that extend beyond `range` are split at
    /// its ends.
    pub fn update(&mut self, range: &KeyRange, mut change: impl FnMut(&mut T))
    where
        T: Clone,
    {
        let first = self.split(&range.from);
        let end = match &range.to {
            Some(to) => self.split(to),
            None => self.starts.len(),
        };
        for (_, value) in &mut self.starts[first..end] {
            change(value);
        }
    }

    /// Returns the value of the range that contains `key`. A change of the value applies to all
    /// keys of this range.
    pub(super) fn get_mut(&mut self, key: &[u8]) -> &mut T {
        let index = self.index(key);
        &mut self.starts[index].1
    }

    /// Merges neighbouring ranges if `join` returns true for their values. A merged range has the
    /// value of the first range, and `join` may change this value.
    pub fn merge(&mut self, join: impl Fn(&mut T, &T) -> bool) {
        self.starts
            .dedup_by(|next, before| join(&mut before.1, &next.1));
    }

    /// Ensures that `key` is the first key of a range, and returns the index of this range. If
    /// necessary, splits the range that contains `key`.
    fn split(&mut self, key: &Key) -> usize
    where
        T: Clone,
    {
        let index = self.index(key);
        if self.starts[index].0 == *key {
            return index;
        }
        // `key` may be a slice of a large frame: copy its bytes, so that the frame can be freed.
        let from = Key::copy_from_slice(key);
        let value = self.starts[index].1.clone();
        self.starts.insert(index + 1, (from, value));
        index + 1
    }

    #[inline]
    fn index(&self, key: &[u8]) -> usize {
        if self.starts.len() == 1 {
            return 0;
        }
        let after = self.starts.partition_point(|(from, _)| from <= key);
        assert!(after > 0, "ranges cover every key");
        after - 1
    }

    fn range(&self, index: usize) -> KeyRange {
        KeyRange {
            from: self.starts[index].0.clone(),
            to: self.starts.get(index + 1).map(|(next, _)| next.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::copy_from_slice(text.as_bytes())
    }

    fn starts(text: &str) -> Vec<(Key, usize)> {
        let starts = text.split(',').enumerate();
        starts.map(|(i, from)| (key(from.trim()), i)).collect()
    }

    #[test]
    fn a_range_has_the_keys_from_its_first_up_to_its_end() {
        // (first key of the range, end of the range, tested key, whether the key is in the range)
        for (from, to, asked, inside) in [
            ("", None, "", true),
            ("", None, "zzz", true),
            ("f", None, "ez", false),
            ("f", None, "f", true),
            ("f", Some("p"), "f", true),
            ("f", Some("p"), "ozzz", true),
            ("f", Some("p"), "p", false),
            ("f", Some("p"), "", false),
            ("", Some("f"), "", true),
            ("", Some("f"), "f", false),
        ] {
            let range = KeyRange::new(key(from), to.map(key)).expect("some keys");
            assert_eq!(range.contains(asked.as_bytes()), inside, "{range:?}");
            assert_eq!(range.is_all(), from.is_empty() && to.is_none());
        }
        assert_eq!(KeyRange::new(key("p"), Some(key("f"))), None);
        assert_eq!(KeyRange::new(key("p"), Some(key("p"))), None);
    }

    #[test]
    fn ranges_that_overlap_or_leave_keys_out_are_refused() {
        for (text, expected) in [
            ("", Ok(())),
            (",f,p", Ok(())),
            ("f", Err(RangesError::Uncovered)),
            ("f,p", Err(RangesError::Uncovered)),
            (",p,f", Err(RangesError::Unordered)),
            (",f,f", Err(RangesError::Unordered)),
            (",", Err(RangesError::Unordered)),
        ] {
            let built = RangeMap::from_starts(starts(text));
            assert_eq!(built.as_ref().map(|_| ()).map_err(|e| *e), expected);
            built.into_iter().for_each(|map| map.check());
        }
        let none: Vec<(Key, usize)> = Vec::new();
        assert_eq!(RangeMap::from_starts(none), Err(RangesError::Uncovered));
    }

    #[test]
    fn every_key_has_the_value_of_its_one_range() {
        let map = RangeMap::from_starts(starts(",f,p")).expect("in order");
        for (asked, value) in [("", 0), ("ez", 0), ("f", 1), ("oz", 1), ("p", 2), ("z", 2)] {
            let asked = asked.as_bytes();
            assert_eq!(*map.get(asked), value);
            assert!(map.range_of(asked).contains(asked));
            let inside = map.iter().filter(|(range, _)| range.contains(asked));
            let found: Vec<usize> = inside.map(|(_, value)| *value).collect();
            assert_eq!(found, [value], "one range has it, and no other");
        }
        assert_eq!(map.single(), None);
        assert_eq!(RangeMap::uniform(7).single(), Some(&7));
        assert!(RangeMap::uniform(7).range_of(b"any").is_all());
    }

    /// Updates every range between a few keys. Compares the map with a plain list of keys and
    /// values.
    #[test]
    fn an_update_changes_the_keys_of_its_range_and_no_other() {
        let keys = ["", "a", "f", "fz", "p", "z"];
        let mut map = RangeMap::from_starts(starts(",f,p")).expect("in order");
        let mut plain = [0, 0, 1, 1, 2, 2];
        let mut next = 10;
        for (i, from) in keys.iter().enumerate() {
            for to in (i + 1..=keys.len()).rev() {
                let range = KeyRange::new(key(from), keys.get(to).map(|to| key(to)));
                map.update(&range.expect("some keys"), |value| *value = next);
                plain[i..to].fill(next);
                map.merge(|a, b| a == b);
                map.check();
                let found = keys.map(|key| *map.get(key.as_bytes()));
                assert_eq!(found, plain, "after {from:?} to {:?}", keys.get(to));
                next += 1;
            }
        }
        map.update(&KeyRange::all(), |value| *value = 7);
        map.merge(|a, b| a == b);
        assert_eq!(map.single(), Some(&7), "equal neighbours are one range");
    }
}
