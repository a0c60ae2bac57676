//! Faults of a run other than those of the network, and the times at which they happen. The plan of
//! a run is drawn from the seed of the run. Alarms start each fault at the planned time.

use leasehold_kernel::network::{Partition, links};
use leasehold_kernel::process::Trap;
use leasehold_kernel::swarm::{ENABLED, Flap, Plan};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::fault::FaultKind;
use super::scenario::draw_lease_set;
use super::world::World;
use leasehold_replica::{OperatorRequest, Replica};

const MS: u64 = 1_000_000;
/// Mean time between two moments at which a replica begins to fail repeatedly, in ns.
const FLAPS_EVERY_NS: u64 = 20_000 * MS;

/// Plan of the faults of a run, drawn from the seed.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    recurring: Plan<FaultKind>,
    /// Durations of the stages in which one replica after another is cut off; `None` if replicas
    /// are not cut off in stages.
    isolation: Option<Isolation>,
}

/// Failure of a replica's links in two stages: first the replica cannot send, then it cannot
/// receive either. Afterwards all links work again for a while. All durations are in ns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Isolation {
    /// Duration of the first stage: no message of the victim reaches another replica, but the
    /// messages of other replicas reach the victim.
    pub mute_ns: u64,
    /// Duration of the second stage: the victim is cut off in both directions.
    pub apart_ns: u64,
    /// Time in which all links work, between the end of a second stage and the next first stage.
    pub well_ns: u64,
}

impl FaultPlan {
    /// Draws the plan of a run.
    pub fn draw(rng: &mut Pcg64Mcg) -> FaultPlan {
        let drawn = |fault: &FaultKind| fault.is_planned() && *fault != FaultKind::Flap;
        let kinds = FaultKind::ALL.into_iter().filter(drawn);
        let rare = |fault| {
            matches!(
                fault,
                FaultKind::CrashAll | FaultKind::Corrupt | FaultKind::Wiped
            )
        };
        FaultPlan {
            recurring: Plan::draw(rng, kinds, rare),
            isolation: None,
        }
    }

    /// Adds the fault [`FaultKind::Flap`] to the plan, for some seeds. Flapping means that a
    /// replica fails repeatedly. The draw uses its own random generator, so it does not influence
    /// the seed's other draws.
    pub fn draw_flaps(&mut self, seed: u64) {
        let mut rng = Pcg64Mcg::seed_from_u64(seed ^ FLAP_SALT);
        if rng.random::<f64>() < ENABLED {
            self.recurring
                .faults
                .push((FaultKind::Flap, FLAPS_EVERY_NS));
        }
    }

    /// Returns a plan with only one kind of fault: [`Isolation`]. The plan isolates one replica
    /// after another.
    pub fn isolating(isolation: Isolation) -> FaultPlan {
        FaultPlan {
            isolation: Some(isolation),
            ..FaultPlan::default()
        }
    }

    /// Returns a plan with clocks that jump forward, and with partitions.
    pub fn jumps(rng: &mut Pcg64Mcg) -> FaultPlan {
        let every_ns = rng.random_range(2000..5000) * MS;
        FaultPlan {
            recurring: Plan {
                faults: vec![
                    (FaultKind::Jump, every_ns),
                    (FaultKind::Partition, every_ns),
                ],
                outage_ns: 1500 * MS,
            },
            isolation: None,
        }
    }

    /// Returns the kinds of faults that the plan enables.
    pub fn faults(&self) -> impl Iterator<Item = FaultKind> + '_ {
        self.recurring.faults.iter().map(|(fault, _)| *fault)
    }
}

/// Bit that marks the tokens of the swarm's alarms. The lower bits contain the purpose of the
/// alarm.
pub const ALARM: u64 = 1 << 63;
const REPAIR: u64 = 1 << 32;
/// Bit that marks the tokens of alarms for the stages of an isolation. The lowest byte of such a
/// token contains the index of the victim, and the next byte contains the number of the stage.
const STAGE: u64 = 1 << 33;
/// Bit that marks the tokens of alarms for the next failure of a flapping replica. The lower bits
/// contain an index in [`Swarm::flaps`].
const FLAP: u64 = 1 << 34;
/// Salt of the random generator from which flaps are drawn.
const FLAP_SALT: u64 = 0xf1a9;
/// Range from which the length of a clock's forward jump is drawn, in ns.
const JUMP_NS: std::ops::Range<u64> = 2000 * MS..8000 * MS;

/// A plan of faults, and the state of its execution.
#[derive(Debug)]
pub struct Swarm {
    plan: FaultPlan,
    rng: Pcg64Mcg,
    /// Number of times that links were cut so far. When a cut ends, the links are repaired only if
    /// this cut is the newest.
    cuts: u64,
    /// Number of requests that operators have sent so far.
    operator_requests: u64,
    /// Replicas with a damaged or wiped disk.
    lost: Vec<usize>,
    flaps: Vec<Flap<FaultKind>>,
}

