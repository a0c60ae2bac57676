//! Schedule of a round: the faults with their times. The seed and the settings determine the
//! schedule.
//!
//! Every fault ends before the round ends. At most a minority of the replicas is down or restarting
//! at the same time, unless all are killed together. Pauses, full disks and cut links may make a
//! majority unavailable for some seconds.

use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::chooser::weighted;
use crate::fault::{self, Direction, FaultAction, FaultSpec, FaultTarget};
use crate::topology::Topology;

/// Time in seconds between the end of all faults and the end of the round. In this time, the
/// replicas recover.
const QUIET_S: f64 = 2.0;
/// Time, in seconds, for which a replica is regarded as down after its start.
const STARTING_S: f64 = 1.0;
/// Maximum number of random faults that are tried for one point in time. If all of these faults are
/// impossible, no fault begins at that time.
const DRAWS_MAX: usize = 8;
/// Resolution of the times in a schedule, in steps per second. Times are whole milliseconds, so
/// that they are easy to read.
const PER_SECOND: f64 = 1e3;

/// Kinds of faults. The two numbers after each kind are the shortest and the longest duration of
/// such a fault, in seconds. The last number is the relative frequency of the kind.
const KINDS: [((FaultKind, f64, f64), u32); 9] = [
    ((FaultKind::Of(FaultAction::Kill), 0.05, 5.0), 22),
    ((FaultKind::Of(FaultAction::Stop), 0.05, 4.0), 9),
    ((FaultKind::Of(FaultAction::Restart), 0.0, 0.0), 8),
    ((FaultKind::Of(FaultAction::Pause), 0.05, 4.0), 18),
    ((FaultKind::Of(FaultAction::Partition), 0.2, 6.0), 22),
    ((FaultKind::Of(FaultAction::Slow), 0.5, 8.0), 9),
    ((FaultKind::Of(FaultAction::Loss), 0.5, 8.0), 9),
    ((FaultKind::Of(FaultAction::FillDisk), 0.3, 4.0), 5),
    ((FaultKind::Blackout, 0.2, 2.0), 2),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum FaultKind {
    Of(FaultAction),
    /// All replicas are killed at the same time.
    Blackout,
}

/// Length of a schedule, and mean time between faults.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleSettings {
    /// Length of the schedule, in seconds.
    pub length_s: f64,
    /// Mean time between the starts of two faults, in seconds.
    pub every_s: f64,
}

/// Returns random faults for a round, in the order in which they begin. The same seed gives the
/// same faults.
pub fn draw(seed: u64, settings: ScheduleSettings, topology: &Topology) -> Vec<FaultSpec> {
    let mut generator = FaultGenerator {
        rng: Pcg64Mcg::seed_from_u64(seed),
        topology,
        end_s: settings.length_s - QUIET_S,
    };
    let mut faults = Vec::new();
    let mut at_s = 0.0;
    loop {
        at_s += generator.pause(settings.every_s);
        if at_s >= generator.end_s {
            return faults;
        }
        let drawn = (0..DRAWS_MAX)
            .map(|_| generator.fault(at_s))
            .collect::<Vec<_>>();
        let fitting = drawn
            .into_iter()
            .find(|fault| fits(fault, &faults, topology));
        faults.extend(fitting);
    }
}

struct FaultGenerator<'a> {
    rng: Pcg64Mcg,
    topology: &'a Topology,
    end_s: f64,
}

impl FaultGenerator<'_> {
    /// Returns a random time until the next fault, in seconds: exponentially distributed, and
    /// rounded to whole milliseconds.
    fn pause(&mut self, mean_s: f64) -> f64 {
        let pause_s = -mean_s * (1.0 - self.rng.random::<f64>()).ln();
        whole_ms(pause_s.max(0.05))
    }

    fn fault(&mut self, at_s: f64) -> FaultSpec {
        let (kind, shortest_s, longest_s) = weighted(&KINDS, &mut self.rng);
        let until_s = self.until(at_s, shortest_s, longest_s);
        let fault = match kind {
            FaultKind::Blackout => FaultSpec::now(FaultAction::Kill, vec![FaultTarget::All]),
            FaultKind::Of(action) if action.affects_links() => self.of_links(action),
            FaultKind::Of(action) => FaultSpec::now(action, vec![self.replica()]),
        };
        FaultSpec {
            at_s,
            until_s: (fault.action != FaultAction::Restart).then_some(until_s),
            ..fault
        }
    }

    /// Returns a random end for a fault that begins at `at_s`. The logarithm of the fault's
    /// duration is uniformly distributed, because short faults should be as likely as long ones.
    fn until(&mut self, at_s: f64, shortest_s: f64, longest_s: f64) -> f64 {
        let times = longest_s / shortest_s.max(0.001);
        let length_s = shortest_s * times.powf(self.rng.random::<f64>());
        whole_ms((at_s + length_s).min(self.end_s + QUIET_S / 2.0))
    }

    fn replica(&mut self) -> FaultTarget {
        match self.rng.random_range(0..10) {
            0..3 => FaultTarget::Leader,
            3 => FaultTarget::Holder,
            4 => FaultTarget::Nearest,
            5 => FaultTarget::Random,
            _ => self.site(),
        }
    }

    fn site(&mut self) -> FaultTarget {
        let names = self.topology.names();
        let name = names.choose(&mut self.rng).expect("a topology has sites");
        FaultTarget::Site((*name).to_owned())
    }

    fn of_links(&mut self, action: FaultAction) -> FaultSpec {
        let mut target = vec![self.replica()];
        if self.rng.random_bool(0.2) {
            target.push(self.site());
        }
        let mut fault = FaultSpec::now(action, target);
        let targets = &fault.target;
        let other = |site: &FaultTarget| !targets.contains(site);
        let some = self.rng.random_range(0..3);
        fault.to = (0..some).map(|_| self.site()).filter(other).collect();
        fault.direction = *[Direction::Both, Direction::Out, Direction::In]
            .choose(&mut self.rng)
            .expect("the list of directions is not empty");
        match action {
            FaultAction::Slow => fault.delay_ms = f64::from(self.rng.random_range(10..400_u32)),
            FaultAction::Loss => fault.loss = f64::from(self.rng.random_range(1..40_u32)) / 100.0,
            _ => {}
        }
        fault
    }
}

