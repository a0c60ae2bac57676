//! One replica with its disk, and the reactions of the replica to events.
//!
//! The replica is the one that serves clients, driven as `leasehold-node` drives it: it takes a step
//! with all inputs that arrived together, then flushes, then performs its actions. Reactions are
//! remembered, because the same replica receives the same packet in very many states of the world.
//! A reaction depends only on the fingerprint of the replica, the event, and its circumstances.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use foldhash::fast::FixedState;
use leasehold_leases::mutants::Rule;
use leasehold_leases::{LeaseMessage, ReplicaId, Slot, Time, fingerprint};
use leasehold_replica::action::{ClientHandle, Event, Record, Requester, Sequence};
use leasehold_replica::input::ReadFrom;
use leasehold_replica::message::{Envelope, LogId, Message, PerLog, ReadAnswer};
use leasehold_replica::shell::{self, FencedReply, Host};
use leasehold_replica::{Input, Replica};
use leasehold_sim::disk::Disk;
use leasehold_wire::{Command, Outcome, Path};

use super::model::{Leasehold, Milestone};
use super::scenario::{N, Scenario};

/// Messages that a replica sent to one other replica in one reaction. They arrive together, like
/// the contents of one write to a socket.
#[derive(Clone, Debug)]
pub struct Packet {
    pub messages: Vec<Envelope>,
    pub digest: u64,
}

/// A replica and its disk.
#[derive(Clone)]
pub struct Node {
    pub replica: Replica,
    disk: Disk,
    /// Last slots that the state on the disk covers.
    pub flushed: PerLog<Slot>,
    /// Whether entries were removed from the log since exploration began.
    pub truncated: bool,
    /// Records that were handed to the disk and are not durable yet.
    pub writing: VecDeque<(Sequence, Vec<Record>)>,
    /// Digest of all fields above.
    pub digest: u64,
}

/// Event that happens to a replica.
pub enum Stimulus {
    /// Messages of one peer arrive.
    Packet(Arc<Packet>),
    /// The oldest write of the replica becomes durable.
    Synced,
    /// Everything that the replica has executed becomes durable in its state.
    Flush,
    /// The replica's clock ticks.
    Tick,
    /// The replica ends, loses everything that is not durable, and starts again.
    Crash,
    /// The replica's election timeout passes, and no message of the leader arrives.
    Silence,
    /// A client sends a command.
    Ask(ClientHandle, Command),
}

impl Stimulus {
    fn digest(&self) -> u64 {
        match self {
            Stimulus::Packet(packet) => packet.digest,
            Stimulus::Synced => 1,
            Stimulus::Tick => 2,
            Stimulus::Crash => 3,
            Stimulus::Silence => 4,
            Stimulus::Flush => 5,
            Stimulus::Ask(from, command) => fingerprint::of(&(from, command)),
        }
    }
}

/// Circumstances that affect a reaction, besides the replica and the stimulus.
#[derive(Clone, Copy, Debug, Hash)]
pub struct ReactionContext {
    pub me: usize,
    pub now: Time,
    pub crashes_left: u8,
    /// Whether some read was sent and has not been answered.
    pub reading: bool,
}

/// Replica after its reaction to a stimulus, and the effects of the reaction.
pub struct Reaction {
    pub node: Arc<Node>,
    pub sent: Vec<(usize, Arc<Packet>)>,
    pub answers: Vec<(ClientHandle, Path, Outcome)>,
    /// Slots that the replica executed, each with the fingerprint of the executed value.
    pub executed: Vec<(LogId, Slot, u64)>,
    pub events: Vec<Event>,
    pub reached: Vec<Milestone>,
}

impl Reaction {
    /// Whether two reactions have the same effects, as far as fingerprints can tell.
    fn is_like(&self, other: &Reaction) -> bool {
        let sent = |it: &Reaction| -> Vec<_> {
            let packets = it.sent.iter();
            packets.map(|(to, packet)| (*to, packet.digest)).collect()
        };
        self.node.digest == other.node.digest
            && sent(self) == sent(other)
            && self.executed == other.executed
            && self.answers == other.answers
    }

