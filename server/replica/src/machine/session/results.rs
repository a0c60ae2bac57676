//! Compact form of the results that a session keeps because its client may still request them.

use leasehold_leases::mutants::{Rule, off};
use leasehold_wire::op_result::Result as OpAnswer;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::{Mismatch, Outcome, TxnResult, Value, Version};
use prost::Message as _;

use crate::machine::kv::not_a_record;

/// Maximum size of all values together that a session keeps of a transaction's result, in bytes.
const KEPT_VALUES_BYTES: usize = 256;
/// Maximum length of a transaction's result that a session keeps, in bytes.
const KEPT_RESULT_BYTES: usize = 1024;
/// Maximum length of all encoded results of a session together, in bytes. Above this maximum, the
/// session shortens its older results. It shortens no result that is its only one or its newest.
const KEPT_TOGETHER_BYTES: usize = 4096;
/// Maximum length of a shortened result, in bytes. [`KEPT_TOGETHER_BYTES`] is enough for
/// `leasehold_wire::UNACKNOWLEDGED_MAX` such results.
const SHORT_BYTES: usize = 64;
/// Maximum length of the message of a shortened error, in bytes.
const SHORT_MESSAGE_BYTES: usize = 40;
/// Memory of a compact result in bytes, without the encoded result to which it may refer.
pub(super) const COMPACT_BYTES: usize = 24;
/// Number of results by which the memory for results grows when it is full.
const ROOM: usize = 16;

/// Result of a write. Nearly all results are versions; any other result is encoded.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(super) enum CompactOutcome {
    Written { slot: u64, index: u32 },
    Mismatch { slot: u64, index: u32 },
    Absent,
    NotARecord,
    Other(Box<EncodedOutcome>),
}

/// An encoded [`Outcome`]. It takes little more memory than its bytes.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(super) struct EncodedOutcome(Box<[u8]>);

impl EncodedOutcome {
    fn of(outcome: &Outcome) -> EncodedOutcome {
        EncodedOutcome(outcome.encode_to_vec().into())
    }

    fn outcome(&self) -> Outcome {
        Outcome::decode(&self.0[..]).expect("it was encoded here")
    }

    /// Shortens the result. A transaction loses its values and the results of its operations. It
    /// keeps its branch, the index of the failed comparison and its version, which have bounded
    /// lengths. An error keeps its code and the beginning of its message.
    fn shorten(&mut self) {
        let mut outcome = self.outcome();
        match &mut outcome.result {
            Some(Answer::Txn(result)) => {
                values(result).for_each(|it| it.value.clear());
                result.results.clear();
                result.abridged = !off(Rule::H133Abridged);
            }
            Some(Answer::Error(error)) if error.message.len() > SHORT_MESSAGE_BYTES => {
                // The messages of this crate are ASCII.
                let bytes = error.message.bytes().take(SHORT_MESSAGE_BYTES - 3);
                error.message = bytes.map(char::from).chain(['.'; 3]).collect();
            }
            _ => {}
        }
        *self = EncodedOutcome::of(&outcome);
    }
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
            Some(Answer::Txn(result)) => {
                let kept = Outcome::txn(abridged(result));
                CompactOutcome::Other(Box::new(EncodedOutcome::of(&kept)))
            }
            Some(Answer::Value(_) | Answer::Missing(_) | Answer::Entries(_) | Answer::Error(_))
            | None => CompactOutcome::Other(Box::new(EncodedOutcome::of(&outcome))),
        }
    }
}

