//! How named fields are put over a stored record.

use std::collections::BTreeMap;

use bytes::Bytes;
use client::wire::{Field, Record as Fields};
use prost::Message as _;

/// `old` with `fields` put over it; `None` if `old` is no record. Of several values
/// for one name the last counts. Both may be long, and a client chose them: one
/// pass over each.
pub(super) fn merge(old: Option<Bytes>, fields: &[Field]) -> Option<Vec<u8>> {
    let mut record = match old {
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
    let encoded = record.encode_to_vec();
    (encoded.len() <= client::wire::VALUE_BYTES_MAX).then_some(encoded)
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
            assert_eq!(merge(Some(stored.into()), &new), Some(expected));
        }
    }
}
