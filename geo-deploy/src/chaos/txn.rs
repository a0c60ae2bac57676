//! A transaction of a client, and the effects that follow from its answer.

use std::collections::BTreeMap;

use bytes::Bytes;
use leasehold_histories::history::ValueId;
use leasehold_wire::comparison::Condition;
use leasehold_wire::op_result::Result as OpAnswer;
use leasehold_wire::txn_op::Op as Operation;
use leasehold_wire::{
    Comparison, DeleteFields, Error, ErrorCode, FailedComparison, Txn, TxnOp, TxnResult, Version,
};

use super::effects::{Contradiction, EffectCollector, Effects, contents, token};
use super::keys::{KeyKind, key_number, key_of_field, kind_of, recognise, stored};

/// A transaction that a client is about to send.
#[derive(Clone, Debug)]
pub struct TxnRequest {
    /// The transaction.
    pub txn: Txn,
    /// Values of the versions that the comparisons expect, by key.
    pub believed: BTreeMap<u64, ValueId>,
}

/// Returns the error of an operation that cannot be executed on any existing register; `None` for
/// other operations.
fn refusal(operation: &Operation) -> Option<ErrorCode> {
    // Clients send such an operation only with a comparison by which the key exists. A register
    // holds neither a number nor a record.
    match (kind_of(number(operation.key())), operation) {
        (KeyKind::Register, Operation::Add(_)) => Some(ErrorCode::NotAnInteger),
        (KeyKind::Register, Operation::PutFields(_)) => Some(ErrorCode::NotARecord),
        _ => None,
    }
}

fn operations(list: &[TxnOp]) -> impl Iterator<Item = &Operation> {
    list.iter().filter_map(|listed| listed.op.as_ref())
}

/// Returns the number of a key that a client named.
fn number(name: &Bytes) -> u64 {
    key_number(name).unwrap_or(u64::MAX)
}

impl TxnRequest {
    /// Returns true if the transaction may be refused: if one of its operations cannot be executed,
    /// and it does not keep going.
    pub fn may_be_refused(&self) -> bool {
        let lists = [&self.txn.then, &self.txn.or_else];
        let refused = |list: &[TxnOp]| operations(list).any(|one| refusal(one).is_some());
        !self.txn.keep_going && lists.into_iter().any(|list| refused(list))
    }

    /// Returns the possible effects of the transaction if it is not answered, for each branch.
    pub fn possible_effects(&self) -> Vec<Effects> {
        let Txn {
            comparisons,
            then,
            or_else,
            keep_going,
        } = &self.txn;
        let mut lists = vec![(then, &comparisons[..])];
        if !comparisons.is_empty() {
            lists.push((or_else, &[]));
        }
        let is_executable = |(list, _): &(&Vec<TxnOp>, _)| {
            *keep_going || operations(list).all(|one| refusal(one).is_none())
        };
        let effects = |(list, held): (&Vec<TxnOp>, &[Comparison])| {
            let mut branch = Branch::default();
            self.compare(&mut branch, held)?;
            let executable = operations(list).filter(|one| refusal(one).is_none());
            for operation in executable {
                branch.execute(operation, None)?;
            }
            Ok::<_, Contradiction>(branch.effects.finish())
        };
        // A branch that contradicts itself is never executed.
        let possible = lists.into_iter().filter(is_executable);
        possible.filter_map(|list| effects(list).ok()).collect()
    }

    /// Returns the effects of the transaction according to its answer.
    ///
    /// # Errors
    /// If no correct store could have given this answer.
    pub fn effects_of(&self, result: &TxnResult) -> Result<Effects, Contradiction> {
        let mut branch = Branch {
            version: result.version,
            abridged: result.abridged,
            ..Branch::default()
        };
        let comparisons = &self.txn.comparisons;
        let (held, list) = match (result.or_else, &result.failed) {
            (false, None) => (comparisons.len(), &self.txn.then),
            (true, Some(failed)) => (failed.index as usize, &self.txn.or_else),
            (or_else, failed) => {
                return Err(format!("has branch {or_else} with comparison {failed:?}"));
            }
        };
        if held > comparisons.len() || result.or_else && held == comparisons.len() {
            return Err(format!(
                "says that comparison {held} of {} failed",
                comparisons.len()
            ));
        }
        self.compare(&mut branch, &comparisons[..held])?;
        if let Some(failed) = &result.failed {
            branch.see_failed(&comparisons[held], failed)?;
        }
        branch.execute_all(list, result, self.txn.keep_going)?;
        branch.check_bounds(&comparisons[..held])?;
        Ok(branch.effects.finish())
    }

