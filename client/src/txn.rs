//! Transactions: comparisons, two lists of operations, and the results of one of these lists.
//!
//! [`key`] begins the construction of a comparison or an operation, for example
//! `key("stock").at_least("1")` or `key("stock").add(-1)`.

use bytes::Bytes;
use leasehold_wire as wire;
use leasehold_wire::comparison::Condition;
use leasehold_wire::txn_op::Op;

use crate::client::Client;
use crate::error::Error;
use crate::types::{Operation, OperationResult, RefusalKind, Version, VersionedValue};

/// Begins a comparison or an operation of a transaction. `key` is the key that it is about.
pub fn key(key: impl Into<Bytes>) -> TxnKey {
    TxnKey { key: key.into() }
}

/// Key of a comparison or an operation. Each method completes one of these.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a key is neither a comparison nor an operation"]
pub struct TxnKey {
    key: Bytes,
}

/// A condition on one key: on its value, on the version of this value, or on the existence of the
/// key. Values are compared as bytes. A key that does not exist is below every value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a comparison is a part of a transaction: pass it to `when`"]
pub struct Comparison {
    wire: wire::Comparison,
}

/// An operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "an operation is a part of a transaction: pass it to `then` or `or_else`"]
pub struct TxnOp {
    wire: wire::TxnOp,
}

/// A transaction: comparisons, a list of operations that is executed if all comparisons hold, and a
/// list that is executed otherwise. The operations of a list are executed in order and at one
/// moment, and each of them sees the effects of those before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a transaction does nothing until a client executes it"]
pub struct Txn {
    wire: wire::Txn,
}

/// A transaction that is under construction, and the client that will execute it. [`Client::txn`]
/// creates it, and its methods are those of [`Txn`].
#[derive(Clone, Debug)]
#[must_use = "a transaction does nothing until `execute` is called and awaited"]
pub struct TxnBuilder<'a> {
    client: &'a Client,
    txn: Txn,
}

/// List of operations that was executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxnBranch {
    /// All comparisons held, so the list of [`Txn::then`] was executed.
    Then,
    /// A comparison did not hold, so the list of [`Txn::or_else`] was executed.
    OrElse(FailedComparison),
}

/// First comparison of a transaction that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedComparison {
    /// Index of the comparison. The first comparison has index 0.
    pub index: usize,
    /// Value of the key; `None` if the key did not exist.
    pub found: Option<VersionedValue>,
}

/// Result of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TxnOutcome {
    /// List of operations that was executed.
    pub branch: TxnBranch,
    /// Version of every value that was written; `None` if nothing was written.
    pub version: Option<Version>,
    /// A result for each operation of the list, in order.
    pub results: Vec<TxnOpResult>,
}

/// Result of one operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TxnOpResult {
    /// The value that a get read.
    Value(VersionedValue),
    /// The key of a get does not exist.
    Missing,
    /// 1 for a put and for a merge of fields. For a delete, the number of keys that were removed, 0
    /// or 1. For a removal of fields, the number of fields that were removed. For an append, the
    /// length of the new value in bytes.
    Count(u64),
    /// The sum that an addition wrote.
    Number(i64),
    /// The operation could not be executed and had no effect. Only a transaction with
    /// [`Txn::keep_going`] has such a result.
    Refused {
        /// The kind of refusal.
        kind: RefusalKind,
        /// Description of the problem.
        message: String,
    },
}

impl TxnKey {
    fn compare(self, condition: Condition) -> Comparison {
        let condition = Some(condition);
        let wire = wire::Comparison {
            key: self.key,
            condition,
        };
        Comparison { wire }
    }

    /// Holds if the key exists and its value has this version.
    pub fn version(self, version: Version) -> Comparison {
        self.compare(Condition::Version(version.to_wire()))
    }

    /// Holds if the key exists.
    pub fn present(self) -> Comparison {
        self.compare(Condition::Present(true))
    }

    /// Holds if the key does not exist.
    pub fn absent(self) -> Comparison {
        self.compare(Condition::Present(false))
    }

    /// Holds if the key exists and has this value.
    pub fn equals(self, value: impl Into<Bytes>) -> Comparison {
        self.compare(Condition::Equal(value.into()))
    }

    /// Holds if the key does not exist, or if its value is below `value`.
    pub fn less_than(self, value: impl Into<Bytes>) -> Comparison {
        self.compare(Condition::Less(value.into()))
    }

    /// Holds if the key does not exist, or if its value is `value` or below it.
    pub fn at_most(self, value: impl Into<Bytes>) -> Comparison {
        self.compare(Condition::AtMost(value.into()))
    }

    /// Holds if the key exists and its value is above `value`.
    pub fn greater_than(self, value: impl Into<Bytes>) -> Comparison {
        self.compare(Condition::Greater(value.into()))
    }

