//! The world: replicas, links, disks, clocks and clients, moved event by event.
//! What goes wrong in it is done to it by methods (`harm`); `fault` plans and counts it.

mod harm;
mod queue;

use std::time::Duration;

use client::wire::{Command, Outcome, Path};
use leases::{ReplicaId, Slot, Time};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use self::queue::Queue;
use super::clock::Clock;
use super::disk::Disk;
use super::fault::{Fault, Fired};
use super::network::{Faults, Network};
use super::node::{Node, Trap};
use super::oracle::{Oracles, Sight, Verdict, Violation};
use super::trace::Trace;
use crate::replica::action::{Action, Asker, ClientHandle, Event as Note, Record, Sequence};
use crate::replica::input::ReadFrom;
use crate::replica::message::{Envelope, LogId, Message};
use crate::replica::{Input, Operator, Replica, Settings};
use crate::shell::{self, Answers, Fenced, Host, Reading};

/// A read this close to the end of its permit would show an error in its arithmetic.
const NEAR_END: Duration = Duration::from_millis(10);

/// What a world is made of.
#[derive(Clone, Debug)]
pub struct WorldSettings {
    /// For every replica; `me` is filled in.
    pub replica: Settings,
    /// One-way delay in ns, by sender and receiver.
    pub one_way_ns: Vec<Vec<u64>>,
    /// One-way delay between a client and its replica, in ns.
    pub client_one_way_ns: u64,
    /// How long a sync takes, in ns.
    pub sync_ns: u64,
    /// What goes wrong between replicas.
    pub faults: Faults,
    /// Clocks run within this of true time, in parts per million.
    pub drift_ppm: u32,
    /// Whether messages are encoded and decoded, and so meet the limits of frames.
    pub encoded: bool,
    /// Whether disks remember, for restarts and laggards.
    pub disks_remember: bool,
    /// Whether the oracles watch.
    pub watched: bool,
}

/// An answer that reached a client.
#[derive(Clone, Debug)]
pub struct Reply {
    /// To which request.
    pub to: ClientHandle,
    /// How it was served.
    pub path: Path,
    /// With what.
    pub outcome: Outcome,
}

enum Event {
    Deliver {
        to: usize,
        /// Of peers.
        inputs: Vec<Input>,
        sent: u64,
    },
    Synced {
        node: usize,
        run: u64,
    },
    Deadline {
        node: usize,
    },
    Requests {
        node: usize,
        requests: Vec<(ClientHandle, Command)>,
    },
    Replies(Vec<Reply>),
    Alarm(u64),
    Step {
        node: usize,
        input: Box<Input>,
        run: u64,
    },
    /// A full disk has room again, and is tried.
    Room {
        node: usize,
    },
    Start(usize),
    Kill {
        node: usize,
        run: u64,
        down_ns: u64,
    },
    Resume {
        node: usize,
        run: u64,
    },
}

/// What happened in one event, for whoever drives the world.
#[derive(Debug)]
pub enum Happened {
    /// Something among replicas.
    Nothing,
    /// Answers reached clients.
    Replied(Vec<Reply>),
    /// An alarm set with [`World::alarm`] went off.
    Alarm(u64),
}

/// What a step has on its way to a peer.
#[derive(Clone, Copy, Default)]
struct Flight {
    step: u64,
    at_ns: u64,
    place: usize,
}

/// See the module.
pub struct World {
    settings: WorldSettings,
    rng: Pcg64Mcg,
    now_ns: u64,
    queue: Queue<Event>,
    nodes: Vec<Node>,
    network: Network,
    /// Steps whose actions were performed.
    steps: u64,
    /// The newest of each link, by sender and receiver.
    flights: Vec<Flight>,
    /// What deliveries were made of: the next ones are made of it, too.
    spare: Vec<Vec<Input>>,
    /// Answers of the step whose actions are being performed, to clients and to peers.
    replies: Vec<Reply>,
    answers: Answers,
    inputs: Vec<Input>,
    actions: Vec<Action>,
    /// What replicas announced: (true time in ns, replica, what).
    pub notes: Vec<(u64, ReplicaId, Note)>,
    /// Knows everything.
    pub oracles: Oracles,
    violation: Option<Violation>,
    fired: Fired,
    /// Reads under leases that left within [`NEAR_END`] of their permit's end.
    near_end: u64,
    hash: u64,
    /// Written only if it was asked for.
    pub trace: Option<Trace>,
}

