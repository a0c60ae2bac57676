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
        self.place().error(format!("{found} stands where {wanted}"))
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
            return Err(self.unexpected("an operation must begin"));
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
            return Err(self.unexpected("a comparison must begin"));
        };
        let (key, condition) = match (first.bare(), arguments) {
            (Some("present"), [key]) => (key, Condition::Present(true)),
            (Some("absent"), [key]) => (key, Condition::Present(false)),
            (Some("version"), [key, sign, version]) => {
                if sign.bare() != Some("=") {
                    let found = sign.quoted();
                    return Err(sign.place.error(format!("{found} stands where = must")));
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
mod tests {
    use super::*;
    use crate::kv::notation::tests::random_bytes;

    fn parsed(text: &str) -> Txn {
        parse(text, Notation::Plain).unwrap_or_else(|error| panic!("{text}: {error:#}"))
    }

    fn error(text: &str) -> String {
        let error = parse(text, Notation::Plain).expect_err(text);
        format!("{error:#}")
    }

    /// Returns a transaction in the language.
    fn printed(txn: &Txn, notation: Notation, separator: &str) -> String {
        let list = |list: &[TxnOp]| {
            let operations = list.iter().map(|listed| {
                let operation = listed.op.as_ref().unwrap();
                let word = |bytes: &Bytes| word(bytes, notation);
                let mut words = vec![name(operation).to_owned(), word(operation.key())];
                match operation {
                    Operation::Get(_) | Operation::Delete(_) => {}
                    Operation::Put(put) => words.push(word(&put.value)),
                    Operation::Add(add) => words.push(add.delta.to_string()),
                    Operation::Append(append) => words.push(word(&append.suffix)),
                    Operation::PutFields(put) => {
                        let fields = put.fields.iter();
                        words.extend(fields.flat_map(|it| [word(&it.name), word(&it.value)]));
                    }
                    Operation::DeleteFields(delete) => words.extend(delete.names.iter().map(word)),
                }
                words.join(" ")
            });
            operations.collect::<Vec<_>>().join(separator)
        };
        let then = list(&txn.then);
        if txn.comparisons.is_empty() {
            return then;
        }
        let comparisons = txn.comparisons.iter();
        let comparisons = comparisons.map(|it| comparison_text(it, notation));
        let comparisons = comparisons.collect::<Vec<_>>().join(" and ");
        let or_else = list(&txn.or_else);
        format!("if {comparisons} then {then} else {or_else}")
    }

    /// A source of pseudo-random transactions and texts.
    struct Random(u64);

    impl Random {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (self.0 >> 33) % end
        }

        fn bytes(&mut self) -> Bytes {
            let odd = ["", "=", "#x", "a'b", "\"", "x y", ";", "\\", "\n", "-1"];
            match self.below(6) {
                0 => RESERVED[self.below(4) as usize].into(),
                1 => odd[self.below(odd.len() as u64) as usize].into(),
                2 => OPERATIONS[self.below(7) as usize].0.into(),
                _ => random_bytes(self.below(1 << 20)).into(),
            }
        }

        fn key(&mut self) -> Bytes {
            let bytes = self.bytes();
            if bytes.is_empty() { "k".into() } else { bytes }
        }

        fn comparison(&mut self) -> Comparison {
            let key = self.key();
            let condition = match self.below(8) {
                0 => Condition::Version(Version {
                    slot: self.below(1 << 30),
                    index: self.below(9) as u32,
                }),
                1 => Condition::Present(true),
                2 => Condition::Present(false),
                3 => Condition::Equal(self.bytes()),
                4 => Condition::Less(self.bytes()),
                5 => Condition::AtMost(self.bytes()),
                6 => Condition::Greater(self.bytes()),
                _ => Condition::AtLeast(self.bytes()),
            };
            Comparison {
                key,
                condition: Some(condition),
            }
        }

        fn operation(&mut self) -> TxnOp {
            let key = self.key();
            let count = 1 + self.below(3);
            let operation = match self.below(7) {
                0 => Operation::Get(Get { key }),
                1 => Operation::Put(Put {
                    key,
                    value: self.bytes(),
                }),
                2 => Operation::Delete(Delete { key }),
                3 => Operation::add(key, self.below(1 << 20) as i64 - (1 << 19)),
                4 => Operation::append(key, self.bytes()),
                5 => {
                    let field = |_| Field {
                        name: self.bytes(),
                        value: self.bytes(),
                    };
                    let fields = (0..count).map(field).collect();
                    Operation::PutFields(PutFields { key, fields })
                }
                _ => Operation::delete_fields(key, (0..count).map(|_| self.bytes()).collect()),
            };
            operation.into()
        }

        fn txn(&mut self) -> Txn {
            let mut list = |count| (0..count).map(|_| self.operation()).collect::<Vec<_>>();
            let (then, or_else) = (list(2), list(3));
            let comparisons = (0..self.below(4)).map(|_| self.comparison()).collect();
            let mut txn = Txn {
                comparisons,
                then,
                or_else,
                keep_going: false,
            };
            txn.then.truncate(self.below(3) as usize);
            if txn.then.is_empty() {
                txn.comparisons.push(self.comparison());
            }
            if txn.comparisons.is_empty() {
                txn.or_else.clear();
            }
            txn
        }

        /// Returns a text of parts that have a meaning in the language, in any order.
        fn text(&mut self) -> String {
            let parts = [
                "if",
                "then",
                "and",
                "else",
                "get",
                "put",
                "del",
                "add",
                "append",
                "put_fields",
                "version",
                "value",
                "present",
                "absent",
                "k",
                "=",
                "<=",
                "1",
                "12.0",
                ";",
                "\n",
                "\"",
                "'",
                "\\",
                "\\x",
                "#",
                "\u{2028}",
                "\u{0}",
                "é",
                "\"a b\"",
                "\t",
                "-",
            ];
            let mut text = String::new();
            for _ in 0..self.below(14) {
                text += parts[self.below(parts.len() as u64) as usize];
                text += ["", " ", " ", " "][self.below(4) as usize];
            }
            text
        }
    }

    #[test]
    fn every_form_is_read() {
        let txn = parsed(
            "if version a = 12.3 and present b and absent c and value d = 5\n\
             and value e < x and value f <= x and value g > x and value h >= \"\"\n\
             then get a; put b 1; del c;; add n -5\n\
             # a comment with if and \"\n\
             append s #tag; put_fields r name Ada 'home town' \"Par\\\"is\"; del_fields r name age\n\
             else\n\
             get z\n",
        );
        let condition = |index: usize| txn.comparisons[index].condition.clone().unwrap();
        let version = Version { slot: 12, index: 3 };
        let keys: Vec<_> = txn.comparisons.iter().map(|it| it.key.clone()).collect();
        assert_eq!(keys, ["a", "b", "c", "d", "e", "f", "g", "h"]);
        for (index, wanted) in [
            Condition::Version(version),
            Condition::Present(true),
            Condition::Present(false),
            Condition::Equal("5".into()),
            Condition::Less("x".into()),
            Condition::AtMost("x".into()),
            Condition::Greater("x".into()),
            Condition::AtLeast("".into()),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(condition(index), wanted);
        }
        let field = |name: &'static str, value: &'static str| Field {
            name: name.into(),
            value: value.into(),
        };
        let then: Vec<TxnOp> = [
            Operation::Get(Get { key: "a".into() }),
            Operation::Put(Put {
                key: "b".into(),
                value: "1".into(),
            }),
            Operation::Delete(Delete { key: "c".into() }),
            Operation::add("n", -5),
            Operation::append("s", "#tag"),
            Operation::PutFields(PutFields {
                key: "r".into(),
                fields: vec![field("name", "Ada"), field("home town", "Par\"is")],
            }),
            Operation::delete_fields("r", vec!["name".into(), "age".into()]),
        ]
        .map(TxnOp::from)
        .into();
        assert_eq!(txn.then, then);
        let get = Operation::Get(Get { key: "z".into() });
        assert_eq!(txn.or_else, [get.into()]);
    }

    #[test]
    fn a_list_may_be_empty_or_stand_alone() {
        let lengths = |text: &str| {
            let txn = parsed(text);
            (txn.comparisons.len(), txn.then.len(), txn.or_else.len())
        };
        assert_eq!(lengths("get a"), (0, 1, 0));
        assert_eq!(lengths("\n;get a;\n\nget b\n"), (0, 2, 0));
        assert_eq!(lengths("if absent a then put a 1"), (1, 1, 0));
        assert_eq!(lengths("if absent a then else put a 1"), (1, 0, 1));
        assert_eq!(
            lengths("if\nabsent a\nand\nabsent b\nthen\nget a\nelse\n"),
            (2, 1, 0)
        );
    }

    #[test]
    fn the_notation_applies_to_words_without_quotes() {
        let value = |text: &str, notation| {
            let txn = parse(text, notation).unwrap();
            match &txn.then[0].op {
                Some(Operation::Put(put)) => put.value.clone(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(value("put a \\n", Notation::Plain), "\\n");
        assert_eq!(value("put a \\n", Notation::Escapes), "\n");
        assert_eq!(value("put 61 0aff", Notation::Hex), &b"\n\xff"[..]);
        for notation in [Notation::Plain, Notation::Escapes, Notation::Hex] {
            assert_eq!(value("put 61 \"\\n\\xff\"", notation), &b"\n\xff"[..]);
            assert_eq!(value("put 61 '\\n\"'", notation), "\\n\"");
            assert_eq!(value("put 61 \"a\nb;\"", notation), "a\nb;");
        }
    }

    #[test]
    fn an_error_names_the_place_and_the_correction() {
        for (text, place, words) in [
            ("", "1, column 1", "no operation"),
            ("  \n", "2, column 1", "no operation"),
            ("if absent a then", "1, column 17", "no operation"),
            (
                "fetch a",
                "1, column 1",
                "'fetch' is no operation; the operations are get, put",
            ),
            (
                "get a\n  delete b",
                "2, column 3",
                "'delete' is no operation",
            ),
            ("\"get\" a", "1, column 1", "is no operation"),
            (
                "put a",
                "1, column 6",
                "a word is missing; write put KEY VALUE",
            ),
            (
                "if absent a then put a else get a",
                "1, column 24",
                "write \"else\" in quotes",
            ),
            ("put a 1 2", "1, column 9", "'2' is one word too many"),
            (
                "put a 1 put b 2",
                "1, column 9",
                "'put' is one word too many",
            ),
            (
                "put é 1 \"2 3\"",
                "1, column 9",
                "\"2 3\" is one word too many",
            ),
            (
                "put_fields a b",
                "1, column 15",
                "a word is missing; write put_fields",
            ),
            ("put_fields a b c d", "1, column 19", "a word is missing"),
            ("del_fields a", "1, column 13", "a word is missing"),
            ("add n 1.5", "1, column 7", "'1.5' is no integer of 64 bits"),
            (
                "add n 9223372036854775808",
                "1, column 7",
                "no integer of 64 bits",
            ),
            (
                "if equal a 1 then get a",
                "1, column 4",
                "'equal' is no comparison",
            ),
            ("if", "1, column 3", "a comparison must begin"),
            (
                "if then get a",
                "1, column 4",
                "'then' stands where a comparison must begin",
            ),
            (
                "if absent then get a",
                "1, column 11",
                "a word is missing; write absent KEY",
            ),
            (
                "if version a 12.0 then get a",
                "1, column 19",
                "a word is missing",
            ),
            (
                "if version a=12.0 then get a",
                "1, column 19",
                "a word is missing",
            ),
            (
                "if version a < 12.0 then get a",
                "1, column 14",
                "'<' stands where = must",
            ),
            (
                "if version a = absent then get a",
                "1, column 16",
                "write absent KEY",
            ),
            (
                "if value a == 5 then get a",
                "1, column 12",
                "'==' is not one of the signs",
            ),
            (
                "if absent a get a",
                "1, column 13",
                "'get' is one word too many",
            ),
            (
                "if absent a\nget a",
                "2, column 1",
                "`and` or `then` must follow",
            ),
            (
                "if absent a",
                "1, column 12",
                "the end of the text stands where `and`",
            ),
            ("get a else get b", "1, column 7", "begin with `if … then`"),
            (
                "get a; if absent a then get b",
                "1, column 8",
                "'if' stands where an operation",
            ),
            (
                "if absent a then get a else get b else get c",
                "1, column 35",
                "'else' stands",
            ),
            ("put a \"x", "1, column 7", "the quote \" is not closed"),
            ("put a 'x", "1, column 7", "the quote ' is not closed"),
            ("put a O'Brien", "1, column 7", "\"O'Brien\""),
            ("put a \"x\"y", "1, column 10", "a space is missing"),
            ("put a \"\\q\"", "1, column 7", "'\\q' is no escape"),
            ("get \"\"", "1, column 5", "the key has 0 bytes"),
        ] {
            let error = error(text);
            assert!(
                error.starts_with(&format!("line {place}: ")),
                "{text}: {error}"
            );
            assert!(error.contains(words), "{words:?} is not in {error:?}");
        }
        let error = format!("{:#}", parse("get a; get 0g", Notation::Hex).unwrap_err());
        assert!(error.starts_with("line 1, column 5: "), "{error}");
        let long = format!("get {}", "k".repeat(KEY_BYTES_MAX + 1));
        assert!(parse(&long, Notation::Plain).is_err());
    }

    #[test]
    fn what_is_printed_is_read_back() {
        let mut random = Random(1);
        let mut conditional = 0;
        for _ in 0..5_000 {
            let txn = random.txn();
            conditional += usize::from(!txn.comparisons.is_empty());
            for notation in [Notation::Plain, Notation::Hex, Notation::Escapes] {
                for separator in ["; ", "\n", ";\n# x\n "] {
                    let text = printed(&txn, notation, separator);
                    let read = parse(&text, notation);
                    let read = read.unwrap_or_else(|error| panic!("{text}: {error:#}"));
                    assert_eq!(read, txn, "{text}");
                }
            }
        }
        assert!((2_500..5_000).contains(&conditional), "{conditional}");
    }

    #[test]
    fn any_text_is_read_or_refused_with_a_place() {
        let mut random = Random(2);
        let (mut read, mut refused) = (0, 0);
        for _ in 0..50_000 {
            let text = random.text();
            for notation in [Notation::Plain, Notation::Hex, Notation::Escapes] {
                match parse(&text, notation) {
                    Ok(txn) => {
                        read += 1;
                        let again = parse(&printed(&txn, notation, "; "), notation);
                        assert_eq!(again.unwrap(), txn, "{text:?}");
                    }
                    Err(error) => {
                        refused += 1;
                        let error = format!("{error:#}");
                        assert!(error.starts_with("line "), "{text:?}: {error}");
                    }
                }
            }
        }
        assert!(read > 500 && refused > 1000, "{read}, {refused}");
    }
}
