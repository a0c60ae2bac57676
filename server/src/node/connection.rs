//! One client's connection, and how much of the replica's memory it may take.
//!
//! A request of a dozen bytes may ask for an answer of 4 MiB. So each request is *charged*
//! while the replica works on it: its own bytes, and those that its answer is expected to
//! have. What is expected follows the answers that the connection has had; before the
//! first it is the most that there could be. A connection that has too much charged, or
//! leaves too much unread, is not read from: its requests wait in its socket. If answers
//! turn out far larger than expected, nothing more is encoded and the connection is closed.
//!
//! Peers have connections of their own, and one request of a connection that has no other
//! is always let in: a `status` is answered whatever others do.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use client::wire::command::Op;
use client::wire::request::Body;
use client::wire::{
    Error, ErrorCode, FRAME_BYTES_MAX, Request, Response, VALUE_BYTES_MAX, encode_response, outcome,
};
use foldhash::fast::FixedState;
use tokio::sync::Notify;

use super::outbox::{Outbox, Unread};

/// How often a connection that is not read from looks whether it may go on, unless it is
/// told: others may have made room.
const PAUSE: Duration = Duration::from_millis(5);
/// How long a client that sends no more is waited for, while nothing is answered and it
/// takes nothing of what was. A slow reader empties megabytes of the system's buffers before
/// it is seen to take anything.
const STALLED_AFTER: Duration = Duration::from_secs(30);
/// What a request is charged at least, and an answer expected to have.
const SMALL_BYTES: usize = 4 << 10;
/// What an entry of an answer takes in memory, beside its key and value.
const ENTRY_BYTES: usize = 128;

/// What clients may take of a replica. Fields are bytes unless they say otherwise.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Requests of one connection that the replica works on at a time (a number).
    pub(super) in_flight: usize,
    /// What the requests of one connection may be charged together. The last one admitted
    /// may exceed it by its own charge.
    pub(super) charged: usize,
    /// What the requests of all connections may be charged together.
    pub(super) charged_total: usize,
    /// With more answers than this unread, no further requests are read.
    pub(super) unread_pause: usize,
    /// With more answers than this unread, a client is given up. The last to be encoded
    /// may exceed it by a frame.
    pub(super) unread: usize,
    /// With more than this unread by all, the client that has left most is given up.
    pub(super) unread_total: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            in_flight: 1 << 14,
            charged: 32 << 20,
            charged_total: 512 << 20,
            unread_pause: 1 << 20,
            unread: 64 << 20,
            unread_total: 1 << 30,
        }
    }
}

/// What all connections of clients take together, and how often a limit acted.
#[derive(Debug, Default)]
pub(super) struct Budget {
    pub(super) limits: Limits,
    pub(super) charged: Cell<usize>,
    pub(super) unread: Rc<Unread>,
    /// Connections given up, for they left too much unread.
    pub(super) given_up: Cell<u64>,
    /// Times that a connection was not read from, for it had enough in flight or unread.
    pub(super) paused: Cell<u64>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: u64,
    pub(super) address: SocketAddr,
    pub(super) outbox: Outbox,
    /// Answers were appended since the last flush.
    pub(super) dirty: Cell<bool>,
    budget: Rc<Budget>,
    in_flight: Cell<usize>,
    charged: Cell<usize>,
    /// By request, what is charged above [`SMALL_BYTES`].
    large: RefCell<HashMap<u64, usize, FixedState>>,
    /// By request, the keys about which the client asks for hints.
    hinted: RefCell<HashMap<u64, Bytes, FixedState>>,
    /// Bytes that the answer to a Get is expected to have, that to a Scan or MultiGet, and
    /// that to who asks for all ranges of leases or for the demand.
    expected: [Cell<usize>; 3],
    /// It waits for room.
    waits: Cell<bool>,
    /// A request was answered while it waited.
    room: Notify,
}

impl Connection {
    pub(super) fn new(
        id: u64,
        address: SocketAddr,
        outbox: Outbox,
        budget: Rc<Budget>,
    ) -> Connection {
        Connection {
            id,
            address,
            outbox,
            dirty: Cell::new(false),
            budget,
            in_flight: Cell::new(0),
            charged: Cell::new(0),
            large: RefCell::default(),
            hinted: RefCell::default(),
            expected: [VALUE_BYTES_MAX, FRAME_BYTES_MAX, FRAME_BYTES_MAX].map(Cell::new),
            waits: Cell::new(false),
            room: Notify::new(),
        }
    }

