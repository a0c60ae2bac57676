//! Compares the latency of transactions with the latency of a compare-and-swap, in virtual time, at
//! the five sites of the paper.
//!
//! ```sh
//! cargo run --release --locked -p leasehold-sim --example txns
//! ```
//!
//! The client of each site sends its commands to the replica of the site, one after the other and in
//! random order. First the clients take turns, so only one command is in flight. Then all clients
//! send at once, so a command may also wait for the execution of commands before it. The numbers are
//! the same in every run.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    clippy::print_stdout
)] // a program: output

use std::collections::BTreeMap;

use bytes::Bytes;
use leasehold_kernel::network::Faults;
use leasehold_leases::{Key, RangeMap, ReplicaId, StrategySpec};
use leasehold_replica::Settings;
use leasehold_replica::action::ClientHandle;
use leasehold_sim::world::{World, WorldEvent, WorldSettings};
use leasehold_wire::command::Op;
use leasehold_wire::comparison::Condition;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::txn_op::Op as Operation;
use leasehold_wire::{Command, Comparison, Get, Put, Txn, Version};
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

const SITES: [&str; 5] = ["JP", "CA", "OR", "VA", "IRL"];
/// Round trips between the sites in ms (Table 1 of the paper).
const RTT_MS: [[u64; 5]; 5] = [
    [0, 120, 120, 180, 270],
    [120, 0, 20, 85, 150],
    [120, 20, 0, 75, 170],
    [180, 85, 75, 0, 92],
    [270, 150, 170, 92, 0],
];
/// Index of the leader's site.
const LEADER: u8 = 1;
const MS: u64 = 1_000_000;
/// Time before clients begin, in ns. In this time, a leader is elected and leases are made.
const SETTLE_NS: u64 = 15_000 * MS;
/// Longest pause between two commands of a client, in ns.
const PAUSE_NS: u64 = 100 * MS;
/// Number of commands of each kind that the client of a site sends: if the clients take turns, and if
/// all send at once.
const ROUNDS: [usize; 2] = [10, 1000];

/// Kinds of commands. `Near` and `Far` are two classes of keys, each with its own holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sent {
    SwapNear,
    TxnNear,
    FourNear,
    AddNear,
    SwapFar,
    TxnFar,
    FourFar,
    Both,
}

impl Sent {
    const ALL: [Sent; 8] = [
        Sent::SwapNear,
        Sent::TxnNear,
        Sent::FourNear,
        Sent::AddNear,
        Sent::SwapFar,
        Sent::TxnFar,
        Sent::FourFar,
        Sent::Both,
    ];

    fn words(self) -> &'static str {
        match self {
            Sent::SwapNear => "compare-and-swap of a key of class 1",
            Sent::TxnNear => "transaction: compare, get and put this key",
            Sent::FourNear => "transaction: compare and put 4 keys of class 1",
            Sent::AddNear => "transaction: add to a counter of class 1",
            Sent::SwapFar => "compare-and-swap of a key of class 2",
            Sent::TxnFar => "transaction: compare, get and put this key",
            Sent::FourFar => "transaction: compare and put 4 keys of class 2",
            Sent::Both => "transaction: put a key of each class",
        }
    }
}

/// Client of a site, with its command in flight.
struct SiteClient {
    site: usize,
    rng: Pcg64Mcg,
    sequence: u64,
    /// Kinds of the commands that are not sent yet. The last one is sent next.
    waiting: Vec<Sent>,
    sent: Sent,
    sent_ns: u64,
    /// Version of each key, as far as the client has written it.
    versions: BTreeMap<Bytes, Version>,
    latencies: BTreeMap<Sent, Vec<u64>>,
}

impl SiteClient {
    fn new(site: usize, rounds: usize) -> SiteClient {
        let mut rng = Pcg64Mcg::seed_from_u64(site as u64);
        let mut waiting = Sent::ALL.repeat(rounds);
        waiting.shuffle(&mut rng);
        SiteClient {
            site,
            rng,
            sequence: 0,
            waiting,
            sent: Sent::ALL[0],
            sent_ns: 0,
            versions: BTreeMap::new(),
            latencies: BTreeMap::new(),
        }
    }

