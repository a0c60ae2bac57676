//! Clients that look for trouble: a few keys that everybody wants, all kinds of
//! commands, several at a time, retries at other replicas, and a history that
//! checkers judge.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};
use client::history::{Action as Did, Event as Op, History, ValueId};
use client::serializability::Transaction;
use client::wire::command::Op as Ask;
use client::wire::outcome::Result as Answer;
use client::wire::{Command, KeyValue, Outcome, Path, VALUE_BYTES_MAX, Version};
use leases::Key;
use rand::RngExt as _;
use rand_pcg::Pcg64Mcg;
use smallvec::{SmallVec, smallvec};

use super::fault::Fault;
use super::world::{Reply, World};
use crate::replica::action::ClientHandle;

/// How much is asked, and of what kind.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Clients at each replica.
    pub clients: usize,
    /// Requests that one client has under way, at most.
    pub window: usize,
    /// Requests that one client sends together, at most.
    pub burst: usize,
    /// Requests a second, over all clients.
    pub rate: u32,
    /// Keys there are.
    pub keys: u64,
    /// Share of reads, of all requests.
    pub reads: f64,
    /// Share of requests that touch several keys, or compare and swap, or delete.
    pub rare: f64,
    /// Share of requests sent to two replicas at once.
    pub twice: f64,
    /// A client that has no answer after this, in ns, sends the same command
    /// again, to any replica, and then waits for longer.
    pub patience_ns: u64,
    /// Clients fall silent for about so long, in ns, if this is how long sessions live:
    /// what they ask next may find theirs alive, or ended, or find both.
    pub silence_ns: Option<u64>,
    /// How many values may be large.
    pub large: u32,
}

/// A large value, in bytes, and how many a run has at most: disks and logs keep them.
const LARGE_BYTES: RangeInclusive<usize> = 256 << 10..=VALUE_BYTES_MAX;
const LARGE_VALUES: u32 = 64;
/// Requests a second, requests sent together, and keys of a run with large values.
const LARGE_RATE: u32 = 10;
const LARGE_BURST: usize = 32;
const LARGE_KEYS: u64 = 3;

/// Share of new sessions, and of arrivals, that a silence comes before; if any does.
const SILENT_AT_FIRST: f64 = 0.5;
const SILENT: f64 = 0.01;

/// Share of runs that are small, and their requests a second.
const SMALL: f64 = 0.04;
const SMALL_RATE: u32 = 12;
/// Share of runs whose clients wait for each answer, and how many each replica has.
const PATIENT: f64 = 0.06;
const PATIENT_CLIENTS: usize = 16;
/// Clients that do not wait have under way, at most, what so many seconds bring.
const WINDOW_S: usize = 8;
/// A client doubles its patience with each attempt, up to this many times the first.
pub(super) const PATIENCE_GROWS: u32 = 4;

impl Load {
    /// The load of a run.
    pub fn draw(rng: &mut Pcg64Mcg, n: usize, rate: u32) -> Load {
        // Most clients send several requests at once, and more before they are
        // answered, up to what some seconds bring; or many wait for each answer.
        let burst = [4, 8, 16, 32][rng.random_range(0..4)];
        let (clients, burst, window) = match rng.random::<f64>() < PATIENT {
            true => (PATIENT_CLIENTS, 1, 1),
            false => {
                let clients = rng.random_range(1..4);
                let some = WINDOW_S * rate as usize / (n * clients);
                (clients, burst, some.max(burst))
            }
        };
        // Some runs are small, so that all keys can be judged together.
        if rng.random::<f64>() < SMALL {
            return Load {
                clients: 1,
                window: 2,
                burst: 1,
                rate: rate.min(SMALL_RATE),
                keys: rng.random_range(2..5),
                reads: 0.5,
                rare: 0.4,
                twice: 0.0,
                patience_ns: 1_000_000_000,
                silence_ns: None,
                large: 0,
            };
        }
        Load {
            clients,
            window,
            burst,
            rate,
            keys: [1, 2, 4, 8, KEYS_MAX][rng.random_range(0..5)],
            reads: rng.random_range(0.5..0.95),
            rare: [0.0, 0.02, 0.1][rng.random_range(0..3)],
            twice: [0.0, 0.05][rng.random_range(0..2)],
            patience_ns: [3_000_000_000, 6_000_000_000][rng.random_range(0..2)],
            silence_ns: None,
            large: 0,
        }
    }

