//! Large writes of clients. The replica receives them round-robin by connection.
//!
//! A log is a queue. If one client wrote a hundred values of 1 MiB at once, all other clients would
//! wait for all of these values. Renewals of leases behind the values on the same sockets would
//! wait, too. So the replica receives only a limited number of bytes of large writes at a time, and
//! further bytes as it answers. The other large writes wait here, where small commands overtake
//! them.
//!
//! The best number of bytes depends on the reason for which an answer takes time. If the other
//! replicas are near, an answer waits for disks, and each further write only makes the queue of the
//! disks longer. If the other replicas are far, an answer waits for messages, and several writes
//! may be in flight together. The measured round trip distinguishes the two cases. If it is long or
//! unknown, and a write is not answered soon, the next write is sent before the answer. If the round
//! trip is short, a late answer means that the replicas are busy with large writes, perhaps with
//! those of other nodes. Then fewer bytes are in flight, until answers are fast again. After an
//! answer, a pause follows for other work, unless only few bytes are in flight.
//!
//! The bytes of a write are its cost in units of [`leasehold_replica::cost`]: the size of a large
//! put that takes equally long.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use leasehold_replica::input::Input;
use leasehold_replica::round_robin::RoundRobinQueue;

/// Maximum number of bytes of large writes that the replica receives in one step. The maximum is
/// smaller if the limit on unanswered bytes is smaller.
const AT_ONCE: usize = 1 << 20;
/// Time after which the replica of a far cluster receives [`AT_ONCE`] further bytes, although answers
/// are missing. The time begins at the last received or answered write. Most disks answer sooner,
/// and most round trips between sites take longer.
const JOINED_AFTER: Duration = Duration::from_millis(20);
/// The same time as [`JOINED_AFTER`] in a near cluster. It is long, because a late answer there
/// means that the replicas are busy. The time is limited, because a write may wait for a dead
/// holder of a lease, and the next write may concern other keys.
const JOINED_AFTER_NEAR: Duration = Duration::from_millis(200);
/// Maximum round trip to the farthest replica at which a cluster becomes near.
const NEAR_MAX: Duration = Duration::from_millis(5);
/// Round trip to the farthest replica above which a near cluster is no longer near. It is longer than
/// [`NEAR_MAX`], because messages between busy replicas take longer.
const FAR_MIN: Duration = Duration::from_millis(20);
/// Minimum time after which an answer is late in a near cluster. It begins when the replica receives
/// the write. An answer is late only if it also took [`LATE_RATIO`] times as long as the fastest
/// recent answers, because disks may be slow. The answer to a write of several mebibytes may take
/// this time for each of them.
const LATE_NEAR: Duration = Duration::from_millis(5);
/// See [`LATE_NEAR`].
const LATE_RATIO: u32 = 2;
/// Number of slower answers after which the time of the fastest recent answers has risen by a
/// factor of about *e*. Each slower answer raises it by at most the reciprocal of this number.
const REMEMBERED: u32 = 64;
/// Part of [`AT_ONCE`] that is added to the limit on unanswered bytes after an early answer in a near
/// cluster. It is also the minimum of the limit. A late answer halves the limit.
const ADDED: usize = AT_ONCE / 16;
/// Maximum pause between an answer and the next write, unless the answer is late in a near cluster.
/// The pause is as long as the time since the previous write or answer, up to this maximum. In the
/// pause, the checkpoint can write the same bytes to the disk once more.
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// Ratio of the pause after a late answer in a near cluster to the time that this answer took. The
/// nodes of a cluster send large writes independently, so this pause must be long. Otherwise the large
/// writes of several nodes often coincide, and other commands wait for all of them.
const LATE_PAUSE_RATIO: u32 = 6;
/// Maximum pause after a late answer in a near cluster.
const LATE_PAUSE_MAX: Duration = Duration::from_millis(60);