    /// Returns the name of a key that only this client uses.
    fn key(&self, class: u8, number: u32) -> Bytes {
        Bytes::from(format!("{class}-{}-{number}", SITES[self.site]))
    }

    fn op(&self) -> Op {
        let key = |class, number| self.key(class, number);
        match self.sent {
            Sent::SwapNear => self.swap(key(1, 0)),
            Sent::SwapFar => self.swap(key(2, 0)),
            Sent::TxnNear => self.compare_and_put(&[key(1, 0)], true),
            Sent::TxnFar => self.compare_and_put(&[key(2, 0)], true),
            Sent::FourNear => self.compare_and_put(&[0, 1, 2, 3].map(|n| key(1, n)), false),
            Sent::FourFar => self.compare_and_put(&[0, 1, 2, 3].map(|n| key(2, n)), false),
            Sent::AddNear => Op::txn(Txn {
                then: vec![Operation::add(key(1, 4), 1).into()],
                ..Txn::default()
            }),
            Sent::Both => Op::txn(Txn {
                then: vec![put(key(1, 0)).into(), put(key(2, 0)).into()],
                ..Txn::default()
            }),
        }
    }

    fn swap(&self, key: Bytes) -> Op {
        let expected = self.versions.get(&key).copied();
        Op::cas(key, "value", expected)
    }

    /// Returns a transaction that compares the version of each key, and puts each key. If `gets` is
    /// true, it also gets each key before.
    fn compare_and_put(&self, keys: &[Bytes], gets: bool) -> Op {
        let mut txn = Txn::default();
        for key in keys {
            let version = self.versions.get(key).map(|it| Condition::Version(*it));
            txn.comparisons.push(Comparison {
                key: key.clone(),
                condition: version.or(Some(Condition::Present(false))),
            });
            if gets {
                let get = Get { key: key.clone() };
                txn.then.push(Operation::Get(get).into());
            }
            txn.then.push(put(key.clone()).into());
        }
        Op::txn(txn)
    }

    /// Sends the next command. Returns false if there is none.
    fn send(&mut self, world: &mut World) -> bool {
        let Some(next) = self.waiting.pop() else {
            return false;
        };
        self.sent = next;
        self.sequence += 1;
        self.sent_ns = world.now_ns();
        let session = self.site as u64 + 1;
        let log_time_ms = world.replica(self.site).map_or(0, |it| it.log_time_ms());
        let command = Command::session(session, self.sequence, self.sequence, self.op());
        let from = ClientHandle {
            connection: session,
            request: self.sequence,
        };
        let request = (from, command.opened(log_time_ms));
        world.request(self.site, vec![request]);
        true
    }

    /// Notes an answer. Returns the pause until the next command, in ns.
    fn answered(&mut self, now_ns: u64, answer: Option<&Answer>) -> u64 {
        let version = match answer {
            Some(Answer::Written(version)) => Some(*version),
            Some(Answer::Txn(result)) if !result.or_else => result.version,
            _ => None,
        };
        let version = version.unwrap_or_else(|| panic!("{:?} failed: {answer:?}", self.sent));
        for key in self.op().written_keys() {
            self.versions.insert(key.clone(), version);
        }
        let latencies = self.latencies.entry(self.sent).or_default();
        latencies.push(now_ns - self.sent_ns);
        self.rng.random_range(0..PAUSE_NS)
    }
}

fn put(key: Bytes) -> Operation {
    let value = Bytes::from("value");
    Operation::Put(Put { key, value })
}

