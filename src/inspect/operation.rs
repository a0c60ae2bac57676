//! Operations of clients as words and as JSON: the keys, and the lengths of the values.

use leasehold_replica::message::Proposal;
use leasehold_wire::command::Op;
use leasehold_wire::comparison::Condition;
use leasehold_wire::txn_op::Op as Listed;
use leasehold_wire::{Comparison, Put, PutFields, Txn, TxnOp, Version};
use serde_json::{Map, Value, json};

use super::words::{MemberNames, bytes_json, counted, quoted};

/// Parts of an operation, in the order in which they are shown.
struct OperationParts<'a> {
    name: &'static str,
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
    /// Pairs of a key or field and its value. Only operations on several keys or fields have such
    /// pairs. The values are `None` if the operation has no values.
    items: Vec<(&'a [u8], Option<&'a [u8]>)>,
    /// Names and values of further arguments.
    arguments: Vec<(&'static str, String)>,
    /// Names and contents of the lists of a transaction. Empty lists are left out.
    lists: Vec<(&'static str, Vec<OperationParts<'a>>)>,
}

impl<'a> OperationParts<'a> {
    fn named(name: &'static str) -> OperationParts<'a> {
        OperationParts {
            name,
            key: None,
            value: None,
            items: Vec::new(),
            arguments: Vec::new(),
            lists: Vec::new(),
        }
    }

    fn of_key(name: &'static str, key: &'a [u8], value: Option<&'a [u8]>) -> OperationParts<'a> {
        OperationParts {
            key: Some(key),
            value,
            ..OperationParts::named(name)
        }
    }

    fn of(op: &'a Op) -> OperationParts<'a> {
        match op {
            Op::Get(get) => OperationParts::of_key("get", &get.key, None),
            Op::Put(put) => OperationParts::of_put(put),
            Op::Delete(delete) => OperationParts::of_key("delete", &delete.key, None),
            Op::Cas(cas) => OperationParts {
                arguments: vec![("expected", version(cas.expected.as_ref()))],
                ..OperationParts::of_key("cas", &cas.key, Some(&cas.value))
            },
            Op::PutFields(put) => OperationParts::of_put_fields(put),
            Op::MultiGet(get) => OperationParts {
                items: get.keys.iter().map(|key| (&**key, None)).collect(),
                ..OperationParts::named("multi_get")
            },
            Op::MultiPut(put) => {
                let entries = put.entries.iter();
                OperationParts {
                    items: entries.map(|it| (&*it.key, Some(&*it.value))).collect(),
                    ..OperationParts::named("multi_put")
                }
            }
            Op::Scan(scan) => OperationParts {
                arguments: vec![
                    ("from", quoted(&scan.from)),
                    ("to", quoted(&scan.to)),
                    ("limit", scan.limit.to_string()),
                ],
                ..OperationParts::named("scan")
            },
            Op::Txn(txn) => OperationParts::of_txn(txn),
        }
    }

    fn of_put(put: &'a Put) -> OperationParts<'a> {
        OperationParts::of_key("put", &put.key, Some(&put.value))
    }

    fn of_put_fields(put: &'a PutFields) -> OperationParts<'a> {
        let fields = put.fields.iter();
        OperationParts {
            items: fields.map(|it| (&*it.name, Some(&*it.value))).collect(),
            ..OperationParts::of_key("put_fields", &put.key, None)
        }
    }

    fn of_txn(txn: &'a Txn) -> OperationParts<'a> {
        let comparisons = txn.comparisons.iter();
        let comparisons = comparisons.map(OperationParts::of_comparison).collect();
        let listed = |list: &'a [TxnOp]| list.iter().map(OperationParts::of_listed).collect();
        let mut lists = vec![
            ("comparisons", comparisons),
            ("then", listed(&txn.then)),
            ("or_else", listed(&txn.or_else)),
        ];
        lists.retain(|(_, parts): &(_, Vec<_>)| !parts.is_empty());
        let keep_going = ("keep_going", "true".to_owned());
        OperationParts {
            arguments: txn.keep_going.then_some(keep_going).into_iter().collect(),
            lists,
            ..OperationParts::named("txn")
        }
    }

    fn of_comparison(comparison: &'a Comparison) -> OperationParts<'a> {
        let key = &comparison.key;
        let of_value = |name, value| OperationParts::of_key(name, key, Some(value));
        let of_key = |name, argument: Option<String>| OperationParts {
            arguments: argument.map(|it| ("expected", it)).into_iter().collect(),
            ..OperationParts::of_key(name, key, None)
        };
        match &comparison.condition {
            Some(Condition::Version(it)) => of_key("version", Some(version(Some(it)))),
            Some(Condition::Present(true)) => of_key("present", None),
            Some(Condition::Present(false)) => of_key("absent", None),
            Some(Condition::Equal(value)) => of_value("equal", value),
            Some(Condition::Less(value)) => of_value("less", value),
            Some(Condition::AtMost(value)) => of_value("at_most", value),
            Some(Condition::Greater(value)) => of_value("greater", value),
            Some(Condition::AtLeast(value)) => of_value("at_least", value),
            None => of_key("nothing", None),
        }
    }

    fn of_listed(listed: &'a TxnOp) -> OperationParts<'a> {
        let Some(op) = &listed.op else {
            return OperationParts::named("nothing");
        };
        match op {
            Listed::Put(put) => OperationParts::of_put(put),
            Listed::PutFields(put) => OperationParts::of_put_fields(put),
            Listed::DeleteFields(delete) => OperationParts {
                items: delete.names.iter().map(|name| (&**name, None)).collect(),
                ..OperationParts::of_key(op.name(), &delete.key, None)
            },
            Listed::Add(add) => OperationParts {
                arguments: vec![("delta", add.delta.to_string())],
                ..OperationParts::of_key(op.name(), &add.key, None)
            },
            Listed::Append(it) => OperationParts::of_key(op.name(), &it.key, Some(&it.suffix)),
            Listed::Get(_) | Listed::Delete(_) => OperationParts::of_key(op.name(), op.key(), None),
        }
    }

    fn words(&self, values: bool) -> String {
        let mut parts = Vec::new();
        parts.extend(self.key.map(quoted));
        parts.extend(self.value.map(|value| value_words(value, values)));
        parts.extend(self.items.iter().map(|(key, value)| match value {
            Some(value) => format!("{} {}", quoted(key), value_words(value, values)),
            None => quoted(key),
        }));
        let arguments = self.arguments.iter();
        parts.extend(arguments.map(|(name, value)| format!("{name} {value}")));
        parts.extend(self.lists.iter().map(|(name, list)| {
            let list: Vec<String> = list.iter().map(|it| it.words(values)).collect();
            format!("{name} [{}]", list.join("; "))
        }));
        format!("{} {}", self.name, parts.join(", "))
    }

    fn json(&self, values: bool) -> Map<String, Value> {
        let mut object = Map::new();
        object.insert("op".to_owned(), json!(self.name));
        if let Some(key) = self.key {
            put_pair(&mut object, key, self.value, values);
        }
        if !self.items.is_empty() {
            let items = self.items.iter().map(|(key, value)| {
                let mut item = Map::new();
                put_pair(&mut item, key, *value, values);
                Value::Object(item)
            });
            object.insert("items".to_owned(), items.collect());
        }
        for (name, value) in &self.arguments {
            object.insert((*name).to_owned(), json!(value));
        }
        for (name, list) in &self.lists {
            let list = list.iter().map(|it| Value::Object(it.json(values)));
            object.insert((*name).to_owned(), list.collect());
        }
        object
    }
}

fn put_pair(object: &mut Map<String, Value>, key: &[u8], value: Option<&[u8]>, values: bool) {
    object.insert("key".to_owned(), bytes_json(key));
    if let Some(value) = value {
        object.insert("value_bytes".to_owned(), json!(value.len()));
        if values {
            object.insert("value".to_owned(), bytes_json(value));
        }
    }
}

fn value_words(value: &[u8], values: bool) -> String {
    if values {
        return format!("= {}", quoted(value));
    }
    counted(value.len(), "byte")
}

/// Formats a version in the notation of `kv cas`.
fn version(version: Option<&Version>) -> String {
    version.map_or("absent".to_owned(), |it| {
        format!("{}.{}", it.slot, it.index)
    })
}

/// Describes a command in words.
pub fn words(proposal: &Proposal, names: &MemberNames<'_>, values: bool) -> String {
    let command = &proposal.command;
    let op = command.op.as_ref();
    let op = op.map_or("nothing".to_owned(), |op| {
        OperationParts::of(op).words(values)
    });
    let origin = names.replica(proposal.origin);
    match command.client {
        0 => format!("{op}  [from {origin}]"),
        client => format!(
            "{op}  [from {origin}, session {client:x}, write {}]",
            command.sequence
        ),
    }
}

/// Returns a command as JSON.
pub fn json(proposal: &Proposal, names: &MemberNames<'_>, values: bool) -> Value {
    let command = &proposal.command;
    let op = command.op.as_ref();
    let mut object = op.map_or_else(Map::new, |op| OperationParts::of(op).json(values));
    object.insert("origin".to_owned(), json!(names.replica(proposal.origin)));
    object.insert("session".to_owned(), json!(format!("{:x}", command.client)));
    object.insert("sequence".to_owned(), json!(command.sequence));
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use leasehold_wire::KeyValue;

    use super::*;

    #[test]
    fn every_operation_shows_its_keys_and_the_lengths_of_its_values() {
        let entry = |key: &str, value: &str| KeyValue {
            key: key.to_owned().into(),
            value: value.to_owned().into(),
        };
        let expected = Version { slot: 7, index: 2 };
        for (op, words) in [
            (Op::get("a"), "get \"a\""),
            (Op::put("a\n", "xyz"), "put \"a\\n\", 3 bytes"),
            (Op::delete("a"), "delete \"a\""),
            (
                Op::cas("a", "x", Some(expected)),
                "cas \"a\", 1 byte, expected 7.2",
            ),
            (
                Op::cas("a", "x", None),
                "cas \"a\", 1 byte, expected absent",
            ),
            (
                Op::multi_get(vec!["a".into(), "b".into()]),
                "multi_get \"a\", \"b\"",
            ),
            (
                Op::multi_put(vec![entry("a", "xy"), entry("b", "")]),
                "multi_put \"a\" 2 bytes, \"b\" 0 bytes",
            ),
            (
                Op::scan("a", "b", 10),
                "scan from \"a\", to \"b\", limit 10",
            ),
        ] {
            assert_eq!(OperationParts::of(&op).words(false), words);
        }
    }

    fn txn() -> Op {
        let compared = |key: &'static str, condition| Comparison {
            key: key.into(),
            condition: Some(condition),
        };
        let field = leasehold_wire::Field {
            name: "f".into(),
            value: "xyz".into(),
        };
        let put = |key: &'static str, value: &'static str| Put {
            key: key.into(),
            value: value.into(),
        };
        let put_fields = PutFields {
            key: "r".into(),
            fields: vec![field],
        };
        let then = [
            Listed::Put(put("a", "xy")),
            Listed::PutFields(put_fields),
            Listed::delete_fields("r", vec!["f".into(), "g".into()]),
            Listed::add("n", -5),
            Listed::append("l", "secret"),
        ];
        let key = || "a".into();
        let or_else = [
            Listed::Get(leasehold_wire::Get { key: key() }),
            Listed::Delete(leasehold_wire::Delete { key: key() }),
        ];
        Op::txn(Txn {
            comparisons: vec![
                compared("a", Condition::Version(Version { slot: 7, index: 2 })),
                compared("b", Condition::Present(false)),
                compared("c", Condition::Present(true)),
                compared("d", Condition::AtLeast("xyz".into())),
            ],
            then: then.map(TxnOp::from).into(),
            or_else: or_else.map(TxnOp::from).into(),
            keep_going: true,
        })
    }

    #[test]
    fn a_transaction_shows_its_comparisons_and_both_lists() {
        let op = txn();
        assert_eq!(
            OperationParts::of(&op).words(false),
            "txn keep_going true, comparisons [version \"a\", expected 7.2; absent \"b\"; \
             present \"c\"; at_least \"d\", 3 bytes], then [put \"a\", 2 bytes; \
             put_fields \"r\", \"f\" 3 bytes; delete_fields \"r\", \"f\", \"g\"; \
             add \"n\", delta -5; append \"l\", 6 bytes], or_else [get \"a\"; delete \"a\"]"
        );
        let shown = Value::Object(OperationParts::of(&op).json(true));
        assert_eq!(shown["then"][4]["value"], "secret");
        assert_eq!(
            shown["then"][3],
            json!({"op": "add", "key": "n", "delta": "-5"})
        );
        assert_eq!(shown["comparisons"][1], json!({"op": "absent", "key": "b"}));
        let hidden = Value::Object(OperationParts::of(&op).json(false));
        assert_eq!(hidden["then"][4]["value"], Value::Null);
    }

    #[test]
    fn values_are_shown_only_on_request() {
        let op = Op::put("k", "secret");
        let parts = OperationParts::of(&op);
        assert_eq!(parts.words(true), "put \"k\", = \"secret\"");
        let shown = Value::Object(parts.json(true));
        assert_eq!(shown["value"], "secret");
        let hidden = Value::Object(parts.json(false));
        assert_eq!(
            (&hidden["value"], &hidden["value_bytes"]),
            (&Value::Null, &json!(6))
        );
    }
}