/// Waiting large writes of all connections, and the total size of unanswered large writes.
#[derive(Debug)]
pub(crate) struct LargeWrites {
    /// Waiting writes, each with its size in bytes.
    waiting: RoundRobinQueue<(Input, usize)>,
    /// Total size of the waiting writes, in bytes.
    queued_bytes: usize,
    /// Times at which the replica has received bytes that are not answered yet. Answers may come in
    /// another order, but few of them do.
    received: VecDeque<(Instant, usize)>,
    /// Time that the fastest recent answers took, for each [`AT_ONCE`] bytes of a longer write. It
    /// is at least [`LATE_NEAR`] / [`LATE_RATIO`]. Before the first answer, it is
    /// [`Duration::MAX`].
    fastest: Duration,
    /// Total size of the unanswered writes that the replica has received, in bytes.
    in_flight_bytes: usize,
    /// Current limit on unanswered bytes. A single write may exceed this limit.
    allowed: usize,
    /// Maximum value of `allowed`. A single write may exceed this maximum.
    max: usize,
    /// True if all other replicas are near.
    is_near: bool,
    /// Time at which `allowed` was last halved.
    halved_at: Instant,
    /// Time at which the replica last received or answered a write.
    changed: Instant,
    /// Earliest time at which the replica may receive the next write.
    resume_at: Instant,
    /// Number of writes that have had to wait since the start.
    delayed: u64,
}

/// Default without a limit on unanswered bytes. The replica receives waiting writes in steps of
/// [`AT_ONCE`] bytes.
impl Default for LargeWrites {
    fn default() -> LargeWrites {
        LargeWrites::new(usize::MAX)
    }
}

impl LargeWrites {
    pub(crate) fn new(max: usize) -> LargeWrites {
        let now = Instant::now();
        LargeWrites {
            waiting: RoundRobinQueue::default(),
            queued_bytes: 0,
            received: VecDeque::new(),
            fastest: Duration::MAX,
            in_flight_bytes: 0,
            allowed: AT_ONCE.min(max),
            max,
            is_near: false,
            halved_at: now,
            changed: now,
            resume_at: now,
            delayed: 0,
        }
    }

    fn at_once(&self) -> usize {
        AT_ONCE.min(self.max)
    }

    fn joined_after(&self) -> Duration {
        if self.is_near {
            JOINED_AFTER_NEAR
        } else {
            JOINED_AFTER
        }
    }

    /// Notes the round trip to the farthest replica; `None` if it is not known yet. Shortens a long
    /// pause if the cluster is no longer near.
    pub(crate) fn note_round_trip(&mut self, round_trip: Option<Duration>) {
        let max = if self.is_near { FAR_MIN } else { NEAR_MAX };
        self.is_near = round_trip.is_some_and(|it| it <= max);
        if !self.is_near {
            self.resume_at = self.resume_at.min(Instant::now() + PAUSE_MAX);
        }
    }

    pub(crate) fn push(&mut self, connection: u64, input: Input, bytes: usize) {
        let may_go = self.in_flight_bytes + self.queued_bytes < self.allowed
            && self.resume_at <= Instant::now();
        self.delayed += u64::from(!may_go);
        self.queued_bytes += bytes;
        self.waiting.push(connection, (input, bytes));
    }

    /// Returns the earliest time at which [`LargeWrites::pop`] returns the next write. Returns
    /// `None` if no write waits, or if the next write must wait for an answer. An answer that
    /// arrives before the returned time changes this time.
    pub(crate) fn due(&self) -> Option<Instant> {
        if self.waiting.is_empty() || self.in_flight_bytes >= self.max {
            return None;
        }
        if self.in_flight_bytes < self.allowed {
            Some(self.resume_at)
        } else {
            Some(self.changed + self.joined_after())
        }
    }

    /// Whether [`LargeWrites::pop`] would return a write now.
    pub(crate) fn is_due(&self) -> bool {
        self.due().is_some_and(|due| due <= Instant::now())
    }

