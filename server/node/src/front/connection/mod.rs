//! One client's connection, and how much of the replica's memory it may take.
//!
//! A request of a dozen bytes may ask for an answer of 4 MiB. So each request is *charged*
//! while the replica works on it: its own bytes, and those that its answer is expected to
//! have. What is expected follows the answers that the connection has had; before the
//! first it is the most that there could be. A connection that has too much charged, or
//! leaves too much unread, is not read from: its requests wait in its socket. If answers
//! turn out far larger than expected, nothing more is encoded and the connection is closed.
//!
//! If all connections together have too much charged, none is read from that has something
//! in flight. Of one that has not, a large request is refused as unavailable, and a small one
//! is let in; but with an eighth more charged, commands are refused, too, since a client may
//! leave as soon as its only one is taken, and come again. A `status` is answered whatever others
//! do. Peers have connections of their own.
//!
//! What is charged is what is kept: a request that was read together with others is a part of
//! their memory, and keeps all of it. So it is copied where that matters.
//!
//! How long a client may let the replica wait is bounded, too ([`timeouts`]).

mod account;
mod budget;
#[cfg(test)]
mod tests;
mod timeouts;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use leasehold_leases::hashing::SeededState;
use leasehold_wire::request::Body;
use leasehold_wire::{
    Error, ErrorCode, FRAME_BYTES_MAX, Path, ReadOp, Request, Response, VALUE_BYTES_MAX,
    encode_response, outcome,
};
use prost::Message as _;
use tokio::sync::Notify;

use self::account::Charge;
use self::timeouts::{ClientTimeouts, ConnectionSnapshot};
use crate::front::access::AuthState;
use crate::front::inbox::UNITS_PER_ITERATION;
use crate::front::listener::READ_BYTES;
use crate::front::outbox::Outbox;
use leasehold_replica::cost::{self, Cost};

pub(crate) use self::account::Account;
pub(crate) use self::budget::{Budget, count};
pub(crate) use self::timeouts::{CHECK_INTERVAL, MissedDeadline};

/// Interval at which a connection that is not read from checks whether it may go on, unless it
/// is notified: other connections may have released capacity.
const PAUSE: Duration = Duration::from_millis(5);
/// Units of [`leasehold_replica::cost`] that a write adds to a batch at most, if it is not large: as many as a
/// put of 4 KiB.
const SMALL_WRITE: usize = SMALL_BYTES + 512;
/// With more answers than this unread, no further requests are read.
const UNREAD_PAUSE: usize = 1 << 20;
/// Minimum charge of a request, and minimum expected size of an answer, in bytes.
const SMALL_BYTES: usize = 4 << 10;
/// The most that an answer of each kind may have.
const ANSWER_BYTES_MAX: [usize; 3] = [VALUE_BYTES_MAX, FRAME_BYTES_MAX, FRAME_BYTES_MAX];
/// Minimum number of bytes that an answer to a new connection is likely to have.
const USUAL_BYTES: usize = 64 << 10;
/// Number of entries that an answer of several to a new connection is likely to have, at least.
const USUAL_ENTRIES: usize = 1000;
/// Memory that an entry of a request or of an answer takes beside its key and value, in bytes.
const ENTRY_BYTES: usize = 128;

/// One client's connection, with its unsent answers, its rights and its charges.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) id: u64,
    pub(crate) address: SocketAddr,
    pub(crate) outbox: Outbox,
    /// Rights of its client, if clients need tokens.
    pub(crate) auth: AuthState,
    /// Answers were appended since the last flush.
    pub(crate) dirty: Cell<bool>,
    budget: Rc<Budget>,
    account: Rc<Account>,
    /// The number of the newest request.
    last_request: Cell<u64>,
    /// By request, the keys about which the client asks for hints.
    hint_keys: RefCell<HashMap<u64, Bytes, SeededState>>,
    /// Bytes that answers of three kinds are expected to have: to a Get; to a Scan or MultiGet;
    /// to a request for all ranges of leases or for the demand. `None` before the first.
    expected: [Cell<Option<usize>>; 3],
    /// Number of entries that the answer to a Scan or MultiGet is likely to have. `None` before the first.
    expected_entries: Cell<Option<usize>>,
    /// Paths that the last Get and the last Scan or MultiGet took, as the next ones are expected to.
    paths: [Cell<Path>; 2],
    timeouts: ClientTimeouts,
    /// Bytes of a frame that is not whole yet, as far as they count.
    partial: Cell<usize>,
    /// A part of a frame is here.
    awaits_frame: Cell<bool>,
    /// Why it is to be closed.
    close_reason: RefCell<Option<Error>>,
    /// It waits for capacity.
    is_waiting: Cell<bool>,
    /// A request was answered while it waited.
    capacity: Notify,
}

