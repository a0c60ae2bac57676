//! Many programs that want the same resource, on a network that loses messages.

use std::time::Duration;

use leasehold_kernel::campaign::Sums as _;
use leasehold_kernel::network::Faults;
use leasehold_leases::time::ClockBound;
use leasehold_lock_sim::{GroupScenario, GroupWorld, RunSums, SimulatedClocks};
use leasehold_lock_core::{ClockModel, GroupSettings};

const MS: u64 = 1_000_000;
const HOUR_NS: u64 = 3_600_000 * MS;
/// One-way delay of every link.
const ONE_WAY_NS: u64 = 5 * MS;

/// Returns a group of 15 members, the most that a group has, with 1% loss and no other faults.
fn scenario(seed: u64, hours: u64) -> GroupScenario {
    let members = 15;
    let clocks = ClockModel::Bounded(ClockBound { rho_ppm: 1000 });
    let n = usize::from(members);
    GroupScenario {
        settings: GroupSettings::new(members, Duration::from_secs(10), clocks),
        clock_error_ppm: 1000,
        resources: 1,
        one_way_ns: vec![vec![ONE_WAY_NS; n]; n],
        link_faults: Faults {
            loss: 0.01,
            ..Faults::default()
        },
        faults: Vec::new(),
        faulty_ns: hours * HOUR_NS,
        releases: 1.0,
        ..GroupScenario::draw(seed, SimulatedClocks::Bounded)
    }
}

#[test]
fn a_living_owner_never_loses_and_the_next_one_follows_a_release_at_once() {
    let (mut sums, mut gaps) = (RunSums::default(), Vec::new());
    for seed in 0..24 {
        let mut world = GroupWorld::new(scenario(seed, 1), 100);
        sums.merge(&world.run().unwrap_or_else(|violation| panic!("{violation}")));
        gaps.extend_from_slice(world.gaps_ns());
    }
    println!("{sums:?}");
    gaps.sort_unstable();
    let at = |q: f64| gaps[((gaps.len() - 1) as f64 * q) as usize] as f64 / 1e6;
    println!("{} gaps: {} {} {} {} {} {}", gaps.len(), at(0.0), at(0.5), at(0.9), at(0.99), at(0.999), at(1.0));
}
