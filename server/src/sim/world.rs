//! The world: replicas, links, disks, clocks and clients, moved event by event.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use client::wire::{Command, Outcome, Path};
use leases::{ReplicaId, Time};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::clock::Clock;
use super::disk::Disk;
use super::network::{Faults, Network};
use super::oracle::Oracles;
use crate::replica::action::{Action, ClientHandle, Event as Note, Sequence};
use crate::replica::input::ReadFrom;
use crate::replica::message::{Envelope, Message, ReadAnswer};
use crate::replica::{Input, Replica, Settings};

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
        envelope: Box<Envelope>,
        run: u64,
    },
    Synced {
        node: usize,
        run: u64,
    },
    Deadline {
        node: usize,
    },
    Request {
        node: usize,
        from: ClientHandle,
        command: Command,
    },
    Reply(Reply),
    Alarm(u64),
    Step {
        node: usize,
        input: Box<Input>,
        run: u64,
    },
}

struct Node {
    /// `None` while crashed.
    replica: Option<Replica>,
    disk: Disk,
    clock: Clock,
    /// The true time of the deadline event that counts.
    deadline_ns: u64,
    /// How often it was started.
    run: u64,
}

/// What happened in one event, for whoever drives the world.
#[derive(Debug)]
pub enum Happened {
    /// Something among replicas.
    Nothing,
    /// An answer reached a client.
    Replied(Reply),
    /// An alarm set with [`World::alarm`] went off.
    Alarm(u64),
}

/// See the module.
pub struct World {
    settings: WorldSettings,
    rng: Pcg64Mcg,
    now_ns: u64,
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    events: Vec<Option<Event>>,
    free: Vec<usize>,
    next_event: u64,
    nodes: Vec<Node>,
    network: Network,
    actions: Vec<Action>,
    /// What replicas announced: (true time in ns, replica, what).
    pub notes: Vec<(u64, ReplicaId, Note)>,
    /// Knows everything.
    pub oracles: Oracles,
    trace: u64,
}

impl World {
    /// A world where every replica starts at true time 0. The same settings and
    /// seed give the same run, to the last event.
    pub fn new(settings: WorldSettings, seed: u64) -> World {
        let n = settings.replica.n;
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let network = Network::new(settings.one_way_ns.clone(), settings.faults);
        let drift = settings.drift_ppm as i32;
        let nodes = (0..n)
            .map(|_| Node {
                replica: None,
                disk: Disk::new(settings.sync_ns, settings.disks_remember),
                clock: Clock {
                    offset_ns: rng.random_range(1_000_000_000..1_000_000_000_000),
                    rate_ppm: if drift == 0 {
                        0
                    } else {
                        rng.random_range(-drift..=drift)
                    },
                },
                deadline_ns: u64::MAX,
                run: 0,
            })
            .collect();
        let mut world = World {
            rng,
            now_ns: 0,
            queue: BinaryHeap::new(),
            events: Vec::new(),
            free: Vec::new(),
            next_event: 0,
            nodes,
            network,
            actions: Vec::new(),
            notes: Vec::new(),
            oracles: Oracles::new(n),
            trace: 0,
            settings,
        };
        for node in 0..n {
            world.start(node);
        }
        world
    }

    /// True time, in ns.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// A digest of everything that has happened.
    pub fn trace_hash(&self) -> u64 {
        self.trace
    }

    /// A running replica.
    pub fn replica(&self, node: usize) -> Option<&Replica> {
        self.nodes[node].replica.as_ref()
    }

    /// What a replica's clock reads now.
    pub fn clock(&self, node: usize) -> Time {
        self.nodes[node].clock.read(self.now_ns)
    }

