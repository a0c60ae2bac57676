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
            "found 'then', but a comparison must begin here",
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
            "found '<', but = must follow the key",
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
            "found the end of the text, but `and`",
        ),
        ("get a else get b", "1, column 7", "begin with `if … then`"),
        (
            "get a; if absent a then get b",
            "1, column 8",
            "found 'if', but an operation",
        ),
        (
            "if absent a then get a else get b else get c",
            "1, column 35",
            "found 'else', but an operation",
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
