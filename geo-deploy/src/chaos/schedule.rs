//! Schedule of the faults of a round, and their times: a list that follows from a seed alone.
//!
//! Every fault ends before the round does. At most a minority of the replicas is down or
//! restarting at once, unless all are killed together; pauses, full disks and cut links
//! may take a majority away for some seconds.

use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::choose::weighted;
use crate::fault::{self, Action, Direction, Fault, Target};
use crate::topology::Topology;

/// Faults end this long before the round does, in seconds, so that its end finds replicas
/// that are at work again.
const QUIET_S: f64 = 2.0;
/// A replica that starts is taken as down for so long, in seconds, after its start.
const STARTING_S: f64 = 1.0;
/// Maximum number of faults drawn until one may begin at some time; after these nothing begins
/// then.
const DRAWS_MAX: usize = 8;
/// Times in a schedule are whole milliseconds, so that people can read them.
const PER_SECOND: f64 = 1e3;

/// Each kind of fault, the shortest and the longest that it lasts in seconds, and how often
/// it is drawn beside the others.
const KINDS: [((Kind, f64, f64), u32); 9] = [
    ((Kind::Of(Action::Kill), 0.05, 5.0), 22),
    ((Kind::Of(Action::Stop), 0.05, 4.0), 9),
    ((Kind::Of(Action::Restart), 0.0, 0.0), 8),
    ((Kind::Of(Action::Pause), 0.05, 4.0), 18),
    ((Kind::Of(Action::Partition), 0.2, 6.0), 22),
    ((Kind::Of(Action::Slow), 0.5, 8.0), 9),
    ((Kind::Of(Action::Loss), 0.5, 8.0), 9),
    ((Kind::Of(Action::FillDisk), 0.3, 4.0), 5),
    ((Kind::Blackout, 0.2, 2.0), 2),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Of(Action),
    /// Every replica is killed at the same time.
    Blackout,
}

/// Length of a schedule, and the frequency of its faults.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Length of the schedule, in seconds.
    pub length_s: f64,
    /// Mean time between the begins of two faults, in seconds.
    pub every_s: f64,
}

/// The faults of a round, by their begin.
pub fn draw(seed: u64, span: Span, topology: &Topology) -> Vec<Fault> {
    let mut dice = Dice {
        chance: Pcg64Mcg::seed_from_u64(seed),
        topology,
        end_s: span.length_s - QUIET_S,
    };
    let mut faults = Vec::new();
    let mut at_s = 0.0;
    loop {
        at_s += dice.pause(span.every_s);
        if at_s >= dice.end_s {
            return faults;
        }
        let drawn = (0..DRAWS_MAX).map(|_| dice.fault(at_s)).collect::<Vec<_>>();
        let fitting = drawn
            .into_iter()
            .find(|fault| fits(fault, &faults, topology));
        faults.extend(fitting);
    }
}

struct Dice<'a> {
    chance: Pcg64Mcg,
    topology: &'a Topology,
    end_s: f64,
}

impl Dice<'_> {
    /// Until the next fault: exponential, in whole ms.
    fn pause(&mut self, mean_s: f64) -> f64 {
        let pause_s = -mean_s * (1.0 - self.chance.random::<f64>()).ln();
        whole_ms(pause_s.max(0.05))
    }

    fn fault(&mut self, at_s: f64) -> Fault {
        let (kind, shortest_s, longest_s) = weighted(&KINDS, &mut self.chance);
        let until_s = self.until(at_s, shortest_s, longest_s);
        let fault = match kind {
            Kind::Blackout => Fault::now(Action::Kill, vec![Target::All]),
            Kind::Of(action) if action.is_of_links() => self.of_links(action),
            Kind::Of(action) => Fault::now(action, vec![self.replica()]),
        };
        Fault {
            at_s,
            until_s: (fault.action != Action::Restart).then_some(until_s),
            ..fault
        }
    }

    /// Short ones are as likely as long ones: evenly by the logarithm.
    fn until(&mut self, at_s: f64, shortest_s: f64, longest_s: f64) -> f64 {
        let times = longest_s / shortest_s.max(0.001);
        let length_s = shortest_s * times.powf(self.chance.random::<f64>());
        whole_ms((at_s + length_s).min(self.end_s + QUIET_S / 2.0))
    }

    fn replica(&mut self) -> Target {
        match self.chance.random_range(0..10) {
            0..3 => Target::Leader,
            3 => Target::Holder,
            4 => Target::Nearest,
            5 => Target::Random,
            _ => self.site(),
        }
    }

    fn site(&mut self) -> Target {
        let names = self.topology.names();
        let name = names.choose(&mut self.chance).expect("a site");
        Target::Site((*name).to_owned())
    }

    fn of_links(&mut self, action: Action) -> Fault {
        let mut target = vec![self.replica()];
        if self.chance.random_bool(0.2) {
            target.push(self.site());
        }
        let mut fault = Fault::now(action, target);
        let targets = &fault.target;
        let other = |site: &Target| !targets.contains(site);
        let some = self.chance.random_range(0..3);
        fault.to = (0..some).map(|_| self.site()).filter(other).collect();
        fault.direction = *[Direction::Both, Direction::Out, Direction::In]
            .choose(&mut self.chance)
            .expect("a direction");
        match action {
            Action::Slow => fault.delay_ms = f64::from(self.chance.random_range(10..400_u32)),
            Action::Loss => fault.loss = f64::from(self.chance.random_range(1..40_u32)) / 100.0,
            _ => {}
        }
        fault
    }
}

