//! Sightings: values that a key certainly held, with the times between which it held them.

use super::{NEVER, NEVER_WRITTEN, TxnTime, ValueNumber};

/// Value that a key certainly held at some moment between a begin and an end.
#[derive(Debug, Clone, Copy)]
struct Sighting {
    held: ValueNumber,
    begin: TxnTime,
    end: TxnTime,
}

#[derive(Debug, Default)]
pub(super) struct Sightings {
    /// All sightings, sorted by begin.
    all: Vec<Sighting>,
    /// Two sightings for each sighting `s`, chosen from `s` and all sightings that begin later. The
    /// first one is the sighting that ends earliest. The second one is the sighting that ends
    /// earliest among those with another value than the first one.
    first_from: Vec<[Sighting; 2]>,
}

impl Sightings {
    pub fn push(&mut self, held: ValueNumber, begin: TxnTime, end: TxnTime) {
        self.all.push(Sighting { held, begin, end });
    }

    pub fn finish(&mut self) {
        let none = Sighting {
            held: NEVER_WRITTEN,
            begin: NEVER,
            end: NEVER,
        };
        let mut first = [none; 2];
        for &sighting in self.all.iter().rev() {
            if sighting.end < first[0].end {
                if sighting.held != first[0].held {
                    first[1] = first[0];
                }
                first[0] = sighting;
            } else if sighting.held != first[0].held && sighting.end < first[1].end {
                first[1] = sighting;
            }
            self.first_from.push(first);
        }
        self.first_from.reverse();
    }

    /// Whether the key certainly held another value than `held` at some moment from `begin` to
    /// `end`.
    pub fn has_other_value(&self, held: ValueNumber, begin: TxnTime, end: TxnTime) -> bool {
        let from = self.all.partition_point(|sighting| sighting.begin < begin);
        self.first_from.get(from).is_some_and(|first| {
            let is_another = |of: &Sighting| of.held != held && of.end <= end;
            end != NEVER && first.iter().any(is_another)
        })
    }
}
