//! The holder's side: what this replica has been promised, and what it may
//! read because of it.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::{LeaseMessage, Promise};
use crate::config::{Configs, KeyView};
use crate::mutants::{Rule, off};
use crate::time::Time;
use crate::types::{ConfigId, Incarnation, ReplicaId, ReplicaSet, Slot};

/// Windows remembered per grantor: those of a round trip, at any sensible rate of
/// renewal. A grantor that names an older one will establish anew.
const WINDOWS_MAX: usize = 1024;

/// Configurations remembered per grantor: more than follow each other while a slot
/// is blocked. Without an expired one the barrier is that of a later one: higher.
const RECORDS_MAX: usize = 32;

/// What one grantor promised under one configuration.
#[derive(Clone, Copy, Debug, Hash)]
struct Record {
    config: ConfigId,
    expires: Time,
    /// The least highest-accepted slot over the unbroken promises under it.
    barrier: Slot,
}

#[derive(Clone, Debug, Default, Hash)]
struct Peer {
    incarnation: Incarnation,
    /// The highest sequence taken from this incarnation.
    taken: u64,
    /// (sequence, when its ack was sent), rising: the windows still of use.
    windows: VecDeque<(u64, Time)>,
    /// Rising by configuration, each begun while the one before it here was
    /// unexpired: a key that was held from one's configuration up to another's
    /// has been covered without a break. All but the last may have expired since.
    records: SmallVec<[Record; 2]>,
}

/// Leave to read one key locally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    /// The permit ends here: compare with the clock after reading.
    pub until: Time,
}

/// Why there is no permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPermit {
    /// Under the newest configuration this replica does not hold the key.
    NotHolder,
    /// It holds the key, but too few grantors' promises are unexpired.
    Uncovered,
    /// Covered, but this slot must be executed first.
    Barrier(Slot),
}

/// What this replica has been promised by the others.
#[derive(Clone, Debug, Hash)]
pub struct Holder {
    me: ReplicaId,
    peers: Vec<Peer>,
    refusing: bool,
}

impl Holder {
    /// A holder among `n` replicas.
    pub fn new(me: ReplicaId, n: usize) -> Holder {
        Holder {
            me,
            peers: vec![Peer::default(); n],
            refusing: false,
        }
    }

    /// A message of `incarnation` came from `grantor`. A new run has forgotten
    /// its promises and counts its sequences anew: nothing of the old is kept.
    pub fn met(&mut self, grantor: ReplicaId, incarnation: Incarnation) {
        let peer = &mut self.peers[grantor.index()];
        if incarnation > peer.incarnation {
            *peer = Peer {
                incarnation,
                ..Peer::default()
            };
        }
    }

    /// Takes a grantor's guard or promise; returns the ack, or `None` if refused.
    /// `known` is the newest configuration known here. The caller has checked
    /// that the message names the present incarnations of both.
    pub fn handle(
        &mut self,
        now: Time,
        grantor: ReplicaId,
        message: &LeaseMessage,
        known: ConfigId,
    ) -> Option<LeaseMessage> {
        if self.refusing {
            return None;
        }
        match message {
            LeaseMessage::Guard { sequence } => {
                let peer = &mut self.peers[grantor.index()];
                peer.take(*sequence, now)?;
                Some(LeaseMessage::GuardAck {
                    sequence: *sequence,
                    known,
                })
            }
            LeaseMessage::Promise(promise) => {
                let peer = &mut self.peers[grantor.index()];
                peer.promised(now, promise, known)?;
                Some(LeaseMessage::PromiseAck {
                    sequence: promise.sequence,
                    known,
                })
            }
            _ => None,
        }
    }

    /// Erases every promise, refuses new ones, and says so to each grantor:
    /// this replica cannot make acceptances durable and would only block writes.
    pub fn relinquish(&mut self) -> Vec<(ReplicaId, LeaseMessage)> {
        self.refusing = true;
        let mut out = Vec::new();
        for (index, peer) in self.peers.iter_mut().enumerate() {
            if !off(Rule::H40Chain) {
                peer.records.clear();
            }
            peer.windows.clear();
            if index != self.me.index() && peer.taken > 0 {
                let message = LeaseMessage::Relinquish { up_to: peer.taken };
                out.push((ReplicaId(index as u8), message));
            }
        }
        out
    }

    /// Takes promises again.
    pub fn accept_again(&mut self) {
        self.refusing = false;
    }

