//! The simulated world: replicas, links, disks, clocks and clients, advanced event by event.
//!
//! `events` defines the events and takes them from the queue. `iteration` is one iteration of a
//! process's loop, and `effects` performs the actions of the replica in this process. `faults` has
//! the methods that inject faults.

mod effects;
mod events;
mod faults;
mod iteration;

use leasehold_kernel::clock::Clock;
use leasehold_kernel::network::{Faults, Network};
use leasehold_kernel::queue::EventQueue;
use leasehold_kernel::trace::Trace;
use leasehold_leases::{ReplicaId, Time};
use leasehold_wire::{Command, Outcome, Path};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use self::effects::LastDelivery;
use self::events::QueuedEvent;
pub use self::faults::LEAVE_WITHIN_NS;
use super::disk::Disk;
use super::fault::{FaultCounts, FaultKind};
use super::faulty_reporter::FaultyReporter;
use super::node::Node;
use super::oracle::{Oracles, Verdict, Violation};
use leasehold_replica::action::{Action, ClientHandle, Event};
use leasehold_replica::shell::FencedAnswers;
use leasehold_replica::{Input, OperatorRequest, Replica, Settings};

/// Settings of a simulated world.
#[derive(Clone, Debug)]
pub struct WorldSettings {
    /// Settings that all replicas share. The world sets the field `me` for each replica.
    pub replica: Settings,
    /// One-way delays in ns, by sender and receiver.
    pub one_way_ns: Vec<Vec<u64>>,
    /// One-way delay between a client and its replica, in ns.
    pub client_one_way_ns: u64,
    /// Duration of a sync, in ns.
    pub sync_ns: u64,
    /// Faults of the links between replicas.
    pub faults: Faults,
    /// Maximum drift of clocks from true time, in parts per million.
    pub drift_ppm: u32,
    /// Whether messages are encoded and decoded. If they are, the messages are also checked against
    /// the limits of frames.
    pub encoded: bool,
    /// Whether disks keep their contents. Replicas that restart, and followers that lag, need the
    /// contents.
    pub disks_remember: bool,
    /// Length in bytes of the segments in which disks store their logs. If the value is `None`,
    /// disks do not store bytes, but an image of the contents. An image takes less time.
    pub segment_bytes: Option<usize>,
    /// Whether reads of logs may take long, and files may be used again under these reads.
    pub slow_reads: bool,
    /// Index of the replica that reports meaningless numbers as demand and round-trip times, if
    /// there is one.
    pub faulty_reporter: Option<usize>,
    /// Whether the oracles check the run.
    pub watched: bool,
}

/// An answer that reached a client.
#[derive(Clone, Debug)]
pub struct ClientReply {
    /// Request that is answered.
    pub to: ClientHandle,
    /// Path by which the request was served.
    pub path: Path,
    /// Outcome of the request.
    pub outcome: Outcome,
}

/// Result of one event, for the code that advances the world.
#[derive(Debug)]
pub enum WorldEvent {
    /// The event concerned replicas only.
    Nothing,
    /// These answers reached clients.
    Replied(Vec<ClientReply>),
    /// An alarm that was set with [`World::alarm`] went off, with this token.
    Alarm(u64),
    /// The process of this replica has ended, because it was told to end or was killed during a
    /// sync. The process starts again after this many ns; `None` if it does not start again.
    Ended(usize, Option<u64>),
}

/// Replicas, links, disks, clocks and clients, advanced event by event.
pub struct World {
    settings: WorldSettings,
    rng: Pcg64Mcg,
    now_ns: u64,
    queue: EventQueue<QueuedEvent>,
    nodes: Vec<Node>,
    network: Network,
    faulty_reporter: Option<FaultyReporter>,
    /// Number of steps so far. A step is counted when its actions are performed.
    steps: u64,
    /// Newest delivery on each link. The index consists of sender and receiver.
    last_deliveries: Vec<LastDelivery>,
    /// Buffers of past deliveries, which the next deliveries reuse.
    spare: Vec<Vec<Input>>,
    /// Answers to clients from the step that is being performed.
    replies: Vec<ClientReply>,
    answers: FencedAnswers,
    inputs: Vec<Input>,
    actions: Vec<Action>,
    /// Events that replicas announced: (true time in ns, replica, event).
    pub notes: Vec<(u64, ReplicaId, Event)>,
    /// Oracles, which see the entire world.
    pub oracles: Oracles,
    violation: Option<Violation>,
    fired: FaultCounts,
    /// Number of local reads that were answered in the last 10 ms of their permits.
    near_end: u64,
    hash: u64,
    /// Trace of the run, if one was requested.
    pub trace: Option<Trace>,
}