    /// Whether the reaction left `node` unchanged and had no effect.
    pub fn is_none(&self, node: &Node) -> bool {
        let silent = self.sent.is_empty() && self.answers.is_empty() && self.executed.is_empty();
        silent && self.node.digest == node.digest
    }
}

/// Remembered reactions. Reactions are forgotten as soon as there are too many for the memory.
#[derive(Default)]
pub struct Reactions(Vec<Mutex<Shard>>);

type Shard = HashMap<(u64, u64), Arc<Reaction>, FixedState>;

const SHARDS: usize = 64;
const REACTIONS_MAX: usize = 400_000;

/// Inverse of the share of remembered reactions that are computed anew and compared. A difference
/// means that the fingerprint omits something that matters.
const COMPARED_OF: u64 = 8;

impl Reactions {
    /// Creates an empty memory of reactions.
    pub fn new() -> Reactions {
        Reactions((0..SHARDS).map(|_| Mutex::default()).collect())
    }

    /// Returns the reaction of `node` to a stimulus; `Err` if the replica finds an invariant of its
    /// own broken.
    pub fn of(
        &self,
        node: &Arc<Node>,
        circumstances: ReactionContext,
        stimulus: &Stimulus,
        model: &Leasehold,
    ) -> Result<Arc<Reaction>, String> {
        let compute = || {
            let react = AssertUnwindSafe(|| {
                run(model.without, || node.react(circumstances, stimulus, model))
            });
            catch_unwind(react).map(Arc::new).map_err(|panic| {
                let text = panic.downcast_ref::<String>().cloned();
                let fixed = panic.downcast_ref::<&str>().map(|text| text.to_string());
                text.or(fixed).unwrap_or_default()
            })
        };
        if !model.exploring() {
            return compute();
        }
        let key = (
            fingerprint::of(&(node.digest, circumstances)),
            stimulus.digest(),
        );
        let shard = &self.0[key.0 as usize % SHARDS];
        let known = shard.lock().expect("no panic in here").get(&key).cloned();
        if let Some(reaction) = known {
            if key.1.is_multiple_of(COMPARED_OF) {
                let again = compute()?;
                assert!(again.is_like(&reaction), "one fingerprint, two reactions");
            }
            return Ok(reaction);
        }
        let reaction = compute()?;
        let mut shard = shard.lock().expect("no panic in here");
        if shard.len() >= REACTIONS_MAX / SHARDS {
            shard.clear();
        }
        shard.insert(key, reaction.clone());
        Ok(reaction)
    }
}

impl Node {
    /// Creates a replica that starts on an empty disk.
    pub fn new(scenario: &Scenario, me: usize, now: Time) -> Node {
        let mut disk = Disk::new(0, true);
        let recovered = disk.recover(|| 0);
        Node {
            replica: Replica::new(now, scenario.settings(me), recovered, me as u64),
            disk,
            flushed: PerLog::default(),
            truncated: false,
            writing: VecDeque::new(),
            digest: 0,
        }
    }

    fn react(&self, at: ReactionContext, stimulus: &Stimulus, model: &Leasehold) -> Reaction {
        let mut node = self.clone();
        let mut reached = Vec::new();
        let inputs = match stimulus {
            Stimulus::Packet(packet) => {
                let messages = packet.messages.iter().cloned();
                messages.map(Input::Peer).collect()
            }
            Stimulus::Synced => {
                let (sequence, records) = node.writing.pop_front().expect("something to sync");
                node.make_durable(sequence, records);
                vec![Input::Persisted(sequence)]
            }
            Stimulus::Flush => {
                node.replica.expire_flush(at.now);
                vec![Input::Tick]
            }
            Stimulus::Tick => vec![Input::Tick],
            Stimulus::Crash => {
                if node.truncated {
                    reached.push(Milestone::RestartedTruncated);
                }
                node.disk.crash(0, 0);
                let recovered = node.disk.recover(|| 0);
                let settings = model.scenario.settings(at.me);
                node.replica = Replica::new(at.now, settings, recovered, at.me as u64);
                node.writing.clear();
                vec![Input::Tick]
            }
            Stimulus::Silence => {
                node.replica.expire_election(at.now);
                vec![Input::Tick]
            }
            Stimulus::Ask(from, command) => {
                let (from, command) = (*from, command.clone());
                vec![Input::Client { from, command }]
            }
        };
        node.drive(at, inputs, reached, model)
    }