    /// Makes values large, so that requests sent together, and their answers, exceed a
    /// frame: few requests, in large bursts, on so few keys that a scan of all of them
    /// still has an answer.
    pub(super) fn enlarge(&mut self) {
        self.large = LARGE_VALUES;
        self.rate = self.rate.min(LARGE_RATE);
        self.burst = LARGE_BURST;
        self.window = self.window.max(2 * LARGE_BURST);
        self.keys = self.keys.min(LARGE_KEYS);
    }
}

/// Histories up to this many commands are judged for all keys together, too.
pub(super) const TOGETHER_MAX: usize = 800;
/// The most keys that a run has.
const KEYS_MAX: u64 = 16;
/// Room is made at the beginning for at most so many operations of a history.
const EXPECTED_MAX: u64 = 1 << 16;
/// Room for the bytes of values that is made at once.
const VALUES_BYTES: usize = 4096;
/// How many replicas a client tries before it waits again.
const DRAWS: usize = 16;
/// Alarms of clients: an arrival, or an attempt that has waited for long.
const PATIENCE: u64 = 1 << 62;
/// How many operations were sent together, in an alarm's lowest bits.
const COUNT_BITS: u32 = 8;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// What an operation does, key by key.
type Parts = SmallVec<[(u64, Did); 1]>;

/// An operation that a client has begun.
#[derive(Clone, Debug)]
pub struct Operation {
    id: u64,
    /// Whose.
    pub client: usize,
    /// Which of the client's lanes it occupies.
    lane: usize,
    /// What was sent.
    pub command: Command,
    began_ns: u64,
    attempts: u64,
    ops: Parts,
}

/// Operations that clients have begun, by their number: from 1, as they began. Each
/// is where its lane is, so that those of a client stay close together.
#[derive(Default)]
struct Operations {
    /// By client and lane.
    by_lane: Vec<Vec<Option<Operation>>>,
    /// Of each operation, the client and lane that it has or had.
    lanes: Vec<(u32, u32)>,
    open: usize,
}

impl Operations {
    fn begun(&self) -> u64 {
        self.lanes.len() as u64
    }

    /// Begins the next operation.
    fn begin(&mut self, operation: Operation) {
        let (client, lane) = (operation.client, operation.lane);
        if self.by_lane.len() <= client {
            self.by_lane.resize_with(client + 1, Vec::new);
        }
        let lanes = &mut self.by_lane[client];
        if lanes.len() <= lane {
            lanes.resize_with(lane + 1, || None);
        }
        lanes[lane] = Some(operation);
        self.lanes.push((client as u32, lane as u32));
        self.open += 1;
    }

    /// The lane of an operation that has not ended.
    fn lane(&mut self, id: u64) -> Option<&mut Option<Operation>> {
        let (client, lane) = *self.lanes.get(id.checked_sub(1)? as usize)?;
        let lane = &mut self.by_lane[client as usize][lane as usize];
        lane.as_ref().is_some_and(|it| it.id == id).then_some(lane)
    }

    fn get_mut(&mut self, id: u64) -> Option<&mut Operation> {
        self.lane(id)?.as_mut()
    }

    fn end(&mut self, id: u64) -> Option<Operation> {
        let ended = self.lane(id)?.take();
        self.open -= 1;
        ended
    }
}

