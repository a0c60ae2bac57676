//! Operations of clients as words and as JSON: the keys, and the lengths of the values.

use leasehold_replica::message::Proposal;
use leasehold_wire::Version;
use leasehold_wire::command::Op;
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
}

impl<'a> OperationParts<'a> {
    fn named(name: &'static str) -> OperationParts<'a> {
        OperationParts {
            name,
            key: None,
            value: None,
            items: Vec::new(),
            arguments: Vec::new(),
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
            Op::Put(put) => OperationParts::of_key("put", &put.key, Some(&put.value)),
            Op::Delete(delete) => OperationParts::of_key("delete", &delete.key, None),
            Op::Cas(cas) => OperationParts {
                arguments: vec![("expected", version(cas.expected.as_ref()))],
                ..OperationParts::of_key("cas", &cas.key, Some(&cas.value))
            },
            Op::PutFields(put) => {
                let fields = put.fields.iter();
                OperationParts {
                    items: fields.map(|it| (&*it.name, Some(&*it.value))).collect(),
                    ..OperationParts::of_key("put_fields", &put.key, None)
                }
            }
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
