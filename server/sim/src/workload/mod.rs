//! Clients that provoke conflicts: they use a few contended keys and all kinds of commands, send
//! several commands at a time, and retry at other replicas. They record a history that checkers
//! judge.
//!
//! These clients treat sessions as the client library does. A client never sends an abandoned write
//! again, and its low-water mark moves past the write. If a write was sent only once and is refused
//! because the session has ended, the client sends it once more under a new session. Permanently
//! refused writes are not in the history, so no read may return a value of such a write. The
//! history also omits a write if a replica reports it as unsent and no other replica has received
//! it.
//!
//! In some runs, clients send transactions of every kind (`txns`).
//!
//! In some runs, values are records (`record_shape`), and many puts merge one field into them. In
//! some runs, clients' connections end now and then (`hang_up`).

mod answers;
mod choose;
mod client;
mod hang_up;
mod load;
mod operations;
mod record_shape;
mod recorder;
mod txns;

use leasehold_histories::history::HistoryAction;
use leasehold_wire::command::Op;
use rand::RngExt as _;
use rand_pcg::Pcg64Mcg;

pub use self::choose::key;
pub use self::load::ClientLoad;
pub use self::recorder::HistoryRecorder;
pub(super) use self::recorder::TOGETHER_MAX;

use self::choose::Chooser;
use self::client::{Client, ClientSession};
use self::operations::{Operation, Operations, Parts};
use self::record_shape::is_rest;
use super::fault::FaultKind;
use super::world::World;
use leasehold_replica::action::ClientHandle;

/// Probability that a client falls silent after it has begun a new session, in runs in which
/// clients fall silent.
const SILENT_AT_FIRST: f64 = 0.5;
/// Probability that a client falls silent when it is about to send new requests, in runs in which
/// clients fall silent.
const SILENT: f64 = 0.01;
/// Probability that the first requests of a new session are abandoned, in runs in which clients
/// abandon requests.
const ABANDONS_AT_FIRST: f64 = 0.5;
/// Probability that a client begins a new session after it has abandoned requests, in runs in which
/// clients renew sessions.
const RENEWS_AFTER: f64 = 0.3;
/// Maximum timeout of a client, as a multiple of the timeout of its first attempt. The timeout
/// doubles with each attempt.
pub(super) const RETRY_TIMEOUT_GROWTH: u32 = 4;
/// Maximum number of random replicas that a client tries in one attempt. The client tries another
/// replica only if the previous one refuses the connection.
const DRAWS: usize = 16;
/// Bit in the token of a client's alarm: the timeout of an attempt has passed. The token of an
/// alarm for new requests contains neither this bit nor [`ABANDON`].
const RETRY: u64 = 1 << 62;
/// Bit in the token of a client's alarm: the client abandons requests now.
const ABANDON: u64 = 1 << 60;
/// Number of low bits in an alarm's token that store how many operations were sent together.
const COUNT_BITS: u32 = 8;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// Clients that provoke conflicts, and the history that they record.
pub struct ClientWorkload {
    load: ClientLoad,
    chooser: Chooser,
    clients: Vec<Client>,
    /// Number of sessions begun so far.
    sessions: u64,
    /// Number of connections begun so far.
    connections: u64,
    operations: Operations,
    /// Time after which no request is begun, in virtual ns.
    end_ns: u64,
    /// Record of the clients' operations and answers.
    pub recorder: HistoryRecorder,
}

impl ClientWorkload {
    /// Creates clients that begin requests until `end_ns`.
    pub fn begin(
        load: ClientLoad,
        rng: Pcg64Mcg,
        end_ns: u64,
        world: &mut World,
    ) -> ClientWorkload {
        let count = world.n() * load.clients;
        let clients = (0..count).map(|index| Client {
            connection: index as u64,
            contacted: Default::default(),
            session: ClientSession::new(index as u64 + 1, 0),
            home: index / load.clients,
            silent_until_ns: 0,
            idle: (0..load.window).rev().collect(),
            seen: Default::default(),
        });
        let expected = u64::from(load.rate) * (end_ns / 1_000_000_000);
        let mut workload = ClientWorkload {
            load,
            chooser: Chooser::new(rng, &load),
            clients: clients.collect(),
            sessions: count as u64,
            connections: count as u64,
            operations: Operations::default(),
            end_ns,
            recorder: HistoryRecorder::new(load.window, expected),
        };
        for index in 0..count {
            workload.fall_silent(index, SILENT_AT_FIRST, world);
            workload.next_arrival(index, world);
        }
        workload
    }

    /// Makes a client fall silent with probability `share`. The silence lasts until the client's
    /// session has nearly ended or has just ended.
    fn fall_silent(&mut self, index: usize, share: f64, world: &World) {
        if let Some(ttl_ns) = self.load.silence_ns
            && self.chooser.rng.random::<f64>() < share
        {
            let for_ns = self
                .chooser
                .rng
                .random_range(ttl_ns * 7 / 8..ttl_ns * 9 / 8);
            self.clients[index].silent_until_ns = world.now_ns() + for_ns;
        }
    }

