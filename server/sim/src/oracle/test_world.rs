//! A world without events, for tests of oracles: replicas with the state that a test needs, and the
//! messages that such replicas would send.

use std::sync::Arc;
use std::time::Duration;

use leasehold_leases::promise::Promise;
use leasehold_leases::{
    Ballot, ConfigChange, ConfigId, Configs, Incarnation, Key, LeaseMessage, ReplicaId, ReplicaSet,
    Slot, Time,
};
use leasehold_wire::Command;
use leasehold_wire::command::Op;

use super::{WorldSnapshot, id};
use crate::disk::Disk;
use crate::node::Node;
use leasehold_kernel::clock::Clock;
use leasehold_replica::action::{Action, ConfigFrames, RecoveredState, StateChanges, StoredValue};
use leasehold_replica::message::{
    Batch, Envelope, LogId, Message, Proposal, ReportedEntry, RequestId, Value,
};
use leasehold_replica::{Input, Replica, Settings};

/// Duration of a promise.
pub const LEASE: Duration = Duration::from_secs(2);
/// Ballot at which entries are accepted, unless a test says otherwise.
pub const BALLOT: Ballot = Ballot {
    round: 1,
    replica: ReplicaId(0),
};

/// State of one replica.
#[derive(Clone, Debug)]
pub struct ReplicaState {
    pub run: u64,
    /// Whether the replica's disk was never wiped.
    pub joined: bool,
    pub executed: u64,
    /// Keys and values in the state that results from all slots up to `executed`.
    pub entries: Vec<(Key, Option<StoredValue>)>,
    /// Entries that the replica has accepted in slots above `executed`, at ballot [`BALLOT`].
    pub accepted: Vec<(u64, Value)>,
    pub ballot: Ballot,
    pub restart_wait: Option<Duration>,
    /// Change that created the first configuration that the replica has executed.
    pub change: ConfigChange,
    /// Number of further configurations that the replica has executed. None of them changes
    /// anything.
    pub more: u64,
}

impl Default for ReplicaState {
    /// Returns the state of a first run that has executed five slots and knows a configuration
    /// under which every replica holds every key.
    fn default() -> ReplicaState {
        ReplicaState {
            run: 1,
            joined: true,
            executed: 5,
            entries: Vec::new(),
            accepted: Vec::new(),
            ballot: BALLOT,
            restart_wait: None,
            change: everybody(),
            more: 0,
        }
    }
}

/// Returns a configuration under which every replica holds every key.
pub fn everybody() -> ConfigChange {
    ConfigChange::everywhere(ReplicaSet::all(3))
}

/// Returns a value with a put of each key, in one slot.
pub fn puts(keys: &[&'static str]) -> Value {
    batch(keys.iter().map(|key| Op::put(*key, "v")))
}

/// Returns a value with these commands, in one slot.
pub fn batch(ops: impl IntoIterator<Item = Op>) -> Value {
    let propose = |op| Proposal {
        origin: ReplicaId(0),
        request: RequestId(1),
        command: Command::session(1, 1, 1, op),
    };
    Value::Commands(Arc::new(Batch {
        commands: ops.into_iter().map(propose).collect(),
        ..Batch::default()
    }))
}

/// Three replicas at true time 0.
pub struct TestWorld {
    pub nodes: Vec<Node>,
    pub now_ns: u64,
}

impl TestWorld {
    pub fn new(state: [ReplicaState; 3]) -> TestWorld {
        let nodes = state.into_iter().enumerate();
        TestWorld {
            nodes: nodes.map(|(node, state)| start(node, state)).collect(),
            now_ns: 0,
        }
    }

    pub fn snapshot(&self) -> WorldSnapshot<'_> {
        WorldSnapshot::new(self.now_ns, &self.nodes)
    }

    pub fn restart(&mut self, node: usize, state: ReplicaState) {
        self.nodes[node] = start(node, state);
    }

    /// Lets every replica send the messages that are due, and delivers them to the other replicas.
    pub fn talk(&mut self) {
        let ticks = (0..self.nodes.len()).map(|node| (node, Input::Tick));
        self.deliver(ticks.collect(), |_| false);
    }

    /// Delivers inputs to replicas, and all messages that follow from these inputs. Messages for
    /// which `is_lost` returns true are lost.
    pub fn deliver(&mut self, mut inbox: Vec<(usize, Input)>, is_lost: impl Fn(&Message) -> bool) {
        while !inbox.is_empty() {
            for (node, input) in std::mem::take(&mut inbox) {
                let now = self.nodes[node].clock().read(self.now_ns);
                let replica = self.nodes[node].process.machine_mut().expect("it runs");
                let mut actions = Vec::new();
                replica.step(now, input, &mut actions);
                replica.flush(now, &mut actions);
                inbox.extend(actions.into_iter().filter_map(|action| match action {
                    Action::Send { envelope, .. } if is_lost(&envelope.message) => None,
                    Action::Send { to, envelope } => Some((to.index(), Input::Peer(envelope))),
                    Action::Persist { sequence, .. } => Some((node, Input::Persisted(sequence))),
                    _ => None,
                }));
            }
        }
    }

    pub fn later(&mut self, by: Duration) {
        self.now_ns += by.as_nanos() as u64;
    }
}

