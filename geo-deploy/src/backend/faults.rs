//! The faults of a run, as they come to pass. A backend says when, and does what is asked.

use anyhow::anyhow;
use rand::SeedableRng as _;
use rand_pcg::Pcg64Mcg;

use super::{Plan, outage};
use crate::fault::{Effect, Fault, Scene};
use crate::run::bound::SiteSet;
use crate::run::{FaultSpan, Measured};

/// Makes `random` independent of everything else that a seed decides.
const CHANCE_SALT: u64 = 0xfa17;

/// A fault begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The fault of this index begins.
    Begin(usize),
    /// It ends.
    End(usize),
}

/// Roles of the replicas, and the replicas that may hold a lease on each key.
#[derive(Debug)]
pub(crate) struct Roles {
    pub(crate) leader: Option<usize>,
    /// Holders of the hottest key.
    pub(crate) holders: Vec<usize>,
    pub(crate) up: Vec<bool>,
    pub(crate) held: Held,
}

/// Replicas that may have held a lease on each key when a fault began.
#[derive(Clone, Debug)]
pub(crate) enum Held {
    /// Nobody has asked.
    Unasked,
    /// It was asked, and is not sure: every key counts as leased to everybody.
    Unknown,
    /// These sites, by key. Nobody else.
    By(Vec<SiteSet>),
}

/// The faults of one run: those to come, and those that have begun.
pub(crate) struct Faults<'a> {
    plan: &'a Plan<'a>,
    faults: &'a [Fault],
    chance: Pcg64Mcg,
    begun: Vec<Begun>,
}

struct Begun {
    index: usize,
    at_ns: u64,
    held: Held,
    effects: Vec<Effect>,
    span: FaultSpan,
}

/// Outcome of the faults of a run.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    pub(crate) spans: Vec<FaultSpan>,
    /// For each fault, its begin in ns and the replicas that may have held a lease on each key
    /// then; in order of time. Empty if nobody has asked.
    pub(crate) leases: Vec<(u64, Vec<SiteSet>)>,
    pub(crate) notes: Vec<String>,
}

impl<'a> Faults<'a> {
    pub(crate) fn new(plan: &'a Plan<'a>) -> Faults<'a> {
        Faults {
            plan,
            faults: plan.faults(),
            chance: Pcg64Mcg::seed_from_u64(plan.seed() ^ CHANCE_SALT),
            begun: Vec::new(),
        }
    }

    /// When faults begin and end, in order; in ns, for an interval that begins at `begin_ns`.
    pub(crate) fn turns(&self, begin_ns: u64) -> Vec<(u64, Turn)> {
        let at_ns = |seconds: f64| begin_ns + (seconds * 1e9) as u64;
        let mut turns = Vec::new();
        for (index, fault) in self.faults.iter().enumerate() {
            turns.push((at_ns(fault.at_s), Turn::Begin(index)));
            turns.extend(fault.until_s.map(|until| (at_ns(until), Turn::End(index))));
        }
        // What ends makes room for what begins then.
        turns.sort_by_key(|(at_ns, turn)| (*at_ns, matches!(turn, Turn::Begin(_))));
        turns
    }

    /// A fault begins: what is done.
    ///
    /// # Errors
    /// If nobody has a role that it is aimed at.
    pub(crate) fn begin(
        &mut self,
        index: usize,
        now_ns: u64,
        roles: Roles,
    ) -> anyhow::Result<Vec<Effect>> {
        let fault = &self.faults[index];
        let mut scene = Scene {
            topology: self.plan.topology(),
            leader: roles.leader,
            holders: roles.holders,
            up: roles.up,
            chance: &mut self.chance,
        };
        let failed = |error: String| anyhow!("fault.{}: {error}", index + 1);
        let named = fault.named(&mut scene).map_err(failed)?;
        let targets = scene.resolve(&named.target).map_err(failed)?;
        let effects = named.begin(&mut scene).map_err(failed)?;
        let sites: SiteSet = targets.into_iter().collect();
        let span = FaultSpan {
            at_s: now_ns as f64 / 1e9,
            until_s: None,
            sites,
            text: fault.in_words(&named),
            bounds: outage::bounds(self.plan, fault, sites, roles.leader),
        };
        self.begun.push(Begun {
            index,
            at_ns: now_ns,
            held: roles.held,
            effects: effects.clone(),
            span,
        });
        Ok(effects)
    }

    /// Notes which replicas may have held a lease on each key when a fault began, or that this will
    /// never be known.
    pub(crate) fn held(&mut self, index: usize, held: Held) {
        if let Some(begun) = self.begun.iter_mut().find(|begun| begun.index == index) {
            begun.held = held;
        }
    }

    /// A fault ends: what is undone.
    pub(crate) fn end(&mut self, index: usize, now_ns: u64) -> Vec<Effect> {
        let Some(begun) = self.begun.iter_mut().find(|begun| begun.index == index) else {
            return Vec::new();
        };
        begun.span.until_s = Some(now_ns as f64 / 1e9);
        begun
            .effects
            .iter()
            .filter_map(|effect| effect.undone())
            .collect()
    }

    /// A replica that was asked to end and to start again has started.
    pub(crate) fn started(&mut self, site: usize, now_ns: u64) {
        let restarts = |begun: &&mut Begun| begun.effects.contains(&Effect::Restart(site));
        for begun in self.begun.iter_mut().filter(restarts) {
            begun.span.until_s.get_or_insert(now_ns as f64 / 1e9);
        }
    }

    /// Returns the outcome of the faults of a run with this measured interval.
    pub(crate) fn passed(self, measured: Measured) -> Passed {
        let begun = |index: usize| self.begun.iter().any(|begun| begun.index == index);
        let never = (0..self.faults.len()).filter(|index| !begun(*index));
        let length_s = measured.end_s - measured.start_s;
        let never = never.map(|index| {
            format!(
                "fault.{} never began: it was to begin {} s into the measured interval, which \
                 ended after {length_s:.1} s; measure longer",
                index + 1,
                self.faults[index].at_s
            )
        });
        let unsure = self.begun.iter();
        let unsure = unsure.filter(|begun| matches!(begun.held, Held::Unknown));
        let unsure = unsure.map(|begun| {
            format!(
                "it is not sure who held what when fault.{} began: every key counts as leased \
                 to who failed",
                begun.index + 1
            )
        });
        Passed {
            notes: never.chain(unsure).collect(),
            leases: self.leases(),
            spans: self.begun.into_iter().map(|begun| begun.span).collect(),
        }
    }

    /// See [`Passed::leases`].
    fn leases(&self) -> Vec<(u64, Vec<SiteSet>)> {
        let everybody = SiteSet::all(self.plan.topology().len());
        let keys = self.plan.experiment.workload.keys as usize;
        let of = |begun: &Begun| match &begun.held {
            Held::Unasked => None,
            Held::Unknown => Some((begun.at_ns, vec![everybody; keys])),
            Held::By(sites) => Some((begun.at_ns, sites.clone())),
        };
        let all: Option<Vec<_>> = self.begun.iter().map(of).collect();
        all.unwrap_or_default()
    }
}

