//! Bounded memory for keys. When it is full, the rarest of the next few keys is evicted for a
//! new one.

/// Number of keys that are compared: the rarest of them is evicted.
const EVICTION_CANDIDATES: usize = 8;

/// Memory for keys, as far as it grows with them, in bytes.
#[derive(Clone, Debug)]
pub(super) struct MemoryBudget {
    used: usize,
    max: usize,
    /// Where the next few keys are looked for.
    hand: usize,
}

impl MemoryBudget {
    /// Nothing used yet of `max` bytes.
    pub(super) fn new(max: usize) -> MemoryBudget {
        MemoryBudget {
            used: 0,
            max,
            hand: 0,
        }
    }

    /// Bytes in use.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Whether so many bytes more are too many.
    pub(super) fn lacks(&self, bytes: usize) -> bool {
        self.used + bytes > self.max
    }

    /// A key takes `bytes`.
    pub(super) fn take(&mut self, bytes: usize) {
        self.used += bytes;
    }

    /// A key that took `bytes` is gone.
    pub(super) fn free(&mut self, bytes: usize) {
        self.used -= bytes;
    }

    /// The places, of `len`, of the next few keys: the rarest of them is evicted.
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
