//! The clients' port.
//!
//! A client can harm only its own connection. The length of a frame is checked before memory is
//! allocated for it. Commands are validated before the replica receives them. Requests in flight
//! and unread answers are bounded ([`connection`]).
//!
//! [`connection`]: crate::front::connection

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use foldhash::fast::FixedState;
use leasehold_leases::Incarnation;
use leasehold_wire::request::Body;
use leasehold_wire::{
    DecodedRequest, Error, ErrorCode, FRAME_BYTES_MAX, FrameError, Hello, Hint, KEY_BYTES_MAX,
    MAGIC, NAME_BYTES_MAX, Outcome, Path, ReadOp, Response, StatusReply, VALUE_BYTES_MAX, Welcome,
    decode_request, encode_frame, validate_body,
};
use prost::Message as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout_at};

use crate::config::Limits;
use crate::front::access::Access;
use crate::front::admission::addresses::{AddressLimiter, AddressSlot};
use crate::front::admission::fd_budget::{ConnectionSlot, ConnectionSlots, REJECTIONS_MAX};
use crate::front::admission::large_answers::LargeAnswers;
use crate::front::connection::{Account, Budget, Connection};
use crate::front::frames::Frames;
use crate::front::inbox::Inbox;
use crate::front::outbox::Outbox;
use crate::security::halves;
use crate::security::handshakes::{EstablishedStream, Handshakes, Side};
use crate::sockets;
use leasehold_replica::action::ClientHandle;
use leasehold_replica::cost;
use leasehold_replica::input::Input;

/// Number of bytes that are requested from a client's socket at a time.
pub(crate) const READ_BYTES: usize = 16 << 10;
/// Maximum time for a new connection to send its hello. The time includes the TLS handshake.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum length of a hello, in bytes. It is small because any machine may send a hello.
const HELLO_BYTES_MAX: usize = 4 << 10;
/// Idle time after which the kernel sends keepalive probes to a client.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Cost of closing a connection, in units of [`leasehold_replica::cost`].
const END_WORK: usize = 16 << 10;
/// Time for a refused client to read the reason for the refusal.
const LINGER: Duration = Duration::from_secs(1);

/// Names of the cluster and of its replicas. They are sent to clients.
#[derive(Debug)]
pub(crate) struct ClusterNames {
    /// Name of the cluster.
    pub(crate) cluster: String,
    /// Name of this replica.
    pub(crate) replica: String,
    /// Names of all replicas, in ascending order of their ids.
    pub(crate) replicas: Vec<String>,
}

/// All connections of clients.
#[derive(Debug)]
pub(crate) struct Clients {
    names: ClusterNames,
    incarnation: Incarnation,
    inbox: Rc<Inbox>,
    pub(crate) connections: RefCell<HashMap<u64, Rc<Connection>, FixedState>>,
    /// Accounts of closed connections with requests that the replica has not answered yet.
    disconnected: RefCell<HashMap<u64, Rc<Account>, FixedState>>,
    last_id: Cell<u64>,
    log_time_ms: Cell<u64>,
    large_answers: RefCell<LargeAnswers>,
    /// Connections with answers that are not written yet.
    dirty: RefCell<Vec<Rc<Connection>>>,
    pub(crate) budget: Rc<Budget>,
    pub(crate) slots: ConnectionSlots,
    pub(crate) addresses: AddressLimiter,
    handshakes: Rc<Handshakes>,
    /// Slots for refused clients while they receive the reason for the refusal.
    rejection_slots: ConnectionSlots,
    /// Rights of each token; `None` if every client may do everything.
    pub(crate) access: Option<Rc<Access>>,
}

impl Clients {
    pub(crate) fn new(
        names: ClusterNames,
        incarnation: Incarnation,
        inbox: Rc<Inbox>,
        limits: Limits,
        max: usize,
    ) -> Clients {
        Clients {
            names,
            incarnation,
            inbox,
            connections: RefCell::default(),
            disconnected: RefCell::default(),
            last_id: Cell::new(0),
            log_time_ms: Cell::new(0),
            large_answers: RefCell::new(LargeAnswers::new(limits.in_flight_bytes)),
            dirty: RefCell::default(),
            slots: ConnectionSlots::new(limits.clients(max)),
            addresses: AddressLimiter::new(limits.clients_per_address(max)),
            budget: Rc::new(Budget::new(limits)),
            handshakes: Rc::new(Handshakes::none()),
            rejection_slots: ConnectionSlots::new(REJECTIONS_MAX),
            access: None,
        }
    }

