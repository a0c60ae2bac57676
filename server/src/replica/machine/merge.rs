//! How named fields are put over a stored record.

use std::collections::BTreeMap;

use bytes::Bytes;
use client::wire::{Field, Record as Fields};
use prost::Message as _;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use super::super::weight::merge_work;

/// The longest record into which fields are put: every replica decodes and encodes all of it
/// for each command, of which thousands may come at once.
const RECORD_BYTES_MAX: usize = 256 << 10;
/// The most fields of such a record, for the same reason.
const FIELDS_MAX: usize = 1024;
/// As many fields are counted ahead of a merge. A record of more may have any number.
const FIELDS_COUNTED: usize = 64;

/// `old` with `fields` put over it; `None` if `old` is no record, or it or what comes of it is
/// too large. Returns also how much work `old` was, as [`weight`] counts it.
///
/// [`weight`]: crate::replica::weight
pub(super) fn merge(old: Option<Bytes>, fields: &[Field]) -> (Option<Vec<u8>>, usize) {
    let Some(old) = old else {
        return (put_over(Fields::default(), fields), 0);
    };
    if old.len() > RECORD_BYTES_MAX {
        return (None, 0);
    }
    let count = count_fields(&old, FIELDS_MAX);
    let work = merge_work(count, old.len());
    if count > FIELDS_MAX || !is_plain(&old) {
        return (None, work);
    }
    let record = Fields::decode(old).ok();
    (record.and_then(|record| put_over(record, fields)), work)
}

/// How much work a merge into `old` will be, at most. Whoever asks this for thousands of requests
/// has no time to count many fields.
pub(super) fn work_ahead(old: &[u8]) -> usize {
    if old.len() > RECORD_BYTES_MAX {
        return 0;
    }
    match count_fields(old, FIELDS_COUNTED) {
        few @ ..=FIELDS_COUNTED => merge_work(few, old.len()),
        _ => merge_work(FIELDS_MAX, old.len()),
    }
}

/// Of several values for one name the last counts. Both may be long, and a client chose them: one
/// pass over each.
fn put_over(mut record: Fields, fields: &[Field]) -> Option<Vec<u8>> {
    let values = fields.iter().map(|field| (&field.name, &field.value));
    let mut values: BTreeMap<&Bytes, &Bytes> = values.collect();
    for known in &mut record.fields {
        if let Some(value) = values.remove(&known.name) {
            known.value = value.clone();
        }
    }
    for Field { name, .. } in fields {
        if let Some(value) = values.remove(name) {
            let (name, value) = (name.clone(), value.clone());
            record.fields.push(Field { name, value });
        }
    }
    if record.fields.len() > FIELDS_MAX {
        return None;
    }
    let encoded = record.encode_to_vec();
    (encoded.len() <= RECORD_BYTES_MAX).then_some(encoded)
}

/// How many fields a record has, if it is one. Decodes none, and stops behind `most`. A group
/// counts as too many: no record has any, and one holds any number of fields.
fn count_fields(mut record: &[u8], most: usize) -> usize {
    let mut fields = 0;
    while fields <= most
        && let Ok((tag, wire)) = decode_key(&mut record)
    {
        if wire == WireType::StartGroup {
            return most + 1;
        }
        if skip_field(wire, tag, &mut record, DecodeContext::default()).is_err() {
            break;
        }
        fields += 1;
    }
    fields
}

/// Whether every field has a name and a value, and nothing else: others hold any number of
/// fields, and are decoded before they are refused.
fn is_plain(mut record: &[u8]) -> bool {
    while let Ok((tag, wire)) = decode_key(&mut record) {
        let mut field = record;
        if skip_field(wire, tag, &mut record, DecodeContext::default()).is_err() {
            return true; // no record: it is not decoded any further
        }
        if wire == WireType::LengthDelimited {
            field = &field[..field.len() - record.len()];
            if decode_varint(&mut field).is_err() || count_fields(field, 2) > 2 {
                return false;
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use prost::encoding::encode_varint;

    use super::*;

    /// Every list of up to three fields over every record of up to three.
    #[test]
    fn fields_go_where_they_are_known_and_otherwise_to_the_end() {
        let lists: Vec<Vec<u8>> = (0..=3)
            .flat_map(|length| {
                let digits = move |n: u32| (0..length).map(move |i| (n / 3u32.pow(i) % 3) as u8);
                (0..3u32.pow(length)).map(move |n| digits(n).collect())
            })
            .collect();
        let fields = |names: &[u8], first: u8| -> Vec<Field> {
            let field = |(value, &name): (u8, &u8)| Field {
                name: vec![b'a' + name].into(),
                value: vec![value].into(),
            };
            (first..).zip(names).map(field).collect()
        };
        for (old, new) in lists
            .iter()
            .flat_map(|old| lists.iter().map(move |new| (old, new)))
        {
            let (old, new) = (fields(old, 0), fields(new, 100));
            let mut expected = old.clone();
            for field in &new {
                match expected.iter_mut().find(|known| known.name == field.name) {
                    Some(known) => known.value = field.value.clone(),
                    None => expected.push(field.clone()),
                }
            }
            let stored = Fields { fields: old }.encode_to_vec();
            let expected = Fields { fields: expected }.encode_to_vec();
            assert_eq!(merge(Some(stored.into()), &new).0, Some(expected));
        }
    }

    /// Of what is no record of ours, none is decoded that takes long.
    #[test]
    fn what_holds_very_many_fields_is_refused_before_it_is_decoded() {
        let put = [Field {
            name: "f".into(),
            value: "v".into(),
        }];
        let group = [&[0x7B][..], &[0x78, 1].repeat(100_000), &[0x7C]].concat();
        assert_eq!(count_fields(&group, FIELDS_MAX), FIELDS_MAX + 1);
        assert_eq!(work_ahead(&group), merge_work(FIELDS_MAX, group.len()));
        let mut in_a_field = vec![0x0A];
        encode_varint(group.len() as u64, &mut in_a_field);
        in_a_field.extend(&group);
        let empty = [0x0A, 0].repeat(50_000);
        let mut empty_in_a_field = vec![0x0A];
        encode_varint(empty.len() as u64, &mut empty_in_a_field);
        empty_in_a_field.extend(&empty);
        for full in [in_a_field, empty_in_a_field] {
            assert!(Fields::decode(&full[..]).is_ok(), "it could be decoded");
            assert!(!is_plain(&full));
            assert_eq!(merge(Some(full.into()), &put).0, None);
        }
        assert_eq!(merge(Some(group.into()), &put).0, None);
    }

    #[test]
    fn large_records_are_refused_before_they_are_decoded() {
        let put = [Field {
            name: "f".into(),
            value: "v".into(),
        }];
        // Empty fields, of two bytes each.
        let empty = |fields: usize| Some(Bytes::from([0x0A, 0].repeat(fields)));
        let merged = |old| merge(old, &put).0;
        assert!(merged(empty(FIELDS_MAX - 1)).is_some());
        assert!(merged(empty(FIELDS_MAX)).is_none());
        assert!(merged(empty(500_000)).is_none());
        let long = |bytes| Fields {
            fields: vec![Field {
                name: "long".into(),
                value: vec![7; bytes].into(),
            }],
        };
        let stored = |bytes| Some(Bytes::from(long(bytes).encode_to_vec()));
        assert!(merged(stored(RECORD_BYTES_MAX - 100)).is_some());
        assert!(merged(stored(RECORD_BYTES_MAX)).is_none());
    }
}
