//! What waits of many connections, which have turns: one that has much waiting keeps nobody
//! else waiting for all of it.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::FixedState;

/// By connection, what waits of it.
#[derive(Debug)]
pub(super) struct Turns<T> {
    /// In order. None is empty.
    waiting: HashMap<u64, VecDeque<T>, FixedState>,
    /// The connections that have something waiting: the first has the next turn.
    turns: VecDeque<u64>,
}

impl<T> Default for Turns<T> {
    fn default() -> Turns<T> {
        Turns {
            waiting: HashMap::default(),
            turns: VecDeque::new(),
        }
    }
}

impl<T> Turns<T> {
    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Adds what comes last of its connection.
    pub(super) fn push(&mut self, connection: u64, one: T) {
        let of_connection = self.waiting.entry(connection).or_default();
        if of_connection.is_empty() {
            self.turns.push_back(connection);
        }
        of_connection.push_back(one);
    }

    /// Takes the next, and whose it is.
    pub(super) fn pop(&mut self) -> Option<(u64, T)> {
        let connection = self.turns.pop_front()?;
        let of_connection = self.waiting.get_mut(&connection)?;
        let one = of_connection.pop_front()?;
        match of_connection.is_empty() {
            true => drop(self.waiting.remove(&connection)),
            false => self.turns.push_back(connection),
        }
        Some((connection, one))
    }

    /// Takes all of a connection.
    pub(super) fn take(&mut self, connection: u64) -> VecDeque<T> {
        let Some(all) = self.waiting.remove(&connection) else {
            return VecDeque::new();
        };
        self.turns.retain(|of| *of != connection);
        all
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
}
