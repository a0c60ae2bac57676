//! The grantor's side: what this replica has promised, and until when it must
//! keep it.

use std::time::Duration;

use smallvec::SmallVec;

use super::{LeaseMessage, Promise};
use crate::config::{Configs, KeyView, LeaseParams};
use crate::mutants::{Rule, off};
use crate::time::Time;
use crate::types::{ConfigId, Incarnation, ReplicaId, ReplicaSet, Slot};

/// One grant: what a holder may believe under one configuration.
#[derive(Clone, Copy, Debug, Hash)]
struct Grant {
    config: ConfigId,
    expires: Time,
    /// The newest promise behind it.
    sequence: u64,
}

/// The newest ack received from a holder.
#[derive(Clone, Copy, Debug, Hash)]
struct Base {
    sequence: u64,
    received: Time,
}

#[derive(Clone, Debug, Hash)]
struct Peer {
    incarnation: Incarnation,
    base: Option<Base>,
    /// The newest configuration the holder said it knows.
    known: ConfigId,
    /// The newest promise sent, whose ack alone may shorten its grant.
    latest: Option<(u64, ConfigId, Duration)>,
    grants: SmallVec<[Grant; 2]>,
    /// The holder has erased and refuses everything up to this sequence.
    relinquished: u64,
    next_send: Time,
    /// A guard was just answered: the promise that builds on it is due.
    promise_due: bool,
    last_reply: Time,
    suspected: bool,
}

impl Peer {
    fn new(now: Time, incarnation: Incarnation) -> Peer {
        Peer {
            incarnation,
            base: None,
            known: ConfigId(0),
            latest: None,
            grants: SmallVec::new(),
            relinquished: 0,
            next_send: now,
            promise_due: false,
            last_reply: now,
            suspected: false,
        }
    }
}

/// What the grantor needs to know at the moment it promises.
pub struct PollContext<'a> {
    /// The configurations known here.
    pub configs: &'a Configs,
    /// max(accepted in the log, accepts on their way to disk, snapshot slot).
    /// §3.6: a promise must carry everything accepted before it.
    pub highest_accepted: Slot,
    /// Whether this replica may promise at all: its storage takes writes, and
    /// its configuration log does not lag the leader's by `t_grace`.
    pub may_promise: bool,
}

/// What this replica has promised to the others.
#[derive(Clone, Debug, Hash)]
pub struct Grantor {
    me: ReplicaId,
    peers: Vec<Peer>,
    next_sequence: u64,
    /// After a restart: grants of an earlier run may be alive until then (§3.7).
    restart_wait: Option<Time>,
    /// The longest restart wait of any parameters promised under, durable.
    longest_wait: Duration,
    /// A grant ended outside [`poll`](Grantor::poll), which has yet to say so.
    ended: bool,
}

