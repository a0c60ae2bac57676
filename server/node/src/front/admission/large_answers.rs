//! Large answers to clients. Each event-loop iteration encodes only a limited number of bytes of
//! them.
//!
//! Thousands of small requests for large values may arrive in one event-loop iteration. Most values
//! are in the replica's own state and take no additional memory until they are encoded. So an
//! iteration encodes only some bytes of large answers. The other large answers wait for later
//! iterations, which serve connections round-robin. Small answers overtake them. The delay harms no
//! read: its value was the newest at some moment after the request had arrived.
//!
//! If a value is overwritten, a waiting answer alone may keep the old value in memory. A transaction
//! that gets a value and overwrites it does this each time. So the bytes of waiting answers to
//! transactions are limited. Above the limit, these answers are encoded immediately. The limits on
//! the unread bytes of a connection apply to encoded answers.

use leasehold_wire::{Response, outcome};

use leasehold_replica::round_robin::RoundRobinQueue;

/// Maximum size of the large answers that one event-loop iteration encodes, in bytes. The last
/// answer may exceed this maximum.
const BYTES_PER_ITERATION: usize = 512 << 10;
/// Maximum size of a small answer, in bytes.
const SMALL_BYTES: usize = 4 << 10;

/// Waiting large answers, and the number of bytes that the current event-loop iteration has
/// encoded.
#[derive(Debug, Default)]
pub(crate) struct LargeAnswers {
    waiting: RoundRobinQueue<(Response, usize)>,
    /// Total size of the waiting answers to transactions, in bytes.
    txn_bytes: usize,
    /// Maximum of `txn_bytes`.
    txn_bytes_max: usize,
    encoded: usize,
}

impl LargeAnswers {
    /// Creates an empty queue, in which answers to transactions may have `txn_bytes_max` bytes
    /// together.
    pub(crate) fn new(txn_bytes_max: usize) -> LargeAnswers {
        LargeAnswers {
            txn_bytes_max,
            ..LargeAnswers::default()
        }
    }

    /// Returns the answer if it must be encoded now. Otherwise keeps the answer for a later
    /// event-loop iteration and returns `None`.
    pub(crate) fn admit(&mut self, connection: u64, response: Response) -> Option<Response> {
        let bytes = bytes(&response);
        if bytes <= SMALL_BYTES {
            return Some(response);
        }
        let must_wait = self.encoded >= BYTES_PER_ITERATION || !self.waiting.is_empty();
        let txn_bytes = txn_bytes(&response, bytes);
        if must_wait && self.txn_bytes + txn_bytes <= self.txn_bytes_max {
            self.txn_bytes += txn_bytes;
            self.waiting.push(connection, (response, bytes));
            return None;
        }
        self.encoded += bytes;
        Some(response)
    }

    /// Begins a new event-loop iteration, which has encoded nothing yet.
    pub(crate) fn begin_iteration(&mut self) {
        self.encoded = 0;
    }

    /// Removes a waiting answer, and returns it with its connection. Returns `None` if no answer
    /// waits, or if the current event-loop iteration may not encode another answer.
    pub(crate) fn pop(&mut self) -> Option<(u64, Response)> {
        if self.encoded >= BYTES_PER_ITERATION {
            return None;
        }
        let (connection, (response, bytes)) = self.waiting.pop()?;
        self.txn_bytes -= txn_bytes(&response, bytes);
        self.encoded += bytes;
        Some((connection, response))
    }

    /// Removes and returns all answers that wait for a closed connection.
    pub(crate) fn forget(&mut self, connection: u64) -> impl Iterator<Item = Response> {
        let waited = self.waiting.take(connection);
        let of_txns = waited
            .iter()
            .map(|(response, bytes)| txn_bytes(response, *bytes));
        self.txn_bytes -= of_txns.sum::<usize>();
        waited.into_iter().map(|(response, _)| response)
    }

