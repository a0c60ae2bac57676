//! Promises, recorded from messages alone (protocol §2). The record contains the promises that each
//! replica made and took. It also contains the beliefs that a holder may have because of the
//! promises that it took. This record is independent of grantors and holders: it applies the rules
//! to their messages, and does not read their state.

use std::collections::VecDeque;
use std::time::Duration;

use leasehold_leases::promise::Promise;
use leasehold_leases::{ConfigId, Incarnation, LeaseMessage, ReplicaId, Slot, Time};
use smallvec::SmallVec;

use super::{Verdict, Violation, WorldSnapshot, barriers, ensure, id, violated};
use leasehold_replica::message::{Envelope, Message};

/// Maximum number of sent promises that are remembered for one grantor and one holder until the
/// holder takes them. The number of promises in transit is always far below this maximum.
const MADE_MAX: usize = 4096;

/// A promise that was sent.
#[derive(Clone, Copy, Debug)]
struct SentPromise {
    run: Incarnation,
    to_run: Incarnation,
    sequence: u64,
    config: ConfigId,
    t_lease: Duration,
    highest_accepted: Slot,
}

/// A promise at the moment at which the holder takes it.
#[derive(Clone, Copy, Debug)]
struct ReceivedPromise {
    /// Reading of the holder's clock.
    now: Time,
    holder: usize,
    holder_run: Incarnation,
    grantor: ReplicaId,
    sequence: u64,
}

/// Period in which a holder may rely on promises of one grantor under one configuration.
#[derive(Clone, Copy, Debug)]
struct Belief {
    config: ConfigId,
    /// End of the period, by the holder's clock.
    until: Time,
    /// Barrier. Each promise names the highest slot that its grantor had accepted. The barrier is
    /// the lowest of these slots in an unbroken series of promises under the configuration.
    barrier: Slot,
}

#[derive(Clone, Debug, Default)]
struct PairState {
    /// Promises that were sent, in rising order of run and sequence number.
    made: VecDeque<SentPromise>,
    /// Run and sequence number of the newest promise that the grantor sent.
    newest: (Incarnation, u64),
    /// Newest run of the grantor, as far as the holder knows.
    run: Incarnation,
    /// Highest sequence number of the promises that the holder took from the run `run`.
    taken: u64,
    /// Periods in which the holder may rely on promises, in rising order of time and configuration.
    /// Each period began before the previous period had expired.
    beliefs: SmallVec<[Belief; 2]>,
}

/// Record of promises. It is built only from the messages that replicas send.
#[derive(Debug)]
pub(super) struct Promises {
    n: usize,
    pairs: Vec<PairState>,
}

impl Promises {
    pub(super) fn new(n: usize) -> Promises {
        Promises {
            n,
            pairs: vec![PairState::default(); n * n],
        }
    }

    fn pair(&self, grantor: usize, holder: usize) -> &PairState {
        &self.pairs[grantor * self.n + holder]
    }

    fn pair_mut(&mut self, grantor: usize, holder: usize) -> &mut PairState {
        &mut self.pairs[grantor * self.n + holder]
    }

    /// Clears the periods in which `node` may rely on promises, because `node` has started a new
    /// run.
    pub(super) fn started(&mut self, node: usize) {
        for grantor in 0..self.n {
            let pair = self.pair_mut(grantor, node);
            pair.run = Incarnation(0);
            pair.taken = 0;
            pair.beliefs.clear();
        }
    }

