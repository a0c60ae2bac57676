//! Promises of one grantor: the windows in which it may promise again, and the chain of its
//! promises with their barriers.

use std::collections::VecDeque;
use std::time::Duration;

use smallvec::SmallVec;

use super::message::Promise;
use super::rules;
use crate::mutants::mutated;
use crate::time::Time;
use crate::types::{ConfigId, Incarnation, Slot};

/// Windows remembered per grantor: those of a round trip, at any sensible rate of
/// renewal. A grantor that names an older one will establish anew.
const WINDOWS_MAX: usize = 1024;

/// Configurations remembered per grantor: more than follow each other while a slot is
/// blocked. Dropping an expired record is safe: the next one's barrier is higher.
const RECORDS_MAX: usize = 32;

/// Promises of the grantor under one configuration.
#[derive(Clone, Copy, Debug, Hash)]
struct Record {
    config: ConfigId,
    /// By this replica's clock.
    expires: Time,
    /// The least highest-accepted slot over the unbroken promises under it.
    barrier: Slot,
}

/// Promises of one run of a grantor.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Chain {
    incarnation: Incarnation,
    /// The highest sequence taken.
    taken: u64,
    /// (sequence, when its ack was sent), rising: the windows still of use.
    windows: VecDeque<(u64, Time)>,
    /// Rising by configuration. Each was begun while the one before it was
    /// unexpired: a key that every configuration from one's to another's gives has
    /// been covered without a break. All but the last may have expired since.
    records: SmallVec<[Record; 2]>,
}

impl Chain {
    /// A message of `incarnation` came. A new run has forgotten its promises and
    /// counts its sequences anew, so nothing of the old is kept.
    pub(super) fn observe_incarnation(&mut self, incarnation: Incarnation) {
        if incarnation > self.incarnation {
            *self = Chain {
                incarnation,
                ..Chain::default()
            };
        }
    }

    /// Opens the window of `sequence`. Its ack is sent at `now`. Returns `None` if the window
    /// is refused.
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

    /// Takes a promise; `None` if it is refused. `known` is the newest configuration
    /// known here. Figure 5, lines 10-12 and 20-21.
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
        // A grantor builds on its newest ack: none before this one is named again.
        while self.windows.front().is_some_and(|w| w.0 < promise.base) {
            self.windows.pop_front();
        }
        self.extend(now, config, promise);
        Some(())
    }

    /// When the ack of guard or promise `sequence` was sent.
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

    /// Whether a promise under a newer configuration is unexpired. A sound grantor
    /// does not go back to an older one.
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

    /// Forgets every promise and window, for good. Returns the highest sequence
    /// taken, 0 if there is none.
    pub(super) fn erase(&mut self) -> u64 {
        if rules::relinquishing_erases() {
            self.records.clear();
        }
        self.windows.clear();
        self.taken
    }

    /// Forgets every promise and window, and takes no sequence up to this one any more.
    pub(super) fn recall(&mut self, up_to: u64) {
        self.erase();
        self.taken = self.taken.max(up_to);
    }

    /// Forgets the records that have lapsed: no later promise is joined to them.
    fn forget_ended(&mut self, now: Time) {
        let ended = |last: &Record| rules::has_lapsed(now, last.expires);
        while self.records.last().is_some_and(ended) {
            self.records.pop();
        }
    }

    /// Forgets what makes no difference any more to a replica that has executed up to
    /// `executed`.
    pub(super) fn forget(&mut self, now: Time, executed: Slot) {
        self.forget_ended(now);
        let records = &self.records;
        // An expired record is of use for its barrier alone, and not once that of a
        // later expired one is reached: a chain that has the earlier has both.
        let last = records.len().saturating_sub(1);
        let expired = records.iter().take_while(|r| r.expires <= now).count();
        let expired = expired.min(last);
        let mut later = (1..=expired).rev();
        let reached = later.find(|&r| records[r].barrier <= executed);
        let over = records.len().saturating_sub(RECORDS_MAX).min(expired);
        self.records.drain(..reached.unwrap_or(0).max(over));
    }

    /// When the coverage of a key ends, and the barrier of its chain: the least
    /// highest-accepted slot of its unbroken promises. `holds`: whether a
    /// configuration gives this replica the key.
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
            // The configuration log tells whether the key was given without a break,
            // not which promises are remembered: none may have been taken under a
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

    /// Whether any promise is unexpired.
    pub(super) fn is_live(&self, now: Time) -> bool {
        self.records.iter().any(|record| now < record.expires)
    }

    /// The configuration under which the chain begins.
    pub(super) fn oldest_config(&self) -> Option<ConfigId> {
        self.records.first().map(|record| record.config)
    }

    /// The configurations of the promises that are remembered, and when each ends.
    #[inline]
    pub(super) fn promises(&self) -> impl Iterator<Item = (ConfigId, Time)> + '_ {
        self.records.iter().map(|r| (r.config, r.expires))
    }

    /// Panics if the state cannot be.
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

    /// Whether there is nothing to read by, and nothing to promise on.
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

/// Whether a promise can come from a sound grantor: it lasts, and is under a
/// configuration that gives somebody something.
fn can_be_kept(promise: &Promise) -> bool {
    promise.t_lease > Duration::ZERO && promise.config > ConfigId(0)
}