fn settings(strategies: RangeMap<StrategySpec>) -> WorldSettings {
    let mut replica = Settings::new(ReplicaId(0), SITES.len());
    replica.strategies = strategies;
    replica.elections.preferred = Some(ReplicaId(LEADER));
    WorldSettings {
        replica,
        one_way_ns: RTT_MS
            .iter()
            .map(|row| row.iter().map(|rtt| rtt * MS / 2).collect())
            .collect(),
        client_one_way_ns: MS / 5,
        sync_ns: MS / 10,
        faults: Faults::default(),
        drift_ppm: 0,
        encoded: false,
        disks_remember: false,
        segment_bytes: None,
        slow_reads: false,
        faulty_reporter: None,
        watched: false,
    }
}

/// Runs the clients of all sites, each with this number of commands of each kind. Returns the
/// latencies of each site, in ns, by kind of command.
fn measure(
    strategies: RangeMap<StrategySpec>,
    take_turns: bool,
    rounds: usize,
) -> Vec<BTreeMap<Sent, Vec<u64>>> {
    let mut world = World::new(settings(strategies), 1);
    let sites = 0..SITES.len();
    let mut clients: Vec<SiteClient> = sites.map(|site| SiteClient::new(site, rounds)).collect();
    let at_once = if take_turns { 1 } else { clients.len() };
    for site in 0..at_once {
        world.alarm(SETTLE_NS, site as u64);
    }
    let mut working = clients.len();
    while working > 0 {
        match world.advance().expect("a world goes on") {
            WorldEvent::Alarm(site) => {
                if !clients[site as usize].send(&mut world) {
                    working -= 1;
                    if take_turns && working > 0 {
                        world.alarm(world.now_ns(), site + 1);
                    }
                }
            }
            WorldEvent::Replied(replies) => {
                let now_ns = world.now_ns();
                for reply in replies {
                    let site = reply.to.connection - 1;
                    let answer = reply.outcome.result.as_ref();
                    let pause_ns = clients[site as usize].answered(now_ns, answer);
                    world.alarm(now_ns + pause_ns, site);
                }
            }
            WorldEvent::Nothing | WorldEvent::Ended(..) => {}
        }
    }
    clients.into_iter().map(|client| client.latencies).collect()
}

/// Returns the mean in ms.
fn mean_ms(latencies: &[u64]) -> f64 {
    latencies.iter().sum::<u64>() as f64 / latencies.len() as f64 / MS as f64
}

fn main() {
    let fixed = |sites: [u8; 3]| StrategySpec::Fixed {
        holders: Some(sites.into_iter().map(ReplicaId).collect()),
    };
    let ranges = vec![
        (Key::new(), fixed([1, 0, 2])),
        (Key::from("2"), fixed([1, 3, 4])),
    ];
    let ranges = RangeMap::from_starts(ranges).expect("the ranges are in rising order");
    let cases = [
        (
            "Class 1 is held by CA, JP and OR, class 2 by CA, VA and IRL",
            ranges,
        ),
        ("The leader holds both classes", StrategySpec::Leader.into()),
        ("All replicas hold both classes", StrategySpec::All.into()),
    ];
    println!("# Latency of transactions and of compare-and-swap over the WAN of the paper\n");
    println!("Mean latency in ms at each site, in virtual time. The leader is in CA.");
    let modes = [
        (true, "one command in flight"),
        (false, "all sites send at once"),
    ];
    for (words, strategies) in cases {
        for ((take_turns, mode), rounds) in modes.into_iter().zip(ROUNDS) {
            println!("\n## {words}; {mode}\n");
            println!("| {rounds} commands of each kind | {} |", SITES.join(" | "));
            println!("|---|{}", "---:|".repeat(SITES.len()));
            let found = measure(strategies.clone(), take_turns, rounds);
            for sent in Sent::ALL {
                let cells = found.iter().map(|of_site| mean_ms(&of_site[&sent]));
                let cells: Vec<String> = cells.map(|mean| format!("{mean:.1}")).collect();
                println!("| {} | {} |", sent.words(), cells.join(" | "));
            }
        }
    }
}
