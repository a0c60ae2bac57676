//! Keys of a round, and the contents that clients give to them.
//!
//! There are four sets of keys. *Hot* keys are few, and all clients of single keys use them often.
//! *Cold* keys are many. *Lists* and *counters* only grow: clients append tokens to lists, and add
//! positive numbers to counters. A *group* is a set of a few keys. Several clients send operations
//! on all keys of a group for a while. After that, no client uses the group again. So the history
//! of a group is short enough to be judged as a history of transactions.
//!
//! Each fourth group is stored as one record under the first key of the group. The fields of this
//! record stand for the keys of the group.

use std::ops::Range;

use bytes::Bytes;
use leasehold_histories::history::ValueId;
use leasehold_wire::{Field, Record};
use prost::Message as _;

use crate::backend::{key_name, value};

/// Hot keys, which clients use often.
pub const HOT: Range<u64> = 0..48;
/// Cold keys, which clients rarely use.
pub const COLD: Range<u64> = 48..2048;
/// Lists, to which clients append tokens.
pub const LISTS: Range<u64> = 2048..2054;
/// Counters, to which clients add.
pub const COUNTERS: Range<u64> = 2054..2060;
/// Number of keys in each group.
pub const GROUP_KEYS: u64 = 4;
/// The first key of the first group.
const GROUPS_FROM: u64 = 10_000;
/// One out of `RECORD_EVERY` groups is stored as a record.
const RECORD_EVERY: u64 = 4;
/// Length of a token in a list, in bytes.
pub const TOKEN_BYTES: usize = 8;

/// Kinds of keys. The kind decides about the form of the stored value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// The key holds one value at a time.
    Register,
    /// The key holds a record. The fields of the record stand for the keys of a group.
    Record,
    /// The key stands for a field of a record. Nothing is stored under the key itself.
    Field,
    /// The key holds tokens.
    List,
    /// The key holds a number.
    Counter,
}

/// Returns the keys of the group with this ID.
pub fn group_keys(group: u64) -> Range<u64> {
    let from = GROUPS_FROM + group * GROUP_KEYS;
    from..from + GROUP_KEYS
}

/// Returns the ID of the group to which a key belongs; `None` for a key of another set.
pub fn group_of(key: u64) -> Option<u64> {
    Some(key.checked_sub(GROUPS_FROM)? / GROUP_KEYS)
}

/// Returns true if a group is stored as a record.
pub fn is_record(group: u64) -> bool {
    group % RECORD_EVERY == RECORD_EVERY - 1
}

/// Returns the kind of a key.
pub fn kind_of(key: u64) -> KeyKind {
    match group_of(key) {
        Some(group) if is_record(group) && group_keys(group).start == key => KeyKind::Record,
        Some(group) if is_record(group) => KeyKind::Field,
        _ if LISTS.contains(&key) => KeyKind::List,
        _ if COUNTERS.contains(&key) => KeyKind::Counter,
        _ => KeyKind::Register,
    }
}

/// Returns the number of the key with this name; `None` if no key has this name.
pub fn key_number(name: &Bytes) -> Option<u64> {
    let digits = std::str::from_utf8(name).ok()?.strip_prefix("key")?;
    let key = digits.parse().ok()?;
    (key_name(key) == *name).then_some(key)
}

/// Returns the value that is stored for an id. Most values are small, and some are as large as
/// several pages.
pub fn stored(id: ValueId) -> Bytes {
    let mixed = id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let size = match mixed % 64 {
        0 => 4096 + mixed % 4096,
        _ => 8 + mixed % 120,
    };
    value(id, size as usize)
}

/// Returns the id of a stored value; `None` if the bytes are not the value of an id.
pub fn recognise(bytes: &Bytes) -> Option<ValueId> {
    ValueId::from_value(bytes).filter(|id| stored(*id) == *bytes)
}

/// Returns the name of the field that stands for a key of a group.
pub fn field_name(key: u64) -> Bytes {
    let number = key % GROUP_KEYS;
    Bytes::from(format!("field{number}"))
}

/// Returns the field that stands for a key of a group, with the value of an id.
pub fn field(key: u64, id: ValueId) -> Field {
    let (name, value) = (field_name(key), stored(id));
    Field { name, value }
}

