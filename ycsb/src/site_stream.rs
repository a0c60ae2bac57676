//! The stream of requests of one client in the paper's experiments: reads and updates. Keys are
//! random by Zipf's law. Each site has its own order of popularity of the keys (section 6 of the
//! paper). The stream is pure and fast, because the simulator makes millions of requests.

use crate::generator::{Permutation, Random, ZipfExact};
use crate::sample::OpKind;

/// Popularity of the keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Popularity {
    /// All keys are equally popular.
    Uniform,
    /// Zipf's law with this constant, over exactly the existing keys.
    Zipf(f64),
}

/// Description of the requests that clients of all sites make.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Requests {
    /// Number of keys; the keys are `0..keys`.
    pub keys: u64,
    /// Popularity of each key; the most popular key differs from site to site.
    pub popularity: Popularity,
    /// Share of the requests that are reads, from 0 to 1.
    pub reads: f64,
    /// Seed of the streams. With another seed, every client has another stream.
    pub seed: u64,
}

/// An endless, reproducible stream of requests.
#[derive(Clone, Debug)]
pub struct SiteStream {
    zipf: Option<ZipfExact>,
    order: Permutation,
    seed: u64,
    reads: f64,
    random: Random,
}

impl SiteStream {
    /// Creates the stream of the client with the ID `client` at the site with the ID `site`. All
    /// clients of a site have the same order of popularity.
    ///
    /// # Panics
    /// If there are no keys, or Zipf's constant is negative.
    pub fn new(requests: &Requests, site: u64, client: u64) -> Self {
        let Requests {
            keys, reads, seed, ..
        } = *requests;
        assert!(keys > 0, "a stream needs keys");
        SiteStream {
            zipf: match requests.popularity {
                Popularity::Uniform => None,
                Popularity::Zipf(theta) => Some(ZipfExact::new(keys, theta)),
            },
            order: site_order(keys, site, seed),
            seed,
            reads,
            random: Random::new(seed, &[STREAM_REQUESTS, site, client]),
        }
    }

    /// Returns the next request ([`OpKind::Read`] or [`OpKind::Update`]), and its key.
    #[inline]
    #[allow(clippy::should_implement_trait, reason = "the stream has no end")]
    pub fn next(&mut self) -> (OpKind, u64) {
        let kind = if self.random.unit() < self.reads {
            OpKind::Read
        } else {
            OpKind::Update
        };
        let rank = match &self.zipf {
            Some(zipf) => zipf.draw(&mut self.random),
            None => self.random.below(self.order.len()),
        };
        (kind, self.order.apply(rank))
    }

    /// Changes the order of popularity of the keys to the order of `site`. This is for workloads in
    /// which popularity moves from one site to another.
    pub fn move_to(&mut self, site: u64) {
        self.order = site_order(self.order.len(), site, self.seed);
    }

    /// Returns the key of popularity rank `rank`; rank 0 is the most popular.
    ///
    /// # Panics
    /// If `rank` is not below the number of keys.
    pub fn key_of_rank(&self, rank: u64) -> u64 {
        self.order.apply(rank)
    }

    /// Returns the popularity rank of `key`.
    ///
    /// # Panics
    /// If `key` is not below the number of keys.
    pub fn rank_of_key(&self, key: u64) -> u64 {
        self.order.invert(key)
    }

    /// Returns the probability that a request is for the key of popularity rank `rank`.
    pub fn probability(&self, rank: u64) -> f64 {
        match &self.zipf {
            Some(zipf) => zipf.probability(rank),
            None if rank < self.order.len() => 1.0 / self.order.len() as f64,
            None => 0.0,
        }
    }

    /// Returns [`SiteStream::probability`] for every rank. This takes less time than a call for
    /// each rank.
    pub fn probabilities(&self) -> Vec<f64> {
        let first = self.probability(0);
        let of_rank = |rank: u64| match &self.zipf {
            Some(zipf) => first * ((rank + 1) as f64).powf(-zipf.theta()),
            None => first,
        };
        (0..self.order.len()).map(of_rank).collect()
    }
}

/// First element of the path that selects a random stream. Each use of random numbers has its own
/// first element, so the streams of different uses are unrelated.
const STREAM_REQUESTS: u64 = 1;
const STREAM_ORDER: u64 = 2;

/// Returns the order of popularity at `site`. The property `permutation=site` and the experiments
/// use the same order.
pub(crate) fn site_order(keys: u64, site: u64, seed: u64) -> Permutation {
    Permutation::new(keys, Random::new(seed, &[STREAM_ORDER, site]).bits())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(site: u64, client: u64) -> SiteStream {
        let requests = Requests {
            keys: 100_000,
            popularity: Popularity::Zipf(0.99),
            reads: 0.9,
            seed: 7,
        };
        SiteStream::new(&requests, site, client)
    }

    #[test]
    fn streams_repeat_themselves_and_differ_between_clients() {
        let draw = |mut stream: SiteStream| (0..50).map(|_| stream.next()).collect::<Vec<_>>();
        assert_eq!(draw(stream(1, 2)), draw(stream(1, 2)));
        assert_ne!(draw(stream(1, 2)), draw(stream(1, 3)));
        assert_ne!(draw(stream(1, 2)), draw(stream(2, 2)));
    }

    #[test]
    fn reads_and_the_hottest_key_get_their_shares() {
        let mut stream = stream(3, 0);
        let hottest = stream.key_of_rank(0);
        assert_eq!(stream.rank_of_key(hottest), 0);
        let draws: Vec<_> = (0..200_000).map(|_| stream.next()).collect();
        let share = |n: usize| n as f64 / draws.len() as f64;
        let reads = share(draws.iter().filter(|(k, _)| *k == OpKind::Read).count());
        let hits = share(draws.iter().filter(|(_, key)| *key == hottest).count());
        assert!((0.897..0.903).contains(&reads), "{reads}");
        assert!((hits - stream.probability(0)).abs() < 0.002, "{hits}");
        let all = stream.probabilities();
        for rank in [0, 1, 99_999] {
            let each = stream.probability(rank);
            assert!((all[rank as usize] / each - 1.0).abs() < 1e-9, "{rank}");
        }
        assert!((all.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        assert!((0.078..0.079).contains(&stream.probability(0)));
    }

    #[test]
    fn clients_share_their_sites_order_and_sites_do_not() {
        let ranks = |s: &SiteStream| (0..20).map(|r| s.key_of_rank(r)).collect::<Vec<_>>();
        assert_eq!(ranks(&stream(1, 0)), ranks(&stream(1, 9)));
        assert_ne!(ranks(&stream(1, 0)), ranks(&stream(2, 0)));
        let mut moved = stream(1, 0);
        moved.move_to(2);
        assert_eq!(ranks(&moved), ranks(&stream(2, 0)));
    }

    #[test]
    fn uniform_streams_have_no_favourite() {
        let requests = Requests {
            keys: 10,
            popularity: Popularity::Uniform,
            reads: 0.5,
            seed: 1,
        };
        let mut stream = SiteStream::new(&requests, 0, 0);
        let mut counts = [0; 10];
        for _ in 0..100_000 {
            counts[stream.next().1 as usize] += 1;
        }
        assert!(
            counts.iter().all(|n| (9_600..10_400).contains(n)),
            "{counts:?}"
        );
        assert_eq!(stream.probability(3), 0.1);
        assert_eq!(stream.probability(10), 0.0);
    }
}
