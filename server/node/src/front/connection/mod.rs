//! One client's connection, and the limit on the memory of the replica that the connection may
//! take.
//!
//! A request of a dozen bytes may ask for an answer of 4 MiB. So each request is *charged* while
//! the replica works on it: for its own bytes, and for the expected bytes of its answer. The
//! expected size follows the sizes of the answers that the connection has received. Before the
//! first answer it is the maximum size. While too many bytes of a connection are charged or unread,
//! the node does not read from it, and further requests wait in the socket. If answers turn out far
//! larger than expected, no more of them are encoded and the connection is closed.
//!
//! If all connections together are charged too much, the node does not read from connections that
//! have a request in flight. On a connection without requests in flight, a large request is refused
//! as unavailable, and a small one is admitted. Once the charges exceed the limit by an eighth,
//! small commands are refused, too. Without this second limit, a client could disconnect as soon as
//! its only command is taken, connect again, and so exceed any limit. A `status` is answered
//! regardless of other clients. Peers have connections of their own.
//!
//! The charge covers the memory that is kept. A request that was read together with others is a
//! part of a shared buffer, and keeps the whole buffer in memory. So the request is copied where
//! the difference in size matters.
//!
//! The time for which a client may make the replica wait is also bounded ([`timeouts`]).

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
use leasehold_wire::command::Op;
use leasehold_wire::request::Body;
use leasehold_wire::txn_op::Op as Listed;
use leasehold_wire::{
    Error, ErrorCode, FRAME_BYTES_MAX, Path, ReadOp, Request, Response, Txn, TxnOp,
    VALUE_BYTES_MAX, encode_response, outcome,
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

/// Interval at which a paused connection checks whether it may be read again. The connection also
/// checks when it is notified that other connections have released capacity.
const PAUSE: Duration = Duration::from_millis(5);
/// Maximum cost that a small write adds to a batch, in units of [`leasehold_replica::cost`]. A
/// write with a higher cost is large. The maximum is the cost of a put of 4 KiB.
const SMALL_WRITE: usize = SMALL_BYTES + 512;
/// Limit on the unread bytes of answers. Above this limit, the replica reads no further requests
/// from the connection.
const UNREAD_PAUSE: usize = 1 << 20;
/// Minimum charge of a request, in bytes. It is also the minimum expected size of an answer.
const SMALL_BYTES: usize = 4 << 10;
/// Maximum sizes of answers in bytes, by kind. The kinds are those of [`Connection::expected`].
const ANSWER_BYTES_MAX: [usize; 4] = [
    VALUE_BYTES_MAX,
    FRAME_BYTES_MAX,
    FRAME_BYTES_MAX,
    FRAME_BYTES_MAX,
];
/// Lower bound for the expected size of an answer on a new connection, in bytes.
const USUAL_BYTES: usize = 64 << 10;
/// Lower bound for the expected number of entries in an answer to a Scan or MultiGet on a new
/// connection.
const USUAL_ENTRIES: usize = 1000;
/// Memory in bytes that each entry of a request or answer takes in addition to its key and value.
const ENTRY_BYTES: usize = 128;

/// One client's connection, with its unsent answers, its rights and its charges.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) id: u64,
    pub(crate) address: SocketAddr,
    pub(crate) outbox: Outbox,
    /// Rights of the client, which are checked only if clients need tokens.
    pub(crate) auth: AuthState,
    /// Whether answers have been appended since the last flush.
    pub(crate) dirty: Cell<bool>,
    budget: Rc<Budget>,
    account: Rc<Account>,
    /// Request number of the newest request.
    last_request: Cell<u64>,
    /// Keys for which clients have requested hints. The map is indexed by request number.
    hint_keys: RefCell<HashMap<u64, Bytes, SeededState>>,
    /// Expected size, in bytes, of an answer of each kind; `None` before the first answer of the
    /// kind. The four kinds are the answers to a Get, to a Scan or MultiGet, to a request for all
    /// ranges of leases or for the demand, and to a Txn.
    expected: [Cell<Option<usize>>; 4],
    /// Expected number of entries in the answer to a Scan or MultiGet. `None` before the first such
    /// answer.
    expected_entries: Cell<Option<usize>>,
    /// Paths by which the last Get and the last Scan or MultiGet were served. The next requests are
    /// expected to take the same paths.
    paths: [Cell<Path>; 2],
    timeouts: ClientTimeouts,
    /// Number of bytes that are charged to the connection for an incomplete frame.
    partial: Cell<usize>,
    /// Whether a frame has arrived only in part.
    awaits_frame: Cell<bool>,
    /// Reason why the connection must be closed; `None` if it stays open.
    close_reason: RefCell<Option<Error>>,
    /// Whether the connection waits for capacity.
    is_waiting: Cell<bool>,
    /// Notified when a request is answered while the connection waits.
    capacity: Notify,
}

