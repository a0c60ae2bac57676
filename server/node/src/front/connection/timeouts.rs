//! Limits on the time for which a client may make the replica wait.
//!
//! All connections are checked once a second ([`CHECK_INTERVAL`]), and durations are counted in
//! checks. A timer for each connection would cost more than the requests of most connections. While
//! this process is paused no check takes place, so clients are not blamed for the pause.

use std::cell::Cell;
use std::time::Duration;

use crate::config::Limits;

/// Interval between checks of connections.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum number of bytes of answers that a client must take within `limits.stalled_s`. If fewer
/// bytes are waiting, the client must take all of them. The minimum is more than one byte, because
/// a client could otherwise keep megabytes in memory forever.
pub(super) const TAKEN_MIN: u64 = 64 << 10;

/// Deadline that a client has missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissedDeadline {
    /// A frame had begun to arrive, and the rest did not arrive in time.
    Frame,
    /// The client did not take enough bytes of its answers in time.
    Stalled,
    /// The client sent no request for too long.
    Idle,
}

/// State of a connection at the time of a check.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConnectionSnapshot {
    /// Whether a part of a frame has arrived and the replica is ready to read the rest.
    pub(super) awaits_frame: bool,
    /// Whether requests are in flight.
    pub(super) has_requests: bool,
    /// Whether there are answers that the client has not taken yet.
    pub(super) unread: bool,
    /// Number of bytes that the socket has taken since the connection began.
    pub(super) taken: u64,
    /// Number of received bytes of an incomplete frame.
    pub(super) partial: usize,
}

/// Progress of one connection towards its deadlines. Durations are measured as numbers of checks.
#[derive(Debug, Default)]
pub(super) struct ClientTimeouts {
    /// Whether bytes have arrived since the last check.
    heard: Cell<bool>,
    /// Whether a frame was taken since the last check.
    framed: Cell<bool>,
    idle_for: Cell<u64>,
    frame_for: Cell<u64>,
    stalled_for: Cell<u64>,
    /// Numbers of received bytes of the unfinished frame: at the second-to-last check, and at the
    /// last check.
    partial_at: Cell<(usize, usize)>,
    /// Number of bytes that the client had taken when `stalled_for` was last reset.
    taken_before: Cell<u64>,
}

impl ClientTimeouts {
    /// Notes that bytes have arrived.
    pub(super) fn note_bytes(&self) {
        self.heard.set(true);
    }

    /// Notes that a whole frame was taken.
    pub(super) fn note_frame(&self) {
        self.framed.set(true);
    }

    /// Returns the number of bytes by which the unfinished frame has grown since the second-to-last
    /// check. The frame now has `bytes` bytes. Returns `None` if the frame began after that check.
    pub(super) fn growth(&self, bytes: usize) -> Option<usize> {
        let (before, _) = self.partial_at.get();
        (self.frame_for.get() > 1).then(|| bytes.saturating_sub(before))
    }

    /// Performs one check. Returns the deadline that the client has missed, if any.
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
        // The first check may come less than a second after the begin, so one check more must have
        // passed.
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

/// Increments the counter `looks` if `goes_on` is true, and resets it to 0 otherwise. Returns the
/// new value.
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

    /// Returns the number of consecutive checks in this state after which a deadline is missed.
    /// Also returns this deadline.
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
