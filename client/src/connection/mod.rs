//! The connection to one replica: a table of calls that wait for an answer, and the state of the
//! connection. A task for each connection (see `replicas`) owns the socket, writes the calls in the
//! table to the socket, and connects again when the connection breaks.
//!
//! A call that is dropped leaves the table immediately, whether or not it was sent. So a caller can
//! abandon a call at any moment. Every call has a higher id than the calls before it. Calls with an
//! id of `unsent_from` or above have not been written yet. When the socket is free, all these calls
//! leave in one write.

mod call;
mod connect;
mod traffic;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::options::{LivenessChange, ReplicaChange, Watcher};
use leasehold_backoff::FlapBackoff;
use leasehold_wire::{ErrorCode, Response, Welcome, outcome, request};

pub(crate) use call::Call;
pub(crate) use connect::{Link, LinkError, connect};
pub(crate) use traffic::ConnectionEnd;

/// Reason why a call has no response.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CallError {
    /// The connection on which the call was sent has ended. The call may be sent again.
    Lost(String),
    /// No connection could be made, so this call has not been sent.
    Unreachable(String),
    /// The replica refuses this client, so this call has not been sent.
    Refused(leasehold_wire::Error),
    /// The client has been closed, so no call is sent any more.
    Closed,
}

/// State of a connection.
#[derive(Debug, Clone)]
pub(crate) enum ConnectionState {
    /// There is no connection, because none was needed.
    Idle,
    /// The connection is being made; calls wait for it.
    Connecting,
    Up,
    /// The replica does not serve, and is probed in the background.
    Dead(DeadReplica),
}

#[derive(Debug, Clone)]
pub(crate) struct DeadReplica {
    pub since: Instant,
    /// The latest reason why the replica is dead.
    pub reason: String,
    /// Whether the replica sends greetings again, but must not be used yet. Either the replica has
    /// not answered a request yet, or it has been answering requests for too short a time.
    pub greeted: bool,
    /// Refusal of this client's token, if the replica answered the last greeting with a refusal;
    /// otherwise `None`.
    pub refusal: Option<leasehold_wire::Error>,
}

struct PendingCall {
    /// Body of the request; `None` once it is written.
    body: Option<request::Body>,
    /// Whether to request a hint.
    hint: bool,
    reply: oneshot::Sender<Result<Response, CallError>>,
}

struct CallTable {
    calls: BTreeMap<u64, PendingCall>,
    /// Id of the next call. Id 0 denotes the connection itself.
    next_id: u64,
    /// Calls with this id or a higher one have not been written to the current connection.
    unsent_from: u64,
    state: ConnectionState,
    /// Greeting that the replica sent on the latest connection.
    welcome: Option<Welcome>,
    /// Name of the replica in `welcome`.
    replica: Option<Arc<str>>,
    /// Number by which hints name the replica; `None` if the number is not known.
    number: Option<u32>,
    /// Shortest round trip that was measured since the connection was made.
    distance: Duration,
    /// Reason why the connection is to be abandoned.
    suspicion: String,
    /// Time at which data last arrived from the server.
    last_heard: Instant,
    /// Back-off of the replica. The replica must wait before its next use, if it died soon after
    /// the client had begun to use it again.
    backoff: FlapBackoff,
    closed: bool,
}

/// Tasks and callbacks to notify when the state of a connection changes.
#[derive(Default)]
pub(crate) struct ChangeNotifier {
    pub changed: Notify,
    pub watcher: Watcher,
}

/// A replica that may be chosen for a request, with the facts on which the choice depends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    /// Number by which hints name the replica. It is below 64.
    pub number: u32,
    /// Shortest measured round trip; `Duration::MAX` if none was measured.
    pub distance: Duration,
    /// Number of calls under way.
    pub calls: usize,
    /// Number of calls under way that have not been written to the connection yet.
    pub unsent: u64,
}

/// State shared by the callers and the task of a connection.
pub(crate) struct Connection {
    pub address: String,
    notifier: Arc<ChangeNotifier>,
    /// Moment from which the back-off measures time.
    began: Instant,
    table: Mutex<CallTable>,
    /// Notified when a call is queued, or when a connection is requested.
    queued: Notify,
    /// Notified when the connection is to be abandoned.
    suspected: Notify,
    /// Notified when the last call has ended.
    emptied: Notify,
    /// Number of missed reads, and number of missed writes. A request is missed if this replica
    /// left it unanswered, but another replica answered it. An answer of this replica to a read
    /// resets the number of missed reads. An answer to a write resets the number of missed writes.
    missed: [AtomicU32; 2],
}

