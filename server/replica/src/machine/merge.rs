//! Merges of named fields into a stored record.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use leasehold_wire::Field;
use prost::encoding::{WireType, decode_varint, message};

use crate::cost::merging;

/// Maximum size, in bytes, of a record into which fields are merged. The size is limited because
/// every replica reads the whole record for each merge, and thousands of merges may arrive at once.
pub(super) const RECORD_BYTES_MAX: usize = 256 << 10;
/// Maximum number of fields of a record into which fields are merged.
pub(super) const FIELDS_MAX: usize = 1024;
/// Maximum number of fields that [`work_ahead`] counts. A record with more fields is assumed to
/// have [`FIELDS_MAX`] fields.
const FIELDS_COUNTED: usize = 64;

/// Size in bytes above which a record is copied before it is read. If the record is not in the
/// processor's cache, it is faster to copy the whole record first than to read it field by field.
const COPIED_FIRST_BYTES: usize = 32 << 10;

/// Protobuf tags of the fields of `Record` and `Field`. The type of all these fields is `bytes`.
const FIELD: u32 = 1;
const NAME: u32 = 1;
const VALUE: u32 = 2;

/// Merges `fields` into the record `old`. Returns the merged record, and the work of reading `old`,
/// in units of `cost::merging`. The record is `None` if `old` is no record, or if `old` or the
/// result is too large.
///
/// If `fields` has several values for one name, the last value is used. If `old` has two fields
/// with the same name, only the first field is replaced. The other fields of `old` are copied
/// without decoding them, because decoding and encoding would take several times as long.
///
/// [`cost`]: crate::cost
pub(super) fn merge(old: &[u8], fields: &[Field]) -> (Option<Vec<u8>>, usize) {
    if old.len() > RECORD_BYTES_MAX {
        return (None, 0);
    }
    let copy;
    let old = if old.len() > COPIED_FIRST_BYTES {
        copy = old.to_vec();
        &copy[..]
    } else {
        old
    };
    // Both `fields` and `old` may be long, since a client chose them. So each is read once.
    let mut left: BTreeMap<&[u8], &Field> = fields.iter().map(|it| (&it.name[..], it)).collect();
    let added = left
        .values()
        .map(|field| message::encoded_len(FIELD, *field));
    let mut merged = Vec::with_capacity(old.len() + added.sum::<usize>());
    let (mut rest, mut uncopied, mut count) = (old, old, 0);
    while count <= FIELDS_MAX {
        let here = rest;
        let Some(name) = take_field(&mut rest) else {
            break;
        };
        count += 1;
        if let Some(field) = left.remove(name) {
            merged.extend(&uncopied[..uncopied.len() - here.len()]);
            message::encode(FIELD, field, &mut merged);
            uncopied = rest;
        }
    }
    let work = merging(count, old.len());
    if !rest.is_empty() {
        return (None, work);
    }
    merged.extend(uncopied);
    count += left.len();
    for Field { name, .. } in fields {
        if let Some(field) = left.remove(&name[..]) {
            message::encode(FIELD, field, &mut merged);
        }
    }
    let fits = count <= FIELDS_MAX && merged.len() <= RECORD_BYTES_MAX;
    merged.shrink_to_fit(); // it is stored without another copy
    (fits.then_some(merged), work)
}

/// Removes the fields with these names from the record `old`. Returns the rest with the number of
/// removed fields, and the work of reading `old`, in units of `cost::merging`. The rest is `None` if
/// `old` is no record or is too large.
pub(super) fn remove_fields(old: &[u8], names: &[Bytes]) -> (Option<(Vec<u8>, usize)>, usize) {
    if old.len() > RECORD_BYTES_MAX {
        return (None, 0);
    }
    let names: BTreeSet<&[u8]> = names.iter().map(|name| &name[..]).collect();
    let mut left = Vec::with_capacity(old.len());
    let (mut rest, mut count, mut removed) = (old, 0, 0);
    while count <= FIELDS_MAX {
        let here = rest;
        let Some(name) = take_field(&mut rest) else {
            break;
        };
        count += 1;
        if names.contains(name) {
            removed += 1;
        } else {
            left.extend(&here[..here.len() - rest.len()]);
        }
    }
    let work = merging(count, old.len());
    if !rest.is_empty() || count > FIELDS_MAX {
        return (None, work);
    }
    left.shrink_to_fit(); // it is stored without another copy
    (Some((left, removed)), work)
}

/// Estimates the maximum cost of a merge into `old`. Only a few fields are counted, because a
/// caller may need estimates for thousands of requests.
pub(super) fn work_ahead(old: &[u8]) -> usize {
    if old.len() > RECORD_BYTES_MAX {
        return 0;
    }
    let mut rest = old;
    let fields = std::iter::from_fn(|| take_bytes(FIELD, &mut rest));
    match fields.take(FIELDS_COUNTED + 1).count() {
        few @ ..=FIELDS_COUNTED => merging(few, old.len()),
        _ => merging(FIELDS_MAX, old.len()),
    }
}

