//! `requestdistribution=latest`: the newest records are the most popular.

use super::{AcknowledgedCounter, Random, ZIPFIAN_CONSTANT, Zipfian};

/// Distribution of records by Zipf's law. The rank of a record is its distance from the newest
/// acknowledged record.
#[derive(Clone, Debug)]
pub struct Latest {
    distance: Zipfian,
}

impl Latest {
    /// Creates the distribution for a run that starts with `records` existing records.
    pub fn new(records: u64) -> Self {
        Latest {
            distance: Zipfian::new(0, records.saturating_sub(1), ZIPFIAN_CONSTANT),
        }
    }

    /// Returns a random record: the newest record that is acknowledged in `inserted`, or an earlier
    /// record. As in YCSB, record 0 is returned only if no other record exists.
    pub fn draw(&mut self, inserted: &AcknowledgedCounter, random: &mut Random) -> u64 {
        let newest = inserted.below().saturating_sub(1);
        newest - self.distance.draw_among(newest, random).min(newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hottest_of(latest: &mut Latest, inserted: &AcknowledgedCounter) -> (u64, f64) {
        let mut random = Random::new(9, &[]);
        let draws: Vec<_> = (0..50_000)
            .map(|_| latest.draw(inserted, &mut random))
            .collect();
        let newest = *draws.iter().max().unwrap();
        let hits = draws.iter().filter(|&&key| key == newest).count();
        (newest, hits as f64 / draws.len() as f64)
    }

    #[test]
    fn the_newest_record_is_the_hottest_and_moves_with_acknowledgements() {
        let inserted = AcknowledgedCounter::new(1_000);
        let mut latest = Latest::new(1_000);
        let (newest, share) = hottest_of(&mut latest, &inserted);
        assert_eq!(newest, 999);
        assert!((0.12..0.14).contains(&share), "{share}");

        let (first, second) = (inserted.take(), inserted.take());
        inserted.acknowledge(second).unwrap();
        assert_eq!(
            hottest_of(&mut latest, &inserted).0,
            999,
            "{first} is not there yet"
        );
        inserted.acknowledge(first).unwrap();
        assert_eq!(hottest_of(&mut latest, &inserted).0, 1_001);
    }

    #[test]
    fn the_smallest_sizes() {
        let mut random = Random::new(1, &[]);
        for records in [0, 1, 2, 3] {
            let inserted = AcknowledgedCounter::new(records);
            let mut latest = Latest::new(records);
            assert!((0..100).all(|_| latest.draw(&inserted, &mut random) < records.max(1)));
        }
    }
}
