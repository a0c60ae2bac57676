//! State that a holder keeps about one grantor: the windows within which further promises may
//! arrive, and the chain of received promises with their barriers.

use std::collections::VecDeque;
use std::time::Duration;

use smallvec::SmallVec;

use super::message::Promise;
use super::rules;
use crate::mutants::mutated;
use crate::time::Time;
use crate::types::{ConfigId, Incarnation, Slot};

/// Maximum number of windows that are remembered for each grantor. At a sensible rate of renewal,
/// this number is sufficient for one round trip. A promise that refers to an older window is
/// refused, so the grantor must send a guard again.
const WINDOWS_MAX: usize = 1024;

/// Maximum number of configurations that are remembered for each grantor. This is rarely reached:
/// all these configurations would have to be made while one slot is blocked. An expired record may
/// be dropped, because this never lowers the barrier of a chain.
const RECORDS_MAX: usize = 32;

/// The grantor's promises under one configuration.
#[derive(Clone, Copy, Debug, Hash)]
struct Record {
    config: ConfigId,
    /// End of the promises, by this replica's clock.
    expires: Time,
    /// Barrier of the unbroken promises under the configuration. Each promise contains the highest
    /// slot that its grantor had accepted. The barrier is the lowest of these slots.
    barrier: Slot,
}

/// Windows and promises of one run of a grantor.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Chain {
    incarnation: Incarnation,
    /// Highest sequence number of all guards and promises that were accepted.
    taken: u64,
    /// Windows that are still needed, in ascending order. Each window is a pair: a sequence number,
    /// and the time at which the ack with this number was sent.
    windows: VecDeque<(u64, Time)>,
    /// Records in ascending order of configuration. Each record was begun before the previous
    /// record expired, so there is no break in time between two records. A key is covered without a
    /// break if every configuration from one record to the other assigns the key to this replica.
    /// All records except the last may have expired since then.
    records: SmallVec<[Record; 2]>,
}

impl Chain {
    /// Handles a message from the grantor's run `incarnation`. If the run is new, all state of the
    /// earlier run is dropped. The reason is that a new run has forgotten the earlier promises, and
    /// restarts its sequence numbers.
    pub(super) fn observe_incarnation(&mut self, incarnation: Incarnation) {
        if incarnation > self.incarnation {
            *self = Chain {
                incarnation,
                ..Chain::default()
            };
        }
    }

    /// Opens the window of the message with the sequence number `sequence`. The caller sends the
    /// ack of this message at `now`. Returns `None` if the sequence number is refused.
    pub(super) fn take(&mut self, sequence: u64, now: Time) -> Option<()> {
        if !rules::is_new(sequence, self.taken) {
            return None;
        }
        self.taken = sequence;
        let newest = self.windows.back();
        assert!(
            newest.is_none_or(|w| w.0 < sequence) || mutated(),
            "sequences rise"
        );
        if self.windows.len() == WINDOWS_MAX {
            self.windows.pop_front();
        }
        self.windows.push_back((sequence, now));
        Some(())
    }

    /// Accepts a promise (Figure 5, lines 10-12 and 20-21). Returns `None` if the promise is
    /// refused. `known` is the newest configuration known on this replica.
    pub(super) fn take_promise(
        &mut self,
        now: Time,
        promise: &Promise,
        known: ConfigId,
    ) -> Option<()> {
        let config = rules::understood(promise.config, known)?;
        let opened = self.opened(now, promise.base)?;
        let taken = can_be_kept(promise)
            && rules::is_in_time(now, opened, promise)
            && !self.believes_newer_than(config, now);
        if !taken {
            return None;
        }
        self.take(promise.sequence, now)?;
        self.forget_ended(now);
        // A grantor builds on the newest ack that it has received, so no earlier ack is named
        // again.
        while self.windows.front().is_some_and(|w| w.0 < promise.base) {
            self.windows.pop_front();
        }
        self.extend(now, config, promise);
        Some(())
    }

    /// Returns the time at which the ack of the guard or promise with this sequence number was
    /// sent; `None` if that time is not remembered.
    fn opened(&self, now: Time, sequence: u64) -> Option<Time> {
        if rules::counts_from_newest_ack() {
            return self.windows.back().map(|(_, sent)| *sent);
        }
        let named = self.windows.binary_search_by_key(&sequence, |w| w.0);
        match named {
            Ok(index) => Some(self.windows[index].1),
            Err(_) => rules::opened_if_unknown(now),
        }
    }

    /// Whether this replica has an unexpired promise under a newer configuration than `config`. In
    /// that case, a promise under `config` is refused, because a correct grantor never returns to
    /// an older configuration.
    fn believes_newer_than(&self, config: ConfigId, now: Time) -> bool {
        let mut newer = self.records.iter().filter(|record| record.config > config);
        newer.any(|record| now < record.expires)
    }

    fn extend(&mut self, now: Time, config: ConfigId, promise: &Promise) {
        let expires = now + promise.t_lease;
        match self.records.last_mut() {
            Some(last) if last.config == config => {
                last.expires = last.expires.max(expires);
                last.barrier = rules::renewed_barrier(last.barrier, promise.highest_accepted);
            }
            last => {
                assert!(
                    last.is_none_or(|last| last.config < config),
                    "records rise by configuration"
                );
                self.records.push(Record {
                    config,
                    expires,
                    barrier: promise.highest_accepted,
                });
            }
        }
    }

