//! A cluster of three replicas that the body of a fuzz target controls. Messages arrive
//! immediately, disks sync immediately, and time passes only if the body lets it pass.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use leasehold_leases::{ReplicaId, Slot, StrategySpec, Time};
use leasehold_replica::action::{ClientHandle, Event, Record, Requester, Sequence};
use leasehold_replica::codec::{
    Position, decode_ballot, decode_entry, decode_frames, decode_listed, decode_position,
    encode_ballot, encode_entry, encode_frames, encode_listed, encode_position,
};
use leasehold_replica::input::ReadFrom;
use leasehold_replica::message::{Envelope, LogId, PerLog, Value};
use leasehold_replica::shell::{self, FencedAnswers, FencedReply, Host};
use leasehold_replica::{Input, Replica, Settings};
use leasehold_sim::disk::Disk;
use leasehold_sim::oracle::FrameOracle;
use leasehold_wire::{Command, Outcome, Path};

use super::samples;

/// The replica to which the messages of the input are sent.
pub const VICTIM: ReplicaId = ReplicaId(0);
/// The member that sends the messages of the input, on its own connection.
pub const LIAR: ReplicaId = ReplicaId(1);
/// The third member of the cluster.
pub const OTHER: ReplicaId = ReplicaId(2);

/// Maximum number of messages that may follow one event. If there are more messages, the body
/// assumes that the replicas exchange messages endlessly, and panics.
const MESSAGES_MAX: usize = 10_000;
/// Minimum time between two checks of the timers.
const TICK_MIN: Duration = Duration::from_millis(1);
/// Size of the window of the log. It is small, so that inputs reach the end of the window.
const LOG_WINDOW: u64 = 256;

#[derive(Clone, Debug)]
struct Node {
    replica: Replica,
    disk: Disk,
    /// Whether the replica runs and is connected.
    up: bool,
    /// Number of commands that the replica's clients have sent.
    requested: u64,
}

/// Three replicas with their disks, the messages between these replicas, and a clock that the body
/// advances.
#[derive(Clone, Debug)]
pub struct Cluster {
    settings: Settings,
    now: Time,
    nodes: Vec<Node>,
    flying: VecDeque<(ReplicaId, Envelope)>,
    /// Messages from the liar to the victim. Such messages are stored here instead of being
    /// delivered. `None` if the messages are delivered.
    pub captured: Option<VecDeque<Envelope>>,
    /// Answers to clients. Each answer is stored with the replica that sent the answer.
    pub replies: Vec<(ReplicaId, ClientHandle, Outcome)>,
    /// Values that replicas have accepted.
    pub accepted: Vec<Value>,
}

/// The simulated process of one replica. This process carries out the outputs of the replica.
struct NodeHost<'a>(&'a mut Cluster, ReplicaId, FencedAnswers);

impl Host for NodeHost<'_> {
    /// Encodes a message, decodes it again, and sends the result. Asserts that the message can be
    /// encoded, and that the receiver can decode it.
    fn send(&mut self, to: ReplicaId, envelope: Envelope) {
        let NodeHost(cluster, from, _) = self;
        let decoded = FrameOracle::default().pass(envelope);
        let envelope = decoded.unwrap_or_else(|refused| panic!("{refused:?}"));
        match &mut cluster.captured {
            Some(captured) if (*from, to) == (LIAR, VICTIM) => captured.push_back(envelope),
            _ => cluster.flying.push_back((to, envelope)),
        }
    }

    fn persist(&mut self, sequence: Sequence, records: Vec<Record>) {
        records.iter().for_each(assert_readable);
        let NodeHost(cluster, node, _) = self;
        for record in &records {
            if let Record::Accepted { value, .. } = record {
                cluster.accepted.push(value.clone());
            }
        }
        cluster.nodes[node.index()].disk.persist(sequence, records);
    }

    fn flush(&mut self) {
        self.0.nodes[self.1.index()].disk.request_flush();
    }

    fn truncate(&mut self, slots: PerLog<Slot>) {
        self.0.nodes[self.1.index()].disk.truncate(slots);
    }

    fn reply(&mut self, to: ClientHandle, _: Path, outcome: Outcome) {
        self.0.replies.push((self.1, to, outcome));
    }

    fn fenced_reply(&mut self, read: FencedReply) {
        if !read.may_leave(self.0.now) {
            return self.0.input(self.1, read.missed());
        }
        let FencedReply {
            to, path, outcome, ..
        } = read;
        match to {
            ReadFrom::Client(to) => self.reply(to, path, outcome),
            ReadFrom::Peer(peer, request) => self.2.push(peer, request, outcome, path),
        }
    }

    fn read_log(&mut self, log: LogId, to: Requester, from: Slot, last: Slot) {
        let NodeHost(cluster, node, _) = self;
        let entries = cluster.node(*node).disk.read_log(log, from, last);
        cluster.input(*node, Input::LogRead { log, to, entries });
    }

    fn event(&mut self, _: Event) {}
}

