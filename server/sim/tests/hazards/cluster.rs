//! A cluster that a test controls. Messages arrive immediately unless they are held or lost, disks
//! sync immediately unless they are stalled, and time passes when the test says so. Every replica
//! has a clock of its own.

use std::collections::VecDeque;
use std::time::Duration;

use leasehold_leases::{
    Ballot, Key, LeaseMessage, LeaseParams, Promise, RangeMap, ReplicaId, Slot, StrategySpec, Time,
};
use leasehold_replica::action::{ClientHandle, Event, Record, Requester, Sequence};
use leasehold_replica::input::ReadFrom;
use leasehold_replica::lease_set::LeaseAnswer;
use leasehold_replica::message::{Accept, Envelope, LogId, Message, PerLog};
use leasehold_replica::shell::{self, FencedAnswers, FencedReply, Host};
use leasehold_replica::{Input, Replica, Settings};
use leasehold_sim::disk::Disk;
use leasehold_sim::oracle::FrameOracle;
use leasehold_wire::command::Op;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::{Command, Outcome, Path};

/// A message in an envelope, and the replica that it is addressed to.
pub type Packet = (Envelope, ReplicaId);
type Rule = Box<dyn Fn(&Packet) -> bool>;

struct Node {
    replica: Option<Replica>,
    disk: Disk,
    stalled: bool,
    offset_ns: u64,
}

/// A cluster that a test controls.
pub struct Cluster {
    settings: Settings,
    now_ms: u64,
    nodes: Vec<Node>,
    in_flight: VecDeque<Packet>,
    hold: Vec<Rule>,
    lose: Vec<Rule>,
    /// Messages that are held back.
    pub held: Vec<Packet>,
    /// All messages ever sent, in order.
    pub sent: Vec<Packet>,
    /// All records ever written, with the replica that wrote each.
    pub written: Vec<(usize, Record)>,
    replies: Vec<(ClientHandle, Path, Outcome)>,
    /// Answers to reads that peers forwarded. The group of inputs that is being processed has
    /// produced these answers.
    answers: FencedAnswers,
    requests: u64,
    lives: u64,
    /// Answers to admin requests: (replica, number of the request, answer).
    pub lease_answers: Vec<(usize, u64, LeaseAnswer)>,
    /// Whether replica 0, the preferred leader, may request leadership when another replica leads.
    pub transfers: bool,
}

/// Handle of a client's request. A test uses it to find the answer to the request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestToken(u64);

/// Returns settings for `n` replicas. Replica 0 becomes the first leader, if it can.
pub fn settings(n: usize, strategy: impl Into<RangeMap<StrategySpec>>) -> Settings {
    let mut settings = Settings::new(ReplicaId(0), n);
    settings.strategies = strategy.into();
    settings.elections.preferred = Some(ReplicaId(0));
    // Schedules of tests depend on these durations.
    settings.params = LeaseParams::default();
    settings.timing.heartbeat = Duration::from_millis(250);
    settings.timing.election_timeout = Duration::from_millis(1500);
    settings.timing.reconfigure = Duration::from_millis(500);
    settings.elections.pre_vote = false; // the test chooses the replica that campaigns
    settings
}

/// Process of one replica, which performs the replica's actions.
struct NodeHost<'a>(&'a mut Cluster, usize);

impl Host for NodeHost<'_> {
    fn send(&mut self, to: ReplicaId, envelope: Envelope) {
        self.0.transmit(envelope, to);
    }

    fn persist(&mut self, sequence: Sequence, records: Vec<Record>) {
        let NodeHost(cluster, node) = self;
        let written = records.iter().map(|record| (*node, record.clone()));
        cluster.written.extend(written);
        cluster.nodes[*node].disk.persist(sequence, records);
    }

    fn flush(&mut self) {
        self.0.nodes[self.1].disk.request_flush();
    }

    fn truncate(&mut self, slots: PerLog<Slot>) {
        self.0.nodes[self.1].disk.truncate(slots);
    }

    fn reply(&mut self, to: ClientHandle, path: Path, outcome: Outcome) {
        self.0.replies.push((to, path, outcome));
    }

    fn fenced_reply(&mut self, read: FencedReply) {
        let NodeHost(cluster, node) = self;
        if !read.may_leave(cluster.clock(*node)) {
            return cluster.input(*node, read.missed());
        }
        let FencedReply {
            to, path, outcome, ..
        } = read;
        match to {
            ReadFrom::Client(to) => cluster.replies.push((to, path, outcome)),
            ReadFrom::Peer(peer, request) => cluster.answers.push(peer, request, outcome, path),
        }
    }

    fn read_log(&mut self, log: LogId, to: Requester, from: Slot, last: Slot) {
        let NodeHost(cluster, node) = self;
        let entries = cluster.nodes[*node].disk.read_log(log, from, last);
        cluster.input(*node, Input::LogRead { log, to, entries });
    }

    fn event(&mut self, event: Event) {
        if let Event::LeaseAnswered { ask, answer } = event {
            self.0.lease_answers.push((self.1, ask, answer));
        }
    }
}

