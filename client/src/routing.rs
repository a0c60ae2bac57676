//! Lease-aware routing: chooses the first replica for a request by the hints that replicas send
//! about the leader and the holders of a key.
//!
//! Hints are never trusted. They only choose the replica to try first; a replica that is not a
//! holder forwards the request. So a stale or nonsensical hint costs an extra forwarding, but never
//! leads to a wrong answer. The memory for hints is bounded: if there is no space for another key,
//! a random key is forgotten.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use foldhash::fast::RandomState;
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::connection::{Candidate, Connection};
use leasehold_wire::request::Body;
use leasehold_wire::{Hint, Path, ReadOp, Response};

/// Rule that chooses the first replica for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Routing {
    /// Every operation is sent to the nearest replica that serves.
    #[default]
    Nearest,
    /// A read of one key is sent to a holder of the key, and a write is sent to the leader. All
    /// other operations are sent to the nearest replica. If several holders are about equally near,
    /// the least loaded of them gets the read. If the holders or the leader are not known, the
    /// operation is sent to the nearest replica. The client keeps connections to all replicas.
    LeaseAware,
}

/// A hint about the leader or the holders of a key is requested again at this age.
const REFRESH: Duration = Duration::from_secs(10);
/// Tolerance in a comparison of distances. A replica is about as near as the nearest replica if its
/// round trip is at most 2 × r + `NEAR`. Here r is the round trip of the nearest replica.
const NEAR: Duration = Duration::from_millis(2);
/// A replica may be chosen if it has at most this many calls more than the least loaded replica.
/// Among the replicas within this limit, the one with the most unsent requests is chosen.
const SLACK: usize = 8;
/// Estimated size, in bytes, of an entry without its key.
const ENTRY_BYTES: usize = 160;
/// Number of reads of unknown keys per requested hint, while there is no free space for hints. So
/// one in this number of reads requests a hint.
const HINT_REQUEST_ONE_IN: usize = 8;

/// Route of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Route {
    /// Replica to use first. If this is `None`, the nearest replica is used first.
    pub first: Option<usize>,
    /// Whether the request should also ask for a hint.
    pub hint: bool,
}

/// Chooses the first replica for an operation, according to the hints that replicas have sent about
/// the leader and the holders of keys.
#[derive(Debug)]
pub(crate) struct Router {
    hints: Mutex<HintCache>,
    /// Counter that makes replicas with the same load take turns.
    round_robin: AtomicUsize,
}

impl Router {
    /// Creates a router without hints. The router will use at most `bytes_max` bytes to remember
    /// keys.
    pub fn new(bytes_max: usize) -> Router {
        Router {
            hints: Mutex::new(HintCache::new(bytes_max)),
            round_robin: AtomicUsize::new(0),
        }
    }

    fn hints(&self) -> MutexGuard<'_, HintCache> {
        self.hints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the route of a request, according to the hints that are known now.
    pub fn route(&self, body: &Body, connections: &[Connection]) -> Route {
        let Body::Command(command) = body else {
            return Route::default();
        };
        let round_robin = self.round_robin.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        let (holders, hint) = match command.as_read() {
            Some(ReadOp::Get(get)) => self.hints().holders(&get.key, now, round_robin),
            Some(ReadOp::MultiGet(_) | ReadOp::Scan(_)) => return Route::default(),
            None if command.is_write() => self.hints().leader(now),
            None => return Route::default(),
        };
        let all = connections.iter().enumerate();
        let candidates = all.filter_map(|(index, one)| Some((index, one.candidate()?)));
        let first = choose(candidates, holders, round_robin, connections.len());
        Route { first, hint }
    }

