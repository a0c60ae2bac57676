//! Live changes of strategies between replicas far apart, where messages come late and in
//! another order: a read that is local under both strategies never stops being local.
//!
//! Both places for holders besides the leader's are claimed by readers. Places that no replica
//! claims go to the replicas nearest to the leader, and these change with every late message: a
//! replica that was given a key a moment ago cannot read it yet, whatever is switched.

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
/// Sites of the clients that read: as many as there are places besides the leader's.
const READERS: [usize; 2] = [3, 4];
/// Hears of configurations late: the others have promised under them long before.
const LATE: usize = 3;
/// Keys that they read, of 4 kB: five entries of the log list them, one a second.
const KEYS: usize = 400;
/// Is read by nobody.
const WRITTEN: &str = "written";
/// Interval between two checks of which replicas may read, in ns.
const LOOK_NS: u64 = 5 * MS;

fn quorum() -> StrategySpec {
    let unlisted = UnlistedHolders::Nearest;
    StrategySpec::Quorum { unlisted }
}

fn replicas(ids: &[usize]) -> ReplicaSet {
    ids.iter().map(|id| ReplicaId(*id as u8)).collect()
}

/// Links and clocks of the seed, and some of the messages up to 300 ms later than others:
/// leases of 2 s, renewed every 500 ms, outlast that.
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
    // Leases end between the first and the last entry that lists keys.
    replica.holders_bytes_s = 800_000;
    replica.timing.reconfigure = Duration::from_millis(2500);
    replica.timing.report = Duration::from_millis(200);
    // The leader keeps leading, however late its heartbeats.
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

    /// Lets time pass, in ms, and looks again and again. Something is written all the time.
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
        // The alarm that is left goes off in vain.
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

    /// The readers' clients read every key, and the leader hears of it and lists all. Reports
    /// of so many bytes of keys take a while.
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

    /// Looks for 10 s at keys of the first entry that lists them and of the last. Returns the
    /// replicas that may not read one of them at times, of those that hold it now and at the end,
    /// and in how many looks. A replica that holds it now must be able to read it.
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

    /// Puts `spec` in force and [watches](Self::watch).
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
