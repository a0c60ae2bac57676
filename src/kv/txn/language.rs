//! The language of `kv txn`: `if version a = 12.0 and absent b then put a 1; add n 5 else get a`.
//!
//! Words are separated by spaces, and operations by `;` or line ends. Double quotes enclose a word
//! with escapes, single quotes a word without escapes. All other words are keys and values in the
//! notation of the command line.

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use leasehold_wire::comparison::Condition;
use leasehold_wire::txn_op::Op as Operation;
use leasehold_wire::{
    Comparison, Delete, Field, Get, KEY_BYTES_MAX, Put, PutFields, Txn, TxnOp, Version,
};

use crate::kv::notation::{Notation, hex};
use crate::kv::single::{read_version, shown};
use crate::terminal::escaped;

/// Words that end a comparison or an operation. As a key or value, such a word needs quotes.
const RESERVED: [&str; 4] = ["if", "and", "then", "else"];
/// Forms of comparisons and of operations. Each form begins with its name. The number is the
/// maximum number of words that the form has.
const COMPARISONS: [(&str, usize); 4] = [
    ("version KEY = VERSION", 4),
    ("value KEY = VALUE (or < <= > >=)", 4),
    ("present KEY", 2),
    ("absent KEY", 2),
];
const OPERATIONS: [(&str, usize); 7] = [
    ("get KEY", 2),
    ("put KEY VALUE", 3),
    ("del KEY", 2),
    ("add KEY NUMBER", 3),
    ("append KEY SUFFIX", 3),
    ("put_fields KEY NAME VALUE [NAME VALUE]...", usize::MAX),
    ("del_fields KEY NAME [NAME]...", usize::MAX),
];

/// Parses a transaction. Errors name the line and the column.
pub fn parse(text: &str, notation: Notation) -> anyhow::Result<Txn> {
    let mut lexer = Lexer::new(text);
    let mut tokens = Vec::new();
    while let Some(token) = lexer.next_token()? {
        tokens.push(token);
    }
    let parser = Parser {
        tokens: &tokens,
        end: lexer.place,
        notation,
    };
    parser.txn()
}

/// Returns the name of an operation in the language.
pub fn name(operation: &Operation) -> &'static str {
    match operation {
        Operation::Get(_) => "get",
        Operation::Put(_) => "put",
        Operation::Delete(_) => "del",
        Operation::PutFields(_) => "put_fields",
        Operation::DeleteFields(_) => "del_fields",
        Operation::Add(_) => "add",
        Operation::Append(_) => "append",
    }
}

/// Returns the text of a comparison in the language.
pub fn comparison_text(comparison: &Comparison, notation: Notation) -> String {
    let key = word(&comparison.key, notation);
    let (sign, value) = match &comparison.condition {
        Some(Condition::Version(version)) => {
            return format!("version {key} = {}", shown(Some(version)));
        }
        Some(Condition::Present(true)) => return format!("present {key}"),
        Some(Condition::Present(false)) | None => return format!("absent {key}"),
        Some(Condition::Equal(value)) => ("=", value),
        Some(Condition::Less(value)) => ("<", value),
        Some(Condition::AtMost(value)) => ("<=", value),
        Some(Condition::Greater(value)) => (">", value),
        Some(Condition::AtLeast(value)) => (">=", value),
    };
    format!("value {key} {sign} {}", word(value, notation))
}

/// Returns the text of a key or value: without quotes, if it needs none.
pub fn word(bytes: &[u8], notation: Notation) -> String {
    if notation == Notation::Hex && !bytes.is_empty() {
        return hex(bytes);
    }
    let is_plain = |text: &str| {
        let special = |letter: char| {
            letter.is_whitespace() || letter.is_control() || "\"';\\".contains(letter)
        };
        !text.is_empty() && !text.contains(special) && !RESERVED.contains(&text)
    };
    match std::str::from_utf8(bytes) {
        Ok(text) if is_plain(text) => text.to_owned(),
        _ => {
            let must_escape = |letter: char| letter.is_control() || "\\\"".contains(letter);
            format!("\"{}\"", escaped(bytes, must_escape))
        }
    }
}

/// Line and column of a character. The first line and the first column have the number 1.
#[derive(Clone, Copy)]
struct TextPlace {
    line: usize,
    column: usize,
}

impl TextPlace {
    fn error(self, message: impl std::fmt::Display) -> anyhow::Error {
        anyhow!("line {}, column {}: {message}", self.line, self.column)
    }
}