/// Cost of a request for the replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestCost {
    /// Units of [`leasehold_replica::cost`].
    pub(crate) units: usize,
    /// A write of more than [`SMALL_WRITE`].
    pub(crate) is_large_write: bool,
}

/// Number of bytes that an answer is expected to have.
#[derive(Clone, Copy, Debug, Default)]
struct ExpectedAnswer {
    /// As many as the connection must be ready to be charged.
    charged: usize,
    /// As many as is likely, by what all connections were answered.
    likely: usize,
}

impl Connection {
    pub(crate) fn new(
        id: u64,
        address: SocketAddr,
        outbox: Outbox,
        budget: Rc<Budget>,
    ) -> Connection {
        Connection {
            id,
            address,
            outbox,
            auth: AuthState::default(),
            dirty: Cell::new(false),
            account: Rc::new(Account::new(budget.clone())),
            budget,
            last_request: Cell::new(0),
            hint_keys: RefCell::default(),
            expected: Default::default(),
            expected_entries: Cell::default(),
            paths: Default::default(),
            timeouts: ClientTimeouts::default(),
            partial: Cell::new(0),
            awaits_frame: Cell::new(false),
            close_reason: RefCell::default(),
            is_waiting: Cell::new(false),
            capacity: Notify::new(),
        }
    }

    /// Returns the bytes of a request that are kept while the replica works on it. They are
    /// copied if the request would otherwise keep much that was read with it, and requests in
    /// flight take some memory already.
    pub(crate) fn compact(&self, frame: Bytes) -> Bytes {
        if frame.len() <= READ_BYTES && self.budget.is_in_use() {
            Bytes::copy_from_slice(&frame)
        } else {
            frame
        }
    }

    /// Charges a request that came in a frame of `bytes`.
    ///
    /// # Errors
    /// Its number does not tell its answer from those of others, or its frame holds much beside
    /// it. Or all together have too much in flight for it.
    pub(crate) fn charge(&self, request: &Request, bytes: usize) -> Result<RequestCost, Error> {
        if request.id <= self.last_request.get() {
            return Err(out_of_order(request.id));
        }
        self.last_request.set(request.id);
        let request_bytes = if bytes > SMALL_BYTES {
            request.encoded_len()
        } else {
            bytes
        };
        if bytes > 2 * request_bytes + SMALL_BYTES {
            return Err(padded(request_bytes, bytes));
        }
        let is_command = matches!(&request.body, Some(Body::Command(_)));
        let is_small = bytes <= SMALL_BYTES && !(is_command && self.budget.is_overspent());
        if self.budget.is_spent() && !is_small {
            count(&self.budget.limit_counters.requests_refused);
            return Err(self.over_budget_error());
        }
        let answer = self.expected_answer(request);
        let is_write = matches!(&request.body, Some(Body::Command(command)) if command.is_write());
        let cost = self.cost(request);
        let parts = cost.parts();
        let most = cost
            .and_passing(bytes)
            .and_answering(answer.likely, usize::MAX);
        let likely = most.and_answering(0, self.likely_entries());
        // Scans that find little may be followed by one that finds much. All that are charged by
        // what others found cost no more than another round together.
        let guessed = most.units() - likely.units();
        let (cost, guessed) = if self.budget.guessed.get() + guessed <= UNITS_PER_ITERATION {
            (likely, guessed)
        } else {
            (most, 0)
        };
        let is_large_write = is_write && cost.executing() > SMALL_WRITE;
        let charged = bytes + answer.charged.max(parts * ENTRY_BYTES);
        self.account.charge(
            request.id,
            Charge {
                bytes: charged,
                large_write: if is_large_write { cost.units() } else { 0 },
                guessed,
            },
        );
        Ok(RequestCost {
            units: cost.units(),
            is_large_write,
        })
    }

