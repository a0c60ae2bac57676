//! The clients of a simulated run. As the client library does, they ask the nearest replica
//! that answers, send an operation again under the same (client, sequence), and give it up
//! when its time is over.

use std::collections::HashMap;

use client::wire::outcome::Result as Answer;
use client::wire::{Command, ErrorCode, Outcome, Path, command::Op};
use foldhash::fast::FixedState;
use server::replica::action::ClientHandle;
use server::sim::world::{Happened, Reply, World};
use ycsb::sample::OpKind;
use ycsb::site_stream::SiteStream;

use super::super::load::{Ask, Due, OpenLoop, Process, Processes, closed_loops, held_back_note};
use super::super::{Ended, Interval, Plan, Progress, Recorder, key_name, value};
use super::route::{Route, Why};

/// How long a client waits for the answer to one attempt, in ns.
const ATTEMPT_NS: u64 = 1_000_000_000;
/// How long it tries in all before it gives an operation up, in ns.
const PATIENCE_NS: u64 = 30_000_000_000;
/// Until a replica that said that it cannot answer yet is asked again, in ns.
const PAUSE_NS: u64 = 50_000_000;
/// Between attempts to connect to a replica that did not answer, in ns.
const PROBE_NS: u64 = 250_000_000;

/// What the clients of a run wait for.
enum Alarm {
    /// A closed loop begins.
    Begin(usize),
    /// The next request of an open loop is due.
    Due(usize),
    /// A request has come near a replica that is far away.
    Arrives { slot: usize, attempt: u64 },
    /// An answer has come back from there.
    Heard { reply: Box<Reply>, node: usize },
    /// No connection was to be had.
    Refused { slot: usize, attempt: u64 },
    /// An attempt has taken long.
    Late { slot: usize, attempt: u64 },
    /// It is time for another attempt.
    Again { slot: usize, attempt: u64 },
    /// An operation that began with this attempt has taken too long.
    GiveUp { slot: usize, first: u64 },
    /// A connection to a replica that did not answer is tried.
    Probe { site: usize, node: usize },
}

/// A client, and what it waits for.
struct Slot {
    process: Process,
    /// Log time at which its session began, in ms.
    opened_ms: u64,
    sequence: u64,
    /// Attempts so far, of all operations: names requests.
    attempts: u64,
    /// Operations that ended.
    ended: u64,
    operation: Option<Operation>,
}

struct Operation {
    ask: Ask,
    due_ns: u64,
    sent_ns: u64,
    command: Command,
    /// The number of its first attempt.
    first: u64,
    /// Whom each of its attempts asked.
    asked: Vec<usize>,
    /// When the last attempt was sent, in ns.
    attempt_ns: u64,
}

/// Where requests come from.
enum Load {
    Closed(Vec<SiteStream>),
    Open(Vec<OpenLoop<usize>>),
}

pub(super) struct Clients<'a> {
    plan: &'a Plan<'a>,
    pub(super) world: World,
    pub(super) interval: Interval,
    pub(super) recorder: Recorder,
    processes: Processes,
    slots: Vec<Slot>,
    load: Load,
    /// By site.
    routes: Vec<Route>,
    alarms: HashMap<u64, Alarm, FixedState>,
    set: u64,
    /// Whether answers may fail to come.
    doubtful: bool,
    /// Sources of requests that have not ended, and operations in flight.
    open: usize,
}

