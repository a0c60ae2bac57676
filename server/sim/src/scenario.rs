//! Settings of a run, drawn from its seed: the number of replicas and their distances, the strategy
//! and its durations, the load, and the faults.
//!
//! Faults are drawn as in swarm testing: each seed enables only a few random faults, at random
//! rates. If a run enabled every fault, it would make so little progress that it would exercise few
//! rules.

use std::time::Duration;

use leasehold_leases::{
    CostSettings, Key, KeyRange, LeaseParams, RangeMap, ReplicaId, ReplicaSet, StrategySpec,
    UnlistedHolders,
};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::fault::FaultKind;
use super::self_test::ClockSelfTest;
use super::swarm::FaultPlan;
use super::workload::ClientLoad;
use super::world::WorldSettings;
use leasehold_kernel::network::Faults;
use leasehold_replica::Settings;
use leasehold_replica::lease_set::{Durations, LeaseSet};
use leasehold_replica::settings::AcceptReplies;

/// Duration of a sync, in ns.
const SYNC_NS: u64 = 150_000;
/// One-way delay between a client and its replica, in ns.
const CLIENT_ONE_WAY_NS: u64 = 200_000;
/// The longest extra delay of a reordered message, in ns.
const DELAY_MAX_NS: u64 = 1_500_000_000;
/// Maximum drift of clocks that leases tolerate, in parts per million.
const RHO_PPM: u32 = 1000;

/// Fraction of runs with encoded messages. It is small, because such runs take longer than others.
const ENCODED: f64 = 0.15;
/// Probability that values are large in a run with encoded messages.
const LARGE: f64 = 0.25;
const RANGES_SALT: u64 = 0x3a_96e5;
/// Fraction of runs that begin with several strategies, each for a range of keys.
const SEVERAL: f64 = 0.25;
const FRAMES_SALT: u64 = 0xf7a_3e5;
/// Fraction of runs in which a replica reports meaningless numbers.
const FAULTY_REPORTER: f64 = 0.05;
/// Maximum number of bytes that a leader may use for demand reports. This maximum applies to runs
/// in which a replica reports meaningless numbers.
const FAULTY_REPORTER_DEMAND_BYTES: usize = 64 << 10;
const FAULTY_REPORTER_SALT: u64 = 0x0dd_0dd;
/// Fraction of runs in which clients begin many sessions, but replicas have room for only a few
/// sessions.
const FEW_SESSIONS: f64 = 0.12;
/// Probability that replicas let clients open only a few sessions a second. This applies to runs
/// with room for only a few sessions.
const FEW_OPENS: f64 = 0.3;
/// Fraction of runs in which disks keep their logs as bytes.
const LOG_BYTES: f64 = 0.25;
/// Number that separates the draws of [`LOG_BYTES`] from all other draws of the same seed.
const LOG_BYTES_SALT: u64 = 0x109_b17e;
/// Probability that reads of logs may be slow. This applies to runs in which disks keep their logs
/// as bytes.
const SLOW_READS: f64 = 0.75;
/// Number of executed slots that replicas keep in memory beyond a whole window, in runs with slow
/// reads of logs.
const KEPT_BEYOND_WINDOW: usize = 32;
const SLOW_READS_SALT: u64 = 0x510_4ead;
const FEW_SESSIONS_SALT: u64 = 0xc40_3d5;

/// Default number of requests a second, summed over all replicas. On average, clients send only
/// about 200 requests a second, because of outages, narrow limits and small runs.
pub const RATE: u32 = 240;

/// Options for runs, chosen by the caller.
#[derive(Clone, Debug, PartialEq)]
pub struct Choices {
    /// Time during which clients begin requests, in virtual ns.
    pub run_ns: u64,
    /// Number of requests a second, summed over all replicas.
    pub rate: u32,
    /// Names of the strategies from which each seed selects one. If the list is empty, each seed
    /// selects from all strategies.
    pub strategies: Vec<&'static str>,
    /// Whether faults other than those of the network are injected.
    pub faults: bool,
    /// Number of replicas; `None`: each seed selects a random number from three to five.
    pub replicas: Option<usize>,
    /// Maximum real drift of clocks from true time, in parts per million. Leases allow a drift of
    /// `RHO_PPM`. A higher value here breaks this assumption of the leases.
    pub drift_ppm: u32,
    /// Assumption about clocks that the run breaks on purpose; `None` in ordinary runs.
    pub self_test: Option<ClockSelfTest>,
}

