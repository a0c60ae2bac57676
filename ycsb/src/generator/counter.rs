//! Counters that the tasks of a run share. One of the counters issues the numbers of records to
//! insert. This counter also knows the number below which all insertions have been answered.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Issues consecutive numbers.
#[derive(Debug)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Creates a counter that starts at `first`.
    pub fn new(first: u64) -> Self {
        Counter(AtomicU64::new(first))
    }

    /// Returns the next number.
    pub fn take(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// Counter that issues the numbers `first..=last` in order, again and again.
#[derive(Debug)]
pub struct Sequential {
    counter: Counter,
    first: u64,
    count: u64,
}

impl Sequential {
    /// Creates a counter that issues `count` numbers in a cycle, beginning with `first`. If `count`
    /// is 0, it is treated as 1.
    pub fn new(first: u64, count: u64) -> Self {
        Sequential {
            counter: Counter::new(0),
            first,
            count: count.max(1),
        }
    }

    /// Returns the next number.
    pub fn take(&self) -> u64 {
        self.first + self.counter.take() % self.count
    }
}

/// Length of the range of record numbers for which the counter stores acknowledgements. The range
/// begins at the oldest unanswered insertion.
const WINDOW: u64 = 1 << 20;

/// Error: an insertion was answered too early. Its record number exceeds the record number of the
/// oldest unanswered insertion by 2^20 or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {WINDOW} insertions are waiting behind an unanswered one")]
pub struct TooManyPending;

/// Issues record numbers for insertions. Also stores a bound: all insertions with lower record
/// numbers have been answered. Reads are limited to records below this bound.
#[derive(Debug)]
pub struct AcknowledgedCounter {
    next: AtomicU64,
    acknowledged: Mutex<AckWindow>,
    /// Copy of `AckWindow::below`. Every choice of a record reads this copy without the lock.
    below: AtomicU64,
}

#[derive(Debug)]
struct AckWindow {
    /// All insertions with record numbers below this one have been acknowledged.
    below: u64,
    /// Bit `n % WINDOW` is set if the insertion of `n` was answered. Only numbers `n` in
    /// `below..below + WINDOW` have a bit.
    window: Vec<u64>,
}

impl AcknowledgedCounter {
    /// Creates a counter that starts at `first`. All numbers below `first` are considered
    /// acknowledged.
    pub fn new(first: u64) -> Self {
        AcknowledgedCounter {
            next: AtomicU64::new(first),
            acknowledged: Mutex::new(AckWindow {
                below: first,
                window: vec![0; (WINDOW / 64) as usize],
            }),
            below: AtomicU64::new(first),
        }
    }

    /// Returns the next record number to insert.
    pub fn take(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the bound below which all insertions are acknowledged. So all records below this
    /// bound exist.
    pub fn below(&self) -> u64 {
        self.below.load(Ordering::Acquire)
    }

    /// Records that the insertion of `number` has been answered.
    pub fn acknowledge(&self, number: u64) -> Result<(), TooManyPending> {
        // A poisoned lock means that another task panicked. The counter itself is consistent after
        // every statement below.
        let mut state = match self.acknowledged.lock() {
            Ok(state) => state,
            Err(poisoned) => poisoned.into_inner(),
        };
        if number >= state.below + WINDOW {
            return Err(TooManyPending);
        }
        if number >= state.below {
            state.note(number);
            self.below.store(state.below, Ordering::Release);
        }
        Ok(())
    }
}

impl AckWindow {
    fn note(&mut self, number: u64) {
        let (word, bit) = position(number);
        self.window[word] |= bit;
        loop {
            let (word, bit) = position(self.below);
            if self.window[word] & bit == 0 {
                return;
            }
            self.window[word] &= !bit;
            self.below += 1;
        }
    }
}

fn position(number: u64) -> (usize, u64) {
    let slot = number % WINDOW;
    ((slot / 64) as usize, 1 << (slot % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_hand_out_consecutive_numbers() {
        let counter = Counter::new(5);
        assert_eq!([counter.take(), counter.take()], [5, 6]);
        let sequential = Sequential::new(10, 3);
        let taken: Vec<_> = (0..5).map(|_| sequential.take()).collect();
        assert_eq!(taken, [10, 11, 12, 10, 11]);
    }

    #[test]
    fn a_gap_holds_the_limit_back_until_it_closes() {
        let counter = AcknowledgedCounter::new(100);
        let taken: Vec<_> = (0..3).map(|_| counter.take()).collect();
        assert_eq!(taken, [100, 101, 102]);
        counter.acknowledge(102).unwrap();
        counter.acknowledge(101).unwrap();
        assert_eq!(counter.below(), 100, "100 is still unanswered");
        counter.acknowledge(100).unwrap();
        assert_eq!(counter.below(), 103);
        counter.acknowledge(100).unwrap();
        assert_eq!(counter.below(), 103, "a second acknowledgement is nothing");
    }

    #[test]
    fn the_window_is_bounded_and_reusable() {
        let counter = AcknowledgedCounter::new(0);
        assert_eq!(counter.acknowledge(WINDOW), Err(TooManyPending));
        for number in 0..WINDOW + 200 {
            counter.acknowledge(number).unwrap();
        }
        assert_eq!(counter.below(), WINDOW + 200);
    }
}
