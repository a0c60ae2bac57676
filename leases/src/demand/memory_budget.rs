//! Bounded memory for keys. When the memory is full, a few keys are compared, and the one with the
//! fewest operations is evicted.

/// Number of keys that are compared for an eviction. The key with the fewest operations among them
/// is evicted.
const EVICTION_CANDIDATES: usize = 8;

/// Budget, in bytes, for memory that grows with the number of keys.
#[derive(Clone, Debug)]
pub(super) struct MemoryBudget {
    used: usize,
    max: usize,
    /// Place of the first key that the next eviction will compare.
    hand: usize,
}

impl MemoryBudget {
    /// Creates a budget of `max` bytes. No bytes are in use yet.
    pub(super) fn new(max: usize) -> MemoryBudget {
        MemoryBudget {
            used: 0,
            max,
            hand: 0,
        }
    }

    /// Returns the number of bytes in use.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Whether the budget has no space for `bytes` more bytes.
    pub(super) fn lacks(&self, bytes: usize) -> bool {
        self.used + bytes > self.max
    }

    /// Reserves `bytes` bytes for a key.
    pub(super) fn take(&mut self, bytes: usize) {
        self.used += bytes;
    }

    /// Releases the `bytes` bytes of a key that was removed.
    pub(super) fn free(&mut self, bytes: usize) {
        self.used -= bytes;
    }

    /// Returns the places of the next few keys among `len` keys. The caller evicts the key with the
    /// fewest operations.
    pub(super) fn eviction_candidates(
        &mut self,
        len: usize,
    ) -> impl Iterator<Item = usize> + use<> {
        let first = self.hand;
        self.hand = (first + EVICTION_CANDIDATES) % len.max(1);
        (0..EVICTION_CANDIDATES.min(len)).map(move |i| (first + i) % len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_compared_in_its_turn() {
        let mut budget = MemoryBudget::new(100);
        let mut candidates = |len| budget.eviction_candidates(len).collect::<Vec<_>>();
        assert_eq!(candidates(11), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(candidates(11), [8, 9, 10, 0, 1, 2, 3, 4]);
        assert_eq!(candidates(2), [1, 0], "of those that are left");
        assert!(candidates(0).is_empty());
    }

    #[test]
    fn what_is_taken_is_given_back() {
        let mut budget = MemoryBudget::new(100);
        budget.take(60);
        assert!(budget.lacks(41) && !budget.lacks(40));
        budget.free(20);
        assert!(!budget.lacks(60));
        assert_eq!(budget.used(), 40);
    }
}