struct Client {
    /// The session: a new one after the old has expired.
    id: u64,
    opened_ms: u64,
    sequence: u64,
    home: usize,
    /// It asks nothing before this.
    silent_until_ns: u64,
    /// Lanes without an operation under way.
    idle: Vec<usize>,
    /// Sequences of the session that have no answer.
    open: BTreeSet<u64>,
    /// The last version and value seen of each key, for compare-and-swap.
    seen: BTreeMap<u64, (Option<Version>, Option<ValueId>)>,
}

/// See the module.
pub struct Workload {
    load: Load,
    rng: Pcg64Mcg,
    clients: Vec<Client>,
    sessions: u64,
    operations: Operations,
    values: u64,
    /// Where the bytes of the next values go, side by side.
    bytes: BytesMut,
    /// When no more requests are begun, in virtual ns.
    end_ns: u64,
    /// What the clients saw, key by key.
    pub history: History,
    /// The same, command by command, as far as they may be judged together.
    pub transactions: Vec<Transaction>,
    /// Operations answered.
    pub answered: u64,
    /// Operations that nobody can tell the fate of.
    pub unknown: u64,
    /// By path.
    pub paths: BTreeMap<Path, u64>,
}

/// The name of a key. Static: all threads of a campaign copy it, and counting the copies
/// would pass a counter from core to core.
pub fn key(number: u64) -> Key {
    static NAMES: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
        let name = |k| &*String::leak(format!("key{k:04}"));
        (0..KEYS_MAX).map(name).collect()
    });
    Key::from_static(NAMES[number as usize].as_bytes())
}

impl Workload {
    /// Clients that begin requests until `end_ns`.
    pub fn begin(load: Load, rng: Pcg64Mcg, end_ns: u64, world: &mut World) -> Workload {
        let count = world.n() * load.clients;
        let clients = (0..count).map(|index| Client {
            id: index as u64 + 1,
            opened_ms: 0,
            sequence: 0,
            home: index / load.clients,
            silent_until_ns: 0,
            idle: (0..load.window).rev().collect(),
            open: BTreeSet::new(),
            seen: BTreeMap::new(),
        });
        let expected = u64::from(load.rate) * (end_ns / 1_000_000_000);
        let expected = expected.min(EXPECTED_MAX) as usize;
        let mut workload = Workload {
            load,
            rng,
            clients: clients.collect(),
            sessions: count as u64,
            operations: Operations::default(),
            values: 0,
            bytes: BytesMut::with_capacity(VALUES_BYTES),
            end_ns,
            history: History::with_capacity(expected),
            transactions: Vec::new(),
            answered: 0,
            unknown: 0,
            paths: BTreeMap::new(),
        };
        for index in 0..count {
            workload.fall_silent(index, SILENT_AT_FIRST, world);
            workload.next_arrival(index, world);
        }
        workload
    }

    /// A client may have nothing to ask, until its session has nearly ended, or just has.
    fn fall_silent(&mut self, index: usize, share: f64, world: &World) {
        if let Some(ttl_ns) = self.load.silence_ns
            && self.rng.random::<f64>() < share
        {
            let for_ns = self.rng.random_range(ttl_ns * 7 / 8..ttl_ns * 9 / 8);
            self.clients[index].silent_until_ns = world.now_ns() + for_ns;
        }
    }

    /// Operations begun.
    pub fn asked(&self) -> u64 {
        self.operations.begun()
    }

    /// Requests under way.
    pub fn under_way(&self) -> usize {
        self.operations.open
    }

    fn next_arrival(&mut self, index: usize, world: &mut World) {
        let together = (self.clients.len() * self.load.burst) as u64;
        let mean_ns = together * 1_000_000_000 / u64::from(self.load.rate.max(1));
        let at = world.now_ns() + self.rng.random_range(0..=2 * mean_ns);
        if at < self.end_ns {
            world.alarm(at, index as u64);
        }
    }

