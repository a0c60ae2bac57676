//! Limits the size of one message (hazard 82). All code that gathers items into messages must use
//! these limits. A message that does not fit into a frame is never sent, so all its items would be
//! lost. Each repetition of the message would be lost, too.
//!
//! A part is a quarter of a frame. So the size estimate of an item need not be exact, and the bytes
//! around the items can be ignored. A single item may be larger than a part: clients' commands and
//! answers may be as long as a frame less 64 KiB. Such an item is sent alone.

use leasehold_leases::mutants::{Rule, off};
use leasehold_wire::Outcome;
use prost::Message as _;
use smallvec::SmallVec;

use super::message::{Message, ReadAnswer};

/// Maximum total of the size estimates of the items in one message, in bytes.
pub const PART_BYTES: usize = 1 << 20;
/// Bytes added to each item's size estimate for its names, numbers and lengths.
pub const ITEM_OVERHEAD: usize = 64;
/// Maximum number of ranges of committed slots in one message. 2,000 ranges take at most 36 KB, so
/// the message still has space for the largest command. A peer learns the remaining ranges later,
/// when the first open slots are committed.
pub const NEWS_RANGES_MAX: usize = 2000;

/// Size, in bytes, of the items that one message contains so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Capacity {
    used: usize,
}

impl Capacity {
    /// Adds an item of about `size` bytes if the item fits, and returns whether it fits. The first
    /// item always fits.
    pub fn takes(&mut self, size: usize) -> bool {
        let used = self.used + size + ITEM_OVERHEAD;
        let fits = self.used == 0 || used <= PART_BYTES || off(Rule::H82Frames);
        if fits {
            self.used = used;
        }
        fits
    }
}

/// Splits `items` into parts, one for each message. The items stay in their order.
pub fn chunks<T>(items: Vec<T>, size: impl Fn(&T) -> usize) -> SmallVec<[Vec<T>; 1]> {
    let mut parts = SmallVec::new();
    let mut capacity = Capacity::default();
    if items.iter().all(|item| capacity.takes(size(item))) {
        parts.extend((!items.is_empty()).then_some(items));
        return parts;
    }
    let mut capacity = Capacity::default();
    let mut part = Vec::new();
    for item in items {
        let size = size(&item);
        if !capacity.takes(size) {
            parts.push(std::mem::take(&mut part));
            capacity = Capacity::default();
            capacity.takes(size);
        }
        part.push(item);
    }
    parts.push(part);
    assert!(
        parts.iter().all(|part: &Vec<T>| !part.is_empty()),
        "no part is empty"
    );
    parts
}

/// Returns the number of bytes of an outcome on the wire.
pub fn outcome_size(outcome: &Outcome) -> usize {
    outcome.encoded_len()
}

/// Returns the messages that carry these answers.
pub fn read_answers(answers: Vec<ReadAnswer>) -> impl Iterator<Item = Message> {
    let size = |answer: &ReadAnswer| {
        let outcome = answer.outcome.as_ref();
        outcome.map_or(0, |(outcome, _)| outcome_size(outcome))
    };
    chunks(answers, size).into_iter().map(Message::ReadAnswers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_split_only_where_they_do_not_fit_together() {
        let parts = |sizes: &[usize]| -> Vec<usize> {
            let parts = chunks(sizes.to_vec(), |size| *size);
            parts.iter().map(Vec::len).collect()
        };
        let half = PART_BYTES / 2 - ITEM_OVERHEAD;
        assert_eq!(parts(&[]), [0; 0]);
        assert_eq!(parts(&[1, 2, 3]), [3]);
        assert_eq!(parts(&[half, half]), [2]);
        assert_eq!(parts(&[half, half + 1]), [1, 1]);
        assert_eq!(parts(&[600_000, 600_000, 1, 2_000_000]), [1, 2, 1]);
        assert_eq!(parts(&[2_000_000, 0, 0]), [1, 2]);
    }
}