/// Returns the part of a transaction's result that a session keeps. If the values have more than
/// [`KEPT_VALUES_BYTES`] together, they are left out. If the rest is longer than
/// [`KEPT_RESULT_BYTES`], the results of the operations are left out, too. The branch, the index of
/// the failed comparison and the version are always kept.
///
/// A result from which something was left out says so. Otherwise a repeated transaction would be
/// answered with empty values (hazard 133).
fn abridged(result: &TxnResult) -> TxnResult {
    let mut kept = result.clone();
    let mut values: Vec<&mut Value> = values(&mut kept).collect();
    let long = values.iter().map(|it| it.value.len()).sum::<usize>() > KEPT_VALUES_BYTES;
    if long {
        values.iter_mut().for_each(|it| it.value.clear());
    }
    kept.abridged |= long;
    if kept.encoded_len() > KEPT_RESULT_BYTES {
        kept.results.clear();
        kept.abridged = true;
    }
    kept.abridged &= !off(Rule::H133Abridged);
    kept
}

/// Returns the values in a result: that of the failed comparison, and those that were read.
fn values(result: &mut TxnResult) -> impl Iterator<Item = &mut Value> {
    let found = result.failed.iter_mut().filter_map(|it| it.found.as_mut());
    found.chain(
        result
            .results
            .iter_mut()
            .filter_map(|it| match &mut it.result {
                Some(OpAnswer::Value(value)) => Some(value),
                _ => None,
            }),
    )
}

impl CompactOutcome {
    /// Length of the encoded result; 0 if the result is not encoded.
    pub(super) fn encoded_len(&self) -> usize {
        match self {
            CompactOutcome::Other(encoded) => encoded.0.len(),
            CompactOutcome::Written { .. } | CompactOutcome::Mismatch { .. } => 0,
            CompactOutcome::Absent | CompactOutcome::NotARecord => 0,
        }
    }

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
            CompactOutcome::Other(encoded) => encoded.outcome(),
        }
    }
}

/// Results of a session by sequence number. If the client always waits for an answer before it
/// sends its next command, the session has only one result. The maximum number of results of a
/// session is `leasehold_wire::UNACKNOWLEDGED_MAX` + 1.
#[derive(Clone, Debug, Hash)]
pub(super) enum Results {
    One(u64, CompactOutcome),
    Many(Box<ManyResults>),
}

/// Several results of a session.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct ManyResults {
    /// Results in ascending order of sequence numbers.
    pub(super) all: Vec<(u64, CompactOutcome)>,
    /// Length of all encoded results together, in bytes.
    encoded_bytes: usize,
}

impl ManyResults {
    fn of(all: Vec<(u64, CompactOutcome)>) -> ManyResults {
        let encoded_bytes = all.iter().map(|(_, kept)| kept.encoded_len()).sum();
        ManyResults { all, encoded_bytes }
    }

    /// Adds a result, and drops those below `acked_below`. Returns whether the sequence number is
    /// new.
    fn insert(&mut self, sequence: u64, kept: CompactOutcome, acked_below: u64) -> bool {
        let found = self.all.binary_search_by_key(&sequence, |(of, _)| *of);
        if self.all.len() == self.all.capacity() {
            self.all.reserve_exact(ROOM);
        }
        self.encoded_bytes += kept.encoded_len();
        match found {
            Ok(at) => {
                let before = std::mem::replace(&mut self.all[at].1, kept);
                self.encoded_bytes -= before.encoded_len();
            }
            Err(at) => self.all.insert(at, (sequence, kept)),
        }
        let acknowledged = self.all.partition_point(|(of, _)| *of < acked_below);
        for (_, dropped) in self.all.drain(..acknowledged) {
            self.encoded_bytes -= dropped.encoded_len();
        }
        self.shorten(sequence);
        found.is_err()
    }

    /// Shortens the older results if all results together are too long. The result with the number
    /// `newest` is not shortened. All results together then have at most [`KEPT_TOGETHER_BYTES`], and
    /// the length of the newest result in addition.
    fn shorten(&mut self, newest: u64) {
        let mut rest = self.all.iter_mut().filter(|(of, _)| *of != newest);
        while self.encoded_bytes > KEPT_TOGETHER_BYTES
            && let Some((_, kept)) = rest.next()
        {
            if let CompactOutcome::Other(encoded) = kept
                && encoded.0.len() > SHORT_BYTES
            {
                self.encoded_bytes -= encoded.0.len();
                encoded.shorten();
                self.encoded_bytes += encoded.0.len();
            }
        }
    }
}

