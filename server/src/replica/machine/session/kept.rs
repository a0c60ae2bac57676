//! What a session keeps of the results that its client may still ask for, in few bytes.

use std::collections::BTreeMap;

use client::wire::outcome::Result as Answer;
use client::wire::{Mismatch, Outcome, Version};

/// The result of a write. Nearly all are versions; anything longer is in a box.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(super) enum Kept {
    Written { slot: u64, index: u32 },
    Mismatch { slot: u64, index: u32 },
    Absent,
    Other(Box<Outcome>),
}

impl From<Outcome> for Kept {
    fn from(outcome: Outcome) -> Kept {
        match &outcome.result {
            Some(Answer::Written(Version { slot, index })) => Kept::Written {
                slot: *slot,
                index: *index,
            },
            Some(Answer::Mismatch(Mismatch { actual })) => match *actual {
                Some(Version { slot, index }) => Kept::Mismatch { slot, index },
                None => Kept::Absent,
            },
            _ => Kept::Other(Box::new(outcome)),
        }
    }
}

impl Kept {
    /// The result as it was.
    pub(super) fn outcome(&self) -> Outcome {
        match self {
            Kept::Written { slot, index } => Outcome::written(Version {
                slot: *slot,
                index: *index,
            }),
            Kept::Mismatch { slot, index } => Outcome::mismatch(Some(Version {
                slot: *slot,
                index: *index,
            })),
            Kept::Absent => Outcome::mismatch(None),
            Kept::Other(outcome) => (**outcome).clone(),
        }
    }
}

/// Results by sequence. A client that waits for each answer has one of them.
#[derive(Clone, Debug, Hash)]
pub(super) enum Results {
    One(u64, Kept),
    #[expect(
        clippy::box_collection,
        reason = "without the box every session is larger"
    )]
    Many(Box<BTreeMap<u64, Kept>>),
}

impl Results {
    pub(super) fn get(&self, sequence: u64) -> Option<&Kept> {
        match self {
            Results::One(of, kept) => (*of == sequence).then_some(kept),
            Results::Many(all) => all.get(&sequence),
        }
    }

    /// Adds a result, and forgets those below the low-water mark. Returns whether the
    /// sequence is new.
    pub(super) fn insert(&mut self, sequence: u64, kept: Kept, acked_below: u64) -> bool {
        let is_new = self.get(sequence).is_none();
        match self {
            Results::One(of, first) if *of < acked_below || *of == sequence => {
                (*of, *first) = (sequence, kept);
            }
            Results::One(of, first) => {
                let first = (*of, std::mem::replace(first, Kept::Absent));
                *self = Results::of([first, (sequence, kept)].into());
            }
            Results::Many(all) => {
                all.insert(sequence, kept);
                while all
                    .first_key_value()
                    .is_some_and(|(of, _)| *of < acked_below)
                {
                    all.pop_first();
                }
                if all.len() == 1 {
                    *self = Results::of(std::mem::take(&mut **all));
                }
            }
        }
        is_new
    }

    fn of(mut all: BTreeMap<u64, Kept>) -> Results {
        match all.pop_first() {
            Some((sequence, kept)) if all.is_empty() => Results::One(sequence, kept),
            Some((sequence, kept)) => {
                all.insert(sequence, kept);
                Results::Many(Box::new(all))
            }
            None => Results::Many(Box::default()),
        }
    }

    /// All results, rising by sequence.
    pub(super) fn image(&self) -> Vec<(u64, Outcome)> {
        match self {
            Results::One(sequence, kept) => vec![(*sequence, kept.outcome())],
            Results::Many(all) => all.iter().map(|(s, kept)| (*s, kept.outcome())).collect(),
        }
    }

    /// The inverse of [`Results::image`].
    pub(super) fn restore(image: Vec<(u64, Outcome)>) -> Results {
        let kept = image
            .into_iter()
            .map(|(sequence, outcome)| (sequence, outcome.into()));
        Results::of(kept.collect())
    }
}

#[cfg(test)]
mod tests {
    use client::wire::ErrorCode;

    use super::*;

    #[test]
    fn every_result_is_given_back_as_it_was() {
        let version = Version { slot: 7, index: 3 };
        for outcome in [
            Outcome::written(version),
            Outcome::mismatch(Some(version)),
            Outcome::mismatch(None),
            Outcome::error(ErrorCode::NotARecord, "no record"),
        ] {
            assert_eq!(Kept::from(outcome.clone()).outcome(), outcome);
        }
    }

    /// Against a plain map, with every order of four sequences and marks.
    #[test]
    fn results_are_those_of_a_plain_map() {
        for case in 0..8u64.pow(4) {
            let mut plain = BTreeMap::from([(4, 0)]);
            let mut results = Results::One(4, Kept::Written { slot: 0, index: 0 });
            for place in 0..4 {
                let choice = case / 8u64.pow(place) % 8;
                let (sequence, slot) = (choice, u64::from(place) + 1);
                let acked_below = sequence - choice % 3 % (sequence + 1);
                let is_new = plain.insert(sequence, slot).is_none();
                plain.retain(|of, _| *of >= acked_below);
                let kept = Kept::Written { slot, index: 0 };
                assert_eq!(results.insert(sequence, kept, acked_below), is_new);
                let image = plain.iter().map(|(of, slot)| {
                    let version = Version {
                        slot: *slot,
                        index: 0,
                    };
                    (*of, Outcome::written(version))
                });
                assert_eq!(results.image(), image.collect::<Vec<_>>(), "case {case}");
                assert_eq!(matches!(results, Results::One(..)), plain.len() == 1);
                assert_eq!(Results::restore(results.image()).image(), results.image());
            }
        }
    }
}
