//! Reads that another replica answers: the nearest holder of a lease, or the leader.
//!
//! A question has some dozen bytes, and its answer perhaps a MiB. A peer that is asked for all that
//! clients want at once cannot send it at once: what it drops is asked for again, and dropped
//! again. So only some number of reads is asked of one peer at a time ([`ASKED_OF_A_PEER_MAX`]),
//! which its node can keep until the connection takes their answers. The others wait here, and
//! client connections are served round-robin: a client that asks much delays itself. The limit is a
//! number, and not bytes: nobody here knows how large an answer will be.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::time::Duration;

use leasehold_leases::{Key, ReplicaId, Time};

use super::super::handles::ClientHandle;
use super::super::message::{Message, RequestId};
use super::super::parts::chunks;
use super::super::step::Step;
use super::leavers::{Gone, tell_gone};
use crate::turns::Turns;

/// Reads that one peer is asked at a time. Over a round trip of 100 ms these are 10,000 a second.
pub const ASKED_OF_A_PEER_MAX: usize = 1024;
/// Number of reads above which the answers of a peer may take long: as long as it answers, the
/// others are not asked again so soon.
const FEW: usize = ASKED_OF_A_PEER_MAX / 2;
/// Waits between attempts grow with their number, up to this.
const ATTEMPTS_COUNTED_MAX: u32 = 8;
/// Factor by which a question waits longer if its peer answers others meanwhile: it may be lost.
const PATIENCE_WITH_THE_BUSY: u32 = 8;

/// Where a question is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// No peer is known that could be asked.
    Nowhere,
    /// It waits until this peer may be asked.
    Waits(ReplicaId),
    /// It was sent to this peer.
    Sent(ReplicaId),
}

/// A read that somebody else answers.
#[derive(Clone, Debug)]
struct Asked {
    /// `None`: the client has gone. The peer answers nevertheless.
    from: Option<ClientHandle>,
    key: Key,
    /// When it came to its place.
    since: Time,
    attempts: u32,
    place: Place,
    /// It waits for a leader: for the one that was known when it was asked, or for any.
    of_leader: bool,
}

impl Hash for Asked {
    /// When it was asked decides only when it is asked again: not before the horizon.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.from, &self.key, self.attempts).hash(state);
        (self.place, self.of_leader).hash(state);
    }
}

/// A read for which a peer is to be found that answers it.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) from: ClientHandle,
    pub(super) key: Key,
    /// Number of times that the read was asked.
    pub(super) attempts: u32,
}

impl Wanted {
    /// A client's read that was asked so often.
    pub(super) fn asked(attempts: u32, from: ClientHandle, key: Key) -> Wanted {
        Wanted {
            from,
            key,
            attempts,
        }
    }
}

/// Peer to ask.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) to: Option<ReplicaId>,
    /// As the leader, or until there is one.
    pub(super) of_leader: bool,
}

/// Questions to one peer.
#[derive(Clone, Debug, Default)]
struct Window {
    /// In turns of clients' connections. Those that have found another place meanwhile are
    /// passed over.
    waiting: Turns<RequestId>,
    /// Questions that were sent, and not answered.
    sent: usize,
    /// When it last answered something.
    heard: Time,
}

impl Hash for Window {
    /// See [`Asked`].
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.waiting, self.sent).hash(state);
    }
}

/// Reads of this replica's clients that another replica answers.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Asking {
    asked: BTreeMap<RequestId, Asked>,
    peers: BTreeMap<ReplicaId, Window>,
}

impl Asking {
    /// Number of reads that are not answered.
    pub(super) fn len(&self) -> usize {
        self.asked.len()
    }

    /// Asks at the end of the group, or when the peer may be asked.
    pub(super) fn ask(&mut self, step: &mut Step<'_>, wanted: Wanted, target: Target) {
        let request = step.name_request();
        if let Some(to) = target.to {
            let window = self.peers.entry(to).or_default();
            window.waiting.push(wanted.from.connection, request);
        }
        let asked = Asked {
            from: Some(wanted.from),
            key: wanted.key,
            since: step.now,
            attempts: wanted.attempts + 1,
            place: target.to.map_or(Place::Nowhere, Place::Waits),
            of_leader: target.of_leader,
        };
        let known = self.asked.insert(request, asked);
        assert!(known.is_none(), "every attempt has a name of its own");
    }

    /// A peer has answered something.
    pub(super) fn hear(&mut self, now: Time, from: ReplicaId) {
        if let Some(window) = self.peers.get_mut(&from) {
            window.heard = now;
        }
    }

    /// Returns the client that waits for this read; `None` if the attempt was dropped, or is of an
    /// earlier life (hazard 37), or if the client has disconnected.
    pub(super) fn answered(&mut self, request: RequestId) -> Option<ClientHandle> {
        self.take(request)?.from
    }