impl Results {
    pub(super) fn get(&self, sequence: u64) -> Option<&CompactOutcome> {
        match self {
            Results::One(of, kept) => (*of == sequence).then_some(kept),
            Results::Many(many) => {
                let all = &many.all;
                let at = all.binary_search_by_key(&sequence, |(of, _)| *of).ok()?;
                Some(&all[at].1)
            }
        }
    }

    /// Memory of the results, in units of [`COMPACT_BYTES`]. This is the number of the results if
    /// none of them is encoded.
    pub(super) fn size(&self) -> usize {
        match self {
            Results::One(_, kept) => 1 + kept.encoded_len() / COMPACT_BYTES,
            Results::Many(many) => many.all.len() + many.encoded_bytes / COMPACT_BYTES,
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
            Results::Many(many) => {
                let is_new = many.insert(sequence, kept, acked_below);
                if many.all.len() == 1 {
                    *self = Results::of(std::mem::take(&mut many.all));
                }
                is_new
            }
        }
    }

    /// Builds the results from a list in ascending order of sequence numbers.
    fn of(mut all: Vec<(u64, CompactOutcome)>) -> Results {
        match all.pop() {
            Some((sequence, kept)) if all.is_empty() => Results::One(sequence, kept),
            Some(last) => {
                all.push(last);
                Results::Many(Box::new(ManyResults::of(all)))
            }
            None => Results::Many(Box::default()),
        }
    }