    /// An alarm of a client went off.
    pub fn alarm(&mut self, token: u64, world: &mut World) {
        if token & PATIENCE == 0 {
            let index = token as usize;
            self.next_arrival(index, world);
            if self.clients[index].silent_until_ns <= world.now_ns() {
                self.start(index, world);
                self.fall_silent(index, SILENT, world);
            }
            return;
        }
        let (first, count) = ((token & !PATIENCE) >> COUNT_BITS, token & COUNT_MASK);
        let mut open: Vec<u64> = Vec::new();
        let mut attempts = 0;
        for id in first..first + count {
            if let Some(operation) = self.operations.get_mut(id) {
                operation.attempts += 1;
                attempts = operation.attempts;
                world.note_fault(Fault::Retry);
                open.push(id);
            }
        }
        if open.is_empty() {
            return;
        }
        // A connection that is refused is refused at once.
        let draw = || self.rng.random_range(0..world.n());
        let mut others = std::iter::repeat_with(draw).take(DRAWS);
        let at = others.find(|at| !world.refuses(*at)).unwrap_or(0);
        self.send(&open, at, world);
        self.wait((first, count), attempts, world);
    }

    /// A client sends what it wants to ask, as far as it has lanes for it.
    fn start(&mut self, index: usize, world: &mut World) {
        let first = self.operations.begun() + 1;
        let mut ids = Vec::with_capacity(self.load.burst);
        while ids.len() < self.load.burst
            && let Some(lane) = self.clients[index].idle.pop()
        {
            ids.push(self.ask(index, lane, world));
        }
        if ids.is_empty() {
            return;
        }
        let home = self.clients[index].home;
        self.send(&ids, home, world);
        if self.load.twice > 0.0 && self.rng.random::<f64>() < self.load.twice {
            world.note_fault(Fault::Twice);
            let other = self.rng.random_range(0..world.n());
            self.send(&ids, other, world);
        }
        self.wait((first, ids.len() as u64), 1, world);
    }

    fn ask(&mut self, index: usize, lane: usize, world: &mut World) -> u64 {
        let (op, ops) = self.choose(index);
        let id = self.operations.begun() + 1;
        let mut command = Command {
            op: Some(op),
            ..Command::default()
        };
        if command.is_write() {
            let client = &mut self.clients[index];
            client.sequence += 1;
            client.open.insert(client.sequence);
            command.client = client.id;
            command.sequence = client.sequence;
            command.opened_ms = client.opened_ms;
            // Every sequence below has been answered.
            command.acked_below = client.open.first().copied().unwrap_or(client.sequence);
        }
        for (k, did) in &ops {
            let freshness = &mut world.oracles.freshness;
            match did {
                Did::Read { .. } => freshness.began(id << 8 | k, &key(*k)),
                Did::Delete => freshness.deletes(&key(*k)),
                _ => {}
            }
        }
        world.oracles.liveness.asked(id, world.now_ns());
        let operation = Operation {
            id,
            client: index,
            lane,
            command,
            began_ns: world.now_ns(),
            attempts: 1,
            ops,
        };
        self.operations.begin(operation);
        id
    }

    fn send(&mut self, ids: &[u64], at: usize, world: &mut World) {
        let request = |id: &u64| {
            let operation = self.operations.get_mut(*id)?;
            let from = ClientHandle {
                connection: operation.client as u64,
                request: id << 8 | operation.attempts.min(255),
            };
            Some((from, operation.command.clone()))
        };
        let mut requests = Vec::with_capacity(ids.len());
        requests.extend(ids.iter().filter_map(request));
        world.request(at, requests);
    }

    /// Looks later whether so many operations from `first` on are answered.
    fn wait(&mut self, (first, count): (u64, u64), attempts: u64, world: &mut World) {
        let doubled = 1 << (attempts - 1).min(8);
        let patience_ns = self.load.patience_ns * doubled.min(PATIENCE_GROWS.into());
        let late = world.now_ns() + patience_ns;
        world.alarm(late, PATIENCE | first << COUNT_BITS | count);
    }