    /// Stores the hint that a response contains. If the response shows that an earlier hint was
    /// wrong, also records this.
    pub fn learn(&self, body: &Body, response: &Response) {
        let Body::Command(command) = body else { return };
        let Some(key) = command.keys().next() else {
            return;
        };
        if let Some(hint) = &response.hint {
            self.hints().learn(key, hint, Instant::now());
        } else if matches!(command.as_read(), Some(ReadOp::Get(_))) && !is_local(response.path()) {
            self.hints().doubt(key);
        }
    }
}

/// Whether the answering replica used its own lease to serve the read.
fn is_local(path: Path) -> bool {
    matches!(path, Path::Local | Path::Held)
}

/// Chooses one of the candidates in three steps. Step 1 keeps the candidates that are about as near
/// as the nearest candidate. Step 2 keeps those that have about as few calls as the least loaded
/// candidate. Step 3 chooses the candidate with the most unsent calls. Of several such candidates,
/// the one with the fewest calls is chosen. If several are still equal, they take turns.
fn choose(
    candidates: impl Iterator<Item = (usize, Candidate)>,
    eligible: u64,
    round_robin: usize,
    all: usize,
) -> Option<usize> {
    let is_eligible = |(_, one): &(usize, Candidate)| eligible >> one.number & 1 == 1;
    let eligible: SmallVec<[_; 8]> = candidates.filter(is_eligible).collect();
    let nearest = eligible.iter().map(|(_, one)| one.distance).min()?;
    let near_ends = nearest.saturating_mul(2).saturating_add(NEAR);
    let near = || eligible.iter().filter(|(_, one)| one.distance <= near_ends);
    let least = near().map(|(_, one)| one.calls).min()?;
    let idle = near().filter(|(_, one)| one.calls <= least + SLACK);
    let order = |(index, one): &&(usize, Candidate)| {
        (Reverse(one.unsent), one.calls, (index + round_robin) % all)
    };
    let (index, _) = idle.min_by_key(order)?;
    Some(*index)
}

#[derive(Debug, Clone, Copy)]
struct HintEntry {
    /// Set of holders, with one bit for each replica number. `None` if no hint about the key has
    /// arrived. In this case, the router assumes the holders of unlisted keys.
    holders: Option<u64>,
    /// Time at which a hint was last requested. `None` if the entry may be wrong; then the next
    /// read requests a hint.
    requested_at: Option<Instant>,
    /// Index of the key in `keys`.
    place: usize,
}

#[derive(Debug)]
struct HintCache {
    entries: HashMap<Bytes, HintEntry, RandomState>,
    /// List of all keys of the map. A random key can be chosen from this list.
    keys: Vec<Bytes>,
    bytes: usize,
    bytes_max: usize,
    /// Holders of an unlisted key, according to the latest hint about such a key. The router
    /// assumes these holders for every key about which no hint has arrived.
    unlisted: u64,
    /// The leader, as a set with one bit for each replica number. The set is empty if the leader is
    /// not known.
    leader: u64,
    leader_requested_at: Option<Instant>,
}

fn is_due(requested_at: Option<Instant>, now: Instant) -> bool {
    requested_at.is_none_or(|at| now.saturating_duration_since(at) >= REFRESH)
}

impl HintCache {
    fn new(bytes_max: usize) -> HintCache {
        HintCache {
            entries: HashMap::default(),
            keys: Vec::new(),
            bytes: 0,
            bytes_max,
            unlisted: 0,
            leader: 0,
            leader_requested_at: None,
        }
    }

    /// Returns the known or guessed holders of a key, and whether the request should ask for a
    /// hint.
    fn holders(&mut self, key: &Bytes, now: Instant, round_robin: usize) -> (u64, bool) {
        let has_capacity = self.bytes + key.len() + ENTRY_BYTES <= self.bytes_max;
        let Some(entry) = self.entries.get_mut(key) else {
            return (
                self.unlisted,
                has_capacity || round_robin.is_multiple_of(HINT_REQUEST_ONE_IN),
            );
        };
        let due = is_due(entry.requested_at, now);
        if due {
            // This read requests the hint. Other reads use what is known until the answer arrives.
            entry.requested_at = Some(now);
        }
        (entry.holders.unwrap_or(self.unlisted), due)
    }

