//! The load generator's only source of random numbers. This module, not a library, defines how
//! random bits become a number in a range, so that a seed gives the same workload in every release.

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// A seeded stream of random numbers with a fixed, documented algorithm.
#[derive(Clone, Debug)]
pub struct Random(Pcg64Mcg);

impl Random {
    /// Returns the stream for `seed` and `path`. The path can consist, for example, of the ID of
    /// the site and the ID of the client. Different paths give unrelated streams.
    pub fn new(seed: u64, path: &[u64]) -> Self {
        let state = path
            .iter()
            .fold(mix(seed), |state, &step| mix(state ^ mix(step)));
        Random(Pcg64Mcg::seed_from_u64(state))
    }

    /// Returns 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a uniform random number in `[0, 1)`. The number is a multiple of 2^-53.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Returns a uniform number in `0..bound`, without bias (Lemire's multiplication); 0 if `bound`
    /// is 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        let mut product = u128::from(self.bits()) * u128::from(bound);
        if (product as u64) < bound {
            let biased_below = bound.wrapping_neg() % bound;
            while (product as u64) < biased_below {
                product = u128::from(self.bits()) * u128::from(bound);
            }
        }
        (product >> 64) as u64
    }
}

/// Finalizer of splitmix64: spreads every bit of `x` over the whole word.
pub(super) const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_streams_and_paths_separate_them() {
        let draw = |seed, path: &[u64]| {
            let mut random = Random::new(seed, path);
            [random.bits(), random.bits()]
        };
        assert_eq!(draw(7, &[1, 2]), draw(7, &[1, 2]));
        assert_ne!(draw(7, &[1, 2]), draw(7, &[2, 1]));
        assert_ne!(draw(7, &[1]), draw(8, &[1]));
        assert_ne!(draw(7, &[]), draw(7, &[0]));
    }

    #[test]
    fn below_covers_its_range_evenly() {
        let mut random = Random::new(1, &[]);
        let mut counts = [0u32; 7];
        for _ in 0..70_000 {
            counts[random.below(7) as usize] += 1;
        }
        for count in counts {
            assert!((9_600..10_400).contains(&count), "{counts:?}");
        }
        assert_eq!(random.below(1), 0);
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn unit_stays_below_one() {
        let mut random = Random::new(3, &[]);
        let mean = (0..100_000)
            .map(|_| random.unit())
            .inspect(|u| assert!((0.0..1.0).contains(u)))
            .sum::<f64>()
            / 100_000.0;
        assert!((0.495..0.505).contains(&mean), "{mean}");
    }
}