impl World {
    /// A world where every replica starts at true time 0. The same settings and
    /// seed give the same run, to the last event.
    pub fn new(settings: WorldSettings, seed: u64) -> World {
        let n = settings.replica.n;
        let rng = Pcg64Mcg::seed_from_u64(seed);
        let network = Network::new(settings.one_way_ns.clone(), settings.faults);
        let mut world = World {
            rng,
            now_ns: 0,
            queue: Queue::new(),
            nodes: Vec::new(),
            network,
            steps: 0,
            flights: vec![Flight::default(); n * n],
            spare: Vec::new(),
            replies: Vec::new(),
            answers: Answers::default(),
            inputs: Vec::new(),
            actions: Vec::new(),
            notes: Vec::new(),
            oracles: Oracles::new(&settings),
            violation: None,
            fired: Fired::default(),
            near_end: 0,
            hash: 0,
            trace: None,
            settings,
        };
        for node in 0..n {
            let disk = Disk::new(world.settings.sync_ns, world.settings.disks_remember);
            let clock = world.draw_clock();
            world.nodes.push(Node::new(disk, clock));
            world.start(node);
        }
        world
    }

    fn draw_clock(&mut self) -> Clock {
        let reading = self.rng.random_range(1_000_000_000..1_000_000_000_000);
        let rate = self.draw_rate();
        Clock::new(self.now_ns, reading, rate)
    }

    /// Within the bound, and often at it.
    fn draw_rate(&mut self) -> i32 {
        let drift = self.settings.drift_ppm as i32;
        match drift {
            0 => 0,
            _ => match self.rng.random_range(0..4) {
                0 => drift,
                1 => -drift,
                _ => self.rng.random_range(-drift..=drift),
            },
        }
    }

    /// True time, in ns.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// A digest of everything that has happened.
    pub fn trace_hash(&self) -> u64 {
        self.hash
    }

    /// How many replicas there are.
    pub fn n(&self) -> usize {
        self.nodes.len()
    }

    /// A running replica.
    pub fn replica(&self, node: usize) -> Option<&Replica> {
        self.nodes[node].replica.as_ref()
    }

    /// Whether a replica runs, and does not stand still.
    pub fn is_up(&self, node: usize) -> bool {
        let node = &self.nodes[node];
        node.replica.is_some() && node.pause.is_none()
    }

    /// Whether no client gets a connection: the process is down, or has found that
    /// its disk was wiped.
    pub fn refuses(&self, node: usize) -> bool {
        let replica = self.nodes[node].replica.as_ref();
        replica.is_none_or(Replica::is_wiped)
    }

    /// Whether a replica will never take part again.
    pub fn is_lost(&self, node: usize) -> bool {
        self.nodes[node].lost
    }

    /// What a replica's clock reads now.
    pub fn clock(&self, node: usize) -> Time {
        self.nodes[node].clock.read(self.now_ns)
    }

    /// The first rule that was seen broken.
    pub fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// Takes a verdict, from an oracle that somebody else asked.
    pub fn judge(&mut self, verdict: Verdict) {
        if let Err(violation) = verdict {
            self.violation.get_or_insert(violation);
        }
    }

    /// What went wrong so far, by the world's own doing.
    pub fn fired(&self) -> Fired {
        let mut all = self.fired;
        all.merge(&self.network.fired);
        all
    }

    /// Reads under leases that left within 10 ms of their permit's end.
    pub fn near_end(&self) -> u64 {
        self.near_end
    }

    /// Counts a fault that somebody else made.
    pub fn note_fault(&mut self, fault: Fault) {
        self.fired.add(fault, 1);
        if let Some(trace) = &mut self.trace {
            trace.line(self.now_ns, format_args!("-- {}", fault.name()));
        }
    }

    /// The operator asks a replica for something.
    pub fn operate(&mut self, node: usize, operator: Operator) {
        self.arrive(node, |inbox| inbox.push(Input::Operator(operator)));
    }

