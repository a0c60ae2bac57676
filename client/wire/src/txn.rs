//! Parts of a transaction: the keys that it names and writes, and the kinds of its operations.

use bytes::Bytes;

use super::txn_op::Op as Operation;
use super::{Add, Append, DeleteFields, Txn, TxnOp};

impl Txn {
    /// Returns the operations of both lists.
    pub fn operations(&self) -> impl Iterator<Item = &Operation> {
        let both = self.then.iter().chain(&self.or_else);
        both.filter_map(|listed| listed.op.as_ref())
    }

    /// Returns every key that the transaction names, in order. A key may occur several times.
    pub fn keys(&self) -> impl Iterator<Item = &Bytes> {
        let compared = self.comparisons.iter().map(|comparison| &comparison.key);
        compared.chain(self.operations().map(Operation::key))
    }

    /// Returns every key that one of the lists may write, in order. A key may occur several times.
    pub fn written_keys(&self) -> impl Iterator<Item = &Bytes> {
        let writes = self.operations().filter(|operation| operation.is_write());
        writes.map(Operation::key)
    }

    /// Returns the only key that the transaction names; `None` if it names several keys.
    pub fn one_key(&self) -> Option<&Bytes> {
        let mut keys = self.keys();
        let first = keys.next()?;
        keys.all(|key| key == first).then_some(first)
    }

    /// Returns true if the answer may contain stored values, also values that the transaction then
    /// overwrites. These are the values of gets, and the value that a failed comparison finds.
    pub fn answers_with_values(&self) -> bool {
        let is_get = |operation: &Operation| matches!(operation, Operation::Get(_));
        !self.comparisons.is_empty() || self.operations().any(is_get)
    }

    /// Returns the keys of the values that the transaction may read as a whole and write again.
    /// This takes time in proportion to the stored value.
    pub fn rewritten_keys(&self) -> impl Iterator<Item = &Bytes> {
        let rewrites = self.operations().filter(|operation| operation.is_rewrite());
        rewrites.map(Operation::key)
    }
}

impl Operation {
    /// Returns the key of the operation.
    pub fn key(&self) -> &Bytes {
        match self {
            Operation::Get(op) => &op.key,
            Operation::Put(op) => &op.key,
            Operation::Delete(op) => &op.key,
            Operation::PutFields(op) => &op.key,
            Operation::DeleteFields(op) => &op.key,
            Operation::Add(op) => &op.key,
            Operation::Append(op) => &op.key,
        }
    }

    /// Returns the name of the operation in errors.
    pub fn name(&self) -> &'static str {
        match self {
            Operation::Get(_) => "get",
            Operation::Put(_) => "put",
            Operation::Delete(_) => "delete",
            Operation::PutFields(_) => "put_fields",
            Operation::DeleteFields(_) => "delete_fields",
            Operation::Add(_) => "add",
            Operation::Append(_) => "append",
        }
    }

    /// Returns true if the operation may change the state.
    pub fn is_write(&self) -> bool {
        match self {
            Operation::Get(_) => false,
            Operation::Put(_) | Operation::Delete(_) | Operation::PutFields(_) => true,
            Operation::DeleteFields(_) | Operation::Add(_) | Operation::Append(_) => true,
        }
    }

    /// Returns true if the operation reads a stored value as a whole and writes it again.
    pub fn is_rewrite(&self) -> bool {
        match self {
            Operation::PutFields(_) | Operation::DeleteFields(_) | Operation::Append(_) => true,
            Operation::Get(_) | Operation::Put(_) | Operation::Delete(_) => false,
            Operation::Add(_) => false,
        }
    }

    /// Returns true if the effect or the result of the operation depends on the stored value. The
    /// result of a delete tells whether the key existed.
    pub fn is_read(&self) -> bool {
        match self {
            Operation::Put(_) => false,
            Operation::Get(_) | Operation::Delete(_) | Operation::PutFields(_) => true,
            Operation::DeleteFields(_) | Operation::Add(_) | Operation::Append(_) => true,
        }
    }

    /// Number of parts of the operation: the operation itself, and the fields that it names.
    pub fn parts(&self) -> usize {
        match self {
            Operation::PutFields(op) => 1 + op.fields.len(),
            Operation::DeleteFields(op) => 1 + op.names.len(),
            Operation::Get(_) | Operation::Put(_) | Operation::Delete(_) => 1,
            Operation::Add(_) | Operation::Append(_) => 1,
        }
    }

    /// Returns an operation that removes the fields `names` from the record at `key`.
    pub fn delete_fields(key: impl Into<Bytes>, names: Vec<Bytes>) -> Operation {
        let key = key.into();
        Operation::DeleteFields(DeleteFields { key, names })
    }

    /// Returns an operation that adds `delta` to the decimal integer at `key`.
    pub fn add(key: impl Into<Bytes>, delta: i64) -> Operation {
        let key = key.into();
        Operation::Add(Add { key, delta })
    }

    /// Returns an operation that appends `suffix` to the value at `key`.
    pub fn append(key: impl Into<Bytes>, suffix: impl Into<Bytes>) -> Operation {
        let (key, suffix) = (key.into(), suffix.into());
        Operation::Append(Append { key, suffix })
    }
}

