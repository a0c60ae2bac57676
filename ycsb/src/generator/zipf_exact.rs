//! Zipf's law over exactly `n` items: the item of rank `k` (from 1) has a probability proportional
//! to `1 / k^theta`. The method is rejection-inversion (Hörmann and Derflinger,
//! "Rejection-inversion to generate variates from monotone discrete distributions", 1996). The
//! method is exact, needs constant memory and constant set-up time, and works for any `n` and any
//! `theta` of zero or more. In contrast, the formula of Gray and others, which YCSB uses, is an
//! approximation.
//!
//! In short: the integral of `1 / x^theta` has an inverse in closed form, so one evaluation gives a
//! real variate under the curve. The variate is rounded to the nearest rank. The area under the
//! curve around a rank slightly exceeds the area of the rank's bar, which is its weight. A variate
//! in this excess is rejected, which is rare.

use super::{Random, zeta};

/// Sampler of ranks `0..items`; rank 0 is the most popular.
#[derive(Clone, Copy, Debug)]
pub struct ZipfExact {
    items: u64,
    theta: f64,
    /// Area under the curve up to `items + 1/2`.
    area_end: f64,
    /// Area under the curve at which rank 1 begins. This value makes the area for rank 1 equal to
    /// 1, the area of the bar of rank 1.
    area_start: f64,
    /// Limit for acceptance without a further test. A random number is rounded to a rank. If
    /// rounding raises the number by at most this amount, the rank is accepted immediately.
    accept_margin: f64,
}

impl ZipfExact {
    /// Creates a sampler over `items` items. If `items` is 0, it is treated as 1.
    ///
    /// # Panics
    /// If `theta` is negative or not finite.
    pub fn new(items: u64, theta: f64) -> Self {
        assert!(
            theta >= 0.0 && theta.is_finite(),
            "the zipf constant {theta} is negative or not finite"
        );
        let items = items.max(1);
        let area = |x| area(x, theta);
        ZipfExact {
            items,
            theta,
            area_end: area(items as f64 + 0.5),
            area_start: area(1.5) - 1.0,
            accept_margin: 2.0 - area_inverse(area(2.5) - 2f64.powf(-theta), theta),
        }
    }

    /// Returns a random rank, counted from 0.
    #[inline]
    pub fn draw(&self, random: &mut Random) -> u64 {
        loop {
            let u = self.area_end + random.unit() * (self.area_start - self.area_end);
            let x = area_inverse(u, self.theta);
            // The conversion saturates, and rounding can exceed the ends by only one step.
            let rank = ((x + 0.5) as u64).clamp(1, self.items);
            let nearest = rank as f64;
            if nearest - x <= self.accept_margin
                || u >= area(nearest + 0.5, self.theta) - nearest.powf(-self.theta)
            {
                return rank - 1;
            }
        }
    }

    /// Returns the probability of `rank`, counted from 0.
    pub fn probability(&self, rank: u64) -> f64 {
        if rank >= self.items {
            return 0.0;
        }
        ((rank + 1) as f64).powf(-self.theta) / zeta(self.items, self.theta)
    }

    /// Returns the exponent `theta` of the law.
    pub fn theta(&self) -> f64 {
        self.theta
    }

    /// Returns the number of items.
    pub fn items(&self) -> u64 {
        self.items
    }
}

/// Returns the integral of `t^-theta` from 1 to `x`. Unlike the textbook form, the form used here
/// loses no digits by cancellation if `theta` is near 1.
#[inline]
fn area(x: f64, theta: f64) -> f64 {
    let log = x.ln();
    let scaled = (1.0 - theta) * log;
    if scaled.abs() < 1e-8 {
        log * (1.0 + scaled / 2.0)
    } else {
        log * scaled.exp_m1() / scaled
    }
}

/// Inverse of the function [`area`]: returns the `x` up to which the integral equals `area`.
#[inline]
fn area_inverse(area: f64, theta: f64) -> f64 {
    let scaled = (area * (1.0 - theta)).max(-1.0);
    if scaled.abs() < 1e-8 {
        (area * (1.0 - scaled / 2.0)).exp()
    } else {
        (area * scaled.ln_1p() / scaled).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share_of_hottest(items: u64, theta: f64) -> f64 {
        let zipf = ZipfExact::new(items, theta);
        let mut random = Random::new(11, &[items]);
        let draws = 400_000;
        let hottest = (0..draws).filter(|_| zipf.draw(&mut random) == 0).count();
        hottest as f64 / f64::from(draws)
    }

    #[test]
    fn the_hottest_item_gets_its_share() {
        let thousand = share_of_hottest(1_000, 0.99);
        assert!((0.127..0.131).contains(&thousand), "{thousand}");
        let hundred_thousand = share_of_hottest(100_000, 0.99);
        assert!(
            (0.078..0.082).contains(&hundred_thousand),
            "{hundred_thousand}"
        );
        assert!((ZipfExact::new(1_000, 0.99).probability(0) - 0.129).abs() < 5e-4);
    }

    #[test]
    fn every_rank_follows_the_law() {
        for theta in [0.0, 0.5, 0.99, 1.0, 1.3, 3.0] {
            let zipf = ZipfExact::new(20, theta);
            let mut random = Random::new(5, &[]);
            let draws = 200_000u32;
            let mut counts = [0u32; 20];
            for _ in 0..draws {
                counts[zipf.draw(&mut random) as usize] += 1;
            }
            let chi_squared: f64 = (0..20)
                .map(|rank| {
                    (
                        counts[rank as usize],
                        zipf.probability(rank) * f64::from(draws),
                    )
                })
                .map(|(seen, expected)| (f64::from(seen) - expected).powi(2) / expected)
                .sum();
            // With 19 degrees of freedom, 43.8 is exceeded for one seed in a thousand.
            assert!(chi_squared < 43.8, "theta {theta}: {chi_squared}");
        }
    }

    #[test]
    fn a_billion_items_need_no_set_up() {
        let zipf = ZipfExact::new(1_000_000_000, 0.99);
        let mut random = Random::new(6, &[]);
        let draws: Vec<_> = (0..100_000).map(|_| zipf.draw(&mut random)).collect();
        assert!(draws.iter().all(|&rank| rank < 1_000_000_000));
        let median_rank = {
            let mut sorted = draws.clone();
            sorted.sort_unstable();
            sorted[50_000] as f64
        };
        // Half of the mass lies below the rank k with zeta(k) = zeta(n) / 2.
        let below = zeta(median_rank as u64 + 1, 0.99) / zeta(1_000_000_000, 0.99);
        assert!((0.49..0.51).contains(&below), "{below}");
    }

    #[test]
    fn the_smallest_sizes() {
        let mut random = Random::new(7, &[]);
        for items in [0, 1, 2, 3] {
            let zipf = ZipfExact::new(items, 0.99);
            assert!((0..1_000).all(|_| zipf.draw(&mut random) < items.max(1)));
        }
        assert_eq!(ZipfExact::new(3, 0.99).probability(3), 0.0);
    }
}
