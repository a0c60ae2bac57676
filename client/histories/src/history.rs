//! The record of a run. For each operation, it has the process, the key, the action with its
//! result, and the times at which the operation began and was answered. It contains no versions and
//! nothing else that servers state about themselves, because the servers are judged by this record.
//!
//! Every write carries a value that no other write carries, and a [`ValueId`] names this value. So
//! the result of a read shows which write the read saw. A write without an answer stays open: it
//! may take effect at any time, or never. A read without an answer says nothing, and is omitted.

mod file;

use bytes::Bytes;

pub use file::HistoryError;

/// Maximum time of an operation, in nanoseconds. Checkers need two later times for themselves: the end
/// of an operation is its time plus one, and an operation that may take effect at any time ends even
/// later.
pub(crate) const TIME_NS_MAX: u64 = u64::MAX - 2;

/// Name of a value that a write stores. Different writes of a run store different values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub u64);

impl ValueId {
    /// Id for bytes that no write of a run stored. If a process reads such bytes, this is a
    /// violation. This id never stands for an absent key.
    pub const DAMAGED: ValueId = ValueId(u64::MAX);

    /// Returns the stored form of this value with a length of eight bytes.
    pub fn to_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }

    /// Returns the stored form of this value. The stored form has `bytes` bytes, but at least
    /// eight. Every byte depends on the id, and the first eight bytes also depend on the length.
    pub fn to_value(self, bytes: usize) -> Bytes {
        let bytes = bytes.max(8);
        let head = (self.0 ^ length_mask(bytes)).to_be_bytes();
        let mut value = head.repeat(bytes.div_ceil(8));
        value.truncate(bytes);
        value.into()
    }

    /// Returns the id of the write that stored these bytes; `None` if no write stored them. Every
    /// byte is compared. For a value that was cut off after eight or more bytes, the result is
    /// `None`, or an id that no write has.
    pub fn from_value(value: &[u8]) -> Option<ValueId> {
        let (head, rest) = value.split_first_chunk::<8>()?;
        let same = |part: &[u8]| part == &head[..part.len()];
        let id = ValueId(u64::from_be_bytes(*head) ^ length_mask(value.len()));
        rest.chunks(8).all(same).then_some(id)
    }

    /// Returns the id of the write that stored these bytes; [`ValueId::DAMAGED`] if no write stored
    /// them.
    pub fn of_value(value: &[u8]) -> ValueId {
        ValueId::from_value(value).unwrap_or(ValueId::DAMAGED)
    }
}

/// Returns a number that depends on the length of a value; 0 for eight bytes. The id of the value
/// is stored as `id ^ length_mask(bytes)`. Two masks differ much more than two ids, so values of
/// different lengths are not confused.
fn length_mask(bytes: usize) -> u64 {
    (bytes as u64 - 8).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Effect of an operation. For an operation with an answer, this is the effect according to the
/// answer. For an operation without an answer, this is the intended effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HistoryAction {
    /// The operation read the key and found `value`.
    Read {
        /// Value that was found; `None` if the key did not exist.
        value: Option<ValueId>,
    },
    /// The operation wrote the key, whether or not the key existed before.
    Write {
        /// Value that was written.
        value: ValueId,
    },
    /// The operation removed the key, if the key existed.
    Delete,
    /// The operation was a compare-and-swap by version. A value stands for its version here,
    /// because no two writes have the same value.
    Cas {
        /// Value that is expected to be current; `None` if the key is expected to be absent.
        expected: Option<ValueId>,
        /// New value of the key.
        new: ValueId,
        /// Whether the new value was written. This flag has no meaning if the operation has no
        /// answer.
        swapped: bool,
    },
}

