//! A seeded permutation of `0..n`. It gives every site a different order of popularity over the
//! same keys, as in the paper's experiments (section 6).
//!
//! If `n` is at most [`TABLE_MAX`], the numbers are shuffled in a table, so that every order is
//! equally likely. If `n` is larger, the numbers are permuted in constant memory, by a Feistel
//! network over the smallest power of two that is at least `n`. A result outside `0..n` is permuted
//! again until it falls inside ("cycle walking"), so the mapping remains a bijection. On average
//! this takes fewer than two passes for any `n`. For a small `n`, the results of such a network are
//! visibly not random: in a test with `n` = 5, the frequencies of the images of 0 were wrong by a
//! quarter.

use std::sync::Arc;

use super::random::{Random, mix};

/// Maximum length of a permutation that is stored as a shuffled table. A longer permutation is
/// computed by a network.
const TABLE_MAX: u64 = 1 << 12;

/// Number of pairs of rounds of the network. Two pairs make four rounds. With fewer than four
/// rounds, the result is visibly not random.
const ROUNDS: usize = 2;

/// A bijection of `0..len`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permutation {
    len: u64,
    order: Order,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Order {
    Table(Arc<Table>),
    Network(Network),
}

impl Permutation {
    /// Creates the permutation of `0..len` that belongs to `seed`.
    pub fn new(len: u64, seed: u64) -> Self {
        let order = if len <= TABLE_MAX {
            Order::Table(Arc::new(Table::new(len, seed)))
        } else {
            Order::Network(Network::new(len, seed))
        };
        Permutation { len, order }
    }

    /// Returns the number of permuted values.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if the permutation has no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the image of `index`.
    ///
    /// # Panics
    /// If `index` is not below `len`.
    #[inline]
    pub fn apply(&self, index: u64) -> u64 {
        assert!(index < self.len, "index {index} of {}", self.len);
        match &self.order {
            Order::Table(table) => u64::from(table.images[index as usize]),
            Order::Network(network) => self.walk(index, |block| network.encrypt(block)),
        }
    }

    /// Returns the index with the image `image`. This is the inverse of [`Permutation::apply`].
    ///
    /// # Panics
    /// If `image` is not below `len`.
    pub fn invert(&self, image: u64) -> u64 {
        assert!(image < self.len, "image {image} of {}", self.len);
        match &self.order {
            Order::Table(table) => u64::from(table.indices[image as usize]),
            Order::Network(network) => self.walk(image, |block| network.decrypt(block)),
        }
    }

    #[inline]
    fn walk(&self, from: u64, step: impl Fn(u64) -> u64) -> u64 {
        let mut block = step(from);
        while block >= self.len {
            block = step(block);
        }
        block
    }
}

/// A shuffled permutation, stored in two tables: one for the permutation, and one for its inverse.
#[derive(Debug, PartialEq, Eq)]
struct Table {
    images: Vec<u16>,
    indices: Vec<u16>,
}

impl Table {
    fn new(len: u64, seed: u64) -> Self {
        let mut images: Vec<u16> = (0..len as u16).collect();
        let mut random = Random::new(seed, &[]);
        for last in (1..images.len()).rev() {
            images.swap(last, random.below(last as u64 + 1) as usize);
        }
        let mut indices = vec![0; images.len()];
        for (index, image) in (0..).zip(&images) {
            indices[usize::from(*image)] = index;
        }
        Table { images, indices }
    }
}

/// A Feistel network over a power of two.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Network {
    /// Number of bits in the lower part of a block. The upper part has the same number of bits, or
    /// one bit less.
    low_bits: u32,
    high_mask: u64,
    low_mask: u64,
    round_keys: [[u64; 2]; ROUNDS],
}

impl Network {
    /// Creates a network over the smallest power of two that is at least `len`. Requires that `len`
    /// is above 1.
    fn new(len: u64, seed: u64) -> Self {
        let bits = u64::BITS - (len - 1).leading_zeros();
        let low_bits = bits.div_ceil(2);
        Network {
            low_bits,
            high_mask: (1 << (bits - low_bits)) - 1,
            low_mask: (1 << low_bits) - 1,
            round_keys: std::array::from_fn(|pair| {
                [0, 1].map(|half| mix(mix(seed) ^ (2 * pair as u64 + half)))
            }),
        }
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

/// Computes the round function. This function need not be invertible or cryptographically strong.
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
        fn is_a_bijection_with_an_inverse(len in 1u64..9_000, seed: u64) {
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
        // The images of the 1,000 most popular of 100,000 keys, in ten deciles: about 100 in each.
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

    /// Counts how often each value is the image of `index`, in permutations with `seeds` different
    /// seeds. Returns the largest deviation of a count from the expected count, in standard
    /// deviations.
    fn bias(len: u64, index: u64, seeds: u64) -> f64 {
        let mut counts = vec![0u64; len as usize];
        for seed in 0..seeds {
            counts[Permutation::new(len, seed).apply(index) as usize] += 1;
        }
        let share = 1.0 / len as f64;
        let expected = seeds as f64 * share;
        let deviation = (expected * (1.0 - share)).sqrt();
        let distance = |count: &u64| (*count as f64 - expected).abs() / deviation;
        counts.iter().map(distance).fold(0.0, f64::max)
    }

    #[test]
    fn every_image_is_equally_likely_whatever_the_number() {
        for len in [2, 3, 5, 6, 7, 9, 11, 16, 23, 100] {
            for index in [0, 1, len - 1] {
                let bias = bias(len, index, 20_000);
                assert!(bias < 5.0, "{index} of {len}: {bias:.1} deviations");
            }
        }
    }

    #[test]
    fn every_order_of_five_is_equally_likely() {
        let mut counts = std::collections::BTreeMap::new();
        for seed in 0..120_000 {
            let permutation = Permutation::new(5, seed);
            let order: Vec<_> = (0..5).map(|i| permutation.apply(i)).collect();
            *counts.entry(order).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 120);
        let all = counts.values();
        assert!(all.clone().all(|n| (840..1_160).contains(n)), "{all:?}");
    }

    #[test]
    fn networks_show_no_bias_from_their_smallest_size_on() {
        for len in [TABLE_MAX + 1, 5_000, 6_000, 8_191, 10_000] {
            for index in [0, len / 2] {
                let mut octiles = [0u64; 8];
                for seed in 0..40_000 {
                    let image = Permutation::new(len, seed).apply(index);
                    octiles[(image * 8 / len) as usize] += 1;
                }
                let even = octiles.iter().all(|n| (4_670..5_330).contains(n));
                assert!(even, "{index} of {len}: {octiles:?}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "index 10 of 10")]
    fn an_index_outside_is_refused() {
        Permutation::new(10, 1).apply(10);
    }
}
