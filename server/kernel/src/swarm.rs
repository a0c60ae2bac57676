//! Recurring faults, with random times and durations that the seed determines. In each run only
//! some kinds of faults are enabled, so that one kind does not hide another (swarm testing: Groce
//! et al., ISSTA 2012).

use rand::RngExt as _;
use rand_pcg::Pcg64Mcg;

/// Fraction of runs in which a given kind of fault is enabled.
pub const ENABLED: f64 = 0.3;
const MS: u64 = 1_000_000;
/// Possible mean times between two faults of one kind, in ns. For each kind, one of these times is
/// chosen at random.
const EVERY_NS: [u64; 3] = [1500 * MS, 5000 * MS, 15_000 * MS];
/// Mean time between two faults of a rare kind, in ns.
const RARE_EVERY_NS: u64 = 20_000 * MS;
/// Possible maximum durations of an outage, in ns. For each run, one of these durations is chosen
/// at random.
const OUTAGES_NS: [u64; 3] = [100 * MS, 1500 * MS, 8000 * MS];

/// The faults of a run: the enabled kinds, of type `F`, and the maximum duration of an outage.
#[derive(Clone, Debug)]
pub struct Plan<F> {
    /// Enabled kinds of faults. The second value is the mean time between two faults of the kind,
    /// in ns.
    pub faults: Vec<(F, u64)>,
    /// Maximum duration of an outage that a fault causes, in ns. Each outage is also limited to
    /// half the mean time between two faults of its kind, so that the system can recover before the
    /// next fault.
    pub outage_ns: u64,
}

impl<F> Default for Plan<F> {
    fn default() -> Plan<F> {
        Plan {
            faults: Vec::new(),
            outage_ns: 0,
        }
    }
}

impl<F: Copy> Plan<F> {
    /// Chooses at random which of `kinds` are enabled. Faults of a kind for which `is_rare` returns
    /// true occur once in 20 s on average.
    pub fn draw(
        rng: &mut Pcg64Mcg,
        kinds: impl Iterator<Item = F>,
        is_rare: impl Fn(F) -> bool,
    ) -> Plan<F> {
        let mut faults = Vec::new();
        for fault in kinds {
            let enabled = rng.random::<f64>() < ENABLED;
            let every_ns = EVERY_NS[rng.random_range(0..EVERY_NS.len())];
            if enabled {
                let every_ns = if is_rare(fault) {
                    RARE_EVERY_NS
                } else {
                    every_ns
                };
                faults.push((fault, every_ns));
            }
        }
        let outage_ns = OUTAGES_NS[rng.random_range(0..OUTAGES_NS.len())];
        Plan { faults, outage_ns }
    }

    /// Returns a random time, in ns, from one fault of a kind to the next. `index` is the position
    /// of the kind in [`Plan::faults`].
    pub fn draw_interval(&self, rng: &mut Pcg64Mcg, index: usize) -> u64 {
        rng.random_range(0..2 * self.faults[index].1)
    }

    /// Returns a random duration, in ns, for a fault that occurs every `every_ns` ns on average.
    pub fn draw_outage(&self, rng: &mut Pcg64Mcg, every_ns: u64) -> u64 {
        let most = self.outage_ns.min(every_ns / 2).max(2 * MS);
        rng.random_range(MS..=most)
    }
}

/// A process that fails repeatedly, and works between failures.
#[derive(Clone, Copy, Debug)]
pub struct Flap<F> {
    /// Index of the process.
    pub node: usize,
    /// Kind of the failures. All failures of the process are of this kind.
    pub how: F,
    left: u32,
    /// Duration of each failure, in ns.
    pub down_ns: u64,
    /// Time, in ns, for which the process works after each failure.
    pub well_ns: u64,
}

impl<F: Copy> Flap<F> {
    /// Plans three to eleven failures of a process. The number is random. All failures are of the
    /// same kind, which is chosen at random from `hows`.
    pub fn draw<const N: usize>(rng: &mut Pcg64Mcg, node: usize, hows: [F; N]) -> Flap<F> {
        Flap {
            node,
            how: hows[rng.random_range(0..N)],
            left: rng.random_range(3..12),
            down_ns: rng.random_range(200..3000) * MS,
            well_ns: rng.random_range(200..3000) * MS,
        }
    }

    /// Begins the next failure of the process. Returns the time, in ns, until the following
    /// failure; `None` if no failure was left.
    pub fn fail(&mut self) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        Some(self.down_ns + self.well_ns)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    #[test]
    fn each_kind_is_enabled_in_some_runs() {
        let mut rng = Pcg64Mcg::seed_from_u64(1);
        let mut enabled = [0; 4];
        for _ in 0..1000 {
            let plan = Plan::draw(&mut rng, 0..4_usize, |kind| kind == 3);
            for (kind, every_ns) in &plan.faults {
                enabled[*kind] += 1;
                assert_eq!(*kind == 3, *every_ns == RARE_EVERY_NS);
            }
            for (index, (_, every_ns)) in plan.faults.iter().enumerate() {
                assert!(plan.draw_interval(&mut rng, index) < 2 * every_ns);
                let outage_ns = plan.draw_outage(&mut rng, *every_ns);
                assert!(outage_ns >= MS && outage_ns <= plan.outage_ns.max(2 * MS));
                assert!(outage_ns <= every_ns / 2);
            }
        }
        assert!(enabled.iter().all(|runs| (250..350).contains(runs)));
    }

    #[test]
    fn a_process_flaps_a_few_times_and_then_no_more() {
        let mut rng = Pcg64Mcg::seed_from_u64(1);
        let mut flap = Flap::draw(&mut rng, 2, ['p']);
        let failures = std::iter::from_fn(|| flap.fail()).count();
        assert!((3..12).contains(&failures), "{failures}");
    }
}
