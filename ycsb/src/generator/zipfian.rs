//! YCSB's zipfian distribution: the formula of Gray and others ("Quickly Generating Billion-Record
//! Synthetic Databases", SIGMOD 1994), including its constants.

use super::{Random, fnv_hash};

/// YCSB's theta.
pub const ZIPFIAN_CONSTANT: f64 = 0.99;
/// Number of the *last* item of the scrambled zipfian, as in YCSB. The number does not depend on
/// the record count. Items are counted from 0, so the distribution has one item more than this
/// number.
pub const SCRAMBLED_ITEMS: u64 = 10_000_000_000;
/// YCSB's precomputed zeta for [`SCRAMBLED_ITEMS`] and [`ZIPFIAN_CONSTANT`].
pub const SCRAMBLED_ZETAN: f64 = 26.469_028_201_783_02;

/// Maximum number of attempts of [`ScrambledZipfian::draw_below`] to find a number in the range. If
/// only one number in a hundred is in the range, one call in 10^17 needs more attempts.
const DRAWS_MAX: u32 = 1 << 12;

/// Number of terms that [`zeta`] adds one by one. The sum of the other terms is computed by an
/// expansion.
const ZETA_TERMS_SUMMED: u64 = 1_000;

/// Returns the sum of `1 / k^theta` for `k` from 1 to `n`. Terms beyond the first thousand are
/// computed by the Euler-Maclaurin formula, with a remainder below 1e-15.
pub fn zeta(n: u64, theta: f64) -> f64 {
    let head: f64 = (1..=n.min(ZETA_TERMS_SUMMED))
        .rev()
        .map(|k| (k as f64).powf(-theta))
        .sum();
    if n <= ZETA_TERMS_SUMMED {
        return head;
    }
    let (from, to) = (ZETA_TERMS_SUMMED as f64, n as f64);
    let term = |x: f64| x.powf(-theta);
    let slope = |x: f64| -theta * x.powf(-theta - 1.0);
    let integral = {
        let scaled = (1.0 - theta) * (to / from).ln();
        let stretch = if scaled.abs() < 1e-8 {
            1.0 + scaled / 2.0
        } else {
            scaled.exp_m1() / scaled
        };
        from.powf(1.0 - theta) * (to / from).ln() * stretch
    };
    head + integral + (term(to) - term(from)) / 2.0 + (slope(to) - slope(from)) / 12.0
}

/// Zipf's law over `first..first + items` by YCSB's formula. The number `first` is the most
/// popular.
#[derive(Clone, Debug)]
pub struct Zipfian {
    first: u64,
    items: u64,
    theta: f64,
    zetan: f64,
    /// Number of items for which `zetan` was computed. [`Zipfian::draw_among`] may increase this
    /// number.
    zeta_items: u64,
    eta: f64,
}

impl Zipfian {
    /// Creates the distribution over `items` numbers, beginning with `first`. If `items` is 0, it
    /// is treated as 1.
    pub fn new(first: u64, items: u64, theta: f64) -> Self {
        let items = items.max(1);
        Zipfian::with_zeta(first, items, theta, zeta(items, theta))
    }

    /// Creates the same distribution as [`Zipfian::new`], with a zeta that is already known.
    pub fn with_zeta(first: u64, items: u64, theta: f64, zetan: f64) -> Self {
        Zipfian {
            first,
            items,
            theta,
            zetan,
            zeta_items: items,
            eta: eta(items, theta, zetan),
        }
    }

    /// Returns a random number.
    #[inline]
    pub fn draw(&self, random: &mut Random) -> u64 {
        self.first + self.rank(random.unit(), self.items)
    }

    /// Returns a random number from a distribution over `items` items. If the number of items has
    /// grown, zeta is updated. As in YCSB, zeta is not updated if the number of items has
    /// decreased.
    pub fn draw_among(&mut self, items: u64, random: &mut Random) -> u64 {
        if items > self.zeta_items {
            self.zetan += (self.zeta_items + 1..=items)
                .map(|k| (k as f64).powf(-self.theta))
                .sum::<f64>();
            self.zeta_items = items;
            self.eta = eta(self.items, self.theta, self.zetan);
        }
        self.first + self.rank(random.unit(), items)
    }

    #[inline]
    fn rank(&self, u: f64, items: u64) -> u64 {
        let uz = u * self.zetan;
        if uz < 1.0 {
            0
        } else if uz < 1.0 + 0.5f64.powf(self.theta) {
            1
        } else {
            let alpha = 1.0 / (1.0 - self.theta);
            let rank = items as f64 * (self.eta * u - self.eta + 1.0).powf(alpha);
            // Rounding may reach the number of items itself, which must not be returned.
            (rank as u64).min(items.saturating_sub(1))
        }
    }
}