/// Asserts that a record on the disk can be read when the replica starts again.
fn assert_readable(record: &Record) {
    let mut bytes = Vec::new();
    match record {
        Record::Promised(ballot) => {
            encode_ballot(*ballot, &mut bytes);
            assert_eq!(decode_ballot(bytes.into()), Ok(*ballot));
        }
        Record::Accepted { ballot, value, .. } => {
            encode_entry(*ballot, value, &mut bytes);
            let read = decode_entry(bytes.into());
            assert_eq!(read.as_ref(), Ok(&(*ballot, value.clone())));
        }
        Record::Changes(changes) => {
            let position = Position {
                executed: changes.executed,
                config: changes.config,
                log_time_ms: changes.log_time_ms,
                opens_from_ms: changes.opens_from_ms,
            };
            encode_position(&position, &mut bytes);
            assert_eq!(decode_position(bytes.into()), Ok(position));
            if let Some(frames) = &changes.configs {
                let mut bytes = Vec::new();
                encode_frames(frames, &mut bytes);
                assert_eq!(decode_frames(bytes.into()).as_ref(), Ok(frames));
            }
            for versions in changes.listed.iter().filter_map(|(_, it)| it.as_ref()) {
                let mut bytes = Vec::new();
                encode_listed(versions, &mut bytes);
                assert_eq!(decode_listed(bytes.into()).as_ref(), Ok(versions));
            }
        }
        _ => {}
    }
}

impl Cluster {
    /// Creates replicas that have already worked for a while under `leader`: the replicas hold
    /// leases, and clients have sent writes and reads to each of them.
    pub fn led_by(leader: ReplicaId, strategy: StrategySpec) -> Cluster {
        let mut settings = Settings::new(VICTIM, 3);
        settings.strategies = strategy.into();
        settings.elections.preferred = Some(leader);
        settings.log_window = LOG_WINDOW;
        let now = Time(1_000_000_000_000);
        let nodes = [VICTIM, LIAR, OTHER].map(|me| {
            let mut disk = Disk::joined(0, 1 + u64::from(me.0));
            let replica = start(now, &settings, me, &mut disk);
            let (up, requested) = (true, 0);
            Node {
                replica,
                disk,
                up,
                requested,
            }
        });
        let mut cluster = Cluster {
            settings,
            now,
            nodes: nodes.into(),
            flying: VecDeque::new(),
            captured: None,
            replies: Vec::new(),
            accepted: Vec::new(),
        };
        cluster.pass(Duration::from_secs(30));
        for _ in samples::commands() {
            [VICTIM, LIAR, OTHER]
                .into_iter()
                .for_each(|node| cluster.ask_next(node));
            cluster.pass(Duration::from_millis(200));
        }
        cluster.pass(Duration::from_secs(5));
        assert_eq!(cluster.replica(VICTIM).leader(), Some(leader));
        assert!(
            cluster.replica(VICTIM).executed() > Slot(9),
            "the victim has executed all commands"
        );
        cluster.replies.clear();
        cluster
    }

    fn node(&self, id: ReplicaId) -> &Node {
        &self.nodes[id.index()]
    }

    /// Returns the replica with this id.
    pub fn replica(&self, id: ReplicaId) -> &Replica {
        &self.node(id).replica
    }

    /// Disconnects the replica: from now on it neither sends nor receives messages.
    pub fn cut_off(&mut self, id: ReplicaId) {
        self.nodes[id.index()].up = false;
    }

    /// Ends the process of a replica, and starts the replica again with the contents of its disk.
    pub fn restart(&mut self, id: ReplicaId) {
        let (now, settings) = (self.now, &self.settings);
        let node = &mut self.nodes[id.index()];
        node.disk.crash(0, 0);
        node.replica = start(now, settings, id, &mut node.disk);
        node.replica.check();
        self.flying.clear();
    }