impl Choices {
    /// Whether `fault` can occur in runs with these choices.
    pub fn enables(&self, fault: FaultKind) -> bool {
        match fault {
            FaultKind::Jump => self.self_test == Some(ClockSelfTest::Jump),
            FaultKind::Nonsense
            | FaultKind::SlowRead
            | FaultKind::Reused
            | FaultKind::TornSectors
            | FaultKind::PartFlushed
            | FaultKind::LeaderUnsynced
            | FaultKind::FlushedInPart => self.faults,
            _ => self.faults || !fault.is_planned(),
        }
    }
}

/// Maximum number of commands in a batch, in runs with narrow batches.
const BATCH_NARROW: usize = 3;
/// Duration that is longer than any run.
const NEVER: Duration = Duration::from_secs(86_400);
/// Maximum lifetime of sessions that may expire within a run.
const SHORT_TTL: Duration = Duration::from_secs(8);

impl Default for Choices {
    fn default() -> Choices {
        Choices {
            run_ns: 60_000_000_000,
            rate: RATE,
            strategies: Vec::new(),
            faults: true,
            replicas: None,
            drift_ppm: RHO_PPM,
            self_test: None,
        }
    }
}

/// All settings of a run, for the world, the clients and the faults. The seed of the run determines
/// the settings.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Seed from which the scenario was drawn.
    pub seed: u64,
    /// Settings of the world.
    pub world: WorldSettings,
    /// Load of the clients.
    pub load: ClientLoad,
    /// Plan of the faults.
    pub plan: FaultPlan,
    /// Time during which clients begin requests, in virtual ns.
    pub run_ns: u64,
}

/// Returns every strategy with its name. If a strategy has several variants, each is listed.
pub fn strategies() -> [(&'static str, RangeMap<StrategySpec>); 8] {
    let fixed = |from: &'static str, ids: &[u8]| {
        let holders = ids.iter().copied().map(ReplicaId).collect();
        let holders = Some(holders);
        (Key::from(from), StrategySpec::Fixed { holders })
    };
    let fixed = RangeMap::from_starts(vec![fixed("", &[0, 1]), fixed("key0004", &[0, 1, 2])]);
    let quorum = |unlisted| StrategySpec::Quorum { unlisted }.into();
    let cost = |read_weight, spare| {
        let settings = CostSettings::from_thousandths(read_weight, spare, true);
        StrategySpec::Cost(settings).into()
    };
    [
        ("none", StrategySpec::None.into()),
        ("leader", StrategySpec::Leader.into()),
        ("all", StrategySpec::All.into()),
        ("quorum", quorum(UnlistedHolders::Nearest)),
        ("quorum", quorum(UnlistedHolders::Leader)),
        ("fixed", fixed.expect("the ranges are in rising order")),
        ("cost", cost(500, 0)),
        ("cost", cost(800, 1)),
    ]
}

/// Draws a strategy for a range. If the strategy has fixed holders, they are a random set of
/// replicas, which need not include the leader.
fn draw_strategy(rng: &mut Pcg64Mcg, n: usize) -> StrategySpec {
    let all = strategies();
    let (name, strategies) = &all[rng.random_range(0..all.len())];
    let first = ReplicaId(rng.random_range(0..n) as u8);
    let mut holders = ReplicaSet(rng.random::<u64>()).intersection(ReplicaSet::all(n));
    holders.insert(first);
    match *name {
        "fixed" => StrategySpec::Fixed {
            holders: Some(holders),
        },
        _ => strategies.get(b"").clone(),
    }
}

/// Draws a range that contains some of the clients' keys: a few of these keys, or one of these keys
/// and all keys after it.
fn draw_range(rng: &mut Pcg64Mcg) -> KeyRange {
    let key = |nth: u32| Key::from(format!("key{nth:04}"));
    let from = rng.random_range(0..8);
    let to = from + rng.random_range(1..6);
    let to = (to < 10).then(|| key(to));
    KeyRange::new(key(from), to).expect("the range ends after its first key")
}

/// Draws a request of an operator. The request changes strategies, lease durations, or both
/// strategies and durations. New strategies are for all keys or for a range.
pub fn draw_lease_set(rng: &mut Pcg64Mcg, n: usize) -> LeaseSet {
    let all = strategies();
    let strategies = match rng.random_range(0..5) {
        0 => Vec::new(),
        1 | 2 => vec![(draw_range(rng), draw_strategy(rng, n))],
        _ => {
            let (_, strategies) = &all[rng.random_range(0..all.len())];
            let ranges = strategies.iter();
            ranges.map(|(range, spec)| (range, spec.clone())).collect()
        }
    };
    let params = draw_params(rng);
    let durations = strategies.is_empty() || rng.random::<bool>();
    LeaseSet {
        strategies,
        durations: if durations {
            Durations::of(&params)
        } else {
            Durations::default()
        },
        force: false,
    }
}