    /// A value that nobody wrote yet, and its bytes.
    fn value(&mut self) -> (ValueId, Bytes) {
        self.values += 1;
        let value = ValueId(self.values);
        if self.load.large > 0 && self.rng.random::<bool>() {
            self.load.large -= 1;
            let mut bytes = vec![0; self.rng.random_range(LARGE_BYTES)];
            bytes[..8].copy_from_slice(&value.to_bytes());
            return (value, bytes.into());
        }
        self.bytes.extend_from_slice(&value.to_bytes());
        (value, self.bytes.split().freeze())
    }

    fn choose(&mut self, index: usize) -> (Ask, Parts) {
        let k = self.rng.random_range(0..self.load.keys);
        let read = Did::Read { value: None };
        if self.load.rare > 0.0 && self.rng.random::<f64>() < self.load.rare {
            return self.choose_rare(index, k);
        }
        if self.rng.random::<f64>() < self.load.reads {
            return (Ask::get(key(k)), smallvec![(k, read)]);
        }
        let (value, bytes) = self.value();
        (
            Ask::put(key(k), bytes),
            smallvec![(k, Did::Write { value })],
        )
    }

    fn choose_rare(&mut self, index: usize, k: u64) -> (Ask, Parts) {
        let other = (k + 1) % self.load.keys;
        let read = Did::Read { value: None };
        match self.rng.random_range(0..5) {
            0 => (Ask::delete(key(k)), smallvec![(k, Did::Delete)]),
            1 => {
                let seen = self.clients[index].seen.get(&k);
                let (version, expected) = seen.copied().unwrap_or_default();
                let (new, bytes) = self.value();
                let did = Did::Cas {
                    expected,
                    new,
                    swapped: false,
                };
                let op = Ask::cas(key(k), bytes, version);
                (op, smallvec![(k, did)])
            }
            2 if other != k => {
                let ((a, a_bytes), (b, b_bytes)) = (self.value(), self.value());
                let entry = |k: u64, value| KeyValue { key: key(k), value };
                let op = Ask::multi_put(vec![entry(k, a_bytes), entry(other, b_bytes)]);
                let wrote = |value| Did::Write { value };
                (op, smallvec![(k, wrote(a)), (other, wrote(b))])
            }
            3 if other != k => (
                Ask::multi_get(vec![key(k), key(other)]),
                smallvec![(k, read), (other, read)],
            ),
            _ => {
                let all = (0..self.load.keys).map(|k| (k, read)).collect();
                let limit = self.load.keys as u32;
                (Ask::scan(Key::new(), Key::new(), limit), all)
            }
        }
    }

    /// An answer reached a client: the first to any attempt counts.
    pub fn replied(&mut self, reply: &Reply, world: &mut World) {
        let id = reply.to.request >> 8;
        let Some(operation) = self.operations.end(id) else {
            return;
        };
        let now = world.now_ns();
        let verdict = world.oracles.liveness.answered(id, now);
        world.judge(verdict);
        let client = &mut self.clients[operation.client];
        client.idle.push(operation.lane);
        if client.id == operation.command.client {
            client.open.remove(&operation.command.sequence);
        }
        if let Some(Answer::Error(error)) = &reply.outcome.result {
            return self.refused(&operation, error.log_time_ms, world);
        }
        self.answered += 1;
        *self.paths.entry(reply.path).or_default() += 1;
        let mut parts = Parts::new();
        for (k, did) in &operation.ops {
            let Some(action) = answered(*k, *did, &reply.outcome) else {
                continue;
            };
            let freshness = &mut world.oracles.freshness;
            if let Did::Read { value } = action {
                let version = version_of(*k, &reply.outcome);
                let one = version.map_or_else(Outcome::missing, |v| Outcome::value(Key::new(), v));
                let verdict = freshness.read(id << 8 | k, &one, reply.path.as_str_name());
                world.judge(verdict);
                let client = &mut self.clients[operation.client];
                client.seen.insert(*k, (version, value));
            } else if !matches!(action, Did::Delete) {
                freshness.wrote(&key(*k), &reply.outcome);
            }
            parts.push((*k, action));
        }
        self.record(&operation, parts, Some(now));
    }

