//! Large writes of clients, which the replica gets by turns of their connections.
//!
//! A log is a queue, so whoever writes a hundred values of 1 MiB at once would have everybody
//! else wait for all of them, and so would renewals of leases behind them on the same sockets.
//! So the replica gets only some bytes of large writes at a time, and more as it answers. The
//! others wait here, where small commands pass them.

use crate::replica::input::Input;
use crate::turns::Turns;

/// Writes of connections, and how many bytes of such writes the replica has.
#[derive(Debug)]
pub(super) struct LargeWrites {
    /// With the bytes of each.
    waiting: Turns<(Input, usize)>,
    /// Bytes that wait.
    kept: usize,
    /// Bytes that the replica has not answered yet.
    given: usize,
    /// Bytes that it may have. One write may exceed it.
    max: usize,
    /// Writes that had to wait, so far.
    delayed: u64,
}

/// The replica may have all.
impl Default for LargeWrites {
    fn default() -> LargeWrites {
        LargeWrites::new(usize::MAX)
    }
}

impl LargeWrites {
    pub(super) fn new(max: usize) -> LargeWrites {
        LargeWrites {
            waiting: Turns::default(),
            kept: 0,
            given: 0,
            max,
            delayed: 0,
        }
    }

    pub(super) fn push(&mut self, connection: u64, input: Input, bytes: usize) {
        self.delayed += u64::from(self.given + self.kept >= self.max);
        self.kept += bytes;
        self.waiting.push(connection, (input, bytes));
    }

    /// Whether [`LargeWrites::pop`] has something.
    pub(super) fn is_due(&self) -> bool {
        !self.waiting.is_empty() && self.given < self.max
    }

    /// The next write that the replica may have.
    pub(super) fn pop(&mut self) -> Option<Input> {
        if !self.is_due() {
            return None;
        }
        let (_, (input, bytes)) = self.waiting.pop()?;
        self.kept -= bytes;
        self.given += bytes;
        Some(input)
    }

    /// Gives up what waits of a connection that has gone. Returns which requests they were.
    pub(super) fn forget(&mut self, connection: u64) -> Vec<u64> {
        let forgotten = self.waiting.take(connection);
        self.kept -= forgotten.iter().map(|(_, bytes)| bytes).sum::<usize>();
        let request = |(input, _)| match input {
            Input::Client { from, .. } => Some(from.request),
            _ => None,
        };
        forgotten.into_iter().filter_map(request).collect()
    }

    /// Bytes that the replica has not answered yet.
    pub(super) fn given(&self) -> usize {
        self.given
    }

    /// Writes that had to wait, so far.
    pub(super) fn delayed(&self) -> u64 {
        self.delayed
    }

    /// The replica has answered so many bytes of them.
    ///
    /// # Panics
    /// If it never had them.
    pub(super) fn answered(&mut self, bytes: usize) {
        assert!(bytes <= self.given, "what is answered was given");
        self.given -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use client::wire::Command;
    use client::wire::command::Op;

    use super::*;
    use crate::replica::action::ClientHandle;

    const MIB: usize = 1 << 20;

    fn write(connection: u64, request: u64) -> Input {
        Input::Client {
            from: ClientHandle {
                connection,
                request,
            },
            command: Command::from(Op::put("k", "v")),
        }
    }

    /// All that the replica may have now: connection and request.
    fn given(writes: &mut LargeWrites) -> Vec<(u64, u64)> {
        let popped = std::iter::from_fn(|| writes.pop());
        let shown = popped.filter_map(|input| match input {
            Input::Client { from, .. } => Some((from.connection, from.request)),
            _ => None,
        });
        shown.collect()
    }

    #[test]
    fn connections_have_turns_and_keep_their_order() {
        let mut writes = LargeWrites::new(100 * MIB);
        for request in 1..=3 {
            writes.push(1, write(1, request), MIB);
        }
        writes.push(2, write(2, 1), MIB);
        writes.push(3, write(3, 1), MIB);
        let expected = [(1, 1), (2, 1), (3, 1), (1, 2), (1, 3)];
        assert_eq!(given(&mut writes), expected);
        assert_eq!((writes.delayed(), writes.given()), (0, 5 * MIB));
        assert!(writes.waiting.is_empty());
    }

    #[test]
    fn what_waits_of_a_connection_that_has_gone_is_given_up() {
        let mut writes = LargeWrites::new(2 * MIB);
        for request in 1..=4 {
            writes.push(1, write(1, request), MIB);
            writes.push(2, write(2, request), MIB);
        }
        assert_eq!(given(&mut writes), [(1, 1), (2, 1)]);
        assert_eq!(writes.forget(1), [2, 3, 4]);
        assert!(writes.forget(1).is_empty() && writes.forget(3).is_empty());
        assert_eq!((writes.given(), writes.kept), (2 * MIB, 3 * MIB));
        writes.answered(2 * MIB);
        assert_eq!(given(&mut writes), [(2, 2), (2, 3)]);
    }

    #[test]
    fn the_replica_has_a_bounded_part_until_it_answers() {
        let mut writes = LargeWrites::new(2 * MIB);
        for request in 1..=10 {
            writes.push(1, write(1, request), MIB);
        }
        assert_eq!(given(&mut writes), [(1, 1), (1, 2)]);
        assert!(!writes.is_due());
        assert_eq!(writes.delayed(), 8);
        writes.answered(MIB);
        assert_eq!(given(&mut writes), [(1, 3)]);
        writes.answered(2 * MIB);
        assert_eq!(given(&mut writes).len(), 2);
    }

    #[test]
    fn one_write_that_is_larger_than_all_may_be_is_given() {
        let mut writes = LargeWrites::new(MIB);
        writes.push(1, write(1, 1), 3 * MIB);
        writes.push(1, write(1, 2), MIB);
        assert_eq!(given(&mut writes), [(1, 1)]);
        writes.answered(3 * MIB);
        assert_eq!(given(&mut writes), [(1, 2)]);
    }
}
