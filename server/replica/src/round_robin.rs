//! Queues of many connections, which are served round-robin. So a connection with many waiting
//! items does not make the other connections wait until all of these items are taken.

use std::collections::{BTreeMap, VecDeque};

/// Waiting items of all connections. There is one queue for each connection.
#[derive(Clone, Debug, Hash)]
pub struct RoundRobinQueue<T> {
    /// Waiting items of each connection, in their order. No queue in the map is empty.
    waiting: BTreeMap<u64, VecDeque<T>>,
    /// Connections in the order in which they are served next. The queue includes every connection
    /// with waiting items. It may also include connections without waiting items. Such connections
    /// are skipped, because it would take long to find and remove them earlier.
    order: VecDeque<u64>,
    len: usize,
}

impl<T> Default for RoundRobinQueue<T> {
    fn default() -> RoundRobinQueue<T> {
        RoundRobinQueue {
            waiting: BTreeMap::new(),
            order: VecDeque::new(),
            len: 0,
        }
    }
}

impl<T> RoundRobinQueue<T> {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Number of waiting items.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Adds an item at the end of the queue of its connection.
    pub fn push(&mut self, connection: u64, one: T) {
        let of_connection = self.waiting.entry(connection).or_default();
        if of_connection.is_empty() {
            self.order.push_back(connection);
        }
        of_connection.push_back(one);
        self.len += 1;
    }

    /// Removes the next item, and returns it with its connection.
    pub fn pop(&mut self) -> Option<(u64, T)> {
        loop {
            let connection = self.order.pop_front()?;
            let Some(of_connection) = self.waiting.get_mut(&connection) else {
                continue;
            };
            let one = of_connection.pop_front()?;
            self.len -= 1;
            if of_connection.is_empty() {
                drop(self.waiting.remove(&connection))
            } else {
                self.order.push_back(connection)
            }
            return Some((connection, one));
        }
    }

    /// Removes and returns all items of a connection. The connection must not add any more items.
    pub fn take(&mut self, connection: u64) -> VecDeque<T> {
        let taken = self.waiting.remove(&connection).unwrap_or_default();
        self.len -= taken.len();
        taken
    }

    /// Keeps only the items for which `waits` returns true.
    pub fn retain(&mut self, mut waits: impl FnMut(&T) -> bool) {
        self.waiting.retain(|_, of_connection| {
            of_connection.retain(&mut waits);
            !of_connection.is_empty()
        });
        // A connection that is added again later then has only one turn.
        let waiting = &self.waiting;
        self.order
            .retain(|connection| waiting.contains_key(connection));
        self.len = self.waiting.values().map(VecDeque::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_have_turns_and_keep_their_order() {
        let mut turns = RoundRobinQueue::default();
        for one in 1..=3 {
            turns.push(1, one);
        }
        turns.push(2, 1);
        turns.push(3, 1);
        let all: Vec<_> = std::iter::from_fn(|| turns.pop()).collect();
        assert_eq!(all, [(1, 1), (2, 1), (3, 1), (1, 2), (1, 3)]);
        assert!(turns.is_empty() && turns.waiting.is_empty());
    }

    #[test]
    fn a_connection_whose_things_were_taken_has_no_turn() {
        let mut turns = RoundRobinQueue::default();
        for connection in [1, 2, 3] {
            turns.push(connection, connection);
        }
        assert_eq!(turns.take(1), [1]);
        assert_eq!(turns.take(2), [2]);
        assert_eq!(turns.pop(), Some((3, 3)));
        assert_eq!((turns.pop(), turns.is_empty()), (None, true));
    }

    #[test]
    fn what_does_not_wait_any_more_is_forgotten() {
        let mut turns = RoundRobinQueue::default();
        for one in 1..=6 {
            turns.push(one % 2, one);
        }
        turns.retain(|one| *one < 5 && *one != 1);
        assert_eq!(turns.len(), 3);
        turns.push(1, 7);
        let all: Vec<_> = std::iter::from_fn(|| turns.pop()).collect();
        assert_eq!(all, [(1, 3), (0, 2), (1, 7), (0, 4)]);
        turns.push(1, 8);
        turns.retain(|_| false);
        assert!(turns.is_empty());
        assert_eq!(turns.len(), 0);
        turns.push(1, 9);
        assert_eq!((turns.pop(), turns.pop()), (Some((1, 9)), None));
    }
}
