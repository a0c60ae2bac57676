//! Makes a violation small enough for people to read. A step may remove a part only if every
//! history that has an order also has one without this part. So if the rest has no order, the whole
//! has none either. A history that has an order still has one
//!
//! - if it is cut at a moment: transactions that had not begun are removed, and transactions that
//!   had not ended stay open;
//! - without a read, or without a compare-and-swap that failed;
//! - without a write of a value that no transaction finds, unless a failed swap may need it, or it
//!   is a deletion and a transaction finds absence.

use super::prepare::PreparedTransactions;
use super::search::{self, SearchOutcome};
use super::{Transaction, without_unread};
use crate::history::HistoryAction;

/// Maximum number of states that one attempt may expand.
const OF_ATTEMPT: usize = 100_000;
/// Limit for the work of all attempts for one violation. Work is the number of expanded states plus
/// the number of judged transactions.
const WORK: usize = 3_000_000;

/// Returns a contradiction that is as small as can be found in reasonable time.
pub(super) fn shrink(transactions: Vec<Transaction>) -> Vec<Transaction> {
    let mut work = WORK;
    let mut transactions = cut(transactions, &mut work);
    drop_pieces(&mut transactions, &mut work);
    drop_parts(&mut transactions, &mut work);
    transactions
}

/// Returns the shortest initial part of the history that is a contradiction by itself. This part
/// may end later than the moment at which the search found the contradiction, because the search
/// also uses later reads.
fn cut(transactions: Vec<Transaction>, work: &mut usize) -> Vec<Transaction> {
    let mut ends: Vec<u64> = transactions.iter().filter_map(|t| t.return_ns).collect();
    ends.sort_unstable();
    let first = ends.partition_point(|end| !contradicts(&until(&transactions, *end), work));
    match ends.get(first) {
        Some(end) => until(&transactions, *end),
        None => transactions,
    }
}

/// Returns the transactions as they were known at time `at_ns`.
fn until(transactions: &[Transaction], at_ns: u64) -> Vec<Transaction> {
    let begun = transactions.iter().filter(|t| t.invoke_ns <= at_ns);
    let known = |transaction: &Transaction| {
        let return_ns = transaction.return_ns.filter(|end| *end <= at_ns);
        without_unread(&Transaction {
            return_ns,
            ..transaction.clone()
        })
    };
    begun.filter_map(known).collect()
}

/// Removes pieces of the history that the contradiction does not need. The function begins with
/// large pieces, and continues with smaller pieces.
fn drop_pieces(transactions: &mut Vec<Transaction>, work: &mut usize) {
    let mut piece = transactions.len().max(1);
    loop {
        let mut dropped = false;
        let mut from = 0;
        while from < transactions.len() && *work > 0 {
            let smaller = without(transactions, from..from + piece);
            if smaller != *transactions && contradicts(&smaller, work) {
                dropped = true;
                *transactions = smaller;
            } else {
                from += piece;
            }
        }
        if *work == 0 || piece == 1 && !dropped {
            return;
        }
        piece = (piece / 2).max(1);
    }
}

/// Whether the search finds that no order of these transactions is possible. `work` limits the
/// search.
fn contradicts(transactions: &[Transaction], work: &mut usize) -> bool {
    let allowance = OF_ATTEMPT.min(work.saturating_sub(transactions.len()));
    *work = work.saturating_sub(allowance + transactions.len());
    let Ok(prepared) = PreparedTransactions::new(transactions) else {
        return false;
    };
    let mut steps = allowance;
    let outcome = search::run(&prepared, &mut steps);
    *work += steps;
    matches!(outcome, SearchOutcome::Contradiction)
}

/// Returns the transactions without those parts in `range` that may be removed.
fn without(transactions: &[Transaction], range: std::ops::Range<usize>) -> Vec<Transaction> {
    let mut left = transactions.to_vec();
    // Reads are removed first, since a write may be removed only if no transaction finds its value.
    for drop in [is_passive, |_: &_| true] {
        for index in (range.start..range.end.min(left.len())).rev() {
            for part in (0..left[index].parts.len()).rev() {
                if drop(&left[index].parts[part].1) && may_drop(&left, index, part) {
                    left[index].parts.remove(part);
                }
            }
        }
    }
    left.retain(|transaction| !transaction.parts.is_empty());
    left
}

/// Removes single parts of transactions that the contradiction does not need.
fn drop_parts(transactions: &mut [Transaction], work: &mut usize) {
    for index in (0..transactions.len()).rev() {
        for part in (0..transactions[index].parts.len()).rev() {
            if *work == 0 || transactions[index].parts.len() < 2 {
                break;
            }
            if !may_drop(transactions, index, part) {
                continue;
            }
            let dropped = transactions[index].parts.remove(part);
            if !contradicts(transactions, work) {
                transactions[index].parts.insert(part, dropped);
            }
        }
    }
}

fn is_passive(action: &HistoryAction) -> bool {
    matches!(
        action,
        HistoryAction::Read { .. } | HistoryAction::Cas { swapped: false, .. }
    )
}

/// Whether this part may be removed. A removal must preserve possible orders: if the history with
/// the part has a possible order, the history without the part has one, too.
fn may_drop(transactions: &[Transaction], index: usize, part: usize) -> bool {
    let open = transactions[index].return_ns.is_none();
    let (key, action) = transactions[index].parts[part];
    if is_passive(&action) && !open {
        return true;
    }
    let others = || {
        let others = transactions.iter().enumerate();
        let parts = others.filter(move |(other, _)| *other != index);
        parts.flat_map(|(_, other)| {
            let open = other.return_ns.is_none();
            other
                .parts
                .iter()
                .map(move |(key, action)| (key, action, open))
        })
    };
    let written = match action {
        HistoryAction::Write { value } | HistoryAction::Cas { new: value, .. } => Some(value),
        HistoryAction::Delete | HistoryAction::Read { .. } => None,
    };
    !others().any(|(of, other, open)| {
        *of == key
            && match other {
                HistoryAction::Read { value } => *value == written,
                HistoryAction::Cas {
                    expected, swapped, ..
                } => !swapped && !open || *expected == written,
                HistoryAction::Write { .. } | HistoryAction::Delete => false,
            }
    })
}
