//! Faults of a run, with the times at which they really began and ended. The backend begins and
//! ends the faults, and carries out the effects of the faults.

use anyhow::anyhow;
use rand::SeedableRng as _;
use rand_pcg::Pcg64Mcg;

use super::{RunPlan, outage};
use crate::fault::{Effect, FaultContext, FaultSpec};
use crate::run::bound::SiteSet;
use crate::run::{FaultSpan, MeasuredInterval};

/// Constant that is combined with a run's seed, so that the choices for the role `random` are
/// independent of all other random choices in the run.
const RNG_SALT: u64 = 0xfa17;

/// Begin or end of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultTransition {
    /// The fault with this index begins.
    Begin(usize),
    /// The fault with this index ends.
    End(usize),
}

/// State of the cluster when a fault begins: the roles of the replicas, and for each key the
/// replicas that may hold a lease on the key.
#[derive(Debug)]
pub(crate) struct ClusterSnapshot {
    pub(crate) leader: Option<usize>,
    /// Sites that hold a lease on the hottest key.
    pub(crate) holders: Vec<usize>,
    pub(crate) up: Vec<bool>,
    pub(crate) lease_holders: LeaseHolders,
}

/// For each key, the replicas that may have held a lease on the key when a fault began.
#[derive(Clone, Debug)]
pub(crate) enum LeaseHolders {
    /// The replicas were not asked about leases.
    NotRequested,
    /// The replicas were asked about leases, but their answers leave the holders uncertain. So
    /// every key is treated as leased to every replica.
    Unknown,
    /// Sites that may have held a lease on each key. The index is the ID of the key. No other site
    /// held a lease on the key.
    Known(Vec<SiteSet>),
}

/// Planned faults of one run, and the faults that have begun so far.
pub(crate) struct RunFaults<'a> {
    plan: &'a RunPlan<'a>,
    faults: &'a [FaultSpec],
    rng: Pcg64Mcg,
    started: Vec<StartedFault>,
}

struct StartedFault {
    index: usize,
    at_ns: u64,
    lease_holders: LeaseHolders,
    effects: Vec<Effect>,
    span: FaultSpan,
}

/// Outcome of the faults of a run.
#[derive(Debug, Default)]
pub(crate) struct FaultOutcomes {
    pub(crate) spans: Vec<FaultSpan>,
    /// Time in ns at which each fault began, and, for each key, the replicas that may have held a
    /// lease on the key at that time. The faults are in order of time. The list is empty if the
    /// query about leases was omitted at one of the faults.
    pub(crate) leases: Vec<(u64, Vec<SiteSet>)>,
    pub(crate) notes: Vec<String>,
}

