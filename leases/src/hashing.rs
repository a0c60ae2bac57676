//! Hashing of keys that clients or peers choose.
//!
//! A client that knows how a map hashes can choose many keys with the same hash. Every lookup of
//! such a key compares it with all these keys. With 20,000 such keys, a replica takes seconds for
//! one batch. So a node draws a random secret when it starts, before it creates its first map
//! ([`seed_thread`]). Simulations and tests keep the known secret, so that all their runs are
//! alike.
//!
//! The order of a map's entries depends on the secret. Nothing may depend on this order, because
//! replicas of one cluster have different secrets and the same state.

use std::cell::Cell;
use std::fmt::{self, Debug};
use std::hash::BuildHasher;

use foldhash::SharedSeed;
use foldhash::fast::FoldHasher;

/// Secret that determines the hashes of keys.
struct Secret {
    start: u64,
    others: SharedSeed,
}

/// Secret that every thread uses until [`seed_thread`] replaces it. The numbers are arbitrary: the
/// first digits of pi.
static KNOWN: Secret = Secret {
    start: 0x243f_6a88_85a3_08d3,
    others: SharedSeed::from_u64(0x1319_8a2e_0370_7344),
};

thread_local! {
    static SECRET: Cell<&'static Secret> = const { Cell::new(&KNOWN) };
}

/// Creates a secret from the random numbers in `drawn`. Maps that this thread creates later use
/// this secret to hash keys. A map keeps its secret, even if the map moves to another thread. The
/// secret is never freed, so a node should call this function only once.
pub fn seed_thread(drawn: [u64; 2]) {
    let [start, others] = drawn;
    let secret = Secret {
        start,
        others: SharedSeed::from_u64(others),
    };
    SECRET.set(Box::leak(Box::new(secret)));
}

/// Hasher for maps with keys from clients or peers. The hasher uses the secret of the thread that
/// created the hasher.
#[derive(Clone, Copy)]
pub struct SeededState(&'static Secret);

impl Default for SeededState {
    #[inline]
    fn default() -> SeededState {
        SeededState(SECRET.get())
    }
}

impl BuildHasher for SeededState {
    type Hasher = FoldHasher<'static>;

    #[inline]
    fn build_hasher(&self) -> FoldHasher<'static> {
        FoldHasher::with_seed(self.0.start, &self.0.others)
    }
}

/// Formats the hasher without its secret, because the secret must not appear in logs.
impl Debug for SeededState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seeded")
    }
}

/// Runs `made` and returns the result. While `made` runs, the secret of this thread is `drawn`
/// instead of the known secret.
#[cfg(test)]
pub(crate) fn by_secret<T>(drawn: [u64; 2], made: impl FnOnce() -> T) -> T {
    let before = SECRET.get();
    seed_thread(drawn);
    let made = made();
    SECRET.set(before);
    made
}

/// Returns keys of 16 bytes that have the same hash under the known secret. The hash is a product
/// of two factors, and the first half of each key makes one of the factors 0.
#[cfg(test)]
pub(crate) fn colliding_keys(count: u64) -> impl Iterator<Item = Vec<u8>> {
    let first = KNOWN.start.rotate_right(16).to_ne_bytes();
    (0..count).map(move |n| [first, n.to_ne_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn hashes() -> usize {
        let seeded = SeededState::default();
        let all = colliding_keys(10_000).map(|key| seeded.hash_one(key));
        all.collect::<BTreeSet<u64>>().len()
    }

    #[test]
    fn keys_chosen_for_the_known_secret_differ_by_another() {
        assert_eq!(hashes(), 1, "these keys prove something");
        assert_eq!(by_secret([7, 11], hashes), 10_000);
    }

    #[test]
    fn both_numbers_drawn_decide_and_are_not_shown() {
        let hash = || {
            let seeded = SeededState::default();
            assert_eq!(format!("{seeded:?}"), "Seeded");
            seeded.hash_one("key")
        };
        let all = [[1, 1], [1, 2], [2, 1]].map(|drawn| by_secret(drawn, hash));
        assert_eq!(BTreeSet::from(all).len(), 3);
        assert_eq!(by_secret([1, 1], hash), all[0], "the same in every run");
    }
}