impl<'a> Clients<'a> {
    /// The clients of a plan, who begin to ask at `start_ns`.
    pub(super) fn new(plan: &'a Plan<'a>, world: World, start_ns: u64) -> Clients<'a> {
        let topology = plan.topology();
        let route = |site| Route::new(topology, site);
        let mut clients = Clients {
            plan,
            world,
            interval: Interval::new(plan, start_ns),
            recorder: Recorder::new(plan),
            processes: Processes::default(),
            slots: Vec::new(),
            load: Load::Closed(Vec::new()),
            routes: (0..topology.len()).map(route).collect(),
            alarms: HashMap::default(),
            set: 0,
            doubtful: plan.is_doubtful(),
            open: 0,
        };
        clients.begin(start_ns);
        clients
    }

    fn begin(&mut self, start_ns: u64) {
        if self.plan.experiment.workload.rate.is_some() {
            let sites = OpenLoop::all(self.plan, start_ns);
            for (index, site) in sites.iter().enumerate() {
                self.alarm(site.due_ns(), Alarm::Due(index));
            }
            self.open = sites.len();
            self.load = Load::Open(sites);
            return;
        }
        let mut streams = Vec::new();
        for (index, (site, stream)) in closed_loops(self.plan).into_iter().enumerate() {
            streams.push(stream);
            self.new_slot(site);
            // Clients start one after the other, as those of real sites would.
            self.alarm(start_ns + index as u64 * 1_370_000, Alarm::Begin(index));
        }
        self.open = streams.len();
        self.load = Load::Closed(streams);
    }

    fn new_slot(&mut self, site: usize) -> usize {
        // What a replica says of the log time when a client connects.
        let replicas = (0..self.world.n()).filter_map(|node| self.world.replica(node));
        let opened_ms = replicas.map(|replica| replica.log_time_ms()).max();
        self.slots.push(Slot {
            process: self.processes.make(site),
            opened_ms: opened_ms.unwrap_or(0),
            sequence: 0,
            attempts: 0,
            ended: 0,
            operation: None,
        });
        self.slots.len() - 1
    }

    fn alarm(&mut self, at_ns: u64, alarm: Alarm) {
        self.set += 1;
        self.alarms.insert(self.set, alarm);
        self.world.alarm(at_ns, self.set);
    }

    /// Runs until the interval is over and every operation has ended.
    pub(super) fn drive(&mut self, progress: Progress<'_>) {
        let label = &self.plan.strategy.label;
        let mut shown = 0;
        while self.open > 0 {
            match self.world.advance() {
                Some(Happened::Replied(replies)) => {
                    replies.into_iter().for_each(|reply| self.replied(reply));
                }
                Some(Happened::Alarm(token)) => self.rings(token),
                Some(Happened::Nothing) => {}
                None => return,
            }
            let (done, all) = self.interval.progress(self.world.now_ns());
            if done > shown + all / 200 {
                shown = done;
                progress(label, done, all);
            }
        }
        let (_, all) = self.interval.progress(self.world.now_ns());
        progress(label, all, all);
    }

    fn rings(&mut self, token: u64) {
        let Some(alarm) = self.alarms.remove(&token) else {
            return;
        };
        match alarm {
            Alarm::Begin(slot) => self.ask_next(slot),
            Alarm::Due(index) => self.due(index),
            Alarm::Arrives { slot, attempt } if self.is_on(slot, attempt) => self.arrives(slot),
            Alarm::Heard { reply, node } => self.heard(*reply, node),
            Alarm::Refused { slot, attempt } if self.is_on(slot, attempt) => {
                self.turn_away(slot, Why::Refused);
            }
            Alarm::Late { slot, attempt } if self.is_on(slot, attempt) => self.late(slot),
            Alarm::Again { slot, attempt } if self.is_on(slot, attempt) => self.send(slot),
            Alarm::GiveUp { slot, first } => {
                let operation = self.slots[slot].operation.as_ref();
                if operation.is_some_and(|operation| operation.first == first) {
                    self.ended(slot, None);
                }
            }
            Alarm::Probe { site, node } => self.probe(site, node),
            // The operation has ended, or another attempt is under way.
            _ => {}
        }
    }

    /// Whether a client still waits for this attempt.
    fn is_on(&self, slot: usize, attempt: u64) -> bool {
        let slot = &self.slots[slot];
        slot.operation.is_some() && slot.attempts == attempt
    }

    /// The next request of a closed loop.
    fn ask_next(&mut self, slot: usize) {
        let now_ns = self.world.now_ns();
        let Load::Closed(streams) = &mut self.load else {
            return;
        };
        if self.interval.is_over(now_ns) {
            self.open -= 1;
            return;
        }
        let drawn = streams[slot].next();
        self.operate(slot, (now_ns, drawn));
    }

    /// The next request of an open loop.
    fn due(&mut self, index: usize) {
        let Load::Open(sites) = &mut self.load else {
            return;
        };
        if self.interval.is_over(sites[index].due_ns()) {
            self.open -= 1;
            return;
        }
        let fresh = self.slots.len();
        let site = sites[index].site;
        let next = sites[index].next(|| fresh);
        let next_ns = sites[index].due_ns();
        self.alarm(next_ns, Alarm::Due(index));
        // In flight or waiting, it must end before the run does.
        self.open += 1;
        if let Some((slot, due)) = next {
            if slot == fresh {
                self.new_slot(site);
            }
            self.operate(slot, due);
        }
    }

    fn operate(&mut self, slot: usize, (due_ns, drawn): Due) {
        let now_ns = self.world.now_ns();
        let client = &mut self.slots[slot];
        let ask = client.process.ask(drawn);
        let command = client.command(ask);
        let first = client.attempts + 1;
        client.operation = Some(Operation {
            ask,
            due_ns,
            sent_ns: now_ns,
            command,
            first,
            asked: Vec::new(),
            attempt_ns: now_ns,
        });
        if self.doubtful {
            self.alarm(now_ns + PATIENCE_NS, Alarm::GiveUp { slot, first });
        }
        self.send(slot);
    }

    /// One more attempt of a client's operation.
    fn send(&mut self, slot: usize) {
        let now_ns = self.world.now_ns();
        let client = &mut self.slots[slot];
        let site = client.process.site;
        let Some(operation) = &mut client.operation else {
            return;
        };
        client.attempts += 1;
        let attempt = client.attempts;
        let node = self.routes[site].nearest();
        operation.asked.push(node.unwrap_or(site));
        operation.attempt_ns = now_ns;
        let Some(node) = node else {
            // Nobody answers: all are tried again and again.
            return self.alarm(now_ns + PAUSE_NS, Alarm::Again { slot, attempt });
        };
        match self.far_ns(site, node) {
            0 => self.arrives(slot),
            far_ns => self.alarm(now_ns + far_ns, Alarm::Arrives { slot, attempt }),
        }
        if self.doubtful {
            self.alarm(now_ns + ATTEMPT_NS, Alarm::Late { slot, attempt });
        }
    }

    /// How much longer than to a client's own replica the way to `node` is, one way, in ns.
    fn far_ns(&self, site: usize, node: usize) -> u64 {
        match site == node {
            true => 0,
            false => (self.plan.topology().rtt_ms(site, node) / 2.0 * 1e6) as u64,
        }
    }

    /// A request is within a site's network of the replica that is asked.
    fn arrives(&mut self, slot: usize) {
        let client = &self.slots[slot];
        let attempt = client.attempts;
        let Some(operation) = &client.operation else {
            return;
        };
        let Some(&node) = operation.asked.last() else {
            return;
        };
        if self.world.refuses(node) {
            return self.refuse(slot, node);
        }
        let from = ClientHandle {
            connection: slot as u64,
            request: attempt,
        };
        let command = operation.command.clone();
        self.world.request(node, vec![(from, command)]);
    }

    /// A connection is refused, or breaks: the client learns of it on the way back.
    fn refuse(&mut self, slot: usize, node: usize) {
        let client = &self.slots[slot];
        let (site, attempt) = (client.process.site, client.attempts);
        let local_ns = (self.plan.topology().local_rtt_ms() * 1e6) as u64;
        let at_ns = self.world.now_ns() + local_ns + self.far_ns(site, node);
        self.alarm(at_ns, Alarm::Refused { slot, attempt });
    }

    /// The replica that was asked last does not answer: another one is asked.
    fn turn_away(&mut self, slot: usize, why: Why) {
        let client = &self.slots[slot];
        let site = client.process.site;
        let operation = client.operation.as_ref();
        let Some(&node) = operation.and_then(|operation| operation.asked.last()) else {
            return;
        };
        let now_ns = self.world.now_ns();
        if self.routes[site].avoid(node, why, now_ns) {
            self.alarm(now_ns + PROBE_NS, Alarm::Probe { site, node });
        }
        self.send(slot);
    }

    fn probe(&mut self, site: usize, node: usize) {
        let now_ns = self.world.now_ns();
        let up = self.world.is_up(node) && !self.world.refuses(node);
        if !self.routes[site].tried(node, up, now_ns) {
            self.alarm(now_ns + PROBE_NS, Alarm::Probe { site, node });
        }
    }

    /// An attempt has taken long. A replica that answers others is slow for a reason: the
    /// client waits on. One that answers nothing is left.
    fn late(&mut self, slot: usize) {
        let client = &self.slots[slot];
        let (site, attempt) = (client.process.site, client.attempts);
        let Some(operation) = &client.operation else {
            return;
        };
        let now_ns = self.world.now_ns();
        let node = operation.asked[operation.asked.len() - 1];
        let since_ns = operation.attempt_ns.max(now_ns - ATTEMPT_NS);
        match self.routes[site].answers(node, since_ns) {
            true => self.alarm(now_ns + ATTEMPT_NS, Alarm::Late { slot, attempt }),
            false => self.turn_away(slot, Why::Silent),
        }
    }

    fn replied(&mut self, reply: Reply) {
        let slot = reply.to.connection as usize;
        let Some(node) = self.slots[slot].asked(reply.to.request) else {
            return;
        };
        match self.far_ns(self.slots[slot].process.site, node) {
            0 => self.heard(reply, node),
            far_ns => {
                let reply = Box::new(reply);
                let at_ns = self.world.now_ns() + far_ns;
                self.alarm(at_ns, Alarm::Heard { reply, node });
            }
        }
    }

    fn heard(&mut self, reply: Reply, node: usize) {
        let (slot, attempt) = (reply.to.connection as usize, reply.to.request);
        let now_ns = self.world.now_ns();
        let site = self.slots[slot].process.site;
        self.routes[site].heard(node, now_ns);
        if self.slots[slot].asked(attempt).is_none() {
            return;
        }
        if !is_unavailable(&reply.outcome) {
            return self.ended(slot, Some((reply.path, &reply.outcome)));
        }
        if self.is_on(slot, attempt) {
            self.alarm(now_ns + PAUSE_NS, Alarm::Again { slot, attempt });
        }
    }

    /// Notes the end of what a client waits for, and lets it go on.
    fn ended(&mut self, slot: usize, answer: Option<(Path, &Outcome)>) {
        let now_ns = self.world.now_ns();
        let client = &mut self.slots[slot];
        let Some(operation) = client.operation.take() else {
            return;
        };
        client.ended += 1;
        self.recorder.ended(&Ended {
            site: client.process.site,
            process: client.process.id,
            ask: operation.ask,
            due_ns: operation.due_ns,
            sent_ns: operation.sent_ns,
            now_ns,
            answer,
        });
        self.interval.made(client.ended, now_ns);
        let site = client.process.site;
        let Load::Open(sites) = &mut self.load else {
            return self.ask_next(slot);
        };
        self.open -= 1;
        let source = sites.iter_mut().find(|source| source.site == site);
        if let Some((slot, due)) = source.and_then(|source| source.done(slot)) {
            self.operate(slot, due);
        }
    }

    /// What a report should say about the clients.
    pub(super) fn notes(&self) -> Vec<String> {
        let Load::Open(sites) = &self.load else {
            return Vec::new();
        };
        let held_back: Vec<(usize, u64)> = sites.iter().map(|s| (s.site, s.held_back)).collect();
        held_back_note(self.plan, &held_back).into_iter().collect()
    }
}

impl Slot {
    fn command(&mut self, ask: Ask) -> Command {
        if ask.kind == OpKind::Read {
            return Op::get(key_name(ask.key)).into();
        }
        self.sequence += 1;
        let op = Op::put(key_name(ask.key), value(ask.value, 8));
        let session = u64::from(self.process.id) + 1;
        Command::session(session, self.sequence, self.sequence, op).opened(self.opened_ms)
    }

    /// Whom an attempt of the operation in flight asked; `None` if it is not of that one.
    fn asked(&self, attempt: u64) -> Option<usize> {
        let operation = self.operation.as_ref()?;
        let index = attempt.checked_sub(operation.first)?;
        operation.asked.get(index as usize).copied()
    }
}

fn is_unavailable(outcome: &Outcome) -> bool {
    matches!(&outcome.result, Some(Answer::Error(error)) if error.code() == ErrorCode::Unavailable)
}
