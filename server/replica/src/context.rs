//! Identity of this replica, and its knowledge of the others. Every part may read it.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{Incarnation, Membership, ReplicaId, ReplicaSet, Time};
use smallvec::SmallVec;

use super::message::{Envelope, Message};
use super::settings::Settings;
use super::status::ShortTimeout;

/// Maximum timeout for a majority's answers, unless the election timeout is longer.
const MAJORITY_TIMEOUT_MAX: Duration = Duration::from_secs(10);

/// Number of round trips in a window of [`ShortestRtt`].
const RTT_WINDOW: u32 = 16;

/// Shortest of the recent round trips to a peer: of all in the current window and in the previous
/// one. Unlike a smoothed round trip, it does not rise if a replica is busy or paused for a while.
#[derive(Clone, Copy, Debug, Default)]
struct ShortestRtt {
    current: Option<Duration>,
    previous: Option<Duration>,
    /// Number of round trips in the current window.
    count: u32,
}

impl ShortestRtt {
    fn note(&mut self, sample: Duration) {
        if self.count == RTT_WINDOW {
            (self.previous, self.current, self.count) = (self.current, None, 0);
        }
        self.current = Some(self.current.map_or(sample, |it| it.min(sample)));
        self.count += 1;
    }

    /// Returns the shortest round trip; `None` if none was measured.
    fn get(&self) -> Option<Duration> {
        self.current.into_iter().chain(self.previous).min()
    }
}

/// Knowledge of another replica.
#[derive(Clone, Debug, Default)]
struct Peer {
    incarnation: Incarnation,
    /// Smoothed round-trip time to the peer; `None` if none was measured.
    rtt: Option<Duration>,
    shortest_rtt: ShortestRtt,
    /// Time at which the last message came from the peer; the beginning of this run if none came.
    last_contact: Time,
    /// The peer's own estimate of the average time, in ms, that clients would wait if the peer led;
    /// 0 if the peer should not lead.
    cost_ms: u32,
}

/// Result of comparing a peer's message with earlier knowledge of that peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerContact {
    /// Whether the message is from a later run of the peer than the newest run known before.
    pub(super) is_later_run: bool,
    /// Time of the peer's previous message, if the contact was interrupted; otherwise `None`. The
    /// contact was interrupted if the peer has restarted since that message, or was silent for a
    /// `health_gap`.
    pub(super) interrupted: Option<Time>,
}

/// Identity of this replica, and its knowledge of the others.
#[derive(Clone, Debug)]
pub(super) struct ReplicaContext {
    pub(super) settings: Settings,
    pub(super) incarnation: Incarnation,
    pub(super) members: Membership,
    /// Whether the storage accepts writes.
    pub(super) writable: bool,
    /// Whether the clock is trusted.
    pub(super) clock_trusted: bool,
    /// Knowledge of each replica, by its index.
    peers: Vec<Peer>,
}

impl Hash for ReplicaContext {
    /// Hashes this value, except the times of the last messages of peers and the shortest round trips.
    /// While a fingerprint is valid, these have no effect (`Replica::fingerprint`).
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.incarnation, self.writable, self.clock_trusted).hash(state);
        for peer in &self.peers {
            (peer.incarnation, peer.rtt).hash(state);
        }
    }
}

