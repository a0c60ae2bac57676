//! Notations of keys and values: in arguments of the command line, and in printed lines.

use anyhow::{Context as _, bail};
use bytes::Bytes;

use crate::terminal::{escaped, is_unprintable};

/// Notation in which keys and values are given as arguments, and printed as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notation {
    /// The text is the key or value. Printed keys have escapes. Printed values have escapes only on
    /// a terminal, so not every printed text can be read back.
    Plain,
    /// Two hexadecimal digits for each byte.
    Hex,
    /// Text with escapes for backslashes, control characters, and bytes that are not UTF-8.
    Escapes,
}

impl Notation {
    /// Converts an argument to bytes. `field` is the name of the argument in errors.
    pub fn read(self, field: &str, text: &str) -> anyhow::Result<Bytes> {
        let read = match self {
            Notation::Plain => Ok(text.as_bytes().to_vec()),
            Notation::Hex => from_hex(text),
            Notation::Escapes => unescaped(text),
        };
        Ok(read.with_context(|| field.to_owned())?.into())
    }

    /// Returns the text that is printed for a key.
    pub fn key(self, key: &[u8]) -> Vec<u8> {
        match self {
            Notation::Plain | Notation::Escapes => invertible(key),
            Notation::Hex => hex(key).into(),
        }
    }

    /// Returns the text that is printed for a value. If the notation is plain and the output is a
    /// terminal, only the characters for which `must_escape` returns true are escaped.
    pub fn value(
        self,
        value: &[u8],
        is_terminal: bool,
        must_escape: impl Fn(char) -> bool,
    ) -> Vec<u8> {
        match self {
            Notation::Plain if is_terminal => escaped(value, must_escape).into(),
            Notation::Plain => value.to_vec(),
            Notation::Hex => hex(value).into(),
            Notation::Escapes => invertible(value),
        }
    }
}

/// Converts bytes to a text on one line, from which [`unescaped`] restores the bytes.
fn invertible(bytes: &[u8]) -> Vec<u8> {
    escaped(bytes, |letter| is_unprintable(letter) || letter == '\\').into()
}

/// Converts a text with escapes to the bytes that it stands for.
fn unescaped(text: &str) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        bytes.extend(before.as_bytes());
        rest = escape(after, &mut bytes).with_context(|| {
            let shown: String = after.chars().take(10).collect();
            format!(
                "'\\{shown}' is no escape; escapes are \\n, \\t, \\r, \\\\, \\xff and \\u{{1b}}"
            )
        })?;
    }
    bytes.extend(rest.as_bytes());
    Ok(bytes)
}

/// Appends the byte or character of one escape to `bytes`. `text` begins after the backslash.
/// Returns the text after the escape; `None` if there is no valid escape.
fn escape<'a>(text: &'a str, bytes: &mut Vec<u8>) -> Option<&'a str> {
    let mut letters = text.chars();
    match letters.next()? {
        'n' => bytes.push(b'\n'),
        't' => bytes.push(b'\t'),
        'r' => bytes.push(b'\r'),
        '\\' => bytes.push(b'\\'),
        'x' => {
            let digits = letters.as_str().get(..2)?;
            bytes.extend(from_hex(digits).ok()?);
            return letters.as_str().get(2..);
        }
        'u' => {
            let (digits, rest) = letters.as_str().strip_prefix('{')?.split_once('}')?;
            let is_number = digits.chars().all(|digit| digit.is_ascii_hexdigit());
            let number = u32::from_str_radix(digits, 16).ok().filter(|_| is_number)?;
            let letter = char::from_u32(number)?;
            bytes.extend(letter.encode_utf8(&mut [0; 4]).as_bytes());
            return Some(rest);
        }
        _ => return None,
    }
    Some(letters.as_str())
}

/// Converts bytes to hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    let digit = |four: u8| char::from_digit(four.into(), 16).unwrap_or_default();
    let digits = bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
    digits.collect()
}

/// Converts hexadecimal digits to bytes.
pub fn from_hex(text: &str) -> anyhow::Result<Vec<u8>> {
    let digit = |letter: char| {
        let four = letter.to_digit(16).map(|four| four as u8);
        four.with_context(|| format!("{letter:?} is no hexadecimal digit; give 0-9 and a-f"))
    };
    let digits: Vec<u8> = text.chars().map(digit).collect::<anyhow::Result<_>>()?;
    let (pairs, odd) = digits.as_chunks();
    if !odd.is_empty() {
        let count = digits.len();
        let noun = if count == 1 { "digit" } else { "digits" };
        bail!("{count} hexadecimal {noun}: an odd number; give two for each byte");
    }
    Ok(pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Returns pseudo-random bytes, in which text, control characters and other bytes are mixed.
    pub fn random_bytes(seed: u64) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state >> 11
        };
        let mut bytes = Vec::new();
        for _ in 0..next() % 24 {
            match next() % 4 {
                0 => bytes.push(next() as u8),
                1 => bytes.push(b"\\nxu{}\t\r\n\x1b\x7f\0"[next() as usize % 12]),
                2 => bytes.extend("é\u{9b}\u{2028}🦀".as_bytes()),
                _ => bytes.extend(format!("\\x{:02x}", next() as u8).as_bytes()),
            }
        }
        bytes
    }

    #[test]
    fn reading_back_is_the_inverse_of_printing() {
        for seed in 0..20_000 {
            let bytes = random_bytes(seed);
            for notation in [Notation::Hex, Notation::Escapes] {
                for is_terminal in [false, true] {
                    let value = notation.value(&bytes, is_terminal, is_unprintable);
                    for text in [notation.key(&bytes), value] {
                        let text = String::from_utf8(text).unwrap();
                        assert!(!text.contains(['\n', '\t']), "{text:?}");
                        assert_eq!(notation.read("key", &text).unwrap(), bytes, "{text:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn hexadecimal_digits_are_read_in_both_cases() {
        assert_eq!(hex(&[0, 0x1f, 0xff]), "001fff");
        assert_eq!(from_hex("001FfF").unwrap(), [0, 0x1f, 0xff]);
        assert!(from_hex("").unwrap().is_empty());
    }

    #[test]
    fn wrong_digits_and_escapes_are_named_with_the_argument() {
        let message = |notation: Notation, text: &str| {
            let error = notation.read("KEY", text).unwrap_err();
            format!("{error:#}")
        };
        assert!(message(Notation::Hex, "abc").starts_with("KEY: 3 hexadecimal digits"));
        assert!(message(Notation::Hex, "0g").starts_with("KEY: 'g' is no hexadecimal"));
        for bad in [
            "\\",
            "\\q",
            "\\x",
            "\\x1",
            "\\xé",
            "\\u",
            "\\u{",
            "\\u{}",
            "\\u{d800}",
            "\\u{+1}x",
        ] {
            let message = message(Notation::Escapes, &format!("a{bad}"));
            assert!(message.starts_with("KEY: '\\"), "{bad}: {message}");
        }
    }

    #[test]
    fn an_escape_may_stand_anywhere() {
        let read = Notation::Escapes
            .read("KEY", "a\\n\\x00\\xFF\\u{e9}\\\\n")
            .unwrap();
        assert_eq!(
            read,
            [b"a\n\0\xff".as_slice(), "é".as_bytes(), b"\\n"].concat()
        );
    }
}
