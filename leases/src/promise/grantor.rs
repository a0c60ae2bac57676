//! The grantor's side of the engine: promises that this replica has made, and the times until which
//! the replica must keep its promises.

use std::time::Duration;

use super::grants::Grant;
use super::live_grants::LiveGrants;
use super::message::{LeaseMessage, Promise};
use super::peer::{LatestPromise, Peer};
use super::rules;
use crate::config::{Configs, LeaseParams};
use crate::membership::Membership;
use crate::mutants::mutated;
use crate::time::Time;
use crate::types::{ConfigId, Incarnation, ReplicaId, ReplicaSet, Slot};

/// State of this replica that is needed to make promises.
pub struct PollContext<'a> {
    /// The configurations known on this replica.
    pub configs: &'a Configs,
    /// Highest accepted slot. This includes slots that are still being written to disk, and the
    /// slot of the snapshot. A promise contains the highest slot that was accepted before the
    /// promise (§3.6).
    pub highest_accepted: Slot,
    /// Whether this replica may make promises at all. This requires that its storage accepts
    /// writes, that its clock is trusted, and that it does not leave. Its configuration log must
    /// not have lagged behind the leader's for `t_grace` or longer.
    pub may_promise: bool,
    /// Time after which a silent holder receives no more promises. After the holder's next answer,
    /// it receives promises again.
    pub quiet_after: Duration,
}

/// Promises that this replica has made to the other replicas.
#[derive(Clone, Debug, Hash)]
pub struct Grantor {
    me: ReplicaId,
    members: Membership,
    /// State of each replica. The entry of this replica is unused.
    peers: Vec<Peer>,
    next_sequence: u64,
    /// Time until which unknown grants may be in force; `None` if all grants are known. An unknown
    /// grant was made by an earlier run (§3.7), or was measured by a clock that was not trusted.
    restart_wait: Option<Time>,
    /// Longest restart wait that any promise of this replica has required, in this run or an
    /// earlier run. This value is durable.
    longest_wait: Duration,
    /// Whether [`poll`](Grantor::poll) must still report that a grant has ended. This is the case
    /// if a grant ends outside `poll`.
    ended: bool,
}

impl Grantor {
    /// Creates a grantor among `n` replicas. `forgotten` is the longest restart wait that an
    /// earlier run made durable; `None` if there was no earlier run.
    pub fn new(me: ReplicaId, n: usize, now: Time, forgotten: Option<Duration>) -> Grantor {
        let members = Membership::fixed(n);
        assert!(members.is_member(me), "a grantor is a member");
        Grantor {
            me,
            members,
            peers: vec![Peer::new(now, Incarnation(0)); n],
            next_sequence: 1,
            restart_wait: forgotten.map(|wait| now + wait),
            longest_wait: forgotten.unwrap_or(Duration::ZERO),
            ended: false,
        }
    }

    /// Returns the restart wait that must be made durable before promises are made under `params`;
    /// `None` if the durable wait is already long enough.
    pub fn wait_to_persist(&self, params: &LeaseParams) -> Option<Duration> {
        let wait = params.restart_wait();
        rules::raises_restart_wait(wait, self.longest_wait).then_some(wait)
    }

    /// Records that the restart wait `wait` has become durable.
    pub fn wait_persisted(&mut self, wait: Duration) {
        if rules::raises_restart_wait(wait, self.longest_wait) {
            self.longest_wait = wait;
        }
    }

    /// Whether grants that this replica does not know may still be in force.
    pub fn in_restart_wait(&self, now: Time) -> bool {
        self.restart_wait.is_some_and(|until| now < until)
    }

    /// Records that this replica's clock is not trusted (hazard 80). Promises that have lapsed by
    /// this clock may still be in force, so all replicas must be notified of writes. This ends when
    /// the clock is trusted again and has then measured the longest restart wait.
    pub fn distrust(&mut self) {
        self.restart_wait = Some(Time::MAX);
    }

    /// Records that the clock is trusted again from the time `now`. Forgets earlier acks, because
    /// their age was measured by an untrusted clock. If a promise were built on such an ack, the
    /// holder could rely on the promise after the grant has ended.
    pub fn trust(&mut self, now: Time) {
        self.restart_wait = Some(now + self.longest_wait);
        for peer in &mut self.peers {
            peer.base = None;
        }
    }

    /// Handles a message from the run `incarnation` of `holder`. If the run is new, the grants to
    /// the earlier run end, because the new run does not use promises to the earlier run
    /// (Relinquish at restart). The next [`poll`](Self::poll) reports that these grants have ended.
    pub fn observe_incarnation(&mut self, now: Time, holder: ReplicaId, incarnation: Incarnation) {
        let peer = &mut self.peers[holder.index()];
        if incarnation > peer.incarnation {
            self.ended |= !peer.grants.is_empty();
            *peer = Peer::new(now, incarnation);
        }
    }

