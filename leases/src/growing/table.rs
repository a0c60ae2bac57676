//! A hash table in segments, which are split one at a time.

use hashbrown::HashTable;

/// Mean number of entries in a segment. A segment grows to up to twice this number before it is
/// split. A split takes a fraction of a millisecond.
pub(super) const MEAN: usize = 800;

/// Index of the lowest hash bit that chooses a segment. Lower bits choose a place within the
/// segment. The highest seven bits are not available, because `hashbrown` uses them to distinguish
/// entries of neighbouring places.
const SEGMENT_BIT: u32 = 24;

/// Entries, indexed by their hashes. The caller provides the hash of each entry.
#[derive(Clone, Debug)]
pub(super) struct Table<T> {
    /// Segments. There are none before the first insertion.
    segments: Vec<HashTable<T>>,
    /// Mask of the bits that choose a segment: a power of two, minus one. This is the lowest power
    /// of two that is not below the number of segments.
    mask: usize,
    len: usize,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table {
            segments: Vec::new(),
            mask: 0,
            len: 0,
        }
    }
}

impl<T> Table<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the index of the segment for entries with this hash. If this segment does not exist
    /// yet, returns the index of the segment that contains these entries until a split creates the
    /// other segment.
    #[inline]
    fn segment_of(&self, hash: u64) -> usize {
        let bits = (hash >> SEGMENT_BIT) as usize;
        let segment = bits & self.mask;
        if segment < self.segments.len() {
            segment
        } else {
            bits & (self.mask >> 1)
        }
    }

    #[inline]
    pub(super) fn find(&self, hash: u64, is_it: impl FnMut(&T) -> bool) -> Option<&T> {
        let segment = self.segments.get(self.segment_of(hash))?;
        segment.find(hash, is_it)
    }

    #[inline]
    pub(super) fn find_mut(&mut self, hash: u64, is_it: impl FnMut(&T) -> bool) -> Option<&mut T> {
        let at = self.segment_of(hash);
        self.segments.get_mut(at)?.find_mut(hash, is_it)
    }

    /// Adds an entry that the table does not contain yet.
    pub(super) fn insert(&mut self, hash: u64, entry: T, hash_of: impl Fn(&T) -> u64) {
        if self.segments.is_empty() {
            self.segments.push(HashTable::new());
        }
        let at = self.segment_of(hash);
        let segment = &mut self.segments[at];
        // An insertion either grows a segment or splits one. If both are due, the next insertion
        // splits.
        let grows = segment.len() == segment.capacity();
        segment.insert_unique(hash, entry, &hash_of);
        self.len += 1;
        if !grows && self.len > self.segments.len() * MEAN {
            self.split(hash_of);
        }
    }

    pub(super) fn remove(&mut self, hash: u64, is_it: impl FnMut(&T) -> bool) -> Option<T> {
        let at = self.segment_of(hash);
        let found = self.segments.get_mut(at)?.find_entry(hash, is_it).ok()?;
        self.len -= 1;
        Some(found.remove().0)
    }

    /// Removes all entries, but keeps the segments.
    pub(super) fn clear(&mut self) {
        self.segments.iter_mut().for_each(HashTable::clear);
        self.len = 0;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.segments.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.segments.iter_mut().flatten()
    }

    /// Adds a segment, and moves the entries that belong to the new segment from an existing
    /// segment.
    fn split(&mut self, hash_of: impl Fn(&T) -> u64) {
        let new = self.segments.len();
        let mask = (new + 1).next_power_of_two() - 1;
        let old = std::mem::take(&mut self.segments[new & (mask >> 1)]);
        let hashes: Vec<u64> = old.iter().map(hash_of).collect();
        self.mask = mask;
        self.segments.push(HashTable::new());

        let moves = hashes.iter().filter(|hash| self.segment_of(**hash) == new);
        let moves = moves.count();
        self.segments[new] = HashTable::with_capacity(moves);
        self.segments[new & (mask >> 1)] = HashTable::with_capacity(old.len() - moves);
        for (hash, entry) in hashes.into_iter().zip(old) {
            let at = self.segment_of(hash);
            self.segments[at].insert_unique(hash, entry, |_| {
                unreachable!("there is room for all entries")
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher as _;

    use super::*;
    use crate::hashing::SeededState;

    fn hash_of(entry: &u64) -> u64 {
        SeededState::default().hash_one(entry)
    }

    fn table(entries: u64) -> Table<u64> {
        let mut table = Table::default();
        for entry in 0..entries {
            table.insert(hash_of(&entry), entry, hash_of);
        }
        table
    }

    #[test]
    fn segments_follow_the_number_of_entries() {
        for entries in [0, 1, MEAN, 5 * MEAN, 5 * MEAN + 1, 100 * MEAN] {
            let table = table(entries as u64);
            assert_eq!(table.len(), entries);
            let due = entries.div_ceil(MEAN);
            let segments = table.segments.len();
            assert!(due <= segments + 1 && segments <= due, "{entries} entries");
        }
    }

    #[test]
    fn no_segment_has_much_more_than_twice_the_mean() {
        for segments in [64, 100, 127, 128] {
            let table = table((segments * MEAN) as u64);
            let longest = table.segments.iter().map(HashTable::len).max();
            let longest = longest.expect("there are segments");
            // The standard deviation is the square root of 2 * MEAN, which is 40.
            assert!(longest < 2 * MEAN + 200, "{longest} of {segments} segments");
        }
    }

    #[test]
    fn every_entry_is_where_its_hash_says() {
        let table = table(50_000);
        for (at, segment) in table.segments.iter().enumerate() {
            for entry in segment {
                assert_eq!(table.segment_of(hash_of(entry)), at);
            }
        }
        assert_eq!(table.iter().count(), 50_000);
    }
}
