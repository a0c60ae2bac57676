//! What waits of many connections, which have turns: one that has much waiting keeps nobody
//! else waiting for all of it.

use std::collections::{BTreeMap, VecDeque};

/// By connection, what waits of it.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Turns<T> {
    /// In order. None is empty.
    waiting: BTreeMap<u64, VecDeque<T>>,
    /// The connections that have something waiting: the first has the next turn. Some may
    /// have nothing any more, for to look for them would take long: they are passed over.
    turns: VecDeque<u64>,
}

impl<T> Default for Turns<T> {
    fn default() -> Turns<T> {
        Turns {
            waiting: BTreeMap::new(),
            turns: VecDeque::new(),
        }
    }
}

impl<T> Turns<T> {
    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds what comes last of its connection.
    pub(crate) fn push(&mut self, connection: u64, one: T) {
        let of_connection = self.waiting.entry(connection).or_default();
        if of_connection.is_empty() {
            self.turns.push_back(connection);
        }
        of_connection.push_back(one);
    }

    /// Takes the next, and whose it is.
    pub(crate) fn pop(&mut self) -> Option<(u64, T)> {
        loop {
            let connection = self.turns.pop_front()?;
            let Some(of_connection) = self.waiting.get_mut(&connection) else {
                continue;
            };
            let one = of_connection.pop_front()?;
            match of_connection.is_empty() {
                true => drop(self.waiting.remove(&connection)),
                false => self.turns.push_back(connection),
            }
            return Some((connection, one));
        }
    }

    /// Takes all of a connection, which adds nothing any more.
    pub(crate) fn take(&mut self, connection: u64) -> VecDeque<T> {
        self.waiting.remove(&connection).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_have_turns_and_keep_their_order() {
        let mut turns = Turns::default();
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
        let mut turns = Turns::default();
        for connection in [1, 2, 3] {
            turns.push(connection, connection);
        }
        assert_eq!(turns.take(1), [1]);
        assert_eq!(turns.take(2), [2]);
        assert_eq!(turns.pop(), Some((3, 3)));
        assert_eq!((turns.pop(), turns.is_empty()), (None, true));
    }
}