    /// A session has expired: whether the command was executed before that nobody
    /// can tell, and the client needs a new session.
    fn refused(&mut self, operation: &Operation, log_time_ms: u64, world: &mut World) {
        world.note_fault(Fault::Expiry);
        self.unknown += 1;
        self.record(operation, operation.ops.clone(), None);
        let client = &mut self.clients[operation.client];
        if client.id == operation.command.client {
            self.sessions += 1;
            client.id = self.sessions;
            client.opened_ms = log_time_ms;
            client.sequence = 0;
            client.open.clear();
            self.fall_silent(operation.client, SILENT_AT_FIRST, world);
        }
    }

    fn record(&mut self, operation: &Operation, parts: Parts, return_ns: Option<u64>) {
        let process = (operation.client * self.load.window + operation.lane) as u32;
        let invoke_ns = operation.began_ns;
        for (key, action) in &parts {
            self.history.push(Op {
                process,
                key: *key,
                action: *action,
                invoke_ns,
                return_ns,
            });
        }
        if self.transactions.len() <= TOGETHER_MAX {
            self.transactions.push(Transaction {
                process,
                parts: parts.into_vec(),
                invoke_ns,
                return_ns,
            });
        }
    }

    /// Nothing more will be answered: what is open stays open in the history.
    pub fn finish(&mut self) {
        for id in 1..=self.operations.begun() {
            if let Some(operation) = self.operations.end(id) {
                self.record(&operation, operation.ops.clone(), None);
            }
        }
    }
}

/// What an answered operation did to one of its keys; `None` if it failed.
fn answered(k: u64, did: Did, outcome: &Outcome) -> Option<Did> {
    let value = |bytes: &[u8]| ValueId::from_value(bytes);
    match (did, outcome.result.as_ref()?) {
        (Did::Read { .. }, Answer::Value(found)) => Some(Did::Read {
            value: value(&found.value),
        }),
        (Did::Read { .. }, Answer::Missing(_)) => Some(Did::Read { value: None }),
        (Did::Read { .. }, Answer::Entries(all)) => {
            let found = all.entries.iter().find(|entry| entry.key == key(k));
            Some(Did::Read {
                value: found.and_then(|entry| value(&entry.value)),
            })
        }
        (Did::Write { .. } | Did::Delete, Answer::Written(_)) => Some(did),
        (Did::Cas { expected, new, .. }, Answer::Written(_)) => Some(Did::Cas {
            expected,
            new,
            swapped: true,
        }),
        (Did::Cas { expected, new, .. }, Answer::Mismatch(_)) => Some(Did::Cas {
            expected,
            new,
            swapped: false,
        }),
        _ => None,
    }
}

fn version_of(k: u64, outcome: &Outcome) -> Option<Version> {
    match outcome.result.as_ref()? {
        Answer::Value(value) => value.version,
        Answer::Entries(all) => all.entries.iter().find(|e| e.key == key(k))?.version,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(id: u64, lane: usize) -> Operation {
        Operation {
            id,
            client: 1,
            lane,
            command: Command::default(),
            began_ns: 0,
            attempts: 1,
            ops: Parts::new(),
        }
    }

    #[test]
    fn an_operation_that_has_ended_is_not_found_in_its_lane() {
        let mut operations = Operations::default();
        for (id, lane) in [(1, 0), (2, 3)] {
            operations.begin(operation(id, lane));
        }
        assert_eq!(operations.end(1).map(|it| it.id), Some(1));
        operations.begin(operation(3, 0));
        assert!(operations.end(1).is_none() && operations.get_mut(1).is_none());
        assert!(operations.end(0).is_none() && operations.end(4).is_none());
        assert_eq!((operations.open, operations.begun()), (2, 3));
        let ended = [2, 3].map(|id| operations.end(id).map(|it| it.id));
        assert_eq!((ended, operations.open), ([Some(2), Some(3)], 0));
    }
}
