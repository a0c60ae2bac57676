//! Values that are records, in which clients replace one field by a merge.
//!
//! A record names two writes. The first field names the last write, which may be a whole write or a
//! merge. This field is judged like the value of a key in runs without records. The other fields,
//! the *rest*, name the last whole write, and merges do not change them. So the rest is judged as a
//! separate register: in histories, it has a separate key. A whole write, a delete and a read
//! concern both registers, and a merge concerns only the first. If a merge wrongly drops, changes
//! or restores a field that it does not name, reads of the rest are not linearizable.
//!
//! A merge into a missing key creates a record with only the first field. Any other stored value is
//! [`ValueId::DAMAGED`].

use bytes::Bytes;
use leasehold_histories::history::{HistoryAction, ValueId};
use leasehold_wire::command::Op;
use leasehold_wire::{Field, Record};
use prost::Message as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::choose::KEYS_MAX;
use super::operations::Parts;

const SALT: u64 = 0x3ec_03d5;
/// Fraction of runs with records.
const RECORDS: f64 = 0.35;
/// Name of the field that merges change. This field is the first field of a record.
const FIRST: &str = "id";
/// Range of the length of the field [`FIRST`] in long merges, in bytes. Replicas refuse long merges
/// while short merges wait.
const LONG_BYTES: std::ops::Range<usize> = 2500..4000;

/// Shape of the records of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecordShape {
    /// Number of fields that a whole record has in addition to the field [`FIRST`]. Merges do not
    /// change these fields.
    rest: usize,
    /// Length in bytes of the shortest field that merges do not change.
    bytes: usize,
    /// Fraction of puts that are merges.
    merges: f64,
    /// Fraction of merges that are long.
    long: f64,
}

/// Content of a record.
#[derive(Clone, Copy, Debug, PartialEq)]
struct RecordContent {
    /// Last write of the record.
    last: ValueId,
    /// Last write of the record that was not a merge; `None` if only merges have written the
    /// record.
    whole: Option<ValueId>,
}

impl RecordShape {
    /// Draws whether values are records in the run of this seed, and draws the shape of the
    /// records. Returns `None` if values are not records. The draw uses its own random generator,
    /// so it does not influence the seed's other draws.
    pub fn draw(seed: u64) -> Option<RecordShape> {
        let mut rng = Pcg64Mcg::seed_from_u64(seed ^ SALT);
        (rng.random::<f64>() < RECORDS).then(|| RecordShape {
            rest: [1, 1, 4, 4, 4, 16, 16, 80][rng.random_range(0..8)],
            bytes: [8, 24, 60][rng.random_range(0..3)],
            merges: rng.random_range(0.2..0.9),
            long: [0.0, 0.1, 0.3][rng.random_range(0..3)],
        })
    }

    /// Lowers the fraction of puts that are merges, so that it is at most `merges`.
    pub(super) fn limit(&mut self, merges: f64) {
        self.merges = self.merges.min(merges);
    }

    /// Draws whether a put is a merge.
    pub(super) fn draws_merge(&self, rng: &mut Pcg64Mcg) -> bool {
        rng.random::<f64>() < self.merges
    }

    /// Returns the record that is stored when `value` is written as a whole record.
    pub(super) fn whole(&self, value: ValueId) -> Bytes {
        let first = field(FIRST.into(), value.to_value(8));
        let rest = (0..self.rest).map(|nth| self.nth(nth, value));
        let fields = std::iter::once(first).chain(rest).collect();
        Record { fields }.encode_to_vec().into()
    }

    /// Returns the `nth` field. No two fields have the same length.
    fn nth(&self, nth: usize, value: ValueId) -> Field {
        let name = Bytes::copy_from_slice(&name(nth));
        field(name, value.to_value(self.bytes + nth))
    }

    /// Returns the fields of a merge.
    pub(super) fn merged(&self, value: ValueId, rng: &mut Pcg64Mcg) -> Vec<Field> {
        let bytes = if self.long > 0.0 && rng.random::<f64>() < self.long {
            rng.random_range(LONG_BYTES)
        } else {
            8
        };
        vec![field(FIRST.into(), value.to_value(bytes))]
    }

    /// Returns the value that the stored record has for the register `key`. Histories see a record
    /// as two registers: the first field, and the rest of the record.
    pub(super) fn register_value(&self, key: u64, stored: &[u8]) -> Option<ValueId> {
        let content = self.parse(stored).unwrap_or(RecordContent {
            last: ValueId::DAMAGED,
            whole: Some(ValueId::DAMAGED),
        });
        if is_rest(key) {
            content.whole
        } else {
            Some(content.last)
        }
    }

