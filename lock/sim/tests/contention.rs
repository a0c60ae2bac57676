//! Many programs that want the same resource, on a network that loses messages.

use std::time::Duration;

use leasehold_kernel::campaign::Sums as _;
use leasehold_kernel::network::Faults;
use leasehold_leases::time::ClockBound;
use leasehold_lock_core::{ClockModel, GroupSettings};
use leasehold_lock_sim::{GroupScenario, GroupWorld, RunSums, SimulatedClocks};

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
        is_patient: true,
        ..GroupScenario::draw(seed, SimulatedClocks::Bounded)
    }
}

#[test]
fn a_living_owner_never_loses_and_the_next_one_follows_a_release_at_once() {
    let (mut sums, mut gaps) = (RunSums::default(), Vec::new());
    for seed in 0..24 {
        let mut world = GroupWorld::new(scenario(seed, 1), 100);
        let run = world
            .run()
            .unwrap_or_else(|violation| panic!("{violation}"));
        sums.merge(&run);
        gaps.extend_from_slice(world.gaps_ns());
        // Members take turns.
        let (least, most) = (
            world.acquired_by().iter().min(),
            world.acquired_by().iter().max(),
        );
        assert!(
            most < least.map(|it| it * 2).as_ref(),
            "{:?}",
            world.acquired_by()
        );
    }
    assert_eq!(
        (sums.expired, sums.no_majority, sums.unconfirmed),
        (0, 0, 0)
    );
    assert!(sums.acquired > 8_000 && gaps.len() > 8_000, "{sums:?}");
    gaps.sort_unstable();
    let at = |share: f64| gaps[((gaps.len() - 1) as f64 * share) as usize];
    println!(
        "{} releases; time to the next owner in ms: median {}, 99% {}, 99.9% {}, maximum {}",
        gaps.len(),
        at(0.5) / MS,
        at(0.99) / MS,
        at(0.999) / MS,
        at(1.0) / MS
    );
    let round_trip_ns = 2 * ONE_WAY_NS;
    // The rest has lost several messages in a row.
    assert!(at(0.99) <= 2 * round_trip_ns + 10 * MS, "{} ns", at(0.99));
    // Another member begins if the successor hears nothing of the release.
    assert!(at(1.0) <= 1_000 * MS, "{} ns", at(1.0));
}