    /// Sets the TLS handshakes, and thus the certificates, for the clients' port.
    pub(crate) fn with_handshakes(mut self, handshakes: Rc<Handshakes>) -> Clients {
        self.handshakes = handshakes;
        self
    }

    /// Sets the log time, in ms, that the node reports on new connections. Clients need the log
    /// time to open sessions.
    pub(crate) fn set_log_time(&self, log_time_ms: u64) {
        self.log_time_ms.set(log_time_ms);
    }

    /// Returns the number of connections of clients.
    pub(crate) fn len(&self) -> usize {
        self.connections.borrow().len()
    }

    /// Returns the same numbers as [`Inbox::large_writes`].
    pub(crate) fn large_writes(&self) -> (usize, u64) {
        self.inbox.large_writes()
    }

    /// Accepts connections of clients for as long as the future is polled.
    pub(crate) async fn accept(self: Rc<Self>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, address)) => match self.claim_slots(address) {
                    Ok((slot, of_address)) => {
                        let served = self.clone().serve(stream, address, slot, of_address);
                        tokio::task::spawn_local(served);
                    }
                    Err(why) => self.reject(stream, address, why),
                },
                Err(error) => {
                    tracing::warn!(%error, "a client's connection cannot be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Appends the answer to a request, with a hint about a key if the client requested a hint.
    /// [`Clients::flush`] sends the answer. If the client has disconnected, the answer is dropped.
    pub(crate) fn reply(
        &self,
        to: ClientHandle,
        path: Path,
        outcome: Outcome,
        hint: impl FnOnce(&[u8]) -> Hint,
    ) {
        self.respond(to, Response::answer(to.request, path, outcome), hint);
    }

    /// Appends a refusal of a request.
    pub(crate) fn refuse(&self, to: ClientHandle, refusal: Error) {
        let refusal = Response::refusal(to.request, refusal);
        self.respond(to, refusal, |_| Hint::default());
    }

    /// Appends the answer to a request for the status.
    pub(crate) fn reply_status(&self, to: ClientHandle, status: StatusReply) {
        let status = Response::status(to.request, status);
        self.respond(to, status, |_| Hint::default());
    }

    fn respond(&self, to: ClientHandle, mut response: Response, hint: impl FnOnce(&[u8]) -> Hint) {
        let connections = self.connections.borrow();
        let Some(connection) = connections.get(&to.connection) else {
            return self.release_disconnected(to);
        };
        response.hint = connection.take_hint_key(response.id).map(|key| hint(&key));
        let admitted = self
            .large_answers
            .borrow_mut()
            .admit(connection.id, response);
        if let Some(response) = admitted {
            self.append(connection, &response);
        }
    }

    /// Begins an event-loop iteration. Appends waiting answers, up to the limit of one iteration.
    pub(crate) fn begin_iteration(&self) {
        self.large_answers.borrow_mut().begin_iteration();
        loop {
            // Nothing else is borrowed while the answer is appended.
            let next = self.large_answers.borrow_mut().pop();
            let Some((connection, response)) = next else {
                return;
            };
            let found = self.connections.borrow().get(&connection).cloned();
            match found {
                Some(connection) => self.append(&connection, &response),
                None => self.release_disconnected(ClientHandle {
                    connection,
                    request: response.id,
                }),
            }
        }
    }

    /// Returns true if there are answers that wait for the next event-loop iteration.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.large_answers.borrow().is_empty()
    }

    fn append(&self, connection: &Rc<Connection>, response: &Response) {
        let charge = connection.account().release(response.id);
        self.inbox.answered(charge, !response.is_error());
        connection.answer(response);
        if !connection.dirty.replace(true) {
            self.dirty.borrow_mut().push(connection.clone());
        }
        if self.budget.unread.now() > self.budget.limits.unread_bytes {
            let connections = self.connections.borrow();
            let most = connections
                .values()
                .max_by_key(|c| c.outbox.pending_bytes());
            most.inspect(|most| most.abandon());
        }
    }

    /// Releases the charge of a finished request if its client has disconnected.
    fn release_disconnected(&self, to: ClientHandle) {
        let mut disconnected = self.disconnected.borrow_mut();
        let Some(account) = disconnected.get(&to.connection) else {
            return;
        };
        self.inbox.answered(account.release(to.request), false);
        if account.in_flight() == 0 {
            disconnected.remove(&to.connection);
        }
    }

    /// Removes a connection. Unfinished requests of the connection stay recorded. The replica is
    /// notified of the disconnection after it has received the connection's last command.
    fn remove(&self, connection: &Connection) {
        self.connections.borrow_mut().remove(&connection.id);
        let account = connection.account();
        // Answers that no client will read are not encoded.
        for response in self.large_answers.borrow_mut().forget(connection.id) {
            self.inbox.answered(account.release(response.id), false);
        }
        // Large writes that the replica does not have yet are not written.
        for request in self.inbox.forget_large_writes(connection.id) {
            account.release(request);
        }
        if account.in_flight() > 0 {
            account.client_disconnected();
            self.disconnected
                .borrow_mut()
                .insert(connection.id, account);
            let connection = connection.id;
            self.inbox
                .push_client(Input::ClientDisconnected { connection }, 0);
            self.inbox.wake();
        }
    }

    /// Writes all appended answers, with one write for each connection.
    pub(crate) fn flush(&self) {
        for connection in self.dirty.borrow_mut().drain(..) {
            connection.dirty.set(false);
            connection.outbox.flush();
        }
    }

    /// Refuses a connection. Usually sends the client the reason. Sends nothing if too many other
    /// refused clients are receiving their reasons at the same time.
    fn reject(self: &Rc<Self>, stream: TcpStream, address: SocketAddr, why: String) {
        let Some(slot) = self.rejection_slots.take() else {
            return;
        };
        let clients = self.clone();
        tokio::task::spawn_local(async move {
            let until = Instant::now() + HELLO_TIMEOUT;
            let established = clients
                .handshakes
                .perform(stream, Side::Client, until)
                .await;
            if let Ok(established) = established {
                let (connection, mut frames) = clients.connect(established, address);
                let refusal = Error::new(ErrorCode::Unavailable, why);
                send_rejection(&connection, &mut frames, refusal).await;
            }
            drop(slot);
        });
    }

    fn connect(
        &self,
        established: EstablishedStream,
        address: SocketAddr,
    ) -> (Rc<Connection>, Frames) {
        // A connection that refuses an option is as good as broken.
        let _ = established.stream.set_nodelay(true);
        let _ = sockets::enable_keepalive(&established.stream, KEEPALIVE_IDLE);
        let (reader, writer) = halves::split(established);
        let reader = reader.round_robin(self.inbox.clone());
        let id = self.last_id.get() + 1;
        self.last_id.set(id);
        let outbox = Outbox::new(writer, self.budget.unread.clone());
        let connection = Connection::new(id, address, outbox, self.budget.clone());
        (Rc::new(connection), Frames::new(reader, READ_BYTES))
    }

    async fn serve(
        self: Rc<Self>,
        stream: TcpStream,
        address: SocketAddr,
        _slot: ConnectionSlot,
        _of_address: AddressSlot,
    ) {
        let until = Instant::now() + HELLO_TIMEOUT;
        let established = match self.handshakes.perform(stream, Side::Client, until).await {
            Ok(established) => established,
            Err(problem) => {
                tracing::debug!(client = %address, problem, "the handshake failed");
                return;
            }
        };
        let (connection, mut frames) = self.connect(established, address);
        let id = connection.id;
        self.connections.borrow_mut().insert(id, connection.clone());
        let ended = self.run_connection(&connection, &mut frames, until).await;
        // The driver still handles the requests that came before the end.
        self.inbox.wake();
        self.remove(&connection);
        // Thousands of connections may end at the same time.
        self.inbox.acquire_read_units(END_WORK).await;
        if let Err(refusal) = ended {
            if let Some(untold) = self.budget.close_log.due(std::time::Instant::now()) {
                tracing::info!(client = %address, reason = refusal.message, untold, "the connection is closed");
            }
            send_rejection(&connection, &mut frames, refusal).await;
        }
    }

    /// Serves a connection until it closes or violates the protocol. A client may end its stream of
    /// requests and still receive the answers to its earlier requests.
    async fn run_connection(
        &self,
        connection: &Connection,
        frames: &mut Frames,
        until: Instant,
    ) -> Result<(), Error> {
        let Some(hello) = read_hello(frames, until).await? else {
            return Ok(());
        };
        self.check(connection, &hello)?;
        self.welcome(connection);
        if self.take_requests(connection, frames).await? {
            connection.wait_until_drained().await;
        }
        Ok(())
    }

    /// Takes requests from a connection. Returns true when the client has ended its stream of
    /// requests, and false when the connection has broken.
    async fn take_requests(
        &self,
        connection: &Connection,
        frames: &mut Frames,
    ) -> Result<bool, Error> {
        let drained = connection.outbox.drain();
        tokio::pin!(drained);
        // Units of the requests taken, beyond the bytes that were read for them.
        let mut beyond = 0;
        loop {
            // Whole frames may remain in the buffer: they wait for capacity, and not for more
            // bytes.
            let mut waits_for_capacity = true;
            while !connection.is_congested() {
                let next = frames.next().map_err(|error| bad(error.to_string()))?;
                let Some(frame) = next else {
                    waits_for_capacity = false;
                    break;
                };
                connection.note_frame();
                if beyond >= READ_BYTES {
                    self.inbox
                        .acquire_read_units(std::mem::take(&mut beyond))
                        .await;
                }
                if frame.len() > READ_BYTES {
                    // Each of many connections may hold back the last bytes of a long frame.
                    // Decoding these frames takes longer than reading their last bytes.
                    self.inbox.acquire_read_units(frame.len()).await;
                }
                let bytes = frame.len();
                let outcome = self.request(connection, frame)?;
                beyond += outcome.units.saturating_sub(bytes);
                // An answer is longer than a request that may be refused, and thousands of refusals
                // may follow.
                if outcome.is_refused && connection.outbox.pending_bytes() >= READ_BYTES {
                    connection.outbox.flush();
                }
            }
            self.track_partial_frame(connection, frames);
            self.inbox.wake();
            connection.outbox.flush();
            if beyond > 0 {
                self.inbox
                    .acquire_read_units(std::mem::take(&mut beyond))
                    .await;
                // Answers may have left meanwhile, so more requests can be taken even if no more
                // bytes come.
                continue;
            }
            tokio::select! {
                biased; // which saves a random number
                () = &mut drained => return connection.take_close_reason().map_or(Ok(false), Err),
                next = self.next_bytes(connection, frames, waits_for_capacity) => match next {
                    Ok(true) => {}
                    Ok(false) => return Ok(true),
                    Err(_) => return Ok(false),
                }
            }
        }
    }

    /// Waits until more requests can be taken. Returns false if the client has ended its stream of
    /// requests.
    ///
    /// If the connection had no capacity before, waits only for capacity, and reads no bytes. In
    /// this case the next request may already be complete in the buffer, and further bytes might
    /// never arrive.
    async fn next_bytes(
        &self,
        connection: &Connection,
        frames: &mut Frames,
        waits_for_capacity: bool,
    ) -> io::Result<bool> {
        if connection.wait_for_capacity().await || waits_for_capacity {
            return Ok(true);
        }
        Ok(frames.fill().await? > 0)
    }

    /// Checks a hello. The error reply quotes only what the client itself has sent, because the
    /// client may be any machine.
    fn check(&self, connection: &Connection, hello: &Hello) -> Result<(), Error> {
        if hello.magic != MAGIC {
            return Err(bad(format!(
                "hello.magic is {:#010x}, which is no version of the protocol that this replica speaks",
                hello.magic
            )));
        }
        if let Some(access) = &self.access {
            access.admit(&connection.auth, &hello.token)?;
        }
        if !hello.cluster.is_empty() && hello.cluster != self.names.cluster {
            let requested: String = hello.cluster.chars().take(NAME_BYTES_MAX).collect();
            let message =
                format!("hello.cluster is {requested:?}, this replica is of another cluster");
            return Err(Error::new(ErrorCode::WrongCluster, message));
        }
        Ok(())
    }

    fn welcome(&self, connection: &Connection) {
        let welcome = Welcome {
            cluster: self.names.cluster.clone(),
            replica: self.names.replica.clone(),
            incarnation: self.incarnation.0,
            key_bytes_max: KEY_BYTES_MAX as u32,
            value_bytes_max: VALUE_BYTES_MAX as u32,
            frame_bytes_max: FRAME_BYTES_MAX as u32,
            log_time_ms: self.log_time_ms.get(),
            replicas: self.names.replicas.clone(),
        };
        // Names are short, so the frame fits.
        let _ = encode_frame(&welcome, &mut connection.outbox.buffer());
        connection.outbox.flush();
    }

    /// Passes a request to the replica, or answers it with a refusal.
    fn request(&self, connection: &Connection, frame: Bytes) -> Result<RequestOutcome, Error> {
        let bytes = frame.len();
        let refused = RequestOutcome {
            units: cost::of(cost::Request::Refused(bytes)).units(),
            is_refused: true,
        };
        let frame = connection.compact(frame);
        let request = match decode_request(frame).map_err(|error| malformed(&error))? {
            DecodedRequest::Request(request) => request,
            DecodedRequest::Refused { id, error } => {
                connection.append(&Response::refusal(id, error));
                return Ok(refused);
            }
        };
        let body = request.body.as_ref();
        let checked = validate_body(body).and_then(|()| self.allow(connection, body));
        let cost = match checked.and_then(|()| connection.charge(&request, bytes)) {
            Ok(cost) => cost,
            Err(refusal) => {
                connection.append(&Response::refusal(request.id, refusal));
                return Ok(refused);
            }
        };
        let from = ClientHandle {
            connection: connection.id,
            request: request.id,
        };
        match request.body {
            Some(Body::Command(command)) => {
                let is_get = matches!(command.as_read(), Some(ReadOp::Get(_)));
                let command = if !is_get && bytes <= READ_BYTES {
                    // The log keeps the command for other replicas, but it need not keep the whole
                    // buffer.
                    command.in_own_memory()
                } else {
                    command
                };
                if request.hint {
                    connection.request_hint(request.id, command.keys().next());
                }
                let input = Input::Client { from, command };
                if cost.is_large_write {
                    self.inbox
                        .push_large_write(connection.id, input, cost.units)
                } else {
                    self.inbox.push_client(input, cost.units)
                }
            }
            Some(Body::Status(request)) => self.inbox.push_status(from, request),
            Some(Body::Move(request)) => self.inbox.push_transfer(from, request),
            Some(Body::Lease(request)) => self.inbox.push_lease(from, request),
            None => {}
        }
        Ok(RequestOutcome {
            units: cost.units,
            is_refused: false,
        })
    }
}

