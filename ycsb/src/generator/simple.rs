//! Distributions that need only a line of arithmetic for each random number.

use super::Random;

/// Distribution in which every number of a range is equally likely.
#[derive(Clone, Copy, Debug)]
pub struct Uniform {
    first: u64,
    count: u64,
}

impl Uniform {
    /// Creates the distribution over `first..first + count`. If `count` is 0, it is treated as 1.
    pub fn new(first: u64, count: u64) -> Self {
        Uniform {
            first,
            count: count.max(1),
        }
    }

    /// Returns a random number.
    #[inline]
    pub fn draw(&self, random: &mut Random) -> u64 {
        self.first + random.below(self.count)
    }
}

/// Distribution with popular records. The popular records are the first records of the range. Their
/// share of all records and their share of the operations are given.
#[derive(Clone, Copy, Debug)]
pub struct Hotspot {
    hot: Uniform,
    cold: Uniform,
    hot_share: f64,
}

impl Hotspot {
    /// Creates the distribution over `first..first + count`. With probability `operation_fraction`,
    /// the random number is in the first `data_fraction` of the range, otherwise in the rest. If
    /// one of these two parts contains no numbers, only the other part is used.
    pub fn new(first: u64, count: u64, data_fraction: f64, operation_fraction: f64) -> Self {
        let hot = (count as f64 * data_fraction) as u64;
        let cold = count.saturating_sub(hot);
        Hotspot {
            hot: Uniform::new(first, hot),
            cold: Uniform::new(first + hot, cold),
            hot_share: match (hot, cold) {
                (0, _) => 0.0,
                (_, 0) => 1.0,
                _ => operation_fraction,
            },
        }
    }

    /// Returns a random number.
    #[inline]
    pub fn draw(&self, random: &mut Random) -> u64 {
        if random.unit() < self.hot_share {
            self.hot.draw(random)
        } else {
            self.cold.draw(random)
        }
    }
}

/// Maximum number of attempts to find a random distance in the range. If all attempts fail, a
/// distance in the range is computed directly. With YCSB's own curve, one attempt in thirty fails.
const DRAWS_MAX: u32 = 32;

/// Exponentially distributed distances; small ones are the most likely.
#[derive(Clone, Copy, Debug)]
pub struct Exponential {
    rate: f64,
}

impl Exponential {
    /// Creates a distribution in which `percentile` percent of the random distances are below
    /// `range`.
    pub fn new(percentile: f64, range: f64) -> Self {
        Exponential {
            rate: -(-percentile / 100.0).ln_1p() / range,
        }
    }

    /// Returns a random distance, rounded down.
    #[inline]
    pub fn draw(&self, random: &mut Random) -> u64 {
        // `1 - u` is in (0, 1], so the logarithm is finite.
        (-(1.0 - random.unit()).ln() / self.rate) as u64
    }

    /// Returns a random distance below `end`; 0 if `end` is 0. As in YCSB, a random distance that
    /// is too large is replaced by another random distance. If `DRAWS_MAX` distances are too large,
    /// a distance is computed from the part of the curve that is below `end`.
    pub fn draw_below(&self, end: u64, random: &mut Random) -> u64 {
        let below = (0..DRAWS_MAX)
            .map(|_| self.draw(random))
            .find(|distance| *distance < end);
        below.unwrap_or_else(|| {
            let share = -(-self.rate * end as f64).exp_m1();
            let distance = -(-random.unit() * share).ln_1p() / self.rate;
            (distance as u64).min(end.saturating_sub(1))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_keeps_to_its_range() {
        let mut random = Random::new(1, &[]);
        let uniform = Uniform::new(10, 5);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[(uniform.draw(&mut random) - 10) as usize] = true;
        }
        assert_eq!(seen, [true; 5]);
    }

    #[test]
    fn hotspot_sends_its_share_to_the_hot_set() {
        let mut random = Random::new(2, &[]);
        let hotspot = Hotspot::new(100, 1_000, 0.2, 0.8);
        let draws: Vec<_> = (0..100_000).map(|_| hotspot.draw(&mut random)).collect();
        assert!(draws.iter().all(|key| (100..1_100).contains(key)));
        let hot = draws.iter().filter(|&&key| key < 300).count();
        assert!((79_500..80_500).contains(&hot), "{hot}");
    }

    #[test]
    fn a_hotspot_of_nothing_or_of_everything_is_uniform() {
        let mut random = Random::new(3, &[]);
        for fraction in [0.0, 1.0] {
            let hotspot = Hotspot::new(0, 10, fraction, 0.5);
            assert!((0..1_000).all(|_| hotspot.draw(&mut random) < 10));
        }
    }

    #[test]
    fn exponential_meets_its_percentile() {
        let mut random = Random::new(4, &[]);
        let exponential = Exponential::new(95.0, 857.0);
        let below = (0..100_000)
            .filter(|_| exponential.draw(&mut random) < 857)
            .count();
        assert!((94_700..95_300).contains(&below), "{below}");
    }
}