/// A word or the end of an operation.
struct Token {
    place: TextPlace,
    kind: TokenKind,
}

enum TokenKind {
    /// A word without quotes.
    Bare(String),
    /// The contents of a word in quotes, after the escapes were replaced.
    Quoted(Bytes),
    /// `;` or a line end.
    Separator,
}

impl Token {
    /// Returns the text of a word without quotes; `None` for other tokens.
    fn bare(&self) -> Option<&str> {
        match &self.kind {
            TokenKind::Bare(text) => Some(text),
            TokenKind::Quoted(_) | TokenKind::Separator => None,
        }
    }

    fn is_reserved(&self) -> bool {
        self.bare().is_some_and(|text| RESERVED.contains(&text))
    }

    fn is_separator(&self) -> bool {
        matches!(self.kind, TokenKind::Separator)
    }

    /// Returns the token as it is quoted in errors.
    fn quoted(&self) -> String {
        match &self.kind {
            TokenKind::Bare(text) => format!("'{text}'"),
            TokenKind::Quoted(bytes) => word(bytes, Notation::Plain),
            TokenKind::Separator => "`;` or a line end".to_owned(),
        }
    }
}

/// Splits a text into words.
struct Lexer<'a> {
    letters: std::iter::Peekable<std::str::Chars<'a>>,
    /// Place of the next character.
    place: TextPlace,
}

impl<'a> Lexer<'a> {
    fn new(text: &'a str) -> Lexer<'a> {
        Lexer {
            letters: text.chars().peekable(),
            place: TextPlace { line: 1, column: 1 },
        }
    }

    fn take(&mut self) -> Option<char> {
        let letter = self.letters.next()?;
        if letter == '\n' {
            self.place = TextPlace {
                line: self.place.line + 1,
                column: 1,
            };
        } else {
            self.place.column += 1;
        }
        Some(letter)
    }

    fn next_token(&mut self) -> anyhow::Result<Option<Token>> {
        // A comment is a line that begins with `#`, after any spaces.
        let is_line_start = self.place.column == 1;
        loop {
            let place = self.place;
            let kind = match self.letters.peek() {
                None => return Ok(None),
                Some('#') if is_line_start => {
                    while self.letters.next_if(|letter| *letter != '\n').is_some() {}
                    continue;
                }
                Some('\n' | ';') => {
                    self.take();
                    TokenKind::Separator
                }
                Some(letter) if letter.is_whitespace() => {
                    self.take();
                    continue;
                }
                Some('"') => TokenKind::Quoted(self.in_quotes('"')?),
                Some('\'') => TokenKind::Quoted(self.in_quotes('\'')?),
                Some(_) => TokenKind::Bare(self.bare()?),
            };
            return Ok(Some(Token { place, kind }));
        }
    }

    fn bare(&mut self) -> anyhow::Result<String> {
        let begin = self.place;
        let mut text = String::new();
        let is_end = |letter: &char| letter.is_whitespace() || *letter == ';';
        while let Some(letter) = self
            .letters
            .peek()
            .copied()
            .filter(|letter| !is_end(letter))
        {
            text.push(letter);
            self.take();
        }
        if text.contains(['"', '\'']) {
            return Err(begin.error(format!(
                "the word {text} has a quote in it; put the whole word in quotes: {}",
                word(text.as_bytes(), Notation::Plain)
            )));
        }
        Ok(text)
    }

    /// Returns the contents of a word in quotes. Only double quotes allow escapes.
    fn in_quotes(&mut self, quote: char) -> anyhow::Result<Bytes> {
        let begin = self.place;
        self.take();
        let mut text = String::new();
        loop {
            match self.take() {
                None => {
                    let message = format!("the quote {quote} is not closed; write another {quote}");
                    return Err(begin.error(message));
                }
                Some(letter) if letter == quote => break,
                Some('\\') if quote == '"' => match self.letters.peek() {
                    Some('"') => {
                        self.take();
                        text.push_str("\\x22");
                    }
                    Some('\\') => {
                        self.take();
                        text.push_str("\\\\");
                    }
                    _ => text.push('\\'),
                },
                Some(letter) => text.push(letter),
            }
        }
        let next = self.letters.peek();
        if next.is_some_and(|letter| !letter.is_whitespace() && *letter != ';') {
            let message = "a space is missing after the closing quote";
            return Err(self.place.error(message));
        }
        if quote == '\'' {
            return Ok(text.into());
        }
        let read = Notation::Escapes.read("a word in quotes", &text);
        read.with_context(|| format!("line {}, column {}", begin.line, begin.column))
    }
}

/// Remaining tokens of a transaction.
struct Parser<'a> {
    tokens: &'a [Token],
    /// Place of the end of the text.
    end: TextPlace,
    notation: Notation,
}

