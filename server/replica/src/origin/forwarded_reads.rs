//! Reads that another replica answers: the nearest holder of a lease, or the leader.
//!
//! A question has some dozen bytes, and its answer perhaps a MiB. A peer that is asked for all that
//! clients want at once cannot send it at once: what it drops is asked for again, and dropped
//! again. So only some number of reads is asked of one peer at a time ([`FORWARDED_TO_PEER_MAX`]),
//! which its node can keep until the connection takes their answers. The others wait here, and
//! client connections are served round-robin: a client that asks much delays itself. The limit is a
//! number, and not bytes: nobody here knows how large an answer will be.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::time::Duration;

use leasehold_leases::{Key, ReplicaId, Time};

use super::disconnected::{DisconnectedClients, reply_disconnected};
use crate::handles::ClientHandle;
use crate::message::{Message, RequestId};
use crate::parts::chunks;
use crate::round_robin::RoundRobinQueue;
use crate::step::Step;

/// Reads that one peer is asked at a time. Over a round trip of 100 ms these are 10,000 a second.
pub const FORWARDED_TO_PEER_MAX: usize = 1024;
/// Number of reads above which the answers of a peer may take long: as long as it answers, the
/// others are not asked again so soon.
const FEW: usize = FORWARDED_TO_PEER_MAX / 2;
/// Waits between attempts grow with their number, up to this.
const ATTEMPTS_COUNTED_MAX: u32 = 8;
/// Factor by which a question waits longer if its peer answers others meanwhile: it may be lost.
const BUSY_TIMEOUT_FACTOR: u32 = 8;

/// Where a question is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ForwardState {
    /// No peer is known that could be asked.
    NoPeer,
    /// It waits until this peer may be asked.
    Queued(ReplicaId),
    /// It was sent to this peer.
    Sent(ReplicaId),
}

/// A read that somebody else answers.
#[derive(Clone, Debug)]
struct ForwardedRead {
    /// `None`: the client has disconnected. The peer answers nevertheless.
    from: Option<ClientHandle>,
    key: Key,
    /// When it came to its place.
    since: Time,
    attempts: u32,
    state: ForwardState,
    /// It waits for a leader: for the one that was known when it was asked, or for any.
    of_leader: bool,
}

impl Hash for ForwardedRead {
    /// When it was asked decides only when it is asked again: not before the horizon.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.from, &self.key, self.attempts).hash(state);
        (self.state, self.of_leader).hash(state);
    }
}

/// A read for which a peer is to be found that answers it.
#[derive(Clone, Debug)]
pub(super) struct UnroutedRead {
    pub(super) from: ClientHandle,
    pub(super) key: Key,
    /// Number of times that the read was asked.
    pub(super) attempts: u32,
}

impl UnroutedRead {
    /// A client's read that was asked so often.
    pub(super) fn after(attempts: u32, from: ClientHandle, key: Key) -> UnroutedRead {
        UnroutedRead {
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
    waiting: RoundRobinQueue<RequestId>,
    /// Questions that were sent, and not answered.
    sent: usize,
    /// When it last answered something.
    last_answer: Time,
}

impl Hash for Window {
    /// See [`ForwardedRead`].
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.waiting, self.sent).hash(state);
    }
}

/// Reads of this replica's clients that another replica answers.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct ForwardedReads {
    forwarded: BTreeMap<RequestId, ForwardedRead>,
    peers: BTreeMap<ReplicaId, Window>,
}

impl ForwardedReads {
    /// Number of reads that are not answered.
    pub(super) fn len(&self) -> usize {
        self.forwarded.len()
    }

    /// Asks at the end of the group, or when the peer may be asked.
    pub(super) fn forward(&mut self, step: &mut Step<'_>, unrouted: UnroutedRead, target: Target) {
        let request = step.name_request();
        if let Some(to) = target.to {
            let window = self.peers.entry(to).or_default();
            window.waiting.push(unrouted.from.connection, request);
        }
        let forwarded = ForwardedRead {
            from: Some(unrouted.from),
            key: unrouted.key,
            since: step.now,
            attempts: unrouted.attempts + 1,
            state: target.to.map_or(ForwardState::NoPeer, ForwardState::Queued),
            of_leader: target.of_leader,
        };
        let known = self.forwarded.insert(request, forwarded);
        assert!(known.is_none(), "every attempt has its own name");
    }

    /// A peer has answered something.
    pub(super) fn note_answer(&mut self, now: Time, from: ReplicaId) {
        if let Some(window) = self.peers.get_mut(&from) {
            window.last_answer = now;
        }
    }

    /// Returns the client that waits for this read; `None` if the attempt was dropped, or is of an
    /// earlier life (hazard 37), or if the client has disconnected.
    pub(super) fn take_answered(&mut self, request: RequestId) -> Option<ClientHandle> {
        self.take(request)?.from
    }

