//! Measures the cost of several choices of durations: false elections, false suspicions and lapsed
//! leases. No replica of the measured clusters ever fails, but links lose and delay messages.
//!
//! ```sh
//! cargo run --release --locked -p leasehold-sim --example durations -- 2     # hours of each cluster
//! ```

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    clippy::print_stdout
)] // a program: arguments and output

use std::time::Duration;

use leasehold_kernel::network::Faults;
use leasehold_leases::{ClockBound, LeaseParams, ReplicaId, StrategySpec};
use leasehold_replica::Settings;
use leasehold_replica::action::Event;
use leasehold_sim::world::{World, WorldEvent, WorldSettings};

const MS: u64 = 1_000_000;
/// Interval between two checks that determine which replicas hold leases, in ns.
const LOOK_NS: u64 = 100 * MS;
/// Time, in ns, that passes before events are counted. In this time, a cluster elects a leader and
/// makes leases.
const SETTLE_NS: u64 = 30_000 * MS;
/// Round-trip times in ms between CA, VA, IRL, OR and JP.
const WORLD: [[u64; 5]; 5] = [
    [0, 61, 134, 24, 108],
    [61, 0, 75, 68, 150],
    [134, 75, 0, 130, 212],
    [24, 68, 130, 0, 97],
    [108, 150, 212, 97, 0],
];

/// One set of durations, in ms, with which clusters are run.
#[derive(Clone, Copy)]
struct Durations {
    heartbeat: u64,
    election: u64,
    guard: u64,
    lease: u64,
    renew: u64,
    grace: u64,
}

const fn of(a: [u64; 6]) -> Durations {
    Durations {
        heartbeat: a[0],
        election: a[1],
        guard: a[2],
        lease: a[3],
        renew: a[4],
        grace: a[5],
    }
}

/// The sets of durations that are tried. The numbers, in ms, are: heartbeat, election timeout,
/// guard, lease, renewal, grace.
const TRIED: [Durations; 7] = [
    of([250, 1500, 2000, 2000, 500, 5000]),
    of([250, 1500, 1000, 1000, 250, 2500]),
    of([150, 1000, 750, 1000, 150, 2000]),
    of([100, 750, 500, 750, 100, 1500]),
    of([100, 500, 400, 500, 100, 1000]),
    of([75, 375, 300, 300, 75, 750]),
    of([50, 250, 250, 250, 50, 500]),
];

/// A network: its name, round-trip times, and faults.
struct Net {
    name: &'static str,
    rtt_ms: [[u64; 5]; 5],
    faults: Faults,
}

fn nets() -> [Net; 2] {
    let far = WORLD.map(|row| row.map(|rtt| rtt * 400 / 212));
    let faults = |loss, share, most_ms| Faults {
        loss,
        reordering: share,
        delay_max_ns: most_ms * MS,
        ..Faults::default()
    };
    [
        Net {
            name: "the paper's sites, 1% lost, each message up to 50 ms late",
            rtt_ms: WORLD,
            faults: faults(0.01, 1.0, 50),
        },
        Net {
            name: "round trips up to 400 ms, 2% lost, each message up to 100 ms late",
            rtt_ms: far,
            faults: faults(0.02, 1.0, 100),
        },
    ]
}

/// Counts of false alarms. These are elections, suspicions and lapsed leases without the failure of
/// a replica.
#[derive(Default)]
struct FalseAlarms {
    elections: u64,
    suspicions: u64,
    /// Number of checks. Each check concerns one replica. `lapsed` is the number of checks in which
    /// the replica had promises from too few other replicas.
    looks: u64,
    lapsed: u64,
}

fn settings(d: Durations) -> Settings {
    let ms = Duration::from_millis;
    let mut settings = Settings::new(ReplicaId(0), 5);
    settings.strategies = StrategySpec::All.into();
    settings.params = LeaseParams {
        t_lease: ms(d.lease),
        t_guard: ms(d.guard),
        renew: ms(d.renew),
        t_grace: ms(d.grace),
        t0_cap: ms(d.renew * 8),
        clock: ClockBound { rho_ppm: 1000 },
    };
    settings.timing.heartbeat = ms(d.heartbeat);
    settings.timing.election_timeout = ms(d.election);
    settings
}

