//! Names and contents of records, exactly as in YCSB, so that a data set loaded by one program can
//! be used by the other.

use bytes::Bytes;
use leasehold_wire::{Field, Record};
use prost::Message;

use crate::generator::{Random, fnv_hash};

/// Returns the key of record `number`: `user`, then the number or its hash, with leading zeros up
/// to `zero_padding` digits.
pub(super) fn key(number: u64, hashed: bool, zero_padding: usize) -> Bytes {
    let number = if hashed { fnv_hash(number) } else { number };
    // The hash is an absolute value, except for the one value that is negative in Java.
    format!("user{:0>zero_padding$}", number as i64).into()
}

/// Returns `length` printable characters.
pub(super) fn random_value(length: u64, random: &mut Random) -> Bytes {
    let mut value = Vec::with_capacity(length as usize + 10);
    while (value.len() as u64) < length {
        let bits = random.bits();
        // Ten characters of six bits each, counted from the blank.
        value.extend((0..10).map(|i| b' ' + (bits >> (6 * i) & 63) as u8));
    }
    value.truncate(length as usize);
    value.into()
}

/// Returns the value that a field must have with `dataintegrity=true`. The value begins with the
/// key and the name of the field. Hashes follow until the value has `length` bytes. Each hash is
/// the hash of the whole text before it.
pub(super) fn expected_value(key: &[u8], field: &str, length: u64) -> Bytes {
    let length = length as usize;
    let mut value = Vec::with_capacity(length + 16);
    let mut hash = JavaHash::default();
    let append = |value: &mut Vec<u8>, hash: &mut JavaHash, part: &[u8]| {
        value.extend_from_slice(part);
        hash.update(part);
    };
    append(&mut value, &mut hash, key);
    append(&mut value, &mut hash, b":");
    append(&mut value, &mut hash, field.as_bytes());
    while value.len() < length {
        append(&mut value, &mut hash, b":");
        let digits = hash.0.to_string();
        append(&mut value, &mut hash, digits.as_bytes());
    }
    value.truncate(length);
    value.into()
}

/// Java's `String.hashCode` of the text that has been added so far. The result is correct only for
/// ASCII text. Keys are ASCII text.
#[derive(Default)]
struct JavaHash(i32);

impl JavaHash {
    fn update(&mut self, part: &[u8]) {
        self.0 = part.iter().fold(self.0, |hash, &byte| {
            hash.wrapping_mul(31).wrapping_add(i32::from(byte))
        });
    }
}

/// Encodes the value under which a record is stored.
pub(super) fn encode(fields: Vec<Field>) -> Bytes {
    Record { fields }.encode_to_vec().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_ycsbs() {
        assert_eq!(key(0, true, 1), "user6284781860667377211");
        assert_eq!(key(42, false, 1), "user42");
        assert_eq!(key(42, false, 0), "user42");
        assert_eq!(key(42, false, 8), "user00000042");
    }

    /// Java's hash is s[0]*31^(n-1) + ... + s[n-1] modulo 2^32, taken as a signed number.
    #[test]
    fn expected_values_follow_javas_hash_code() {
        let value = expected_value(b"user0", "field0", 40);
        assert_eq!(value.len(), 40);
        assert!(value.starts_with(b"user0:field0:"));
        let mut hash = 0i64;
        for byte in b"user0:field0:" {
            hash = (hash * 31 + i64::from(*byte)) % (1 << 32);
        }
        let signed = if hash >= 1 << 31 {
            hash - (1 << 32)
        } else {
            hash
        };
        let text = format!("user0:field0:{signed}:");
        assert!(value.starts_with(text.as_bytes()), "{value:?} {text}");
        assert_eq!(expected_value(b"user0", "field0", 4), "user");
        assert_eq!(expected_value(b"user0", "field0", 0), "");
    }

    #[test]
    fn random_values_are_printable_and_as_long_as_asked() {
        let mut random = Random::new(1, &[]);
        for length in [0, 1, 9, 10, 11, 100] {
            let value = random_value(length, &mut random);
            assert_eq!(value.len() as u64, length);
            assert!(value.iter().all(|b| (b' '..0x7F).contains(b)));
        }
        assert_ne!(
            random_value(100, &mut random),
            random_value(100, &mut random)
        );
    }
}