impl Passed {
    /// The sites that may have held a lease on a key for an operation that ended then: as
    /// when the last fault before that began, or the first one after.
    pub(crate) fn leased_to(&self, key: u64, ended_ns: u64) -> Option<SiteSet> {
        let after = self.leases.partition_point(|(at_ns, _)| *at_ns <= ended_ns);
        let (_, holders) = self.leases.get(after.saturating_sub(1))?;
        holders.get(key as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Experiment;

    const JP: usize = 0;
    const VA: usize = 3;

    fn roles(held: Held) -> Roles {
        Roles {
            leader: Some(1),
            holders: vec![1, VA],
            up: vec![true; 5],
            held,
        }
    }

    /// Returns the outcome of the first fault of `fig7`, with two keys.
    fn passed(held: Held, later: Option<Held>) -> Passed {
        let experiment = Experiment::find("fig7").unwrap();
        let experiment = experiment.with(&["keys=2".to_owned()]).unwrap();
        let plan = Plan::new(&experiment, &experiment.strategies[0]);
        let mut faults = Faults::new(&plan);
        faults.begin(0, 10, roles(held)).unwrap();
        if let Some(later) = later {
            faults.held(0, later);
        }
        faults.passed(Measured::default())
    }

    #[test]
    fn what_is_learned_after_a_fault_began_is_of_its_beginning() {
        let by = vec![SiteSet::one(VA), SiteSet::EMPTY];
        let passed = passed(Held::Unknown, Some(Held::By(by.clone())));
        for ended_ns in [5, 10, 15] {
            assert_eq!(passed.leased_to(0, ended_ns), Some(by[0]));
            assert_eq!(passed.leased_to(1, ended_ns), Some(by[1]));
        }
        assert_eq!(passed.notes, Vec::<String>::new());
    }

    #[test]
    fn a_key_is_leased_to_everybody_unless_it_surely_was_not() {
        let unsure = passed(Held::Unknown, None);
        assert_eq!(unsure.leased_to(1, 15), Some(SiteSet::all(5)));
        assert!(unsure.notes[0].contains("fault.1"), "{:?}", unsure.notes);
        assert!(unsure.leased_to(1, 15).unwrap().contains(JP));
        let unasked = passed(Held::Unasked, None);
        assert_eq!(unasked.leased_to(1, 15), None);
    }
}
