//! Faults in the simulated world.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_kernel::network::LinkDegradation;
use leasehold_leases::{ConfigId, ReplicaId};
use leasehold_sim::world::{LEAVE_WITHIN_NS, World};

use crate::backend::faults::{ClusterSnapshot, LeaseHolders};
use crate::backend::{RunPlan, key_name};
use crate::fault::{Effect, LinkState};
use crate::run::bound::SiteSet;

/// Time in ns for which a replica is down when it is restarted.
const RESTART_NS: u64 = 500_000_000;

/// Current faults of each link, by sender and receiver.
#[derive(Debug, Default)]
pub(super) struct LinkFaults(BTreeMap<(usize, usize), Vec<LinkState>>);

impl LinkFaults {
    fn apply(&self, world: &mut World, from: usize, to: usize) {
        let failing = self.0.get(&(from, to)).into_iter().flatten();
        let state = LinkState::of(failing.copied());
        world.set_cut(from, to, state.cut);
        let degradation = LinkDegradation {
            extra_delay_ns: (state.delay_ms * 1e6) as u64,
            loss: state.loss,
        };
        world.set_degradation(from, to, degradation);
    }

    fn fail(&mut self, world: &mut World, from: usize, to: usize, how: LinkState) {
        self.0.entry((from, to)).or_default().push(how);
        self.apply(world, from, to);
    }

    fn heal(&mut self, world: &mut World, from: usize, to: usize, how: LinkState) {
        let failing = self.0.entry((from, to)).or_default();
        if let Some(place) = failing.iter().position(|one| *one == how) {
            failing.remove(place);
        }
        self.apply(world, from, to);
    }

    /// Applies the effect to the world. Returns the index of the replica if the effect has ended
    /// the replica's process immediately; otherwise `None`.
    pub(super) fn perform(&mut self, world: &mut World, effect: Effect) -> Option<usize> {
        match effect {
            Effect::Kill(node) => {
                world.crash(node);
                return Some(node);
            }
            Effect::Stop(node) => world.leave(node, None),
            Effect::Restart(node) => world.leave(node, Some(RESTART_NS)),
            // The replica was asked to end, and has not ended yet.
            Effect::Start(node) if world.is_up(node) => {
                world.start_at(node, world.now_ns() + LEAVE_WITHIN_NS)
            }
            Effect::Start(node) => world.start(node),
            Effect::Pause(node) => world.freeze(node),
            Effect::Resume(node) => world.wake(node),
            Effect::Fail { from, to, how } => self.fail(world, from, to, how),
            Effect::Mend { from, to, how } => self.heal(world, from, to, how),
            Effect::FillDisk(node) => world.fill_disk_until_repaired(node),
            Effect::FreeDisk(node) => world.repair_disk(node),
        }
        None
    }
}

/// Returns the current roles of the replicas.
pub(super) fn snapshot(plan: &RunPlan<'_>, world: &World) -> ClusterSnapshot {
    let n = plan.topology().len();
    let up: Vec<bool> = (0..n).map(|node| world.is_up(node)).collect();
    let running = || (0..n).filter_map(|node| Some((node, world.replica(node)?)));
    let leads = running().filter(|(node, replica)| {
        let leader = replica.leader();
        leader.is_some_and(|leader| leader.index() == *node) && up[*node]
    });
    // A replica that was cut off may still believe that it leads, so the highest ballot decides.
    let leader = leads.max_by_key(|(node, replica)| {
        let status = replica.status(world.clock(*node));
        status.ballot_round
    });
    let newest = running().max_by_key(|(_, replica)| replica.configuration());
    let configs = newest.map(|(_, replica)| replica.configs());
    let promised: Vec<Vec<ConfigId>> = (0..n).map(|node| promised(world, node)).collect();
    let holders = |key: u64| -> SiteSet {
        let (Some(configs), key) = (configs, key_name(key)) else {
            return SiteSet::EMPTY;
        };
        let holds = |node: &usize| {
            let me = ReplicaId(*node as u8);
            let view = configs.view(&key);
            let mut live = promised[*node].iter();
            configs.holders(&key).contains(me) || live.any(|id| view.holders(*id).contains(me))
        };
        (0..n).filter(holds).collect()
    };
    ClusterSnapshot {
        leader: leader.map(|(node, _)| node),
        holders: holders(plan.hottest_key()).iter().collect(),
        up,
        lease_holders: LeaseHolders::Known(
            (0..plan.experiment.workload.keys).map(holders).collect(),
        ),
    }
}

/// Returns the configurations of the unexpired promises that running replicas have made to the
/// replica `node`.
fn promised(world: &World, node: usize) -> Vec<ConfigId> {
    let mut ids = BTreeSet::new();
    for grantor in (0..world.n()).filter(|grantor| *grantor != node) {
        let Some(replica) = world.replica(grantor) else {
            continue;
        };
        let now = world.clock(grantor);
        let grants = replica.grants_to(ReplicaId(node as u8));
        ids.extend(grants.filter(|(_, until)| *until > now).map(|(id, _)| id));
    }
    ids.into_iter().collect()
}

/// Returns true if a running replica has made an unexpired promise to the replica `node`.
pub(super) fn is_promised(world: &World, node: usize) -> bool {
    !promised(world, node).is_empty()
}