    /// Charges a request that came in a frame of `bytes`.
    ///
    /// # Errors
    /// Another that is in flight has its id, so answers could not be told apart.
    pub(super) fn charge(&self, request: &Request, bytes: usize) -> Result<(), Error> {
        let charge = (bytes + self.answer_bytes(request)).max(SMALL_BYTES);
        if charge > SMALL_BYTES {
            let mut large = self.large.borrow_mut();
            if large.contains_key(&request.id) {
                let message = format!("request.id {} is in flight already", request.id);
                return Err(Error::new(ErrorCode::BadRequest, message));
            }
            large.insert(request.id, charge);
        }
        self.in_flight.set(self.in_flight.get() + 1);
        self.charged.set(self.charged.get() + charge);
        self.budget.charged.set(self.budget.charged.get() + charge);
        Ok(())
    }

    /// The answer of this request is to say who holds the key, if it names one.
    pub(super) fn wants_hint(&self, request: u64, key: Option<&Bytes>) {
        if let Some(key) = key {
            self.hinted.borrow_mut().insert(request, key.clone());
        }
    }

    /// The key about which the answer of this request is to give a hint.
    pub(super) fn take_hinted(&self, request: u64) -> Option<Bytes> {
        let mut hinted = self.hinted.borrow_mut();
        match hinted.is_empty() {
            true => None,
            false => hinted.remove(&request),
        }
    }

    fn answer_bytes(&self, request: &Request) -> usize {
        let command = match &request.body {
            Some(Body::Command(command)) => command,
            Some(Body::Status(asked)) if asked.leases || asked.demand => {
                return self.expected[2].get();
            }
            Some(Body::Lease(_)) => return self.expected[2].get(),
            _ => return 0,
        };
        let parts = match &command.op {
            Some(Op::Get(_)) => return self.expected[0].get(),
            Some(Op::MultiGet(get)) => get.keys.len(),
            Some(Op::Scan(scan)) => scan.limit as usize,
            _ => return 0,
        };
        self.expected[1].get().max(parts * ENTRY_BYTES)
    }

    /// Gives back what the request was charged, and appends its answer.
    pub(super) fn answer(&self, response: &Response) {
        let mut large = self.large.borrow_mut();
        let charge = match large.is_empty() {
            true => None,
            false => large.remove(&response.id),
        };
        self.in_flight.set(self.in_flight.get().saturating_sub(1));
        self.release(charge.unwrap_or(SMALL_BYTES));
        let bytes = self.append(response);
        let result = response.outcome.as_ref().and_then(|o| o.result.as_ref());
        match result {
            Some(outcome::Result::Value(_) | outcome::Result::Missing(_)) => self.learn(0, bytes),
            Some(outcome::Result::Entries(_)) => self.learn(1, bytes),
            _ => {}
        }
        let status = response.status.as_ref();
        if status.is_some_and(|status| status.leases.is_some() || status.demand.is_some()) {
            self.learn(2, bytes);
        }
        if self.waits.get() {
            self.room.notify_one();
        }
    }

    /// Rises at once and falls slowly: an answer that is much larger than expected was
    /// charged too little.
    fn learn(&self, kind: usize, bytes: usize) {
        let expected = &self.expected[kind];
        expected.set(bytes.max(expected.get() / 2));
    }

    fn release(&self, charge: usize) {
        let charge = charge.min(self.charged.get());
        self.charged.set(self.charged.get() - charge);
        self.budget.charged.set(self.budget.charged.get() - charge);
    }

    /// Appends an answer, unless the client has left too much unread: it is given up
    /// then. Returns the bytes appended.
    pub(super) fn append(&self, response: &Response) -> usize {
        if self.outbox.is_broken() {
            return 0;
        }
        let before = self.outbox.pending_bytes();
        if before > self.budget.limits.unread {
            self.give_up();
            return 0;
        }
        let mut buffer = self.outbox.buffer();
        if let Err(error) = encode_response(response, &mut buffer) {
            let error = Error::new(ErrorCode::TooLarge, format!("the answer is a {error}"));
            // A short refusal always fits.
            let _ = encode_response(&Response::refusal(response.id, error), &mut buffer);
        }
        let after = buffer.len();
        drop(buffer);
        self.outbox.account();
        after - before
    }

    /// Closes the connection of a client that does not read, and frees what it left.
    pub(super) fn give_up(&self) {
        let unread = self.outbox.pending_bytes();
        tracing::info!(client = %self.address, unread, "closed: it does not read its answers");
        self.budget.given_up.set(self.budget.given_up.get() + 1);
        self.outbox.abandon();
    }

    /// Whether no request is to be taken from it for now.
    pub(super) fn congested(&self) -> bool {
        let limits = &self.budget.limits;
        let in_flight = self.in_flight.get();
        let charged = self.charged.get() >= limits.charged
            || self.budget.charged.get() >= limits.charged_total;
        in_flight >= limits.in_flight
            || in_flight > 0 && charged
            || self.outbox.pending_bytes() > limits.unread_pause
    }