    /// Returns true if no answer waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// Returns `bytes` for an answer to a transaction, and 0 for any other answer.
fn txn_bytes(response: &Response, bytes: usize) -> usize {
    let result = response.outcome.as_ref().and_then(|o| o.result.as_ref());
    match result {
        Some(outcome::Result::Txn(_)) => bytes,
        _ => 0,
    }
}

/// Returns the approximate size of an answer in bytes; 0 for answers that are always small.
fn bytes(response: &Response) -> usize {
    if response.status.is_some() {
        return prost::Message::encoded_len(response);
    }
    let result = response.outcome.as_ref().and_then(|o| o.result.as_ref());
    match result {
        Some(outcome::Result::Value(entry)) => entry.value.len(),
        Some(outcome::Result::Entries(entries)) => {
            let entries = entries.entries.iter();
            entries
                .map(|entry| entry.key.len() + entry.value.len())
                .sum()
        }
        Some(outcome::Result::Txn(result)) => prost::Message::encoded_len(result),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use leasehold_wire::{Outcome, Path, Version};

    use super::*;

    fn value(request: u64, bytes: usize) -> Response {
        let outcome = Outcome::value(Bytes::from(vec![7; bytes]), Version::default());
        Response::answer(request, Path::Unspecified, outcome)
    }

    /// Returns the answer to a transaction that found a value of `bytes` bytes.
    fn txn(request: u64, bytes: usize) -> Response {
        let found = leasehold_wire::Value {
            value: vec![7; bytes].into(),
            version: Some(Version::default()),
        };
        let failed = leasehold_wire::FailedComparison {
            index: 0,
            found: Some(found),
        };
        let outcome = Outcome::txn(leasehold_wire::TxnResult {
            failed: Some(failed),
            ..Default::default()
        });
        Response::answer(request, Path::Unspecified, outcome)
    }

    #[test]
    fn a_round_encodes_some_large_answers_to_transactions() {
        let mut answers = LargeAnswers::new(usize::MAX);
        let mut passed = |request, bytes| answers.admit(1, txn(request, bytes)).is_some();
        assert!(passed(1, BYTES_PER_ITERATION));
        assert!(!passed(2, SMALL_BYTES) && passed(3, SMALL_BYTES / 2));
        assert_eq!(round(&mut answers), [(1, 2)]);
    }

    /// Takes the answers that one event-loop iteration sends. Returns the connection and the
    /// request number of each answer.
    fn round(answers: &mut LargeAnswers) -> Vec<(u64, u64)> {
        answers.begin_iteration();
        let popped = std::iter::from_fn(|| answers.pop());
        popped
            .map(|(whose, response)| (whose, response.id))
            .collect()
    }

    /// Otherwise, clients that never read could make the node keep any number of old values.
    #[test]
    fn answers_above_the_limit_do_not_wait() {
        const HALF: usize = BYTES_PER_ITERATION / 2;
        // An answer to a transaction is a few bytes longer than its value.
        let mut answers = LargeAnswers::new(2 * HALF + 200);
        let passed = |answers: &mut LargeAnswers, connection, request| {
            answers.admit(connection, txn(request, HALF)).is_some()
        };
        let all: Vec<bool> = (1..=6).map(|it| passed(&mut answers, it, it)).collect();
        assert_eq!(all, [true, true, false, false, true, true]);
        assert!(answers.admit(7, value(7, HALF)).is_none());
        assert_eq!(round(&mut answers), [(3, 3), (4, 4)]);
        assert!(!passed(&mut answers, 8, 8) && !passed(&mut answers, 9, 9));
        assert_eq!(answers.forget(8).count(), 1);
        assert!(!passed(&mut answers, 10, 10) && passed(&mut answers, 10, 11));
    }

    #[test]
    fn a_round_encodes_some_large_answers_and_all_small_ones() {
        let mut answers = LargeAnswers::new(usize::MAX);
        const HALF: usize = BYTES_PER_ITERATION / 2;
        let passed = |answers: &mut LargeAnswers, connection, request, bytes| {
            answers.admit(connection, value(request, bytes)).is_some()
        };
        assert!(passed(&mut answers, 1, 1, HALF));
        assert!(passed(&mut answers, 1, 2, HALF));
        for request in 3..=6 {
            assert!(!passed(&mut answers, 1, request, HALF));
        }
        assert!(!passed(&mut answers, 2, 1, HALF));
        assert!(passed(&mut answers, 2, 2, SMALL_BYTES));
        assert_eq!(round(&mut answers), [(1, 3), (2, 1)]);
        assert!(!passed(&mut answers, 3, 1, HALF), "others wait already");
        assert_eq!(round(&mut answers), [(1, 4), (3, 1)]);
        assert_eq!(round(&mut answers), [(1, 5), (1, 6)]);
        assert!(answers.is_empty());
        assert!(round(&mut answers).is_empty());
        for connection in [1, 1, 1, 1, 2] {
            passed(&mut answers, connection, 7, HALF);
        }
        assert_eq!(answers.forget(1).count(), 2);
        assert_eq!(round(&mut answers), [(2, 7)]);
    }
}