fn eta(items: u64, theta: f64, zetan: f64) -> f64 {
    let zeta2 = zeta(2, theta);
    (1.0 - (2.0 / items as f64).powf(1.0 - theta)) / (1.0 - zeta2 / zetan)
}

/// `requestdistribution=zipfian`: chooses one of 10^10 items, hashes it, and takes the hash modulo
/// the record count. So the popular records are scattered over all records. The most popular record
/// gets 3.8% of the requests, regardless of the number of records.
#[derive(Clone, Debug)]
pub struct ScrambledZipfian {
    first: u64,
    count: u64,
    zipfian: Zipfian,
}

impl ScrambledZipfian {
    /// Creates the distribution over `first..first + count`. If `count` is 0, it is treated as 1.
    pub fn new(first: u64, count: u64) -> Self {
        ScrambledZipfian {
            first,
            count: count.max(1),
            zipfian: Zipfian::with_zeta(0, SCRAMBLED_ITEMS + 1, ZIPFIAN_CONSTANT, SCRAMBLED_ZETAN),
        }
    }

    /// Returns a random number.
    #[inline]
    pub fn draw(&self, random: &mut Random) -> u64 {
        self.first + fnv_hash(self.zipfian.draw(random)) % self.count
    }

    /// Returns a random number below `end`. Requires that `end` is above the first number. As in
    /// YCSB, a random number that is too large is replaced by another random number. If `DRAWS_MAX`
    /// numbers in a row are too large, the last number is taken modulo the count of numbers below
    /// `end`. The range of the distribution should not be much larger than its part below `end`,
    /// because otherwise many random numbers are too large.
    pub fn draw_below(&self, end: u64, random: &mut Random) -> u64 {
        let below = (1..DRAWS_MAX)
            .map(|_| self.draw(random))
            .find(|number| *number < end);
        below.unwrap_or_else(|| {
            let beyond = self.draw(random) - self.first;
            self.first + beyond % (end - self.first).max(1)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeta_agrees_with_the_plain_sum() {
        for (n, theta) in [
            (1, 0.99),
            (2, 0.99),
            (1_000, 0.99),
            (100_000, 0.99),
            (50_000, 1.0),
            (30_000, 0.3),
        ] {
            let sum: f64 = (1..=n).rev().map(|k| (k as f64).powf(-theta)).sum();
            assert!((zeta(n, theta) / sum - 1.0).abs() < 1e-12, "{n} {theta}");
        }
    }

    #[test]
    fn zeta_agrees_with_ycsbs_constant() {
        assert!((zeta(SCRAMBLED_ITEMS, ZIPFIAN_CONSTANT) - SCRAMBLED_ZETAN).abs() < 1e-5);
    }

    /// Ranks computed by hand from the formula, with theta 0.5 over 4 items: zeta(4) = 2.78446,
    /// zeta(2) = 1.70711, eta = (1 - sqrt(1/2)) / (1 - 0.61308) = 0.75700.
    #[test]
    fn ranks_are_those_of_the_formula() {
        let zipfian = Zipfian::new(0, 4, 0.5);
        assert!((zipfian.eta - 0.757).abs() < 1e-3);
        assert_eq!(zipfian.rank(0.0, 4), 0);
        assert_eq!(zipfian.rank(0.35, 4), 0, "0.35 * 2.784 < 1");
        assert_eq!(zipfian.rank(0.37, 4), 1);
        assert_eq!(
            zipfian.rank(0.62, 4),
            2,
            "4 * (0.757 * 0.62 + 0.243)^2 = 2.03"
        );
        assert_eq!(zipfian.rank(0.9, 4), 3);
    }

    #[test]
    fn the_hottest_scrambled_record_gets_3_8_percent_at_any_size() {
        for records in [1_000, 1_000_000] {
            let scrambled = ScrambledZipfian::new(0, records);
            let hottest = fnv_hash(0) % records;
            let mut random = Random::new(1, &[records]);
            let draws = 300_000;
            let hits = (0..draws)
                .filter(|_| scrambled.draw(&mut random) == hottest)
                .count();
            let share = hits as f64 / f64::from(draws);
            // With 1,000 records, each record also gets about a thousandth of the tail.
            assert!((0.0368..0.0395).contains(&share), "{records}: {share}");
        }
    }

    #[test]
    fn scrambled_keeps_to_its_range() {
        let scrambled = ScrambledZipfian::new(500, 10);
        let mut random = Random::new(2, &[]);
        assert!((0..1_000).all(|_| (500..510).contains(&scrambled.draw(&mut random))));
    }

    #[test]
    fn growing_counts_keep_the_zeta_of_the_sum() {
        let mut zipfian = Zipfian::new(0, 100, 0.99);
        let mut random = Random::new(3, &[]);
        assert!((0..1_000).all(|_| zipfian.draw_among(150, &mut random) < 150));
        assert!((zipfian.zetan - zeta(150, 0.99)).abs() < 1e-12);
    }
}