    /// Removes and returns the next waiting write, if the replica may receive a write now.
    pub(crate) fn pop(&mut self) -> Option<Input> {
        if !self.is_due() {
            return None;
        }
        let (_, (input, bytes)) = self.waiting.pop()?;
        if self.in_flight_bytes >= self.allowed {
            self.allowed = self.in_flight_bytes.saturating_add(AT_ONCE).min(self.max);
        }
        self.queued_bytes -= bytes;
        self.in_flight_bytes += bytes;
        self.changed = Instant::now();
        self.received.push_back((self.changed, bytes));
        Some(input)
    }

    /// Drops the waiting writes of a closed connection. Returns the request numbers of these
    /// writes.
    pub(crate) fn forget(&mut self, connection: u64) -> Vec<u64> {
        let forgotten = self.waiting.take(connection);
        self.queued_bytes -= forgotten.iter().map(|(_, bytes)| bytes).sum::<usize>();
        let request = |(input, _)| match input {
            Input::Client { from, .. } => Some(from.request),
            _ => None,
        };
        forgotten.into_iter().filter_map(request).collect()
    }

    /// Returns the total size of the unanswered writes that the replica has received, in bytes.
    pub(crate) fn in_flight_bytes(&self) -> usize {
        self.in_flight_bytes
    }

    /// Returns the number of writes that have had to wait since the start.
    pub(crate) fn delayed(&self) -> u64 {
        self.delayed
    }

    /// Notes that the replica has answered a write of this many bytes. If the write was not executed,
    /// the time of the answer does not tell how busy the replicas are.
    ///
    /// # Panics
    /// Panics if the replica has fewer unanswered bytes.
    pub(crate) fn answered(&mut self, bytes: usize, is_executed: bool) {
        assert!(
            bytes <= self.in_flight_bytes,
            "writes that are answered are in flight"
        );
        let now = Instant::now();
        let received = self.take_received(bytes).unwrap_or(now);
        let took = now.duration_since(received);
        let is_late = is_executed && self.note_time(took, bytes) && self.is_near;
        // Writes that were received together are late together.
        let is_recent = received > self.halved_at;
        // There is no pause while fewer bytes are written than the replica gets in one step.
        if self.in_flight_bytes >= self.at_once().min(self.allowed) {
            let pause = if is_late {
                took.saturating_mul(LATE_PAUSE_RATIO).min(LATE_PAUSE_MAX)
            } else {
                // A write that is answered together with another has taken as long as the other.
                now.duration_since(self.changed).min(PAUSE_MAX)
            };
            self.resume_at = self.resume_at.max(now + pause);
        }
        self.in_flight_bytes -= bytes;
        self.allowed = if !self.is_near {
            self.at_once()
        } else if is_late && is_recent {
            self.halved_at = now;
            (self.allowed / 2).max(ADDED.min(self.max))
        } else if is_late || !is_executed {
            self.allowed
        } else {
            (self.allowed + ADDED).min(self.at_once())
        };
        self.changed = now;
    }

    /// Notes the time that the answer to a write of this many bytes took. Returns true if the answer
    /// is late.
    fn note_time(&mut self, took: Duration, bytes: usize) -> bool {
        // A put of 1 MiB is charged a little more than this.
        let steps = (bytes / AT_ONCE).max(1);
        let took = took / u32::try_from(steps).unwrap_or(u32::MAX);
        let slower = self.fastest.saturating_add(self.fastest / REMEMBERED);
        self.fastest = took.max(LATE_NEAR / LATE_RATIO).min(slower);
        took > LATE_NEAR.max(self.fastest.saturating_mul(LATE_RATIO))
    }