fn whole_ms(seconds: f64) -> f64 {
    (seconds * PER_SECOND).round() / PER_SECOND
}

/// Whether a fault may begin beside those that were drawn before it.
fn fits(fault: &Fault, before: &[Fault], topology: &Topology) -> bool {
    if fault.until_s.is_some_and(|until_s| until_s <= fault.at_s) {
        return false;
    }
    let lasting = before.iter().filter(|other| end_s(other) >= fault.at_s);
    let mut beside: Vec<Fault> = lasting.cloned().collect();
    let minority = topology.len() - (topology.len() / 2 + 1);
    let down: usize = beside.iter().chain([fault]).map(takes_down).sum();
    // A blackout begins with everybody up, and nobody else goes down during it.
    let mut of_replicas = beside.iter().filter(|other| !other.action.is_of_links());
    let alone = match is_blackout(fault) {
        true => of_replicas.next().is_none(),
        false => fault.action.is_of_links() || !of_replicas.any(is_blackout),
    };
    let few = takes_down(fault) == 0 || is_blackout(fault) || down <= minority;
    beside.push(fault.clone());
    alone && few && fault::check(&beside, topology).is_ok()
}

/// Returns the number of replicas that a fault takes down. Roles count as replicas of their own.
fn takes_down(fault: &Fault) -> usize {
    match fault.action {
        Action::Kill | Action::Stop | Action::Restart => fault.target.len(),
        _ => 0,
    }
}

fn is_blackout(fault: &Fault) -> bool {
    fault.target.contains(&Target::All)
}

/// When its effects are over.
fn end_s(fault: &Fault) -> f64 {
    fault.until_s.unwrap_or(fault.at_s) + STARTING_S
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const SPAN: Span = Span {
        length_s: 120.0,
        every_s: 1.5,
    };

    #[test]
    fn a_seed_decides_everything() {
        let topology = Topology::paper();
        let once = draw(7, SPAN, &topology);
        assert_eq!(once, draw(7, SPAN, &topology));
        assert_ne!(once, draw(8, SPAN, &topology));
    }

    #[test]
    fn every_schedule_is_one_that_experiments_accept_and_ends_in_time() {
        let topology = Topology::paper();
        for seed in 0..200 {
            let faults = draw(seed, SPAN, &topology);
            assert_eq!(fault::check(&faults, &topology), Ok(()), "seed {seed}");
            for fault in &faults {
                let until_s = fault.until_s.unwrap_or(fault.at_s);
                assert!(until_s < SPAN.length_s, "seed {seed}: {fault:?}");
                assert!(fault.until_s.is_some() || fault.action == Action::Restart);
            }
            assert!(faults.is_sorted_by_key(|fault| fault.at_s));
        }
    }

    #[test]
    fn a_majority_is_down_only_when_all_are_killed_together() {
        let topology = Topology::paper();
        for seed in 0..200 {
            let faults = draw(seed, SPAN, &topology);
            for fault in faults.iter().filter(|fault| takes_down(fault) > 0) {
                let at_s = fault.at_s;
                let now = |other: &&Fault| other.at_s <= at_s && at_s <= end_s(other);
                let now: Vec<&Fault> = faults.iter().filter(now).collect();
                let down: usize = now.iter().map(|other| takes_down(other)).sum();
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
            for fault in draw(seed, SPAN, &topology) {
                let all = if is_blackout(&fault) { " all" } else { "" };
                let name = format!("{}{all} {:?}", fault.action.name(), fault.direction);
                *kinds.entry(name).or_default() += 1;
                faults += 1;
            }
        }
        // Three kinds of failing links, each in three directions, and six others.
        assert_eq!(kinds.len(), 15, "{kinds:?}");
        let every_s = 60.0 * SPAN.length_s / f64::from(faults);
        assert!(
            (1.2..2.2).contains(&every_s),
            "{every_s} s between two faults"
        );
    }
}
