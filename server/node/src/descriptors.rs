//! File descriptors: their maximum number in this process, and how they are shared out.
//!
//! A connection takes one, and so does every file of the storage. A storage that cannot
//! open its next file ends the replica, so clients get only what is left after the
//! storage, the peers and the process itself have theirs.

use std::cell::Cell;
use std::rc::Rc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Tables that the storage keeps open, at most and at least.
const TABLES: std::ops::RangeInclusive<usize> = 32..=256;
/// Descriptors that the storage has open next to its tables: for logs, manifests, the marker,
/// and the tables that a flush or a compaction reads and writes.
const STORAGE_OTHERS: usize = 64;
/// Descriptors that the process opens for itself after it has started: for the event loop,
/// signals, ports, and files that are open for a short time.
const OWN: usize = 32;
/// With fewer for clients, a node does not start.
const CLIENTS_MIN: usize = 16;
/// Clients that are being told why they are refused.
pub(super) const FAREWELLS: usize = 16;
/// Connections on the peers' port that have not said yet which peer they are.
pub(super) const STRANGERS: usize = 48;
/// The limit that is assumed if the system sets none.
const UNLIMITED: usize = 1 << 20;

/// Shares of the file descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptors {
    /// Tables that the storage may keep open.
    pub(super) tables: usize,
    /// Connections of clients.
    pub(super) clients: usize,
}

/// There are too few for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooFew {
    pub(super) limit: usize,
    pub(super) needed: usize,
}

impl Descriptors {
    /// Raises this process's limit as far as it may without privileges, and shares it
    /// out, for a cluster of `members`, each of which may have `per_peer` connections here.
    pub(super) fn claim(members: usize, per_peer: usize) -> Result<Descriptors, TooFew> {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let raised = Rlimit {
            current: maximum,
            maximum,
        };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, ?current, ?maximum, "the limit of open files stays as it is");
        }
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.and_then(|limit| usize::try_from(limit).ok());
        let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        Descriptors::share(
            limit.unwrap_or(UNLIMITED).min(UNLIMITED),
            open,
            (members, per_peer),
        )
    }

    /// Shares `limit` out, of which `open` are in use already.
    fn share(
        limit: usize,
        open: usize,
        (members, per_peer): (usize, usize),
    ) -> Result<Descriptors, TooFew> {
        // A peer that connects has a few seconds to identify itself. The handshakes' thread may
        // still have as many connections that have lost their places to others already.
        let accepted = per_peer * members + 2 * STRANGERS;
        let fixed = open + OWN + STORAGE_OTHERS + FAREWELLS + 2 * members + accepted;
        let needed = fixed + TABLES.start() + CLIENTS_MIN;
        if limit < needed {
            return Err(TooFew { limit, needed });
        }
        let left = limit - fixed;
        let tables = (left / 4).clamp(*TABLES.start(), *TABLES.end());
        Ok(Descriptors {
            tables,
            clients: left - tables,
        })
    }
}

/// A bounded number of places, each for one connection.
#[derive(Debug)]
pub(super) struct Seats {
    max: usize,
    taken: Rc<Cell<usize>>,
    refused: Cell<u64>,
    /// Refusals follow each other: only the first is worth a line in the log.
    refusing: Cell<bool>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct Seat(Rc<Cell<usize>>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Seats {
    pub(super) fn new(max: usize) -> Seats {
        Seats {
            max,
            taken: Rc::default(),
            refused: Cell::new(0),
            refusing: Cell::new(false),
        }
    }

    /// A place, if one is free.
    pub(super) fn take(&self) -> Option<Seat> {
        let taken = self.taken.get();
        if taken >= self.max {
            return None;
        }
        if taken < self.max - self.max / 8 {
            self.refusing.set(false);
        }
        self.taken.set(taken + 1);
        Some(Seat(self.taken.clone()))
    }

    /// Counts a refusal; whether it is the first since an eighth of the places was free.
    pub(super) fn refuse(&self) -> bool {
        self.refused.set(self.refused.get() + 1);
        !self.refusing.replace(true)
    }

    /// Places there are.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Number of times that no descriptor was free.
    pub(super) fn refused(&self) -> u64 {
        self.refused.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_storage_and_the_peers_come_first() {
        for members in [1, 3, 5, 9] {
            for limit in (200..2000).chain([20_000, UNLIMITED]) {
                let Ok(shares) = Descriptors::share(limit, 20, (members, 2)) else {
                    assert!(limit < 320, "{limit} are enough");
                    continue;
                };
                assert!(TABLES.contains(&shares.tables) && shares.clients >= CLIENTS_MIN);
                let peers = 2 * members + 2 * STRANGERS + 2 * members;
                let storage = shares.tables + STORAGE_OTHERS;
                let all = 20 + OWN + FAREWELLS + storage + peers + shares.clients;
                assert_eq!(all, limit, "every one is given to somebody, and none twice");
            }
        }
        let usual = Descriptors::share(1024, 10, (5, 2)).unwrap();
        assert!(usual.clients > 500, "{usual:?}");
    }

    #[test]
    fn too_few_are_refused_with_how_many_are_needed() {
        let TooFew { limit, needed } = Descriptors::share(100, 10, (3, 2)).unwrap_err();
        assert_eq!(limit, 100);
        assert!(Descriptors::share(needed, 10, (3, 2)).is_ok());
        assert!(Descriptors::share(needed - 1, 10, (3, 2)).is_err());
    }

    #[test]
    fn a_burst_of_refusals_is_told_once() {
        let seats = Seats::new(8);
        let mut taken: Vec<Seat> = std::iter::from_fn(|| seats.take()).collect();
        assert_eq!(taken.len(), 8);
        assert!(seats.refuse());
        taken.pop();
        taken.push(seats.take().unwrap());
        assert!(seats.take().is_none() && !seats.refuse(), "the same burst");
        taken.truncate(5);
        taken.extend(std::iter::from_fn(|| seats.take()));
        assert!(seats.refuse(), "another");
        assert_eq!((taken.len(), seats.refused()), (8, 3));
    }
}
