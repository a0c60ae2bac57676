//! Entries as lines of JSON: `{"key":"k","value":"v","version":"12.0"}`.
//!
//! A key or value that is not UTF-8 has the name `key_hex` or `value_hex`, and consists of
//! hexadecimal digits.

use anyhow::{Context as _, bail};
use bytes::Bytes;
use leasehold_wire::{KEY_BYTES_MAX, PROBE_KEY, VALUE_BYTES_MAX};
use serde::de::{Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer, Serialize};

use super::notation::{Notation, from_hex, hex};
use crate::terminal::is_unprintable;

/// Beginning of each line, with `key` and `key_hex`.
pub const LINE_BEGINNING: &[u8] = b"{\"key";

/// Key, value and version of an entry. A key or value that cannot be text is hexadecimal.
#[derive(Default, Serialize)]
pub struct PrintedLine<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_hex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_hex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'a str>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadLine {
    #[serde(default, deserialize_with = "text")]
    key: Option<String>,
    #[serde(default, deserialize_with = "text")]
    key_hex: Option<String>,
    #[serde(default, deserialize_with = "text")]
    value: Option<String>,
    #[serde(default, deserialize_with = "text")]
    value_hex: Option<String>,
    #[serde(default, rename = "version")]
    _version: Option<IgnoredAny>,
}

/// Reads a field that must be text if it is given.
fn text<'de, D: Deserializer<'de>>(field: D) -> Result<Option<String>, D::Error> {
    let read = Option::deserialize(field)?;
    let refused = || D::Error::custom("key and value must be text, and not null");
    read.map(Some).ok_or_else(refused)
}

impl<'a> PrintedLine<'a> {
    /// Creates an entry. If the notation is hexadecimal, every key and value is printed as digits.
    pub fn new(
        notation: Notation,
        key: &'a [u8],
        value: Option<&'a [u8]>,
        version: Option<&'a str>,
    ) -> PrintedLine<'a> {
        let split = |bytes| match std::str::from_utf8(bytes) {
            Ok(text) if notation != Notation::Hex => (Some(text), None),
            _ => (None, Some(hex(bytes))),
        };
        let (key, key_hex) = split(key);
        let (value, value_hex) = value.map(split).unwrap_or_default();
        PrintedLine {
            key,
            key_hex,
            value,
            value_hex,
            version,
        }
    }
}

/// Appends the line of an entry to `text`. If the notation is hexadecimal, every key and value is
/// printed as digits.
pub fn append_line(
    text: &mut Vec<u8>,
    notation: Notation,
    key: &[u8],
    value: Option<&[u8]>,
    version: Option<&str>,
) -> anyhow::Result<()> {
    append_object(text, &PrintedLine::new(notation, key, value, version))
}

/// Appends an object to `text`, in a line of its own.
pub fn append_object(text: &mut Vec<u8>, object: &impl Serialize) -> anyhow::Result<()> {
    append_printable(text, &serde_json::to_string(object)?);
    text.push(b'\n');
    Ok(())
}

/// Appends JSON to `text`, with escapes for characters that JSON allows and a terminal would
/// obey.
fn append_printable(text: &mut Vec<u8>, json: &str) {
    let mut rest = json;
    while let Some(at) = rest.find(is_unprintable) {
        let (before, after) = rest.split_at(at);
        text.extend(before.as_bytes());
        let mut letters = after.chars();
        let number = letters.next().map_or(0, u32::from);
        text.extend(format!("\\u{number:04x}").as_bytes());
        rest = letters.as_str();
    }
    text.extend(rest.as_bytes());
}

/// Reads the key and the value of a line. The version is ignored.
pub fn read_line(line: &[u8]) -> anyhow::Result<(Bytes, Bytes)> {
    if line.trim_ascii_start().first() != Some(&b'{') {
        bail!("no valid entry: expected an object such as {{\"key\":\"k\",\"value\":\"v\"}}");
    }
    // A line end would be counted as the beginning of another line in errors.
    let read: ReadLine = serde_json::from_slice(line.trim_ascii_end()).map_err(|error| {
        let words = error.to_string();
        let words = words.replace(" at line 1 column ", ", at byte ");
        anyhow::anyhow!("no valid entry: {words}")
    })?;
    let key = one_of("key", read.key, read.key_hex)?;
    let value = one_of("value", read.value, read.value_hex)?;
    if key.is_empty() {
        bail!("key: it is empty; a key has 1 to {KEY_BYTES_MAX} bytes");
    }
    if key.len() > KEY_BYTES_MAX {
        let found = key.len();
        bail!("key: it has {found} bytes; a key has at most {KEY_BYTES_MAX}");
    }
    if key == PROBE_KEY {
        bail!("key: it is reserved, and cannot be written; remove the line");
    }
    if value.len() > VALUE_BYTES_MAX {
        let found = value.len();
        bail!("value: it has {found} bytes; a value has at most {VALUE_BYTES_MAX}");
    }
    Ok((key, value))
}

