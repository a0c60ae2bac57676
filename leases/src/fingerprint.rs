//! Hashing of unordered collections. The model checker compares states by their fingerprints. Two
//! maps with the same entries have the same fingerprint, regardless of the order in which the
//! entries were inserted.

use std::hash::{BuildHasher, Hash, Hasher};

use foldhash::quality::FixedState;

/// Hashes entries independently of their order.
pub fn unordered<T: Hash>(entries: impl IntoIterator<Item = T>, state: &mut impl Hasher) {
    let (mut sum, mut count) = (0u64, 0u64);
    for entry in entries {
        sum = sum.wrapping_add(of(&entry));
        count += 1;
    }
    (sum, count).hash(state);
}

/// Returns the fingerprint of a value. It is the same in every run.
pub fn of(value: &impl Hash) -> u64 {
    FixedState::default().hash_one(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashed(entries: &[(u8, u8)]) -> u64 {
        let mut hasher = FixedState::default().build_hasher();
        unordered(entries, &mut hasher);
        hasher.finish()
    }

    #[test]
    fn order_does_not_matter_and_contents_do() {
        assert_eq!(hashed(&[(1, 2), (3, 4)]), hashed(&[(3, 4), (1, 2)]));
        assert_ne!(hashed(&[(1, 2), (3, 4)]), hashed(&[(1, 4), (3, 2)]));
        assert_ne!(hashed(&[(1, 2)]), hashed(&[(1, 2), (1, 2)]));
        assert_ne!(hashed(&[]), hashed(&[(0, 0)]));
    }
}
