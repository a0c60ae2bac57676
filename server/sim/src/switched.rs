//! Tests of strategy changes in a running cluster. The replicas are far apart, so messages arrive
//! late and out of order. If a read is local under both the old and the new strategy, it must stay
//! local during the change.
//!
//! Besides the leader, a key can have two holders. In these tests, these two holders are the
//! replicas with readers. Otherwise they would be the replicas nearest to the leader, and late
//! messages change which replicas are nearest. That matters because a replica that has just become
//! a holder of a key cannot read the key yet, even without any change of strategies.

use std::time::Duration;

use leasehold_leases::{
    Key, KeyRange, LeaseParams, ReplicaId, ReplicaSet, StrategySpec, UnlistedHolders,
};
use leasehold_wire::Command;
use leasehold_wire::command::Op;

use super::fault::FaultKind;
use super::scenario::{Choices, Scenario};
use super::world::{World, WorldEvent, WorldSettings};
use leasehold_kernel::network::{Faults, LinkDegradation};
use leasehold_replica::action::{ClientHandle, Event};
use leasehold_replica::lease_set::LeaseSet;
use leasehold_replica::{OperatorRequest, Settings};

const MS: u64 = 1_000_000;
const SITES: usize = 5;
const LEADER: usize = 0;
/// Sites of the clients that read. There are only two such sites, because a key has at most two
/// holders besides the leader.
const READERS: [usize; 2] = [3, 4];
/// Replica that receives each configuration late, long after the other replicas have made promises
/// under the configuration.
const LATE: usize = 3;
/// Number of keys that the clients read. Each key is 4 kB long, so a list of all keys needs five
/// log entries. The leader proposes one of these entries a second.
const KEYS: usize = 400;
/// Key that is written and never read.
const WRITTEN: &str = "written";
/// Interval between two checks that determine which replicas may read, in ns.
const LOOK_NS: u64 = 5 * MS;

fn quorum() -> StrategySpec {
    let unlisted = UnlistedHolders::Nearest;
    StrategySpec::Quorum { unlisted }
}

fn replicas(ids: &[usize]) -> ReplicaSet {
    ids.iter().map(|id| ReplicaId(*id as u8)).collect()
}

/// Returns the settings of the world. Links and clocks are drawn from the seed. Some messages
/// arrive up to 300 ms later than others. Leases last 2 s and are renewed every 500 ms, so leases
/// outlast such delays.
fn settings(seed: u64) -> WorldSettings {
    let choices = Choices {
        faults: false,
        replicas: Some(SITES),
        ..Choices::default()
    };
    let mut world = Scenario::draw(seed, &choices).world;
    let mut replica = Settings::new(ReplicaId(0), SITES);
    replica.strategies = quorum().into();
    replica.params = LeaseParams::default();
    replica.elections.preferred = Some(ReplicaId(LEADER as u8));
    // Some leases end after the first and before the last entry that lists keys.
    replica.holders_bytes_s = 800_000;
    replica.timing.reconfigure = Duration::from_millis(2500);
    replica.timing.report = Duration::from_millis(200);
    // The leader remains the leader, however late its heartbeats arrive.
    replica.timing.election_timeout = Duration::from_secs(3);
    world.replica = replica;
    world.faults = Faults {
        reordering: 0.2,
        delay_max_ns: 300 * MS,
        ..Faults::default()
    };
    world.encoded = false;
    world
}

struct Cluster {
    world: World,
    keys: Vec<Key>,
    requests: u64,
    written: u64,
}

impl Cluster {
    fn begin(seed: u64) -> Cluster {
        let name = |nth: usize| Key::from(format!("{nth:04}{}", "x".repeat(4_000)));
        let mut cluster = Cluster {
            world: World::new(settings(seed), seed),
            keys: (0..KEYS).map(name).collect(),
            requests: 0,
            written: 0,
        };
        let extra_delay_ns = 1_500 * MS;
        let degradation = LinkDegradation {
            extra_delay_ns,
            ..LinkDegradation::default()
        };
        cluster.world.set_degradation(LEADER, LATE, degradation);
        cluster.pass(10_000, |_| {});
        assert!(cluster.leads(), "seed {seed}");
        cluster
    }

    /// Lets `ms` milliseconds pass, and calls `look` at short intervals. During the whole time,
    /// clients send writes.
    fn pass(&mut self, ms: u64, mut look: impl FnMut(&Cluster)) {
        let end_ns = self.world.now_ns() + ms * MS;
        self.world.alarm(self.world.now_ns() + LOOK_NS, 0);
        while self.world.now_ns() < end_ns {
            if let Some(WorldEvent::Alarm(_)) = self.world.advance() {
                look(self);
                self.write();
                self.world.alarm(self.world.now_ns() + LOOK_NS, 0);
            }
        }
        // The alarm that is still set goes off without effect.
        while !matches!(self.world.advance(), Some(WorldEvent::Alarm(_))) {}
        assert_eq!(self.world.violation(), None);
    }