    /// A client of `node` sends commands now, which arrive together.
    pub fn request(&mut self, node: usize, requests: Vec<(ClientHandle, Command)>) {
        let at = self.now_ns + self.settings.client_one_way_ns;
        self.queue.schedule(at, Event::Requests { node, requests });
    }

    /// Calls back at a true time, with a token.
    pub fn alarm(&mut self, at_ns: u64, token: u64) {
        self.queue
            .schedule(at_ns.max(self.now_ns), Event::Alarm(token));
    }

    /// Moves to the next event. `None`: nothing will ever happen again.
    pub fn advance(&mut self) -> Option<Happened> {
        let (at_ns, event) = self.queue.pop()?;
        debug_assert!(at_ns >= self.now_ns);
        self.now_ns = at_ns;
        Some(self.happen(event))
    }

    fn happen(&mut self, event: Event) -> Happened {
        match event {
            Event::Deliver {
                to,
                mut inputs,
                sent,
            } => {
                self.note_hash(1, to, sent << 8 | inputs.len() as u64);
                self.arrive(to, |inbox| inbox.append(&mut inputs));
                inputs.clear(); // a process that is down takes nothing
                self.spare.push(inputs);
            }
            Event::Synced { node, run } if self.nodes[node].run == run => {
                self.note_hash(2, node, run);
                self.synced(node);
            }
            Event::Deadline { node } if self.nodes[node].is_due(self.now_ns) => {
                self.note_hash(3, node, 0);
                self.nodes[node].deadline = None;
                self.look(node);
            }
            Event::Requests { node, requests } => {
                let watched = self.settings.watched && self.nodes[node].replica.is_some();
                for (from, command) in &requests {
                    self.note_hash(4, node, from.request);
                    if watched {
                        self.oracles.asked(node, *from, command);
                    }
                }
                let client = |(from, command)| Input::Client { from, command };
                self.arrive(node, |inbox| inbox.extend(requests.into_iter().map(client)));
            }
            Event::Step { node, input, run } if self.nodes[node].run == run => {
                self.arrive(node, |inbox| inbox.push(*input));
            }
            Event::Replies(replies) => {
                for reply in &replies {
                    self.note_hash(5, reply.path as usize, reply.to.request);
                }
                return Happened::Replied(replies);
            }
            Event::Alarm(token) => return Happened::Alarm(token),
            Event::Start(node) => self.start(node),
            Event::Kill { node, run, down_ns } if self.nodes[node].run == run => {
                self.crash(node);
                self.start_at(node, self.now_ns + down_ns);
            }
            Event::Resume { node, run } if self.nodes[node].run == run => self.wake(node),
            Event::Room { node } => self.try_disk(node),
            Event::Synced { .. }
            | Event::Deadline { .. }
            | Event::Step { .. }
            | Event::Kill { .. }
            | Event::Resume { .. } => {}
        }
        Happened::Nothing
    }

