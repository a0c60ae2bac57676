//! Bounded memory for keys. When it is full, the rarest of the next few keys is evicted for a
//! new one.

/// Number of keys that are compared: the rarest of them is evicted.
const COMPARED: usize = 8;

/// Memory for keys, as far as it grows with them, in bytes.
#[derive(Clone, Debug)]
pub(super) struct Room {
    used: usize,
    max: usize,
    /// Where the next few keys are looked for.
    hand: usize,
}

impl Room {
    /// Nothing used yet of `max` bytes.
    pub(super) fn new(max: usize) -> Room {
        Room {
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
    pub(super) fn compared(&mut self, len: usize) -> impl Iterator<Item = usize> + use<> {
        let first = self.hand;
        self.hand = (first + COMPARED) % len.max(1);
        (0..COMPARED.min(len)).map(move |i| (first + i) % len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_compared_in_its_turn() {
        let mut room = Room::new(100);
        let mut compared = |len| room.compared(len).collect::<Vec<_>>();
        assert_eq!(compared(11), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(compared(11), [8, 9, 10, 0, 1, 2, 3, 4]);
        assert_eq!(compared(2), [1, 0], "of those that are left");
        assert!(compared(0).is_empty());
    }

    #[test]
    fn what_is_taken_is_given_back() {
        let mut room = Room::new(100);
        room.take(60);
        assert!(room.lacks(41) && !room.lacks(40));
        room.free(20);
        assert!(!room.lacks(60));
        assert_eq!(room.used(), 40);
    }
}
