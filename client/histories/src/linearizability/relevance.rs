//! Finds the failed swaps that are explained in every order, and the writes that the other failed
//! swaps may need.
//!
//! A failed swap only shows that its expectation was wrong at some moment. Usually this follows
//! from the times alone. Otherwise some other value must have been current at the right moment, and
//! the search must not hide the write of that value.

use super::prepare::{NEVER, Op, OpKind, OpTime, PreparedKey, RegisterValue};

pub(super) struct Relevance {
    /// One entry for each mutation, sorted by begin. The first time is the begin of the mutation.
    /// The second time is the earliest end among this mutation and all mutations that begin later.
    ends_from: Vec<(OpTime, OpTime)>,
    /// Begin and end of the only write of each value. Absence counts as a value that is written
    /// before all others. The entry for absence is `None` if the key can become absent again.
    writes: Vec<Option<(OpTime, OpTime)>>,
}

impl Relevance {
    pub fn new(key: &PreparedKey) -> Self {
        let mutations = key.ops.iter().filter(|op| is_mutation(op));
        let mut ends_from: Vec<(OpTime, OpTime)> = mutations.map(|op| (op.begin, op.end)).collect();
        let mut earliest = NEVER;
        for (_, end) in ends_from.iter_mut().rev() {
            earliest = earliest.min(*end);
            *end = earliest;
        }
        let mut writes = vec![None; key.writers.len()];
        writes[RegisterValue::ABSENT.index()] = Some((0, 0));
        for op in &key.ops {
            match op.kind {
                OpKind::Write(value) | OpKind::Swap { new: value, .. } => {
                    writes[value.index()] = Some((op.begin, op.end));
                }
                OpKind::Delete => writes[RegisterValue::ABSENT.index()] = None,
                OpKind::Read(_) | OpKind::Fail { .. } => {}
            }
        }
        Relevance { ends_from, writes }
    }

    /// Returns the earliest moment at which the effect of an operation was certainly overwritten.
    /// `end` is the end of this operation.
    fn overwritten(&self, end: OpTime) -> OpTime {
        let later = self.ends_from.partition_point(|&(begin, _)| begin <= end);
        self.ends_from.get(later).map_or(NEVER, |&(_, end)| end)
    }

    /// Whether a failed swap's expectation was certainly wrong at some moment. This is the case if
    /// the expected value was never written. There is a second case: the expected value has only
    /// one write, and at a moment of the swap the value was not written yet, or was already
    /// overwritten.
    pub fn is_explained(&self, op: &Op) -> bool {
        let OpKind::Fail { expected } = op.kind else {
            return false;
        };
        if expected == RegisterValue::NEVER_WRITTEN {
            return true;
        }
        self.writes[expected.index()]
            .is_some_and(|(begin, end)| op.begin <= begin || self.overwritten(end) <= op.end)
    }

    /// Returns one flag for each operation: whether an unexplained failed swap might have found the
    /// value of this operation. The swap cannot have found the value in two cases: the value was
    /// overwritten before the swap began, or the operation began after the swap ended.
    pub fn of_unexplained(&self, key: &PreparedKey, explained: &[bool]) -> Vec<bool> {
        let mut latest = 0;
        let mut ends_to: Vec<(OpTime, OpTime)> = Vec::new();
        for (op, explained) in key.ops.iter().zip(explained) {
            if matches!(op.kind, OpKind::Fail { .. }) && !explained {
                latest = latest.max(op.end);
                ends_to.push((op.begin, latest));
            }
        }
        let is_relevant = |op: &Op| {
            let until = self.overwritten(op.end);
            let begun = ends_to.partition_point(|&(begin, _)| begin <= until);
            begun > 0 && ends_to[begun - 1].1 >= op.begin
        };
        key.ops.iter().map(is_relevant).collect()
    }
}

fn is_mutation(op: &Op) -> bool {
    !matches!(op.kind, OpKind::Read(_) | OpKind::Fail { .. })
}