/// Returns the maximum cost of a merge into a record of `bytes` bytes. A field takes at least two
/// bytes.
pub(super) fn most_work(bytes: usize) -> usize {
    let bytes = bytes.min(RECORD_BYTES_MAX);
    merging((bytes / 2).min(FIELDS_MAX), bytes)
}

/// Removes the next field from a record, and returns the name of the field. Returns `None` if the
/// record is empty. Also returns `None` if the next bytes are not a field as protobuf writes it:
/// the name and then the value. The name or the value may be missing if it is empty.
fn take_field<'a>(record: &mut &'a [u8]) -> Option<&'a [u8]> {
    let mut rest = *record;
    let mut field = take_bytes(FIELD, &mut rest)?;
    // The empty name is a slice of `record` and not a constant. To compare with a constant empty
    // slice, which has no real address, takes ten times as long.
    let name = take_bytes(NAME, &mut field).unwrap_or(&record[..0]);
    take_bytes(VALUE, &mut field);
    if !field.is_empty() {
        return None;
    }
    *record = rest;
    Some(name)
}

/// Removes the next field from `from` if the field has the tag `tag`. Returns the content of the
/// field.
fn take_bytes<'a>(tag: u32, from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let key = (tag << 3) as u8 | WireType::LengthDelimited as u8;
    let mut rest = from.strip_prefix(&[key])?;
    let length = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
    let (taken, rest) = rest.split_at_checked(length)?;
    *from = rest;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use leasehold_wire::Record as Fields;
    use prost::Message as _;

    use super::*;

    fn field(name: &'static str, value: &'static str) -> Field {
        Field {
            name: name.into(),
            value: value.into(),
        }
    }

    /// Merges every list of up to three fields into every record of up to three fields.
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
            assert_eq!(merge(&stored, &new).0, Some(expected));
        }
    }

    /// A client may store any bytes as a value.
    #[test]
    fn what_is_no_record_is_refused() {
        let put = [field("f", "v")];
        let known = Fields {
            fields: put.to_vec(),
        }
        .encode_to_vec();
        let nested = |of: &[u8]| [&[0x0A, of.len() as u8][..], of].concat();
        let [name, value] = [&[0x0A, 1, b'n'][..], &[0x12, 1, b'v']];
        for field in [&[][..], name, value, &[name, value].concat()] {
            let (merged, work) = merge(&nested(field), &put);
            assert_eq!(merged, Some([nested(field), known.clone()].concat()));
            assert_eq!(work, merging(1, 2 + field.len()));
        }
        for field in [
            &[value, name].concat()[..],
            &[name, name].concat(),
            &[name, value, value].concat(),
            &[name, value, &[0x1A, 0]].concat(),
            &[0x0A, 2, b'n'],
            &[0x08, 1],
        ] {
            assert_eq!(merge(&nested(field), &put).0, None, "{field:?}");
        }
        let long = [0x0A, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F];
        for value in [
            &b"text"[..],
            &[0x0A],
            &[0x0A, 1],
            &[0x12, 0],
            &[0x0B, 0x0C],
            &long,
        ] {
            assert_eq!(merge(value, &put).0, None, "{value:?}");
            assert_eq!(merge(&[&known[..], value].concat(), &put).0, None);
        }
    }

    /// For a record with many fields, the estimate is as high as for a record with the maximum
    /// number of fields.
    #[test]
    fn work_ahead_is_no_less_than_what_it_will_be() {
        for fields in [
            0,
            1,
            FIELDS_COUNTED,
            FIELDS_COUNTED + 1,
            FIELDS_MAX,
            100_000,
        ] {
            let record = [0x0A, 0].repeat(fields);
            let (_, work) = merge(&record, &[field("f", "v")]);
            let exact = fields <= FIELDS_COUNTED;
            let ahead = work_ahead(&record);
            assert!(
                if exact {
                    ahead == work
                } else {
                    ahead + 1 >= work
                },
                "{fields}"
            );
        }
    }

    #[test]
    fn records_that_are_too_large_are_refused() {
        let put = [field("f", "v")];
        // Returns a record of empty fields, each of two bytes.
        let empty = |fields: usize| [0x0A, 0].repeat(fields);
        let merged = |old: Vec<u8>| merge(&old, &put).0;
        assert!(merged(empty(FIELDS_MAX - 1)).is_some());
        assert!(merged(empty(FIELDS_MAX)).is_none());
        assert!(merged(empty(500_000)).is_none());
        let long = |bytes| Fields {
            fields: vec![Field {
                name: "long".into(),
                value: vec![7; bytes].into(),
            }],
        };
        let stored = |bytes| long(bytes).encode_to_vec();
        assert!(merged(stored(RECORD_BYTES_MAX - 100)).is_some());
        assert!(merged(stored(RECORD_BYTES_MAX)).is_none());
    }
}