    /// Removes the oldest bytes that the replica has received. Returns the time of the first of them.
    fn take_received(&mut self, bytes: usize) -> Option<Instant> {
        let mut left = bytes;
        let first = self.received.front().map(|(at, _)| *at);
        while let Some((_, oldest)) = self.received.front_mut().filter(|_| left > 0) {
            let taken = left.min(*oldest);
            *oldest -= taken;
            left -= taken;
            if *oldest == 0 {
                self.received.pop_front();
            }
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use leasehold_wire::Command;
    use leasehold_wire::command::Op;
    use tokio::time::advance;

    use super::*;
    use leasehold_replica::action::ClientHandle;

    const MIB: usize = 1 << 20;
    const MS: Duration = Duration::from_millis(1);

    fn write(connection: u64, request: u64) -> Input {
        Input::Client {
            from: ClientHandle {
                connection,
                request,
            },
            command: Command::from(Op::put("k", "v")),
        }
    }

    /// Takes all writes that the replica may receive now. Returns the connection and the request
    /// number of each write.
    fn given(writes: &mut LargeWrites) -> Vec<(u64, u64)> {
        let popped = std::iter::from_fn(|| writes.pop());
        let shown = popped.filter_map(|input| match input {
            Input::Client { from, .. } => Some((from.connection, from.request)),
            _ => None,
        });
        shown.collect()
    }

    #[tokio::test(start_paused = true)]
    async fn connections_have_turns_and_keep_their_order() {
        let mut writes = LargeWrites::new(100 * MIB);
        for request in 1..=3 {
            writes.push(1, write(1, request), MIB / 8);
        }
        writes.push(2, write(2, 1), MIB / 8);
        writes.push(3, write(3, 1), MIB / 8);
        let expected = [(1, 1), (2, 1), (3, 1), (1, 2), (1, 3)];
        assert_eq!(given(&mut writes), expected);
        assert_eq!(
            (writes.delayed(), writes.in_flight_bytes()),
            (0, 5 * MIB / 8)
        );
        assert!(writes.waiting.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_of_a_connection_that_has_gone_is_given_up() {
        let mut writes = LargeWrites::new(MIB);
        for request in 1..=4 {
            writes.push(1, write(1, request), MIB / 2);
            writes.push(2, write(2, request), MIB / 2);
        }
        assert_eq!(given(&mut writes), [(1, 1), (2, 1)]);
        assert_eq!(writes.forget(1), [2, 3, 4]);
        assert!(writes.forget(1).is_empty() && writes.forget(3).is_empty());
        assert_eq!(
            (writes.in_flight_bytes(), writes.queued_bytes),
            (MIB, 3 * MIB / 2)
        );
        writes.answered(MIB, true);
        assert_eq!(given(&mut writes), [(2, 2), (2, 3)]);
    }

    /// A write of [`AT_ONCE`] bytes that waits only for disks is answered soon. The next write
    /// follows only after this answer.
    #[tokio::test(start_paused = true)]
    async fn a_write_that_waits_for_disks_is_joined_by_none() {
        let mut writes = LargeWrites::new(2 * MIB);
        for request in 1..=10 {
            writes.push(1, write(1, request), MIB);
        }
        assert_eq!(writes.delayed(), 9);
        for request in 1..=3 {
            assert_eq!(given(&mut writes), [(1, request)]);
            advance(JOINED_AFTER - MS).await;
            assert!(!writes.is_due());
            writes.answered(MIB, true);
            advance(PAUSE_MAX).await;
        }
    }

    /// The longer the round trip, the more writes are in flight, up to the limit.
    #[tokio::test(start_paused = true)]
    async fn writes_that_wait_for_messages_join_each_other() {
        let mut writes = LargeWrites::new(3 * MIB);
        for request in 1..=10 {
            writes.push(1, write(1, request), MIB);
        }
        for request in 1..=3 {
            assert_eq!(given(&mut writes), [(1, request)]);
            assert_eq!(writes.in_flight_bytes(), request as usize * MIB);
            advance(JOINED_AFTER).await;
        }
        assert_eq!((given(&mut writes), writes.due()), (vec![], None));
        writes.answered(MIB, true);
        assert!(!writes.is_due(), "an answer counts as a write");
        advance(JOINED_AFTER).await;
        assert_eq!(given(&mut writes), [(1, 4)]);
    }

    /// In a near cluster, a late answer means that the replicas are busy. Then the limit falls,
    /// down to a single write in flight, and a pause follows the answers. After early answers, as
    /// many bytes as before are in flight.
    #[tokio::test(start_paused = true)]
    async fn late_answers_of_near_replicas_leave_one_write_in_flight() {
        let mut writes = LargeWrites::new(2 * MIB);
        writes.note_round_trip(Some(NEAR_MAX));
        for request in 1..=200 {
            writes.push(1, write(1, request), MIB / 8);
        }
        let mut in_flight = Vec::new();
        for took in [vec![4; 2], vec![20; 6], vec![2; 3]].concat() {
            let count = given(&mut writes).len();
            in_flight.push(count);
            advance(took * MS).await;
            assert!(!writes.is_due(), "no write joins those in flight");
            (0..count).for_each(|_| writes.answered(MIB / 8, true));
            let pause = match took {
                20 => LATE_PAUSE_MAX,
                took => took * MS,
            };
            assert_eq!(writes.due(), Some(Instant::now() + pause));
            advance(pause).await;
        }
        assert_eq!(in_flight, [8, 8, 8, 4, 2, 1, 1, 1, 1, 1, 2]);
        // A write may wait for a dead holder of a lease.
        let before = given(&mut writes).len();
        advance(JOINED_AFTER_NEAR).await;
        assert_eq!(given(&mut writes).len(), 8);
        advance(JOINED_AFTER_NEAR).await;
        let allowed = writes.allowed;
        (0..before + 8).for_each(|_| writes.answered(MIB / 8, true));
        assert_eq!(writes.allowed, allowed / 2);
        // In a far cluster, writes join those in flight.
        writes.note_round_trip(None);
        advance(LATE_PAUSE_MAX).await;
        given(&mut writes);
        advance(JOINED_AFTER).await;
        assert_eq!(given(&mut writes).len(), 8);
    }

    /// After a late answer, the pause is several times as long as the wait for the answer. It ends
    /// soon when the cluster is no longer near. Refusals are no fast answers, and the answer to a very
    /// large write may take longer.
    #[tokio::test(start_paused = true)]
    async fn a_late_answer_is_followed_by_a_long_pause() {
        let mut writes = LargeWrites::new(8 * MIB);
        for request in 1..=10 {
            let bytes = if request == 6 { MIB + 2400 } else { MIB };
            writes.push(1, write(1, request), bytes);
        }
        writes.push(1, write(1, 11), 4 * MIB);
        writes.push(1, write(1, 12), MIB);
        let answer = async |writes: &mut LargeWrites, took: u32, bytes, is_executed| {
            writes.note_round_trip(Some(MS));
            assert_eq!(given(writes).len(), 1);
            advance(took * MS).await;
            writes.answered(bytes, is_executed);
            let pause = writes.resume_at - Instant::now();
            advance(pause).await;
            pause
        };
        for took in [4; 3] {
            assert_eq!(answer(&mut writes, took, MIB, true).await, took * MS);
        }
        answer(&mut writes, 0, MIB, false).await;
        assert_eq!(answer(&mut writes, 8, MIB, true).await, 8 * MS);
        assert_eq!(answer(&mut writes, 9, MIB + 2400, true).await, 54 * MS);
        assert_eq!(answer(&mut writes, 100, MIB, true).await, LATE_PAUSE_MAX);
        for took in [4; 3] {
            assert_eq!(answer(&mut writes, took, MIB, true).await, took * MS);
        }
        assert_eq!(answer(&mut writes, 16, 4 * MIB, true).await, 16 * MS);
        writes.push(1, write(1, 13), MIB);
        given(&mut writes);
        advance(9 * MS).await;
        writes.answered(MIB, true);
        assert_eq!(writes.due(), Some(Instant::now() + 54 * MS));
        writes.note_round_trip(None);
        assert_eq!(writes.due(), Some(Instant::now() + PAUSE_MAX));
    }

    /// Answers that always take long mean that the disks are slow, not that the replicas are busy.
    #[tokio::test(start_paused = true)]
    async fn answers_of_slow_disks_are_not_late() {
        let mut writes = LargeWrites::new(2 * MIB);
        writes.note_round_trip(Some(MS));
        for request in 1..=200 {
            writes.push(1, write(1, request), MIB / 8);
        }
        for took in [30, 31, 40, 59, 30, 58] {
            assert_eq!(given(&mut writes).len(), 8, "{took}");
            advance(took * MS).await;
            (0..8).for_each(|_| writes.answered(MIB / 8, true));
            advance(PAUSE_MAX).await;
        }
    }

    /// Each step passes [`AT_ONCE`] bytes to the replica, even if the writes are short.
    #[tokio::test(start_paused = true)]
    async fn as_many_bytes_join_each_time_as_went_at_once() {
        let mut writes = LargeWrites::new(2 * MIB);
        for request in 1..=400 {
            writes.push(1, write(1, request), 8 << 10);
        }
        assert_eq!(given(&mut writes).len(), 128);
        advance(JOINED_AFTER).await;
        assert_eq!(given(&mut writes).len(), 128);
        advance(JOINED_AFTER).await;
        assert_eq!((given(&mut writes), writes.due()), (vec![], None));
        writes.answered(8 << 10, true);
        assert!(!writes.is_due());
        writes.answered(MIB, true);
        advance(PAUSE_MAX).await;
        assert_eq!(given(&mut writes).len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_come_together_end_no_rest() {
        let mut writes = LargeWrites::new(2 * MIB);
        for request in 1..=3 {
            writes.push(1, write(1, request), MIB);
        }
        given(&mut writes);
        advance(JOINED_AFTER).await;
        given(&mut writes);
        advance(100 * MS).await;
        writes.answered(MIB, true);
        writes.answered(MIB, true);
        assert_eq!(writes.due(), Some(Instant::now() + PAUSE_MAX));
    }

    /// The next write waits, so that the disk can first do the work that follows an answer.
    #[tokio::test(start_paused = true)]
    async fn the_next_write_waits_for_as_long_as_an_answer_took() {
        let mut writes = LargeWrites::new(MIB);
        for request in 1..=4 {
            writes.push(1, write(1, request), MIB);
        }
        for (request, took, pause) in [(1, 8 * MS, 8 * MS), (2, 100 * MS, PAUSE_MAX)] {
            assert_eq!(given(&mut writes), [(1, request)]);
            advance(took).await;
            writes.answered(MIB, true);
            assert_eq!(writes.due(), Some(Instant::now() + pause));
            advance(pause - MS).await;
            assert!(!writes.is_due());
            advance(MS).await;
        }
        assert_eq!(given(&mut writes), [(1, 3)]);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_rests_while_less_is_written_than_could_be_at_once() {
        let mut writes = LargeWrites::new(2 * MIB);
        for request in 1..=100 {
            writes.push(1, write(1, request), MIB / 4);
            writes.push(2, write(2, request), MIB / 4);
            assert_eq!(given(&mut writes), [(1, request), (2, request)]);
            advance(MS).await;
            writes.answered(MIB / 2, true);
        }
        assert_eq!(writes.delayed(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn one_write_that_is_larger_than_all_may_be_is_given() {
        let mut writes = LargeWrites::new(MIB / 2);
        writes.push(1, write(1, 1), 3 * MIB);
        writes.push(1, write(1, 2), MIB);
        assert_eq!(given(&mut writes), [(1, 1)]);
        advance(JOINED_AFTER).await;
        assert!(!writes.is_due());
        writes.answered(3 * MIB, true);
        advance(PAUSE_MAX).await;
        assert_eq!(given(&mut writes), [(1, 2)]);
    }
}