    /// Gives one input to a replica, and delivers all messages that follow from the input. The
    /// clock does not advance.
    pub fn give(&mut self, id: ReplicaId, input: Input) {
        self.input(id, input);
        self.deliver_all();
    }

    /// Sends the next sample command as a client of this replica.
    pub fn ask_next(&mut self, id: ReplicaId) {
        let node = &mut self.nodes[id.index()];
        node.requested += 1;
        let requested = node.requested;
        let all = samples::commands();
        let op = all[requested as usize % all.len()].op.clone();
        let op = op.expect("a sample has an operation");
        let from = ClientHandle {
            connection: 1,
            request: requested,
        };
        let client = 1000 + u64::from(id.0);
        let command = Command {
            opened_ms: node.replica.log_time_ms(),
            ..Command::session(client, requested, requested, op)
        };
        self.give(id, Input::Client { from, command });
    }

    /// Lets the time `duration` pass for all replicas.
    pub fn pass(&mut self, duration: Duration) {
        let until = self.now + duration;
        loop {
            let up = self.nodes.iter().filter(|node| node.up);
            let next = up.map(|node| node.replica.next_deadline()).min();
            let next = next.map_or(until, |next| next.max(self.now + TICK_MIN));
            if next >= until {
                break;
            }
            self.now = next;
            self.tick();
        }
        self.now = until;
        self.tick();
    }

    fn tick(&mut self) {
        for id in [VICTIM, LIAR, OTHER] {
            if self.node(id).replica.next_deadline() <= self.now {
                self.give(id, Input::Tick);
            }
        }
    }

    fn deliver_all(&mut self) {
        for _ in 0..MESSAGES_MAX {
            let Some((to, envelope)) = self.flying.pop_front() else {
                return;
            };
            self.input(to, Input::Peer(envelope));
        }
        panic!("messages go back and forth without end: {:?}", self.flying);
    }

    fn input(&mut self, id: ReplicaId, input: Input) {
        let mut next = Some(input);
        while let Some(input) = next {
            let (now, node) = (self.now, &mut self.nodes[id.index()]);
            if !node.up {
                return;
            }
            let mut actions = Vec::new();
            node.replica.step(now, input, &mut actions);
            node.replica.flush(now, &mut actions);
            node.replica.check();
            let mut at = NodeHost(self, id, FencedAnswers::default());
            for action in actions {
                shell::perform(action, &mut at);
            }
            let mut answers = std::mem::take(&mut at.2);
            for (to, message) in answers.take() {
                let envelope = self.replica(id).envelope(to, message);
                NodeHost(self, id, FencedAnswers::default()).send(to, envelope);
            }
            let (synced, _) = self.nodes[id.index()].disk.synced();
            next = synced.map(Input::Persisted);
            if next.is_none() && self.nodes[id.index()].disk.begin_flush() {
                next = Some(Input::Flushed(self.nodes[id.index()].disk.flushed()));
            }
        }
    }

    /// Returns all keys with their values, as a client of this replica reads them.
    pub fn read_all(&mut self, id: ReplicaId) -> Vec<(Bytes, Bytes)> {
        let from = ClientHandle {
            connection: u64::MAX,
            request: self.replies.len() as u64,
        };
        let op = leasehold_wire::command::Op::scan("", "", 10_000);
        let command = Command::from(op);
        self.give(id, Input::Client { from, command });
        let mut waited = 0;
        let answer = loop {
            if let Some((.., outcome)) = self.replies.iter().find(|(_, to, _)| *to == from) {
                break outcome;
            }
            self.pass(Duration::from_millis(100));
            waited += 1;
            assert!(waited < 100, "a scan is answered within 10 s");
        };
        match &answer.result {
            Some(leasehold_wire::outcome::Result::Entries(found)) => {
                let found = found.entries.iter();
                found
                    .map(|entry| (entry.key.clone(), entry.value.clone()))
                    .collect()
            }
            other => panic!("a scan is answered with {other:?}"),
        }
    }
}

fn start(now: Time, settings: &Settings, me: ReplicaId, disk: &mut Disk) -> Replica {
    let mut settings = settings.clone();
    settings.me = me;
    let recovered = disk.recover(|| unreachable!("the directory was made"));
    Replica::new(now, settings, recovered, now.0 + u64::from(me.0))
}