/// Returns the key that a field of the record stands for; `None` if clients use no such field.
pub fn key_of_field(record: u64, name: &Bytes) -> Option<u64> {
    let mut keys = record..record + GROUP_KEYS;
    keys.find(|key| field_name(*key) == *name)
}

/// Returns the contents of a record: a value for each key of its group. The result is `None` if
/// `bytes` is not a record that clients wrote.
pub fn fields_of(record: u64, bytes: &Bytes) -> Option<[Option<ValueId>; GROUP_KEYS as usize]> {
    let mut found = [None; GROUP_KEYS as usize];
    for Field { name, value } in Record::decode(bytes.clone()).ok()?.fields {
        let place = &mut found[(key_of_field(record, &name)? - record) as usize];
        if place.replace(recognise(&value)?).is_some() {
            return None;
        }
    }
    Some(found)
}

/// Returns the form in which a token is appended.
pub fn token_bytes(token: ValueId) -> Bytes {
    Bytes::copy_from_slice(&token.to_bytes())
}

/// Returns the tokens of a list; `None` if its length is not a multiple of the length of a token.
pub fn tokens_of(bytes: &Bytes) -> Option<Vec<ValueId>> {
    let (tokens, rest) = bytes.as_chunks::<TOKEN_BYTES>();
    let token = |bytes: &[u8; TOKEN_BYTES]| ValueId(u64::from_be_bytes(*bytes));
    rest.is_empty().then(|| tokens.iter().map(token).collect())
}

/// Returns the value of a counter; `None` if `bytes` is not an integer as `add` writes it: without
/// a plus sign, spaces or leading zeros.
pub fn number_of(bytes: &Bytes) -> Option<i64> {
    let text = std::str::from_utf8(bytes).ok()?;
    let number: i64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_one_kind() {
        let kinds = |keys: Range<u64>| keys.map(kind_of).collect::<Vec<_>>();
        use KeyKind::{Counter, Field, List, Record, Register};
        assert_eq!(kinds(2047..2049), [Register, List]);
        assert_eq!(kinds(2053..2055), [List, Counter]);
        assert_eq!(kinds(2059..2061), [Counter, Register]);
        assert_eq!(kinds(group_keys(2)), [Register; 4]);
        assert_eq!(kinds(group_keys(3)), [Record, Field, Field, Field]);
        assert_eq!(group_of(group_keys(3).start), Some(3));
        assert_eq!(key_number(&key_name(2048)), Some(2048));
        assert_eq!(key_number(&Bytes::from("key2048")), None);
    }

    #[test]
    fn a_record_that_no_client_wrote_is_not_read() {
        let record = group_keys(3).start;
        let encoded = |fields: Vec<Field>| Bytes::from(Record { fields }.encode_to_vec());
        let (one, two) = (field(record, ValueId(1)), field(record + 2, ValueId(2)));
        let found = fields_of(record, &encoded(vec![two.clone(), one.clone()]));
        assert_eq!(
            found,
            Some([Some(ValueId(1)), None, Some(ValueId(2)), None])
        );
        assert_eq!(fields_of(record, &encoded(Vec::new())), Some([None; 4]));
        let torn = Field {
            value: two.value.slice(1..),
            ..two.clone()
        };
        let unknown = Field {
            name: "field4".into(),
            ..two.clone()
        };
        for wrong in [vec![torn], vec![unknown], vec![two.clone(), two]] {
            assert_eq!(fields_of(record, &encoded(wrong)), None);
        }
        assert_eq!(fields_of(record, &stored(ValueId(1))), None);
    }

    #[test]
    fn half_a_token_is_noticed() {
        let tokens = [token_bytes(ValueId(7)), token_bytes(ValueId(8))].concat();
        let tokens = Bytes::from(tokens);
        assert_eq!(tokens_of(&tokens), Some(vec![ValueId(7), ValueId(8)]));
        assert_eq!(tokens_of(&tokens.slice(..12)), None);
        assert_eq!(number_of(&"12".into()), Some(12));
        assert_eq!(number_of(&"+12".into()), None);
    }
}