    /// Returns the number of operations begun.
    pub fn requested(&self) -> u64 {
        self.operations.begun()
    }

    /// Returns the number of requests under way.
    pub fn under_way(&self) -> usize {
        self.operations.open()
    }

    fn next_arrival(&mut self, index: usize, world: &mut World) {
        let together = (self.clients.len() * self.load.burst) as u64;
        let mean_ns = together * 1_000_000_000 / u64::from(self.load.rate.max(1));
        let at = world.now_ns() + self.chooser.rng.random_range(0..=2 * mean_ns);
        if at < self.end_ns {
            world.alarm(at, index as u64);
        }
    }

    /// Handles an alarm of a client.
    pub fn alarm(&mut self, token: u64, world: &mut World) {
        let first = |kind: u64| (token & !kind) >> COUNT_BITS;
        let count = token & COUNT_MASK;
        if token & RETRY != 0 {
            self.retry(first(RETRY), count, world);
        } else if token & ABANDON != 0 {
            self.abandon_unanswered(first(ABANDON), count, world);
        } else {
            self.arrive(token as usize, world);
        }
    }

    /// Handles the alarm at which a client is to send new requests. The client sends the requests
    /// if it can.
    fn arrive(&mut self, index: usize, world: &mut World) {
        self.next_arrival(index, world);
        if self.load.renews > 0.0 && self.chooser.rng.random::<f64>() < self.load.renews {
            self.renew(index, world);
        }
        if self.clients[index].silent_until_ns <= world.now_ns() {
            self.start(index, world);
            self.fall_silent(index, SILENT, world);
        }
        if self.load.hangs_up > 0.0 && self.chooser.rng.random::<f64>() < self.load.hangs_up {
            self.hang_up(index, world);
        }
    }

    /// Begins a new session of a client, if the client's replica can tell the log time.
    fn renew(&mut self, index: usize, world: &mut World) {
        if let Some(replica) = world.replica(self.clients[index].home) {
            let log_time_ms = replica.log_time_ms();
            world.note_fault(FaultKind::NewSession);
            self.begin_session(index, log_time_ms);
        }
    }

    fn begin_session(&mut self, index: usize, log_time_ms: u64) {
        self.sessions += 1;
        self.clients[index].session = ClientSession::new(self.sessions, log_time_ms);
    }

    /// Sends unanswered operations again, if their ID is one of the `count` IDs from `first`. The
    /// timeout of this attempt is longer than the timeout of the previous attempt, up to a maximum.
    fn retry(&mut self, first: u64, count: u64, world: &mut World) {
        let mut open: Vec<u64> = Vec::new();
        let mut attempts = 0;
        for id in first..first + count {
            if let Some(operation) = self.operations.get_mut(id) {
                operation.attempts += 1;
                attempts = operation.attempts;
                world.note_fault(FaultKind::Retry);
                open.push(id);
            }
        }
        if open.is_empty() {
            return;
        }
        // A refused connection is refused without delay, so the client can try several replicas.
        let draw = || self.chooser.rng.random_range(0..world.n());
        let mut others = std::iter::repeat_with(draw).take(DRAWS);
        let at = others.find(|at| !world.refuses(*at)).unwrap_or(0);
        self.send(&open, at, world);
        self.wait(first, count, attempts, world);
    }

    /// Abandons unanswered operations, if their ID is one of the `count` IDs from `first`. Once all
    /// faults are healed, no operation is abandoned.
    fn abandon_unanswered(&mut self, first: u64, count: u64, world: &mut World) {
        if world.now_ns() >= self.end_ns {
            return;
        }
        let mut whose = None;
        for id in first..first + count {
            whose = self.abandon(id, world).or(whose);
        }
        // A client that has waited without an answer may begin a new session.
        if let Some(index) = whose.filter(|_| self.load.renews > 0.0)
            && self.chooser.rng.random::<f64>() < RENEWS_AFTER
        {
            self.renew(index, world);
        }
    }

    /// Abandons an operation, if a client still waits for it. Returns this client; `None` if no
    /// client waits.
    fn abandon(&mut self, id: u64, world: &mut World) -> Option<usize> {
        let operation = self.end(id)?;
        world.note_fault(FaultKind::Abandon);
        world.oracles.liveness.abandoned(id);
        self.leave_open(&operation);
        Some(operation.client)
    }

    /// Ends an operation and returns it; `None` if it has already ended. The lane of the client
    /// becomes free, and the command will not be sent again.
    fn end(&mut self, id: u64) -> Option<Operation> {
        let operation = self.operations.end(id)?;
        let client = &mut self.clients[operation.client];
        client.idle.push(operation.lane);
        client.session.complete(&operation.command);
        Some(operation)
    }