impl Swarm {
    /// Begins to carry out a plan.
    pub fn begin(plan: FaultPlan, rng: Pcg64Mcg, world: &mut World) -> Swarm {
        let mut swarm = Swarm {
            plan,
            rng,
            cuts: 0,
            operator_requests: 0,
            lost: Vec::new(),
            flaps: Vec::new(),
        };
        for index in 0..swarm.plan.recurring.faults.len() {
            swarm.next(index, world);
        }
        if let Some(isolation) = swarm.plan.isolation {
            world.alarm(isolation.well_ns, ALARM | STAGE);
        }
        swarm
    }

    /// Whether a replica's disk is damaged or was wiped.
    pub fn has_lost(&self, node: usize) -> bool {
        self.lost.contains(&node)
    }

    fn next(&mut self, index: usize, world: &mut World) {
        let interval = self.plan.recurring.draw_interval(&mut self.rng, index);
        world.alarm(world.now_ns() + interval, ALARM | index as u64);
    }

    /// Handles an alarm of the swarm.
    pub fn alarm(&mut self, token: u64, world: &mut World) {
        let token = token & !ALARM;
        if token & FLAP != 0 {
            return self.flap((token & (FLAP - 1)) as usize, world);
        }
        if token & STAGE != 0 {
            return self.isolate(token & (STAGE - 1), world);
        }
        if token & REPAIR != 0 {
            if token & (REPAIR - 1) == self.cuts {
                repair_links(world);
            }
            return;
        }
        let index = token as usize;
        let (fault, every_ns) = self.plan.recurring.faults[index];
        self.next(index, world);
        self.fire(fault, every_ns, world);
    }

    /// Begins the next stage of an isolation.
    fn isolate(&mut self, token: u64, world: &mut World) {
        let Some(isolation) = self.plan.isolation else {
            return;
        };
        let (stage, mut victim) = (token >> 8, token as usize & 0xff);
        let stage_ns = match stage {
            0 => {
                victim = self.rng.random_range(0..world.n());
                world.note_fault(FaultKind::OneWay);
                isolation.mute_ns
            }
            1 => {
                world.note_fault(FaultKind::Partition);
                isolation.apart_ns
            }
            _ => {
                repair_links(world);
                isolation.well_ns
            }
        };
        for other in (0..world.n()).filter(|other| *other != victim) {
            match stage {
                0 => world.set_cut(victim, other, true),
                1 => world.set_cut(other, victim, true),
                _ => {}
            }
        }
        let next = (stage + 1) % 3;
        let at_ns = world.now_ns() + stage_ns;
        world.alarm(at_ns, ALARM | STAGE | next << 8 | victim as u64);
    }

    /// Draws the duration in ns of a fault that recurs at intervals of `every_ns`.
    fn outage(&mut self, every_ns: u64) -> u64 {
        self.plan.recurring.draw_outage(&mut self.rng, every_ns)
    }

    fn fire(&mut self, fault: FaultKind, every_ns: u64, world: &mut World) {
        let node = self.rng.random_range(0..world.n());
        let outage = self.outage(every_ns);
        match fault {
            FaultKind::Partition | FaultKind::OneWay | FaultKind::Bridge => {
                self.cut(fault, outage, world);
                world.note_fault(fault);
            }
            FaultKind::Switch | FaultKind::Transfer => self.operate(fault, node, world),
            FaultKind::Flap => self.begin_flap(node, world),
            _ if world.replica(node).is_none() => {}
            FaultKind::CrashAll => {
                world.note_fault(fault);
                for node in 0..world.n() {
                    let outage = self.outage(every_ns);
                    self.crash(node, outage, world);
                }
            }
            FaultKind::Rate | FaultKind::Distrust | FaultKind::Jump => {
                world.note_fault(fault);
                self.inject_clock_fault(fault, node, outage, world);
            }
            FaultKind::Stall | FaultKind::Full => {
                world.note_fault(fault);
                match fault {
                    FaultKind::Stall => world.stall_disk(node, outage),
                    _ => world.fill_disk(node, outage),
                }
            }
            FaultKind::Corrupt | FaultKind::Wiped => self.lose_disk(fault, node, outage, world),
            _ => self.inject_process_fault(fault, node, outage, world),
        }
    }

    fn inject_process_fault(
        &mut self,
        fault: FaultKind,
        node: usize,
        outage: u64,
        world: &mut World,
    ) {
        match fault {
            FaultKind::Crash | FaultKind::Epoch => {
                world.note_fault(fault);
                self.crash(node, outage, world);
                if fault == FaultKind::Epoch {
                    world.reset_clock(node);
                }
            }
            FaultKind::Leave if world.is_up(node) => {
                world.note_fault(fault);
                world.leave(node, Some(outage));
            }
            FaultKind::Torn => world.crash_in_sync(node, outage),
            FaultKind::CrashMidStep | FaultKind::PauseMidStep => {
                let after = self.rng.random_range(0..24);
                let trap = match fault {
                    FaultKind::CrashMidStep => Trap::Crash(outage),
                    _ => Trap::Pause(outage),
                };
                world.set_trap(node, after, trap);
            }
            FaultKind::Pause if world.is_up(node) => {
                world.note_fault(fault);
                world.pause(node, outage);
            }
            _ => {}
        }
    }

