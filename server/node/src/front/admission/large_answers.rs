//! Large answers, of which a round encodes some.
//!
//! Thousands of small requests may arrive in one round, each of which asks for a large value.
//! The values are the replica's own and take no memory until they are encoded. So a round
//! encodes only some bytes of large answers, and the others wait for the next ones, where
//! connections have turns. Small answers pass them. To leave later harms no read: its value
//! was the newest at a moment after the request had come.

use leasehold_wire::{Response, outcome};

use leasehold_replica::round_robin::RoundRobinQueue;

/// Bytes of large answers that a round encodes. The last one may exceed it.
const BYTES_PER_ITERATION: usize = 2 << 20;
/// An answer is small up to here.
const SMALL_BYTES: usize = 4 << 10;

/// Answers that wait, and how much this round has encoded.
#[derive(Debug, Default)]
pub(crate) struct LargeAnswers {
    waiting: RoundRobinQueue<(Response, usize)>,
    encoded: usize,
}

impl LargeAnswers {
    /// The answer, if it is to be encoded now. Else it waits.
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

    /// A round begins.
    pub(crate) fn begin_iteration(&mut self) {
        self.encoded = 0;
    }

    /// One that has waited, if this round may encode it, and for which connection it is.
    pub(crate) fn pop(&mut self) -> Option<(u64, Response)> {
        if self.encoded >= BYTES_PER_ITERATION {
            return None;
        }
        let (connection, (response, bytes)) = self.waiting.pop()?;
        self.encoded += bytes;
        Some((connection, response))
    }

    /// Takes all that wait for a connection that is closed.
    pub(crate) fn forget(&mut self, connection: u64) -> impl Iterator<Item = Response> {
        let waited = self.waiting.take(connection);
        waited.into_iter().map(|(response, _)| response)
    }

    /// Whether none waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// About how many bytes an answer has, if they may be many.
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

    /// Answers that leave in an iteration: the connection of each, and the request's number.
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
