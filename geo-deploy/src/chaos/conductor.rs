//! Carries out a schedule on a cluster: begins each fault when its time has come, and ends it. It
//! asks the replicas for their roles when the fault begins.

use std::collections::{BTreeMap, VecDeque};

use rand::SeedableRng as _;
use rand_pcg::Pcg64Mcg;

use super::possible::Possible;
use crate::backend::local::LocalCluster;
use crate::fault::{Action, Effect, Fault, Target};
use crate::topology::Topology;

/// Carries out the faults of a schedule, and ends them.
pub struct Conductor<'a> {
    topology: &'a Topology,
    chance: Pcg64Mcg,
    waiting: VecDeque<Fault>,
    active: Vec<Active>,
    /// Account of the faults so far.
    pub performed: Performed,
}

/// Account of the faults of a schedule.
#[derive(Clone, Debug, Default)]
pub struct Performed {
    /// Faults that began, by what they did.
    pub begun: BTreeMap<String, u64>,
    /// Faults that could not begin, because their targets were down already or nobody had
    /// the role.
    pub skipped: u64,
    /// Log of the events with their times, a line each.
    pub log: Vec<String>,
}

/// A fault that lasts.
pub(super) struct Active {
    pub until_s: f64,
    words: String,
    pub undo: Vec<Effect>,
}

impl Active {
    #[cfg(test)]
    pub fn new(until_s: f64, undo: Vec<Effect>) -> Active {
        Active {
            until_s,
            words: String::new(),
            undo,
        }
    }
}

impl<'a> Conductor<'a> {
    /// Creates a conductor for a schedule, sorted by the begin of its faults.
    pub fn new(faults: &[Fault], topology: &'a Topology, seed: u64) -> Conductor<'a> {
        Conductor {
            topology,
            chance: Pcg64Mcg::seed_from_u64(seed),
            waiting: faults.iter().cloned().collect(),
            active: Vec::new(),
            performed: Performed::default(),
        }
    }

    /// Returns the active faults, in words.
    pub fn failing(&self) -> Vec<&str> {
        self.active
            .iter()
            .map(|fault| fault.words.as_str())
            .collect()
    }

    /// Begins and ends what is due.
    ///
    /// # Errors
    /// If the cluster cannot do what it should be able to do.
    pub async fn step(&mut self, cluster: &mut LocalCluster, now_s: f64) -> anyhow::Result<()> {
        self.end(cluster, now_s, now_s)?;
        while self
            .waiting
            .front()
            .is_some_and(|fault| fault.at_s <= now_s)
        {
            let fault = self.waiting.pop_front().expect("one is there");
            self.begin(cluster, &fault, now_s).await?;
        }
        Ok(())
    }

    /// Ends everything that lasts, and begins nothing any more.
    ///
    /// # Errors
    /// As [`Conductor::step`].
    pub fn heal(&mut self, cluster: &mut LocalCluster, now_s: f64) -> anyhow::Result<()> {
        self.waiting.clear();
        self.end(cluster, f64::INFINITY, now_s)
    }

    /// Ends what is to end until `until_s`.
    fn end(&mut self, cluster: &mut LocalCluster, until_s: f64, now_s: f64) -> anyhow::Result<()> {
        let over = self.active.extract_if(.., |fault| fault.until_s <= until_s);
        let mut effects = Vec::new();
        for fault in over.collect::<Vec<_>>() {
            self.note(now_s, &format!("end of {}", fault.words));
            effects.extend(fault.undo);
        }
        // A replica can only start where its disk has room.
        effects.sort_by_key(|effect| matches!(effect, Effect::Start(_)));
        effects
            .into_iter()
            .try_for_each(|effect| cluster.perform(effect))
    }

    async fn begin(
        &mut self,
        cluster: &mut LocalCluster,
        fault: &Fault,
        now_s: f64,
    ) -> anyhow::Result<()> {
        let effects = match self.effects(cluster, fault).await {
            Ok(effects) => effects,
            Err(why) => {
                self.performed.skipped += 1;
                self.note(now_s, &format!("not {fault}: {why}"));
                return Ok(());
            }
        };
        let words = self.words(fault, &effects);
        self.note(now_s, &words);
        *self.performed.begun.entry(kind(fault)).or_default() += 1;
        let undo: Vec<Effect> = (effects.iter().copied())
            .filter_map(Effect::undone)
            .collect();
        if let Some(until_s) = fault.until_s {
            self.active.push(Active {
                until_s,
                words,
                undo,
            });
        }
        effects
            .into_iter()
            .try_for_each(|effect| cluster.perform(effect))
    }

    /// Returns the effects of a fault that begins now; otherwise the reason why none is possible.
    async fn effects(
        &mut self,
        cluster: &LocalCluster,
        fault: &Fault,
    ) -> Result<Vec<Effect>, String> {
        let roles = cluster.roles(None).await;
        let mut scene = roles.scene(self.topology, &mut self.chance);
        let effects = fault.begin(&mut scene)?;
        let conditions = cluster.conditions();
        let effects = Possible::new(&conditions, &self.active, fault.until_s).of(effects);
        match effects.is_empty() {
            true => Err("its targets are down already".to_owned()),
            false => Ok(effects),
        }
    }

    fn note(&mut self, now_s: f64, words: &str) {
        self.performed.log.push(format!("{now_s:9.3} s  {words}"));
    }

    /// The fault in words, with the replicas that its roles meant.
    fn words(&self, fault: &Fault, effects: &[Effect]) -> String {
        let names = self.topology.names();
        let by_name = |target: &Target| matches!(target, Target::Site(_) | Target::All);
        if fault.target.iter().chain(&fault.to).all(by_name) {
            return fault.to_string();
        }
        let meant: Vec<String> = match fault.action.is_of_links() {
            true => effects.iter().map(|effect| link(*effect, &names)).collect(),
            false => (effects.iter().flat_map(|effect| effect.sites()))
                .map(|site| names[site].to_owned())
                .collect(),
        };
        format!("{fault} [{}]", meant.join(", "))
    }
}

fn link(effect: Effect, names: &[&str]) -> String {
    let sites = effect.sites();
    let sites: Vec<&str> = sites.into_iter().map(|site| names[site]).collect();
    sites.join(">")
}

/// As it is counted.
fn kind(fault: &Fault) -> String {
    let name = fault.action.name();
    match (fault.action, fault.direction) {
        (Action::Kill, _) if fault.target.contains(&Target::All) => "kill all".to_owned(),
        (Action::Partition, crate::fault::Direction::Both) => format!("{name} two-way"),
        (Action::Partition, _) => format!("{name} one-way"),
        _ => name.to_owned(),
    }
}