    /// Makes a replica begin to flap. With probability one half, this replica is the leader.
    /// Otherwise, or if there is no leader, this replica is `node`.
    fn begin_flap(&mut self, node: usize, world: &mut World) {
        let leader = leader(world).filter(|_| self.rng.random());
        let hows = [FaultKind::Pause, FaultKind::Partition, FaultKind::Crash];
        let flap = Flap::draw(&mut self.rng, leader.unwrap_or(node), hows);
        world.note_fault(FaultKind::Flap);
        self.flaps.push(flap);
        self.flap(self.flaps.len() - 1, world);
    }

    /// Makes a flapping replica fail once more.
    fn flap(&mut self, index: usize, world: &mut World) {
        let Some(until_next_ns) = self.flaps[index].fail() else {
            return;
        };
        let flap = self.flaps[index];
        match flap.how {
            FaultKind::Pause => world.pause(flap.node, flap.down_ns),
            FaultKind::Partition => {
                for other in (0..world.n()).filter(|other| *other != flap.node) {
                    world.set_cut(flap.node, other, true);
                    world.set_cut(other, flap.node, true);
                }
                self.repair_after(flap.down_ns, world);
            }
            _ => self.crash(flap.node, flap.down_ns, world),
        }
        let next_ns = world.now_ns() + until_next_ns;
        world.alarm(next_ns, ALARM | FLAP | index as u64);
    }

    /// Repairs all links after `for_ns`, unless links are cut again before then.
    fn repair_after(&mut self, for_ns: u64, world: &mut World) {
        self.cuts += 1;
        let repaired_ns = world.now_ns() + for_ns;
        world.alarm(repaired_ns, ALARM | REPAIR | self.cuts);
    }

    fn inject_clock_fault(
        &mut self,
        fault: FaultKind,
        node: usize,
        outage: u64,
        world: &mut World,
    ) {
        match fault {
            FaultKind::Rate => world.change_rate(node),
            FaultKind::Distrust => world.distrust_clock(node, outage),
            _ => {
                let by_ns = self.rng.random_range(JUMP_NS);
                world.jump_clock(node, by_ns);
            }
        }
    }

    fn lose_disk(&mut self, fault: FaultKind, node: usize, outage: u64, world: &mut World) {
        if !self.may_lose(node, world) {
            return;
        }
        world.note_fault(fault);
        self.lost.push(node);
        match fault {
            FaultKind::Wiped => {
                world.wipe(node);
                world.start_at(node, world.now_ns() + outage);
            }
            _ => world.lose(node),
        }
    }

    fn crash(&mut self, node: usize, down_ns: u64, world: &mut World) {
        world.crash(node);
        world.start_at(node, world.now_ns() + down_ns);
    }

    /// Whether the disk of `node` may be lost now. Three conditions are required: this disk is not
    /// lost yet, a majority of the disks remains intact, and all members have joined the cluster.
    fn may_lose(&self, node: usize, world: &World) -> bool {
        let joined = |node: &usize| {
            let replica = world.replica(*node);
            self.lost.contains(node) || replica.is_some_and(Replica::has_joined)
        };
        self.lost.len() < (world.n() - 1) / 2
            && !self.lost.contains(&node)
            && (0..world.n()).all(|node| joined(&node))
    }

    fn cut(&mut self, fault: FaultKind, for_ns: u64, world: &mut World) {
        let partition = match fault {
            FaultKind::Partition => Partition::TwoWay,
            FaultKind::OneWay => Partition::OneWay,
            _ => Partition::Bridge,
        };
        for (from, to) in partition.draw(&mut self.rng, world.n()) {
            world.set_cut(from, to, true);
        }
        self.repair_after(for_ns, world);
    }

    /// Lets the operator send a request to the replica that considers itself the leader.
    fn operate(&mut self, fault: FaultKind, to: usize, world: &mut World) {
        let Some(leader) = leader(world) else {
            return;
        };
        let operator = match fault {
            FaultKind::Transfer => OperatorRequest::Transfer(leasehold_leases::ReplicaId(to as u8)),
            _ => {
                self.operator_requests += 1;
                let (ask, set) = (
                    self.operator_requests,
                    draw_lease_set(&mut self.rng, world.n()),
                );
                OperatorRequest::Lease { ask, set }
            }
        };
        world.note_fault(fault);
        world.operate(leader, operator);
    }
}

/// Returns a replica that considers itself the leader, if there is one.
fn leader(world: &World) -> Option<usize> {
    (0..world.n()).find(|node| {
        let replica = world.replica(*node);
        replica.is_some_and(|replica| replica.leader().is_some_and(|l| l.index() == *node))
    })
}

fn repair_links(world: &mut World) {
    for (from, to) in links(world.n()) {
        world.set_cut(from, to, false);
    }
}

/// Ends all faults that can be ended. Lost disks stay lost.
pub fn heal(world: &mut World) {
    world.set_faults(Default::default());
    world.end_slow_reads();
    repair_links(world);
    for node in 0..world.n() {
        world.disarm(node);
        world.repair_disk(node);
        world.wake(node);
        world.start(node);
        world.report_clock_trust(node, true);
    }
}
