//! Reads that another replica answers: the nearest holder of a lease, or the leader.
//!
//! A request has some dozen bytes, and its answer perhaps a MiB. A peer that received all requests
//! of clients at the same time could not send all answers at the same time. It would drop some
//! answers; these would be requested again, and dropped again. So only a limited number of reads is
//! sent to one peer at a time ([`FORWARDED_TO_PEER_MAX`]). The peer's node can keep so many answers
//! until the connection has sent them. The other reads wait here, and client connections are served
//! round-robin, so a client with many requests delays only itself. The limit is a number of reads,
//! and not of bytes, because this replica does not know in advance how large an answer will be.

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

/// Maximum number of unanswered reads at one peer. With a round trip of 100 ms, this allows 10,000
/// reads a second.
pub const FORWARDED_TO_PEER_MAX: usize = 1024;
/// Number of unanswered reads above which a peer counts as busy. For a read at a busy peer, the
/// timeout begins anew with each answer of the peer to another read.
const FEW: usize = FORWARDED_TO_PEER_MAX / 2;
/// Number of attempts after which the wait between two attempts no longer grows.
const ATTEMPTS_COUNTED_MAX: u32 = 8;
/// Factor by which the timeout of a request at a busy peer is multiplied. After this longer
/// timeout, the request is considered lost, even if the peer still answers other requests.
const BUSY_TIMEOUT_FACTOR: u32 = 8;

/// State of a request that another replica is to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ForwardState {
    /// No peer is known to which the request could be sent.
    NoPeer,
    /// The request waits in the queue for this peer.
    Queued(ReplicaId),
    /// The request was sent to this peer.
    Sent(ReplicaId),
}

/// A read that another replica answers.
#[derive(Clone, Debug)]
struct ForwardedRead {
    /// Client that waits for the answer; `None` if that client has disconnected. The peer answers
    /// in any case.
    from: Option<ClientHandle>,
    key: Key,
    /// Time at which the request entered its present state.
    since: Time,
    attempts: u32,
    state: ForwardState,
    /// Whether a leader must answer the read. This must be the leader that was known when the read
    /// was forwarded. If no leader was known, any leader may answer the read.
    of_leader: bool,
}

impl Hash for ForwardedRead {
    /// Hashes the read without the time of the request. The time has no effect in the period for
    /// which a fingerprint is valid (`Replica::fingerprint`).
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.from, &self.key, self.attempts).hash(state);
        (self.state, self.of_leader).hash(state);
    }
}

/// A read for which a peer must be chosen.
#[derive(Clone, Debug)]
pub(super) struct UnroutedRead {
    pub(super) from: ClientHandle,
    pub(super) key: Key,
    /// Number of times that the read was forwarded.
    pub(super) attempts: u32,
}

impl UnroutedRead {
    /// Returns a client's read that was forwarded `attempts` times.
    pub(super) fn after(attempts: u32, from: ClientHandle, key: Key) -> UnroutedRead {
        UnroutedRead {
            from,
            key,
            attempts,
        }
    }
}

/// Peer to which a read is forwarded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) to: Option<ReplicaId>,
    /// Whether the read is for the leader, or waits until a leader is known.
    pub(super) of_leader: bool,
}

/// Requests to one peer.
#[derive(Clone, Debug, Default)]
struct Window {
    /// Queue of waiting requests, in round-robin order of client connections. Some requests in the
    /// queue may no longer wait for this peer. These requests are skipped.
    waiting: RoundRobinQueue<RequestId>,
    /// Number of requests that were sent and are not answered.
    sent: usize,
    /// Time of the peer's last answer.
    last_answer: Time,
}

impl Hash for Window {
    /// Hashes all fields except the time of the last answer. This time has no effect in the period
    /// for which a fingerprint is valid (`Replica::fingerprint`).
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.waiting, self.sent).hash(state);
    }
}

/// Forwarded reads. They come from clients of this replica, and another replica answers them.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct ForwardedReads {
    forwarded: BTreeMap<RequestId, ForwardedRead>,
    peers: BTreeMap<ReplicaId, Window>,
}

impl ForwardedReads {
    /// Number of unanswered reads.
    pub(super) fn len(&self) -> usize {
        self.forwarded.len()
    }

    /// Queues a read for `target`. The read is sent at the end of the group of steps, or later,
    /// when the peer may receive another read.
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

    /// Notes that a peer has answered a read.
    pub(super) fn note_answer(&mut self, now: Time, from: ReplicaId) {
        if let Some(window) = self.peers.get_mut(&from) {
            window.last_answer = now;
        }
    }

    /// Removes the read that was answered, and returns the client that waits for it. Returns `None`
    /// if the attempt was dropped or belongs to an earlier run (hazard 37), or if the client has
    /// disconnected.
    pub(super) fn take_answered(&mut self, request: RequestId) -> Option<ClientHandle> {
        self.take(request)?.from
    }

    /// Handles a peer's refusal of a read. Returns the read if it should be sent to another
    /// replica.
    pub(super) fn take_refused(
        &mut self,
        by: ReplicaId,
        request: RequestId,
        leader: Option<ReplicaId>,
    ) -> Option<UnroutedRead> {
        let forwarded = self.forwarded.get(&request)?;
        // The peer no longer leads, and no other leader is known. If the read were sent again
        // immediately, the peer would refuse it as fast as the network carries messages. It is sent
        // again when another leader is known.
        if forwarded.of_leader && leader == Some(by) && forwarded.from.is_some() {
            let forwarded = self.take(request)?;
            let state = ForwardState::NoPeer;
            self.forwarded
                .insert(request, ForwardedRead { state, ..forwarded });
            return None;
        }
        self.take_unrouted(request)
    }

    /// Removes and returns the reads that have been in their present state for too long.
    pub(super) fn take_overdue(&mut self, now: Time, timeout: Duration) -> Vec<UnroutedRead> {
        self.take_all(|reads, forwarded| reads.is_overdue(forwarded, now, timeout))
    }

    /// Removes and returns the reads that a leader must answer.
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

    /// Removes and returns a read that is to be forwarded again; `None` if its client has
    /// disconnected.
    fn take_unrouted(&mut self, request: RequestId) -> Option<UnroutedRead> {
        let forwarded = self.take(request)?;
        Some(UnroutedRead::after(
            forwarded.attempts,
            forwarded.from?,
            forwarded.key,
        ))
    }

    /// Drops the reads of disconnected clients. A read that was already sent counts towards the
    /// limit for its peer until the peer answers the read or the read is considered lost. Without
    /// this rule, a client that repeatedly connects and disconnects could send any number of reads.
    pub(super) fn forget(&mut self, step: &mut Step<'_>, disconnected: &DisconnectedClients) {
        self.forwarded.retain(|_, forwarded| {
            if let Some(from) = forwarded.from.take_if(|from| disconnected.has(*from)) {
                reply_disconnected(step, from);
                return matches!(forwarded.state, ForwardState::Sent(_));
            }
            true
        });
    }

    /// Sends waiting reads to each peer, until the peer has the maximum number of unanswered reads.
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
                    // A read that is sent again is for the leader.
                    reads[usize::from(forwarded.attempts > 1)]
                        .push((request, forwarded.key.clone()));
                }
            }
            for (mut reads, read_index) in reads.into_iter().zip([false, true]) {
                // Restores the order of the requests, as if none had waited.
                reads.sort_unstable_by_key(|(request, _)| *request);
                for reads in chunks(reads, |(_, key)| key.len()) {
                    step.send(*to, Message::ForwardRead { read_index, reads });
                }
            }
        }
    }

    /// # Panics
    /// If the counts of sent reads are wrong.
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
