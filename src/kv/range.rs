//! Ranges of keys, and the point at which the next page of a range begins.

use bytes::Bytes;
use leasehold_wire::KEY_BYTES_MAX;

/// Returns the first key after all keys that begin with `prefix`. Returns `None` if there is no such
/// key, because all bytes of the prefix are 0xff.
pub fn prefix_end(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end.into())
}

/// Returns the first possible key after `key`; `None` if there is none.
///
/// A key of the maximum length cannot be extended. So the next key is the first key that does not
/// begin with it.
pub fn key_after(key: &[u8]) -> Option<Bytes> {
    if key.len() < KEY_BYTES_MAX {
        Some([key, &[0]].concat().into())
    } else {
        prefix_end(key)
    }
}

/// The keys that are still to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeysLeft {
    /// The first key.
    pub from: Bytes,
    /// The first key after the range. If it is empty, the range has no end.
    pub to: Bytes,
}

impl KeysLeft {
    /// Returns the range of all keys that begin with `prefix`.
    pub fn of_prefix(prefix: Bytes) -> KeysLeft {
        let to = prefix_end(&prefix).unwrap_or_default();
        KeysLeft { from: prefix, to }
    }

    /// Returns the part of the range after `key`; `None` if no key can be in this part.
    pub fn after(self, key: &[u8]) -> Option<KeysLeft> {
        let from = self.from.max(key_after(key)?);
        let is_empty = !self.to.is_empty() && from >= self.to;
        (!is_empty).then_some(KeysLeft { from, to: self.to })
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        self.from <= key && (self.to.is_empty() || key < self.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_at_the_next_prefix() {
        for (prefix, end) in [
            (&b"users/"[..], Some(&b"users0"[..])),
            (b"a\xff", Some(b"b")),
            (b"a\xff\xff", Some(b"b")),
            (b"\xfe\xff", Some(b"\xff")),
            (b"\xff\xff", None),
            (b"\0", Some(b"\x01")),
            (b"", None),
        ] {
            assert_eq!(prefix_end(prefix).as_deref(), end, "{prefix:?}");
        }
    }

    #[test]
    fn no_key_is_between_a_key_and_the_one_after_it() {
        assert_eq!(key_after(b"a").as_deref(), Some(&b"a\0"[..]));
        let short = vec![b'k'; KEY_BYTES_MAX - 1];
        assert_eq!(key_after(&short).unwrap().len(), KEY_BYTES_MAX);
        // A key of the maximum length cannot be extended.
        let mut long = vec![b'k'; KEY_BYTES_MAX];
        assert_eq!(key_after(&long).unwrap().last(), Some(&b'l'));
        long[10..].fill(0xff);
        assert_eq!(key_after(&long).as_deref(), Some(&b"kkkkkkkkkl"[..]));
        assert_eq!(key_after(&[0xff; KEY_BYTES_MAX]), None);
    }

    #[test]
    fn a_range_ends_after_its_last_possible_key() {
        let users = KeysLeft::of_prefix("users/".into());
        assert!(users.contains(b"users/1") && !users.contains(b"users0"));
        let after = users.clone().after(b"users/1").unwrap();
        assert_eq!(after.from, &b"users/1\0"[..]);
        assert_eq!(users.clone().after(b"a"), Some(users.clone()));
        assert_eq!(users.clone().after(b"v"), None);
        let mut last = vec![0xff; KEY_BYTES_MAX];
        last[..6].copy_from_slice(b"users/");
        assert_eq!(users.after(&last), None);
    }
}