    /// Returns the cost of a request, without what its answer adds.
    fn cost(&self, request: &Request) -> Cost {
        match &request.body {
            Some(Body::Command(command)) => {
                let path = |kind: usize| self.paths[kind].get();
                cost::of(match command.as_read() {
                    Some(ReadOp::Get(_)) => cost::Request::Read(command, path(0)),
                    Some(ReadOp::MultiGet(_) | ReadOp::Scan(_)) => {
                        cost::Request::Read(command, path(1))
                    }
                    None => cost::Request::Command(command),
                })
            }
            Some(body) => cost::of_body(body),
            None => Cost::default(),
        }
    }

    /// Account of the charges of its requests.
    pub(crate) fn account(&self) -> Rc<Account> {
        self.account.clone()
    }

    fn over_budget_error(&self) -> Error {
        let most = self.budget.limits.in_flight_bytes >> 20;
        let message = format!(
            "clients have {most} MiB of requests in flight at this replica, as much as \
             limits.in_flight_mb allows: try again, ask another replica, or raise it"
        );
        Error::new(ErrorCode::Unavailable, message)
    }

    /// Notes that the answer of this request is to name the holders of its key, if it names one.
    pub(crate) fn request_hint(&self, request: u64, key: Option<&Bytes>) {
        if let Some(key) = key {
            self.hint_keys.borrow_mut().insert(request, key.clone());
        }
    }

    /// The key about which the answer of this request is to give a hint.
    pub(crate) fn take_hint_key(&self, request: u64) -> Option<Bytes> {
        let mut hint_keys = self.hint_keys.borrow_mut();
        if hint_keys.is_empty() {
            None
        } else {
            hint_keys.remove(&request)
        }
    }

    fn expected_answer(&self, request: &Request) -> ExpectedAnswer {
        let command = match &request.body {
            Some(Body::Command(command)) => command,
            Some(Body::Status(status)) if status.leases || status.demand => {
                return self.expect(2);
            }
            Some(Body::Lease(_)) => return self.expect(2),
            _ => return ExpectedAnswer::default(),
        };
        match command.as_read() {
            Some(ReadOp::Get(_)) => self.expect(0),
            Some(ReadOp::MultiGet(_) | ReadOp::Scan(_)) => self.expect(1),
            None => ExpectedAnswer::default(),
        }
    }

    /// Returns how many bytes an answer of this kind is expected to have, without the entries' overhead.
    fn expect(&self, kind: usize) -> ExpectedAnswer {
        let known = self.expected[kind].get();
        let most = ANSWER_BYTES_MAX[kind];
        let usual = self.budget.expected[kind].get().clamp(USUAL_BYTES, most);
        ExpectedAnswer {
            charged: known.unwrap_or(most),
            // What is known of one connection begins with the most, and falls by half each time.
            likely: known.map_or(usual, |known| known.min(usual)),
        }
    }

    fn likely_entries(&self) -> usize {
        let usual = self.budget.expected_entries.get().max(USUAL_ENTRIES);
        self.expected_entries.get().unwrap_or(usual)
    }

    /// Appends the answer of a request that its account has released.
    pub(crate) fn answer(&self, response: &Response) {
        let bytes = self.append(response);
        let result = response.outcome.as_ref().and_then(|o| o.result.as_ref());
        match result {
            Some(outcome::Result::Value(_) | outcome::Result::Missing(_)) => {
                self.paths[0].set(response.path());
                self.learn(0, bytes);
            }
            Some(outcome::Result::Entries(found)) => {
                self.paths[1].set(response.path());
                self.learn(1, bytes);
                self.learn_entries(found.entries.len());
            }
            _ => {}
        }
        let status = response.status.as_ref();
        if status.is_some_and(|status| status.leases.is_some() || status.demand.is_some()) {
            self.learn(2, bytes);
        }
        if self.is_waiting.get() {
            self.capacity.notify_one();
        }
    }