fn start(node: usize, state: ReplicaState) -> Node {
    // The readings of different clocks are unrelated.
    let clock = Clock::new(0, 1_000_000_000 * (node as u64 + 1), 0);
    let mut started = Node::new(Disk::new(0, true), clock);
    let newest = 1 + state.more;
    let mut configs = Configs::new(3);
    configs.apply(ConfigId(1), &state.change);
    for id in 2..=newest {
        configs.apply(ConfigId(id), &ConfigChange::default());
    }
    let saved = configs.take_unsaved().expect("there are configurations");
    let commands = state.accepted.into_iter();
    let accepted = commands.map(|(slot, value)| ReportedEntry {
        log: LogId::Commands,
        slot: Slot(slot),
        ballot: state.ballot,
        value,
    });
    let recovered = RecoveredState {
        incarnation: Incarnation(state.run),
        life: 1,
        joined: state.joined,
        accepted: accepted.collect(),
        restart_wait: state.restart_wait,
        state: StateChanges {
            executed: Slot(state.executed),
            entries: state.entries,
            config: ConfigId(newest),
            configs: Some(ConfigFrames {
                configured: true,
                frames: saved.frames,
            }),
            listed: saved.keys,
            ..StateChanges::default()
        },
        ..RecoveredState::default()
    };
    let settings = Settings::new(id(node), 3);
    let replica = Replica::new(clock.read(0), settings, recovered, 1);
    started.process.begin_run();
    started.process.boot(replica);
    started
}

/// Returns the sender, the addressee and the envelope of `message`. `from` is the sending replica
/// and its run. `to` is the receiving replica and its run.
pub fn says(
    from: (usize, u64),
    to: (usize, u64),
    message: Message,
) -> (usize, ReplicaId, Envelope) {
    let envelope = Envelope {
        from: id(from.0),
        from_incarnation: Incarnation(from.1),
        to_incarnation: Incarnation(to.1),
        message,
    };
    (from.0, id(to.0), envelope)
}

/// Returns a promise under configuration 1. This promise continues the promise with the preceding
/// sequence number.
pub fn promise(sequence: u64, highest_accepted: u64) -> Message {
    Message::Lease(LeaseMessage::Promise(Promise {
        sequence,
        base: sequence - 1,
        t0: Duration::ZERO,
        t_guard: LEASE,
        t_lease: LEASE,
        config: ConfigId(1),
        highest_accepted: Slot(highest_accepted),
    }))
}

/// Returns the ack of a promise.
pub fn ack(sequence: u64) -> Message {
    let known = ConfigId(1);
    Message::Lease(LeaseMessage::PromiseAck { sequence, known })
}

/// Returns a key with this name.
pub fn key(name: &'static str) -> Key {
    Key::from(name)
}

/// Returns the time, by the clock of `node`, at which a lease that begins now ends.
pub fn lease_end(world: &TestWorld, node: usize) -> Time {
    world.snapshot().time(node) + LEASE
}