impl Cluster {
    /// Returns a cluster led by replica 0, with the configuration in force and every lease active.
    pub fn new(n: usize, strategy: StrategySpec) -> Cluster {
        Cluster::with(settings(n, strategy))
    }

    /// Returns a cluster as [`new`](Self::new) does, but with these settings.
    pub fn with(settings: Settings) -> Cluster {
        let mut cluster = Cluster::asleep(settings);
        // Only the clock of replica 0 runs yet, so no other replica campaigns before it.
        while cluster.node(0).leader().is_none() {
            cluster.tick(0, 1);
        }
        cluster.pass(3000);
        assert!(cluster.leads(0), "replica 0 leads from the start");
        cluster
    }

    /// Returns a cluster of replicas that have just started. There is no leader yet.
    pub fn asleep(settings: Settings) -> Cluster {
        let nodes = (0..settings.n).map(|index| Node {
            replica: None,
            disk: Disk::new(0, true),
            stalled: false,
            offset_ns: 1_000_000_000_000 * (index as u64 + 1),
        });
        let mut cluster = Cluster {
            now_ms: 0,
            nodes: nodes.collect(),
            in_flight: VecDeque::new(),
            hold: Vec::new(),
            lose: Vec::new(),
            held: Vec::new(),
            sent: Vec::new(),
            written: Vec::new(),
            replies: Vec::new(),
            answers: FencedAnswers::default(),
            requests: 0,
            lives: 0,
            lease_answers: Vec::new(),
            transfers: false,
            settings,
        };
        (0..cluster.nodes.len()).for_each(|node| cluster.start(node));
        cluster
    }