    /// Waits until requests may be taken again. Returns false without waiting if they may
    /// be taken already.
    pub(super) async fn relieved(&self) -> bool {
        if !self.congested() {
            return false;
        }
        self.budget.paused.set(self.budget.paused.get() + 1);
        self.waits.set(true);
        while self.congested() {
            let _ = tokio::time::timeout(PAUSE, self.room.notified()).await;
        }
        self.waits.set(false);
        true
    }

    /// For a client that sends no more: waits until all its requests are answered and it
    /// has taken the answers, or neither goes on, or the connection is broken.
    pub(super) async fn settled(&self) {
        let settled = async {
            tokio::select! {
                () = self.outbox.drain() => return,
                () = self.answered() => {}
            }
            self.outbox.emptied().await;
        };
        tokio::pin!(settled);
        loop {
            let due = self.due();
            let ended = tokio::time::timeout(STALLED_AFTER, &mut settled).await;
            if ended.is_ok() || self.due() == due {
                return;
            }
        }
    }

    /// Requests not yet answered, and bytes of answers not yet taken.
    fn due(&self) -> (usize, usize) {
        (self.in_flight.get(), self.outbox.pending_bytes())
    }

    async fn answered(&self) {
        self.waits.set(true);
        while self.in_flight.get() > 0 {
            self.room.notified().await;
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.release(self.charged.get());
    }
}

#[cfg(test)]
mod tests {
    use client::wire::{
        Command, Entry, LeaseRange, Leases, Outcome, Path, StatusReply, StatusRequest, Version,
    };
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// A connection, and the client's end of it, which reads nothing.
    async fn connection(id: u64, budget: &Rc<Budget>) -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (client, accepted) = tokio::join!(client, listener.accept());
        let (stream, address) = accepted.unwrap();
        let outbox = Outbox::new(stream.into_split().1, budget.unread.clone());
        let connection = Connection::new(id, address, outbox, budget.clone());
        (connection, client.unwrap())
    }

    fn budget(limits: Limits) -> Rc<Budget> {
        Rc::new(Budget {
            limits,
            ..Budget::default()
        })
    }

    fn request(id: u64, op: Op) -> Request {
        let body = Some(Body::Command(Command::from(op)));
        Request::new(id, body)
    }

    fn found(id: u64, bytes: usize) -> Response {
        let value = vec![7; bytes];
        let outcome = Outcome::value(value, Version::default());
        Response::answer(id, Path::Local, outcome)
    }

    fn scanned(id: u64, bytes: usize) -> Response {
        let entry = Entry {
            value: vec![7; bytes].into(),
            ..Entry::default()
        };
        Response::answer(id, Path::Log, Outcome::entries(vec![entry]))
    }

    /// How many such requests are let in before the connection is not read from.
    fn let_in(connection: &Connection, op: impl Fn() -> Op) -> u64 {
        let mut id = 0;
        while !connection.congested() && id < 1 << 20 {
            id += 1;
            connection.charge(&request(id, op()), 20).unwrap();
        }
        id
    }

    #[tokio::test]
    async fn scans_are_charged_the_most_there_could_be_until_their_answers_are_known() {
        let budget = budget(Limits::default());
        let (fresh, _client) = connection(1, &budget).await;
        assert_eq!(let_in(&fresh, || Op::scan("", "", 10)), 8, "of 4 MiB each");
        for id in 1..=8 {
            fresh.answer(&scanned(id, 100));
        }
        assert_eq!(budget.charged.get(), 0);
        let many = let_in(&fresh, || Op::scan("", "", 10));
        assert!((1000..10_000).contains(&many), "{many}");
        let large = connection(2, &budget).await.0;
        let entries = let_in(&large, || Op::scan("", "", 10_000));
        assert_eq!(entries, 8);
    }

    #[tokio::test]
    async fn who_asks_for_all_ranges_is_charged_what_they_take() {
        let budget = budget(Limits::default());
        let (connection, _client) = connection(1, &budget).await;
        let asked = |id| {
            let asked = StatusRequest {
                leases: true,
                ..StatusRequest::default()
            };
            Request::new(id, Some(Body::Status(asked)))
        };
        let of_ranges = |id, ranges| Response {
            id,
            status: Some(Box::new(StatusReply {
                leases: Some(Leases {
                    ranges: vec![LeaseRange::default(); ranges],
                    ..Leases::default()
                }),
                ..StatusReply::default()
            })),
            ..Response::default()
        };
        let charged = |id| {
            connection.charge(&asked(id), 20).unwrap();
            budget.charged.get()
        };
        assert!(charged(1) >= FRAME_BYTES_MAX, "as much as there could be");
        for id in 2..20 {
            connection.answer(&of_ranges(id - 1, 1));
            connection.charge(&asked(id), 20).unwrap();
        }
        assert_eq!(budget.charged.get(), SMALL_BYTES);
        connection.answer(&of_ranges(19, 500_000));
        let many = charged(20);
        assert!((1_000_000..FRAME_BYTES_MAX).contains(&many), "{many}");
        connection.answer(&of_ranges(20, 1));
        assert_eq!(budget.charged.get(), 0);
    }

