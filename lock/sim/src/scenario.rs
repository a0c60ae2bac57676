//! Settings, delays and faults of a run, which are drawn from its seed.

use std::fmt;
use std::time::Duration;

use leasehold_kernel::network::Faults;
use leasehold_leases::time::ClockBound;
use leasehold_lock_core::{ClockModel, GroupSettings};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

const MS: u64 = 1_000_000;

/// Kind of a fault that recurs during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupFault {
    /// One member crashes, between two packets that it sends. It forgets everything.
    Crash,
    /// All members crash.
    CrashAll,
    /// One member is paused, between two packets that it sends.
    Pause,
    /// The links between some members are cut in both directions, or in one direction.
    Cut,
    /// All members are restarted, one after another.
    Roll,
}

impl GroupFault {
    const ALL: [GroupFault; 5] = [
        GroupFault::Crash,
        GroupFault::CrashAll,
        GroupFault::Pause,
        GroupFault::Cut,
        GroupFault::Roll,
    ];

    /// Returns how many times rarer the fault is than others. After a restart of all members, no
    /// member owns anything for more than a term.
    fn rarity(self) -> f64 {
        match self {
            GroupFault::CrashAll | GroupFault::Roll => 5.0,
            GroupFault::Crash | GroupFault::Pause | GroupFault::Cut => 1.0,
        }
    }
}

/// Clocks on which a simulated group relies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimulatedClocks {
    /// The rates of the clocks are bounded.
    Bounded,
    /// The clocks are synchronised.
    Synchronised,
}

impl SimulatedClocks {
    /// All choices.
    pub const ALL: [SimulatedClocks; 2] = [SimulatedClocks::Bounded, SimulatedClocks::Synchronised];
}

/// Settings, delays and faults of a run.
#[derive(Clone, Debug)]
pub struct GroupScenario {
    /// Seed of the run.
    pub seed: u64,
    /// Settings of the group.
    pub settings: GroupSettings,
    /// Actual maximum difference between two clocks, in ns. It exceeds `epsilon` only in negative
    /// controls.
    pub clock_difference_ns: u64,
    /// Actual maximum error of the rate of a clock with a bounded rate, in parts per million. It
    /// exceeds `rho` only in negative controls.
    pub clock_error_ppm: u32,
    /// Number of resources.
    pub resources: usize,
    /// One-way delay of every link in ns, by sender and receiver.
    pub one_way_ns: Vec<Vec<u64>>,
    /// Faults of the links.
    pub link_faults: Faults,
    /// Enabled faults, with the mean time between two of them in ns.
    pub faults: Vec<(GroupFault, u64)>,
    /// Time with faults, in ns. A time without faults follows, in which liveness is checked.
    pub faulty_ns: u64,
    /// Fraction of leases that programs release.
    pub releases: f64,
    /// Whether all programs wait forever for a resource. Otherwise some do not wait, or give up.
    pub is_patient: bool,
}

impl fmt::Display for GroupScenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = &self.settings;
        let faults: Vec<_> = self.faults.iter().map(|(kind, _)| kind).collect();
        write!(
            f,
            "seed {}: {} members, {} resources, t_max {:?}, {:?}, attempts of {:?}; faults: \
             {faults:?}; messages: {:?}",
            self.seed,
            settings.members,
            self.resources,
            settings.term,
            settings.clocks,
            settings.attempt,
            self.link_faults,
        )
    }
}

impl GroupScenario {
    /// Chooses everything at random.
    pub fn draw(seed: u64, clocks: SimulatedClocks) -> GroupScenario {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let members = [3, 3, 3, 4, 5, 5, 7][rng.random_range(0..7)];
        let term = Duration::from_millis([300, 1000, 3000][rng.random_range(0..3)]);
        // Bad clocks meet most rules, so they are more frequent.
        let precision = rng.random_range(0..12);
        let rho_ppm = [0, 1_000, 20_000, 200_000][(precision / 2).min(3)];
        let epsilon = [Duration::ZERO, term / 50, term / 8, term / 4][precision / 3];
        let model = match clocks {
            SimulatedClocks::Bounded => ClockModel::Bounded(ClockBound { rho_ppm }),
            SimulatedClocks::Synchronised => ClockModel::Synchronised { epsilon },
        };
        let settings = GroupSettings {
            attempt: term / [3, 4, 10][rng.random_range(0..3)],
            ..GroupSettings::new(members, term, model)
        };
        let term_ns = term.as_nanos() as u64;
        let n = usize::from(members);
        // A READ and a WRITE must fit into an attempt, also while a clock is steered.
        let far_ns = (term_ns / 80).max(MS);
        let mut one_way = |_| (0..n).map(|_| rng.random_range(MS / 10..far_ns)).collect();
        let one_way_ns = (0..n).map(&mut one_way).collect();
        let mut share =
            |most: f64| rng.random::<f64>() * most * f64::from(u8::from(rng.random::<bool>()));
        let link_faults = Faults {
            loss: share(0.2),
            duplication: share(0.2),
            reordering: share(0.2),
            old: share(0.02),
            delay_max_ns: 0,
        };
        // Delays about as long as the term meet most rules.
        let delay_max_ns = (term_ns as f64 * rng.random_range(0.1..2.5)) as u64;
        let mut faults = Vec::new();
        for kind in GroupFault::ALL {
            let (is_enabled, terms) = (rng.random::<f64>() < 0.4, rng.random_range(0.7..8.0));
            if is_enabled {
                faults.push((kind, (term_ns as f64 * terms * kind.rarity()) as u64));
            }
        }
        GroupScenario {
            seed,
            clock_difference_ns: epsilon.as_nanos() as u64,
            clock_error_ppm: rho_ppm,
            settings,
            resources: rng.random_range(1..=3),
            one_way_ns,
            link_faults: Faults {
                delay_max_ns,
                ..link_faults
            },
            faults,
            faulty_ns: term_ns * 40,
            releases: rng.random(),
            is_patient: false,
        }
    }
}