    /// Holds if the key exists and its value is `value` or above it.
    pub fn at_least(self, value: impl Into<Bytes>) -> Comparison {
        self.compare(Condition::AtLeast(value.into()))
    }

    /// Reads the key. The result is [`TxnOpResult::Value`] or [`TxnOpResult::Missing`].
    pub fn get(self) -> TxnOp {
        TxnOp::of(Op::Get(wire::Get { key: self.key }))
    }

    /// Writes the key, whether or not it exists. The count in the result is 1.
    pub fn put(self, value: impl Into<Bytes>) -> TxnOp {
        let value = value.into();
        TxnOp::of(Op::Put(wire::Put {
            key: self.key,
            value,
        }))
    }

    /// Removes the key, if it exists. The count in the result is the number of keys removed.
    pub fn delete(self) -> TxnOp {
        TxnOp::of(Op::Delete(wire::Delete { key: self.key }))
    }

    /// Merges named fields into the record at the key. The record is created if it does not exist.
    /// The count in the result is 1. The operation cannot be executed if the value is no record, or
    /// if it or the merged record has more than 256 KiB or 1,024 fields.
    pub fn put_fields<N: Into<Bytes>, V: Into<Bytes>>(
        self,
        fields: impl IntoIterator<Item = (N, V)>,
    ) -> TxnOp {
        let field = |(name, value): (N, V)| wire::Field {
            name: name.into(),
            value: value.into(),
        };
        let fields = fields.into_iter().map(field).collect();
        TxnOp::of(Op::PutFields(wire::PutFields {
            key: self.key,
            fields,
        }))
    }

    /// Removes the fields with these names from the record at the key. The count in the result is
    /// the number of fields removed. The operation cannot be executed if the value is no record, or
    /// if it has more than 256 KiB or 1,024 fields.
    pub fn delete_fields(self, names: impl IntoIterator<Item = impl Into<Bytes>>) -> TxnOp {
        let names = names.into_iter().map(Into::into).collect();
        TxnOp::of(Op::delete_fields(self.key, names))
    }

    /// Adds `delta` to the decimal integer at the key. A key that does not exist counts as 0. The
    /// result is the sum. If the value is no integer, or if the sum needs more than 64 bits, the
    /// operation cannot be executed.
    #[expect(clippy::should_implement_trait)] // named as the operation: the result is no sum of keys
    pub fn add(self, delta: i64) -> TxnOp {
        TxnOp::of(Op::add(self.key, delta))
    }

    /// Appends `suffix` to the value at the key. A key that does not exist counts as empty. The
    /// count in the result is the new length in bytes. If this length is above 256 KiB, the
    /// operation cannot be executed.
    pub fn append(self, suffix: impl Into<Bytes>) -> TxnOp {
        TxnOp::of(Op::append(self.key, suffix))
    }
}

impl TxnOp {
    fn of(op: Op) -> TxnOp {
        TxnOp { wire: op.into() }
    }
}

/// One comparison counts as a list of comparisons, for [`Txn::when`].
impl IntoIterator for Comparison {
    type Item = Comparison;
    type IntoIter = std::iter::Once<Comparison>;

    fn into_iter(self) -> Self::IntoIter {
        std::iter::once(self)
    }
}

/// One operation counts as a list of operations, for [`Txn::then`] and [`Txn::or_else`].
impl IntoIterator for TxnOp {
    type Item = TxnOp;
    type IntoIter = std::iter::Once<TxnOp>;

    fn into_iter(self) -> Self::IntoIter {
        std::iter::once(self)
    }
}

impl Txn {
    /// Creates a transaction without comparisons and operations. At least one operation must be
    /// added. Without comparisons, the list of [`Txn::then`] is executed.
    pub fn new() -> Txn {
        Txn::default()
    }

    /// Adds one comparison, or several of them.
    pub fn when(mut self, comparisons: impl IntoIterator<Item = Comparison>) -> Txn {
        let added = comparisons.into_iter().map(|comparison| comparison.wire);
        self.wire.comparisons.extend(added);
        self
    }

    /// Adds one operation, or several of them, to the end of the list that is executed if all
    /// comparisons hold.
    pub fn then(mut self, operations: impl IntoIterator<Item = TxnOp>) -> Txn {
        let added = operations.into_iter().map(|operation| operation.wire);
        self.wire.then.extend(added);
        self
    }

    /// Adds one operation, or several of them, to the end of the list that is executed if a
    /// comparison does not hold.
    pub fn or_else(mut self, operations: impl IntoIterator<Item = TxnOp>) -> Txn {
        let added = operations.into_iter().map(|operation| operation.wire);
        self.wire.or_else.extend(added);
        self
    }

