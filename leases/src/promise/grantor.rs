//! The grantor's side: what this replica has promised, and until when it must
//! keep it.

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

/// Context that the grantor needs when it promises.
pub struct PollContext<'a> {
    /// The configurations known here.
    pub configs: &'a Configs,
    /// The highest of: slots accepted in the log, accepts on their way to disk, the
    /// snapshot's slot. §3.6: a promise carries everything accepted before it.
    pub highest_accepted: Slot,
    /// Whether this replica may promise at all: its storage takes writes, and
    /// its configuration log does not lag the leader's by `t_grace`.
    pub may_promise: bool,
    /// A holder that has not answered for so long is promised nothing until it does.
    pub quiet_after: Duration,
}

/// Promises that this replica has made to the others.
#[derive(Clone, Debug, Hash)]
pub struct Grantor {
    me: ReplicaId,
    members: Membership,
    /// By replica; the entry of this one stays as it began.
    peers: Vec<Peer>,
    next_sequence: u64,
    /// Grants may be alive until then of which nothing is known: those of an earlier run,
    /// after a restart (§3.7), or those counted by a clock that was not to be believed.
    restart_wait: Option<Time>,
    /// The longest restart wait of any durations promised under; durable.
    longest_wait: Duration,
    /// A grant ended outside [`poll`](Grantor::poll), which has yet to say so.
    ended: bool,
}

impl Grantor {
    /// A grantor among `n` replicas. `forgotten` is the longest restart wait that
    /// an earlier run made durable, or `None` if there was no earlier run.
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

    /// The restart wait that must be durable before anything is promised under
    /// `params`; `None` if what is durable already covers it.
    pub fn wait_to_persist(&self, params: &LeaseParams) -> Option<Duration> {
        let wait = params.restart_wait();
        rules::raises_restart_wait(wait, self.longest_wait).then_some(wait)
    }

    /// The restart wait `wait` is durable now.
    pub fn wait_persisted(&mut self, wait: Duration) {
        if rules::raises_restart_wait(wait, self.longest_wait) {
            self.longest_wait = wait;
        }
    }

    /// Whether grants of an earlier run may still be alive.
    pub fn in_restart_wait(&self, now: Time) -> bool {
        self.restart_wait.is_some_and(|until| now < until)
    }

    /// This replica's clock is not to be believed (hazard 80): what it has promised
    /// may be alive, also what has lapsed by that clock. Everyone must be notified, until
    /// the clock is trusted again and has then counted the longest wait.
    pub fn distrust(&mut self) {
        self.restart_wait = Some(Time::MAX);
    }

    /// The clock is to be believed again, from `now` on. Acks are forgotten: how long ago
    /// they came was measured by a clock that was not to be believed, and a promise that
    /// builds on one could be taken for longer than its grant is kept.
    pub fn trust(&mut self, now: Time) {
        self.restart_wait = Some(now + self.longest_wait);
        for peer in &mut self.peers {
            peer.base = None;
        }
    }

    /// A message of `incarnation` came from `holder`. A new run honours no promise
    /// made to an earlier one, so those grants end here (Relinquish at restart);
    /// the next [`poll`](Self::poll) reports it.
    pub fn observe_incarnation(&mut self, now: Time, holder: ReplicaId, incarnation: Incarnation) {
        let peer = &mut self.peers[holder.index()];
        if incarnation > peer.incarnation {
            self.ended |= !peer.grants.is_empty();
            *peer = Peer::new(now, incarnation);
        }
    }

    /// Takes a holder's answer. Returns whether a grant ended or became shorter.
    /// The caller has checked that it names the present incarnations of both.
    pub fn handle(&mut self, now: Time, holder: ReplicaId, message: &LeaseMessage) -> bool {
        let next = self.next_sequence;
        let peer = &mut self.peers[holder.index()];
        match *message {
            // About nothing that was sent.
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
            // It takes nothing of this run any more, whatever is still on its way.
            LeaseMessage::Leave { .. } => peer.relinquish(next - 1),
            LeaseMessage::Guard { .. } | LeaseMessage::Promise(_) => false,
        }
    }