    /// May this replica read the key locally at `now`, having executed up to
    /// `executed`? Covered by at least N/2 others, and past the barrier of each
    /// that is counted (§3.6, case 2).
    pub fn permit(
        &self,
        now: Time,
        key: KeyView<'_>,
        newest: ConfigId,
        executed: Slot,
    ) -> Result<Permit, NoPermit> {
        let held = |config| key.holders(config).contains(self.me);
        // Almost every promise is under the newest one.
        let held_now = held(newest);
        let permit = self.permit_where(now, executed, |config| match config == newest {
            true => held_now,
            false => held(config),
        });
        permit.map_err(|missing| match missing {
            NoPermit::Uncovered if !held_now => NoPermit::NotHolder,
            other => other,
        })
    }

    /// The same for every key there is or could be.
    pub fn permit_all(
        &self,
        now: Time,
        configs: &Configs,
        executed: Slot,
    ) -> Result<Permit, NoPermit> {
        self.permit_where(now, executed, |config| {
            configs.universal(config).contains(self.me)
        })
    }

    fn permit_where(
        &self,
        now: Time,
        executed: Slot,
        holds: impl Fn(ConfigId) -> bool,
    ) -> Result<Permit, NoPermit> {
        let needed = self.peers.len() / 2;
        if needed == 0 {
            return Ok(Permit { until: Time::MAX });
        }
        let mut ready: SmallVec<[Time; 8]> = SmallVec::new();
        let mut barriers: SmallVec<[Slot; 8]> = SmallVec::new();
        for peer in &self.peers {
            let Some((expires, barrier)) = peer.coverage(now, &holds) else {
                continue;
            };
            barriers.push(barrier);
            // Hazard 6: each grantor that is counted brings its own barrier.
            let passed = barrier <= executed
                || off(Rule::H05Barrier)
                || (off(Rule::H06OneBarrier) && !ready.is_empty());
            if passed {
                ready.push(expires);
            }
        }
        if ready.len() >= needed {
            // The permit lasts while `needed` of them do.
            ready.sort_unstable_by(|a, b| b.cmp(a));
            return Ok(Permit {
                until: ready[needed - 1],
            });
        }
        if barriers.len() >= needed {
            barriers.sort_unstable();
            return Err(NoPermit::Barrier(barriers[needed - 1]));
        }
        Err(NoPermit::Uncovered)
    }

    /// Until when `grantor` covers the key here, and the barrier of that chain.
    pub fn covered_by(
        &self,
        now: Time,
        grantor: ReplicaId,
        key: KeyView<'_>,
    ) -> Option<(Time, Slot)> {
        let holds = |config| key.holders(config).contains(self.me);
        self.peers[grantor.index()].coverage(now, holds)
    }

    /// Grantors with an unexpired promise here, whatever it covers.
    pub fn grantors(&self, now: Time) -> ReplicaSet {
        let peers = self.peers.iter().enumerate();
        peers
            .filter(|(_, peer)| peer.records.iter().any(|record| now < record.expires))
            .map(|(index, _)| ReplicaId(index as u8))
            .collect()
    }

    /// Forgets promises that make no difference any more to a replica that has
    /// executed up to `executed`.
    pub fn forget(&mut self, now: Time, executed: Slot) {
        for peer in &mut self.peers {
            peer.forget_ended(now);
            let records = &peer.records;
            // What has expired is of use for its barrier alone, and not once that
            // of a later one is reached: each chain from before to after has both.
            let last = records.len().saturating_sub(1);
            let expired = records.iter().take_while(|r| r.expires <= now).count();
            let expired = expired.min(last);
            let mut later = (1..=expired).rev();
            let reached = later.find(|&r| records[r].barrier <= executed);
            let over = records.len().saturating_sub(RECORDS_MAX).min(expired);
            peer.records.drain(..reached.unwrap_or(0).max(over));
        }
    }

    /// The oldest configuration that an unexpired promise, or one before it in its
    /// chain, is under.
    pub fn oldest_config(&self, now: Time) -> Option<ConfigId> {
        let live = |peer: &&Peer| peer.records.iter().any(|record| now < record.expires);
        let peers = self.peers.iter().filter(live);
        peers.map(|peer| peer.records[0].config).min()
    }

    /// Until when this replica may believe `grantor`, by this clock, and under
    /// which configurations; also what has expired, if it is remembered.
    #[inline]
    pub fn promised_by(&self, grantor: ReplicaId) -> impl Iterator<Item = (ConfigId, Time)> + '_ {
        let records = self.peers[grantor.index()].records.iter();
        records.map(|record| (record.config, record.expires))
    }
}

