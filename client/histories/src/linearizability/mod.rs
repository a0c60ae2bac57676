//! Checks that a history is linearizable. It uses only the values that operations wrote or found,
//! and the times at which operations began and ended.
//!
//! Linearizability is local (Herlihy & Wing 1990): a history is linearizable if its operations on
//! each key are. A key is one register, which is absent at first. For each key:
//!
//! 1. `prepare` finds answers that no order can explain (such as a value that no operation wrote),
//!    and decides about writes without an answer. If an operation saw such a write, the write took
//!    effect before the end of the first such operation. If no operation saw the write, the write
//!    can be omitted.
//! 2. If there are only reads and writes, `blocks` decides in O(n log n), because every value has
//!    one write (Gibbons & Korach, "Testing shared memories", 1997).
//! 3. Absence has many writes. With deletions and compare-and-swaps, `sweep` places all other
//!    operations around the blocks, in one pass.
//! 4. If a compare-and-swap failed and the pass found no order, `search` follows all possible
//!    orders in parallel. If this takes too many steps, it returns `Unknown`.
//!
//! Two operations are ordered only if one ended strictly before the other began.

mod blocks;
pub(crate) mod explain;
pub(crate) mod frontier;
mod prepare;
mod relevance;
mod search;
mod sweep;

#[cfg(test)]
mod brute;
#[cfg(test)]
pub(crate) mod generate;
#[cfg(test)]
mod tests;

use crate::history::{History, HistoryEvent};

/// Result of checking a history for linearizability.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinearizabilityVerdict {
    /// Some order of the operations explains every answer.
    Linearizable {
        /// Number of operations judged.
        ops: usize,
        /// Number of keys that the operations concern.
        keys: usize,
    },
    /// No order of the operations explains every answer.
    Violation {
        /// Key at which the violation was found. There may be violations at other keys, too.
        key: u64,
        /// Description of the contradictory operations and of their times.
        explanation: String,
        /// Operations that contradict each other, in the order in which they began.
        events: Vec<HistoryEvent>,
    },
    /// No violation was found, but not every key could be judged.
    Unknown {
        /// The first key that could not be judged.
        key: u64,
        /// Reason why the key could not be judged.
        reason: String,
    },
}

impl LinearizabilityVerdict {
    /// Whether the verdict is `Linearizable`.
    pub fn is_linearizable(&self) -> bool {
        matches!(self, LinearizabilityVerdict::Linearizable { .. })
    }
}

/// Reason why the check of a key failed: a violation, or a limit that was reached.
#[derive(Debug)]
enum Flaw {
    Violation {
        explanation: String,
        events: Vec<HistoryEvent>,
    },
    Unknown {
        reason: String,
    },
}

impl Flaw {
    /// Builds a violation. The operations in `concerned` are appended to the explanation, one on
    /// each line.
    fn violation<'a>(
        explanation: String,
        concerned: impl IntoIterator<Item = &'a HistoryEvent>,
    ) -> Flaw {
        let mut events: Vec<HistoryEvent> = concerned.into_iter().copied().collect();
        events.sort_by_key(|event| (event.invoke_ns, event.return_ns, event.process));
        events.dedup();
        let explanation = explanation + ":" + &explain::list(&events);
        Flaw::Violation {
            explanation,
            events,
        }
    }

    fn at(self, key: u64) -> LinearizabilityVerdict {
        match self {
            Flaw::Violation {
                explanation,
                events,
            } => LinearizabilityVerdict::Violation {
                key,
                explanation,
                events,
            },
            Flaw::Unknown { reason } => LinearizabilityVerdict::Unknown { key, reason },
        }
    }
}

/// Judges a whole history. Returns the first violation immediately. A key that cannot be judged
/// does not hide a violation at another key.
pub fn check(history: &History) -> LinearizabilityVerdict {
    let mut events: Vec<&HistoryEvent> = history.events().iter().collect();
    events.sort_by_cached_key(|event| (event.key, event.invoke_ns, event.return_ns));
    let mut budget = search::Budget::for_ops(events.len());
    let mut keys = 0;
    let mut unknown = None;
    for of_key in events.chunk_by(|a, b| a.key == b.key) {
        keys += 1;
        let Err(flaw) = check_key(of_key, &mut budget) else {
            continue;
        };
        let verdict = flaw.at(of_key[0].key);
        if matches!(verdict, LinearizabilityVerdict::Violation { .. }) {
            return verdict;
        }
        unknown.get_or_insert(verdict);
    }
    let ops = events.len();
    unknown.unwrap_or(LinearizabilityVerdict::Linearizable { ops, keys })
}

/// Judges the operations of one key. The operations must be sorted by the time at which they began.
fn check_key(events: &[&HistoryEvent], budget: &mut search::Budget) -> Result<(), Flaw> {
    let key = prepare::prepare(events)?;
    if key.is_plain() {
        return blocks::Blocks::of(&key).map(drop);
    }
    match sweep::check(&key)? {
        sweep::SweepOutcome::Ordered => Ok(()),
        sweep::SweepOutcome::NotFound => search::check(&key, budget),
    }
}