    /// Rises at once and falls slowly: an answer that is much larger than expected was
    /// charged too little.
    fn learn(&self, kind: usize, bytes: usize) {
        let known = self.expected[kind].get().unwrap_or(ANSWER_BYTES_MAX[kind]);
        self.expected[kind].set(Some(bytes.max(known / 2)));
        let usual = &self.budget.expected[kind];
        usual.set(bytes.max(usual.get() / 2));
    }

    /// Updates the expected number of entries by the rule of [`Self::learn`]: it rises at once and
    /// falls slowly.
    fn learn_entries(&self, entries: usize) {
        let likely = self.likely_entries();
        self.expected_entries.set(Some(entries.max(likely / 2)));
        let usual = &self.budget.expected_entries;
        usual.set(entries.max(usual.get() / 2));
    }

    /// Appends an answer, unless the client has left too much unread: it is abandoned
    /// then. Returns the bytes appended.
    pub(crate) fn append(&self, response: &Response) -> usize {
        if self.outbox.is_broken() {
            return 0;
        }
        if self.outbox.pending_bytes() > self.budget.limits.connection_unread_bytes {
            self.abandon();
            return 0;
        }
        let mut buffer = self.outbox.buffer();
        // What is sealed for TLS has left the buffer, and is pending all the same.
        let before = buffer.len();
        if let Err(error) = encode_response(response, &mut buffer) {
            let error = Error::new(ErrorCode::TooLarge, format!("the answer is a {error}"));
            // A short refusal always fits.
            let _ = encode_response(&Response::refusal(response.id, error), &mut buffer);
        }
        let appended = buffer.len() - before;
        drop(buffer);
        self.outbox.update_unread();
        appended
    }

    /// Closes the connection of a client that does not read, and frees what it left.
    pub(crate) fn abandon(&self) {
        let unread = self.outbox.pending_bytes();
        if let Some(untold) = self.budget.close_log.due(Instant::now()) {
            let client = self.address;
            tracing::info!(%client, unread, untold, "the connection is closed: the client does not read its answers");
        }
        count(&self.budget.limit_counters.abandoned);
        self.outbox.abandon();
    }

    /// Bytes have arrived: `partial` is what is here of a frame that is not whole yet, and
    /// `counted` how much of that counts.
    pub(crate) fn track_partial_frame(&self, partial: usize, counted: usize) {
        self.timeouts.note_bytes();
        self.awaits_frame.set(partial > 0);
        let before = self.partial.replace(counted);
        if before != counted {
            let others = self.budget.partial.get() - before;
            self.budget.partial.set(others + counted);
        }
    }

    /// A whole frame was taken.
    pub(crate) fn note_frame(&self) {
        self.timeouts.note_frame();
    }

    /// Rank among connections with unfinished frames, if these take too much together: the
    /// lowest goes first. Frames that hardly grow come first, and then the largest of those that
    /// have only just begun. `None` if there is no unfinished frame.
    pub(crate) fn eviction_rank(&self) -> Option<(bool, usize)> {
        let bytes = self.partial.get();
        (bytes > 0).then(|| match self.timeouts.growth(bytes) {
            Some(grown) => (false, grown),
            None => (true, FRAME_BYTES_MAX.saturating_sub(bytes)),
        })
    }

    /// One look, each [`CHECK_INTERVAL`]: what the client is too late with.
    pub(crate) fn check_timeouts(&self) -> Option<MissedDeadline> {
        let snapshot = ConnectionSnapshot {
            awaits_frame: self.awaits_frame.get() && !self.is_congested(),
            has_requests: self.account.in_flight() > 0,
            unread: self.outbox.pending_bytes() > 0,
            taken: self.outbox.taken_bytes(),
            partial: self.partial.get(),
        };
        self.timeouts.check(snapshot, &self.budget.limits)
    }

