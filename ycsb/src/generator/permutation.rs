//! A seeded permutation of `0..n` in constant memory: it gives every site a
//! different order of popularity over the same keys, as the paper's experiments
//! have it (section 6).
//!
//! A Feistel network permutes the smallest power of two that holds `n`; results
//! outside `0..n` are permuted again until they fall inside ("cycle walking"),
//! which keeps it a bijection. Fewer than two passes are expected for any `n`.

use super::random::mix;

/// Pairs of rounds. With fewer than four rounds the result is visibly not random.
const ROUNDS: usize = 2;

/// A bijection of `0..len`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permutation {
    len: u64,
    /// Bits of the lower part of a block; the upper has as many or one less.
    low_bits: u32,
    high_mask: u64,
    low_mask: u64,
    round_keys: [[u64; 2]; ROUNDS],
}

impl Permutation {
    /// The permutation of `0..len` that belongs to `seed`.
    pub fn new(len: u64, seed: u64) -> Self {
        let bits = (u64::BITS - len.saturating_sub(1).leading_zeros()).max(2);
        let low_bits = bits.div_ceil(2);
        Permutation {
            len,
            low_bits,
            high_mask: (1 << (bits - low_bits)) - 1,
            low_mask: (1 << low_bits) - 1,
            round_keys: std::array::from_fn(|pair| {
                [0, 1].map(|half| mix(mix(seed) ^ (2 * pair as u64 + half)))
            }),
        }
    }

    /// The number of things permuted.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is nothing to permute.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where `index` is sent.
    ///
    /// # Panics
    /// If `index` is not below `len`.
    #[inline]
    pub fn apply(&self, index: u64) -> u64 {
        assert!(index < self.len, "index {index} of {}", self.len);
        let mut block = self.encrypt(index);
        while block >= self.len {
            block = self.encrypt(block);
        }
        block
    }

    /// The index that is sent to `image`: the inverse of [`Permutation::apply`].
    ///
    /// # Panics
    /// If `image` is not below `len`.
    pub fn invert(&self, image: u64) -> u64 {
        assert!(image < self.len, "image {image} of {}", self.len);
        let mut block = self.decrypt(image);
        while block >= self.len {
            block = self.decrypt(block);
        }
        block
    }

    #[inline]
    fn encrypt(&self, block: u64) -> u64 {
        let (mut high, mut low) = self.split(block);
        for [first, second] in self.round_keys {
            high ^= scatter(low, first) & self.high_mask;
            low ^= scatter(high, second) & self.low_mask;
        }
        high << self.low_bits | low
    }

    fn decrypt(&self, block: u64) -> u64 {
        let (mut high, mut low) = self.split(block);
        for [first, second] in self.round_keys.into_iter().rev() {
            low ^= scatter(high, second) & self.low_mask;
            high ^= scatter(low, first) & self.high_mask;
        }
        high << self.low_bits | low
    }

    #[inline]
    fn split(&self, block: u64) -> (u64, u64) {
        (block >> self.low_bits, block & self.low_mask)
    }
}

/// The round function. It need not be invertible, and not cryptographically strong.
#[inline]
fn scatter(part: u64, key: u64) -> u64 {
    let product = (part ^ key).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((product ^ (product >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93)) >> 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn is_a_bijection_with_an_inverse(len in 1u64..5_000, seed: u64) {
            let permutation = Permutation::new(len, seed);
            let mut hit = vec![false; len as usize];
            for index in 0..len {
                let image = permutation.apply(index);
                prop_assert!(!std::mem::replace(&mut hit[image as usize], true));
                prop_assert_eq!(permutation.invert(image), index);
            }
        }

        #[test]
        fn inverts_at_any_size(len in 1u64.., seed: u64, pick: u64) {
            let permutation = Permutation::new(len, seed);
            let index = pick % len;
            prop_assert_eq!(permutation.invert(permutation.apply(index)), index);
        }
    }

    #[test]
    fn different_seeds_order_differently() {
        let (a, b) = (Permutation::new(100_000, 1), Permutation::new(100_000, 2));
        let equal = (0..100_000).filter(|&i| a.apply(i) == b.apply(i)).count();
        assert!(equal < 10, "one is expected, {equal} found");
    }

    #[test]
    fn the_first_ranks_are_spread_over_all_keys() {
        // The 1,000 most popular of 100,000, ten deciles: about 100 in each.
        let permutation = Permutation::new(100_000, 42);
        let mut deciles = [0; 10];
        for rank in 0..1_000 {
            deciles[permutation.apply(rank) as usize / 10_000] += 1;
        }
        assert!(deciles.iter().all(|n| (60..140).contains(n)), "{deciles:?}");
    }

    #[test]
    fn the_images_of_one_index_are_spread_over_the_seeds() {
        let mut deciles = [0; 10];
        for seed in 0..1_000 {
            deciles[Permutation::new(1_000, seed).apply(0) as usize / 100] += 1;
        }
        assert!(deciles.iter().all(|n| (60..140).contains(n)), "{deciles:?}");
    }

    #[test]
    #[should_panic(expected = "index 10 of 10")]
    fn an_index_outside_is_refused() {
        Permutation::new(10, 1).apply(10);
    }
}