    fn leads(&self) -> bool {
        let replica = self.world.replica(LEADER).expect("all run");
        replica.leader() == Some(ReplicaId(LEADER as u8))
    }

    fn holders(&self, key: &Key) -> ReplicaSet {
        let leader = self.world.replica(LEADER).expect("all run");
        leader.configs().holders(key)
    }

    fn may_read(&self, node: ReplicaId, key: &Key) -> bool {
        let replica = self.world.replica(node.index()).expect("all run");
        replica.may_read(self.world.clock(node.index()), key)
    }

    fn ask(&mut self, node: usize, command: Command) {
        self.requests += 1;
        let from = ClientHandle {
            connection: 1,
            request: self.requests,
        };
        self.world.request(node, vec![(from, command)]);
    }

    fn write(&mut self) {
        self.written += 1;
        let (sequence, op) = (self.written, Op::put(WRITTEN, "value"));
        self.ask(LEADER, Command::session(1, sequence, sequence, op));
    }

    /// Lets the clients at [`READERS`] read every key. Then lets 40 s pass, so that the leader
    /// learns of the reads and lists all keys.
    fn read_all(&mut self) {
        for (reader, key) in READERS.iter().flat_map(|r| (0..KEYS).map(move |k| (*r, k))) {
            let command = Command {
                op: Some(Op::get(self.keys[key].clone())),
                ..Command::default()
            };
            self.ask(reader, command);
        }
        self.pass(40_000, |_| {});
    }

    /// Checks for 10 s whether the holders of three keys may read these keys. The first, the middle
    /// and the last key are checked, because the leader lists them in different log entries.
    /// Returns an entry (key, replica, number of failed checks) for each holder that failed a
    /// check. A replica is listed only if it holds the key both at the beginning and at the end.
    ///
    /// # Panics
    /// If a holder may not read its key at the beginning, or if [`LEADER`] is not the leader at the
    /// end.
    fn watch(&mut self) -> Vec<(usize, ReplicaId, u32)> {
        let watched = [0, KEYS / 2, KEYS - 1];
        let held = watched.map(|key| self.holders(&self.keys[key]));
        let pairs = watched.iter().zip(held);
        let pairs = pairs.flat_map(|(key, held)| held.iter().map(|node| (*key, node)));
        let mut denied: Vec<_> = pairs.map(|(key, node)| (key, node, 0)).collect();
        for (key, node, _) in &denied {
            assert!(self.may_read(*node, &self.keys[*key]), "{key}, {node:?}");
        }
        self.pass(10_000, |cluster| {
            for (key, node, looks) in &mut denied {
                *looks += u32::from(!cluster.may_read(*node, &cluster.keys[*key]));
            }
        });
        assert!(self.leads());
        let still = |key: usize, node| self.holders(&self.keys[key]).contains(node);
        denied.retain(|(key, node, looks)| *looks > 0 && still(*key, *node));
        denied
    }

    /// Puts `spec` in force, and returns the result of [`watch`](Self::watch).
    fn switch(&mut self, ask: u64, spec: &StrategySpec) -> Vec<(usize, ReplicaId, u32)> {
        let set = LeaseSet {
            strategies: vec![(KeyRange::all(), spec.clone())],
            ..LeaseSet::default()
        };
        self.world
            .operate(LEADER, OperatorRequest::Lease { ask, set });
        let denied = self.watch();
        let in_force = |note: &Event| matches!(note, Event::LeaseAnswered { ask: to, answer: Ok(_) } if *to == ask);
        assert!(self.world.notes.iter().any(|(.., note)| in_force(note)));
        denied
    }
}

#[test]
fn a_read_that_is_local_under_both_strategies_stays_local_though_messages_are_late() {
    let fixed = StrategySpec::Fixed {
        holders: Some(replicas(&[1, 3, 4])),
    };
    let strategies = [
        (StrategySpec::All, replicas(&[0, 1, 2, 3, 4])),
        (quorum(), replicas(&[0, 3, 4])),
        (fixed, replicas(&[1, 3, 4])),
        (quorum(), replicas(&[0, 3, 4])),
        (StrategySpec::Leader, replicas(&[0])),
        (StrategySpec::All, replicas(&[0, 1, 2, 3, 4])),
        (StrategySpec::None, replicas(&[])),
    ];
    for seed in 1..=3 {
        let mut cluster = Cluster::begin(seed);
        cluster.read_all();
        assert_eq!(cluster.watch(), [], "without any change, seed {seed}");
        for (ask, (spec, holders)) in (1..).zip(&strategies) {
            let denied = cluster.switch(ask, spec);
            assert_eq!(denied, [], "to {}, seed {seed}", spec.name());
            let given = |key| cluster.holders(key) == *holders;
            let all = cluster.keys.iter().all(given);
            assert!(all, "under {}, seed {seed}", spec.name());
        }
        assert!(cluster.world.fired().of(FaultKind::Reordering) > 100);
    }
}