impl Grantor {
    /// A grantor among `n` replicas. `forgotten` is the longest restart wait that
    /// an earlier run made durable, or `None` if there was no earlier run.
    pub fn new(me: ReplicaId, n: usize, now: Time, forgotten: Option<Duration>) -> Grantor {
        Grantor {
            me,
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
        (wait > self.longest_wait).then_some(wait)
    }

    /// The restart wait `wait` is durable now.
    pub fn wait_persisted(&mut self, wait: Duration) {
        self.longest_wait = self.longest_wait.max(wait);
    }

    /// Whether grants of an earlier run may still be alive.
    pub fn in_restart_wait(&self, now: Time) -> bool {
        self.restart_wait.is_some_and(|until| now < until)
    }

    /// A message of `incarnation` came from `holder`. A new run honours no promise
    /// made to an earlier one, so those grants end here (Relinquish at restart);
    /// the next [`poll`](Self::poll) reports it.
    pub fn met(&mut self, now: Time, holder: ReplicaId, incarnation: Incarnation) {
        let peer = &mut self.peers[holder.index()];
        if incarnation > peer.incarnation {
            self.ended |= !peer.grants.is_empty();
            *peer = Peer::new(now, incarnation);
        }
    }

    /// Takes a holder's answer. Returns whether a grant ended or became shorter.
    /// The caller has checked that it names the present incarnations of both.
    pub fn handle(&mut self, now: Time, holder: ReplicaId, message: &LeaseMessage) -> bool {
        match *message {
            LeaseMessage::GuardAck { sequence, known } => {
                self.acknowledged(now, holder, sequence, known);
                let peer = &mut self.peers[holder.index()];
                peer.promise_due = peer.latest.is_none_or(|(latest, ..)| latest < sequence);
                false
            }
            LeaseMessage::PromiseAck { sequence, known } => {
                self.acknowledged(now, holder, sequence, known);
                self.shorten(now, holder, sequence)
            }
            LeaseMessage::Relinquish { up_to } => self.relinquished(holder, up_to),
            LeaseMessage::Guard { .. } | LeaseMessage::Promise(_) => false,
        }
    }

    fn acknowledged(&mut self, now: Time, holder: ReplicaId, sequence: u64, known: ConfigId) {
        if sequence >= self.next_sequence {
            return; // never sent: not an ack of ours
        }
        let peer = &mut self.peers[holder.index()];
        peer.known = peer.known.max(known);
        peer.last_reply = now;
        peer.suspected = false;
        // An ack that was overtaken by its holder's Relinquish opens no window.
        let newer = peer.base.is_none_or(|base| base.sequence < sequence);
        if newer && sequence > peer.relinquished {
            peer.base = Some(Base {
                sequence,
                received: now,
            });
        }
    }

    /// Drops the grants up to that sequence (hazard 32: and no newer one). A
    /// promise on an erased window would be refused, yet bind this replica, so
    /// the next one needs a new guard.
    fn relinquished(&mut self, holder: ReplicaId, up_to: u64) -> bool {
        if up_to >= self.next_sequence {
            return false; // never sent: not about promises of ours
        }
        let peer = &mut self.peers[holder.index()];
        peer.relinquished = peer.relinquished.max(up_to);
        peer.base = peer.base.filter(|base| base.sequence > up_to);
        let before = peer.grants.len();
        peer.grants
            .retain(|grant| grant.sequence > up_to && !off(Rule::H32UpTo));
        peer.grants.len() < before
    }

    /// Hazard 1: only the ack of the *latest* promise shortens, for an older
    /// ack says nothing about the newer promise. Hazard 17: it shortens the
    /// grant under its own configuration only.
    fn shorten(&mut self, now: Time, holder: ReplicaId, sequence: u64) -> bool {
        let peer = &mut self.peers[holder.index()];
        let Some((latest, config, keep)) = peer.latest else {
            return false;
        };
        if latest != sequence && !off(Rule::H01OldAck) {
            return false;
        }
        let until = now + keep;
        let mut shorter = false;
        for grant in peer
            .grants
            .iter_mut()
            .filter(|grant| grant.config == config || off(Rule::H17Shortening))
        {
            shorter |= until < grant.expires;
            grant.expires = grant.expires.min(until);
        }
        shorter
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
        for index in 0..self.peers.len() {
            let holder = ReplicaId(index as u8);
            if holder == self.me {
                continue;
            }
            let grants = &mut self.peers[index].grants;
            let before = grants.len();
            grants.retain(|grant| now < grant.expires);
            lapsed |= grants.len() < before;
            if now >= self.peers[index].next_send {
                self.send_due(now, holder, context, out);
            } else if std::mem::take(&mut self.peers[index].promise_due) {
                self.send_promise(now, holder, context, out);
            }
        }
        lapsed
    }

    fn send_due(
        &mut self,
        now: Time,
        holder: ReplicaId,
        context: &PollContext<'_>,
        out: &mut Vec<(ReplicaId, LeaseMessage)>,
    ) {
        let newest = context.configs.params(context.configs.newest());
        let peer = &mut self.peers[holder.index()];
        peer.next_send = now + newest.renew;
        // §3.7: a peer that stays silent for t_grace is suspected, and not promised.
        peer.suspected |= now.since(peer.last_reply) >= newest.t_grace;
        peer.promise_due = false;
        if peer.suspected || !self.send_promise(now, holder, context, out) {
            // With nothing to promise, a guard still keeps acks flowing.
            let sequence = self.take_sequence();
            out.push((holder, LeaseMessage::Guard { sequence }));
        }
    }

    fn take_sequence(&mut self) -> u64 {
        self.next_sequence += 1;
        self.next_sequence - 1
    }

    fn send_promise(
        &mut self,
        now: Time,
        holder: ReplicaId,
        context: &PollContext<'_>,
        out: &mut Vec<(ReplicaId, LeaseMessage)>,
    ) -> bool {
        let Some(promise) = self.promise(now, holder, context) else {
            return false;
        };
        out.push((holder, LeaseMessage::Promise(promise)));
        true
    }

    /// Registers a grant, then makes the promise. Promised under the newest
    /// configuration that *both* know: a lagging replica costs freshness, not
    /// leases; but never below the oldest one it may still be promised under, nor
    /// under one whose contents are forgotten here, for no tag could obey it.
    fn promise(
        &mut self,
        now: Time,
        holder: ReplicaId,
        context: &PollContext<'_>,
    ) -> Option<Promise> {
        let sequence = self.next_sequence;
        let peer = &mut self.peers[holder.index()];
        let base = peer.base?;
        let newest = context.configs.newest();
        let config = match off(Rule::H14UnknownConfig) {
            true => newest,
            false => peer.known.min(newest),
        };
        let params = context.configs.params(config);
        let t0 = now.since(base.received);
        // The cap is the one that the restart wait of these parameters counts.
        let allowed = context.may_promise
            && config > ConfigId(0)
            && config >= context.configs.oldest_kept()
            && (config >= context.configs.oldest_promisable(holder) || off(Rule::H41Oldest))
            && t0 <= params.t0_cap
            && params.restart_wait() <= self.longest_wait;
        if !allowed {
            return None;
        }
        self.next_sequence += 1;
        let keep = params
            .clock
            .keep_from_send(params.t_lease, params.t_guard, t0);
        let expires = match off(Rule::H08Lapse) {
            true => now + keep * 1000,
            false => now + keep,
        };
        // Hazard 17: a grant for each configuration, none in the place of another.
        let same = |grant: &&mut Grant| grant.config == config || off(Rule::H17PerConfig);
        match peer.grants.iter_mut().find(same) {
            Some(grant) => {
                grant.config = config;
                grant.expires = grant.expires.max(expires);
                grant.sequence = sequence;
            }
            None => peer.grants.push(Grant {
                config,
                expires,
                sequence,
            }),
        }
        peer.latest = Some((sequence, config, params.clock.keep_from_ack(params.t_lease)));
        Some(Promise {
            sequence,
            base: base.sequence,
            t0,
            t_guard: params.t_guard,
            t_lease: params.t_lease,
            config,
            highest_accepted: context.highest_accepted,
        })
    }

    /// When [`poll`](Self::poll) should be called next.
    pub fn next_deadline(&self) -> Time {
        let peers = self.peers.iter().enumerate();
        let others = peers.filter(|(index, _)| *index != self.me.index());
        others
            .flat_map(|(_, peer)| {
                let expiries = peer.grants.iter().map(|grant| grant.expires);
                let next = if peer.promise_due {
                    Time::ZERO
                } else {
                    peer.next_send
                };
                expiries.chain([next])
            })
            .chain(self.restart_wait)
            .min()
            .unwrap_or(Time::MAX)
    }

    /// Unexpired grants, by configuration: who may believe it under each.
    pub fn live(&self, now: Time) -> Live {
        if self.in_restart_wait(now) && !off(Rule::H15RestartWait) {
            return Live {
                everyone: true,
                n: self.peers.len(),
                by_config: SmallVec::new(),
            };
        }
        let mut by_config: SmallVec<[(ConfigId, ReplicaSet); 2]> = SmallVec::new();
        for (index, peer) in self.peers.iter().enumerate() {
            for grant in peer.grants.iter().filter(|grant| now < grant.expires) {
                let holder = ReplicaId(index as u8);
                match by_config
                    .iter_mut()
                    .find(|(config, _)| *config == grant.config)
                {
                    Some((_, holders)) => holders.insert(holder),
                    None => by_config.push((grant.config, ReplicaSet::one(holder))),
                }
            }
        }
        Live {
            everyone: false,
            n: self.peers.len(),
            by_config,
        }
    }

    /// The oldest configuration that an unexpired grant is under.
    pub fn oldest_config(&self, now: Time) -> Option<ConfigId> {
        let grants = self.peers.iter().flat_map(|peer| &peer.grants);
        grants
            .filter(|grant| now < grant.expires)
            .map(|grant| grant.config)
            .min()
    }

    /// Replicas that have not answered for `t_grace`.
    pub fn suspects(&self) -> ReplicaSet {
        let peers = self.peers.iter().enumerate();
        let suspected = peers.filter(|(_, peer)| peer.suspected);
        suspected.map(|(index, _)| ReplicaId(index as u8)).collect()
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
        self.peers[holder.index()]
            .grants
            .iter()
            .map(|grant| grant.expires)
            .max()
    }
}

/// The grants in force at one moment, from which tags are computed (§3.4).
#[derive(Clone, Debug)]
pub struct Live {
    everyone: bool,
    n: usize,
    by_config: SmallVec<[(ConfigId, ReplicaSet); 2]>,
}

impl Live {
    /// The tag of an acceptance whose batch writes `keys`: every holder that a
    /// grant in force entitles to be notified. Obeying old and new
    /// configurations at once is the union this computes. During the restart
    /// wait (§3.7) that is everyone, for this replica has forgotten whom it
    /// promised. What writes no key (a no-op, a configuration) has no tag ever.
    pub fn tag<'a>(&self, mut keys: impl Iterator<Item = KeyView<'a>>) -> ReplicaSet {
        if self.everyone {
            let all = ReplicaSet::all(self.n);
            return keys.next().map_or(ReplicaSet::EMPTY, |_| all);
        }
        let grants = self.by_config.iter();
        let most = grants.fold(ReplicaSet::EMPTY, |set, (_, granted)| set.union(*granted));
        let mut tag = ReplicaSet::EMPTY;
        while tag != most {
            let Some(key) = keys.next() else { break };
            for (config, granted) in &self.by_config {
                tag = tag.union(protected(key, *config, *granted));
            }
        }
        tag
    }
}

/// Which of the `granted` hold `key` under `config`. A grant whose
/// configuration is forgotten (hazard 14) may cover any key.
fn protected(key: KeyView<'_>, config: ConfigId, granted: ReplicaSet) -> ReplicaSet {
    if key.knows(config) {
        key.holders(config).intersection(granted)
    } else {
        granted
    }
}
