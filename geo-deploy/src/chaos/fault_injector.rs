//! Carries out a schedule of faults on a cluster: begins each fault at its time, and ends it. When
//! a fault begins, replicas are asked which of them has a role that the fault names.

use std::collections::{BTreeMap, VecDeque};

use rand::SeedableRng as _;
use rand_pcg::Pcg64Mcg;

use super::effect_filter::EffectFilter;
use crate::backend::local::LocalCluster;
use crate::fault::{Effect, FaultAction, FaultSpec, FaultTarget};
use crate::topology::Topology;

/// Injector that begins and ends the faults of a schedule.
pub struct FaultInjector<'a> {
    topology: &'a Topology,
    rng: Pcg64Mcg,
    waiting: VecDeque<FaultSpec>,
    active: Vec<ActiveFault>,
    /// Tally and log of the faults so far.
    pub account: FaultAccount,
}

/// Tally of the faults of a schedule, and a log of the beginnings and ends of these faults.
#[derive(Clone, Debug, Default)]
pub struct FaultAccount {
    /// Number of faults that began, by kind.
    pub begun: BTreeMap<String, u64>,
    /// Number of faults that could not begin. Either the targets of such a fault were down already,
    /// or no replica had the role that the fault names.
    pub skipped: u64,
    /// Log of the faults. It has one line for each beginning and each end of a fault, with the
    /// time.
    pub log: Vec<String>,
}

/// Fault that has begun and not ended.
pub(super) struct ActiveFault {
    pub until_s: f64,
    words: String,
    pub undo: Vec<Effect>,
}

impl ActiveFault {
    #[cfg(test)]
    pub fn new(until_s: f64, undo: Vec<Effect>) -> ActiveFault {
        ActiveFault {
            until_s,
            words: String::new(),
            undo,
        }
    }
}

impl<'a> FaultInjector<'a> {
    /// Creates an injector for a schedule of faults. `faults` must be sorted by their start times.
    pub fn new(faults: &[FaultSpec], topology: &'a Topology, seed: u64) -> FaultInjector<'a> {
        FaultInjector {
            topology,
            rng: Pcg64Mcg::seed_from_u64(seed),
            waiting: faults.iter().cloned().collect(),
            active: Vec::new(),
            account: FaultAccount::default(),
        }
    }

    /// Returns descriptions of the active faults.
    pub fn failing(&self) -> Vec<&str> {
        self.active
            .iter()
            .map(|fault| fault.words.as_str())
            .collect()
    }

    /// Begins and ends the faults that are due at `now_s`.
    ///
    /// # Errors
    /// If the cluster cannot carry out an effect that should be possible.
    pub async fn step(&mut self, cluster: &mut LocalCluster, now_s: f64) -> anyhow::Result<()> {
        self.end(cluster, now_s, now_s)?;
        while self
            .waiting
            .front()
            .is_some_and(|fault| fault.at_s <= now_s)
        {
            let fault = self.waiting.pop_front().expect("a waiting fault is due");
            self.begin(cluster, &fault, now_s).await?;
        }
        Ok(())
    }

    /// Ends all active faults. Drops the faults that have not begun.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`FaultInjector::step`].
    pub fn heal(&mut self, cluster: &mut LocalCluster, now_s: f64) -> anyhow::Result<()> {
        self.waiting.clear();
        self.end(cluster, f64::INFINITY, now_s)
    }

    /// Ends the active faults that should end at `until_s` or earlier.
    fn end(&mut self, cluster: &mut LocalCluster, until_s: f64, now_s: f64) -> anyhow::Result<()> {
        let over = self.active.extract_if(.., |fault| fault.until_s <= until_s);
        let mut effects = Vec::new();
        for fault in over.collect::<Vec<_>>() {
            self.note(now_s, &format!("end of {}", fault.words));
            effects.extend(fault.undo);
        }
        // Disks are freed before replicas are started, because a replica cannot start on a full
        // disk.
        effects.sort_by_key(|effect| matches!(effect, Effect::Start(_)));
        effects
            .into_iter()
            .try_for_each(|effect| cluster.perform(effect))
    }

    async fn begin(
        &mut self,
        cluster: &mut LocalCluster,
        fault: &FaultSpec,
        now_s: f64,
    ) -> anyhow::Result<()> {
        let effects = match self.effects(cluster, fault).await {
            Ok(effects) => effects,
            Err(why) => {
                self.account.skipped += 1;
                self.note(now_s, &format!("not {fault}: {why}"));
                return Ok(());
            }
        };
        let words = self.words(fault, &effects);
        self.note(now_s, &words);
        *self.account.begun.entry(kind(fault)).or_default() += 1;
        let undo: Vec<Effect> = (effects.iter().copied())
            .filter_map(Effect::inverse)
            .collect();
        if let Some(until_s) = fault.until_s {
            self.active.push(ActiveFault {
                until_s,
                words,
                undo,
            });
        }
        effects
            .into_iter()
            .try_for_each(|effect| cluster.perform(effect))
    }

    /// Returns the effects of a fault that begins now, or the reason why no effect is possible.
    async fn effects(
        &mut self,
        cluster: &LocalCluster,
        fault: &FaultSpec,
    ) -> Result<Vec<Effect>, String> {
        let roles = cluster.roles(None).await;
        let mut context = roles.fault_context(self.topology, &mut self.rng);
        let effects = fault.begin(&mut context)?;
        let statuses = cluster.process_statuses();
        let effects = EffectFilter::new(&statuses, &self.active, fault.until_s).apply(effects);
        if effects.is_empty() {
            Err("its targets are down already".to_owned())
        } else {
            Ok(effects)
        }
    }

    fn note(&mut self, now_s: f64, words: &str) {
        self.account.log.push(format!("{now_s:9.3} s  {words}"));
    }

    /// Describes the fault. The description names the sites that were chosen for the roles of the
    /// fault.
    fn words(&self, fault: &FaultSpec, effects: &[Effect]) -> String {
        let names = self.topology.names();
        let by_name =
            |target: &FaultTarget| matches!(target, FaultTarget::Site(_) | FaultTarget::All);
        if fault.target.iter().chain(&fault.to).all(by_name) {
            return fault.to_string();
        }
        let meant: Vec<String> = if fault.action.affects_links() {
            effects.iter().map(|effect| link(*effect, &names)).collect()
        } else {
            (effects.iter().flat_map(|effect| effect.sites()))
                .map(|site| names[site].to_owned())
                .collect()
        };
        format!("{fault} [{}]", meant.join(", "))
    }
}

fn link(effect: Effect, names: &[&str]) -> String {
    let sites = effect.sites();
    let sites: Vec<&str> = sites.into_iter().map(|site| names[site]).collect();
    sites.join(">")
}

/// Returns the name of a fault's kind. [`FaultAccount::begun`] uses this name.
fn kind(fault: &FaultSpec) -> String {
    let name = fault.action.name();
    match (fault.action, fault.direction) {
        (FaultAction::Kill, _) if fault.target.contains(&FaultTarget::All) => "kill all".to_owned(),
        (FaultAction::Partition, crate::fault::Direction::Both) => format!("{name} two-way"),
        (FaultAction::Partition, _) => format!("{name} one-way"),
        _ => name.to_owned(),
    }
}