/// Limit for the number of missed reads, and for the number of missed writes (see `missed`). At
/// this limit, the client assumes that the replica answers no reads (or no writes) any more. Reads
/// and writes are counted separately, because a replica may still serve reads when its writes do
/// not reach the leader.
const MISSED_MAX: u32 = 3;

impl Connection {
    /// Creates the connection of a replica to which nothing has been sent yet.
    pub fn new(address: String, notifier: Arc<ChangeNotifier>) -> Connection {
        let table = CallTable {
            calls: BTreeMap::new(),
            next_id: 1,
            unsent_from: 1,
            state: ConnectionState::Idle,
            welcome: None,
            replica: None,
            number: None,
            distance: Duration::MAX,
            suspicion: String::new(),
            last_heard: Instant::now(),
            backoff: FlapBackoff::new(Duration::ZERO),
            closed: false,
        };
        Connection {
            address,
            notifier,
            began: Instant::now(),
            table: Mutex::new(table),
            queued: Notify::new(),
            suspected: Notify::new(),
            emptied: Notify::new(),
            missed: Default::default(),
        }
    }

    fn table(&self) -> MutexGuard<'_, CallTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn state(&self) -> ConnectionState {
        self.table().state.clone()
    }

    pub fn is_up(&self) -> bool {
        matches!(self.table().state, ConnectionState::Up)
    }

    /// Whether the replica may serve. This is true if the replica is not known to be dead.
    pub fn may_serve(&self) -> bool {
        !matches!(self.table().state, ConnectionState::Dead(_))
    }

    /// Returns the error with which the replica refuses this client's token; `None` if the token
    /// was not refused.
    pub fn refusal(&self) -> Option<leasehold_wire::Error> {
        match &self.table().state {
            ConnectionState::Dead(dead) => dead.refusal.clone(),
            _ => None,
        }
    }

    /// Returns true if the replica sends greetings again, but must not be used yet. Either the
    /// replica has not answered a request yet, or it has been answering requests for too short a
    /// time.
    pub fn is_greeted(&self) -> bool {
        matches!(&self.table().state, ConnectionState::Dead(dead) if dead.greeted)
    }

    /// Returns the greeting that the replica sent when the connection was last made.
    pub fn welcome(&self) -> Option<Welcome> {
        self.table().welcome.clone()
    }

    /// Returns the name of the replica; `None` if no greeting has arrived yet.
    pub fn replica(&self) -> Option<Arc<str>> {
        self.table().replica.clone()
    }

    /// Returns the time at which data last arrived from the replica.
    pub fn last_heard(&self) -> Instant {
        self.table().last_heard
    }

    /// Queues a request. If `hint` is set, the request also asks for a hint. The flag `sent` is set
    /// when the call is dropped, if the request may have reached the server by then.
    pub fn enqueue<'a>(
        &'a self,
        body: request::Body,
        hint: bool,
        sent: &'a AtomicBool,
    ) -> Result<Call<'a>, CallError> {
        let (sender, reply) = oneshot::channel();
        let mut table = self.table();
        if table.closed {
            return Err(CallError::Closed);
        }
        let id = table.next_id;
        table.next_id += 1;
        let pending = PendingCall {
            body: Some(body),
            hint,
            reply: sender,
        };
        table.calls.insert(id, pending);
        if matches!(table.state, ConnectionState::Idle) {
            table.state = ConnectionState::Connecting;
        }
        drop(table);
        self.queued.notify_one();
        Ok(Call {
            connection: self,
            id,
            reply,
            sent,
            never_left: false,
            requested_at: Instant::now(),
        })
    }

    /// Records that the replica has answered a request: a write if `is_write` is set, otherwise a
    /// read.
    pub fn reset_missed(&self, is_write: bool) {
        self.missed[usize::from(is_write)].store(0, Ordering::Relaxed);
    }

    /// Records that another replica has answered a request that this replica left unanswered. The
    /// request is a write if `is_write` is set, otherwise a read. Returns whether the caller must
    /// suspect this replica. Slow answers alone are no reason for suspicion.
    pub fn record_missed(&self, is_write: bool, requested_at: Instant) -> bool {
        let missed = &self.missed[usize::from(is_write)];
        let often = missed.fetch_add(1, Ordering::Relaxed) + 1 >= MISSED_MAX;
        let suspected = often || self.last_heard() <= requested_at;
        if suspected {
            missed.store(0, Ordering::Relaxed);
        }
        suspected
    }

    /// Abandons the present connection and fails the calls that were sent on it. The suspicion does
    /// not affect the next connection.
    pub fn suspect(&self, reason: String) {
        self.table().suspicion = reason;
        self.suspected.notify_waiters();
    }

    /// Calls [`Connection::suspect`] if the server has been silent for `silence`. This check is
    /// necessary because TCP alone may need minutes to notice a failure.
    pub fn suspect_silence(&self, silence: Duration) {
        if self.last_heard().elapsed() >= silence {
            self.suspect("the server is silent".to_owned());
        }
    }

    /// Ends all calls and refuses new ones.
    pub fn close(&self) {
        let mut table = self.table();
        table.closed = true;
        table.calls.clear();
    }

    /// Returns the number of calls in the table.
    pub fn calls(&self) -> usize {
        self.table().calls.len()
    }

    /// Returns this replica as a candidate for a request; `None` if the replica does not serve, or
    /// if its number is not known.
    pub fn candidate(&self) -> Option<Candidate> {
        let table = self.table();
        let number = table
            .number
            .filter(|_| matches!(table.state, ConnectionState::Up))?;
        Some(Candidate {
            number,
            distance: table.distance,
            calls: table.calls.len(),
            unsent: table.next_id - table.unsent_from,
        })
    }

    /// Records a measured round trip to the replica.
    pub fn record_round_trip(&self, round_trip: Duration) {
        let mut table = self.table();
        table.distance = table.distance.min(round_trip);
    }

    /// Requests a connection although no call waits for it.
    pub fn request_connection(&self) {
        let mut table = self.table();
        if matches!(table.state, ConnectionState::Idle) {
            table.state = ConnectionState::Connecting;
        }
        drop(table);
        self.queued.notify_one();
    }

    /// Waits until a connection is needed.
    pub async fn wait_until_needed(&self) {
        while matches!(self.table().state, ConnectionState::Idle) {
            self.queued.notified().await;
        }
    }

    /// Records that a connection has been made. If the replica was dead and `must_prove` is set,
    /// the replica must first answer a probe before it is used. The caller sets `must_prove` if the
    /// client has several replicas.
    pub fn connected(&self, welcome: &Welcome, must_prove: bool) {
        let mut table = self.table();
        table.welcome = Some(welcome.clone());
        table.replica = Some(welcome.replica.as_str().into());
        table.number = number(welcome);
        table.distance = Duration::MAX;
        table.last_heard = Instant::now();
        let mut was = None;
        match &mut table.state {
            ConnectionState::Dead(dead) if must_prove => {
                dead.greeted = true;
                dead.refusal = None;
                let now = self.began.elapsed();
                table.backoff.interrupted(now, now);
            }
            ConnectionState::Dead(_) => was = table.revive(self.began),
            state => *state = ConnectionState::Up,
        }
        drop(table);
        self.queued.notify_one();
        self.notifier.changed.notify_waiters();
        if let Some(since) = was {
            self.notify_return(since);
        }
    }

    fn notify_return(&self, since: Instant) {
        let after = since.elapsed();
        self.notify(LivenessChange::Back { after });
    }

    fn notify(&self, liveness: LivenessChange) {
        self.notifier.watcher.notify(&ReplicaChange {
            address: self.address.clone(),
            replica: self.replica(),
            liveness,
        });
    }

    fn answer(&self, response: Response) {
        let mut table = self.table();
        table.last_heard = Instant::now();
        let pending = table.calls.remove(&response.id);
        let mut was = None;
        let is_due = || table.backoff.may_return(self.began.elapsed());
        if matches!(table.state, ConnectionState::Dead(_)) && serves(&response) && is_due() {
            was = table.revive(self.began);
        }
        let is_empty = table.calls.is_empty();
        drop(table);
        // If the call is absent, its caller has abandoned it.
        if let Some(pending) = pending {
            let _ = pending.reply.send(Ok(response));
        }
        if is_empty {
            self.emptied.notify_one();
        }
        if let Some(since) = was {
            self.announce_return(since);
        }
    }

    /// Makes a dead replica usable before its back-off is over. The method is called if this
    /// replica serves and no other replica does.
    pub fn return_early(&self) {
        let was = self.table().revive(self.began);
        if let Some(since) = was {
            self.announce_return(since);
        }
    }

    fn announce_return(&self, since: Instant) {
        self.notifier.changed.notify_waiters();
        self.notify_return(since);
    }

    /// Records that the connection has broken, and that another connection will be made. Calls that
    /// were sent on the broken connection are lost. All other calls will be sent on the next
    /// connection.
    pub fn broken(&self, reason: &str) {
        let mut table = self.table();
        table.state = ConnectionState::Connecting;
        let sent = table.take_sent();
        drop(table);
        fail(sent, &CallError::Lost(reason.to_owned()));
    }

    /// Records that no connection to the replica can be made, or that the replica does not serve.
    /// Fails the calls that wait for the replica.
    pub fn died(&self, reason: &str) {
        self.mark_dead(reason, None);
    }

    /// Records that the replica refuses this client's token. Fails the calls that wait for the
    /// replica, because another attempt with the same token would not help.
    pub fn refused(&self, refusal: leasehold_wire::Error) {
        let reason = refusal.message.clone();
        self.mark_dead(&reason, Some(refusal));
    }

    fn mark_dead(&self, reason: &str, refusal: Option<leasehold_wire::Error>) {
        let mut table = self.table();
        let since = match &table.state {
            ConnectionState::Dead(dead) => Some(dead.since),
            _ => None,
        };
        let now = self.began.elapsed();
        match since {
            Some(_) => table.backoff.interrupted(now, now),
            None => table.backoff.failed(now),
        }
        table.state = ConnectionState::Dead(DeadReplica {
            since: since.unwrap_or_else(Instant::now),
            reason: reason.to_owned(),
            greeted: false,
            refusal: refusal.clone(),
        });
        let sent = table.take_sent();
        let unsent = std::mem::take(&mut table.calls);
        drop(table);
        if since.is_none() {
            let reason = reason.to_owned();
            self.notify(LivenessChange::Dead { reason });
        }
        self.notifier.changed.notify_waiters();
        fail(sent, &CallError::Lost(reason.to_owned()));
        let unreachable = || CallError::Unreachable(reason.to_owned());
        fail(
            unsent,
            &refusal.map_or_else(unreachable, CallError::Refused),
        );
    }

    /// Waits until the connection has no calls and `needed` returns false. Checks both conditions
    /// whenever the last call has ended, and whenever the state of another connection has changed.
    pub async fn wait_until_retired(&self, needed: impl Fn() -> bool) {
        loop {
            let changed = self.notifier.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if !needed() && self.retire() {
                return;
            }
            tokio::select! {
                () = self.emptied.notified() => {}
                () = changed => {}
            }
        }
    }

    /// If the connection is up and has no calls, marks it as idle and returns true. Otherwise
    /// returns false.
    pub fn retire(&self) -> bool {
        let mut table = self.table();
        let retires = table.calls.is_empty() && matches!(table.state, ConnectionState::Up);
        if retires {
            table.state = ConnectionState::Idle;
        }
        retires
    }
}