    /// Handles a holder's answer. Returns whether a grant ended or became shorter. The caller must
    /// have checked that the message contains the current incarnations of both replicas.
    pub fn handle(&mut self, now: Time, holder: ReplicaId, message: &LeaseMessage) -> bool {
        let next = self.next_sequence;
        let peer = &mut self.peers[holder.index()];
        match *message {
            // The message refers to a sequence number that was never sent.
            LeaseMessage::GuardAck { sequence, .. }
            | LeaseMessage::PromiseAck { sequence, .. }
            | LeaseMessage::Relinquish { up_to: sequence }
                if sequence >= next =>
            {
                false
            }
            LeaseMessage::GuardAck { sequence, known } => {
                peer.handle_ack(now, sequence, known);
                peer.promise_due = peer.latest.is_none_or(|latest| latest.sequence < sequence);
                false
            }
            LeaseMessage::PromiseAck { sequence, known } => {
                peer.handle_ack(now, sequence, known);
                peer.shorten(now, sequence)
            }
            LeaseMessage::Relinquish { up_to } => peer.relinquish(up_to),
            // The holder accepts no further messages of this run, including messages on their way.
            LeaseMessage::Leave { .. } => peer.relinquish(next - 1),
            LeaseMessage::Guard { .. } | LeaseMessage::Promise(_) => false,
        }
    }

    /// Appends the messages that are due to `out`. Returns whether a grant or the restart wait has
    /// ended since the last call. If true, accepted slots may need to wait for fewer replicas.
    pub fn poll(
        &mut self,
        now: Time,
        context: &PollContext<'_>,
        out: &mut Vec<(ReplicaId, LeaseMessage)>,
    ) -> bool {
        let mut lapsed = std::mem::take(&mut self.ended);
        if self.restart_wait.is_some_and(|until| now >= until) {
            self.restart_wait = None;
            lapsed = true;
        }
        for holder in self.members.others(self.me).iter() {
            let peer = &mut self.peers[holder.index()];
            lapsed |= peer.grants.lapse(now);
            let message = if now >= peer.next_send {
                Some(self.renew(now, holder, context))
            } else if std::mem::take(&mut peer.promise_due) {
                self.promise(now, holder, context)
            } else {
                None
            };
            out.extend(message.map(|message| (holder, message)));
        }
        lapsed
    }

    /// Returns a promise to `holder` if one can be made; otherwise returns a guard.
    fn renew(&mut self, now: Time, holder: ReplicaId, context: &PollContext<'_>) -> LeaseMessage {
        let newest = context.configs.params(context.configs.newest());
        let peer = &mut self.peers[holder.index()];
        // The holder may know only an older configuration, with shorter leases than under the
        // newest one. These leases must be renewed at their own, shorter interval.
        let config = rules::both_know(peer.known, context.configs.newest());
        peer.next_send = now + newest.renew.min(context.configs.params(config).renew);
        peer.promise_due = false;
        // §3.7: a peer that stays silent for t_grace is suspected, and receives no promises.
        peer.suspected |= now.since(peer.last_reply) >= newest.t_grace;
        // A holder that does not answer may be disconnected, and every promise would make writes
        // wait longer. A guard makes no write wait, and the holder's answer to it immediately leads
        // to a promise.
        let quiet = now.since(peer.last_reply) >= context.quiet_after;
        let promise = if peer.suspected || quiet {
            None
        } else {
            self.promise(now, holder, context)
        };
        promise.unwrap_or_else(|| LeaseMessage::Guard {
            sequence: self.take_sequence(),
        })
    }

    fn take_sequence(&mut self) -> u64 {
        assert!(self.next_sequence < u64::MAX, "sequences do not wrap");
        self.next_sequence += 1;
        self.next_sequence - 1
    }

    /// Makes a promise to `holder`. Returns `None` if there is no ack on which the promise can
    /// build, or if a rule forbids the promise. The grant is registered before the promise is sent.
    fn promise(
        &mut self,
        now: Time,
        holder: ReplicaId,
        context: &PollContext<'_>,
    ) -> Option<LeaseMessage> {
        let peer = &self.peers[holder.index()];
        let base = peer.base?;
        let config = rules::both_know(peer.known, context.configs.newest());
        let t0 = now.since(base.received);
        if !self.may_promise(holder, config, t0, context) {
            return None;
        }
        let params = context.configs.params(config);
        let promise = Promise {
            sequence: self.take_sequence(),
            base: base.sequence,
            t0,
            t_guard: params.t_guard,
            t_lease: params.t_lease,
            config,
            highest_accepted: context.highest_accepted,
        };
        self.register(now, holder, &promise, params);
        Some(LeaseMessage::Promise(promise))
    }