/// Draws whether the run begins with several strategies, each for a range of keys. The draw uses
/// its own random generator, so the seed's other draws stay the same.
fn draw_ranges(replica: &mut Settings, seed: u64) {
    let mut rng = Pcg64Mcg::seed_from_u64(seed ^ RANGES_SALT);
    if rng.random::<f64>() >= SEVERAL {
        return;
    }
    for _ in 0..rng.random_range(1..4) {
        let spec = draw_strategy(&mut rng, replica.n);
        let range = draw_range(&mut rng);
        replica
            .strategies
            .update(&range, |strategy| *strategy = spec.clone());
    }
    replica.strategies.merge(|left, right| left == right);
}

/// Draws lease durations that are short, so that leases often begin and end.
pub fn draw_params(rng: &mut Pcg64Mcg) -> LeaseParams {
    let ms = Duration::from_millis;
    let lease = rng.random_range(300..2500);
    let renew = rng.random_range(lease / 6..lease / 2);
    LeaseParams {
        t_lease: ms(lease),
        t_guard: ms(rng.random_range(300..2000)),
        renew: ms(renew),
        t_grace: ms(rng.random_range(1000..4000).max(renew + 100)),
        ..LeaseParams::default()
    }
}

impl Scenario {
    /// Draws the scenario of the run with this seed.
    pub fn draw(seed: u64, choices: &Choices) -> Scenario {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let drawn = [3, 5, 5, 5, 4][rng.random_range(0..5)];
        let n = choices.replicas.unwrap_or(drawn);
        let mut replica = draw_settings(&mut rng, n, seed, choices);
        draw_flushes(&mut replica, seed);
        draw_window(&mut replica, seed);
        draw_executed_work(&mut replica, seed);
        let segment_bytes = draw_log_bytes(seed);
        let slow_reads =
            segment_bytes.is_some() && choices.faults && draw_slow_reads(&mut replica, seed);
        let one_way_ns = draw_links(&mut rng, n);
        let rate = choices.rate.min(carries(&replica, &one_way_ns));
        let mut load = ClientLoad::draw(&mut rng, n, rate);
        let ttl = replica.sessions.ttl;
        load.draw_sessions(
            &mut rng,
            (ttl <= SHORT_TTL).then_some(ttl.as_nanos() as u64),
        );
        load.draw_apart(seed);
        if replica.merge_work_max < Settings::new(ReplicaId(0), n).merge_work_max {
            load.limit_merges(carries_queued(&one_way_ns));
        }
        let mut plan = FaultPlan::draw(&mut rng);
        let faults = draw_network(&mut rng);
        plan.draw_flaps(seed);
        if !choices.faults {
            plan = FaultPlan::default();
        }
        let world = WorldSettings {
            replica,
            one_way_ns,
            client_one_way_ns: CLIENT_ONE_WAY_NS,
            sync_ns: SYNC_NS,
            faults,
            drift_ppm: choices.drift_ppm,
            encoded: false,
            disks_remember: true,
            segment_bytes,
            slow_reads,
            faulty_reporter: None,
            watched: true,
        };
        let mut scenario = Scenario {
            seed,
            world,
            load,
            plan,
            run_ns: choices.run_ns,
        };
        scenario.draw_frames();
        scenario.draw_few_sessions();
        if choices.faults {
            scenario.draw_faulty_reporter();
        }
        if let Some(self_test) = choices.self_test {
            self_test.arrange(&mut scenario, &mut rng);
        }
        scenario
    }
}

impl Scenario {
    /// Draws whether messages are encoded, and whether values are large. The draw uses its own
    /// random generator, so the seed's other draws stay the same.
    fn draw_frames(&mut self) {
        let mut rng = Pcg64Mcg::seed_from_u64(self.seed ^ FRAMES_SALT);
        self.world.encoded = rng.random::<f64>() < ENCODED;
        if self.world.encoded && rng.random::<f64>() < LARGE {
            self.load.enlarge();
        }
    }
}