impl CallTable {
    /// Records that a dead replica is in use again. Returns the time at which the replica died;
    /// `None` if the replica was not dead.
    fn revive(&mut self, began: Instant) -> Option<Instant> {
        let ConnectionState::Dead(dead) = &self.state else {
            return None;
        };
        let since = dead.since;
        self.state = ConnectionState::Up;
        self.backoff.chosen(began.elapsed());
        Some(since)
    }

    /// Removes and returns the calls that were written to the connection.
    fn take_sent(&mut self) -> BTreeMap<u64, PendingCall> {
        let unsent = self.calls.split_off(&self.unsent_from);
        std::mem::replace(&mut self.calls, unsent)
    }
}

/// Returns the number of the replica that sent the greeting; `None` if the greeting does not list
/// all replicas.
fn number(welcome: &Welcome) -> Option<u32> {
    let mut all = welcome.replicas.iter().take(64);
    let number = all.position(|name| *name == welcome.replica)?;
    u32::try_from(number).ok()
}

fn fail(calls: BTreeMap<u64, PendingCall>, error: &CallError) {
    for pending in calls.into_values() {
        let _ = pending.reply.send(Err(error.clone()));
    }
}

/// Whether an answer shows that a replica serves.
pub(crate) fn serves(response: &Response) -> bool {
    let outcome = response.outcome.as_ref().and_then(|it| it.result.as_ref());
    !matches!(outcome, Some(outcome::Result::Error(error))
        if error.code() == ErrorCode::Unavailable)
}