    /// Begins requests in free lanes of a client, and sends them together. The number of requests
    /// is at most the size of a burst.
    fn start(&mut self, index: usize, world: &mut World) {
        let first = self.operations.begun() + 1;
        let mut ids = Vec::with_capacity(self.load.burst);
        while ids.len() < self.load.burst
            && let Some(lane) = self.clients[index].idle.pop()
        {
            let (op, ops) = self.choose(index);
            ids.push(self.ask(index, lane, op, ops, world));
        }
        if ids.is_empty() {
            return;
        }
        let home = self.clients[index].home;
        self.send(&ids, home, world);
        if self.load.twice > 0.0 && self.chooser.rng.random::<f64>() < self.load.twice {
            world.note_fault(FaultKind::Twice);
            let other = self.chooser.rng.random_range(0..world.n());
            self.send(&ids, other, world);
        }
        self.wait_first(index, first, ids.len() as u64, world);
    }

    fn choose(&mut self, index: usize) -> (Op, Parts) {
        let seen = &self.clients[index].seen;
        self.chooser.choose(&self.load, seen)
    }

    /// Begins an operation of a client in one of its lanes.
    fn ask(&mut self, index: usize, lane: usize, op: Op, ops: Parts, world: &mut World) -> u64 {
        let id = self.operations.begun() + 1;
        let command = self.clients[index].session.issue(op);
        for (k, did) in ops.iter().filter(|(k, _)| !is_rest(*k)) {
            let freshness = &mut world.oracles.freshness;
            match did {
                HistoryAction::Read { .. } => freshness.began(id << 8 | k, &key(*k)),
                HistoryAction::Delete => freshness.deletes(&key(*k)),
                _ => {}
            }
        }
        if let Some(Op::Txn(txn)) = &command.op {
            let freshness = &mut world.oracles.freshness;
            txns::deleted_keys(txn).for_each(|key| freshness.deletes(key));
        }
        world.oracles.liveness.requested(id, world.now_ns());
        let operation = Operation {
            id,
            client: index,
            lane,
            command,
            began_ns: world.now_ns(),
            attempts: 1,
            sent: 0,
            at: 0,
            again: false,
            ops,
        };
        self.operations.begin(operation);
        id
    }

    fn send(&mut self, ids: &[u64], at: usize, world: &mut World) {
        let request = |id: &u64| {
            let operation = self.operations.get_mut(*id)?;
            if operation.sent > 0 && operation.at != at && operation.command.is_write() {
                world.note_fault(FaultKind::Elsewhere);
            }
            operation.sent += 1;
            operation.at = at;
            let client = &mut self.clients[operation.client];
            client.contacted.insert(at);
            let from = ClientHandle {
                connection: client.connection,
                request: id << 8 | operation.attempts.min(255),
            };
            Some((from, operation.command.clone()))
        };
        let mut requests = Vec::with_capacity(ids.len());
        requests.extend(ids.iter().filter_map(request));
        world.request(at, requests);
    }

    /// Sets the first timeout for the `count` operations with successive IDs from `first`. The
    /// client may also decide to abandon these operations later.
    fn wait_first(&mut self, index: usize, first: u64, count: u64, world: &mut World) {
        self.wait(first, count, 1, world);
        if self.load.abandons == 0.0 {
            return;
        }
        let share = if self.clients[index].session.is_new() {
            ABANDONS_AT_FIRST
        } else {
            self.load.abandons
        };
        if self.chooser.rng.random::<f64>() < share {
            let late = world.now_ns() + self.load.abandon_timeout_ns;
            world.alarm(late, ABANDON | first << COUNT_BITS | count);
        }
    }

    /// Sets an alarm to check whether the `count` operations with successive IDs from `first` are
    /// answered.
    fn wait(&mut self, first: u64, count: u64, attempts: u64, world: &mut World) {
        let doubled = 1 << (attempts - 1).min(8);
        let retry_timeout_ns =
            self.load.retry_timeout_ns * doubled.min(RETRY_TIMEOUT_GROWTH.into());
        let late = world.now_ns() + retry_timeout_ns;
        world.alarm(late, RETRY | first << COUNT_BITS | count);
    }

    /// Ends the history. Operations without an answer are recorded with an unknown outcome.
    pub fn finish(&mut self) {
        for id in 1..=self.operations.begun() {
            if let Some(operation) = self.operations.end(id) {
                self.push_open(&operation);
            }
        }
    }

    /// Records an operation with an unknown outcome: the operation may be executed at any time, or
    /// never.
    fn leave_open(&mut self, operation: &Operation) {
        self.recorder.unknown += 1;
        self.push_open(operation);
    }

    fn push_open(&mut self, operation: &Operation) {
        if let Some(Op::Txn(txn)) = &operation.command.op {
            for parts in self.chooser.open_txn(txn) {
                self.recorder.push(operation, parts, None);
            }
        } else {
            self.recorder.push(operation, operation.ops.clone(), None);
        }
    }
}