impl Scenario {
    /// Draws whether there is room for only a few sessions. If so, sessions end to make room for
    /// others, because the maximum number of sessions is often below the number of clients. A
    /// session may end before its client sends the next request. The draw uses its own random
    /// generator.
    fn draw_few_sessions(&mut self) {
        let mut rng = Pcg64Mcg::seed_from_u64(self.seed ^ FEW_SESSIONS_SALT);
        if rng.random::<f64>() >= FEW_SESSIONS {
            return;
        }
        let ms = Duration::from_millis;
        let sessions = &mut self.world.replica.sessions;
        sessions.max = rng.random_range(2..20);
        sessions.stay = ms(rng.random_range(0..3000)).min(sessions.ttl);
        if rng.random::<f64>() < FEW_OPENS {
            sessions.opened_per_s = rng.random_range(1..10);
        }
        self.load.renews = rng.random_range(0.02..0.4);
    }
}

impl Scenario {
    /// Draws whether a replica reports meaningless numbers. If so, leaders get little memory for
    /// such reports. The draw uses its own random generator.
    fn draw_faulty_reporter(&mut self) {
        let mut rng = Pcg64Mcg::seed_from_u64(self.seed ^ FAULTY_REPORTER_SALT);
        if rng.random::<f64>() < FAULTY_REPORTER {
            self.world.faulty_reporter = Some(rng.random_range(0..self.world.replica.n));
            self.world.replica.demand_bytes_max = FAULTY_REPORTER_DEMAND_BYTES;
        }
    }
}

fn draw_settings(rng: &mut Pcg64Mcg, n: usize, seed: u64, choices: &Choices) -> Settings {
    let ms = Duration::from_millis;
    let mut replica = Settings::new(ReplicaId(0), n);
    let chosen = |(name, _): &(&'static str, _)| {
        choices.strategies.is_empty() || choices.strategies.contains(name)
    };
    let all: Vec<_> = strategies().into_iter().filter(chosen).collect();
    if let Some((_, strategies)) = all.get((seed % all.len().max(1) as u64) as usize) {
        replica.strategies = strategies.clone();
    }
    if choices.strategies.is_empty() {
        draw_ranges(&mut replica, seed);
    }
    replica.params = draw_params(rng);
    replica.timing.reconfigure = ms(rng.random_range(500..5000));
    replica.timing.report = ms(rng.random_range(100..800));
    replica.elections.preferred = (rng.random::<f64>() < 0.5).then_some(ReplicaId(1));
    replica.accept_replies = [
        AcceptReplies::Origin,
        AcceptReplies::Leader,
        AcceptReplies::All,
    ][rng.random_range(0..3)];
    if rng.random::<f64>() < 0.2 {
        replica.batch_max = rng.random_range(1..=BATCH_NARROW);
    }
    if rng.random::<f64>() < 0.2 {
        replica.in_flight_max = rng.random_range(1..16);
    }
    if rng.random::<f64>() < 0.25 {
        replica.sessions.ttl = rng.random_range(ms(1500)..SHORT_TTL);
        replica.sessions.stay = replica.sessions.stay.min(replica.sessions.ttl);
    }
    replica
}

/// Draws whether log windows are small, so that leaders, candidates and lagging followers reach the
/// ends of their windows. In some of these runs, replicas make a checkpoint only when a window
/// requires it. The draw uses its own random generator, so the seed's other draws stay the same.
///
/// Runs with narrow batches keep large windows. With narrow batches and small windows, too few
/// commands would be committed, and queues would only grow. The reason is that a lagging follower
/// may refuse an Accept: half a window then waits until the Accept is sent again.
fn draw_window(replica: &mut Settings, seed: u64) {
    let mut rng = Pcg64Mcg::seed_from_u64(seed ^ 0x77_1d0e);
    if rng.random::<f64>() < 0.3 && replica.batch_max > BATCH_NARROW {
        replica.log_window = 4 << rng.random_range(0..7);
        if rng.random::<bool>() {
            replica.timing.checkpoint = NEVER;
        }
    }
}

/// Limits the work of one step in some random scenarios. Replicas then execute very little in one
/// step, often only one slot. In some of these scenarios, replicas also accept only a few entries
/// ahead of execution. The choices use a random generator of their own.
fn draw_executed_work(replica: &mut Settings, seed: u64) {
    let mut rng = Pcg64Mcg::seed_from_u64(seed ^ 0xe8_ec27);
    if rng.random::<f64>() < 0.3 {
        replica.executed_work_max = 4 << rng.random_range(0..12);
        replica.merge_work_max = 1 << rng.random_range(0..12);
        if rng.random::<bool>() {
            replica.to_execute_work_max = 4 << rng.random_range(10..16);
        }
        replica.merges_of_key_max = 1 << rng.random_range(0..6);
    }
}

