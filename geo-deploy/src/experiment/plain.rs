//! Descriptions of accepted values in plain words. They replace the names of Rust types in the
//! parser's messages.

/// The parser's names for types, as they appear in its messages. Each name is paired with a
/// description of the accepted values. Longer names are listed first.
const TYPES: [(&str, &str); 17] = [
    ("usize", WHOLE),
    ("u64", WHOLE),
    ("u32", "a whole number from 0 to 4294967295"),
    ("u16", "a whole number from 0 to 65535"),
    ("u8", "a whole number from 0 to 255"),
    ("isize", "a whole number"),
    ("i64", "a whole number"),
    ("i32", "a whole number"),
    ("f64", "a number"),
    ("f32", "a number"),
    ("a boolean", "true or false"),
    ("a borrowed string", TEXT),
    ("a string", TEXT),
    ("string or table", "one of its names"),
    ("a sequence", "a list"),
    ("a map", "a table, as in { JP = 50, CA = 200 }"),
    ("struct ", "a table with fields of its own"),
];
const WHOLE: &str = "a whole number, 0 or more";
const TEXT: &str = "a text";

/// The parser's names for the kind of a found value, as they appear in its messages. Each name is
/// paired with a description.
const FOUND: [(&str, &str); 7] = [
    ("string ", "the text "),
    ("integer ", "the whole number "),
    ("floating point ", "the number "),
    ("boolean ", ""),
    ("sequence", "a list"),
    ("map", "a table"),
    ("datetime", "a date"),
];

/// Rewrites a message of the parser about a wrong value with the descriptions from [`TYPES`] and
/// [`FOUND`]. Other messages are not changed, for example this program's own messages.
pub(super) fn words(message: &str) -> String {
    if let Some((found, expected)) = split(message, "unknown variant ") {
        return format!("there is no {found}, and {expected} is expected");
    }
    let wrong = ["invalid type: ", "invalid value: "];
    let told = wrong.iter().find_map(|begin| split(message, begin));
    let Some((found, expected)) = told else {
        return message.to_owned();
    };
    let found = match FOUND
        .iter()
        .find_map(|(theirs, ours)| Some((ours, found.strip_prefix(theirs)?)))
    {
        Some((ours, rest)) => format!("{ours}{}", rest.replace('`', "")),
        None => found.to_owned(),
    };
    let ours = TYPES
        .iter()
        .find(|(theirs, _)| expected.starts_with(theirs));
    let expected = ours.map_or(expected, |(_, ours)| ours);
    format!("{found} was given, and {expected} is expected")
}

/// Splits a message that starts with `begin` into the found value and the expected value.
fn split<'a>(message: &'a str, begin: &str) -> Option<(&'a str, &'a str)> {
    message.strip_prefix(begin)?.split_once(", expected ")
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn types_are_told_in_plain_words() {
        for (theirs, ours) in [
            (
                "invalid type: string \"many\", expected u64",
                "the text \"many\" was given, and a whole number, 0 or more is expected",
            ),
            (
                "invalid value: integer `-3`, expected u32",
                "the whole number -3 was given, and a whole number from 0 to 4294967295 is expected",
            ),
            (
                "invalid type: boolean `true`, expected f64",
                "true was given, and a number is expected",
            ),
            (
                "invalid type: sequence, expected a string",
                "a list was given, and a text is expected",
            ),
            (
                "unknown variant `zip`, expected `zipf` or `uniform`",
                "there is no `zip`, and `zipf` or `uniform` is expected",
            ),
            ("shares must sum to 1", "shares must sum to 1"),
        ] {
            assert_eq!(words(theirs), ours);
        }
    }
}