    #[tokio::test]
    async fn what_many_entries_take_in_memory_is_charged_however_short_they_are() {
        let budget = budget(Limits::default());
        let (connection, _client) = connection(1, &budget).await;
        for id in 1..100 {
            let scan = request(id, Op::scan("", "", 1));
            connection.charge(&scan, 20).unwrap();
            connection.answer(&scanned(id, 1));
        }
        let many = let_in(&connection, || Op::scan("", "", 10_000));
        assert!(many <= (32 << 20) / (10_000 * 128) + 1, "{many}");
    }

    #[tokio::test]
    async fn short_answers_are_paid_for_by_number_alone() {
        let budget = budget(Limits::default());
        let (connection, _client) = connection(1, &budget).await;
        assert_eq!(let_in(&connection, || Op::get("k")), 32);
        for id in 1..=32 {
            connection.answer(&found(id, 10));
        }
        let many = let_in(&connection, || Op::get("k"));
        assert_eq!(many, (32 << 20) / SMALL_BYTES as u64);
        assert!(connection.large.borrow().is_empty());
    }

    #[tokio::test]
    async fn a_large_request_is_named_once() {
        let budget = budget(Limits::default());
        let (connection, _client) = connection(1, &budget).await;
        let scan = request(7, Op::scan("", "", 10));
        connection.charge(&scan, 20).unwrap();
        assert!(connection.charge(&scan, 20).is_err());
        connection.answer(&scanned(7, 1));
        connection.charge(&scan, 20).unwrap();
    }

    #[tokio::test]
    async fn all_together_are_bounded_and_one_request_of_each_is_let_in() {
        let budget = budget(Limits {
            charged_total: 8 << 20,
            ..Limits::default()
        });
        let (first, _one) = connection(1, &budget).await;
        let (second, _two) = connection(2, &budget).await;
        let scan = || Op::scan("", "", 10);
        assert_eq!(let_in(&first, scan), 2);
        let status = Request::new(1, None);
        assert!(!second.congested(), "it has nothing in flight");
        second.charge(&status, 4).unwrap();
        assert!(second.congested());
        drop(first);
        assert!(!second.congested(), "what has left is charged no more");
        second.answer(&found(1, 1));
        assert_eq!(budget.charged.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_sends_no_more_is_waited_for_while_its_answers_come() {
        let budget = budget(Limits::default());
        let (connection, _client) = connection(1, &budget).await;
        for id in 1..=2 {
            connection.charge(&request(id, Op::get("k")), 20).unwrap();
        }
        let settled = connection.settled();
        tokio::pin!(settled);
        for id in 1..=2 {
            let almost = STALLED_AFTER * 2 / 3;
            let early = tokio::time::timeout(almost, &mut settled).await;
            assert!(early.is_err(), "{id} is due");
            connection.answer(&found(id, 1));
        }
        let begun = tokio::time::Instant::now();
        settled.await;
        assert!(begun.elapsed() < STALLED_AFTER, "nothing is due");
        assert_eq!(connection.due(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn who_sends_no_more_is_not_waited_for_without_end() {
        let budget = budget(Limits::default());
        let (unanswered, _one) = connection(1, &budget).await;
        unanswered.charge(&request(1, Op::get("k")), 20).unwrap();
        unanswered.settled().await;
        let (unread, _two) = connection(2, &budget).await;
        (1..=20).for_each(|id| _ = unread.append(&found(id, 1 << 20)));
        unread.settled().await;
        assert!(unread.outbox.pending_bytes() > 0);
    }

    #[tokio::test]
    async fn nothing_is_encoded_for_a_client_that_has_left_too_much() {
        let budget = budget(Limits {
            unread: 10_000,
            ..Limits::default()
        });
        let (connection, _client) = connection(1, &budget).await;
        for id in 1..100 {
            connection.append(&found(id, 1000));
        }
        assert_eq!(budget.given_up.get(), 1);
        assert_eq!(budget.unread.now(), 0, "what it left is freed");
        assert!(budget.unread.most() <= 12_000);
        assert!(connection.outbox.is_broken());
    }
}