    fn leader(&mut self, now: Instant) -> (u64, bool) {
        let due = is_due(self.leader_requested_at, now);
        if due {
            self.leader_requested_at = Some(now);
        }
        (self.leader, due)
    }

    fn learn(&mut self, key: &Bytes, hint: &Hint, now: Instant) {
        self.leader = match hint.leader {
            number @ 1..=64 => 1 << (number - 1),
            _ => 0,
        };
        self.leader_requested_at = Some(now);
        if !hint.listed {
            // The hint holds for the key's range. Other ranges may differ, so a known key keeps the
            // holders of its own hint.
            self.unlisted = hint.holders;
        }
        self.put(key, Some(hint.holders), Some(now));
    }

    /// Records that the known holders of the key were wrong, so that the next read of the key
    /// requests a hint.
    fn doubt(&mut self, key: &Bytes) {
        match self.entries.get_mut(key) {
            Some(entry) => entry.requested_at = None,
            None => self.put(key, None, None),
        }
    }

    fn put(&mut self, key: &Bytes, holders: Option<u64>, requested_at: Option<Instant>) {
        if let Some(entry) = self.entries.get_mut(key) {
            (entry.holders, entry.requested_at) = (holders, requested_at);
            return;
        }
        let bytes = key.len() + ENTRY_BYTES;
        while self.bytes + bytes > self.bytes_max && !self.keys.is_empty() {
            self.forget_one();
        }
        if bytes > self.bytes_max {
            return;
        }
        // Copies the key, because the caller's buffer may hold much more memory.
        let key = Bytes::copy_from_slice(key);
        let place = self.keys.len();
        self.keys.push(key.clone());
        self.bytes += bytes;
        let entry = HintEntry {
            holders,
            requested_at,
            place,
        };
        self.entries.insert(key, entry);
    }