    /// Records a message that `node` is about to send.
    pub(super) fn sent(
        &mut self,
        snapshot: &WorldSnapshot<'_>,
        node: usize,
        to: ReplicaId,
        envelope: &Envelope,
    ) -> Verdict {
        let believed = self.pair_mut(to.index(), node);
        believed.hear_of(envelope.to_incarnation);
        let Message::Lease(message) = &envelope.message else {
            return Ok(());
        };
        match message {
            LeaseMessage::Guard { .. } => Ok(()),
            LeaseMessage::GuardAck { sequence, .. } => believed.take(node, to, *sequence),
            LeaseMessage::PromiseAck { sequence, .. } => {
                believed.take(node, to, *sequence)?;
                let taken = ReceivedPromise {
                    now: snapshot.time(node),
                    holder: node,
                    holder_run: envelope.from_incarnation,
                    grantor: to,
                    sequence: *sequence,
                };
                let executed = snapshot.replica(node).map(|replica| replica.executed());
                believed.believe(taken, executed.unwrap_or_default())
            }
            LeaseMessage::Relinquish { .. } | LeaseMessage::Leave { .. } => {
                believed.beliefs.clear();
                Ok(())
            }
            LeaseMessage::Promise(promise) => {
                let (run, to_run) = (envelope.from_incarnation, envelope.to_incarnation);
                self.pair_mut(node, to.index())
                    .make(node, to, run, to_run, promise)
            }
        }
    }

    /// Returns the time until which `holder` may rely on promises of `grantor`. This is a time of
    /// the clock of `holder`. `holder` has executed all slots up to `upto`. `holds` returns whether
    /// `holder` holds the keys under a given configuration.
    fn believed(
        &self,
        grantor: usize,
        holder: usize,
        upto: Slot,
        holds: impl Fn(ConfigId) -> bool,
    ) -> Option<Time> {
        let beliefs = &self.pair(grantor, holder).beliefs;
        // A configuration under which the holder does not hold the key breaks the chain, whatever
        // was promised under it.
        let all_hold =
            |a: &Belief, b: &Belief| (a.config.0..=b.config.0).all(|c| holds(ConfigId(c)));
        let chains = beliefs.chunk_by(all_hold);
        let ready = chains.filter(|chain| {
            holds(chain[0].config) && chain.iter().any(|belief| belief.barrier <= upto)
        });
        let until = |chain: &[Belief]| chain.iter().map(|belief| belief.until).max();
        ready.filter_map(until).max()
    }

    /// Returns the time until which the promises of enough grantors cover `holder`. This is a time
    /// of the clock of `holder`. Returns `None` if there were never enough grantors. `holder` has
    /// executed all slots up to `upto`. `holds` returns whether `holder` holds the keys under a
    /// given configuration.
    pub(super) fn permit(
        &self,
        holder: usize,
        upto: Slot,
        holds: impl Fn(ConfigId) -> bool,
    ) -> Option<Time> {
        let needed = self.n / 2;
        if needed == 0 {
            return Some(Time::MAX);
        }
        let others = (0..self.n).filter(|other| *other != holder);
        let believed = others.filter_map(|grantor| self.believed(grantor, holder, upto, &holds));
        let mut untils: SmallVec<[Time; 8]> = believed.collect();
        untils.sort_unstable_by(|a, b| b.cmp(a));
        untils.get(needed - 1).copied()
    }

    /// Returns the time until which `holder` may rely on promises that `grantor` made in runs
    /// before `run`. The time is by the clock of `holder`.
    pub(super) fn forgotten(&self, grantor: usize, holder: usize, run: Incarnation) -> Time {
        let pair = self.pair(grantor, holder);
        if pair.run >= run {
            return Time::ZERO;
        }
        let untils = pair.beliefs.iter().map(|belief| belief.until);
        untils.max().unwrap_or(Time::ZERO)
    }
}

impl PairState {
    /// Records that the holder knows about this run of the grantor. The holder no longer relies on
    /// promises of earlier runs.
    fn hear_of(&mut self, run: Incarnation) {
        if run > self.run {
            self.run = run;
            self.taken = 0;
            self.beliefs.clear();
        }
    }

    fn make(
        &mut self,
        grantor: usize,
        holder: ReplicaId,
        run: Incarnation,
        to_run: Incarnation,
        promise: &Promise,
    ) -> Verdict {
        let (name, newest) = ((run, promise.sequence), self.newest);
        ensure!(
            barriers::NAME,
            newest < name,
            "{:?} makes promise {name:?} to {holder:?} after {newest:?}",
            id(grantor)
        );
        self.newest = name;
        if self.made.len() == MADE_MAX {
            self.made.pop_front();
        }
        self.made.push_back(SentPromise {
            run,
            to_run,
            sequence: promise.sequence,
            config: promise.config,
            t_lease: promise.t_lease,
            highest_accepted: promise.highest_accepted,
        });
        Ok(())
    }