/// One operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HistoryEvent {
    /// Process that issued the operation. A process has only one operation in flight at a time.
    pub process: u32,
    /// Number that identifies the key.
    pub key: u64,
    /// Action on the key, with its result.
    pub action: HistoryAction,
    /// Time at which the operation began, in nanoseconds. All times of the history are read from
    /// one clock.
    pub invoke_ns: u64,
    /// Time at which the operation's answer arrived, by the same clock; `None` if no answer
    /// arrived.
    pub return_ns: Option<u64>,
}

/// The operations of a run, in any order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    events: Vec<HistoryEvent>,
}

impl History {
    /// Returns an empty history.
    pub fn new() -> Self {
        History::default()
    }

    /// Returns an empty history with space for `operations` operations.
    pub fn with_capacity(operations: usize) -> Self {
        History {
            events: Vec::with_capacity(operations),
        }
    }

    /// Adds an operation, unless it is a read without an answer.
    pub fn push(&mut self, event: HistoryEvent) {
        let says_nothing =
            event.return_ns.is_none() && matches!(event.action, HistoryAction::Read { .. });
        if !says_nothing {
            self.events.push(event);
        }
    }

    /// Adds all operations of another history. Requirement: both histories use the same clock, and
    /// have no process in common.
    pub fn merge(&mut self, other: History) {
        self.events.extend(other.events);
    }

    /// Returns all operations, in the order in which they were added.
    pub fn events(&self) -> &[HistoryEvent] {
        &self.events
    }

    /// Returns the number of operations.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether there are no operations.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}

impl Extend<HistoryEvent> for History {
    fn extend<T: IntoIterator<Item = HistoryEvent>>(&mut self, events: T) {
        events.into_iter().for_each(|event| self.push(event));
    }
}

impl FromIterator<HistoryEvent> for History {
    fn from_iter<T: IntoIterator<Item = HistoryEvent>>(events: T) -> Self {
        let mut history = History::new();
        history.extend(events);
        history
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(value: u64) -> HistoryEvent {
        HistoryEvent {
            process: 1,
            key: 2,
            action: HistoryAction::Write {
                value: ValueId(value),
            },
            invoke_ns: 1_000_000 * value,
            return_ns: Some(1_000_000 * value + 500_000),
        }
    }

    #[test]
    fn an_unanswered_write_stays_and_an_unanswered_read_does_not() {
        let mut open = write(1);
        open.return_ns = None;
        let mut history = History::new();
        history.push(open);
        let action = HistoryAction::Read { value: None };
        history.push(HistoryEvent { action, ..open });
        assert_eq!(history.events(), [open]);

        let mut other = History::new();
        other.push(write(2));
        history.merge(other);
        assert_eq!(history.events(), [open, write(2)]);
    }

    #[test]
    fn every_byte_of_a_value_says_who_wrote_it() {
        let id = ValueId(0x0102_0304_0506_0708);
        assert_eq!(id.to_value(8), id.to_bytes()[..]);
        assert_eq!(id.to_value(0), id.to_bytes()[..]);
        for bytes in [8, 9, 15, 16, 17, 100] {
            let value = id.to_value(bytes);
            assert_eq!((value.len(), ValueId::of_value(&value)), (bytes, id));
            for cut in 0..bytes {
                assert_ne!(ValueId::of_value(&value[..cut]), id, "{cut} of {bytes}");
            }
            for changed in 0..bytes {
                let mut value = value.to_vec();
                value[changed] ^= 1;
                assert_ne!(ValueId::of_value(&value), id, "{changed} of {bytes}");
            }
        }
        assert_eq!(ValueId::of_value(b""), ValueId::DAMAGED);
        assert_eq!(ValueId::of_value(b"short"), ValueId::DAMAGED);
    }

    #[test]
    fn a_cut_value_is_of_no_write() {
        let written: std::collections::BTreeSet<_> = (1..2_000).map(ValueId).collect();
        for id in &written {
            let value = id.to_value(100);
            for cut in 0..100 {
                assert!(!written.contains(&ValueId::of_value(&value[..cut])));
            }
        }
    }
}
