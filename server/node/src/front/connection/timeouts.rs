//! Limits on the time that a client may let the replica wait.
//!
//! All connections are looked at once a second ([`CHECK_INTERVAL`]), and looks are counted: a timer
//! for each connection would cost more than the requests of most. While this process stands
//! still no look takes place, so no client is blamed for it.

use std::cell::Cell;
use std::time::Duration;

use crate::config::Limits;

/// Interval between looks at connections.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes of its answers that a client must take within `limits.stalled_s`, unless it takes
/// all. A bound of one byte would let a client keep megabytes for ever.
pub(super) const TAKEN_MIN: u64 = 64 << 10;

/// Deadline that a client has missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissedDeadline {
    /// A frame that had begun did not arrive whole.
    Frame,
    /// It took too little of its answers.
    Stalled,
    /// It asked nothing.
    Idle,
}

/// State of a connection at a look.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConnectionSnapshot {
    /// A part of a frame is here, and the replica reads on.
    pub(super) awaits_frame: bool,
    /// Requests are in flight.
    pub(super) has_requests: bool,
    /// Answers wait to be taken.
    pub(super) unread: bool,
    /// Bytes taken by the client's socket since the connection began.
    pub(super) taken: u64,
    /// Bytes of a frame that is not whole yet.
    pub(super) partial: usize,
}

/// Timeouts of one connection. Durations are numbers of looks.
#[derive(Debug, Default)]
pub(super) struct ClientTimeouts {
    /// Something has arrived since the last look.
    heard: Cell<bool>,
    /// A frame was taken since the last look.
    framed: Cell<bool>,
    idle_for: Cell<u64>,
    frame_for: Cell<u64>,
    stalled_for: Cell<u64>,
    /// Bytes of an unfinished frame, at the look before the last and at the last.
    partial_at: Cell<(usize, usize)>,
    /// Bytes that the client had taken when `stalled_for` last began.
    taken_before: Cell<u64>,
}

impl ClientTimeouts {
    /// Bytes have arrived.
    pub(super) fn note_bytes(&self) {
        self.heard.set(true);
    }

    /// A whole frame was taken.
    pub(super) fn note_frame(&self) {
        self.framed.set(true);
    }

    /// By how much the frame that is arriving, now of so many bytes, has grown since the
    /// look before the last; nothing if it has begun since then.
    pub(super) fn growth(&self, bytes: usize) -> Option<usize> {
        let (before, _) = self.partial_at.get();
        (self.frame_for.get() > 1).then(|| bytes.saturating_sub(before))
    }

    /// One look.
    pub(super) fn check(
        &self,
        snapshot: ConnectionSnapshot,
        limits: &Limits,
    ) -> Option<MissedDeadline> {
        let framed = self.framed.take();
        let (_, last) = self.partial_at.get();
        self.partial_at.set((last, snapshot.partial));
        let late = [
            (
                grow(&self.frame_for, snapshot.awaits_frame && !framed),
                limits.frame,
                MissedDeadline::Frame,
            ),
            (
                grow(&self.stalled_for, self.is_stalled(snapshot)),
                limits.stalled,
                MissedDeadline::Stalled,
            ),
            (
                grow(&self.idle_for, self.is_idle(snapshot)),
                limits.idle,
                MissedDeadline::Idle,
            ),
        ];
        // The first look comes within a second, so one more than that many have passed.
        let over = |looks: u64, most: Duration| looks > most.as_secs();
        late.into_iter()
            .find_map(|(looks, most, late)| over(looks, most).then_some(late))
    }

    fn is_stalled(&self, snapshot: ConnectionSnapshot) -> bool {
        let stalled = snapshot.unread && snapshot.taken - self.taken_before.get() < TAKEN_MIN;
        if !stalled {
            self.taken_before.set(snapshot.taken);
        }
        stalled
    }

    fn is_idle(&self, snapshot: ConnectionSnapshot) -> bool {
        let heard = self.heard.take();
        !heard && !snapshot.has_requests && !snapshot.unread
    }
}

/// One look more, or none; returns how many.
fn grow(looks: &Cell<u64>, goes_on: bool) -> u64 {
    let now = if goes_on { looks.get() + 1 } else { 0 };
    looks.set(now);
    now
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            frame: Duration::from_secs(3),
            stalled: Duration::from_secs(5),
            idle: Duration::from_secs(9),
            ..Limits::default()
        }
    }

    /// After how many looks it is late, if each finds the same.
    fn late_after(snapshot: ConnectionSnapshot) -> Option<(u64, MissedDeadline)> {
        let timeouts = ClientTimeouts::default();
        let mut looks = 1..=100;
        looks.find_map(|look| Some((look, timeouts.check(snapshot, &limits())?)))
    }

    #[test]
    fn each_limit_has_its_own_time() {
        let quiet = ConnectionSnapshot::default();
        assert_eq!(late_after(quiet), Some((10, MissedDeadline::Idle)));
        let awaits_frame = ConnectionSnapshot {
            awaits_frame: true,
            ..quiet
        };
        assert_eq!(late_after(awaits_frame), Some((4, MissedDeadline::Frame)));
        let unread = ConnectionSnapshot {
            unread: true,
            ..quiet
        };
        assert_eq!(late_after(unread), Some((6, MissedDeadline::Stalled)));
        let works = ConnectionSnapshot {
            has_requests: true,
            ..quiet
        };
        assert_eq!(late_after(works), None, "the replica is what takes long");
    }

    #[test]
    fn bytes_alone_do_not_excuse_a_late_frame_but_another_frame_does() {
        let snapshot = ConnectionSnapshot {
            awaits_frame: true,
            ..ConnectionSnapshot::default()
        };
        let timeouts = ClientTimeouts::default();
        for _ in 0..20 {
            timeouts.note_bytes();
            timeouts.note_frame();
            assert_eq!(timeouts.check(snapshot, &limits()), None);
        }
        let mut late = None;
        for _ in 0..4 {
            timeouts.note_bytes();
            late = timeouts.check(snapshot, &limits());
        }
        assert_eq!(late, Some(MissedDeadline::Frame));
    }

    #[test]
    fn a_slow_reader_is_borne_only_if_it_takes_enough() {
        let read = |a_look: u64| {
            let timeouts = ClientTimeouts::default();
            let mut looks = 1..=100_u64;
            looks.find(|look| {
                let snapshot = ConnectionSnapshot {
                    unread: true,
                    taken: look * a_look,
                    ..ConnectionSnapshot::default()
                };
                timeouts.check(snapshot, &limits()).is_some()
            })
        };
        assert_eq!(read(TAKEN_MIN / 5 + 1), None);
        assert!(read(TAKEN_MIN / 10).is_some());
        assert!(read(1).is_some());
    }
}