    /// Executes the other operations of a list even if one of them cannot be executed. The result of
    /// this one is then [`TxnOpResult::Refused`]. By default, no operation is executed in this case,
    /// and the transaction ends with [`Error::Refused`](crate::Error::Refused).
    pub fn keep_going(mut self) -> Txn {
        self.wire.keep_going = true;
        self
    }

    pub(crate) fn into_wire(self) -> wire::Txn {
        self.wire
    }

    /// Returns the numbers of operations in the lists of [`Txn::then`] and [`Txn::or_else`].
    pub(crate) fn lengths(&self) -> [usize; 2] {
        [self.wire.then.len(), self.wire.or_else.len()]
    }
}

impl TxnBuilder<'_> {
    fn with(self, change: impl FnOnce(Txn) -> Txn) -> Self {
        TxnBuilder {
            txn: change(self.txn),
            ..self
        }
    }

    /// Adds one comparison, or several of them.
    pub fn when(self, comparisons: impl IntoIterator<Item = Comparison>) -> Self {
        self.with(|txn| txn.when(comparisons))
    }

    /// Adds one operation, or several of them, to the end of the list that is executed if all
    /// comparisons hold.
    pub fn then(self, operations: impl IntoIterator<Item = TxnOp>) -> Self {
        self.with(|txn| txn.then(operations))
    }

    /// Adds one operation, or several of them, to the end of the list that is executed if a
    /// comparison does not hold.
    pub fn or_else(self, operations: impl IntoIterator<Item = TxnOp>) -> Self {
        self.with(|txn| txn.or_else(operations))
    }

    /// Executes the other operations of a list even if one of them cannot be executed, as
    /// [`Txn::keep_going`] explains.
    pub fn keep_going(self) -> Self {
        self.with(Txn::keep_going)
    }

    /// Executes the transaction and waits for its results.
    ///
    /// # Errors
    /// The same errors as [`Client::execute`], and [`Error::Executed`]. `Executed` is only possible
    /// if the results are large: if their values have more than 256 bytes together, or the results
    /// more than 1 KiB. If the results of all writes in flight have more than 4 KiB together,
    /// results of more than 64 bytes are large, too.
    pub async fn execute(self) -> Result<TxnOutcome, Error> {
        let reply = self.client.execute(Operation::Txn(self.txn)).await?;
        match reply.result {
            OperationResult::Txn(outcome) => Ok(outcome),
            other => Err(self.client.unexpected(&reply.replica, &other)),
        }
    }
}

impl Client {
    /// Begins a transaction: operations on one or several keys that are executed at one moment,
    /// under conditions. [`key`] creates its parts:
    ///
    /// ```no_run
    /// # async fn order(client: &leasehold_client::Client) -> Result<(), leasehold_client::Error> {
    /// use leasehold_client::key;
    ///
    /// let outcome = client
    ///     .txn()
    ///     .when(key("order/17").absent())
    ///     .then([key("order/17").put("book"), key("stock/book").add(-1)])
    ///     .or_else(key("order/17").get())
    ///     .execute()
    ///     .await?;
    /// println!("ordered: {}", outcome.held());
    /// # Ok(())
    /// # }
    /// ```
    pub fn txn(&self) -> TxnBuilder<'_> {
        TxnBuilder {
            client: self,
            txn: Txn::new(),
        }
    }

    /// Adds `delta` to the decimal integer at one key, and returns the sum. A key that does not exist
    /// counts as 0.
    ///
    /// # Errors
    /// The same errors as [`Client::execute`]. The error is `Refused` with the kind `NotAnInteger` if
    /// the value is not an integer, or if the sum needs more than 64 bits.
    pub async fn add(&self, key: impl Into<Bytes>, delta: i64) -> Result<i64, Error> {
        let list = [self::key(key).add(delta)];
        self.execute_list(list, |[result]| match result {
            TxnOpResult::Number(sum) => Some(sum),
            _ => None,
        })
        .await
    }

    /// Appends `suffix` to the value at one key, and returns the new length in bytes. A key that
    /// does not exist counts as empty.
    ///
    /// # Errors
    /// The same errors as [`Client::execute`]. The error is `Refused` with the kind `TooLarge` if
    /// the new value would be larger than 256 KiB.
    pub async fn append(
        &self,
        key: impl Into<Bytes>,
        suffix: impl Into<Bytes>,
    ) -> Result<u64, Error> {
        let list = [self::key(key).append(suffix)];
        self.execute_list(list, |[result]| match result {
            TxnOpResult::Count(length) => Some(length),
            _ => None,
        })
        .await
    }

    /// Writes one key and returns its previous value; `None` if the key did not exist.
    ///
    /// # Errors
    /// The same errors as [`Client::execute`]. The error is `Executed` if the first answer was lost
    /// and the previous value was too large to be kept, as [`TxnBuilder::execute`] explains. The new
    /// value is then written, and the previous value is lost.
    pub async fn get_and_put(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
    ) -> Result<Option<VersionedValue>, Error> {
        let key = self::key(key);
        let list = [key.clone().get(), key.put(value)];
        self.execute_list(list, |results| match results {
            [TxnOpResult::Value(previous), TxnOpResult::Count(_)] => Some(Some(previous)),
            [TxnOpResult::Missing, TxnOpResult::Count(_)] => Some(None),
            _ => None,
        })
        .await
    }

    /// Executes a list of operations without comparisons. `read` returns `None` if the results
    /// cannot be those of this list.
    async fn execute_list<const N: usize, T>(
        &self,
        list: [TxnOp; N],
        read: impl FnOnce([TxnOpResult; N]) -> Option<T>,
    ) -> Result<T, Error> {
        let executed = self.execute(Operation::Txn(Txn::new().then(list))).await;
        let reply = executed.map_err(|mut error| {
            if let Error::Refused { message, .. } = &mut error {
                *message = wire::without_txn_place(message).to_owned();
            }
            error
        })?;
        let outcome = match reply.result {
            OperationResult::Txn(outcome) => outcome,
            other => return Err(self.unexpected(&reply.replica, &other)),
        };
        let read = outcome.results.try_into().ok().and_then(read);
        read.ok_or_else(|| {
            let message = "the results are not those of the operations of the transaction";
            self.violated(&reply.replica, message)
        })
    }
}