fn run(durations: Durations, net: &Net, hours: f64, seed: u64) -> FalseAlarms {
    let one_way = |rtt: u64| (rtt * MS / 2).max(50_000);
    let world = WorldSettings {
        replica: settings(durations),
        one_way_ns: net.rtt_ms.map(|row| row.map(one_way).to_vec()).to_vec(),
        client_one_way_ns: MS / 10,
        sync_ns: MS / 5,
        faults: net.faults,
        drift_ppm: 100,
        encoded: false,
        disks_remember: false,
        segment_bytes: None,
        slow_reads: false,
        faulty_reporter: None,
        watched: false,
    };
    let mut world = World::new(world, seed);
    let mut false_alarms = FalseAlarms::default();
    let end_ns = SETTLE_NS + (hours * 3.6e12) as u64;
    world.alarm(SETTLE_NS, 0);
    while world.now_ns() < end_ns {
        if let Some(WorldEvent::Alarm(_)) = world.advance() {
            world.alarm(world.now_ns() + LOOK_NS, 0);
            look(&world, &mut false_alarms);
        }
    }
    for (at_ns, by, note) in &world.notes {
        match note {
            Event::Leading(_) if *at_ns > SETTLE_NS => false_alarms.elections += 1,
            Event::Configured { excluded, .. } if *at_ns > SETTLE_NS && by.0 == 0 => {
                false_alarms.suspicions += u64::from(!excluded.is_empty());
            }
            _ => {}
        }
    }
    false_alarms
}

/// Checks for every replica whether it has unexpired promises from at least two other replicas.
/// Counts each replica with fewer promises.
fn look(world: &World, false_alarms: &mut FalseAlarms) {
    for node in 0..world.n() {
        let (Some(replica), now) = (world.replica(node), world.clock(node)) else {
            continue;
        };
        let promises = |grantor: &usize| {
            let mut promised = replica.promised_by(ReplicaId(*grantor as u8));
            promised.any(|(_, until)| now < until)
        };
        let grantors = (0..world.n()).filter(promises).count();
        false_alarms.looks += 1;
        false_alarms.lapsed += u64::from(grantors < world.n() / 2);
    }
}

fn main() {
    let hours = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let hours: f64 = hours.unwrap_or(1.0);
    println!("# Durations\n");
    println!(
        "Made by `cargo run --release --locked -p leasehold-sim --example durations -- {hours}`: {hours} h of virtual time\n\
         of five replicas for each line. No replica fails, so every election and every suspicion is false. Durations are in ms.\n\
         *Stall* is how long a write waits at most for a holder that is gone: two renewals, t_guard and t_lease,\n\
         stretched for drift. *Lapsed* is the share of time in which a replica had too few promises to read locally.\n"
    );
    for net in nets() {
        println!("## {}\n", net.name);
        println!(
            "| heartbeat | election | t_guard | t_lease | renew | grace | stall | promises/s of a replica | false elections a day \
             | false suspicions a day | lapsed |\n|---|---|---|---|---|---|---|---|---|---|---|"
        );
        let lines: Vec<_> = std::thread::scope(|scope| {
            let net = &net;
            let runs = TRIED.map(|tried| scope.spawn(move || (tried, run(tried, net, hours, 1))));
            runs.into_iter()
                .map(|run| run.join().expect("no run panics"))
                .collect()
        });
        for (d, false_alarms) in lines {
            let stall = settings(d).params.restart_wait().as_millis() as u64 + 2 * d.renew;
            let day = |count: u64| count as f64 * 24.0 / hours;
            println!(
                "| {} | {} | {} | {} | {} | {} | {stall} | {:.0} | {:.0} | {:.0} | {:.4}% |",
                d.heartbeat,
                d.election,
                d.guard,
                d.lease,
                d.renew,
                d.grace,
                4000.0 / d.renew as f64,
                day(false_alarms.elections),
                day(false_alarms.suspicions),
                false_alarms.lapsed as f64 * 100.0 / false_alarms.looks.max(1) as f64,
            );
        }
        println!();
    }
}
