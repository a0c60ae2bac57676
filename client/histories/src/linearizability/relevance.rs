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
    /// Begin and end of the write of each value. Each value has only one write. Absence is treated
    /// as a value that is written before all others. The entry for absence is `None` if the key can
    /// become absent again.
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
    /// `end` is the end of the overwritten operation.
    fn overwritten(&self, end: OpTime) -> OpTime {
        let later = self.ends_from.partition_point(|&(begin, _)| begin <= end);
        self.ends_from.get(later).map_or(NEVER, |&(_, end)| end)
    }

    /// Whether the expected value of a failed swap was certainly not current at some moment of the
    /// swap. This is true if the expected value was never written. It is also true if the value has
    /// only one write, and at some moment of the swap, this write had not begun or was already
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
    /// value that this operation left. There are two cases in which the swap cannot have found the
    /// value. The value was overwritten before the swap began, or the operation began after the
    /// swap ended.
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
