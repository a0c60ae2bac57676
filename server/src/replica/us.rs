//! Who this replica is, and what it knows of the others. Every part may look here.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use leases::mutants::{Rule, off};
use leases::{Incarnation, Membership, ReplicaId, ReplicaSet, Time};

use super::message::{Envelope, Message};
use super::settings::Settings;

/// What is known of another replica.
#[derive(Clone, Debug, Default)]
struct Peer {
    incarnation: Incarnation,
    /// Smoothed round trip; `None` until measured.
    rtt: Option<Duration>,
    /// When anything last came from it, or this run began.
    heard: Time,
}

/// Who this replica is, and what it knows of the others.
#[derive(Clone, Debug)]
pub(super) struct Us {
    pub(super) settings: Settings,
    pub(super) incarnation: Incarnation,
    pub(super) members: Membership,
    /// Whether the storage takes writes.
    pub(super) writable: bool,
    /// Whether the clock is to be believed.
    pub(super) clock_trusted: bool,
    /// By replica.
    peers: Vec<Peer>,
}

impl Hash for Us {
    /// When a peer was heard decides only whom to suspect: not before the horizon.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.incarnation, self.writable, self.clock_trusted).hash(state);
        for peer in &self.peers {
            (peer.incarnation, peer.rtt).hash(state);
        }
    }
}

impl Us {
    /// This run of a replica, which has heard of nobody.
    pub(super) fn new(now: Time, settings: Settings, incarnation: Incarnation) -> Us {
        let peer = Peer {
            heard: now,
            ..Peer::default()
        };
        Us {
            incarnation,
            members: Membership::fixed(settings.n),
            writable: true,
            clock_trusted: true,
            peers: vec![peer; settings.n],
            settings,
        }
    }

    pub(super) fn me(&self) -> ReplicaId {
        self.settings.me
    }

    /// The other members, rising.
    pub(super) fn others(&self) -> impl Iterator<Item = ReplicaId> + use<> {
        self.members.others(self.me()).iter()
    }

    /// Whether messages of `from` are those of another member.
    pub(super) fn is_other(&self, from: ReplicaId) -> bool {
        self.members.is_member(from) && from != self.me()
    }

    /// A message of this run of a peer came. Returns whether the run is a later one
    /// than the one known.
    pub(super) fn hear(&mut self, now: Time, from: ReplicaId, incarnation: Incarnation) -> bool {
        assert!(from != self.settings.me, "who is heard is another");
        let peer = &mut self.peers[from.index()];
        peer.heard = now;
        let later = incarnation > peer.incarnation;
        peer.incarnation = peer.incarnation.max(incarnation);
        later
    }

    /// Whether a message is from the run of its sender that is known here, and for
    /// this run. Lease messages, forwarded requests and what is fetched must be
    /// (protocol §0). An acceptance of an earlier run stays valid, with its tag.
    pub(super) fn is_current(&self, envelope: &Envelope) -> bool {
        let known = self.incarnation_of(envelope.from);
        envelope.from_incarnation == known && envelope.to_incarnation == self.incarnation
            || off(Rule::H16OldPromise)
            || off(Rule::H37Life)
    }

    /// The run of a peer that is known here; 0 if none.
    pub(super) fn incarnation_of(&self, peer: ReplicaId) -> Incarnation {
        self.peers[peer.index()].incarnation
    }

    /// A ping that this replica sent at `stamp` was answered.
    pub(super) fn measured(&mut self, now: Time, from: ReplicaId, stamp: u64) {
        let sample = now.since(Time(stamp));
        let peer = &mut self.peers[from.index()];
        peer.rtt = Some(peer.rtt.map_or(sample, |rtt| (rtt * 7 + sample) / 8));
    }

    /// The smoothed round trip to a peer, once it is measured.
    pub(super) fn rtt(&self, peer: ReplicaId) -> Option<Duration> {
        self.peers.get(peer.index())?.rtt
    }

    /// Of `among`, the other replica with the shortest round trip. A configuration
    /// comes from peers: it may name who is no member.
    pub(super) fn nearest(&self, among: ReplicaSet) -> Option<ReplicaId> {
        let others = among.iter().filter(|replica| *replica != self.me());
        let measured = others.filter_map(|replica| Some((self.rtt(replica)?, replica)));
        measured.min().map(|(_, replica)| replica)
    }

    /// Whether too few others for a majority have been heard of lately. A replica that can
    /// send but not receive would lead for ever without a commit, or stop every other
    /// leader with its campaigns.
    pub(super) fn is_deaf(&self, now: Time) -> bool {
        let patience = self.settings.timing.election_timeout * 2;
        let lately = |peer: &ReplicaId| now.since(self.peers[peer.index()].heard) < patience;
        let heard: ReplicaSet = self.others().filter(lately).collect();
        !self
            .members
            .is_quorum(heard.union(ReplicaSet::one(self.me())))
    }

    /// A message to `to`, with both incarnations.
    pub(super) fn envelope(&self, to: ReplicaId, message: Message) -> Envelope {
        assert!(self.is_other(to), "messages go to other members");
        Envelope {
            from: self.me(),
            from_incarnation: self.incarnation,
            to_incarnation: self.incarnation_of(to),
            message,
        }
    }
}