    /// Notes what the comparisons that held say about their keys.
    fn compare(&self, branch: &mut Branch, held: &[Comparison]) -> Result<(), Contradiction> {
        for comparison in held {
            let key = number(&comparison.key);
            match &comparison.condition {
                Some(Condition::Equal(value)) => branch.effects.see(key, Some(value))?,
                Some(Condition::Present(false)) => branch.effects.see(key, None)?,
                Some(Condition::Version(_)) => {
                    let believed = self.believed.get(&key).map(|value| stored(*value));
                    believed.map_or(Ok(()), |value| branch.effects.see(key, Some(&value)))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the versions that an answer contains, by key.
    pub fn versions(&self, result: &TxnResult) -> BTreeMap<u64, Version> {
        let mut versions = BTreeMap::new();
        let mut note = |key: &Bytes, version: Option<Version>| {
            version.map(|version| versions.insert(number(key), version))
        };
        if let Some(failed) = &result.failed
            && let Some(comparison) = self.txn.comparisons.get(failed.index as usize)
        {
            let found = failed.found.as_ref().and_then(|found| found.version);
            note(&comparison.key, found);
        }
        let list = if result.or_else {
            &self.txn.or_else
        } else {
            &self.txn.then
        };
        for (operation, answer) in operations(list).zip(&result.results) {
            match (operation, &answer.result) {
                (Operation::Get(get), Some(OpAnswer::Value(found))) => {
                    note(&get.key, found.version);
                }
                (Operation::Put(put), _) => drop(note(&put.key, result.version)),
                _ => {}
            }
        }
        versions
    }
}

/// The executed branch of a transaction.
#[derive(Default)]
struct Branch {
    effects: EffectCollector,
    /// Version of the values that the transaction wrote.
    version: Option<Version>,
    /// True if values are left out of the answer.
    abridged: bool,
}

impl Branch {
    /// Notes the value by which a comparison failed.
    fn see_failed(
        &mut self,
        comparison: &Comparison,
        failed: &FailedComparison,
    ) -> Result<(), Contradiction> {
        let key = number(&comparison.key);
        let found = failed.found.as_ref();
        let value = found.map(|found| &found.value);
        if value.is_some() && self.abridged {
            return Ok(());
        }
        let is_version = |expected: &Version| found.is_some_and(|it| it.version == Some(*expected));
        let held = match &comparison.condition {
            Some(Condition::Version(expected)) => is_version(expected),
            condition => condition.as_ref().is_none_or(|one| holds(one, value)),
        };
        if held {
            return Err(format!(
                "says that {comparison:?} failed, and found {found:?}"
            ));
        }
        self.effects.see(key, value)
    }

    fn execute_all(
        &mut self,
        list: &[TxnOp],
        result: &TxnResult,
        keeps_going: bool,
    ) -> Result<(), Contradiction> {
        let mut results = result.results.iter();
        for operation in operations(list) {
            let answer = match results.next() {
                Some(one) => Some(one.result.as_ref().ok_or("has a result without content")?),
                None if self.abridged => None,
                None => return Err("has too few results".to_owned()),
            };
            match (refusal(operation), answer) {
                (Some(_), _) if !keeps_going => {
                    return Err(format!("executed {operation:?}, which nothing can execute"));
                }
                (Some(code), Some(OpAnswer::Error(Error { code: found, .. })))
                    if *found == i32::from(code) => {}
                (Some(_), None) => {}
                (Some(_), Some(answer)) => {
                    return Err(format!("answered {answer:?} to {operation:?}"));
                }
                (None, answer) => self.execute(operation, answer)?,
            }
        }
        if results.next().is_some() {
            return Err("has too many results".to_owned());
        }
        let always_writes = |one: &Operation| match one {
            Operation::Put(_) | Operation::PutFields(_) => refusal(one).is_none(),
            Operation::Append(_) | Operation::Add(_) => refusal(one).is_none(),
            Operation::Get(_) | Operation::Delete(_) | Operation::DeleteFields(_) => false,
        };
        let writes = operations(list).any(Operation::is_write);
        let is_wrong = match self.version {
            Some(_) => !writes,
            None => operations(list).any(always_writes),
        };
        if is_wrong {
            return Err(format!("has version {:?} after {list:?}", self.version));
        }
        Ok(())
    }

    /// Notes the effects of one operation. `answer` is `None` if its result is unknown.
    fn execute(
        &mut self,
        operation: &Operation,
        answer: Option<&OpAnswer>,
    ) -> Result<(), Contradiction> {
        let key = number(operation.key());
        match (operation, answer) {
            (Operation::Get(_), None) => Ok(()),
            (Operation::Get(_), Some(OpAnswer::Value(_))) if self.abridged => Ok(()),
            (Operation::Get(_), Some(OpAnswer::Value(found))) => {
                self.effects.see(key, Some(&found.value))
            }
            (Operation::Get(_), Some(OpAnswer::Missing(_))) => self.effects.see(key, None),
            (Operation::Put(put), None | Some(OpAnswer::Count(1))) => {
                for (key, value) in contents(key, Some(&put.value))? {
                    self.effects.write(key, value);
                }
                Ok(())
            }
            (Operation::Delete(_), None | Some(OpAnswer::Count(0 | 1))) => self.delete(key, answer),
            (Operation::PutFields(put), None | Some(OpAnswer::Count(1))) => {
                for field in &put.fields {
                    let of_field = key_of_field(key, &field.name);
                    let of_field = of_field.ok_or("has an unknown field")?;
                    self.effects.write(of_field, recognise(&field.value));
                }
                Ok(())
            }
            (Operation::DeleteFields(delete), None) => self.delete_fields(key, delete, None),
            (Operation::DeleteFields(delete), Some(OpAnswer::Count(count))) => {
                self.delete_fields(key, delete, Some(*count as usize))
            }
            (Operation::Append(append), None) => {
                self.effects.append(key, token(key, &append.suffix)?, None)
            }
            (Operation::Append(append), Some(OpAnswer::Count(bytes))) => {
                let (token, tokens) = (token(key, &append.suffix)?, bytes / TOKEN);
                if bytes % TOKEN != 0 {
                    return Err(format!("left {bytes} bytes in list {key}"));
                }
                self.effects.append(key, token, Some(tokens as usize))
            }
            (Operation::Add(add), None) => self.effects.add(key, add.delta, None),
            (Operation::Add(add), Some(OpAnswer::Number(sum))) => {
                self.effects.add(key, add.delta, Some(*sum))
            }
            (_, Some(answer)) => Err(format!("answered {answer:?} to {operation:?}")),
        }
    }

    fn delete(&mut self, key: u64, answer: Option<&OpAnswer>) -> Result<(), Contradiction> {
        if let Some(OpAnswer::Count(0)) = answer {
            return self.effects.see(key, None);
        }
        let is_register = kind_of(key) == KeyKind::Register;
        if answer.is_some() && is_register && self.effects.now(key) == Some(None) {
            return Err(format!("removed key {key}, which was absent"));
        }
        for (key, _) in contents(key, None)? {
            self.effects.write(key, None);
        }
        Ok(())
    }

    /// Notes that fields were removed. `count` is the number of fields that existed; `None` if the
    /// answer does not say it.
    fn delete_fields(
        &mut self,
        record: u64,
        delete: &DeleteFields,
        count: Option<usize>,
    ) -> Result<(), Contradiction> {
        let keys = delete.names.iter().map(|name| key_of_field(record, name));
        let keys = keys.collect::<Option<Vec<u64>>>();
        let keys = keys.ok_or("has an unknown field")?;
        if let Some(count) = count {
            let known = |is_present: bool| {
                let now = keys.iter().filter_map(|key| self.effects.now(*key));
                now.filter(|value| value.is_some() == is_present).count()
            };
            if count < known(true) || count + known(false) > keys.len() {
                return Err(format!("removed {count} of the fields {keys:?}"));
            }
        }
        for key in keys {
            match count {
                Some(0) => self.effects.see_field(key, None)?,
                _ => self.effects.write(key, None),
            }
        }
        Ok(())
    }

    /// Checks each comparison that held, if the value of its key is known.
    fn check_bounds(&self, held: &[Comparison]) -> Result<(), Contradiction> {
        for comparison in held {
            let key = number(&comparison.key);
            let (KeyKind::Register, Some(found)) = (kind_of(key), self.effects.found(key)) else {
                continue;
            };
            let value = found.map(stored);
            if let Some(condition) = &comparison.condition
                && !holds(condition, value.as_ref())
            {
                return Err(format!(
                    "says that {comparison:?} held, and found {value:?}"
                ));
            }
        }
        Ok(())
    }
}

/// Length of a token in a list, in bytes.
const TOKEN: u64 = super::keys::TOKEN_BYTES as u64;

/// Returns true if a condition holds for a value. `None` stands for a key that does not exist. A
/// condition on the version counts as true for any value.
fn holds(condition: &Condition, value: Option<&Bytes>) -> bool {
    match condition {
        Condition::Version(_) => value.is_some(),
        Condition::Present(present) => value.is_some() == *present,
        Condition::Equal(other) => value.is_some_and(|value| value == other),
        Condition::Less(other) => value.is_none_or(|value| value < other),
        Condition::AtMost(other) => value.is_none_or(|value| value <= other),
        Condition::Greater(other) => value.is_some_and(|value| value > other),
        Condition::AtLeast(other) => value.is_some_and(|value| value >= other),
    }
}

#[cfg(test)]
mod tests;