    fn forget_one(&mut self) {
        let drawn = crate::session::random_u64() as usize % self.keys.len();
        let key = self.keys.swap_remove(drawn);
        if let Some(moved) = self.keys.get(drawn)
            && let Some(entry) = self.entries.get_mut(moved)
        {
            entry.place = drawn;
        }
        self.bytes -= key.len() + ENTRY_BYTES;
        self.entries.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Bytes {
        format!("key{number:06}").into()
    }

    fn hint(holders: u64, listed: bool) -> Hint {
        Hint {
            holders,
            leader: 1,
            listed,
        }
    }

    fn at(number: u32, ms: u64, calls: usize) -> Candidate {
        Candidate {
            number,
            distance: Duration::from_millis(ms),
            calls,
            unsent: 0,
        }
    }

    fn chosen(all: &[Candidate], eligible: u64, round_robin: usize) -> Option<usize> {
        choose(
            all.iter().copied().enumerate(),
            eligible,
            round_robin,
            all.len(),
        )
    }

    #[test]
    fn the_least_loaded_of_the_near_holders_is_asked() {
        let all = [at(0, 1, 90), at(1, 1, 30), at(2, 40, 0), at(3, 1, 50)];
        assert_eq!(chosen(&all, 0b1111, 0), Some(1));
        assert_eq!(chosen(&all, 0b1101, 0), Some(3), "2 is idle, but far");
        assert_eq!(chosen(&all, 0b0100, 0), Some(2), "the only holder");
        assert_eq!(chosen(&all, 0, 0), None);
    }

    #[test]
    fn holders_whose_distance_is_not_known_yet_are_asked_if_there_are_no_others() {
        let far = Candidate {
            distance: Duration::MAX,
            ..at(0, 0, 0)
        };
        assert_eq!(chosen(&[far], 0b1, 0), Some(0));
        assert_eq!(chosen(&[far, at(1, 90, 7)], 0b11, 0), Some(1));
    }

    #[test]
    fn replicas_that_are_loaded_alike_are_asked_in_turn() {
        let all = [at(0, 1, 2), at(1, 1, 2), at(2, 1, 2)];
        let count = |index| {
            let turns =
                (0..30).filter(|round_robin| chosen(&all, 0b111, *round_robin) == Some(index));
            turns.count()
        };
        assert_eq!([count(0), count(1), count(2)], [10; 3]);
    }

    #[test]
    fn a_request_joins_those_about_to_leave_unless_others_are_much_less_loaded() {
        let joined = |calls| {
            let leaving = Candidate {
                unsent: 5,
                ..at(1, 1, calls)
            };
            let all = [at(0, 1, 10), leaving, at(2, 1, 40)];
            (0..30).all(|round_robin| chosen(&all, 0b111, round_robin) == Some(1))
        };
        assert!(joined(10 + SLACK));
        assert!(!joined(10 + SLACK + 1));
    }

    #[test]
    fn replicas_that_do_not_exist_are_not_asked() {
        let all = [at(0, 1, 0), at(1, 1, 0)];
        assert_eq!(chosen(&all, u64::MAX << 2, 0), None);
        assert_eq!(chosen(&all, u64::MAX, 0), Some(0));
        let mut hints = HintCache::new(1 << 20);
        for leader in [0, 65, u32::MAX] {
            let nonsense = Hint {
                leader,
                ..hint(u64::MAX, true)
            };
            hints.learn(&key(1), &nonsense, Instant::now());
            assert_eq!(hints.leader(Instant::now()).0, 0, "{leader}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_read_asks_again_when_a_hint_is_old_or_was_wrong() {
        let mut hints = HintCache::new(1 << 20);
        let start = Instant::now();
        assert_eq!(hints.holders(&key(1), start, 0), (0, true));
        hints.learn(&key(1), &hint(0b10, true), start);
        assert_eq!(hints.holders(&key(1), start, 0), (0b10, false));
        let later = start + REFRESH;
        assert_eq!(hints.holders(&key(1), later, 0), (0b10, true));
        assert_eq!(hints.holders(&key(1), later, 0), (0b10, false), "one asks");
        hints.doubt(&key(1));
        assert_eq!(hints.holders(&key(1), later, 0), (0b10, true));
    }

    /// A hint about one key does not change what is known about another key, because key ranges
    /// have their own holders.
    #[test]
    fn a_key_follows_what_was_said_of_it_and_an_unknown_one_what_was_heard_last() {
        let (mut hints, now) = (HintCache::new(1 << 20), Instant::now());
        hints.learn(&key(1), &hint(0b1, false), now);
        hints.learn(&key(2), &hint(0b110, true), now);
        hints.learn(&key(3), &hint(0b11, false), now);
        let holders: Vec<u64> = (1..5).map(|i| hints.holders(&key(i), now, 0).0).collect();
        assert_eq!(holders, [0b1, 0b110, 0b11, 0b11]);
    }

    #[test]
    fn memory_is_bounded_and_most_of_it_is_used() {
        let max = 1000 * (9 + ENTRY_BYTES);
        let (mut hints, now) = (HintCache::new(max), Instant::now());
        for number in 0..10_000 {
            hints.learn(&key(number), &hint(1, true), now);
            assert!(hints.bytes <= max && hints.keys.len() == hints.entries.len());
        }
        assert_eq!(hints.entries.len(), 1000);
        for (place, key) in hints.keys.iter().enumerate() {
            assert_eq!(hints.entries[key].place, place);
        }
        hints.learn(&vec![b'k'; max].into(), &hint(1, true), now);
        assert!(hints.bytes <= max, "a key that is larger than all");
        let unknown = |round_robin| hints.holders(&key(100_000), now, round_robin).1;
        let count = (0..800).map(unknown).filter(|requests| *requests).count();
        assert!(count == 800 || count == 100, "{count}");
    }
}
