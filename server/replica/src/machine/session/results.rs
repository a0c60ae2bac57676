//! Compact form of the results that a session keeps because its client may still request them.

use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::{Mismatch, Outcome, Version};

use crate::machine::kv::not_a_record;

/// Number of results by which the memory for results grows when it is full.
const ROOM: usize = 16;

/// Result of a write. Nearly all results are versions; any other result is stored in a box.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(super) enum CompactOutcome {
    Written { slot: u64, index: u32 },
    Mismatch { slot: u64, index: u32 },
    Absent,
    NotARecord,
    Other(Box<Outcome>),
}

impl From<Outcome> for CompactOutcome {
    fn from(outcome: Outcome) -> CompactOutcome {
        match &outcome.result {
            Some(Answer::Written(Version { slot, index })) => CompactOutcome::Written {
                slot: *slot,
                index: *index,
            },
            Some(Answer::Mismatch(Mismatch { actual })) => match *actual {
                Some(Version { slot, index }) => CompactOutcome::Mismatch { slot, index },
                None => CompactOutcome::Absent,
            },
            Some(Answer::Error(_)) if outcome == not_a_record() => CompactOutcome::NotARecord,
            Some(Answer::Value(_) | Answer::Missing(_) | Answer::Entries(_) | Answer::Error(_))
            | None => CompactOutcome::Other(Box::new(outcome)),
        }
    }
}

impl CompactOutcome {
    /// Returns the result in its original form.
    pub(super) fn outcome(&self) -> Outcome {
        match self {
            CompactOutcome::Written { slot, index } => Outcome::written(Version {
                slot: *slot,
                index: *index,
            }),
            CompactOutcome::Mismatch { slot, index } => Outcome::mismatch(Some(Version {
                slot: *slot,
                index: *index,
            })),
            CompactOutcome::Absent => Outcome::mismatch(None),
            CompactOutcome::NotARecord => not_a_record(),
            CompactOutcome::Other(outcome) => (**outcome).clone(),
        }
    }
}

/// Results of a session by sequence number. If the client always waits for an answer before it
/// sends its next command, the session has only one result. The maximum number of results of a
/// session is `leasehold_wire::UNACKNOWLEDGED_MAX` + 1.
#[derive(Clone, Debug, Hash)]
pub(super) enum Results {
    One(u64, CompactOutcome),
    /// Results in ascending order of sequence numbers.
    #[expect(
        clippy::box_collection,
        reason = "without the box every session is larger"
    )]
    Many(Box<Vec<(u64, CompactOutcome)>>),
}

impl Results {
    pub(super) fn get(&self, sequence: u64) -> Option<&CompactOutcome> {
        match self {
            Results::One(of, kept) => (*of == sequence).then_some(kept),
            Results::Many(all) => {
                let at = all.binary_search_by_key(&sequence, |(of, _)| *of).ok()?;
                Some(&all[at].1)
            }
        }
    }

    /// Number of results.
    pub(super) fn len(&self) -> usize {
        match self {
            Results::One(..) => 1,
            Results::Many(all) => all.len(),
        }
    }

    /// Adds a result, and drops the results below the low-water mark `acked_below`. Returns whether
    /// the sequence number is new.
    pub(super) fn insert(&mut self, sequence: u64, kept: CompactOutcome, acked_below: u64) -> bool {
        match self {
            Results::One(of, first) if *of < acked_below || *of == sequence => {
                let is_new = *of != sequence;
                (*of, *first) = (sequence, kept);
                is_new
            }
            Results::One(of, first) => {
                let first = (*of, std::mem::replace(first, CompactOutcome::Absent));
                let mut all = vec![first, (sequence, kept)];
                all.sort_unstable_by_key(|(of, _)| *of);
                *self = Results::of(all);
                true
            }
            Results::Many(all) => {
                let found = all.binary_search_by_key(&sequence, |(of, _)| *of);
                if all.len() == all.capacity() {
                    all.reserve_exact(ROOM);
                }
                match found {
                    Ok(at) => all[at].1 = kept,
                    Err(at) => all.insert(at, (sequence, kept)),
                }
                let acknowledged = all.partition_point(|(of, _)| *of < acked_below);
                all.drain(..acknowledged);
                if all.len() == 1 {
                    *self = Results::of(std::mem::take(&mut **all));
                }
                found.is_err()
            }
        }
    }

    /// Builds the results from a list in ascending order of sequence numbers.
    fn of(mut all: Vec<(u64, CompactOutcome)>) -> Results {
        match all.pop() {
            Some((sequence, kept)) if all.is_empty() => Results::One(sequence, kept),
            Some(last) => {
                all.push(last);
                Results::Many(Box::new(all))
            }
            None => Results::Many(Box::default()),
        }
    }

    /// Returns all results in ascending order of sequence numbers.
    pub(super) fn image(&self) -> Vec<(u64, Outcome)> {
        match self {
            Results::One(sequence, kept) => vec![(*sequence, kept.outcome())],
            Results::Many(all) => all.iter().map(|(s, kept)| (*s, kept.outcome())).collect(),
        }
    }

    /// Builds the results from an image. The entries of the image may be in any order. This is the
    /// inverse of [`Results::image`].
    pub(super) fn restore(image: Vec<(u64, Outcome)>) -> Results {
        let kept = image
            .into_iter()
            .map(|(sequence, outcome)| (sequence, outcome.into()));
        let mut kept: Vec<_> = kept.collect();
        kept.sort_unstable_by_key(|(sequence, _)| *sequence);
        kept.dedup_by_key(|(sequence, _)| *sequence);
        Results::of(kept)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use leasehold_wire::ErrorCode;

    use super::*;

    #[test]
    fn every_result_is_given_back_as_it_was() {
        let version = Version { slot: 7, index: 3 };
        for outcome in [
            Outcome::written(version),
            Outcome::mismatch(Some(version)),
            Outcome::mismatch(None),
            not_a_record(),
            Outcome::error(ErrorCode::NotARecord, "no record"),
        ] {
            assert_eq!(CompactOutcome::from(outcome.clone()).outcome(), outcome);
        }
    }

    /// Compares the results with a plain map, for every series of four sequence numbers and
    /// low-water marks.
    #[test]
    fn results_are_those_of_a_plain_map() {
        for case in 0..8u64.pow(4) {
            let mut plain = BTreeMap::from([(4, 0)]);
            let mut results = Results::One(4, CompactOutcome::Written { slot: 0, index: 0 });
            for place in 0..4 {
                let choice = case / 8u64.pow(place) % 8;
                let (sequence, slot) = (choice, u64::from(place) + 1);
                let acked_below = sequence - choice % 3 % (sequence + 1);
                let is_new = plain.insert(sequence, slot).is_none();
                plain.retain(|of, _| *of >= acked_below);
                let kept = CompactOutcome::Written { slot, index: 0 };
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
