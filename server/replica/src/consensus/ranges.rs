//! A set of slots, stored as ranges. Thousands of slots may be committed above a blocked slot, but
//! they form only a few ranges.

use leasehold_leases::Slot;
use smallvec::SmallVec;

/// A set of slots, as disjoint, non-adjacent ranges in rising order: (first slot, last slot).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ranges(Vec<(Slot, Slot)>);

impl Ranges {
    /// Whether `slot` is in the set.
    pub fn contains(&self, slot: Slot) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= slot);
        after > 0 && slot <= self.0[after - 1].1
    }

    /// Adds `slot` to the set.
    pub fn insert(&mut self, slot: Slot) {
        let at = self.0.partition_point(|(first, _)| *first <= slot);
        if at > 0 && slot <= self.0[at - 1].1 {
            return;
        }
        let joins_left = at > 0 && self.0[at - 1].1.next() == slot;
        let joins_right = at < self.0.len() && slot.next() == self.0[at].0;
        match (joins_left, joins_right) {
            (true, true) => {
                self.0[at - 1].1 = self.0[at].1;
                self.0.remove(at);
            }
            (true, false) => self.0[at - 1].1 = slot,
            (false, true) => self.0[at].0 = slot,
            (false, false) => self.0.insert(at, (slot, slot)),
        }
    }

    /// If the first range begins at or before `slot`, removes it and returns its last slot.
    pub fn take_from(&mut self, slot: Slot) -> Option<Slot> {
        let (first, last) = *self.0.first()?;
        (first <= slot).then(|| {
            self.0.remove(0);
            last
        })
    }

    /// Returns the parts of `first..=last` that are not in the set, in rising order.
    pub fn gaps(&self, first: Slot, last: Slot) -> SmallVec<[(Slot, Slot); 2]> {
        let mut gaps = SmallVec::new();
        let mut next = first;
        let from = self.0.partition_point(|(_, end)| *end < first);
        for (a, b) in &self.0[from..] {
            if next > last || *a > last {
                break;
            }
            if next < *a {
                gaps.push((next, Slot(a.0 - 1)));
            }
            next = next.max(b.next());
        }
        if next <= last {
            gaps.push((next, last));
        }
        gaps
    }

    /// Returns the number of slots in the set.
    pub fn len(&self) -> u64 {
        self.0
            .iter()
            .map(|(first, last)| last.0 - first.0 + 1)
            .sum()
    }

    /// Returns the lowest slot of the set; `None` if it is empty.
    pub fn lowest(&self) -> Option<Slot> {
        self.0.first().map(|(first, _)| *first)
    }

    /// Checks the invariants of the set.
    ///
    /// # Panics
    /// If ranges overlap or touch, or if they are not in rising order.
    pub fn check(&self) {
        let apart = |pair: &[(Slot, Slot)]| pair[0].1.next() < pair[1].0;
        assert!(self.0.windows(2).all(apart), "ranges are apart and rise");
        assert!(
            self.0.iter().all(|(first, last)| first <= last),
            "no range is empty"
        );
    }

    /// Returns the first `most` ranges of the set, or all ranges if there are fewer.
    pub fn first(&self, most: usize) -> Vec<(Slot, Slot)> {
        self.0[..self.0.len().min(most)].to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_plain_set() {
        let mut ranges = Ranges::default();
        let mut plain = std::collections::BTreeSet::new();
        let mut x = 7u64;
        for _ in 0..2000 {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let slot = Slot(x >> 33 & 0xff);
            ranges.insert(slot);
            plain.insert(slot);
            let probe = Slot(x >> 41 & 0xff);
            assert_eq!(ranges.contains(probe), plain.contains(&probe));
            let absent: Vec<Slot> = (10..=90)
                .map(Slot)
                .filter(|slot| !plain.contains(slot))
                .collect();
            let gaps = ranges.gaps(Slot(10), Slot(90)).into_iter();
            let missing = gaps.flat_map(|(first, last)| (first.0..=last.0).map(Slot));
            assert_eq!(missing.collect::<Vec<_>>(), absent);
            if let Some(last) = ranges.take_from(Slot(3)) {
                plain.retain(|slot| *slot > last);
            }
            assert_eq!(ranges.len(), plain.len() as u64);
        }
        assert!(ranges.0.windows(2).all(|w| w[0].1.next() < w[1].0));
    }

    #[test]
    fn the_first_are_told_as_far_as_asked_for() {
        let mut ranges = Ranges::default();
        for slot in [2, 3, 5, 8] {
            ranges.insert(Slot(slot));
        }
        let told = [(2, 3), (5, 5), (8, 8)].map(|(first, last)| (Slot(first), Slot(last)));
        assert_eq!(ranges.first(2), told[..2]);
        assert_eq!(ranges.first(9), told);
    }
}