fn whole_ms(seconds: f64) -> f64 {
    (seconds * PER_SECOND).round() / PER_SECOND
}

/// Whether a fault is possible together with the faults in `before`.
fn fits(fault: &FaultSpec, before: &[FaultSpec], topology: &Topology) -> bool {
    if fault.until_s.is_some_and(|until_s| until_s <= fault.at_s) {
        return false;
    }
    let lasting = before.iter().filter(|other| end_s(other) >= fault.at_s);
    let mut beside: Vec<FaultSpec> = lasting.cloned().collect();
    let minority = topology.len() - (topology.len() / 2 + 1);
    let down: usize = beside.iter().chain([fault]).map(replicas_down).sum();
    // A blackout begins only when all replicas are up, and no fault takes down a replica during it.
    let mut of_replicas = beside.iter().filter(|other| !other.action.affects_links());
    let alone = if is_blackout(fault) {
        of_replicas.next().is_none()
    } else {
        fault.action.affects_links() || !of_replicas.any(is_blackout)
    };
    let few = replicas_down(fault) == 0 || is_blackout(fault) || down <= minority;
    beside.push(fault.clone());
    alone && few && fault::check(&beside, topology).is_ok()
}

/// Returns the number of replicas that a fault takes down. Each role in the fault is counted as one
/// replica.
fn replicas_down(fault: &FaultSpec) -> usize {
    match fault.action {
        FaultAction::Kill | FaultAction::Stop | FaultAction::Restart => fault.target.len(),
        _ => 0,
    }
}

fn is_blackout(fault: &FaultSpec) -> bool {
    fault.target.contains(&FaultTarget::All)
}

/// Returns the time, in seconds, at which the effects of a fault are over.
fn end_s(fault: &FaultSpec) -> f64 {
    fault.until_s.unwrap_or(fault.at_s) + STARTING_S
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const SETTINGS: ScheduleSettings = ScheduleSettings {
        length_s: 120.0,
        every_s: 1.5,
    };

    #[test]
    fn a_seed_decides_everything() {
        let topology = Topology::paper();
        let once = draw(7, SETTINGS, &topology);
        assert_eq!(once, draw(7, SETTINGS, &topology));
        assert_ne!(once, draw(8, SETTINGS, &topology));
    }

    #[test]
    fn every_schedule_is_one_that_experiments_accept_and_ends_in_time() {
        let topology = Topology::paper();
        for seed in 0..200 {
            let faults = draw(seed, SETTINGS, &topology);
            assert_eq!(fault::check(&faults, &topology), Ok(()), "seed {seed}");
            for fault in &faults {
                let until_s = fault.until_s.unwrap_or(fault.at_s);
                assert!(until_s < SETTINGS.length_s, "seed {seed}: {fault:?}");
                assert!(fault.until_s.is_some() || fault.action == FaultAction::Restart);
            }
            assert!(faults.is_sorted_by_key(|fault| fault.at_s));
        }
    }

    #[test]
    fn a_majority_is_down_only_when_all_are_killed_together() {
        let topology = Topology::paper();
        for seed in 0..200 {
            let faults = draw(seed, SETTINGS, &topology);
            for fault in faults.iter().filter(|fault| replicas_down(fault) > 0) {
                let at_s = fault.at_s;
                let now = |other: &&FaultSpec| other.at_s <= at_s && at_s <= end_s(other);
                let now: Vec<&FaultSpec> = faults.iter().filter(now).collect();
                let down: usize = now.iter().map(|other| replicas_down(other)).sum();
                let all = now.iter().any(|other| is_blackout(other));
                assert!(
                    if all { down == 1 } else { down <= 2 },
                    "seed {seed}: {now:?}"
                );
            }
        }
    }

    #[test]
    fn some_hours_have_every_kind_of_fault_in_every_direction_at_about_the_rate_asked() {
        let topology = Topology::paper();
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        let mut faults = 0;
        for seed in 0..60 {
            for fault in draw(seed, SETTINGS, &topology) {
                let all = if is_blackout(&fault) { " all" } else { "" };
                let name = format!("{}{all} {:?}", fault.action.name(), fault.direction);
                *kinds.entry(name).or_default() += 1;
                faults += 1;
            }
        }
        // There are three kinds of failing links, each in three directions, and six other kinds.
        assert_eq!(kinds.len(), 15, "{kinds:?}");
        let every_s = 60.0 * SETTINGS.length_s / f64::from(faults);
        assert!(
            (1.2..2.2).contains(&every_s),
            "{every_s} s between two faults"
        );
    }
}