/// Cost of a request for the replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestCost {
    /// Cost in units of [`leasehold_replica::cost`].
    pub(crate) units: usize,
    /// Whether the request is a write of more than [`SMALL_WRITE`] units.
    pub(crate) is_large_write: bool,
}

/// Sizes of an expected answer, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct ExpectedAnswer {
    /// Size that is charged to the connection.
    charged: usize,
    /// Likely size of the answer. This size also depends on the sizes of the answers on all other
    /// connections.
    likely: usize,
}

impl ExpectedAnswer {
    fn at_most(self, bytes: usize) -> ExpectedAnswer {
        ExpectedAnswer {
            charged: self.charged.min(bytes),
            likely: self.likely.min(bytes),
        }
    }
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

    /// Returns the bytes of a request. They stay in memory while the replica works on the request.
    /// The bytes of a short request may keep a much larger shared buffer in memory. So the bytes are
    /// copied if requests in flight already take much memory.
    pub(crate) fn compact(&self, frame: Bytes) -> Bytes {
        if frame.len() <= READ_BYTES && self.budget.is_in_use() {
            Bytes::copy_from_slice(&frame)
        } else {
            frame
        }
    }

    /// Charges a request that arrived in a frame of `bytes` bytes.
    ///
    /// # Errors
    /// Fails if the number of the request is not higher than all earlier request numbers of the
    /// connection. Fails if the frame holds much data besides the request. Fails if all connections
    /// together have too many bytes in flight.
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
        let cost = cost.and_passing(bytes);
        // The answer to a transaction may be long, but that makes no other write wait.
        let is_large_write = is_write && cost.executing() > SMALL_WRITE;
        let most = cost.and_answering(answer.likely, usize::MAX);
        let likely = most.and_answering(0, self.likely_entries());
        // Scans that find little may be followed by one that finds much. The reads with guessed
        // charges cost at most one more round of work together.
        let guessed = most.units() - likely.units();
        let (cost, guessed) = if self.budget.guessed.get() + guessed <= UNITS_PER_ITERATION {
            (likely, guessed)
        } else {
            (most, 0)
        };
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

    /// Returns the cost of a request, without the cost of its answer.
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

    /// Returns the account that holds the charges of the connection's requests.
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

    /// Notes that the answer to this request must name the lease holders of `key`. Does nothing if
    /// `key` is `None`.
    pub(crate) fn request_hint(&self, request: u64, key: Option<&Bytes>) {
        if let Some(key) = key {
            self.hint_keys.borrow_mut().insert(request, key.clone());
        }
    }