impl<'a> RunFaults<'a> {
    pub(crate) fn new(plan: &'a RunPlan<'a>) -> RunFaults<'a> {
        RunFaults {
            plan,
            faults: plan.faults(),
            rng: Pcg64Mcg::seed_from_u64(plan.seed() ^ RNG_SALT),
            started: Vec::new(),
        }
    }

    /// Returns the beginnings and ends of all faults, with their times in ns, in order of time. The
    /// measured interval begins at `begin_ns`.
    pub(crate) fn transitions(&self, begin_ns: u64) -> Vec<(u64, FaultTransition)> {
        let at_ns = |seconds: f64| begin_ns + (seconds * 1e9) as u64;
        let mut transitions = Vec::new();
        for (index, fault) in self.faults.iter().enumerate() {
            transitions.push((at_ns(fault.at_s), FaultTransition::Begin(index)));
            transitions.extend(
                fault
                    .until_s
                    .map(|until| (at_ns(until), FaultTransition::End(index))),
            );
        }
        // If times are equal, ends of faults come before beginnings.
        transitions.sort_by_key(|(at_ns, transition)| {
            (*at_ns, matches!(transition, FaultTransition::Begin(_)))
        });
        transitions
    }

    /// Begins a fault, and returns its effects.
    ///
    /// # Errors
    /// If no replica has a role that the fault names.
    pub(crate) fn begin(
        &mut self,
        index: usize,
        now_ns: u64,
        snapshot: ClusterSnapshot,
    ) -> anyhow::Result<Vec<Effect>> {
        let fault = &self.faults[index];
        let mut context = FaultContext {
            topology: self.plan.topology(),
            leader: snapshot.leader,
            holders: snapshot.holders,
            up: snapshot.up,
            rng: &mut self.rng,
        };
        let failed = |error: String| anyhow!("fault.{}: {error}", index + 1);
        let named = fault.named(&mut context).map_err(failed)?;
        let targets = context.resolve(&named.target).map_err(failed)?;
        let effects = named.begin(&mut context).map_err(failed)?;
        let sites: SiteSet = targets.into_iter().collect();
        let span = FaultSpan {
            at_s: now_ns as f64 / 1e9,
            until_s: None,
            sites,
            text: fault.in_words(&named),
            bounds: outage::bounds(self.plan, fault, sites, snapshot.leader),
        };
        self.started.push(StartedFault {
            index,
            at_ns: now_ns,
            lease_holders: snapshot.lease_holders,
            effects: effects.clone(),
            span,
        });
        Ok(effects)
    }

    /// Stores, for each key, the replicas that may have held a lease on the key when the fault
    /// `index` began.
    pub(crate) fn set_lease_holders(&mut self, index: usize, lease_holders: LeaseHolders) {
        if let Some(started) = self
            .started
            .iter_mut()
            .find(|started| started.index == index)
        {
            started.lease_holders = lease_holders;
        }
    }

    /// Ends a fault, and returns the effects that undo it.
    pub(crate) fn end(&mut self, index: usize, now_ns: u64) -> Vec<Effect> {
        let Some(started) = self
            .started
            .iter_mut()
            .find(|started| started.index == index)
        else {
            return Vec::new();
        };
        started.span.until_s = Some(now_ns as f64 / 1e9);
        started
            .effects
            .iter()
            .filter_map(|effect| effect.inverse())
            .collect()
    }

    /// Notes that a replica runs again after a restart. The fault that restarted the replica ends
    /// at `now_ns`.
    pub(crate) fn replica_restarted(&mut self, site: usize, now_ns: u64) {
        let restarts =
            |started: &&mut StartedFault| started.effects.contains(&Effect::Restart(site));
        for started in self.started.iter_mut().filter(restarts) {
            started.span.until_s.get_or_insert(now_ns as f64 / 1e9);
        }
    }

    /// Returns the outcome of the faults. `measured` is the measured interval of the run.
    pub(crate) fn finish(self, measured: MeasuredInterval) -> FaultOutcomes {
        let started = |index: usize| self.started.iter().any(|started| started.index == index);
        let never = (0..self.faults.len()).filter(|index| !started(*index));
        let length_s = measured.end_s - measured.start_s;
        let never = never.map(|index| {
            format!(
                "fault.{} never began: it was to begin {} s into the measured interval, which \
                 ended after {length_s:.1} s; measure longer",
                index + 1,
                self.faults[index].at_s
            )
        });
        let unsure = self.started.iter();
        let unsure =
            unsure.filter(|started| matches!(started.lease_holders, LeaseHolders::Unknown));
        let unsure = unsure.map(|started| {
            format!(
                "it is not sure who held what when fault.{} began: every key counts as leased \
                 to who failed",
                started.index + 1
            )
        });
        FaultOutcomes {
            notes: never.chain(unsure).collect(),
            leases: self.leases(),
            spans: self
                .started
                .into_iter()
                .map(|started| started.span)
                .collect(),
        }
    }

    /// Returns the value of [`FaultOutcomes::leases`].
    fn leases(&self) -> Vec<(u64, Vec<SiteSet>)> {
        let everybody = SiteSet::all(self.plan.topology().len());
        let keys = self.plan.experiment.workload.keys as usize;
        let of = |started: &StartedFault| match &started.lease_holders {
            LeaseHolders::NotRequested => None,
            LeaseHolders::Unknown => Some((started.at_ns, vec![everybody; keys])),
            LeaseHolders::Known(sites) => Some((started.at_ns, sites.clone())),
        };
        let all: Option<Vec<_>> = self.started.iter().map(of).collect();
        all.unwrap_or_default()
    }
}

impl FaultOutcomes {
    /// Returns the sites that may have held a lease on a key when an operation ended at `ended_ns`;
    /// `None` if they are not known. The result is the set that was found at the last fault up to
    /// `ended_ns`. If no fault had begun by then, the result is the set that was found at the first
    /// fault.
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

    fn snapshot(lease_holders: LeaseHolders) -> ClusterSnapshot {
        ClusterSnapshot {
            leader: Some(1),
            holders: vec![1, VA],
            up: vec![true; 5],
            lease_holders,
        }
    }

    /// Begins the first fault of `fig7` in a plan with two keys. Returns the outcome.
    fn outcomes(lease_holders: LeaseHolders, later: Option<LeaseHolders>) -> FaultOutcomes {
        let experiment = Experiment::find("fig7").unwrap();
        let experiment = experiment.with(&["keys=2".to_owned()]).unwrap();
        let plan = RunPlan::new(&experiment, &experiment.strategies[0]);
        let mut faults = RunFaults::new(&plan);
        faults.begin(0, 10, snapshot(lease_holders)).unwrap();
        if let Some(later) = later {
            faults.set_lease_holders(0, later);
        }
        faults.finish(MeasuredInterval::default())
    }

    #[test]
    fn what_is_learned_after_a_fault_began_is_of_its_beginning() {
        let known = vec![SiteSet::one(VA), SiteSet::EMPTY];
        let outcomes = outcomes(
            LeaseHolders::Unknown,
            Some(LeaseHolders::Known(known.clone())),
        );
        for ended_ns in [5, 10, 15] {
            assert_eq!(outcomes.leased_to(0, ended_ns), Some(known[0]));
            assert_eq!(outcomes.leased_to(1, ended_ns), Some(known[1]));
        }
        assert_eq!(outcomes.notes, Vec::<String>::new());
    }

    #[test]
    fn a_key_is_leased_to_everybody_unless_it_surely_was_not() {
        let unsure = outcomes(LeaseHolders::Unknown, None);
        assert_eq!(unsure.leased_to(1, 15), Some(SiteSet::all(5)));
        assert!(unsure.notes[0].contains("fault.1"), "{:?}", unsure.notes);
        assert!(unsure.leased_to(1, 15).unwrap().contains(JP));
        let not_requested = outcomes(LeaseHolders::NotRequested, None);
        assert_eq!(not_requested.leased_to(1, 15), None);
    }
}
