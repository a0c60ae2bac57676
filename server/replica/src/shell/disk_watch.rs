//! Watch over the disk. It determines whether the replica may rely on the disk.
//!
//! A full disk reports an error. A stalled disk reports nothing, because the thread that writes to
//! it is blocked in the write. A replica that acknowledges leases but cannot make an acceptance
//! durable blocks every write to the keys that it holds. So a stalled disk is treated like a full
//! one. A read that takes as long as a stalled write counts as a stalled disk, too.

use std::collections::VecDeque;
use std::time::Duration;

use leasehold_leases::Time;

use crate::action::Sequence;

/// Time after which a persist or a read counts as stalled, if it has not ended. This time is below
/// any sensible grace period, and above the time that a busy disk needs.
const STALLED_AFTER: Duration = Duration::from_secs(2);

/// Watch over the storage. It notices a full disk, a persist that takes too long to become durable,
/// and a read that takes too long.
#[derive(Debug, Default)]
pub struct DiskWatch {
    /// Persists that are not durable yet, each with the time of its request.
    waiting: VecDeque<(Sequence, Time)>,
    /// Time at which the read in progress was noticed; `None` if there is none.
    reading_since: Option<Time>,
    full: bool,
    reported_unwritable: bool,
}

impl DiskWatch {
    /// Notes that a persist was requested.
    pub fn requested(&mut self, sequence: Sequence, now: Time) {
        self.waiting.push_back((sequence, now));
    }

    /// Notes that every persist up to `up_to` is durable.
    pub fn persisted(&mut self, up_to: Sequence) {
        while self
            .waiting
            .front()
            .is_some_and(|(waiting, _)| *waiting <= up_to)
        {
            self.waiting.pop_front();
        }
    }

    /// Notes that a read has begun. There is at most one read at a time.
    pub fn read_begun(&mut self, now: Time) {
        self.reading_since = Some(now);
    }

    /// Notes that the read has ended.
    pub fn read_ended(&mut self) {
        self.reading_since = None;
    }

    /// Returns the time of the request of the oldest waiting persist, or the beginning of the read
    /// in progress, whichever is earlier.
    fn oldest(&self) -> Option<Time> {
        let persist = self.waiting.front().map(|(_, requested_at)| *requested_at);
        persist.into_iter().chain(self.reading_since).min()
    }

    /// Notes that the disk has no free space, or has free space again.
    pub fn set_full(&mut self, full: bool) {
        self.full = full;
    }

    /// Returns whether the storage accepts writes, according to the last report to the replica.
    pub fn writable(&self) -> bool {
        !self.reported_unwritable
    }

    /// Returns the time at which the oldest waiting persist or the read in progress will be
    /// stalled. Returns `MAX` if none waits, or if the storage was already reported unwritable.
    pub fn next_deadline(&self) -> Time {
        let oldest = self.oldest().filter(|_| !self.reported_unwritable);
        oldest.map_or(Time::MAX, |since| {
            since + STALLED_AFTER + Duration::from_nanos(1)
        })
    }

    /// Returns whether the storage accepts writes. Returns `None` if the answer is the same as at
    /// the last call.
    pub fn news(&mut self, now: Time) -> Option<bool> {
        let oldest = self.oldest();
        let stalled = oldest.is_some_and(|since| now.since(since) > STALLED_AFTER);
        let unwritable = self.full || stalled;
        if std::mem::replace(&mut self.reported_unwritable, unwritable) == unwritable {
            return None;
        }
        Some(!unwritable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_millis(2001);

    #[test]
    fn silence_counts_as_a_refusal_until_all_that_is_late_is_durable() {
        let mut watch = DiskWatch::default();
        watch.requested(Sequence(1), Time(0));
        watch.requested(Sequence(2), Time(0) + LONG);
        assert_eq!(watch.news(Time(0) + STALLED_AFTER), None);
        assert_eq!(watch.news(Time(0) + LONG), Some(false));
        assert_eq!(watch.news(Time(0) + LONG), None, "reported once");
        watch.persisted(Sequence(1));
        assert_eq!(watch.news(Time(0) + LONG), Some(true));
        assert_eq!(watch.news(Time(0) + LONG + STALLED_AFTER), None);
    }

    #[test]
    fn a_full_disk_stays_unwritable_though_nothing_is_late() {
        let mut watch = DiskWatch::default();
        watch.set_full(true);
        assert_eq!(watch.news(Time(1)), Some(false));
        assert_eq!(watch.news(Time(2)), None);
        watch.set_full(false);
        assert_eq!(watch.news(Time(3)), Some(true));
    }

    #[test]
    fn a_read_that_hangs_counts_as_a_stalled_disk_until_it_ends() {
        let mut watch = DiskWatch::default();
        watch.read_begun(Time(0));
        watch.requested(Sequence(1), Time(1));
        watch.persisted(Sequence(1));
        assert_eq!(watch.news(Time(0) + STALLED_AFTER), None);
        assert!(watch.next_deadline() <= Time(0) + LONG);
        assert_eq!(watch.news(Time(0) + LONG), Some(false));
        watch.read_ended();
        assert_eq!(watch.news(Time(0) + LONG), Some(true));
        // Several short reads in a row are no stall.
        watch.read_begun(Time(0) + LONG);
        watch.read_ended();
        watch.read_begun(Time(0) + LONG + STALLED_AFTER);
        assert_eq!(watch.news(Time(1) + LONG + STALLED_AFTER), None);
    }

    #[test]
    fn an_idle_disk_is_not_stalled() {
        let mut watch = DiskWatch::default();
        watch.requested(Sequence(1), Time(0));
        watch.requested(Sequence(2), Time(0));
        watch.persisted(Sequence(2));
        assert_eq!(watch.news(Time::MAX), None);
    }
}