    fn note_hash(&mut self, kind: u64, node: usize, extra: u64) {
        for word in [self.now_ns, kind << 32 | node as u64, extra] {
            self.hash = (self.hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
    }

    fn tell(&mut self, node: usize, what: std::fmt::Arguments<'_>) {
        if let Some(trace) = &mut self.trace {
            trace.line(self.now_ns, format_args!("r{node} {what}"));
        }
    }

    /// Inputs reach a process together: one that stands still takes them later,
    /// one that is down never.
    fn arrive(&mut self, node: usize, take: impl FnOnce(&mut Vec<Input>)) {
        if let Some(pause) = &mut self.nodes[node].pause {
            return take(&mut pause.inbox);
        }
        let now = self.clock(node);
        self.round(node, take, || Reading::alone(now));
    }

    /// Something may be due.
    fn look(&mut self, node: usize) {
        if self.is_up(node) {
            let now = self.clock(node);
            self.round(node, |_| {}, || Reading::alone(now));
        }
    }

    /// One group of inputs, and what comes of it.
    fn round(
        &mut self,
        node: usize,
        take: impl FnOnce(&mut Vec<Input>),
        clock: impl Fn() -> Reading,
    ) {
        let target = &mut self.nodes[node];
        let Some(replica) = target.replica.as_mut() else {
            return;
        };
        let mut actions = std::mem::take(&mut self.actions);
        let trace = &mut self.trace;
        let now_ns = self.now_ns;
        let mut leases = false;
        let untrusted = &mut target.clock_untrusted;
        let take = |inputs: &mut Vec<Input>| {
            take(inputs);
            for input in inputs.iter() {
                if let Input::ClockTrusted(trusted) = input {
                    *untrusted = !trusted;
                }
            }
            leases = inputs.iter().any(is_about_leases);
            if let Some(trace) = trace {
                trace.inputs(now_ns, node, inputs);
            }
        };
        shell::round(
            replica,
            &mut target.watches,
            &mut self.inputs,
            &mut actions,
            take,
            clock,
        );
        replica.check();
        if self.settings.watched {
            let sight = Sight::new(self.now_ns, &self.nodes);
            let verdict = self.oracles.stepped(&sight, node, &actions, leases);
            self.judge(verdict);
        }
        self.perform(node, &mut actions);
        self.actions = actions;
        self.reschedule(node);
    }

    fn reschedule(&mut self, node: usize) {
        let target = &mut self.nodes[node];
        let Some(replica) = &target.replica else {
            return;
        };
        let next = replica
            .next_deadline()
            .min(target.watches.disk.next_deadline());
        // An earlier one will find nothing due, and set this one then.
        if next == Time::MAX || target.deadline.is_some_and(|(_, due)| due <= next) {
            return;
        }
        let at = target.clock.when(next).max(self.now_ns + 1);
        if target.deadline.is_none_or(|(pending, _)| at < pending) {
            target.deadline = Some((at, next));
            self.queue.schedule(at, Event::Deadline { node });
        }
    }

    fn begin_sync(&mut self, node: usize) {
        let disk = &self.nodes[node].disk;
        let at = (self.now_ns + disk.sync_ns).max(disk.stalled_until_ns);
        let run = self.nodes[node].run;
        self.queue.schedule(at, Event::Synced { node, run });
        if let Some(down_ns) = self.nodes[node].crash_in_sync.take() {
            let at = self.rng.random_range(self.now_ns..at);
            self.queue.schedule(at, Event::Kill { node, run, down_ns });
        }
    }

    fn synced(&mut self, node: usize) {
        let (sequence, again) = self.nodes[node].disk.synced();
        if again {
            self.begin_sync(node);
        }
        if let Some(sequence) = sequence {
            self.nodes[node].watches.disk.persisted(sequence);
            self.arrive(node, |inbox| inbox.push(Input::Persisted(sequence)));
        }
    }

    /// Performs actions in order, unless a trap ends or stops the process. What
    /// goes one way then, and takes as long, arrives together.
    fn perform(&mut self, node: usize, actions: &mut Vec<Action>) {
        self.steps += 1;
        let mut rest = actions.drain(..);
        let mut trapped = None;
        while let Some(action) = rest.next() {
            trapped = self.nodes[node].springs();
            match trapped {
                None => self.act(node, action),
                Some(Trap::Crash(_)) => break,
                Some(Trap::Pause(for_ns)) => {
                    self.note_fault(Fault::PauseMidStep);
                    let unfinished = std::iter::once(action).chain(rest.by_ref()).collect();
                    self.stop(node, for_ns, unfinished);
                    break;
                }
            }
        }
        drop(rest);
        for (peer, message) in self.answers.take() {
            let replica = self.nodes[node].replica.as_ref();
            if let Some(envelope) = replica.map(|r| r.envelope(peer, message)) {
                self.transmit(node, peer, envelope);
            }
        }
        if !self.replies.is_empty() {
            let replies = std::mem::take(&mut self.replies);
            let at = self.now_ns + self.settings.client_one_way_ns;
            self.queue.schedule(at, Event::Replies(replies));
        }
        if let Some(Trap::Crash(down_ns)) = trapped {
            self.note_fault(Fault::CrashMidStep);
            self.crash(node);
            self.start_at(node, self.now_ns + down_ns);
        }
    }

    fn act(&mut self, node: usize, action: Action) {
        if let Some(trace) = &mut self.trace {
            trace.action(self.now_ns, node, &action);
        }
        shell::perform(action, &mut At(self, node));
    }

    fn step_soon(&mut self, node: usize, input: Input) {
        self.step_at(self.now_ns, node, input);
    }

    fn step_at(&mut self, at_ns: u64, node: usize, input: Input) {
        let (input, run) = (Box::new(input), self.nodes[node].run);
        let step = Event::Step { node, input, run };
        self.queue.schedule(at_ns, step);
    }

    fn transmit(&mut self, from: usize, to: ReplicaId, mut envelope: Envelope) {
        let to = to.index();
        if self.settings.encoded {
            envelope = match self.oracles.frames.pass(envelope) {
                Ok(decoded) => decoded,
                Err(violation) => return self.judge(Err(violation)),
            };
        }
        let mut arrivals = self
            .network
            .deliveries(&mut self.rng, self.now_ns, from, to)
            .peekable();
        while let Some(at) = arrivals.next() {
            if arrivals.peek().is_none() {
                return self.deliver(from, to, at, envelope);
            }
            self.deliver(from, to, at, envelope.clone());
        }
    }

    fn deliver(&mut self, from: usize, to: usize, at_ns: u64, envelope: Envelope) {
        let link = from * self.n() + to;
        let flight = self.flights[link];
        if (flight.step, flight.at_ns) == (self.steps, at_ns)
            && let Some(Event::Deliver { inputs, .. }) = self.queue.get_mut(flight.place)
        {
            return inputs.push(Input::Peer(envelope));
        }
        let mut inputs = self.spare.pop().unwrap_or_default();
        inputs.push(Input::Peer(envelope));
        let deliver = Event::Deliver {
            to,
            inputs,
            sent: self.queue.scheduled,
        };
        self.flights[link] = Flight {
            step: self.steps,
            at_ns,
            place: self.queue.schedule(at_ns, deliver),
        };
    }
}

/// The process of one replica, which performs what the replica asks for.
struct At<'a>(&'a mut World, usize);

impl Host for At<'_> {
    fn send(&mut self, to: ReplicaId, envelope: Envelope) {
        self.0.transmit(self.1, to, envelope);
    }