    /// Parses a stored record; `None` if a correct replica would never store this record.
    fn parse(&self, stored: &[u8]) -> Option<RecordContent> {
        let record = Record::decode(stored).ok()?;
        let (first, rest) = record.fields.split_first()?;
        let last = ValueId::from_value(&first.value)?;
        if first.name != FIRST || record.encoded_len() != stored.len() {
            return None;
        }
        let Some(some) = rest.first() else {
            return Some(RecordContent { last, whole: None });
        };
        let whole = ValueId::of_value(&some.value);
        let is_nth = |(nth, field): (usize, &Field)| {
            field.name[..] == name(nth)
                && field.value.len() == self.bytes + nth
                && ValueId::of_value(&field.value) == whole
        };
        let is_rest = rest.len() == self.rest && rest.iter().enumerate().all(is_nth);
        is_rest.then_some(RecordContent {
            last,
            whole: Some(whole),
        })
    }
}

fn name(nth: usize) -> [u8; 2] {
    [b'f', nth as u8]
}

fn field(name: Bytes, value: Bytes) -> Field {
    Field { name, value }
}

/// Returns the key that histories use for the rest of the record under `key`.
pub(super) fn rest_of(key: u64) -> u64 {
    key + KEYS_MAX
}

/// Whether `key` is used only in histories, for the rest of a record.
pub(super) fn is_rest(key: u64) -> bool {
    key >= KEYS_MAX
}

/// Adds to `parts` the effects that `op` has on the rest of records. A compare-and-swap that fails
/// does not affect the rest.
pub(super) fn add_rest(op: &Op, parts: &mut Parts) {
    if matches!(op, Op::PutFields(_)) {
        return;
    }
    for (key, did) in parts.clone() {
        let did = match did {
            HistoryAction::Cas { new: value, .. } => HistoryAction::Write { value },
            same => same,
        };
        parts.push((rest_of(key), did));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ValueId = ValueId(7);
    const B: ValueId = ValueId(8);

    fn records() -> RecordShape {
        RecordShape {
            rest: 3,
            bytes: 9,
            merges: 0.5,
            long: 0.5,
        }
    }

    fn says(fields: Vec<Field>) -> [Option<ValueId>; 2] {
        let stored = Record { fields }.encode_to_vec();
        [0, rest_of(0)].map(|key| records().register_value(key, &stored))
    }

    fn whole(value: ValueId) -> Vec<Field> {
        let stored = records().whole(value);
        Record::decode(stored).expect("it is a record").fields
    }

    /// Checks the values that are read from a record after correct merges, and after wrong merges.
    #[test]
    fn a_record_says_what_was_merged_and_what_was_written_whole() {
        let mut rng = Pcg64Mcg::seed_from_u64(1);
        let merged = records().merged(B, &mut rng).remove(0);
        let over = |at: usize| {
            let mut fields = whole(A);
            fields[at].value = merged.value.clone();
            fields
        };
        assert_eq!(says(whole(A)), [Some(A), Some(A)]);
        assert_eq!(says(over(0)), [Some(B), Some(A)]);
        assert_eq!(says(vec![merged.clone()]), [Some(B), None]);

        let damaged = [Some(ValueId::DAMAGED); 2];
        for lost in 0..4 {
            let mut fields = over(0);
            fields.remove(lost);
            assert_eq!(says(fields), damaged, "without field {lost}");
        }
        for changed in 1..4 {
            assert_eq!(says(over(changed)), damaged, "field {changed}");
        }
        let mut swapped = over(0);
        swapped.swap(1, 2);
        assert_eq!(says(swapped), damaged);
        let mut twice = over(0);
        twice.push(merged);
        assert_eq!(says(twice), damaged);
        assert_eq!(says(Vec::new()), damaged);
        let cut = &records().whole(A)[..20];
        assert_eq!(records().register_value(0, cut), damaged[0]);
    }

    #[test]
    fn merges_are_of_one_register_and_other_operations_of_both() {
        let parts = |op: &Op, did| {
            let mut parts: Parts = smallvec::smallvec![(3, did)];
            add_rest(op, &mut parts);
            parts.into_vec()
        };
        let write = HistoryAction::Write { value: A };
        let cas = HistoryAction::Cas {
            expected: None,
            new: A,
            swapped: false,
        };
        let rest = rest_of(3);
        assert_eq!(
            parts(&Op::put("k", "v"), write),
            [(3, write), (rest, write)]
        );
        assert_eq!(
            parts(&Op::cas("k", "v", None), cas),
            [(3, cas), (rest, write)]
        );
        assert_eq!(parts(&Op::put_fields("k", Vec::new()), write), [(3, write)]);
    }

    #[test]
    fn some_seeds_have_records() {
        let with = (0..1000).filter(|seed| RecordShape::draw(*seed).is_some());
        assert!((300..400).contains(&with.count()));
    }
}