    /// Gives the replica inputs that arrived together, and performs the resulting actions.
    fn drive(
        mut self,
        at: ReactionContext,
        inputs: Vec<Input>,
        reached: Vec<Milestone>,
        model: &Leasehold,
    ) -> Reaction {
        let before = LogId::ALL.map(|log| self.replica.executed_of(log));
        let is_slow = model.exploring() && model.scenario.is_slow(at.me, at.crashes_left);
        let mut host = Process {
            node: &mut self,
            now: at.now,
            is_slow,
            inputs,
            sends: Default::default(),
            answers: Vec::new(),
            events: Vec::new(),
            reached,
        };
        let mut effects = Vec::new();
        while !host.inputs.is_empty() {
            for input in host.inputs.drain(..) {
                host.node.replica.step(at.now, input, &mut effects);
            }
            host.node.replica.flush(at.now, &mut effects);
            host.node.replica.check();
            for effect in effects.drain(..) {
                shell::perform(effect, &mut host);
            }
        }
        let Process {
            sends,
            answers,
            events,
            mut reached,
            ..
        } = host;
        let sent = packets(sends, at, model);
        let votes = |e: &Envelope| matches!(e.message, Message::Accepted { .. });
        let voted = sent.iter().any(|(_, p)| p.messages.iter().any(votes));
        if voted && self.replica.incarnation().0 > 1 {
            reached.push(Milestone::RestartedVotes);
        }
        let executed = self.executed_since(before);
        if model.exploring() {
            self.digest = self.sum(at, model);
        }
        Reaction {
            node: Arc::new(self),
            sent,
            answers,
            executed,
            events,
            reached,
        }
    }

    fn executed_since(&self, before: [Slot; 2]) -> Vec<(LogId, Slot, u64)> {
        let mut executed = Vec::new();
        for log in LogId::ALL {
            let mut slot = before[log.index()];
            while slot < self.replica.executed_of(log) {
                slot = slot.next();
                if let Some(value) = self.replica.entry(log, slot) {
                    executed.push((log, slot, fingerprint::of(value)));
                }
            }
        }
        executed
    }

    /// Whether the log on the disk holds this value. The value is given by its fingerprint.
    pub fn has_logged(&self, log: LogId, slot: Slot, value: u64) -> bool {
        let entries = self.disk.read_log(log, slot, slot);
        entries.iter().any(|(_, it)| fingerprint::of(it) == value)
    }

    /// Returns the digest of the node. The contents of the disk are included only if a crash may
    /// still happen, or if logs are truncated.
    pub fn sum(&self, at: ReactionContext, model: &Leasehold) -> u64 {
        let replica = self.replica.fingerprint(model.start, model.horizon);
        let records: Vec<_> = self.writing.iter().map(|(_, records)| records).collect();
        let may_crash = at.crashes_left > 0 && model.scenario.may_crash.contains(&at.me);
        if may_crash || model.scenario.flushes {
            fingerprint::of(&(replica, &self.disk, records))
        } else {
            fingerprint::of(&(replica, records.len()))
        }
    }

    fn make_durable(&mut self, sequence: Sequence, records: Vec<Record>) {
        self.disk.persist(sequence, records);
        self.disk.synced();
    }
}

/// Process of a node during one reaction.
struct Process<'a> {
    node: &'a mut Node,
    now: Time,
    /// Whether writes to the disk take time.
    is_slow: bool,
    /// Inputs for the replica's next step.
    inputs: Vec<Input>,
    sends: [Vec<Envelope>; N],
    answers: Vec<(ClientHandle, Path, Outcome)>,
    events: Vec<Event>,
    reached: Vec<Milestone>,
}