    /// Removes and returns the key of the hint that the answer to this request must contain.
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
            None => match &command.op {
                Some(Op::Txn(txn)) => self.expect(3).at_most(answer_values_max(txn)),
                _ => ExpectedAnswer::default(),
            },
        }
    }

    /// Returns the expected sizes of an answer of this kind. They do not include the overhead of
    /// the entries.
    fn expect(&self, kind: usize) -> ExpectedAnswer {
        let known = self.expected[kind].get();
        let most = ANSWER_BYTES_MAX[kind];
        let usual = self.budget.expected[kind].get().clamp(USUAL_BYTES, most);
        ExpectedAnswer {
            charged: known.unwrap_or(most),
            // The expectation for one connection begins at the maximum, and is halved with each
            // short answer.
            likely: known.map_or(usual, |known| known.min(usual)),
        }
    }

    fn likely_entries(&self) -> usize {
        let usual = self.budget.expected_entries.get().max(USUAL_ENTRIES);
        self.expected_entries.get().unwrap_or(usual)
    }

    /// Appends the answer to a request. The account must already have released the charge of the
    /// request.
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
            Some(outcome::Result::Txn(_)) => self.learn(3, bytes),
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

    /// Updates the expected size of answers of this kind after an answer of `bytes` bytes. The
    /// expected size rises immediately and falls slowly. So it is rarely too low, and few answers
    /// are charged too little.
    fn learn(&self, kind: usize, bytes: usize) {
        let known = self.expected[kind].get().unwrap_or(ANSWER_BYTES_MAX[kind]);
        self.expected[kind].set(Some(bytes.max(known / 2)));
        let usual = &self.budget.expected[kind];
        usual.set(bytes.max(usual.get() / 2));
    }

    /// Updates the expected number of entries after an answer with `entries` entries. As in
    /// [`Self::learn`], the expected number rises immediately and falls slowly.
    fn learn_entries(&self, entries: usize) {
        let likely = self.likely_entries();
        self.expected_entries.set(Some(entries.max(likely / 2)));
        let usual = &self.budget.expected_entries;
        usual.set(entries.max(usual.get() / 2));
    }

    /// Appends an answer, and returns the number of appended bytes. If the client has left too many
    /// bytes unread, abandons the connection instead and returns 0.
    pub(crate) fn append(&self, response: &Response) -> usize {
        if self.outbox.is_broken() {
            return 0;
        }
        if self.outbox.pending_bytes() > self.budget.limits.connection_unread_bytes {
            self.abandon();
            return 0;
        }
        let mut buffer = self.outbox.buffer();
        // Bytes that were sealed for TLS have left the buffer, but they are still pending.
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

    /// Closes the connection because the client does not read its answers, and frees the unread
    /// answers.
    pub(crate) fn abandon(&self) {
        let unread = self.outbox.pending_bytes();
        if let Some(untold) = self.budget.close_log.due(Instant::now()) {
            let client = self.address;
            tracing::info!(%client, unread, untold, "the connection is closed: the client does not read its answers");
        }
        count(&self.budget.limit_counters.abandoned);
        self.outbox.abandon();
    }

    /// Notes that bytes have arrived. `partial` is the number of received bytes of an incomplete
    /// frame. `counted` is the number of these bytes that are charged.
    pub(crate) fn track_partial_frame(&self, partial: usize, counted: usize) {
        self.timeouts.note_bytes();
        self.awaits_frame.set(partial > 0);
        let before = self.partial.replace(counted);
        if before != counted {
            let others = self.budget.partial.get() - before;
            self.budget.partial.set(others + counted);
        }
    }

    /// Notes that a complete frame was taken.
    pub(crate) fn note_frame(&self) {
        self.timeouts.note_frame();
    }

    /// Returns the rank of this connection among the connections with unfinished frames; `None` if
    /// it has no unfinished frame. If all unfinished frames together take too much memory, the
    /// connection with the lowest rank is closed first.
    ///
    /// A frame of some age has a low rank if it has grown little. All frames that have only just
    /// begun have higher ranks. Among these frames, the largest frame has the lowest rank.
    pub(crate) fn eviction_rank(&self) -> Option<(bool, usize)> {
        let bytes = self.partial.get();
        (bytes > 0).then(|| match self.timeouts.growth(bytes) {
            Some(grown) => (false, grown),
            None => (true, FRAME_BYTES_MAX.saturating_sub(bytes)),
        })
    }

    /// Checks the deadlines of the client. Returns a deadline that the client has missed, if there
    /// is one. The caller must call this method once in each [`CHECK_INTERVAL`].
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

    /// Closes the connection of a client that has missed a deadline.
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

    /// Closes the connection because the unfinished frames of all connections together take too
    /// much memory.
    pub(crate) fn evict(&self) {
        count(&self.budget.limit_counters.evicted);
        self.track_partial_frame(0, 0);
        let message = "this replica has too many requests of which only a part has arrived: \
                       send them again, faster, or to another replica";
        self.end(Error::new(ErrorCode::Unavailable, message));
    }

    /// Makes the connection's task close the connection and send the reason to the client.
    fn end(&self, why: Error) {
        *self.close_reason.borrow_mut() = Some(why);
        self.outbox.interrupt();
    }

    /// Removes and returns the reason why the connection must be closed, if there is one.
    pub(crate) fn take_close_reason(&self) -> Option<Error> {
        self.close_reason.borrow_mut().take()
    }

    /// Returns true if the replica must not take requests from the connection for now.
    pub(crate) fn is_congested(&self) -> bool {
        let limits = &self.budget.limits;
        let in_flight = self.account.in_flight();
        let charged =
            self.account.charged() >= limits.connection_in_flight_bytes || self.budget.is_spent();
        in_flight >= limits.connection_requests
            || in_flight > 0 && charged
            || self.outbox.pending_bytes() > UNREAD_PAUSE
    }

    /// Waits until requests may be taken from the connection again, then returns true. Returns
    /// false without waiting if requests may be taken already.
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

    /// Waits until all requests are answered and the client has taken all answers. The client has
    /// already ended its stream of requests. Returns earlier if the connection breaks. Also returns
    /// earlier if both numbers of [`Self::outstanding`] stay the same for `limits.stalled_s`.
    pub(crate) async fn wait_until_drained(&self) {
        // The client cannot finish a frame any more.
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

    /// Returns the number of requests that are not answered yet, and the number of bytes of answers
    /// that the socket has not taken yet.
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

/// Returns the maximum size of the values in the answer to a transaction, in bytes. The answer has
/// the values that one of the lists gets. If a comparison failed, the answer also has the value that
/// the comparison found.
fn answer_values_max(txn: &Txn) -> usize {
    let gets = |list: &[TxnOp]| {
        let gets = list
            .iter()
            .filter(|it| matches!(it.op, Some(Listed::Get(_))));
        gets.count()
    };
    let compared = usize::from(!txn.comparisons.is_empty());
    let values = gets(&txn.then).max(compared + gets(&txn.or_else));
    (values * VALUE_BYTES_MAX).min(FRAME_BYTES_MAX)
}

fn out_of_order(id: u64) -> Error {
    let message = format!(
        "request.id is {id}, and an earlier request of the connection has this number or a higher \
         one: count up from 1"
    );
    Error::new(ErrorCode::BadRequest, message)
}

/// Returns the error for a request in a frame with much unknown content. The request is refused,
/// because its frame would stay in memory while the replica works on the request and while the log
/// keeps the command.
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