impl From<Operation> for TxnOp {
    fn from(operation: Operation) -> TxnOp {
        TxnOp {
            op: Some(operation),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Op;
    use crate::comparison::Condition;
    use crate::{Command, Comparison, Delete, Field, Get, Put, PutFields};

    fn txn(compared: &[&'static str], then: Vec<Operation>, or_else: Vec<Operation>) -> Txn {
        let comparison = |key: &&'static str| Comparison {
            key: (*key).into(),
            condition: Some(Condition::Present(true)),
        };
        Txn {
            comparisons: compared.iter().map(comparison).collect(),
            then: then.into_iter().map(TxnOp::from).collect(),
            or_else: or_else.into_iter().map(TxnOp::from).collect(),
            keep_going: false,
        }
    }

    fn get(key: &'static str) -> Operation {
        Operation::Get(Get { key: key.into() })
    }

    fn put(key: &'static str) -> Operation {
        let (key, value) = (key.into(), "v".into());
        Operation::Put(Put { key, value })
    }

    fn delete(key: &'static str) -> Operation {
        Operation::Delete(Delete { key: key.into() })
    }

    fn put_fields(key: &'static str) -> Operation {
        let field = Field {
            name: "f".into(),
            value: "v".into(),
        };
        Operation::PutFields(PutFields {
            key: key.into(),
            fields: vec![field; 3],
        })
    }

    fn delete_fields(key: &'static str) -> Operation {
        Operation::delete_fields(key, vec!["f".into(), "g".into()])
    }

    /// The columns are: whether the operation may write, whether its result depends on the stored
    /// value, whether it rewrites the stored value, and the number of its parts.
    #[test]
    fn kinds_of_operations() {
        for (operation, name, expected) in [
            (get("k"), "get", (false, true, false, 1)),
            (put("k"), "put", (true, false, false, 1)),
            (delete("k"), "delete", (true, true, false, 1)),
            (put_fields("k"), "put_fields", (true, true, true, 4)),
            (delete_fields("k"), "delete_fields", (true, true, true, 3)),
            (Operation::add("k", 1), "add", (true, true, false, 1)),
            (Operation::append("k", "v"), "append", (true, true, true, 1)),
        ] {
            assert_eq!((operation.name(), &operation.key()[..]), (name, &b"k"[..]));
            let found = (
                operation.is_write(),
                operation.is_read(),
                operation.is_rewrite(),
                operation.parts(),
            );
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn keys_of_both_lists_count() {
        let txn = txn(
            &["a", "b"],
            vec![
                get("c"),
                put("d"),
                put_fields("e"),
                Operation::append("d", "v"),
            ],
            vec![
                delete("f"),
                Operation::add("g", 1),
                delete_fields("h"),
                get("i"),
            ],
        );
        let op = Op::txn(txn);
        let command = Command::session(1, 1, 1, op.clone());
        let keys = |keys: &mut dyn Iterator<Item = &Bytes>| {
            let all: Vec<u8> = keys.map(|key| key[0]).collect();
            String::from_utf8(all).unwrap()
        };
        assert_eq!(keys(&mut command.keys()), "abcdedfghi");
        assert_eq!(keys(&mut command.written_keys()), "dedfgh");
        assert_eq!(keys(&mut command.rewritten_keys()), "edh");
        assert!(command.is_write() && command.as_read().is_none());
        assert!(!command.is_blind_write());
        assert!(command.is_multi() && op.one_key().is_none());
    }

    /// A transaction that names one key only, however often, is a command on one key. Another key
    /// makes it a command on several keys, even if that key is only compared or read (hazard 34).
    #[test]
    fn one_key_is_one_key_however_often_it_is_named() {
        let is_multi = |txn| Op::txn(txn).is_multi();
        assert!(!is_multi(txn(
            &["a", "a"],
            vec![put("a")],
            vec![get("a"), delete("a")]
        )));
        assert!(!is_multi(txn(&[], vec![], vec![get("a")])));
        assert!(is_multi(txn(&["b"], vec![put("a")], vec![])));
        assert!(is_multi(txn(&[], vec![put("a")], vec![get("b")])));
        assert!(is_multi(txn(&["a"], vec![put("a"), put("b")], vec![])));
    }
}
