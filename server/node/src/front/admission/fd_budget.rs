//! File descriptors: their maximum number in this process, and their division among its parts.
//!
//! A connection takes one descriptor, and so does every open file of the storage. If the storage
//! cannot open its next file, the replica ends. So clients get only the descriptors that remain
//! after the storage, the peers and the process itself have theirs.

use std::cell::Cell;
use std::rc::Rc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Minimum and maximum number of table files that the storage keeps open.
const TABLES: std::ops::RangeInclusive<usize> = 32..=256;
/// Number of descriptors that the storage opens in addition to those of its table files. They are
/// for logs, manifests, the marker, and the table files that a flush or a compaction reads and
/// writes.
const STORAGE_OTHERS: usize = 64;
/// Number of descriptors that the process opens for itself after it has started. They are for the
/// event loop, signals, ports, and files that are open for a short time.
const OWN: usize = 32;
/// Minimum number of descriptors for clients. With fewer descriptors for clients, a node does not
/// start.
const CLIENTS_MIN: usize = 16;
/// Maximum number of refused clients that receive the reason for the refusal at the same time.
pub(crate) const REJECTIONS_MAX: usize = 16;
/// Maximum number of connections from unidentified peers on the peers' port.
pub(crate) const UNAUTHENTICATED_MAX: usize = 48;
/// Number of descriptors that is assumed if the system sets no limit.
const UNLIMITED: usize = 1 << 20;

/// Division of the file descriptors between the storage and the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FdBudget {
    /// Maximum number of table files that the storage may keep open.
    pub(crate) tables: usize,
    /// Maximum number of connections of clients.
    pub(crate) clients: usize,
}

/// Error: the system's limit leaves too few file descriptors for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FdShortage {
    pub(crate) limit: usize,
    pub(crate) needed: usize,
}

impl FdBudget {
    /// Raises this process's limit on file descriptors as far as possible without privileges. Then
    /// divides the descriptors for a cluster of `members` nodes, each of which may have `per_peer`
    /// connections to this node.
    pub(crate) fn claim(members: usize, per_peer: usize) -> Result<FdBudget, FdShortage> {
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
        FdBudget::share(
            limit.unwrap_or(UNLIMITED).min(UNLIMITED),
            open,
            members,
            per_peer,
        )
    }

    /// Divides `limit` descriptors, of which `open` are already in use.
    fn share(
        limit: usize,
        open: usize,
        members: usize,
        per_peer: usize,
    ) -> Result<FdBudget, FdShortage> {
        // A peer that connects has a few seconds to identify itself. The handshakes' thread may
        // still hold an equal number of connections that have already lost their slots to others.
        let accepted = per_peer * members + 2 * UNAUTHENTICATED_MAX;
        let fixed = open + OWN + STORAGE_OTHERS + REJECTIONS_MAX + 2 * members + accepted;
        let needed = fixed + TABLES.start() + CLIENTS_MIN;
        if limit < needed {
            return Err(FdShortage { limit, needed });
        }
        let left = limit - fixed;
        let tables = (left / 4).clamp(*TABLES.start(), *TABLES.end());
        Ok(FdBudget {
            tables,
            clients: left - tables,
        })
    }
}

/// A bounded number of slots, each for one connection.
#[derive(Debug)]
pub(crate) struct ConnectionSlots {
    max: usize,
    taken: Rc<Cell<usize>>,
    refused: Cell<u64>,
    /// Whether a series of refusals is in progress. Only the first refusal of a series is logged.
    refusing: Cell<bool>,
}

/// Slot of one connection. Dropping this value frees the slot.
#[derive(Debug)]
pub(crate) struct ConnectionSlot(Rc<Cell<usize>>);

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl ConnectionSlots {
    pub(crate) fn new(max: usize) -> ConnectionSlots {
        ConnectionSlots {
            max,
            taken: Rc::default(),
            refused: Cell::new(0),
            refusing: Cell::new(false),
        }
    }

    /// Takes a slot, if one is free.
    pub(crate) fn take(&self) -> Option<ConnectionSlot> {
        let taken = self.taken.get();
        if taken >= self.max {
            return None;
        }
        if taken < self.max - self.max / 8 {
            self.refusing.set(false);
        }
        self.taken.set(taken + 1);
        Some(ConnectionSlot(self.taken.clone()))
    }

    /// Counts a refusal. Returns true for the first refusal of a series. A series ends when a slot
    /// is taken and at least an eighth of the slots is still free.
    pub(crate) fn count_refusal(&self) -> bool {
        self.refused.set(self.refused.get() + 1);
        !self.refusing.replace(true)
    }

    /// Returns the total number of slots.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Returns the number of connections that were refused because no slot was free.
    pub(crate) fn refused(&self) -> u64 {
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
                let Ok(shares) = FdBudget::share(limit, 20, members, 2) else {
                    assert!(limit < 320, "{limit} are enough");
                    continue;
                };
                assert!(TABLES.contains(&shares.tables) && shares.clients >= CLIENTS_MIN);
                let peers = 2 * members + 2 * UNAUTHENTICATED_MAX + 2 * members;
                let storage = shares.tables + STORAGE_OTHERS;
                let all = 20 + OWN + REJECTIONS_MAX + storage + peers + shares.clients;
                assert_eq!(all, limit, "every one is given to somebody, and none twice");
            }
        }
        let usual = FdBudget::share(1024, 10, 5, 2).unwrap();
        assert!(usual.clients > 500, "{usual:?}");
    }

    #[test]
    fn too_few_are_refused_with_how_many_are_needed() {
        let FdShortage { limit, needed } = FdBudget::share(100, 10, 3, 2).unwrap_err();
        assert_eq!(limit, 100);
        assert!(FdBudget::share(needed, 10, 3, 2).is_ok());
        assert!(FdBudget::share(needed - 1, 10, 3, 2).is_err());
    }

    #[test]
    fn a_burst_of_refusals_is_told_once() {
        let slots = ConnectionSlots::new(8);
        let mut taken: Vec<ConnectionSlot> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(taken.len(), 8);
        assert!(slots.count_refusal());
        taken.pop();
        taken.push(slots.take().unwrap());
        assert!(
            slots.take().is_none() && !slots.count_refusal(),
            "the same burst"
        );
        taken.truncate(5);
        taken.extend(std::iter::from_fn(|| slots.take()));
        assert!(slots.count_refusal(), "another");
        assert_eq!((taken.len(), slots.refused()), (8, 3));
    }
}
