//! Effects of a fault on single replicas and links, after the targets of the fault are resolved.

use rand::seq::IndexedRandom as _;
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};

use super::{Direction, FaultAction, FaultSpec, FaultTarget, list};
use crate::topology::Topology;

/// One change to a cluster. Sites are given by their index in the topology.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// The process is ended immediately, as by `kill -9`.
    Kill(usize),
    /// The process is asked to end.
    Stop(usize),
    /// The process is started.
    Start(usize),
    /// The process is asked to end, and is started again after that.
    Restart(usize),
    /// The process is paused.
    Pause(usize),
    /// The process is resumed.
    Resume(usize),
    /// A failure is added to one direction of a link. Other failures of the link continue.
    Fail {
        /// The site that sends messages over the link.
        from: usize,
        /// The site that receives messages over the link.
        to: usize,
        /// Failure of the link.
        how: LinkState,
    },
    /// A failure of one direction of a link ends.
    Mend {
        /// The site that sends messages over the link.
        from: usize,
        /// The site that receives messages over the link.
        to: usize,
        /// Failure that ends; other failures of the link remain.
        how: LinkState,
    },
    /// The replica's disk becomes full.
    FillDisk(usize),
    /// The replica's disk has room again.
    FreeDisk(usize),
}

/// Failure of one direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkState {
    /// Whether the link is cut, so that no message passes.
    pub cut: bool,
    /// Extra delay of a message, in ms.
    pub delay_ms: f64,
    /// Probability that a message is lost, from 0 to 1.
    pub loss: f64,
}

impl LinkState {
    /// Combines several failures of one direction of a link. The direction is cut if one of the
    /// failures cuts it. Delays are added. A message arrives only if none of the failures loses it.
    pub fn of(all: impl IntoIterator<Item = LinkState>) -> LinkState {
        let both = |a: LinkState, b: LinkState| LinkState {
            cut: a.cut || b.cut,
            delay_ms: a.delay_ms + b.delay_ms,
            loss: 1.0 - (1.0 - a.loss) * (1.0 - b.loss),
        };
        all.into_iter().fold(LinkState::default(), both)
    }
}

/// State of the cluster when a fault begins. This state determines which replicas have the roles
/// that the fault names.
#[derive(Debug)]
pub struct FaultContext<'a> {
    /// Sites of the replicas, and the round trips between them.
    pub topology: &'a Topology,
    /// Site of the leader; `None` if no replica leads.
    pub leader: Option<usize>,
    /// Sites that hold a lease on the hottest key.
    pub holders: Vec<usize>,
    /// For each site, true if the replica's process runs.
    pub up: Vec<bool>,
    /// Generator that chooses the replica for the role `random`.
    pub rng: &'a mut Pcg64Mcg,
}

impl FaultContext<'_> {
    /// Returns the sites of the targets, in ascending order and without repetition.
    ///
    /// # Errors
    /// If a site is unknown, or no replica has a role that is named; the message says what to do.
    pub fn resolve(&mut self, targets: &[FaultTarget]) -> Result<Vec<usize>, String> {
        let mut sites = Vec::new();
        for target in targets {
            sites.extend(self.sites_of(target)?);
        }
        sites.sort_unstable();
        sites.dedup();
        Ok(sites)
    }

    fn sites_of(&mut self, target: &FaultTarget) -> Result<Vec<usize>, String> {
        let all = 0..self.topology.len();
        let one =
            |site: Option<usize>, lacks: &str| site.map(|site| vec![site]).ok_or(lacks.to_owned());
        match target {
            FaultTarget::Site(name) => {
                one(self.topology.index(name), &unknown(name, self.topology))
            }
            FaultTarget::All => Ok(all.collect()),
            FaultTarget::Leader => one(self.leader, "leader: nobody leads at the moment"),
            FaultTarget::Holder => {
                let holders = self.holders.iter().copied();
                let others = holders.filter(|site| Some(*site) != self.leader && self.up[*site]);
                one(
                    self.nearest_to_leader(others),
                    "holder: nobody but the leader holds a lease on the hottest key at the \
                     moment; name a site, or choose a strategy with several holders",
                )
            }
            FaultTarget::Nearest => {
                let others = all.filter(|site| Some(*site) != self.leader && self.up[*site]);
                one(
                    self.nearest_to_leader(others),
                    "nearest: no other replica is up",
                )
            }
            FaultTarget::Random => {
                let up: Vec<usize> = all.filter(|site| self.up[*site]).collect();
                one(up.choose(self.rng).copied(), "random: no replica is up")
            }
        }
    }

    /// Returns the site that is nearest to the leader among these sites. If no replica leads,
    /// returns the first of the sites in the topology's order.
    fn nearest_to_leader(&self, sites: impl Iterator<Item = usize>) -> Option<usize> {
        let distance = |site: &usize| {
            self.leader
                .map_or(0.0, |leader| self.topology.rtt_ms(leader, *site))
        };
        sites.min_by(|a, b| distance(a).total_cmp(&distance(b)))
    }
}