    /// Whether a promise to `holder` may be made under `config` if the promise builds on an ack of
    /// age `t0`.
    fn may_promise(
        &self,
        holder: ReplicaId,
        config: ConfigId,
        t0: Duration,
        context: &PollContext<'_>,
    ) -> bool {
        let configs = context.configs;
        let params = configs.params(config);
        // No tag could respect a grant under a configuration with forgotten contents.
        let kept = config > ConfigId(0) && config >= configs.oldest_kept();
        // The restart wait covers only acks up to the age of the cap, and only durations for which
        // the wait is durable.
        let outwaited = t0 <= params.t0_cap && params.restart_wait() <= self.longest_wait;
        let may = rules::not_before_exclusion(config, configs.oldest_promisable(holder));
        context.may_promise && kept && outwaited && may
    }

    fn register(&mut self, now: Time, holder: ReplicaId, promise: &Promise, params: &LeaseParams) {
        let clock = params.clock;
        let keep = clock.keep_from_send(promise.t_lease, promise.t_guard, promise.t0);
        assert!(promise.t_lease > Duration::ZERO, "a promise lasts");
        assert!(
            promise.base < promise.sequence,
            "a promise builds on an earlier one"
        );
        assert!(
            keep <= self.longest_wait || mutated(),
            "a restart outwaits every grant"
        );
        let peer = &mut self.peers[holder.index()];
        peer.grants.register(Grant {
            config: promise.config,
            expires: now + rules::kept_for(keep),
            sequence: promise.sequence,
        });
        peer.latest = Some(LatestPromise {
            sequence: promise.sequence,
            config: promise.config,
            keep: clock.keep_from_ack(promise.t_lease),
        });
    }

    /// Returns the highest sequence number of all messages to all holders.
    pub fn last_sequence(&self) -> u64 {
        self.next_sequence - 1
    }

    /// Whether a grant of this replica, from this run or an earlier run, may still be in force.
    pub fn may_be_believed(&self, now: Time) -> bool {
        let granted = |(_, peer): (ReplicaId, &Peer)| peer.grants.live(now).next().is_some();
        self.in_restart_wait(now) || self.by_holder().any(granted)
    }

    /// Returns the time at which [`poll`](Self::poll) should be called next.
    pub fn next_deadline(&self) -> Time {
        let others = self.members.others(self.me).iter();
        others
            .map(|holder| self.peers[holder.index()].next_deadline())
            .chain(self.restart_wait)
            .min()
            .unwrap_or(Time::MAX)
    }

    /// Returns the grants in force.
    pub fn live(&self, now: Time) -> LiveGrants {
        if rules::tags_everyone(self.in_restart_wait(now)) {
            return LiveGrants::unknown(self.members);
        }
        let grants = self.by_holder().flat_map(|(holder, peer)| {
            let live = peer.grants.live(now);
            live.map(move |grant| (holder, grant.config))
        });
        LiveGrants::of(grants)
    }

    /// Returns the oldest configuration under which a grant is in force.
    pub fn oldest_config(&self, now: Time) -> Option<ConfigId> {
        let grants = self.peers.iter().flat_map(|peer| peer.grants.live(now));
        grants.map(|grant| grant.config).min()
    }

    /// Returns the replicas that have not answered for `t_grace`.
    pub fn suspects(&self) -> ReplicaSet {
        let suspected = self.by_holder().filter(|(_, peer)| peer.suspected);
        suspected.map(|(holder, _)| holder).collect()
    }

    /// Iterates over the configurations and the end times of the grants to `holder`. The end times
    /// are times of this replica's clock.
    #[inline]
    pub fn granted_to(&self, holder: ReplicaId) -> impl Iterator<Item = (ConfigId, Time)> + '_ {
        let grants = self.peers[holder.index()].grants.iter();
        grants.map(|grant| (grant.config, grant.expires))
    }

    /// Returns the time, by this replica's clock, until which `holder` may rely on promises of this
    /// replica; `None` if there are no grants to `holder`.
    pub fn granted_until(&self, holder: ReplicaId) -> Option<Time> {
        self.granted_to(holder).map(|(_, expires)| expires).max()
    }

    /// Panics if the state is invalid. Each holder's grants must be in ascending order of sequence
    /// number and of configuration. The sequence numbers of grants and acks must have been sent,
    /// and the holder must not have given them back. Cost: a few comparisons for each grant. Each
    /// replica has one or two grants.
    pub fn check(&self) {
        if mutated() {
            return; // for the oracles to catch
        }
        assert_eq!(
            self.peers.len(),
            self.members.len(),
            "there is one peer for each member"
        );
        for peer in &self.peers {
            peer.check(self.next_sequence);
        }
        let own = &self.peers[self.me.index()];
        assert!(own.latest.is_none(), "a grantor promises nothing to itself");
    }

    fn by_holder(&self) -> impl Iterator<Item = (ReplicaId, &Peer)> {
        let peers = self.peers.iter().enumerate();
        peers.map(|(index, peer)| (ReplicaId(index as u8), peer))
    }
}