    /// Closes the connection of a client that is late.
    pub(crate) fn close_late(&self, missed: MissedDeadline) {
        let counted = &self.budget.limit_counters;
        let limits = &self.budget.limits;
        match missed {
            MissedDeadline::Frame => {
                count(&counted.timed_out);
                let within = limits.frame.as_secs();
                let message = format!(
                    "a message did not arrive whole within {within} s (limits.frame_s): send \
                     it faster, or send less at a time"
                );
                self.end(Error::new(ErrorCode::Unavailable, message));
            }
            MissedDeadline::Stalled => {
                count(&counted.timed_out);
                let unread = self.outbox.pending_bytes();
                if let Some(untold) = self.budget.close_log.due(Instant::now()) {
                    let client = self.address;
                    tracing::info!(%client, unread, untold, "the connection is closed: the client reads its answers too slowly");
                }
                self.outbox.abandon();
            }
            MissedDeadline::Idle => {
                count(&counted.idle);
                let idle = limits.idle.as_secs();
                let message = format!("nothing was asked for {idle} s (limits.idle_s)");
                self.end(Error::new(ErrorCode::Idle, message));
            }
        }
    }

    /// Closes the connection, for unfinished frames take too much together.
    pub(crate) fn evict(&self) {
        count(&self.budget.limit_counters.evicted);
        self.track_partial_frame(0, 0);
        let message = "this replica has too many requests of which only a part has arrived: \
                       send them again, faster, or to another replica";
        self.end(Error::new(ErrorCode::Unavailable, message));
    }

    /// Has the connection's task close it, and tell the client why.
    fn end(&self, why: Error) {
        *self.close_reason.borrow_mut() = Some(why);
        self.outbox.interrupt();
    }

    /// Why it is to be closed, if it is.
    pub(crate) fn take_close_reason(&self) -> Option<Error> {
        self.close_reason.borrow_mut().take()
    }

    /// Whether no request is to be taken from it for now.
    pub(crate) fn is_congested(&self) -> bool {
        let limits = &self.budget.limits;
        let in_flight = self.account.in_flight();
        let charged =
            self.account.charged() >= limits.connection_in_flight_bytes || self.budget.is_spent();
        in_flight >= limits.connection_requests
            || in_flight > 0 && charged
            || self.outbox.pending_bytes() > UNREAD_PAUSE
    }

    /// Waits until requests may be taken again. Returns false without waiting if they may
    /// be taken already.
    pub(crate) async fn wait_for_capacity(&self) -> bool {
        if !self.is_congested() {
            return false;
        }
        count(&self.budget.limit_counters.paused);
        self.is_waiting.set(true);
        while self.is_congested() {
            let _ = tokio::time::timeout(PAUSE, self.capacity.notified()).await;
        }
        self.is_waiting.set(false);
        true
    }

    /// For a client that sends no more: waits until all its requests are answered and it
    /// has taken the answers, or neither goes on, or the connection is broken.
    pub(crate) async fn wait_until_drained(&self) {
        // It cannot finish a frame any more.
        self.track_partial_frame(0, 0);
        let drained = async {
            tokio::select! {
                () = self.outbox.drain() => return,
                () = self.wait_until_answered() => {}
            }
            self.outbox.wait_until_empty().await;
        };
        tokio::pin!(drained);
        loop {
            let before = self.outstanding();
            let ended = tokio::time::timeout(self.budget.limits.stalled, &mut drained).await;
            if ended.is_ok() || self.outstanding() == before {
                return;
            }
        }
    }

    /// Requests not yet answered, and bytes of answers not yet taken.
    fn outstanding(&self) -> (usize, usize) {
        (self.account.in_flight(), self.outbox.pending_bytes())
    }

    async fn wait_until_answered(&self) {
        self.is_waiting.set(true);
        while self.account.in_flight() > 0 {
            self.capacity.notified().await;
        }
    }
}

fn out_of_order(id: u64) -> Error {
    let message = format!(
        "request.id is {id}, and an earlier request of the connection has this number or a higher \
         one: count up from 1"
    );
    Error::new(ErrorCode::BadRequest, message)
}

/// The frame is kept while what it holds is worked on, and as long as the log keeps that.
fn padded(request: usize, frame: usize) -> Error {
    let message = format!(
        "the request takes {request} bytes, and its frame has {frame}: send nothing else in it that \
         this version does not know"
    );
    Error::new(ErrorCode::BadRequest, message)
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.track_partial_frame(0, 0);
    }
}