    /// A peer does not answer this read. What somebody else is to be asked, if anybody.
    pub(super) fn refused(
        &mut self,
        (by, request): (ReplicaId, RequestId),
        leader: Option<ReplicaId>,
    ) -> Option<Wanted> {
        let asked = self.asked.get(&request)?;
        // It leads no longer, and nobody else is known to: asked at once, it would refuse as
        // fast as the network carries questions. Asked again when somebody else is heard of.
        if asked.of_leader && leader == Some(by) && asked.from.is_some() {
            let asked = self.take(request)?;
            let place = Place::Nowhere;
            self.asked.insert(request, Asked { place, ..asked });
            return None;
        }
        self.take_wanted(request)
    }

    /// Takes the reads that have waited too long where they are.
    pub(super) fn take_overdue(&mut self, now: Time, patience: Duration) -> Vec<Wanted> {
        self.take_all(|asking, asked| asking.is_overdue(asked, now, patience))
    }

    /// Takes the reads that wait for a leader.
    pub(super) fn take_of_leader(&mut self) -> Vec<Wanted> {
        self.take_all(|_, asked| asked.of_leader)
    }

    fn take_all(&mut self, due: impl Fn(&Asking, &Asked) -> bool) -> Vec<Wanted> {
        let asked = self.asked.iter().filter(|(_, asked)| due(self, asked));
        let requests: Vec<RequestId> = asked.map(|(request, _)| *request).collect();
        let taken = requests.into_iter();
        taken
            .filter_map(|request| self.take_wanted(request))
            .collect()
    }

    fn is_overdue(&self, asked: &Asked, now: Time, patience: Duration) -> bool {
        let patience = patience * asked.attempts.min(ATTEMPTS_COUNTED_MAX);
        let (Place::Sent(at) | Place::Waits(at)) = asked.place else {
            return now.since(asked.since) >= patience;
        };
        match self.peers.get(&at) {
            Some(peer) if peer.sent > FEW => {
                let lost = matches!(asked.place, Place::Sent(_))
                    && now.since(asked.since) >= patience * PATIENCE_WITH_THE_BUSY;
                lost || now.since(asked.since.max(peer.heard)) >= patience
            }
            _ => now.since(asked.since) >= patience,
        }
    }

    fn take(&mut self, request: RequestId) -> Option<Asked> {
        let asked = self.asked.remove(&request)?;
        if let Place::Sent(to) = asked.place
            && let Some(window) = self.peers.get_mut(&to)
        {
            assert!(window.sent > 0, "what was sent is counted");
            window.sent -= 1;
        }
        Some(asked)
    }

    /// To be asked again, unless its client has gone.
    fn take_wanted(&mut self, request: RequestId) -> Option<Wanted> {
        let asked = self.take(request)?;
        Some(Wanted::asked(asked.attempts, asked.from?, asked.key))
    }

    /// Forgets the reads of disconnected clients. A question that was sent counts as asked of its
    /// peer until the peer answers, or must have lost it. Otherwise a client that connects and
    /// disconnects could ask for any amount.
    pub(super) fn forget(&mut self, step: &mut Step<'_>, gone: &Gone) {
        self.asked.retain(|_, asked| {
            if let Some(from) = asked.from.take_if(|from| gone.has(*from)) {
                tell_gone(step, from);
                return matches!(asked.place, Place::Sent(_));
            }
            true
        });
    }

    /// Asks as many as peers may be asked.
    pub(super) fn flush(&mut self, step: &mut Step<'_>) {
        for (to, window) in &mut self.peers {
            let mut reads = [Vec::new(), Vec::new()];
            while window.sent < ASKED_OF_A_PEER_MAX
                && let Some((_, request)) = window.waiting.pop()
            {
                let asked = self.asked.get_mut(&request);
                if let Some(asked) = asked.filter(|asked| asked.place == Place::Waits(*to)) {
                    asked.place = Place::Sent(*to);
                    asked.since = step.now;
                    window.sent += 1;
                    // A peer that is asked again is asked as the leader.
                    reads[usize::from(asked.attempts > 1)].push((request, asked.key.clone()));
                }
            }
            for (mut reads, read_index) in reads.into_iter().zip([false, true]) {
                // In the order in which they were asked, as if nobody had waited.
                reads.sort_unstable_by_key(|(request, _)| *request);
                for reads in chunks(reads, |(_, key)| key.len()) {
                    step.send(*to, Message::ForwardRead { read_index, reads });
                }
            }
        }
    }

    /// # Panics
    /// If what was sent is counted wrong.
    pub(super) fn check(&self) {
        let mut sent: BTreeMap<ReplicaId, usize> = BTreeMap::new();
        let mut waits: BTreeSet<ReplicaId> = BTreeSet::new();
        for asked in self.asked.values() {
            match asked.place {
                Place::Sent(to) => *sent.entry(to).or_default() += 1,
                Place::Waits(to) => drop(waits.insert(to)),
                Place::Nowhere => {}
            }
        }
        for (to, window) in &self.peers {
            let counted = sent.get(to).copied().unwrap_or_default();
            assert_eq!(window.sent, counted, "what was sent is counted");
            assert!(
                !waits.contains(to) || !window.waiting.is_empty(),
                "what waits for a peer has a turn"
            );
        }
    }
}