impl TxnOutcome {
    /// Returns true if all comparisons held.
    pub fn held(&self) -> bool {
        self.branch == TxnBranch::Then
    }

    /// Converts a result from a response message.
    ///
    /// # Errors
    /// Returns a description of the fault, if the protocol does not allow the result.
    pub(crate) fn from_wire(result: wire::TxnResult) -> Result<TxnOutcome, &'static str> {
        let branch = match (result.or_else, result.failed) {
            (false, None) => TxnBranch::Then,
            (true, Some(failed)) => TxnBranch::OrElse(FailedComparison {
                index: failed.index as usize,
                found: failed.found.map(VersionedValue::from_wire).transpose()?,
            }),
            _ => return Err("the branch of the transaction contradicts the failed comparison"),
        };
        let results = result.results.into_iter().map(TxnOpResult::from_wire);
        Ok(TxnOutcome {
            branch,
            version: result.version.map(Version::from_wire),
            results: results.collect::<Result<_, _>>()?,
        })
    }
}

impl TxnOpResult {
    fn from_wire(result: wire::OpResult) -> Result<TxnOpResult, &'static str> {
        use wire::op_result::Result as Answer;
        Ok(match result.result {
            Some(Answer::Value(found)) => TxnOpResult::Value(VersionedValue::from_wire(found)?),
            Some(Answer::Missing(_)) => TxnOpResult::Missing,
            Some(Answer::Count(count)) => TxnOpResult::Count(count),
            Some(Answer::Number(number)) => TxnOpResult::Number(number),
            Some(Answer::Error(error)) => TxnOpResult::Refused {
                kind: RefusalKind::from_wire(error.code()),
                message: error.message,
            },
            None => return Err("an operation of the transaction has no result"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_the_protocol_forbids_is_no_outcome() {
        let value = |version| wire::Value {
            value: Bytes::new(),
            version,
        };
        let failed = |found| wire::TxnResult {
            or_else: true,
            failed: Some(wire::FailedComparison { index: 1, found }),
            ..wire::TxnResult::default()
        };
        let with = |result| wire::TxnResult {
            results: vec![wire::OpResult { result }],
            ..wire::TxnResult::default()
        };
        let version = wire::Version { slot: 3, index: 0 };
        let unversioned = wire::op_result::Result::Value(value(None));
        for (result, problem) in [
            (
                wire::TxnResult {
                    failed: None,
                    ..failed(None)
                },
                "contradicts",
            ),
            (
                wire::TxnResult {
                    or_else: false,
                    ..failed(None)
                },
                "contradicts",
            ),
            (failed(Some(value(None))), "no version"),
            (with(Some(unversioned)), "no version"),
            (with(None), "no result"),
        ] {
            let error = TxnOutcome::from_wire(result).expect_err(problem);
            assert!(error.contains(problem), "{error}");
        }
        let outcome = TxnOutcome::from_wire(failed(Some(value(Some(version)))));
        let TxnBranch::OrElse(failed) = outcome.expect("allowed").branch else {
            panic!("a comparison failed");
        };
        let found = failed.found.map(|found| found.version.to_string());
        assert_eq!((failed.index, found), (1, Some("3.0".to_owned())));
    }
}
