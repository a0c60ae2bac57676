//! TOML whose nesting is bounded before it is parsed.
//!
//! The parser makes a nested call for every array and table. It has a limit, but
//! malformed tables reset its count, so a file of nothing but brackets would overflow
//! the stack and end the process.

use serde::de::{DeserializeOwned, Error as _};
use toml_parser::Source;
use toml_parser::lexer::TokenKind;

/// Arrays and tables inside each other: more than any of our files needs.
const DEPTH_MAX: usize = 32;

/// Parses a TOML document.
///
/// # Errors
/// Where and why it is not TOML, or not a `T`.
pub fn from_toml<T: DeserializeOwned>(text: &str) -> Result<T, toml::de::Error> {
    if let Some(line) = line_too_deep(text) {
        return Err(toml::de::Error::custom(format!(
            "line {line}: more than {DEPTH_MAX} arrays and tables inside each other"
        )));
    }
    toml::from_str(text)
}

/// The line, from 1, on which the nesting becomes too deep. A bracket that closes
/// nothing is passed over: this count is never below the parser's.
fn line_too_deep(text: &str) -> Option<usize> {
    let mut open = Vec::new();
    for token in Source::new(text).lex() {
        match token.kind() {
            kind @ (TokenKind::LeftSquareBracket | TokenKind::LeftCurlyBracket) => open.push(kind),
            TokenKind::RightSquareBracket => {
                open.pop_if(|last| *last == TokenKind::LeftSquareBracket);
            }
            TokenKind::RightCurlyBracket => {
                open.pop_if(|last| *last == TokenKind::LeftCurlyBracket);
            }
            _ => {}
        }
        if open.len() > DEPTH_MAX {
            let before = text.get(..token.span().start()).unwrap_or(text);
            return Some(before.matches('\n').count() + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn brackets_in_strings_and_comments_are_no_nesting() {
        let brackets = "[{".repeat(100);
        let text = format!("a = \"{brackets}\" # {brackets}\n[b]\n[[c]]\n");
        assert!(from_toml::<toml::Table>(&text).is_ok());
        let many = format!("a = [{}]", "[1, {b = 2}],".repeat(1000));
        assert!(from_toml::<toml::Table>(&many).is_ok());
    }

    /// Each of these tables within a table takes one off what the parser counts.
    #[test]
    fn brackets_that_do_not_match_are_refused_and_not_followed() {
        let text = format!("a = {{{}{}", "{}".repeat(100_000), "b={".repeat(100_000));
        assert!(from_toml::<toml::Table>(&text).is_err());
    }
}