    /// Sends what is due. Returns whether a grant (or the restart wait) has
    /// ended since the last call: accepted slots may wait for fewer replicas.
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

    /// A promise, or else a guard, which keeps acks flowing.
    fn renew(&mut self, now: Time, holder: ReplicaId, context: &PollContext<'_>) -> LeaseMessage {
        let newest = context.configs.params(context.configs.newest());
        let peer = &mut self.peers[holder.index()];
        // What the holder knows may be shorter leases, which end between longer renewals.
        let config = rules::both_know(peer.known, context.configs.newest());
        peer.next_send = now + newest.renew.min(context.configs.params(config).renew);
        peer.promise_due = false;
        // §3.7: a peer that stays silent for t_grace is suspected, and not promised.
        peer.suspected |= now.since(peer.last_reply) >= newest.t_grace;
        // A holder that has missed answers may be disconnected, and each promise would keep
        // writes waiting for longer. A guard binds nobody, and its answer brings a promise at
        // once.
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

    /// Promises, if there is an ack to build on and nothing forbids it. The grant is
    /// registered before the promise leaves.
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

    /// Whether `holder` may be promised under `config` on an ack of age `t0`.
    fn may_promise(
        &self,
        holder: ReplicaId,
        config: ConfigId,
        t0: Duration,
        context: &PollContext<'_>,
    ) -> bool {
        let configs = context.configs;
        let params = configs.params(config);
        // No tag could obey a grant under a configuration that is forgotten here.
        let kept = config > ConfigId(0) && config >= configs.oldest_kept();
        // A restart outwaits no ack that is older than the cap, and nothing that is
        // not durable.
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

    /// The highest sequence sent to anybody.
    pub fn last_sequence(&self) -> u64 {
        self.next_sequence - 1
    }

    /// Whether a grant of any run of this replica may still be in force.
    pub fn may_be_believed(&self, now: Time) -> bool {
        let granted = |(_, peer): (ReplicaId, &Peer)| peer.grants.live(now).next().is_some();
        self.in_restart_wait(now) || self.by_holder().any(granted)
    }

    /// When [`poll`](Self::poll) should be called next.
    pub fn next_deadline(&self) -> Time {
        let others = self.members.others(self.me).iter();
        others
            .map(|holder| self.peers[holder.index()].next_deadline())
            .chain(self.restart_wait)
            .min()
            .unwrap_or(Time::MAX)
    }

    /// The unexpired grants.
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

    /// The oldest configuration that an unexpired grant is under.
    pub fn oldest_config(&self, now: Time) -> Option<ConfigId> {
        let grants = self.peers.iter().flat_map(|peer| peer.grants.live(now));
        grants.map(|grant| grant.config).min()
    }

    /// Replicas that have not answered for `t_grace`.
    pub fn suspects(&self) -> ReplicaSet {
        let suspected = self.by_holder().filter(|(_, peer)| peer.suspected);
        suspected.map(|(holder, _)| holder).collect()
    }

    /// The grants to `holder`: under which configurations it may believe this
    /// replica, and until when by this clock.
    #[inline]
    pub fn granted_to(&self, holder: ReplicaId) -> impl Iterator<Item = (ConfigId, Time)> + '_ {
        let grants = self.peers[holder.index()].grants.iter();
        grants.map(|grant| (grant.config, grant.expires))
    }

    /// Until when `holder` may believe promises of this replica, by this clock.
    pub fn granted_until(&self, holder: ReplicaId) -> Option<Time> {
        self.granted_to(holder).map(|(_, expires)| expires).max()
    }

    /// Panics if the state cannot be: sequences and configurations of grants rising,
    /// nothing granted or built on that was not sent or has been given back. Cost: a
    /// few comparisons for each grant; replicas have one or two.
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