    fn n(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the reading of replica `node`'s clock.
    pub fn clock(&self, node: usize) -> Time {
        Time(self.nodes[node].offset_ns + self.now_ms * 1_000_000)
    }

    /// Returns a running replica.
    pub fn node(&self, node: usize) -> &Replica {
        self.nodes[node].replica.as_ref().expect("it runs")
    }

    /// Returns the value of a counter in the present run of `node`. `name` is the name of the
    /// counter that operators see.
    pub fn counter(&self, node: usize, name: &str) -> u64 {
        let status = self.node(node).status(self.clock(node));
        let mut counters = status.counters.iter();
        let found = counters.find(|counter| counter.name == name);
        found.expect("there is such a counter").value
    }

    /// Whether `node` runs and considers itself the leader.
    pub fn leads(&self, node: usize) -> bool {
        let replica = self.nodes[node].replica.as_ref();
        replica.is_some_and(|replica| replica.leader() == Some(ReplicaId(node as u8)))
    }

    /// Starts a replica from its disk.
    pub fn start(&mut self, node: usize) {
        self.start_with(node, self.settings.clone());
    }

    /// Starts a replica from its disk, with other settings than before.
    pub fn start_with(&mut self, node: usize, mut settings: Settings) {
        settings.me = ReplicaId(node as u8);
        let now = self.clock(node);
        self.lives += 1;
        let life = self.lives;
        let recovered = self.nodes[node].disk.recover(|| life);
        let seed = self.now_ms * 64 + node as u64;
        self.nodes[node].replica = Some(Replica::new(now, settings, recovered, seed));
    }

    /// Ends a replica. Data that was not synced is lost.
    pub fn crash(&mut self, node: usize) {
        self.nodes[node].replica = None;
        self.nodes[node].disk.crash(0, 0);
        self.nodes[node].stalled = false;
    }

    /// Ends a replica, and makes its disk forget the commit points.
    pub fn crash_without_commits(&mut self, node: usize) {
        self.crash(node);
        self.nodes[node].disk.forget_commits();
    }

    /// Ends a replica and wipes its disk.
    pub fn wipe(&mut self, node: usize) {
        self.crash(node);
        self.nodes[node].disk.wipe();
    }

    /// Returns a copy of the disk of `node`.
    pub fn disk(&self, node: usize) -> Disk {
        self.nodes[node].disk.clone()
    }

    /// Ends a replica as a power failure does. The disk of the replica is replaced by `held`, an
    /// earlier copy, as if nothing had been synced since.
    pub fn lose_power(&mut self, node: usize, held: Disk) {
        self.crash(node);
        self.nodes[node].disk = held;
    }

    /// Stalls the disk of `node`: nothing becomes durable from now on.
    pub fn stall(&mut self, node: usize) {
        self.nodes[node].stalled = true;
    }

    /// Ends the stall of the disk of `node`. All records that waited become durable.
    pub fn unstall(&mut self, node: usize) {
        self.nodes[node].stalled = false;
        self.sync(node);
        self.deliver_all();
    }

    /// Holds back messages for which `rule` is true, until [`release`](Self::release).
    pub fn hold(&mut self, rule: impl Fn(&Packet) -> bool + 'static) {
        self.hold.push(Box::new(rule));
    }

    /// Stops holding messages back, and delivers the held ones.
    pub fn release(&mut self) {
        self.hold.clear();
        self.in_flight.extend(std::mem::take(&mut self.held));
        self.deliver_all();
    }

    /// Stops holding messages back, and drops the held ones.
    pub fn forget_held(&mut self) {
        self.hold.clear();
        self.held.clear();
    }

    /// Loses messages for which `rule` is true, until [`heal`](Self::heal).
    pub fn lose(&mut self, rule: impl Fn(&Packet) -> bool + 'static) {
        self.lose.push(Box::new(rule));
    }

    /// Loses all messages to and from `node`.
    pub fn isolate(&mut self, node: usize) {
        self.lose(move |(envelope, to)| envelope.from.index() == node || to.index() == node);
    }

    /// Stops losing messages.
    pub fn heal(&mut self) {
        self.lose.clear();
    }

    /// Delivers a packet now, regardless of the rules.
    pub fn deliver(&mut self, packet: Packet) {
        let (envelope, to) = packet;
        self.input(to.index(), Input::Peer(envelope));
        self.deliver_all();
    }

    /// Hands a replica one input.
    pub fn input(&mut self, node: usize, input: Input) {
        self.inputs(node, vec![input]);
    }

    /// Hands a replica inputs that arrived together.
    pub fn inputs(&mut self, node: usize, inputs: Vec<Input>) {
        let now = self.clock(node);
        let Some(replica) = self.nodes[node].replica.as_mut() else {
            return;
        };
        let mut actions = Vec::new();
        for input in inputs {
            replica.step(now, input, &mut actions);
        }
        replica.flush(now, &mut actions);
        replica.check();
        for action in actions {
            shell::perform(action, &mut NodeHost(self, node));
        }
        for (peer, message) in self.answers.take() {
            let envelope = self.node(node).envelope(peer, message);
            self.transmit(envelope, peer);
        }
        self.sync(node);
    }

    /// Transmits a message as its addressee decodes it. The message must fit into a frame.
    fn transmit(&mut self, envelope: Envelope, to: ReplicaId) {
        let decoded = FrameOracle::default().pass(envelope);
        let packet = (decoded.unwrap_or_else(|refused| panic!("{refused:?}")), to);
        // The test chooses the leader.
        if !self.transfers && matches!(packet.0.message, Message::TransferRequest) {
            return;
        }
        self.sent.push(packet.clone());
        if self.lose.iter().any(|rule| rule(&packet)) {
            return;
        }
        if self.hold.iter().any(|rule| rule(&packet)) {
            return self.held.push(packet);
        }
        self.in_flight.push_back(packet);
    }

    fn sync(&mut self, node: usize) {
        while !self.nodes[node].stalled {
            if self.nodes[node].disk.begin_flush() {
                let slots = self.nodes[node].disk.flushed();
                self.input(node, Input::Flushed(slots));
                continue;
            }
            let (Some(sequence), _) = self.nodes[node].disk.synced() else {
                return;
            };
            self.input(node, Input::Persisted(sequence));
        }
    }

    fn deliver_all(&mut self) {
        while let Some((envelope, to)) = self.in_flight.pop_front() {
            self.input(to.index(), Input::Peer(envelope));
        }
    }

    fn tick(&mut self, node: usize, ms: u64) {
        self.now_ms += ms;
        let now = self.clock(node);
        let due = |replica: &Replica| replica.next_deadline() <= now;
        if self.nodes[node].replica.as_ref().is_some_and(due) {
            self.input(node, Input::Tick);
        }
        self.deliver_all();
    }

    /// Lets time pass for all replicas, in ms.
    pub fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now_ms += 1;
            (0..self.n()).for_each(|node| self.tick(node, 0));
        }
    }

    /// Lets time pass until `done`, for at most `ms` milliseconds.
    pub fn pass_until(&mut self, ms: u64, what: &str, done: impl Fn(&Cluster) -> bool) {
        for _ in 0..ms {
            if done(self) {
                return;
            }
            self.pass(1);
        }
        assert!(done(self), "after {ms} ms still not so: {what}");
    }

    /// Makes `node` campaign, as if the current leader had transferred leadership to it.
    pub fn elect(&mut self, node: usize) {
        let leader = self.node(node).leader().expect("somebody hands over");
        let news = self
            .sent
            .iter()
            .rev()
            .filter(|(envelope, _)| envelope.from == leader);
        let ballot = news.filter_map(heartbeat_of).next();
        let ballot = ballot.expect("a leader sends heartbeats");
        let message = Message::Transfer {
            ballot,
            by_operator: false,
        };
        // The message is between the runs that this node knows, whether or not the leader is up.
        let back = self.node(node).envelope(leader, message);
        let envelope = Envelope {
            from: leader,
            from_incarnation: back.to_incarnation,
            to_incarnation: back.from_incarnation,
            message: back.message,
        };
        self.deliver((envelope, ReplicaId(node as u8)));
    }

    fn handle(&mut self) -> ClientHandle {
        self.requests += 1;
        ClientHandle {
            connection: 1,
            request: self.requests,
        }
    }

    /// Sends a client's command to `node`, and handles everything that follows from it without a
    /// lapse of time.
    pub fn ask(&mut self, node: usize, command: Command) -> RequestToken {
        let from = self.handle();
        self.input(node, Input::Client { from, command });
        self.deliver_all();
        RequestToken(from.request)
    }

    /// Sends commands of different clients to `node`, all at the same moment.
    pub fn ask_together(&mut self, node: usize, commands: Vec<Command>) -> Vec<RequestToken> {
        let handles: Vec<ClientHandle> = commands.iter().map(|_| self.handle()).collect();
        let inputs = handles.iter().zip(commands).map(|(from, command)| {
            let from = *from;
            Input::Client { from, command }
        });
        let inputs = inputs.collect();
        self.inputs(node, inputs);
        self.deliver_all();
        handles
            .iter()
            .map(|from| RequestToken(from.request))
            .collect()
    }

    /// Sends a client's read of `key` to `node`.
    pub fn read(&mut self, node: usize, key: &'static str) -> RequestToken {
        self.ask(node, read(key))
    }

    /// Returns the answer to a request; `None` if there is none yet.
    pub fn answer(&self, request: RequestToken) -> Option<&(ClientHandle, Path, Outcome)> {
        self.replies.iter().find(|(to, ..)| to.request == request.0)
    }

    /// Returns all answers that were sent on a connection.
    pub fn replies_to(&self, connection: u64) -> Vec<&(ClientHandle, Path, Outcome)> {
        let replies = self.replies.iter();
        replies
            .filter(|(to, ..)| to.connection == connection)
            .collect()
    }

    /// Whether a request was answered.
    pub fn answered(&self, request: RequestToken) -> bool {
        self.answer(request).is_some()
    }

    /// Returns the path by which a request was served, if it was answered.
    pub fn path(&self, request: RequestToken) -> Option<Path> {
        self.answer(request).map(|(_, path, _)| *path)
    }

    /// Returns the value in the answer to a read; "" if the key was missing, `None` without an
    /// answer.
    pub fn value(&self, request: RequestToken) -> Option<String> {
        let (.., outcome) = self.answer(request)?;
        match outcome.result.as_ref()? {
            Answer::Value(value) => Some(String::from_utf8_lossy(&value.value).into_owned()),
            Answer::Missing(_) => Some(String::new()),
            _ => None,
        }
    }

    /// Whether the answer to a write says that the write was executed.
    pub fn done(&self, request: RequestToken) -> bool {
        let outcome = self
            .answer(request)
            .and_then(|(.., outcome)| outcome.result.as_ref());
        matches!(outcome, Some(Answer::Written(_)))
    }

    /// Checks that all running replicas have executed the same values.
    pub fn assert_agreement(&self) {
        let running: Vec<&Replica> = self
            .nodes
            .iter()
            .filter_map(|n| n.replica.as_ref())
            .collect();
        for pair in running.windows(2) {
            assert_eq!(pair[0].executed(), pair[1].executed(), "executed as far");
            assert_eq!(pair[0].digest(), pair[1].digest(), "the same state");
        }
    }

    /// Returns the newest promise that `from` sent to `to`.
    pub fn last_promise(&self, from: usize, to: usize) -> Option<Promise> {
        self.sent
            .iter()
            .rev()
            .find_map(|packet| match &packet.0.message {
                Message::Lease(LeaseMessage::Promise(promise)) if between(packet, from, to) => {
                    Some(*promise)
                }
                _ => None,
            })
    }

    /// Returns the Accepts for the log of commands that `from` has sent, oldest first.
    pub fn accepts(&self, from: usize) -> Vec<Accept> {
        let accepts = self
            .sent
            .iter()
            .filter(|(envelope, _)| envelope.from.index() == from);
        let accepts = accepts.filter_map(|packet| accept(packet).cloned());
        accepts.collect()
    }

    /// Returns the number of times that `from` has forwarded commands to `to`.
    pub fn forwards(&self, from: usize, to: usize) -> usize {
        let sent = self.sent.iter().filter(|packet| between(packet, from, to));
        sent.filter(|(envelope, _)| matches!(envelope.message, Message::Forward { .. }))
            .count()
    }
}

