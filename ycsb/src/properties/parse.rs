//! Syntax of Java's `.properties` files, as `java.util.Properties` reads it.

/// One `key=value` of a file and the line on which it begins, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PropertyLine {
    pub number: usize,
    pub key: String,
    pub value: String,
}

/// Error: the line has a malformed escape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadEscape {
    pub line: usize,
}

/// Splits the text of a file into its properties, in order. Returns an error only for a `\u`
/// without four hexadecimal digits, or with only one half of a surrogate pair.
pub(super) fn parse(text: &str) -> Result<Vec<PropertyLine>, BadEscape> {
    logical_lines(text)
        .into_iter()
        .map(|(number, line)| {
            let (key, value) = split(&line);
            let decode = |raw| unescape(raw).ok_or(BadEscape { line: number });
            Ok(PropertyLine {
                number,
                key: decode(key)?,
                value: decode(value)?,
            })
        })
        .collect()
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\x0C')
}

/// Joins continued lines, and omits blank lines and comments.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (number, natural) in natural_lines(text) {
        let line = natural.trim_start_matches(is_blank);
        if open.is_none() && (line.is_empty() || line.starts_with(['#', '!'])) {
            continue;
        }
        let (start, mut joined) = open.take().unwrap_or((number, String::new()));
        match continued(line) {
            Some(part) => {
                joined.push_str(part);
                open = Some((start, joined));
            }
            None => {
                joined.push_str(line);
                lines.push((start, joined));
            }
        }
    }
    lines.extend(open.filter(|(_, line)| !line.is_empty()));
    lines
}

/// Returns the lines of a text, numbered from 1. A line ends with LF, CR or both.
fn natural_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.split('\n')
        .map(|line| line.strip_suffix('\r').unwrap_or(line))
        .flat_map(|line| line.split('\r'))
        .enumerate()
        .map(|(index, line)| (index + 1, line))
}

/// Returns the line without its last backslash, if this backslash continues the line; otherwise
/// `None`. If the line ends with an even number of backslashes, they are escaped backslashes, and
/// the line ends here.
fn continued(line: &str) -> Option<&str> {
    let backslashes = line.bytes().rev().take_while(|&b| b == b'\\').count();
    (backslashes % 2 == 1).then(|| &line[..line.len() - 1])
}

/// Splits a line at the first unescaped `=`, `:` or blank. The separator belongs to neither part.
/// The separator consists of all blanks between the two parts, and of one `=` or `:` if there is
/// one.
fn split(line: &str) -> (&str, &str) {
    let mut escaped = false;
    let end = line.char_indices().find_map(|(at, c)| {
        let ends = !escaped && (matches!(c, '=' | ':') || is_blank(c));
        escaped = !escaped && c == '\\';
        ends.then_some(at)
    });
    let Some(end) = end else { return (line, "") };
    let (key, rest) = line.split_at(end);
    let rest = rest.trim_start_matches(is_blank);
    let value = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (key, value.trim_start_matches(is_blank))
}

fn unescape(raw: &str) -> Option<String> {
    if !raw.contains('\\') {
        return Some(raw.to_owned());
    }
    // Java's characters are UTF-16 units, so a pair of escapes may form one character.
    let mut units: Vec<u16> = Vec::with_capacity(raw.len());
    let mut chars = raw.chars();
    while let Some(c) = chars.next() {
        let c = if c == '\\' {
            chars.next()?
        } else {
            push(&mut units, c);
            continue;
        };
        match c {
            't' => push(&mut units, '\t'),
            'n' => push(&mut units, '\n'),
            'r' => push(&mut units, '\r'),
            'f' => push(&mut units, '\x0C'),
            'u' => units.push(hex_unit(&mut chars)?),
            other => push(&mut units, other),
        }
    }
    String::from_utf16(&units).ok()
}

fn push(units: &mut Vec<u16>, c: char) {
    units.extend_from_slice(c.encode_utf16(&mut [0; 2]));
}

fn hex_unit(chars: &mut std::str::Chars<'_>) -> Option<u16> {
    (0..4).try_fold(0u16, |unit, _| {
        let digit = chars.next()?.to_digit(16)?;
        Some(unit << 4 | digit as u16)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pairs(text: &str) -> Vec<(usize, String, String)> {
        let lines = parse(text).unwrap();
        lines
            .into_iter()
            .map(|l| (l.number, l.key, l.value))
            .collect()
    }

    fn one(text: &str) -> (String, String) {
        let mut pairs = pairs(text);
        assert_eq!(pairs.len(), 1, "{pairs:?}");
        let (_, key, value) = pairs.remove(0);
        (key, value)
    }

    #[test]
    fn all_separators_mean_the_same() {
        for text in ["a=b", "a:b", "a b", " a = b", "a\t:\tb", "a\x0Cb", "a   =b"] {
            assert_eq!(one(text), ("a".into(), "b".into()), "{text:?}");
        }
        assert_eq!(one("a==b"), ("a".into(), "=b".into()));
        assert_eq!(one("a"), ("a".into(), String::new()));
        assert_eq!(
            one("a b c "),
            ("a".into(), "b c ".into()),
            "trailing blanks stay"
        );
    }

    #[test]
    fn comments_and_blank_lines_are_nothing() {
        let text = "# one\n\n  ! two\r\na=1 # not a comment\n \t\n";
        assert_eq!(pairs(text), [(4, "a".into(), "1 # not a comment".into())]);
    }

    #[test]
    fn continued_lines_join_without_their_indentation() {
        let text = "fruits = apple, \\\n    banana, \\\n  # pear\nnext=1";
        assert_eq!(
            pairs(text),
            [
                (1, "fruits".into(), "apple, banana, # pear".into()),
                (4, "next".into(), "1".into())
            ]
        );
        assert_eq!(one("path=c\\\\"), ("path".into(), "c\\".into()));
        assert_eq!(one("a=1\\"), ("a".into(), "1".into()), "the file ends here");
    }

    #[test]
    fn escapes() {
        assert_eq!(
            one(r"a\ b\=c=\tx\u0041\q"),
            ("a b=c".into(), "\txAq".into())
        );
        assert_eq!(one(r"smile=\uD83D\uDE00"), ("smile".into(), "😀".into()));
        assert_eq!(parse("ok=1\nbad=\\u00g1"), Err(BadEscape { line: 2 }));
        assert_eq!(parse(r"half=\uD83D"), Err(BadEscape { line: 1 }));
    }

    #[test]
    fn line_ends_of_all_systems() {
        assert_eq!(pairs("a=1\r\nb=2\rc=3\n").len(), 3);
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "(\\PC|[\\\\\n\r=: #u0-9]){0,80}") {
            let _ = parse(&text);
        }

        #[test]
        fn plain_pairs_survive(key in "[a-z.]{1,12}", value in "[a-z0-9/.,]{0,12}") {
            prop_assert_eq!(one(&format!("{key}={value}")), (key, value));
        }
    }
}
