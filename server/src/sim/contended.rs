//! A workload that looks for trouble: a few clients a replica, a few keys, all
//! kinds of commands, retries at another replica, and a history that a checker judges.

use client::history::{Action as Did, Event as Op, History, ValueId};
use client::linearizability::{Verdict, check};
use client::wire::command::Op as Ask;
use client::wire::outcome::Result as Answer;
use client::wire::{Command, KeyValue, Outcome, Version};
use leases::Key;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;
use std::collections::BTreeMap;

use super::world::{Happened, Reply, World, WorldSettings};
use crate::replica::action::ClientHandle;

/// How much is asked.
#[derive(Clone, Copy, Debug)]
pub struct Contention {
    /// Clients at each replica.
    pub clients: usize,
    /// Keys there are.
    pub keys: u64,
    /// Share of reads, of all requests.
    pub reads: f64,
    /// Share of requests that touch several keys, or compare and swap, or delete.
    pub rare: f64,
    /// Virtual time during which requests are begun, in ns.
    pub run_ns: u64,
    /// Pause between an answer and the next request, at most, in ns.
    pub think_ns: u64,
    /// A client gives up on an answer after this, in ns, and sends the same
    /// command again, to any replica.
    pub patience_ns: u64,
}

/// Replicas that crash and start again, while requests are begun.
#[derive(Clone, Copy, Debug)]
pub struct Crashes {
    /// Pause between two crashes, at most, in ns.
    pub every_ns: u64,
    /// How long a replica stays down, at most, in ns.
    pub down_ns: u64,
    /// Share of crashes that take every replica down at once.
    pub all: f64,
    /// Share that are no crash, but cut a replica off, in one direction or both.
    pub cuts: f64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcomes {
    /// Operations answered.
    pub answered: u64,
    /// Operations never answered.
    pub open: u64,
    /// By path.
    pub paths: BTreeMap<&'static str, u64>,
    /// What the checker says.
    pub verdict: Verdict,
    /// A digest of the run.
    pub trace: u64,
    /// Checks that the oracles made.
    pub checks: Vec<(&'static str, u64)>,
    /// Requests that were never answered although everything had healed.
    pub stuck: u64,
    /// Replicas that crashed and started again.
    pub crashes: u64,
}

struct Client {
    id: u64,
    sequence: u64,
    at: usize,
    busy: Option<Busy>,
    /// The last version and value seen of each key, for compare-and-swap.
    seen: BTreeMap<u64, (Option<Version>, Option<ValueId>)>,
}

struct Busy {
    attempt: u64,
    command: Command,
    began_ns: u64,
    ops: Vec<(u64, Did)>,
}

struct Run {
    world: World,
    contention: Contention,
    rng: Pcg64Mcg,
    clients: Vec<Client>,
    history: History,
    attempts: u64,
    values: u64,
    answered: u64,
    paths: BTreeMap<&'static str, u64>,
    n: usize,
    plan: Option<Crashes>,
    crashed: u64,
}

/// Alarms of clients count from 0; these are told apart by their upper half.
const CRASH: u64 = 1 << 62;
const START: u64 = 1 << 61;
const MEND: u64 = 1 << 60;

/// The name of a key.
pub fn key(number: u64) -> Key {
    Key::from(format!("key{number:04}"))
}

/// Runs a contended world to its end: requests for `run_ns`, then as long again
/// without faults for what is still open.
pub fn run(settings: WorldSettings, contention: Contention, seed: u64) -> Outcomes {
    run_crashing(settings, contention, None, seed)
}

/// The same, with replicas that crash.
pub fn run_crashing(
    settings: WorldSettings,
    contention: Contention,
    plan: Option<Crashes>,
    seed: u64,
) -> Outcomes {
    let n = settings.replica.n;
    let mut world = World::new(settings, seed);
    let clients = (0..n * contention.clients)
        .map(|index| Client {
            id: index as u64 + 1,
            sequence: 0,
            at: index / contention.clients.max(1),
            busy: None,
            seen: BTreeMap::new(),
        })
        .collect::<Vec<_>>();
    for token in 0..clients.len() as u64 {
        world.alarm(token * 1_000_000, token << 32);
    }
    let mut run = Run {
        world,
        contention,
        rng: Pcg64Mcg::seed_from_u64(seed ^ 0x5eed),
        clients,
        history: History::new(),
        attempts: 0,
        values: 0,
        answered: 0,
        paths: BTreeMap::new(),
        n,
        plan,
        crashed: 0,
    };
    run.plan_crash();
    run.drive();
    run.finish()
}

impl Run {
    fn drive(&mut self) {
        let end_ns = self.contention.run_ns;
        let mut healed = false;
        while self.world.now_ns() < end_ns * 2 {
            if !healed && self.world.now_ns() >= end_ns {
                healed = true;
                self.world.set_faults(Default::default());
                for node in 0..self.n {
                    self.start(node);
                    self.cut(node, true, true, false);
                }
            }
            if healed && self.clients.iter().all(|client| client.busy.is_none()) {
                return;
            }
            if let Some(violation) = self.world.violation() {
                panic!("{}: {}", violation.oracle, violation.what);
            }
            match self.world.advance() {
                Some(Happened::Replied(reply)) => self.replied(reply),
                Some(Happened::Alarm(token)) if token & (CRASH | START | MEND) != 0 => {
                    self.fault(token)
                }
                Some(Happened::Alarm(token)) => {
                    self.alarm((token >> 32) as usize, token & 0xffff_ffff)
                }
                Some(Happened::Nothing) => {}
                None => return,
            }
        }
    }

    fn plan_crash(&mut self) {
        if let Some(plan) = self.plan {
            let at = self.world.now_ns() + self.rng.random_range(0..=plan.every_ns);
            self.world.alarm(at, CRASH);
        }
    }

    /// Cuts or mends what `node` sends, what it receives, or both.
    fn cut(&mut self, node: usize, sends: bool, receives: bool, cut: bool) {
        for other in (0..self.n).filter(|other| *other != node) {
            if sends {
                self.world.set_cut(node, other, cut);
            }
            if receives {
                self.world.set_cut(other, node, cut);
            }
        }
    }

    fn start(&mut self, node: usize) {
        if self.world.replica(node).is_none() {
            self.world.start(node);
        }
    }

    /// A crash, of one replica or of all, or the start that follows it.
    fn fault(&mut self, token: u64) {
        let Some(plan) = self.plan else { return };
        let node = (token & 0xff) as usize;
        if token & MEND != 0 {
            return self.cut(node, true, true, false);
        }
        if token & START != 0 {
            return self.start(node);
        }
        if self.world.now_ns() >= self.contention.run_ns {
            return;
        }
        let one = self.rng.random_range(0..self.n);
        if plan.cuts > 0.0 && self.rng.random::<f64>() < plan.cuts {
            let (from, to) =
                [(true, true), (true, false), (false, true)][self.rng.random_range(0..3)];
            self.cut(one, from, to, true);
            let mended = self.world.now_ns() + self.rng.random_range(0..=plan.down_ns);
            self.world.alarm(mended, MEND | one as u64);
            return self.plan_crash();
        }
        let all = self.rng.random::<f64>() < plan.all;
        for node in (0..self.n).filter(|node| all || *node == one) {
            if self.world.replica(node).is_some() {
                self.crashed += 1;
                self.world.crash(node);
                let up = self.world.now_ns() + self.rng.random_range(0..=plan.down_ns);
                self.world.alarm(up, START | node as u64);
            }
        }
        self.plan_crash();
    }

    fn alarm(&mut self, index: usize, attempt: u64) {
        match &self.clients[index].busy {
            None if attempt == 0 && self.world.now_ns() < self.contention.run_ns => {
                self.begin(index)
            }
            Some(busy) if busy.attempt & 0xffff_ffff == attempt => {
                self.clients[index].at = self.rng.random_range(0..self.n);
                self.send(index);
            }
            _ => {}
        }
    }

    fn begin(&mut self, index: usize) {
        let (op, ops) = self.choose(index);
        let client = &mut self.clients[index];
        let op = Some(op);
        let mut command = Command {
            op,
            ..Command::default()
        };
        if command.is_write() {
            client.sequence += 1;
            command.client = client.id;
            command.sequence = client.sequence;
            command.acked_below = client.sequence;
        }
        let began_ns = self.world.now_ns();
        client.busy = Some(Busy {
            attempt: 0,
            command,
            began_ns,
            ops,
        });
        self.send(index);
    }

    fn send(&mut self, index: usize) {
        self.attempts += 1;
        let attempt = self.attempts;
        let at = self.clients[index].at;
        let Some(busy) = &mut self.clients[index].busy else {
            return;
        };
        busy.attempt = attempt;
        for (key_number, did) in &busy.ops {
            let name = key(*key_number);
            match did {
                Did::Read { .. } => self
                    .world
                    .oracles
                    .freshness
                    .began(attempt << 8 | key_number, &name),
                Did::Delete => self.world.oracles.freshness.deletes(&name),
                _ => {}
            }
        }
        let command = busy.command.clone();
        let from = ClientHandle {
            connection: index as u64,
            request: attempt,
        };
        self.world.request(at, from, command);
        let late = self.world.now_ns() + self.contention.patience_ns;
        self.world
            .alarm(late, (index as u64) << 32 | attempt & 0xffff_ffff);
    }

    fn value(&mut self) -> ValueId {
        self.values += 1;
        ValueId(self.values)
    }

    fn choose(&mut self, index: usize) -> (Ask, Vec<(u64, Did)>) {
        let k = self.rng.random_range(0..self.contention.keys);
        let read = Did::Read { value: None };
        if self.rng.random::<f64>() < self.contention.rare {
            return self.choose_rare(index, k);
        }
        if self.rng.random::<f64>() < self.contention.reads {
            return (Ask::get(key(k)), vec![(k, read)]);
        }
        let value = self.value();
        (
            Ask::put(key(k), value.to_bytes().to_vec()),
            vec![(k, Did::Write { value })],
        )
    }

    fn choose_rare(&mut self, index: usize, k: u64) -> (Ask, Vec<(u64, Did)>) {
        let other = (k + 1) % self.contention.keys;
        let read = Did::Read { value: None };
        match self.rng.random_range(0..5) {
            0 => (Ask::delete(key(k)), vec![(k, Did::Delete)]),
            1 => {
                let (version, expected) = self.clients[index]
                    .seen
                    .get(&k)
                    .copied()
                    .unwrap_or_default();
                let new = self.value();
                let op = Ask::cas(key(k), new.to_bytes().to_vec(), version);
                (
                    op,
                    vec![(
                        k,
                        Did::Cas {
                            expected,
                            new,
                            swapped: false,
                        },
                    )],
                )
            }
            2 => {
                let (a, b) = (self.value(), self.value());
                let entry = |k: u64, v: ValueId| KeyValue {
                    key: key(k),
                    value: v.to_bytes().to_vec().into(),
                };
                let op = Ask::multi_put(vec![entry(k, a), entry(other, b)]);
                (
                    op,
                    vec![
                        (k, Did::Write { value: a }),
                        (other, Did::Write { value: b }),
                    ],
                )
            }
            3 => (
                Ask::multi_get(vec![key(k), key(other)]),
                vec![(k, read), (other, read)],
            ),
            _ => {
                let all = (0..self.contention.keys).map(|k| (k, read)).collect();
                (
                    Ask::scan(Key::new(), Key::new(), self.contention.keys as u32),
                    all,
                )
            }
        }
    }

    fn replied(&mut self, reply: Reply) {
        let index = reply.to.connection as usize;
        let current = |busy: &Busy| busy.attempt == reply.to.request;
        let Some(busy) = self.clients[index].busy.take_if(|busy| current(busy)) else {
            return;
        };
        let now = self.world.now_ns();
        self.answered += 1;
        *self.paths.entry(reply.path.as_str_name()).or_default() += 1;
        self.record(index, &busy, &reply, now);
        let think = self.rng.random_range(0..=self.contention.think_ns);
        self.world.alarm(now + think, (index as u64) << 32);
    }

    fn record(&mut self, index: usize, busy: &Busy, reply: &Reply, now: u64) {
        for (k, did) in &busy.ops {
            let Some(action) = answered(*k, *did, &reply.outcome) else {
                continue;
            };
            if let Did::Read { value } = action {
                let token = busy.attempt << 8 | k;
                let version = version_of(*k, &reply.outcome);
                let one = version.map_or_else(Outcome::missing, |v| Outcome::value(Key::new(), v));
                let freshness = &mut self.world.oracles.freshness;
                let verdict = freshness.read(token, &one, reply.path.as_str_name());
                self.world.judge(verdict);
                self.clients[index].seen.insert(*k, (version, value));
            } else if !matches!(action, Did::Delete) {
                self.world.oracles.freshness.wrote(&key(*k), &reply.outcome);
            }
            self.push(index, *k, action, busy.began_ns, Some(now));
        }
    }

    fn push(
        &mut self,
        index: usize,
        key: u64,
        action: Did,
        invoke_ns: u64,
        return_ns: Option<u64>,
    ) {
        let process = index as u32;
        self.history.push(Op {
            process,
            key,
            action,
            invoke_ns,
            return_ns,
        });
    }

    fn finish(mut self) -> Outcomes {
        let mut open = 0;
        for index in 0..self.clients.len() {
            if let Some(busy) = self.clients[index].busy.take() {
                open += 1;
                for (k, did) in busy.ops {
                    self.push(index, k, did, busy.began_ns, None);
                }
            }
        }
        Outcomes {
            answered: self.answered,
            open,
            paths: self.paths,
            verdict: check(&self.history),
            trace: self.world.trace_hash(),
            checks: self.world.oracles.checks(),
            stuck: open,
            crashes: self.crashed,
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