/// Draws whether disks keep their logs as bytes, and the length of a segment in bytes. A crash may
/// then lose arbitrary sectors of these bytes. Only some runs keep the bytes, because runs without
/// them take less time. The draw uses its own random generator.
fn draw_log_bytes(seed: u64) -> Option<usize> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed ^ LOG_BYTES_SALT);
    let is_kept = rng.random::<f64>() < LOG_BYTES;
    is_kept.then(|| 4096 << rng.random_range(0..5))
}

/// Draws whether reads of logs may be slow. If so, replicas keep few executed slots in memory, so
/// that followers that lag often get entries from a disk. The draw uses its own random generator.
///
/// In one step, a replica may execute a whole window, and the slot after it that is reserved for a
/// no-op. The oracles must still find the values of these slots in memory, so replicas keep more
/// slots than a window has. Windows are small, so that the number of kept slots is small, too. With
/// small windows, replicas also flush their state and truncate their logs often. Runs with narrow
/// batches are left out, as for [`draw_window`].
fn draw_slow_reads(replica: &mut Settings, seed: u64) -> bool {
    let mut rng = Pcg64Mcg::seed_from_u64(seed ^ SLOW_READS_SALT);
    let is_slow = rng.random::<f64>() < SLOW_READS && replica.batch_max > BATCH_NARROW;
    if is_slow {
        replica.log_window = replica.log_window.min(16 << rng.random_range(0..3));
        replica.kept_slots_max = replica.log_window as usize + KEPT_BEYOND_WINDOW;
    }
    is_slow
}

/// Draws how often the state is flushed. The draw uses its own random generator.
fn draw_flushes(replica: &mut Settings, seed: u64) {
    let mut rng = Pcg64Mcg::seed_from_u64(seed ^ 0xc4_ec97);
    replica.timing.checkpoint = Duration::from_millis([200, 1000, 10_000][rng.random_range(0..3)]);
}

/// Returns the number of requests a second that a leader with narrow limits can serve. Half of the
/// requests are assumed to be writes.
fn carries(replica: &Settings, one_way_ns: &[Vec<u64>]) -> u32 {
    let at_once = replica.batch_max * replica.in_flight_max;
    (2.0 * at_once as f64 / round_trip_s(one_way_ns)).clamp(1.0, u32::MAX.into()) as u32
}

/// Returns the number of merges a second that replicas can serve, divided by two to leave a margin.
/// Each replica has only one merge in the log at a time. Each merge takes two round trips: in the
/// first, the merge is forwarded, and in the second, it is proposed.
fn carries_queued(one_way_ns: &[Vec<u64>]) -> f64 {
    one_way_ns.len() as f64 / (2.0 * round_trip_s(one_way_ns)) / 2.0
}

/// Returns the round-trip time between the two replicas that are farthest apart, in seconds.
fn round_trip_s(one_way_ns: &[Vec<u64>]) -> f64 {
    let farthest_ns = one_way_ns.iter().flatten().max().copied().unwrap_or(0);
    (2 * farthest_ns + SYNC_NS) as f64 / 1e9
}

/// Draws one-way delays between sites. In some runs, the sites are near each other. In other runs,
/// the sites are spread over a continent or over the world.
fn draw_links(rng: &mut Pcg64Mcg, n: usize) -> Vec<Vec<u64>> {
    let far_ns = [2_000_000, 30_000_000, 120_000_000][rng.random_range(0..3)];
    let mut one_way_ns = vec![vec![50_000; n]; n];
    let pairs = (0..n).flat_map(|a| (0..a).map(move |b| (a, b)));
    for (a, b) in pairs {
        one_way_ns[a][b] = rng.random_range(200_000..far_ns);
        one_way_ns[b][a] = one_way_ns[a][b];
    }
    one_way_ns
}

fn draw_network(rng: &mut Pcg64Mcg) -> Faults {
    let mut some = |most: f64| {
        if rng.random::<bool>() {
            rng.random::<f64>() * most
        } else {
            0.0
        }
    };
    Faults {
        loss: some(0.1),
        duplication: some(0.1),
        reordering: some(0.2),
        delay_max_ns: DELAY_MAX_NS,
        old: some(0.02),
    }
}