impl<'a> Parser<'a> {
    /// Returns the place of the next token.
    fn place(&self) -> TextPlace {
        self.tokens.first().map_or(self.end, |token| token.place)
    }

    fn skip_separators(&mut self) {
        let count = self
            .tokens
            .iter()
            .take_while(|it| it.is_separator())
            .count();
        self.tokens = &self.tokens[count..];
    }

    /// Takes the next word if it is `keyword`. Separators before it are ignored.
    fn takes(&mut self, keyword: &str) -> bool {
        self.skip_separators();
        let is_next = self.tokens.first().and_then(Token::bare) == Some(keyword);
        if is_next {
            self.tokens = &self.tokens[1..];
        }
        is_next
    }

    /// Takes the words up to a separator, a reserved word or the end.
    fn take_words(&mut self) -> &'a [Token] {
        let is_word = |token: &&Token| !token.is_separator() && !token.is_reserved();
        let count = self.tokens.iter().take_while(is_word).count();
        let (words, rest) = self.tokens.split_at(count);
        self.tokens = rest;
        words
    }

    /// Returns an error about the next token.
    fn unexpected(&self, wanted: &str) -> anyhow::Error {
        let found = match self.tokens.first() {
            Some(token) => token.quoted(),
            None => "the end of the text".to_owned(),
        };
        self.place().error(format!("found {found}, but {wanted}"))
    }

    fn txn(mut self) -> anyhow::Result<Txn> {
        let mut txn = Txn::default();
        let is_conditional = self.takes("if");
        if is_conditional {
            loop {
                txn.comparisons.push(self.comparison()?);
                if self.takes("then") {
                    break;
                }
                if !self.takes("and") {
                    return Err(self.unexpected("`and` or `then` must follow a comparison"));
                }
            }
        }
        txn.then = self.operations()?;
        let place = self.place();
        if self.takes("else") {
            if !is_conditional {
                let message = "`else` needs comparisons; begin with `if … then`";
                return Err(place.error(message));
            }
            txn.or_else = self.operations()?;
        }
        if !self.tokens.is_empty() {
            return Err(self.unexpected("an operation must begin here"));
        }
        if txn.then.is_empty() && txn.or_else.is_empty() {
            let message = "there is no operation; write one, such as get KEY";
            return Err(self.end.error(message));
        }
        Ok(txn)
    }

    fn comparison(&mut self) -> anyhow::Result<Comparison> {
        self.skip_separators();
        let words = self.take_words();
        let Some((first, arguments)) = words.split_first() else {
            return Err(self.unexpected("a comparison must begin here"));
        };
        let (key, condition) = match (first.bare(), arguments) {
            (Some("present"), [key]) => (key, Condition::Present(true)),
            (Some("absent"), [key]) => (key, Condition::Present(false)),
            (Some("version"), [key, sign, version]) => {
                if sign.bare() != Some("=") {
                    let found = sign.quoted();
                    return Err(sign
                        .place
                        .error(format!("found {found}, but = must follow the key")));
                }
                (key, Condition::Version(version_of(version)?))
            }
            (Some("value"), [key, sign, value]) => {
                let value = self.bytes(value)?;
                let condition = match sign.bare() {
                    Some("=") => Condition::Equal(value),
                    Some("<") => Condition::Less(value),
                    Some("<=") => Condition::AtMost(value),
                    Some(">") => Condition::Greater(value),
                    Some(">=") => Condition::AtLeast(value),
                    _ => {
                        let found = sign.quoted();
                        let message = format!("{found} is not one of the signs = < <= > >=");
                        return Err(sign.place.error(message));
                    }
                };
                (key, condition)
            }
            _ => return Err(self.misformed(words, &COMPARISONS, "comparison")),
        };
        Ok(Comparison {
            key: self.key(key)?,
            condition: Some(condition),
        })
    }

    /// Parses operations up to `else` or the end.
    fn operations(&mut self) -> anyhow::Result<Vec<TxnOp>> {
        let mut operations = Vec::new();
        loop {
            self.skip_separators();
            let words = self.take_words();
            if words.is_empty() {
                return Ok(operations);
            }
            operations.push(self.operation(words)?.into());
        }
    }

    fn operation(&self, words: &'a [Token]) -> anyhow::Result<Operation> {
        let (first, arguments) = (words[0].bare(), &words[1..]);
        Ok(match (first, arguments) {
            (Some("get"), [key]) => Operation::Get(Get {
                key: self.key(key)?,
            }),
            (Some("put"), [key, value]) => Operation::Put(Put {
                key: self.key(key)?,
                value: self.bytes(value)?,
            }),
            (Some("del"), [key]) => Operation::Delete(Delete {
                key: self.key(key)?,
            }),
            (Some("add"), [key, delta]) => {
                let number = delta.bare().and_then(|text| text.parse().ok());
                let number = number.ok_or_else(|| {
                    let found = delta.quoted();
                    let message = format!("add: {found} is no integer of 64 bits");
                    delta.place.error(message)
                });
                Operation::add(self.key(key)?, number?)
            }
            (Some("append"), [key, suffix]) => {
                Operation::append(self.key(key)?, self.bytes(suffix)?)
            }
            (Some("put_fields"), [key, fields @ ..])
                if !fields.is_empty() && fields.len() % 2 == 0 =>
            {
                let field = |pair: &[Token]| {
                    let (name, value) = (self.bytes(&pair[0])?, self.bytes(&pair[1])?);
                    Ok(Field { name, value })
                };
                let fields = fields.chunks(2).map(field);
                Operation::PutFields(PutFields {
                    key: self.key(key)?,
                    fields: fields.collect::<anyhow::Result<_>>()?,
                })
            }
            (Some("del_fields"), [key, names @ ..]) if !names.is_empty() => {
                let names = names.iter().map(|name| self.bytes(name));
                let names = names.collect::<anyhow::Result<_>>()?;
                Operation::delete_fields(self.key(key)?, names)
            }
            _ => return Err(self.misformed(words, &OPERATIONS, "operation")),
        })
    }

    fn bytes(&self, token: &Token) -> anyhow::Result<Bytes> {
        match &token.kind {
            TokenKind::Bare(text) => {
                let read = self.notation.read(&token.quoted(), text);
                let TextPlace { line, column } = token.place;
                read.with_context(|| format!("line {line}, column {column}"))
            }
            TokenKind::Quoted(bytes) => Ok(bytes.clone()),
            TokenKind::Separator => Ok(Bytes::new()),
        }
    }

    fn key(&self, token: &Token) -> anyhow::Result<Bytes> {
        let key = self.bytes(token)?;
        let found = key.len();
        if (1..=KEY_BYTES_MAX).contains(&found) {
            return Ok(key);
        }
        let message = format!("the key has {found} bytes; a key has 1 to {KEY_BYTES_MAX}");
        Err(token.place.error(message))
    }

    /// Builds the error for words that have none of the forms. If the first word is the name of a
    /// form, the error names this form.
    fn misformed(&self, words: &[Token], forms: &[(&str, usize)], noun: &str) -> anyhow::Error {
        let name = |form: &str| form.split(' ').next().unwrap_or_default().to_owned();
        let mut found = forms.iter();
        let found = found.find(|(form, _)| words[0].bare() == Some(&name(form)));
        let Some((form, count)) = found else {
            let names: Vec<_> = forms.iter().map(|(form, _)| name(form)).collect();
            let (found, names) = (words[0].quoted(), names.join(", "));
            let message = format!("{found} is no {noun}; the {noun}s are {names}");
            return words[0].place.error(message);
        };
        if let Some(extra) = words.get(*count) {
            let found = extra.quoted();
            let end = match noun {
                "comparison" => "`and` or `then`",
                _ => "; or a line end",
            };
            return extra.place.error(format!(
                "{found} is one word too many; write {form}, and after it {end}. A word with spaces needs quotes"
            ));
        }
        let next = self.tokens.first().filter(|token| token.is_reserved());
        let hint = next.and_then(Token::bare).map_or(String::new(), |text| {
            format!("; as a key or value, write \"{text}\" in quotes")
        });
        let message = format!("a word is missing; write {form}{hint}");
        self.place().error(message)
    }
}

fn version_of(token: &Token) -> anyhow::Result<Version> {
    let read = token.bare().and_then(read_version);
    read.ok_or_else(|| {
        let found = token.quoted();
        token.place.error(format!(
            "{found} is no version; a version is written slot.index, as `kv get -v` prints it. For a key that \
             must not exist, write absent KEY"
        ))
    })
}

#[cfg(test)]
mod tests;