    /// Returns all results in ascending order of sequence numbers.
    pub(super) fn image(&self) -> Vec<(u64, Outcome)> {
        match self {
            Results::One(sequence, kept) => vec![(*sequence, kept.outcome())],
            Results::Many(many) => {
                let all = many.all.iter();
                all.map(|(s, kept)| (*s, kept.outcome())).collect()
            }
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

    use leasehold_wire::{
        Error, ErrorCode, FailedComparison, Missing, OpResult, UNACKNOWLEDGED_MAX, Value,
    };

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
    fn found(bytes: usize, version: Version) -> OpAnswer {
        OpAnswer::Value(Value {
            value: vec![b'v'; bytes].into(),
            version: Some(version),
        })
    }

    fn txn(results: Vec<OpAnswer>) -> TxnResult {
        let version = Version {
            slot: u64::MAX,
            index: u32::MAX,
        };
        let results = results.into_iter().map(Some);
        TxnResult {
            or_else: true,
            failed: Some(FailedComparison {
                index: 9999,
                found: Some(Value {
                    value: "found".into(),
                    version: Some(version),
                }),
            }),
            version: Some(version),
            results: results.map(|result| OpResult { result }).collect(),
            abridged: false,
        }
    }

    fn kept(result: &TxnResult) -> TxnResult {
        let kept = CompactOutcome::from(Outcome::txn(result.clone()));
        let again = CompactOutcome::from(kept.outcome());
        assert_eq!(again, kept, "an image restores it");
        match kept.outcome().result {
            Some(Answer::Txn(kept)) => kept,
            other => panic!("{other:?}"),
        }
    }

    /// The value that the failed comparison found has five bytes.
    #[test]
    fn small_values_are_kept_and_large_values_are_left_out() {
        let version = Version { slot: 7, index: 3 };
        let of = |bytes| txn(vec![found(bytes, version), OpAnswer::Number(-5)]);
        assert_eq!(kept(&of(KEPT_VALUES_BYTES - 5)), of(KEPT_VALUES_BYTES - 5));
        let cut = kept(&of(KEPT_VALUES_BYTES - 4));
        let mut expected = of(0);
        expected.abridged = true;
        expected
            .failed
            .as_mut()
            .unwrap()
            .found
            .as_mut()
            .unwrap()
            .value
            .clear();
        assert_eq!(
            cut, expected,
            "the values are cleared, and their versions are kept"
        );
    }

    #[test]
    fn short_results_are_kept_and_long_results_are_left_out() {
        let of = |count| txn(vec![OpAnswer::Missing(Missing {}); count]);
        let most = (0..).take_while(|count| of(*count).encoded_len() <= KEPT_RESULT_BYTES);
        let most = most.last().unwrap();
        assert!(most > 200);
        assert_eq!(kept(&of(most)), of(most));
        let mut expected = of(0);
        expected.abridged = true;
        assert_eq!(kept(&of(most + 1)), expected);
    }

    #[test]
    fn the_shortest_form_of_a_result_is_short() {
        let mut error = Error::new(ErrorCode::NotAnInteger, "txn.then[3]: add: ".repeat(20));
        error.log_time_ms = u64::MAX;
        let whole = Outcome::txn(txn(vec![OpAnswer::Count(u64::MAX); 50]));
        for outcome in [whole, error.into()] {
            let mut encoded = EncodedOutcome::of(&outcome);
            encoded.shorten();
            assert!(encoded.0.len() <= SHORT_BYTES, "{}", encoded.0.len());
            match encoded.outcome().result {
                Some(Answer::Txn(short)) => {
                    assert!(short.or_else && short.abridged && short.results.is_empty());
                    assert_eq!(short.version, txn(vec![]).version);
                    assert_eq!(short.failed.map(|failed| failed.index), Some(9999));
                }
                Some(Answer::Error(short)) => {
                    assert_eq!(short.code(), ErrorCode::NotAnInteger);
                    assert_eq!(short.message, "txn.then[3]: add: txn.then[3]: add: t...");
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(SHORT_BYTES as u64 * UNACKNOWLEDGED_MAX <= KEPT_TOGETHER_BYTES as u64);
    }

    /// Records results of several lengths, with a client that acknowledges late. The newest result
    /// is kept as it is, and the older ones are shortened from the oldest on.
    #[test]
    fn the_results_of_a_session_are_short_together() {
        let mut results = Results::One(0, CompactOutcome::Absent);
        let mut shortened = 0;
        for sequence in 1..=10 * UNACKNOWLEDGED_MAX {
            let count = [3, 100, 0, 250][sequence as usize % 4];
            let outcome = match sequence % 7 {
                0 => Outcome::written(Version::default()),
                1 => Outcome::error(ErrorCode::NotAnInteger, "long ".repeat(40)),
                _ => Outcome::txn(txn(vec![OpAnswer::Count(1); count])),
            };
            let newest = CompactOutcome::from(outcome.clone());
            let acked_below = sequence.saturating_sub(UNACKNOWLEDGED_MAX);
            results.insert(sequence, newest.clone(), acked_below);
            assert_eq!(results.get(sequence), Some(&newest));
            let Results::Many(many) = &results else {
                panic!("there are several");
            };
            let sum: usize = many.all.iter().map(|(_, kept)| kept.encoded_len()).sum();
            assert_eq!(sum, many.encoded_bytes);
            assert!(sum <= KEPT_TOGETHER_BYTES + newest.encoded_len());
            let size = many.all.len() + sum / COMPACT_BYTES;
            assert_eq!(results.size(), size);
            let restored = Results::restore(results.image());
            assert_eq!((restored.image(), restored.size()), (results.image(), size));
            let is_long = |(_, kept): &(u64, CompactOutcome)| kept.encoded_len() > SHORT_BYTES;
            let first_long = many.all.iter().position(is_long).unwrap_or(many.all.len());
            let before = &many.all[..first_long];
            shortened = shortened.max(
                before
                    .iter()
                    .filter(|(_, kept)| kept.encoded_len() > 0)
                    .count(),
            );
        }
        assert!(shortened > 20, "{shortened}");
    }
}