/// Outcome of a request that was read from a connection.
#[derive(Clone, Copy, Debug)]
struct RequestOutcome {
    /// Cost in units of [`leasehold_replica::cost`].
    units: usize,
    /// Whether the node refused the request. The replica never receives a refused request.
    is_refused: bool,
}

/// Reads the first message of a new connection; `None` if the connection closes before the message
/// has arrived.
async fn read_hello(frames: &mut Frames, until: Instant) -> Result<Option<Hello>, Error> {
    match timeout_at(until, frames.wait_at_most(HELLO_BYTES_MAX)).await {
        Err(_) => Err(bad("no hello came")),
        Ok(Ok(Some(frame))) => match Hello::decode(frame) {
            Ok(hello) => Ok(Some(hello)),
            Err(error) => Err(malformed(&error)),
        },
        Ok(Ok(None) | Err(FrameError::Io(_))) => Ok(None),
        Ok(Err(error)) => Err(bad(error.to_string())),
    }
}

/// Sends a client the reason why its connection is closed. Then waits for [`LINGER`], so that the
/// client can read the reason.
async fn send_rejection(connection: &Connection, frames: &mut Frames, refusal: Error) {
    connection.append(&Response::refusal(0, refusal));
    let delivered = async {
        connection.outbox.wait_until_empty().await;
        connection.outbox.shutdown_write();
        // If the connection were closed with bytes unread, the answer would be lost.
        frames.discard().await;
    };
    let _ = tokio::time::timeout(LINGER, delivered).await;
}

fn bad(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::BadRequest, message)
}

fn malformed(error: &prost::DecodeError) -> Error {
    bad(format!("malformed message: {error}"))
}