    /// Changes what goes wrong from now on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.network.faults = faults;
    }

    /// Cuts the link from one replica to another, or mends it.
    pub fn set_cut(&mut self, from: usize, to: usize, cut: bool) {
        self.network.set_cut(from, to, cut);
    }

    /// Starts a replica from its disk.
    pub fn start(&mut self, node: usize) {
        let mut settings = self.settings.replica.clone();
        settings.me = ReplicaId(node as u8);
        let seed = self.rng.random();
        let now = self.clock(node);
        let target = &mut self.nodes[node];
        target.run += 1;
        target.replica = Some(Replica::new(now, settings, target.disk.recover(), seed));
        self.reschedule(node);
    }

    /// Ends a replica at once; what was not synced is lost.
    pub fn crash(&mut self, node: usize) {
        self.nodes[node].replica = None;
        self.nodes[node].disk.crash();
        self.oracles.crashed(ReplicaId(node as u8));
    }

    /// A client of `node` sends a command now.
    pub fn request(&mut self, node: usize, from: ClientHandle, command: Command) {
        let at = self.now_ns + self.settings.client_one_way_ns;
        self.schedule(
            at,
            Event::Request {
                node,
                from,
                command,
            },
        );
    }

    /// Calls back at a true time, with a token.
    pub fn alarm(&mut self, at_ns: u64, token: u64) {
        self.schedule(at_ns.max(self.now_ns), Event::Alarm(token));
    }

    fn schedule(&mut self, at_ns: u64, event: Event) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        self.events[index] = Some(event);
        self.next_event += 1;
        self.queue.push(Reverse((at_ns, self.next_event, index)));
    }

    /// Moves to the next event. `None`: nothing will ever happen again.
    pub fn advance(&mut self) -> Option<Happened> {
        let Reverse((at_ns, _, index)) = self.queue.pop()?;
        let event = self.events[index].take().expect("a queued event exists");
        self.free.push(index);
        debug_assert!(at_ns >= self.now_ns);
        self.now_ns = at_ns;
        Some(self.happen(event))
    }

    fn happen(&mut self, event: Event) -> Happened {
        match event {
            Event::Deliver { to, envelope, run } => {
                self.note_trace(1, to, run);
                self.input(to, Input::Peer(*envelope));
            }
            Event::Synced { node, run } if self.nodes[node].run == run => {
                self.note_trace(2, node, run);
                let (sequence, again) = self.nodes[node].disk.synced();
                if again {
                    self.begin_sync(node);
                }
                if let Some(sequence) = sequence {
                    self.input(node, Input::Persisted(sequence));
                }
            }
            Event::Deadline { node } if self.nodes[node].deadline_ns == self.now_ns => {
                self.note_trace(3, node, 0);
                self.nodes[node].deadline_ns = u64::MAX;
                self.input(node, Input::Tick);
            }
            Event::Request {
                node,
                from,
                command,
            } => {
                self.note_trace(4, node, from.request);
                self.input(node, Input::Client { from, command });
            }
            Event::Step { node, input, run } if self.nodes[node].run == run => {
                self.input(node, *input);
            }
            Event::Reply(reply) => {
                self.note_trace(5, reply.path as usize, reply.to.request);
                return Happened::Replied(reply);
            }
            Event::Alarm(token) => return Happened::Alarm(token),
            Event::Synced { .. } | Event::Deadline { .. } | Event::Step { .. } => {}
        }
        Happened::Nothing
    }

    fn note_trace(&mut self, kind: u64, node: usize, extra: u64) {
        for word in [self.now_ns, kind << 32 | node as u64, extra] {
            self.trace = (self.trace.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
    }

    fn input(&mut self, node: usize, input: Input) {
        let now = self.clock(node);
        let mut actions = std::mem::take(&mut self.actions);
        let Some(replica) = self.nodes[node].replica.as_mut() else {
            self.actions = actions;
            return;
        };
        replica.step(now, input, &mut actions);
        replica.flush(now, &mut actions);
        self.perform(node, now, &mut actions);
        self.actions = actions;
        if self.settings.watched {
            let replicas = self.nodes.iter().map(|n| (n.replica.as_ref(), &n.clock));
            self.oracles.watch(self.now_ns, node, replicas);
        }
        self.reschedule(node);
    }

    fn reschedule(&mut self, node: usize) {
        let target = &mut self.nodes[node];
        let Some(replica) = &target.replica else {
            return;
        };
        let at = target
            .clock
            .when(replica.next_deadline())
            .max(self.now_ns + 1);
        if at < target.deadline_ns {
            target.deadline_ns = at;
            self.schedule(at, Event::Deadline { node });
        } else if at > target.deadline_ns {
            // The earlier one will find nothing due, and this one is set then.
        }
    }

    fn begin_sync(&mut self, node: usize) {
        let run = self.nodes[node].run;
        let at = self.now_ns + self.nodes[node].disk.sync_ns;
        self.schedule(at, Event::Synced { node, run });
    }

    fn perform(&mut self, node: usize, now: Time, actions: &mut Vec<Action>) {
        for action in actions.drain(..) {
            match action {
                Action::Send { to, envelope } => self.transmit(node, to, envelope),
                Action::Persist { sequence, records } => self.persist(node, sequence, records),
                Action::Reply { to, path, outcome } => self.reply(Reply { to, path, outcome }),
                Action::FencedReply {
                    to,
                    path,
                    outcome,
                    until,
                    again,
                } => {
                    let input = Input::FenceMissed { from: to, again };
                    if now >= until {
                        let run = self.nodes[node].run;
                        let event = Event::Step {
                            node,
                            input: Box::new(input),
                            run,
                        };
                        self.schedule(self.now_ns, event);
                    } else {
                        self.fenced(node, to, path, outcome);
                    }
                }
                Action::ReadLog {
                    log,
                    to,
                    from,
                    last,
                } => {
                    let entries = self.nodes[node].disk.read_log(log, from, last);
                    let input = Box::new(Input::LogRead { log, to, entries });
                    let run = self.nodes[node].run;
                    self.schedule(self.now_ns, Event::Step { node, input, run });
                }
                Action::Event(note) => {
                    self.notes.push((self.now_ns, ReplicaId(node as u8), note));
                }
            }
        }
    }

    fn persist(
        &mut self,
        node: usize,
        sequence: Sequence,
        records: Vec<crate::replica::action::Record>,
    ) {
        if self.nodes[node].disk.persist(sequence, records) {
            self.begin_sync(node);
        }
    }

    fn reply(&mut self, reply: Reply) {
        let at = self.now_ns + self.settings.client_one_way_ns;
        self.schedule(at, Event::Reply(reply));
    }

    fn fenced(&mut self, node: usize, to: ReadFrom, path: Path, outcome: Outcome) {
        match to {
            ReadFrom::Client(to) => self.reply(Reply { to, path, outcome }),
            ReadFrom::Peer(peer, request) => {
                let answer = ReadAnswer {
                    request,
                    outcome: Some((outcome, path)),
                };
                let message = Message::ReadAnswers(vec![answer]);
                let envelope = self.nodes[node]
                    .replica
                    .as_ref()
                    .map(|replica| replica.envelope(peer, message));
                if let Some(envelope) = envelope {
                    self.transmit(node, peer, envelope);
                }
            }
        }
    }

    fn transmit(&mut self, from: usize, to: ReplicaId, envelope: Envelope) {
        let to = to.index();
        let run = self.next_event;
        let arrivals = self
            .network
            .deliveries(&mut self.rng, self.now_ns, from, to);
        let mut arrivals = arrivals.peekable();
        while let Some(at) = arrivals.next() {
            if arrivals.peek().is_none() {
                let envelope = Box::new(envelope);
                return self.schedule(at, Event::Deliver { to, envelope, run });
            }
            let copy = Box::new(envelope.clone());
            self.schedule(
                at,
                Event::Deliver {
                    to,
                    envelope: copy,
                    run,
                },
            );
        }
    }
}