    /// A peer does not answer this read. What somebody else is to be asked, if anybody.
    pub(super) fn take_refused(
        &mut self,
        by: ReplicaId,
        request: RequestId,
        leader: Option<ReplicaId>,
    ) -> Option<UnroutedRead> {
        let forwarded = self.forwarded.get(&request)?;
        // It leads no longer, and nobody else is known to: asked at once, it would refuse as
        // fast as the network carries questions. Asked again when somebody else is heard of.
        if forwarded.of_leader && leader == Some(by) && forwarded.from.is_some() {
            let forwarded = self.take(request)?;
            let state = ForwardState::NoPeer;
            self.forwarded
                .insert(request, ForwardedRead { state, ..forwarded });
            return None;
        }
        self.take_unrouted(request)
    }

    /// Takes the reads that have waited too long where they are.
    pub(super) fn take_overdue(&mut self, now: Time, timeout: Duration) -> Vec<UnroutedRead> {
        self.take_all(|reads, forwarded| reads.is_overdue(forwarded, now, timeout))
    }

    /// Takes the reads that wait for a leader.
    pub(super) fn take_of_leader(&mut self) -> Vec<UnroutedRead> {
        self.take_all(|_, forwarded| forwarded.of_leader)
    }

    fn take_all(
        &mut self,
        due: impl Fn(&ForwardedReads, &ForwardedRead) -> bool,
    ) -> Vec<UnroutedRead> {
        let forwarded = self
            .forwarded
            .iter()
            .filter(|(_, forwarded)| due(self, forwarded));
        let requests: Vec<RequestId> = forwarded.map(|(request, _)| *request).collect();
        let taken = requests.into_iter();
        taken
            .filter_map(|request| self.take_unrouted(request))
            .collect()
    }

    fn is_overdue(&self, forwarded: &ForwardedRead, now: Time, timeout: Duration) -> bool {
        let timeout = timeout * forwarded.attempts.min(ATTEMPTS_COUNTED_MAX);
        let (ForwardState::Sent(at) | ForwardState::Queued(at)) = forwarded.state else {
            return now.since(forwarded.since) >= timeout;
        };
        match self.peers.get(&at) {
            Some(peer) if peer.sent > FEW => {
                let lost = matches!(forwarded.state, ForwardState::Sent(_))
                    && now.since(forwarded.since) >= timeout * BUSY_TIMEOUT_FACTOR;
                lost || now.since(forwarded.since.max(peer.last_answer)) >= timeout
            }
            _ => now.since(forwarded.since) >= timeout,
        }
    }

    fn take(&mut self, request: RequestId) -> Option<ForwardedRead> {
        let forwarded = self.forwarded.remove(&request)?;
        if let ForwardState::Sent(to) = forwarded.state
            && let Some(window) = self.peers.get_mut(&to)
        {
            assert!(window.sent > 0, "sent reads are counted");
            window.sent -= 1;
        }
        Some(forwarded)
    }

    /// To be asked again, unless its client has disconnected.
    fn take_unrouted(&mut self, request: RequestId) -> Option<UnroutedRead> {
        let forwarded = self.take(request)?;
        Some(UnroutedRead::after(
            forwarded.attempts,
            forwarded.from?,
            forwarded.key,
        ))
    }

    /// Forgets the reads of disconnected clients. A question that was sent counts as asked of its
    /// peer until the peer answers, or must have lost it. Otherwise a client that connects and
    /// disconnects could ask for any amount.
    pub(super) fn forget(&mut self, step: &mut Step<'_>, disconnected: &DisconnectedClients) {
        self.forwarded.retain(|_, forwarded| {
            if let Some(from) = forwarded.from.take_if(|from| disconnected.has(*from)) {
                reply_disconnected(step, from);
                return matches!(forwarded.state, ForwardState::Sent(_));
            }
            true
        });
    }

    /// Asks as many as peers may be asked.
    pub(super) fn flush(&mut self, step: &mut Step<'_>) {
        for (to, window) in &mut self.peers {
            let mut reads = [Vec::new(), Vec::new()];
            while window.sent < FORWARDED_TO_PEER_MAX
                && let Some((_, request)) = window.waiting.pop()
            {
                let forwarded = self.forwarded.get_mut(&request);
                if let Some(forwarded) =
                    forwarded.filter(|forwarded| forwarded.state == ForwardState::Queued(*to))
                {
                    forwarded.state = ForwardState::Sent(*to);
                    forwarded.since = step.now;
                    window.sent += 1;
                    // A peer that is asked again is asked as the leader.
                    reads[usize::from(forwarded.attempts > 1)]
                        .push((request, forwarded.key.clone()));
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
        for forwarded in self.forwarded.values() {
            match forwarded.state {
                ForwardState::Sent(to) => *sent.entry(to).or_default() += 1,
                ForwardState::Queued(to) => drop(waits.insert(to)),
                ForwardState::NoPeer => {}
            }
        }
        for (to, window) in &self.peers {
            let counted = sent.get(to).copied().unwrap_or_default();
            assert_eq!(window.sent, counted, "sent reads are counted");
            assert!(
                !waits.contains(to) || !window.waiting.is_empty(),
                "a read that waits for a peer has a turn"
            );
        }
    }
}