/// Returns the message about a site that does not exist.
pub(super) fn unknown(name: &str, topology: &Topology) -> String {
    format!(
        "there is no site {name:?}; name one of {}, or a role: {}",
        topology.names().join(", "),
        FaultTarget::ROLES.join(", ")
    )
}

impl FaultSpec {
    /// Returns this fault with sites instead of roles. Each use of the result affects the same
    /// sites, even if the fault named the role `random`.
    ///
    /// # Errors
    /// If no replica has a role that the fault names.
    pub fn named(&self, context: &mut FaultContext<'_>) -> Result<FaultSpec, String> {
        let names = context.topology.names();
        let mut by_name = |targets: &[FaultTarget]| -> Result<Vec<FaultTarget>, String> {
            let sites = context.resolve(targets)?.into_iter();
            Ok(sites.map(|site| FaultTarget::named(names[site])).collect())
        };
        Ok(FaultSpec {
            target: by_name(&self.target)?,
            to: by_name(&self.to)?,
            ..self.clone()
        })
    }

    /// Describes the fault by its sites, followed by the requested roles in brackets: "kill OR
    /// (holder)". `named` must be the result of [`FaultSpec::named`] for this fault.
    pub fn in_words(&self, named: &FaultSpec) -> String {
        if list(&self.target) == list(&named.target) {
            named.to_string()
        } else {
            format!("{named} ({})", list(&self.target))
        }
    }

    /// Returns the effects with which the fault begins.
    ///
    /// # Errors
    /// If no replica has a role that the fault names.
    pub fn begin(&self, context: &mut FaultContext<'_>) -> Result<Vec<Effect>, String> {
        let targets = context.resolve(&self.target)?;
        if self.action.affects_links() {
            let to = self.other_ends(context, &targets)?;
            return Ok(self.fail(&targets, &to));
        }
        let effect = |site: usize| match self.action {
            FaultAction::Kill => Effect::Kill(site),
            FaultAction::Stop => Effect::Stop(site),
            FaultAction::Restart => Effect::Restart(site),
            FaultAction::Pause => Effect::Pause(site),
            FaultAction::FillDisk => Effect::FillDisk(site),
            FaultAction::Partition | FaultAction::Slow | FaultAction::Loss => {
                unreachable!("faults of links were handled above")
            }
        };
        Ok(targets.into_iter().map(effect).collect())
    }

    fn other_ends(
        &self,
        context: &mut FaultContext<'_>,
        targets: &[usize],
    ) -> Result<Vec<usize>, String> {
        let named = if self.to.is_empty() {
            (0..context.topology.len()).collect()
        } else {
            context.resolve(&self.to)?
        };
        let others: Vec<usize> = named
            .into_iter()
            .filter(|site| !targets.contains(site))
            .collect();
        if others.is_empty() {
            Err(format!(
                "{self}: no link is left between the two sides; name other sites"
            ))
        } else {
            Ok(others)
        }
    }

    fn fail(&self, targets: &[usize], to: &[usize]) -> Vec<Effect> {
        let how = LinkState {
            cut: self.action == FaultAction::Partition,
            delay_ms: self.delay_ms,
            loss: self.loss,
        };
        let mut effects = Vec::new();
        for &a in targets {
            for &b in to {
                let out = (self.direction != Direction::In).then_some((a, b));
                let back = (self.direction != Direction::Out).then_some((b, a));
                let ways = [out, back].into_iter().flatten();
                effects.extend(ways.map(|(from, to)| Effect::Fail { from, to, how }));
            }
        }
        effects
    }
}

impl Effect {
    /// Returns the effect that undoes this effect; `None` if there is nothing to undo.
    pub fn inverse(self) -> Option<Effect> {
        match self {
            Effect::Kill(site) | Effect::Stop(site) => Some(Effect::Start(site)),
            Effect::Pause(site) => Some(Effect::Resume(site)),
            Effect::Fail { from, to, how } => Some(Effect::Mend { from, to, how }),
            Effect::FillDisk(site) => Some(Effect::FreeDisk(site)),
            _ => None,
        }
    }

    /// Returns the sites that the effect concerns: for a link, the sender and the receiver.
    pub fn sites(self) -> Vec<usize> {
        match self {
            Effect::Fail { from, to, .. } | Effect::Mend { from, to, .. } => vec![from, to],
            Effect::Kill(site)
            | Effect::Stop(site)
            | Effect::Start(site)
            | Effect::Restart(site)
            | Effect::Pause(site)
            | Effect::Resume(site)
            | Effect::FillDisk(site)
            | Effect::FreeDisk(site) => vec![site],
        }
    }
}