#[cfg(test)]
impl Holder {
    /// How many windows of `grantor` are remembered.
    pub(super) fn windows(&self, grantor: ReplicaId) -> usize {
        self.peers[grantor.index()].windows.len()
    }

    /// How many configurations `grantor` is remembered under.
    pub(super) fn records(&self, grantor: ReplicaId) -> usize {
        self.peers[grantor.index()].records.len()
    }
}

impl Peer {
    /// Hazard 2: a sequence is taken once, and never after a higher one.
    fn take(&mut self, sequence: u64, now: Time) -> Option<()> {
        if sequence <= self.taken && !off(Rule::H02Repeats) {
            return None;
        }
        self.taken = sequence;
        if self.windows.len() == WINDOWS_MAX {
            self.windows.pop_front();
        }
        self.windows.push_back((sequence, now));
        Some(())
    }

    /// When the ack of guard or promise `sequence` was sent.
    fn opened(&self, now: Time, sequence: u64) -> Option<Time> {
        if off(Rule::H35NamedAck) {
            return self.windows.back().map(|(_, sent)| *sent);
        }
        let named = self.windows.binary_search_by_key(&sequence, |w| w.0);
        match named {
            Ok(index) => Some(self.windows[index].1),
            Err(_) => off(Rule::H16OldPromise).then_some(now),
        }
    }

    /// Figure 5, lines 10-12 and 20-21.
    fn promised(&mut self, now: Time, promise: &Promise, known: ConfigId) -> Option<()> {
        // Hazard 14: what an unknown configuration gives cannot be told.
        if promise.config > known && !off(Rule::H14UnknownConfig) {
            return None;
        }
        let config = promise.config.min(known); // differs in that mutant only
        // Hazards 4 and 35: only within the window of the *named* ack, measured
        // from when this replica sent it; a promise that lay in a buffer is late.
        let opened = self.opened(now, promise.base)?;
        if now >= opened + promise.t0 + promise.t_guard && !off(Rule::H04LatePromise) {
            return None;
        }
        let mut newer = self.records.iter().filter(|record| record.config > config);
        if newer.any(|record| now < record.expires) {
            return None;
        }
        self.take(promise.sequence, now)?;
        self.forget_ended(now);
        // A grantor builds on its newest ack: none before this one is named again.
        while self.windows.front().is_some_and(|w| w.0 < promise.base) {
            self.windows.pop_front();
        }
        let expires = now + promise.t_lease;
        match self.records.last_mut() {
            Some(last) if last.config == config => {
                last.expires = last.expires.max(expires);
                if !off(Rule::H24Falls) {
                    last.barrier = last.barrier.min(promise.highest_accepted);
                }
            }
            _ => self.records.push(Record {
                config,
                expires,
                barrier: promise.highest_accepted,
            }),
        }
        Some(())
    }

    /// Forgets the chains that have lapsed: nothing can be joined to them.
    fn forget_ended(&mut self, now: Time) {
        let ended = |last: &Record| last.expires <= now && !off(Rule::H05Lapse);
        while self.records.last().is_some_and(ended) {
            self.records.pop();
        }
    }

    /// When the coverage of a key ends, and the barrier of its chain: the least
    /// highest-accepted slot of its unbroken promises. It is the least because
    /// it can fall, when a new leader's log drops dead entries (hazard 24).
    fn coverage(&self, now: Time, holds: impl Fn(ConfigId) -> bool) -> Option<(Time, Slot)> {
        let live = |record: &&Record| now < record.expires && holds(record.config);
        let newest = self.records.iter().rposition(|record| live(&record))?;
        let Record {
            mut config,
            mut expires,
            mut barrier,
        } = self.records[newest];
        // A configuration that newly gave the key began a new chain, whether or
        // not a promise was taken under the one that had not given it: what tells
        // is the configuration log, not which promises are remembered.
        for older in self.records[..newest].iter().rev() {
            let gave = (older.config.0..config.0).all(|id| holds(ConfigId(id)));
            if !gave && !off(Rule::H05NewlyGiven) {
                break;
            }
            config = older.config;
            if gave {
                expires = expires.max(older.expires);
            }
            barrier = match off(Rule::H24Falls) {
                true => older.barrier,
                false => barrier.min(older.barrier),
            };
        }
        Some((expires, barrier))
    }
}
