//! Parser of TOML that checks the nesting depth of a text before it parses the text.
//!
//! The TOML library makes a nested call for every array and table. It has a limit of its own, but
//! malformed tables reset its count. So a file that contains only brackets would overflow the stack
//! and end the process.

use leasehold_wire::TOKEN_MARK;
use serde::de::{DeserializeOwned, Error as _};
use toml_parser::Source;
use toml_parser::lexer::TokenKind;

/// Maximum nesting depth of a document. Arrays, tables and the parts of dotted keys count. No file
/// of Leasehold needs this depth. The header of a table may add the same depth again. The TOML
/// library accepts a total depth of 80.
const DEPTH_MAX: usize = 32;

/// Parses a TOML document.
///
/// # Errors
/// Fails if the text is not TOML or not a `T`. The error contains the position and the reason. The
/// error never shows a client's token, even if the text contains a token by mistake.
pub fn from_toml<T: DeserializeOwned>(text: &str) -> Result<T, toml::de::Error> {
    if let Some(line) = line_too_deep(text) {
        return Err(toml::de::Error::custom(format!(
            "line {line}: more than {DEPTH_MAX} arrays, tables and dotted names inside each other; \
             nothing that may be written here is so deep: take some of them away"
        )));
    }
    toml::from_str(text).map_err(|error| {
        let said = error.to_string();
        match without_tokens(&said) {
            shown if shown == said => error,
            shown => toml::de::Error::custom(shown.trim_end()),
        }
    })
}

/// Removes the parts of an error message that may be a client's token. The removal is necessary,
/// because such a message quotes a line of the file, and messages go into logs.
fn without_tokens(said: &str) -> String {
    let mut parts = said.split(TOKEN_MARK);
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_alphanumeric());
        shown += TOKEN_MARK;
        shown += if rest.len() < part.len() { "..." } else { "" };
        shown += rest;
    }
    shown
}

/// Brackets and dots that are open at some position of a document.
#[derive(Default)]
struct OpenBrackets {
    /// Kind of each open bracket, and the number of dots directly before the bracket.
    brackets: Vec<(TokenKind, usize)>,
    /// Number of dots since the last bracket, comma or line end.
    dots: usize,
    depth: usize,
}

impl OpenBrackets {
    /// Moves past one token of the document. A closing bracket that does not match the last open
    /// bracket is ignored. So the depth counted here is never lower than the depth that the TOML
    /// library counts.
    fn pass(&mut self, token: TokenKind) {
        match token {
            TokenKind::Dot => {
                self.dots += 1;
                self.depth += 1;
            }
            TokenKind::LeftSquareBracket | TokenKind::LeftCurlyBracket => {
                self.brackets.push((token, self.dots));
                self.dots = 0;
                self.depth += 1;
            }
            TokenKind::RightSquareBracket => self.close(TokenKind::LeftSquareBracket),
            TokenKind::RightCurlyBracket => self.close(TokenKind::LeftCurlyBracket),
            TokenKind::Comma | TokenKind::Newline => self.forget_dots(),
            _ => {}
        }
    }

    fn close(&mut self, opened: TokenKind) {
        if let Some((_, before)) = self.brackets.pop_if(|(last, _)| *last == opened) {
            self.forget_dots();
            self.depth -= before + 1;
        }
    }

    fn forget_dots(&mut self) {
        self.depth -= std::mem::take(&mut self.dots);
    }
}

/// Returns the number of the line on which the nesting becomes too deep. Lines are numbered from 1.
fn line_too_deep(text: &str) -> Option<usize> {
    let mut open = OpenBrackets::default();
    for token in Source::new(text).lex() {
        open.pass(token.kind());
        if open.depth > DEPTH_MAX {
            let before = text.get(..token.span().start()).unwrap_or(text);
            return Some(before.matches('\n').count() + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No error message shows a token, even if an operator writes a token in the wrong place. For
    /// example, the operator may confuse a token with its digest, or a client's file with the token
    /// file.
    #[test]
    fn no_error_shows_a_token() {
        let token = format!("lh_{}", "5a".repeat(32));
        for text in [
            token.clone(),
            format!("token = \"{token}\"\n"),
            format!("[[token]]\nname = \"a\" {token}\n"),
            format!("a = 1\n{token} = \"{token}\" x\n"),
        ] {
            let error = super::from_toml::<std::collections::BTreeMap<String, u8>>(&text);
            let said = error.unwrap_err().to_string();
            assert!(!said.contains("5a"), "{said}");
            assert!(said.contains("lh_..."), "{said}");
        }
    }

    fn nested(depth: usize) -> String {
        format!("a = 1\nb = {}{}", "[".repeat(depth), "]".repeat(depth))
    }

    #[test]
    fn the_limit_itself_is_accepted_and_one_more_is_not() {
        assert!(from_toml::<toml::Table>(&nested(DEPTH_MAX)).is_ok());
        let error = from_toml::<toml::Table>(&nested(DEPTH_MAX + 1)).unwrap_err();
        assert!(
            error.to_string().contains("line 2: more than 32"),
            "{error}"
        );
    }

    /// A dotted name may have the maximum depth even if the header above it also has the maximum
    /// depth.
    #[test]
    fn dotted_names_count_as_the_tables_that_they_are() {
        let dots = |count: usize| "k.".repeat(count);
        let fits = [
            format!("{}k = 1\n", dots(DEPTH_MAX)),
            format!("[{}k]\n{}k = 1\n", dots(DEPTH_MAX - 1), dots(DEPTH_MAX)),
            format!("{}k = {{ {}k = [1] }}\n", dots(20), dots(DEPTH_MAX - 22)),
            "[[a.b]]\nc.d = [[1.5, 2.5], [3.5]]\ne.f = { g.h = 1 }\n".repeat(1000),
        ];
        for text in fits {
            assert!(from_toml::<toml::Table>(&text).is_ok(), "{text}");
        }
        for line in [
            format!("{}k = 1", dots(DEPTH_MAX + 1)),
            format!("[[{}k]]", dots(DEPTH_MAX - 1)),
            format!("a = {{ {}k = 1 }}", dots(DEPTH_MAX)),
            format!("{}k = {{ {}k = 1 }}", dots(20), dots(DEPTH_MAX - 20)),
            format!("{}k = 1", dots(1_000_000)),
        ] {
            let error = from_toml::<toml::Table>(&format!("a = 1\n{line}\n")).unwrap_err();
            assert!(error.to_string().contains("line 2: more"), "{error}");
            assert!(error.to_string().contains("take some"), "{error}");
        }
    }

    #[test]
    fn brackets_in_strings_and_comments_are_no_nesting() {
        let brackets = "[{".repeat(100);
        let text = format!("a = \"{brackets}\" # {brackets}\n[b]\n[[c]]\n");
        assert!(from_toml::<toml::Table>(&text).is_ok());
        let many = format!("a = [{}]", "[1, {b = 2}],".repeat(1000));
        assert!(from_toml::<toml::Table>(&many).is_ok());
    }

    /// The text contains many malformed tables. At each of them, the TOML library lowers its own
    /// count of the depth. So this count never reaches its limit.
    #[test]
    fn brackets_that_do_not_match_are_refused_and_not_followed() {
        let text = format!("a = {{{}{}", "{}".repeat(100_000), "b={".repeat(100_000));
        assert!(from_toml::<toml::Table>(&text).is_err());
    }
}