impl Host for Process<'_> {
    /// Sends a message. A ping is sent without the time that writes would take if its sender led:
    /// by these times, a replica may have to wait for its turn to campaign.
    fn send(&mut self, to: ReplicaId, mut envelope: Envelope) {
        if let Message::Ping { cost_ms, .. } = &mut envelope.message {
            *cost_ms = 0;
        }
        self.sends[to.index()].push(envelope);
    }

    /// Persists records. At most replicas, records are durable immediately, so that there are fewer
    /// states to explore.
    fn persist(&mut self, sequence: Sequence, records: Vec<Record>) {
        if self.is_slow {
            return self.node.writing.push_back((sequence, records));
        }
        self.node.make_durable(sequence, records);
        self.inputs.push(Input::Persisted(sequence));
    }

    /// Flushes the state at once, after everything that was persisted before. The replica then
    /// reports its flushed state to the others.
    fn flush(&mut self) {
        while let Some((sequence, records)) = self.node.writing.pop_front() {
            self.node.make_durable(sequence, records);
            self.inputs.push(Input::Persisted(sequence));
        }
        self.node.disk.request_flush();
        self.node.disk.begin_flush();
        self.node.flushed = self.node.disk.flushed();
        self.inputs.push(Input::Flushed(self.node.flushed));
        self.node.replica.expire_ping(self.now);
    }

    fn truncate(&mut self, slots: PerLog<Slot>) {
        let disk = &mut self.node.disk;
        let has_entries = |log: LogId| !disk.read_log(log, Slot(1), slots[log]).is_empty();
        if LogId::ALL.into_iter().any(has_entries) {
            self.node.truncated = true;
            self.reached.push(Milestone::Truncated);
        }
        disk.truncate(slots);
    }

    fn reply(&mut self, to: ClientHandle, path: Path, outcome: Outcome) {
        self.answers.push((to, path, outcome));
    }

    fn fenced_reply(&mut self, read: FencedReply) {
        if !read.may_leave(self.now) {
            return self.inputs.push(read.missed());
        }
        let FencedReply {
            to, path, outcome, ..
        } = read;
        match to {
            ReadFrom::Client(to) => self.answers.push((to, path, outcome)),
            ReadFrom::Peer(peer, request) => {
                let outcome = Some((outcome, path));
                let answers = vec![ReadAnswer { request, outcome }];
                let message = Message::ReadAnswers(answers);
                let envelope = self.node.replica.envelope(peer, message);
                self.sends[peer.index()].push(envelope);
            }
        }
    }

    fn read_log(&mut self, log: LogId, to: Requester, from: Slot, last: Slot) {
        let entries = self.node.disk.read_log(log, from, last);
        if !entries.is_empty() {
            self.reached.push(Milestone::ServedFromLog);
        }
        self.inputs.push(Input::LogRead { log, to, entries });
    }

    fn event(&mut self, event: Event) {
        self.events.push(event);
    }
}

fn packets(
    sends: [Vec<Envelope>; N],
    at: ReactionContext,
    model: &Leasehold,
) -> Vec<(usize, Arc<Packet>)> {
    let packets = sends.into_iter().enumerate().map(|(to, mut messages)| {
        messages.retain(|envelope| model.matters(envelope, to, at.reading));
        let digest = fingerprint::of(&messages);
        (to, Packet { messages, digest })
    });
    let packets = packets.filter(|(_, packet)| !packet.messages.is_empty());
    packets.map(|(to, packet)| (to, Arc::new(packet))).collect()
}

/// Returns the grantor and the holder of the lease that a message concerns.
pub fn parties(envelope: &Envelope, to: usize) -> Option<(ReplicaId, ReplicaId)> {
    let (from, to) = (envelope.from, ReplicaId(to as u8));
    match &envelope.message {
        Message::Lease(LeaseMessage::Guard { .. } | LeaseMessage::Promise(_)) => Some((from, to)),
        Message::Lease(_) => Some((to, from)),
        _ => None,
    }
}

/// Runs code of replicas without the given rule.
#[cfg(feature = "mutants")]
pub fn run<T>(without: Option<Rule>, body: impl FnOnce() -> T) -> T {
    match without {
        Some(rule) => leasehold_leases::mutants::with(rule, body),
        None => body(),
    }
}

/// Runs code of replicas with every rule. Only builds for mutants can omit a rule.
#[cfg(not(feature = "mutants"))]
pub fn run<T>(without: Option<Rule>, body: impl FnOnce() -> T) -> T {
    assert!(without.is_none(), "this build keeps every rule");
    body()
}