    fn persist(&mut self, sequence: Sequence, records: Vec<Record>) {
        let At(world, node) = self;
        let now = world.clock(*node);
        let target = &mut world.nodes[*node];
        target.watches.disk.asked(sequence, now);
        if target.disk.persist(sequence, records) {
            world.begin_sync(*node);
        } else if target.disk.is_full() {
            target.watches.disk.set_full(true);
            world.step_soon(*node, Input::Tick);
        }
    }

    fn reply(&mut self, to: ClientHandle, path: Path, outcome: Outcome) {
        self.0.replies.push(Reply { to, path, outcome });
    }

    /// The clock is read now: the process may have stood still since the read.
    fn fenced_reply(&mut self, read: Fenced) {
        let At(world, node) = self;
        let sampled = world.clock(*node);
        let read = match read.pass(sampled) {
            Ok(read) => read,
            Err(missed) => return world.step_soon(*node, missed),
        };
        world.near_end += u64::from(read.until.since(sampled) < NEAR_END);
        if world.settings.watched {
            let sight = Sight::new(world.now_ns, &world.nodes);
            let verdict = world.oracles.read(&sight, *node, &read);
            world.judge(verdict);
        }
        let Fenced {
            to, path, outcome, ..
        } = read;
        match to {
            ReadFrom::Client(to) => world.replies.push(Reply { to, path, outcome }),
            ReadFrom::Peer(peer, request) => world.answers.push(peer, request, outcome, path),
        }
    }

    fn read_log(&mut self, log: LogId, to: Asker, from: Slot, last: Slot) {
        let At(world, node) = self;
        let disk = &world.nodes[*node].disk;
        let entries = disk.read_log(log, from, last);
        // A disk that stalls does so for readers, too.
        let at = (world.now_ns + disk.sync_ns).max(disk.stalled_until_ns);
        world.step_at(at, *node, Input::LogRead { log, to, entries });
    }

    fn event(&mut self, note: Note) {
        let At(world, node) = self;
        let me = ReplicaId(*node as u8);
        world.notes.push((world.now_ns, me, note));
    }
}

/// Whether an input may change what is promised.
fn is_about_leases(input: &Input) -> bool {
    matches!(input, Input::Peer(envelope) if matches!(envelope.message, Message::Lease(_)))
}