impl World {
    /// Creates a world in which every replica starts at true time 0. The same settings and seed
    /// give the same run, event by event.
    pub fn new(settings: WorldSettings, seed: u64) -> World {
        let n = settings.replica.n;
        let rng = Pcg64Mcg::seed_from_u64(seed);
        let network = Network::new(settings.one_way_ns.clone(), settings.faults);
        let mut world = World {
            rng,
            now_ns: 0,
            queue: EventQueue::new(),
            nodes: Vec::new(),
            network,
            faulty_reporter: settings
                .faulty_reporter
                .map(|node| FaultyReporter::new(node, seed)),
            steps: 0,
            last_deliveries: vec![LastDelivery::default(); n * n],
            spare: Vec::new(),
            replies: Vec::new(),
            answers: FencedAnswers::default(),
            inputs: Vec::new(),
            actions: Vec::new(),
            notes: Vec::new(),
            oracles: Oracles::new(&settings),
            violation: None,
            fired: FaultCounts::default(),
            near_end: 0,
            hash: 0,
            trace: None,
            settings,
        };
        for node in 0..n {
            let mut disk = Disk::new(world.settings.sync_ns, world.settings.disks_remember);
            if let Some(segment_bytes) = world.settings.segment_bytes {
                disk = disk.with_log(segment_bytes);
            }
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

    /// Draws the rate of a clock. The rate is within the bound on drift, and often exactly at the
    /// bound.
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

    /// Returns the true time, in ns.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Returns a digest of everything that has happened.
    pub fn trace_hash(&self) -> u64 {
        self.hash
    }

    /// Returns the number of replicas.
    pub fn n(&self) -> usize {
        self.nodes.len()
    }

    /// Returns a replica, if its process runs.
    pub fn replica(&self, node: usize) -> Option<&Replica> {
        self.nodes[node].replica()
    }

    /// Whether a replica runs and is not paused.
    pub fn is_up(&self, node: usize) -> bool {
        self.nodes[node].process.is_up()
    }

    /// Whether a replica refuses connections of clients. A replica refuses connections if its
    /// process is down, or if it has found that its disk was wiped.
    pub fn refuses(&self, node: usize) -> bool {
        let replica = self.nodes[node].replica();
        replica.is_none_or(Replica::is_wiped)
    }

    /// Whether a replica will never participate again, because its disk is damaged or was wiped.
    pub fn is_lost(&self, node: usize) -> bool {
        self.nodes[node].lost
    }

    /// Returns the current reading of a replica's clock.
    pub fn clock(&self, node: usize) -> Time {
        self.nodes[node].clock().read(self.now_ns)
    }

    /// Returns the first violation that was seen, if any.
    pub fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// Records the verdict of an oracle. The oracle was called by code outside of the world.
    pub fn judge(&mut self, verdict: Verdict) {
        if let Err(violation) = verdict {
            self.violation.get_or_insert(violation);
        }
    }

    /// Returns the number of times that each fault fired so far. The numbers include faults of the
    /// network, faults passed to [`note_fault`](Self::note_fault), and faults of queued merges. The
    /// `unsent` oracle counts the faults of queued merges.
    pub fn fired(&self) -> FaultCounts {
        let mut all = self.fired;
        let network = self.network.counts();
        all.add(FaultKind::Loss, network.lost);
        all.add(FaultKind::Duplication, network.duplicated);
        all.add(FaultKind::Reordering, network.reordered);
        all.add(FaultKind::OldPacket, network.old);
        all.merge(&self.oracles.unsent.fired);
        all
    }

    /// Returns the number of local reads that were answered in the last 10 ms of their permits.
    pub fn near_end(&self) -> u64 {
        self.near_end
    }

    /// Counts one occurrence of a fault that the network did not cause.
    pub fn note_fault(&mut self, fault: FaultKind) {
        self.fired.add(fault, 1);
        if let Some(trace) = &mut self.trace {
            trace.line(self.now_ns, format_args!("-- {}", fault.name()));
        }
    }

    /// Delivers an operator's request to a replica.
    pub fn operate(&mut self, node: usize, operator: OperatorRequest) {
        self.arrive(node, |inbox| inbox.push(Input::Operator(operator)));
    }

    /// Sends commands from a client to `node` now. The commands arrive together.
    pub fn request(&mut self, node: usize, requests: Vec<(ClientHandle, Command)>) {
        let at = self.now_ns + self.settings.client_one_way_ns;
        self.queue
            .schedule(at, QueuedEvent::Requests { node, requests });
    }

    /// Lets a client end its connection to `node` now. The replica's process notices the end after
    /// the one-way delay plus `after_ns`. The client sends nothing more on the connection.
    pub fn hang_up(&mut self, node: usize, connection: u64, after_ns: u64) {
        let at = self.now_ns + self.settings.client_one_way_ns + after_ns;
        let run = self.nodes[node].process.run();
        let hang_up = QueuedEvent::HangUp {
            node,
            connection,
            run,
        };
        self.queue.schedule(at, hang_up);
    }

    /// Sets an alarm: at true time `at_ns`, [`WorldEvent::Alarm`] returns `token`.
    pub fn alarm(&mut self, at_ns: u64, token: u64) {
        self.queue
            .schedule(at_ns.max(self.now_ns), QueuedEvent::Alarm(token));
    }

    fn note_hash(&mut self, kind: u64, node: usize, extra: u64) {
        for word in [self.now_ns, kind << 32 | node as u64, extra] {
            self.hash = (self.hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
    }

    fn note_trace(&mut self, node: usize, what: std::fmt::Arguments<'_>) {
        if let Some(trace) = &mut self.trace {
            trace.line(self.now_ns, format_args!("r{node} {what}"));
        }
    }
}