fn one_of(name: &str, text: Option<String>, digits: Option<String>) -> anyhow::Result<Bytes> {
    match (text, digits) {
        (Some(text), None) => Ok(text.into()),
        (None, Some(digits)) => {
            let bytes = from_hex(&digits).with_context(|| format!("{name}_hex"))?;
            Ok(bytes.into())
        }
        (None, None) => bail!("the {name} is missing; give \"{name}\" or \"{name}_hex\""),
        (Some(_), Some(_)) => bail!("it has both \"{name}\" and \"{name}_hex\"; give one of them"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::notation::tests::random_bytes;

    fn line(notation: Notation, key: &[u8], value: Option<&[u8]>) -> String {
        let mut text = Vec::new();
        append_line(&mut text, notation, key, value, Some("12.0")).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn what_is_not_text_is_printed_as_digits() {
        let plain = |key, value| line(Notation::Plain, key, value);
        assert_eq!(
            plain(b"k\"\n", Some(b"")),
            "{\"key\":\"k\\\"\\n\",\"value\":\"\",\"version\":\"12.0\"}\n"
        );
        assert_eq!(
            plain(b"\xff\0", Some(b"\x80")),
            "{\"key_hex\":\"ff00\",\"value_hex\":\"80\",\"version\":\"12.0\"}\n"
        );
        assert_eq!(
            plain("\u{7f}\u{9b}".as_bytes(), None),
            "{\"key\":\"\\u007f\\u009b\",\"version\":\"12.0\"}\n"
        );
        assert_eq!(
            line(Notation::Hex, b"k", Some(b"v")),
            "{\"key_hex\":\"6b\",\"value_hex\":\"76\",\"version\":\"12.0\"}\n"
        );
    }

    #[test]
    fn a_line_is_read_as_it_was_printed() {
        for seed in 0..5_000 {
            let key = [b"k".to_vec(), random_bytes(seed)].concat();
            let value = random_bytes(seed + 100_000);
            for notation in [Notation::Plain, Notation::Hex, Notation::Escapes] {
                let text = line(notation, &key, Some(&value));
                assert_eq!(text.find(is_unprintable), Some(text.len() - 1));
                let read = read_line(text.as_bytes()).unwrap();
                assert_eq!(read, (key.clone().into(), value.clone().into()));
            }
        }
    }

    #[test]
    fn the_problem_of_a_line_is_named() {
        let too_long = format!("{{\"key\":\"{}\",\"value\":\"\"}}", "k".repeat(4097));
        let reserved = format!(
            "{{\"key_hex\":\"{}\",\"value\":\"\"}}",
            hex(PROBE_KEY.as_bytes())
        );
        let too_large = format!("{{\"key\":\"k\",\"value\":\"{}\"}}", "v".repeat(1_048_577));
        for (line, problem) in [
            ("{\"key\":\"k\",\"val", "no valid entry: EOF"),
            ("{\"key\":\"k\"\n", "at byte"),
            ("[\"k\",null,\"v\",null]", "expected an object"),
            ("17", "expected an object"),
            ("", "expected an object"),
            ("{\"key\":\"k\",\"vlue\":\"v\"}", "unknown field `vlue`"),
            (
                "{\"key\":\"k\",\"key\":\"k\",\"value\":\"v\"}",
                "duplicate field `key`",
            ),
            (
                "{\"key\":1,\"value\":\"v\"}",
                "expected a string, at byte 8",
            ),
            (
                "{\"key\":\"k\",\"value\":null}",
                "no valid entry: key and value must be text, and not null, at byte",
            ),
            ("{\"value\":\"v\"}", "the key is missing"),
            (&reserved, "key: it is reserved"),
            (
                "{\"key\":\"k\",\"version\":\"1.0\"}",
                "the value is missing",
            ),
            ("{\"key\":\"k\",\"key_hex\":\"00\",\"value\":\"v\"}", "both"),
            (
                "{\"key_hex\":\"000\",\"value\":\"v\"}",
                "key_hex: 3 hexadecimal digits",
            ),
            (
                "{\"key\":\"k\",\"value_hex\":\"0x\"}",
                "value_hex: 'x' is no",
            ),
            ("{\"key\":\"\",\"value\":\"v\"}", "key: it is empty"),
            (&too_long, "key: it has 4097 bytes"),
            (&too_large, "value: it has 1048577 bytes"),
        ] {
            let error = format!("{:#}", read_line(line.as_bytes()).unwrap_err());
            assert!(error.contains(problem), "{problem:?} is not in {error:?}");
        }
        assert!(read_line(b"{\"key\":\"\xff\",\"value\":\"v\"}").is_err());
        let other = b" {\"version\":7,\"value\":\"v\",\"key\":\"\\u006b\"}\r";
        assert_eq!(read_line(other).unwrap(), ("k".into(), "v".into()));
    }
}