    /// Forgets all promises and windows. Returns the highest sequence number that was accepted, or
    /// 0 if no sequence number was accepted.
    pub(super) fn erase(&mut self) -> u64 {
        if rules::relinquishing_erases() {
            self.records.clear();
        }
        self.windows.clear();
        self.taken
    }

    /// Forgets all promises and windows. Sequence numbers up to `up_to` are refused from now on.
    pub(super) fn recall(&mut self, up_to: u64) {
        self.erase();
        self.taken = self.taken.max(up_to);
    }

    /// Forgets records that have lapsed. Otherwise, a later promise would continue such a record.
    fn forget_ended(&mut self, now: Time) {
        let ended = |last: &Record| rules::has_lapsed(now, last.expires);
        while self.records.last().is_some_and(ended) {
            self.records.pop();
        }
    }

    /// Forgets records that are no longer needed if this replica has executed all slots up to
    /// `executed`.
    pub(super) fn forget(&mut self, now: Time, executed: Slot) {
        self.forget_ended(now);
        let records = &self.records;
        // An expired record is needed only for its barrier. It is not needed once the barrier of a
        // later expired record is reached, because a chain that contains the earlier record
        // contains both.
        let last = records.len().saturating_sub(1);
        let expired = records.iter().take_while(|r| r.expires <= now).count();
        let expired = expired.min(last);
        let mut later = (1..=expired).rev();
        let reached = later.find(|&r| records[r].barrier <= executed);
        let over = records.len().saturating_sub(RECORDS_MAX).min(expired);
        self.records.drain(..reached.unwrap_or(0).max(over));
    }

    /// Returns the end of a key's coverage, and the barrier of the key's chain. Returns `None` if
    /// the key is not covered. `holds` returns whether a configuration assigns the key to this
    /// replica.
    ///
    /// Each promise contains the highest slot that its grantor had accepted. The barrier is the
    /// lowest of these slots in the chain.
    #[inline]
    pub(super) fn coverage(
        &self,
        now: Time,
        holds: impl Fn(ConfigId) -> bool,
    ) -> Option<(Time, Slot)> {
        let live = |record: &Record| now < record.expires && holds(record.config);
        let newest = self.records.iter().rposition(live)?;
        let Record {
            mut config,
            mut expires,
            mut barrier,
        } = self.records[newest];
        for older in self.records[..newest].iter().rev() {
            // The configuration log determines whether this replica held the key without a break.
            // The remembered promises do not, because the grantor may have sent none under a
            // configuration that took the key away.
            let gave = (older.config.0..config.0).all(|id| holds(ConfigId(id)));
            if !rules::chain_goes_on(gave) {
                break;
            }
            config = older.config;
            if gave {
                expires = expires.max(older.expires);
            }
            barrier = rules::joined_barrier(barrier, older.barrier);
        }
        Some((expires, barrier))
    }

    /// Whether there is an unexpired promise.
    pub(super) fn is_live(&self, now: Time) -> bool {
        self.records.iter().any(|record| now < record.expires)
    }

    /// Returns the oldest configuration under which promises are remembered.
    pub(super) fn oldest_config(&self) -> Option<ConfigId> {
        self.records.first().map(|record| record.config)
    }

    /// Returns the configuration and the end of each remembered promise.
    #[inline]
    pub(super) fn promises(&self) -> impl Iterator<Item = (ConfigId, Time)> + '_ {
        self.records.iter().map(|r| (r.config, r.expires))
    }

    /// Panics if the state is invalid.
    pub(super) fn check(&self) {
        assert!(self.windows.len() <= WINDOWS_MAX, "memory is bounded");
        let mut newest = self.windows.iter().rev().map(|(sequence, _)| *sequence);
        let (last, before) = (newest.next(), newest.next());
        assert!(
            last.is_none_or(|last| last == self.taken),
            "the last window is of the newest sequence taken"
        );
        assert!(
            before.is_none_or(|before| before < self.taken),
            "windows rise"
        );
        assert!(
            self.records.is_sorted_by(|a, b| a.config < b.config),
            "records rise by configuration"
        );
        assert_ne!(
            self.oldest_config(),
            Some(ConfigId(0)),
            "configuration 0 gives nothing"
        );
    }

    /// Whether no promises and no windows are remembered.
    pub(super) fn is_erased(&self) -> bool {
        self.records.is_empty() && self.windows.is_empty()
    }

    #[cfg(test)]
    pub(super) fn windows(&self) -> usize {
        self.windows.len()
    }

    #[cfg(test)]
    pub(super) fn records(&self) -> usize {
        self.records.len()
    }
}

/// Whether a promise can come from a correct grantor. The duration of the promise must be above
/// zero, and its configuration must be able to assign keys to replicas.
fn can_be_kept(promise: &Promise) -> bool {
    promise.t_lease > Duration::ZERO && promise.config > ConfigId(0)
}
