//! How named fields are put over a stored record.

use std::collections::BTreeMap;

use bytes::Bytes;
use client::wire::{Field, Record as Fields};
use prost::Message as _;
use prost::encoding::{DecodeContext, decode_key, skip_field};

/// The longest record into which fields are put: every replica decodes and encodes all of it
/// for each command, of which thousands may come at once.
pub(super) const RECORD_BYTES_MAX: usize = 256 << 10;
/// The most fields of such a record, for the same reason.
pub(super) const FIELDS_MAX: usize = 1024;

/// What fields were put over.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Merged {
    /// The record.
    pub(super) encoded: Vec<u8>,
    /// How many fields it has.
    pub(super) fields: usize,
}

/// `old` with `fields` put over it; `None` if `old` is no record, or it or what comes of it is
/// too large. Of several values for one name the last counts. Both may be long, and a client
/// chose them: one pass over each.
pub(super) fn merge(old: Option<Bytes>, fields: &[Field]) -> Option<Merged> {
    let mut record = match old {
        Some(bytes) if bytes.len() > RECORD_BYTES_MAX || has_many_fields(&bytes) => return None,
        Some(bytes) => Fields::decode(bytes).ok()?,
        None => Fields::default(),
    };
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
    let fields = record.fields.len();
    if fields > FIELDS_MAX {
        return None;
    }
    let encoded = record.encode_to_vec();
    (encoded.len() <= RECORD_BYTES_MAX).then_some(Merged { encoded, fields })
}

/// Whether a record, if it is one, has too many fields. Decodes none, and stops at the limit.
fn has_many_fields(mut record: &[u8]) -> bool {
    let mut fields = 0;
    while let Ok((tag, wire)) = decode_key(&mut record)
        && skip_field(wire, tag, &mut record, DecodeContext::default()).is_ok()
    {
        fields += 1;
        if fields > FIELDS_MAX {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
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
            let merged = merge(Some(stored.into()), &new).expect("it is small");
            assert_eq!(merged.encoded, expected);
        }
    }

    #[test]
    fn large_records_are_refused_before_they_are_decoded() {
        let put = [Field {
            name: "f".into(),
            value: "v".into(),
        }];
        // Empty fields, of two bytes each.
        let empty = |fields: usize| Some(Bytes::from([0x0A, 0].repeat(fields)));
        assert!(merge(empty(FIELDS_MAX - 1), &put).is_some());
        assert!(merge(empty(FIELDS_MAX), &put).is_none());
        assert!(merge(empty(500_000), &put).is_none());
        let long = |bytes| Fields {
            fields: vec![Field {
                name: "long".into(),
                value: vec![7; bytes].into(),
            }],
        };
        let stored = |bytes| Some(Bytes::from(long(bytes).encode_to_vec()));
        assert!(merge(stored(RECORD_BYTES_MAX - 100), &put).is_some());
        assert!(merge(stored(RECORD_BYTES_MAX), &put).is_none());
    }
}
