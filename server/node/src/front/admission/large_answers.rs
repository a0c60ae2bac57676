//! Large answers to clients. Each event-loop iteration encodes only a limited number of bytes of
//! them.
//!
//! Thousands of small requests for large values may arrive in one event-loop iteration. Most values
//! are in the replica's own state and take no additional memory until they are encoded. Values that
//! a transaction writes and then gets may be in its answer alone, so their memory is charged in
//! full ([`connection`](crate::front::connection)). An iteration encodes only some bytes of large
//! answers. The other large answers wait for later iterations, which serve connections round-robin.
//! Small answers overtake them. The delay harms no read: its value was the newest at some moment
//! after the request had arrived.

use leasehold_wire::{Response, outcome};

use leasehold_replica::round_robin::RoundRobinQueue;

/// Maximum size of the large answers that one event-loop iteration encodes, in bytes. The last
/// answer may exceed this maximum.
const BYTES_PER_ITERATION: usize = 2 << 20;
/// Maximum size of a small answer, in bytes.
const SMALL_BYTES: usize = 4 << 10;

/// Waiting large answers, and the number of bytes that the current event-loop iteration has
/// encoded.
#[derive(Debug, Default)]
pub(crate) struct LargeAnswers {
    waiting: RoundRobinQueue<(Response, usize)>,
    encoded: usize,
}

impl LargeAnswers {
    /// Returns the answer if it may be encoded now. Otherwise keeps the answer for a later
    /// event-loop iteration and returns `None`.
    pub(crate) fn admit(&mut self, connection: u64, response: Response) -> Option<Response> {
        let bytes = bytes(&response);
        if bytes <= SMALL_BYTES {
            return Some(response);
        }
        if self.encoded >= BYTES_PER_ITERATION || !self.waiting.is_empty() {
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
        self.encoded += bytes;
        Some((connection, response))
    }

    /// Removes and returns all answers that wait for a closed connection.
    pub(crate) fn forget(&mut self, connection: u64) -> impl Iterator<Item = Response> {
        let waited = self.waiting.take(connection);
        waited.into_iter().map(|(response, _)| response)
    }

    /// Returns true if no answer waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
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
        let mut answers = LargeAnswers::default();
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

    #[test]
    fn a_round_encodes_some_large_answers_and_all_small_ones() {
        let mut answers = LargeAnswers::default();
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