    /// Judges the rule of hazard 2: a holder takes promises only in rising order of their sequence
    /// numbers, and takes each promise only once.
    fn take(&mut self, holder: usize, grantor: ReplicaId, sequence: u64) -> Verdict {
        ensure!(
            barriers::NAME,
            sequence > self.taken,
            "{:?} takes {sequence} of {grantor:?} after {}",
            id(holder),
            self.taken
        );
        self.taken = sequence;
        Ok(())
    }

    /// Records the period in which the holder may rely on a promise that it takes. The holder has
    /// executed all slots up to `executed`.
    fn believe(&mut self, taken: ReceivedPromise, executed: Slot) -> Verdict {
        let made = self.find(taken)?;
        let older = |other: &SentPromise| (other.run, other.sequence) <= (made.run, made.sequence);
        while self.made.front().is_some_and(older) {
            self.made.pop_front();
        }
        let ReceivedPromise {
            now,
            holder,
            grantor,
            ..
        } = taken;
        let live = |belief: &&Belief| now < belief.until;
        let newest = self.beliefs.iter().rfind(live).map(|belief| belief.config);
        ensure!(
            barriers::NAME,
            newest <= Some(made.config),
            "{:?} takes a promise of {grantor:?} under {:?} and believes one under {newest:?}",
            id(holder),
            made.config
        );
        self.extend(now, made);
        self.forget(now, executed);
        Ok(())
    }

    /// Finds the sent promise that the holder takes. Checks that this promise was made to the
    /// present run of the holder.
    fn find(&self, taken: ReceivedPromise) -> Result<SentPromise, Violation> {
        let name = (self.run, taken.sequence);
        let place = self
            .made
            .binary_search_by_key(&name, |made| (made.run, made.sequence));
        let made = place.ok().map(|place| self.made[place]);
        let to_run = taken.holder_run;
        made.filter(|made| made.to_run == to_run).ok_or_else(|| {
            let (holder, grantor) = (id(taken.holder), taken.grantor);
            let to = made.map(|made| made.to_run);
            violated(
                barriers::NAME,
                format_args!(
                    "{holder:?} {to_run:?} takes promise {name:?} of {grantor:?}, which was made \
                     to {to:?}"
                ),
            )
        })
    }

    /// Adds the promise `made` to the periods in which the holder may rely on promises. The holder
    /// takes this promise at time `now`.
    fn extend(&mut self, now: Time, made: SentPromise) {
        // An expired belief ends its chain: the next one begins a new chain.
        while self.beliefs.last().is_some_and(|last| last.until <= now) {
            self.beliefs.pop();
        }
        let until = now + made.t_lease;
        match self.beliefs.last_mut() {
            Some(last) if last.config == made.config => {
                last.until = last.until.max(until);
                last.barrier = last.barrier.min(made.highest_accepted);
            }
            _ => self.beliefs.push(Belief {
                config: made.config,
                until,
                barrier: made.highest_accepted,
            }),
        }
    }

    /// Removes expired periods that are no longer needed. An expired period is still needed if a
    /// later period continues it. In this case, the barrier of the expired period applies until a
    /// later barrier is executed.
    fn forget(&mut self, now: Time, executed: Slot) {
        let beliefs = &self.beliefs;
        let ended = beliefs.iter().take_while(|b| b.until <= now).count();
        let last = beliefs.len().saturating_sub(1);
        let mut useless = (1..=ended.min(last)).rev();
        let useless = useless.find(|&b| beliefs[b].barrier <= executed);
        self.beliefs.drain(..useless.unwrap_or(0));
    }
}

#[cfg(test)]
mod tests;