/// Returns a write of `value` under `key`. The client has received the answers to all of its
/// earlier writes.
pub fn put(client: u64, sequence: u64, key: &'static str, value: &'static str) -> Command {
    write(client, sequence, Op::put(key, value))
}

/// Returns a write with operation `op`. The client has received the answers to all of its earlier
/// writes.
pub fn write(client: u64, sequence: u64, op: Op) -> Command {
    Command {
        client,
        sequence,
        acked_below: sequence,
        opened_ms: 0,
        op: Some(op),
    }
}

/// Returns a read of `key`.
pub fn read(key: &'static str) -> Command {
    Command {
        op: Some(Op::get(Key::from(key))),
        ..Command::default()
    }
}

/// Whether a packet travels between two replicas, in either direction.
pub fn between(packet: &Packet, a: usize, b: usize) -> bool {
    let (envelope, to) = packet;
    envelope.from.index() == a && to.index() == b
}

/// Returns the Accept in a packet, if the packet is an Accept for the log of commands.
pub fn accept(packet: &Packet) -> Option<&Accept> {
    match &packet.0.message {
        Message::Accept(accept) if accept.log == LogId::Commands => Some(accept),
        _ => None,
    }
}

/// Whether a packet contains votes in the log of commands. If `slot` is given, there must be a vote
/// on this slot.
pub fn votes_on(packet: &Packet, slot: Option<Slot>) -> bool {
    match &packet.0.message {
        Message::Accepted {
            log: LogId::Commands,
            votes,
            ..
        } => slot.is_none_or(|slot| votes.iter().any(|(at, _)| *at == slot)),
        _ => false,
    }
}

/// Whether a packet concerns leases.
pub fn about_leases(packet: &Packet) -> bool {
    matches!(packet.0.message, Message::Lease(_))
}

/// Returns the ballot of the leader that sent a packet, if the packet is a heartbeat.
pub fn heartbeat_of(packet: &Packet) -> Option<Ballot> {
    match &packet.0.message {
        Message::Heartbeat { ballot, .. } => Some(*ballot),
        _ => None,
    }
}