impl ReplicaContext {
    /// Returns the context of a new run, which has received no message yet.
    pub(super) fn new(now: Time, settings: Settings, incarnation: Incarnation) -> ReplicaContext {
        let peer = Peer {
            last_contact: now,
            ..Peer::default()
        };
        ReplicaContext {
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

    /// Returns the other members, in rising order.
    pub(super) fn others(&self) -> impl Iterator<Item = ReplicaId> + use<> {
        self.members.others(self.me()).iter()
    }

    /// Returns the duration of silence after which a peer is treated as unhealthy. A leader that
    /// was silent for this long would lose leadership.
    pub(super) fn health_gap(&self) -> Duration {
        let timing = &self.settings.timing;
        timing.election_timeout.max(timing.ping * 2)
    }

    /// Whether `from` is another member.
    pub(super) fn is_other(&self, from: ReplicaId) -> bool {
        self.members.is_member(from) && from != self.me()
    }

    /// Notes the arrival of a message from the run `incarnation` of a peer.
    pub(super) fn note_contact(
        &mut self,
        now: Time,
        from: ReplicaId,
        incarnation: Incarnation,
    ) -> PeerContact {
        assert!(
            from != self.settings.me,
            "a replica hears only other replicas"
        );
        let gap = self.health_gap();
        let peer = &mut self.peers[from.index()];
        let last = std::mem::replace(&mut peer.last_contact, now);
        let is_later_run = incarnation > peer.incarnation;
        peer.incarnation = peer.incarnation.max(incarnation);
        PeerContact {
            is_later_run,
            interrupted: (is_later_run || now.since(last) >= gap).then_some(last),
        }
    }

    /// Whether a message comes from the newest known run of its sender, and was addressed to this
    /// run of this replica. Otherwise this replica ignores lease messages, forwarded requests and
    /// fetched entries (protocol §0). An acceptance of an earlier run, and the tag of this
    /// acceptance, stay valid.
    pub(super) fn is_current(&self, envelope: &Envelope) -> bool {
        let known = self.incarnation_of(envelope.from);
        envelope.from_incarnation == known && envelope.to_incarnation == self.incarnation
            || off(Rule::H16OldPromise)
            || off(Rule::H37Life)
            || off(Rule::H92Earlier) && matches!(envelope.message, Message::Fetched { .. })
    }

    /// Returns the newest known run of a peer; 0 if no run is known.
    pub(super) fn incarnation_of(&self, peer: ReplicaId) -> Incarnation {
        self.peers[peer.index()].incarnation
    }

    /// Notes the answer to a ping that this replica sent at `stamp`.
    pub(super) fn note_rtt(&mut self, now: Time, from: ReplicaId, stamp: u64) {
        assert!(
            self.is_other(from),
            "a replica measures round trips only to others"
        );
        let sample = now.since(Time(stamp));
        let peer = &mut self.peers[from.index()];
        peer.rtt = Some(peer.rtt.map_or(sample, |rtt| (rtt * 7 + sample) / 8));
        peer.shortest_rtt.note(sample);
    }

    /// Notes a peer's own estimate of the average time, in ms, that clients would wait if this peer
    /// led.
    pub(super) fn note_cost(&mut self, from: ReplicaId, cost_ms: u32) {
        assert!(
            self.is_other(from),
            "a reported cost is that of another replica"
        );
        self.peers[from.index()].cost_ms = cost_ms;
    }

    /// Estimates the average time, in ms, that a client's write would take if this replica led. The
    /// average is over the clients of all sites. The time of a write is the round trip from the
    /// client to this replica plus the round trip from this replica to the nearest majority. The
    /// wait for holders of leases is not included. Returns at least 1; `None` until enough round
    /// trips are measured.
    pub(super) fn cost_ms(&self) -> Option<u32> {
        let commit = self.majority_rtt()?;
        let rtts = self.peers.iter().filter_map(|peer| peer.rtt);
        let sites = rtts.clone().count() as u32 + 1;
        let mean = rtts.sum::<Duration>() / sites;
        u32::try_from((commit + mean).as_millis() + 1).ok()
    }

    /// Returns the round trip to the nearest majority; `None` until enough round trips are
    /// measured.
    pub(super) fn majority_rtt(&self) -> Option<Duration> {
        let mut rtts: SmallVec<[Duration; 8]> = self.peers.iter().filter_map(|p| p.rtt).collect();
        rtts.sort_unstable();
        match self.members.majority() {
            0 | 1 => Some(Duration::ZERO),
            majority => rtts.get(majority - 2).copied(),
        }
    }

    /// Returns the election timeout if it is less than two round trips to the nearest majority.
    pub(super) fn short_timeout(&self) -> Option<ShortTimeout> {
        let (rtt, set) = (self.majority_rtt()?, self.settings.timing.election_timeout);
        (set < rtt * 2).then_some(ShortTimeout { set, rtt })
    }

    /// Returns the timeout for a majority's answers: an election timeout, or two round trips to the
    /// nearest majority if these take longer. Long round trips extend the timeout to at most
    /// [`MAJORITY_TIMEOUT_MAX`].
    pub(super) fn majority_timeout(&self) -> Duration {
        let answers = self.majority_rtt().unwrap_or_default() * 2;
        let timeout = self.settings.timing.election_timeout;
        timeout.max(answers.min(MAJORITY_TIMEOUT_MAX))
    }

    /// Whether a message from the peer has arrived lately.
    pub(super) fn is_heard(&self, now: Time, peer: ReplicaId) -> bool {
        let timing = &self.settings.timing;
        let timeout = timing.election_timeout.max(timing.ping * 3);
        now.since(self.peers[peer.index()].last_contact) < timeout
    }

    /// Returns the number of other replicas that should campaign before this replica: `preferred`,
    /// and the replicas that would serve the sites better. A replica counts only if a message from
    /// it has arrived lately. The leader that has fallen silent, `silent`, does not count.
    pub(super) fn rank(
        &self,
        now: Time,
        fit: bool,
        silent: ReplicaId,
        preferred: Option<ReplicaId>,
    ) -> u32 {
        let key = |replica: ReplicaId, cost_ms: u32| {
            let cost_ms = match cost_ms {
                0 => u32::MAX,
                known => known,
            };
            (preferred != Some(replica), cost_ms, replica)
        };
        let own = self.cost_ms().filter(|_| fit).unwrap_or(0);
        let mine = key(self.me(), own);
        let better = self.others().filter(|other| {
            let peer = &self.peers[other.index()];
            let lives = *other != silent && self.is_heard(now, *other);
            lives && peer.cost_ms > 0 && key(*other, peer.cost_ms) < mine
        });
        better.count() as u32
    }

    /// Returns the other replicas that report that they would lead well.
    pub(super) fn fit(&self) -> ReplicaSet {
        let fit = |other: &ReplicaId| self.peers[other.index()].cost_ms > 0;
        self.others().filter(fit).collect()
    }

    /// Returns the replica in `among`, except this replica, that should lead next. Prefers the
    /// replicas from which a message has arrived lately. Among these, prefers the replica that
    /// would serve the sites best.
    pub(super) fn successor(&self, now: Time, among: ReplicaSet) -> Option<ReplicaId> {
        // A leader that hears no other replica resigns after its timeout. All others have then been
        // silent for that long.
        let timing = &self.settings.timing;
        let timeout = (timing.ping * 3).max(self.majority_timeout() + timing.heartbeat * 3);
        let others = self.others().filter(|other| among.contains(*other));
        others.min_by_key(|other| {
            let Peer {
                last_contact,
                cost_ms,
                ..
            } = self.peers[other.index()];
            let unfit = cost_ms == 0;
            (now.since(last_contact) >= timeout, unfit, cost_ms, *other)
        })
    }

    /// Returns the maximum duration of a leadership transfer. A transfer has two steps: all
    /// proposals are committed, and the campaign of the transfer target arrives. Each step takes
    /// one round trip, and may first have to wait for a heartbeat.
    pub(super) fn transfer_timeout(&self) -> Duration {
        (self.rtt_max() + self.settings.timing.heartbeat) * 2
    }

    /// Returns the longest round trip that was measured; zero if none was.
    pub(super) fn rtt_max(&self) -> Duration {
        let measured = self.peers.iter().filter_map(|peer| peer.rtt);
        measured.max().unwrap_or(Duration::ZERO)
    }

    /// Returns the round trip to the farthest peer. For each peer, the shortest of the recent round
    /// trips counts. Returns zero if no round trip was measured.
    pub(super) fn farthest_rtt(&self) -> Duration {
        let shortest = self.peers.iter().filter_map(|peer| peer.shortest_rtt.get());
        shortest.max().unwrap_or(Duration::ZERO)
    }

    /// Returns the smoothed round trip to a peer; `None` until it is measured.
    pub(super) fn rtt(&self, peer: ReplicaId) -> Option<Duration> {
        self.peers.get(peer.index())?.rtt
    }

    /// Returns the replica in `among`, except this replica, with the shortest round trip. `among`
    /// may come from a peer's configuration, so it may contain replicas that are not members. Such
    /// replicas are ignored.
    pub(super) fn nearest(&self, among: ReplicaSet) -> Option<ReplicaId> {
        let others = among.iter().filter(|replica| *replica != self.me());
        let measured = others.filter_map(|replica| Some((self.rtt(replica)?, replica)));
        measured.min().map(|(_, replica)| replica)
    }

    /// Whether this replica may campaign: its storage can keep the promise that it makes to itself,
    /// and messages from enough other replicas have arrived lately.
    pub(super) fn may_campaign(&self, now: Time) -> bool {
        self.writable && !self.is_deaf(now)
    }

    /// Whether this replica has lately received messages from too few other replicas for a
    /// majority. Without this check, a replica that can send but not receive would lead forever
    /// without committing anything, or would depose every other leader with its campaigns.
    pub(super) fn is_deaf(&self, now: Time) -> bool {
        let timing = &self.settings.timing;
        let timeout = (timing.election_timeout * 2).max(timing.ping * 3);
        let lately = |peer: &ReplicaId| now.since(self.peers[peer.index()].last_contact) < timeout;
        let heard: ReplicaSet = self.others().filter(lately).collect();
        !self
            .members
            .is_quorum(heard.union(ReplicaSet::one(self.me())))
    }

    /// Wraps a message for the replica `to` in an envelope, with the incarnations of both replicas.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_of_a_peer_does_not_lengthen_its_shortest_round_trip() {
        let ms = Duration::from_millis;
        let mut rtt = ShortestRtt::default();
        assert_eq!(rtt.get(), None);
        let mut note = |samples: &[u64]| {
            samples.iter().for_each(|sample| rtt.note(ms(*sample)));
            rtt.get()
        };
        assert_eq!(note(&[1; 10]), Some(ms(1)));
        assert_eq!(note(&[600; 10]), Some(ms(1)));
        // The peer has moved away.
        assert_eq!(note(&[80; 2 * RTT_WINDOW as usize]), Some(ms(80)));
        assert_eq!(note(&[2]), Some(ms(2)));
    }
}
