//! Faults of a run besides the network's habits, and their times: a plan drawn from the seed,
//! carried out by alarms.

use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::fault::Fault;
use super::node::Trap;
use super::scenario::draw_lease_set;
use super::world::World;
use leasehold_replica::{Operator, Replica};

/// Share of runs in which a planned fault is enabled.
const ENABLED: f64 = 0.3;
const MS: u64 = 1_000_000;
/// The mean pause between two replicas that begin to flap, in ns.
const FLAPS_EVERY_NS: u64 = 20_000 * MS;

/// Plan of the faults of a run, drawn from the seed.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Enabled faults, each with the mean pause between two, in ns.
    faults: Vec<(Fault, u64)>,
    /// Maximum time for which a replica stays down, cut off or still, in ns; and no longer than
    /// half the mean pause between two such faults, or nothing would go on.
    outage_ns: u64,
    /// A replica is cut off in two stages, again and again.
    isolation: Option<Isolation>,
}

/// A link that fails in two stages: a replica falls mute, then hears nothing
/// either, then all is well for a while. Each in ns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Isolation {
    /// Time for which others hear nothing of it, while it hears them.
    pub mute_ns: u64,
    /// Time for which it is cut off.
    pub apart_ns: u64,
    /// Time for which all is well, until the next time.
    pub well_ns: u64,
}

impl Plan {
    /// The plan of a run.
    pub fn draw(rng: &mut Pcg64Mcg) -> Plan {
        let mut faults = Vec::new();
        let drawn = |fault: &Fault| fault.is_planned() && *fault != Fault::Flap;
        for fault in Fault::ALL.into_iter().filter(drawn) {
            let enabled = rng.random::<f64>() < ENABLED;
            let every_ms = [1500, 5000, 15_000][rng.random_range(0..3)];
            if enabled {
                let rare = matches!(fault, Fault::CrashAll | Fault::Corrupt | Fault::Wiped);
                let every_ms = if rare { 20_000 } else { every_ms };
                faults.push((fault, every_ms * MS));
            }
        }
        let outage_ns = [100, 1500, 8000][rng.random_range(0..3)] * MS;
        Plan {
            faults,
            outage_ns,
            isolation: None,
        }
    }

    /// In some seeds replicas flap. Drawn apart, so that everything else is as without it.
    pub fn draw_flaps(&mut self, seed: u64) {
        let mut rng = Pcg64Mcg::seed_from_u64(seed ^ FLAP_SALT);
        if rng.random::<f64>() < ENABLED {
            self.faults.push((Fault::Flap, FLAPS_EVERY_NS));
        }
    }

    /// Nothing but one replica after another cut off in two stages.
    pub fn isolating(isolation: Isolation) -> Plan {
        Plan {
            isolation: Some(isolation),
            ..Plan::default()
        }
    }

    /// Clocks that jump ahead, and partitions.
    pub fn jumps(rng: &mut Pcg64Mcg) -> Plan {
        let every_ns = rng.random_range(2000..5000) * MS;
        Plan {
            faults: vec![(Fault::Jump, every_ns), (Fault::Partition, every_ns)],
            outage_ns: 1500 * MS,
            isolation: None,
        }
    }

    /// Returns the faults that are enabled.
    pub fn faults(&self) -> impl Iterator<Item = Fault> + '_ {
        self.faults.iter().map(|(fault, _)| *fault)
    }
}

/// Alarms of the swarm have this bit; below it: what to do.
pub const ALARM: u64 = 1 << 63;
const MEND: u64 = 1 << 32;
/// A stage of an isolation: the stage in the second byte, the victim in the first.
const STAGE: u64 = 1 << 33;
/// The next failure of a replica that flaps: which of [`Swarm::flaps`].
const FLAP: u64 = 1 << 34;
/// Tells the draw of flaps from others.
const FLAP_SALT: u64 = 0xf1a9;
/// A clock jumps ahead by this much, in ns.
const JUMP_NS: std::ops::Range<u64> = 2000 * MS..8000 * MS;

/// Carries a plan out.
#[derive(Debug)]
pub struct Swarm {
    plan: Plan,
    rng: Pcg64Mcg,
    /// Partitions made so far: only the newest one's end mends the links.
    cuts: u64,
    /// Wishes of operators.
    asks: u64,
    /// Replicas with damaged or wiped disks.
    lost: Vec<usize>,
    flaps: Vec<Flap>,
}

/// A replica that fails again and again, and is well in between.
#[derive(Clone, Copy, Debug)]
struct Flap {
    node: usize,
    /// `Pause`, `Partition` or `Crash`.
    how: Fault,
    /// Failures to come.
    left: u32,
    /// Length of each failure, and of the time after it in which the replica is well, in ns.
    down_ns: u64,
    well_ns: u64,
}

impl Swarm {
    /// Begins a plan.
    pub fn begin(plan: Plan, rng: Pcg64Mcg, world: &mut World) -> Swarm {
        let mut swarm = Swarm {
            plan,
            rng,
            cuts: 0,
            asks: 0,
            lost: Vec::new(),
            flaps: Vec::new(),
        };
        for index in 0..swarm.plan.faults.len() {
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
        let pause = self.rng.random_range(0..2 * self.plan.faults[index].1);
        world.alarm(world.now_ns() + pause, ALARM | index as u64);
    }

    /// An alarm of the swarm went off.
    pub fn alarm(&mut self, token: u64, world: &mut World) {
        let token = token & !ALARM;
        if token & FLAP != 0 {
            return self.flap((token & (FLAP - 1)) as usize, world);
        }
        if token & STAGE != 0 {
            return self.isolate(token & (STAGE - 1), world);
        }
        if token & MEND != 0 {
            if token & (MEND - 1) == self.cuts {
                mend_links(world);
            }
            return;
        }
        let index = token as usize;
        let (fault, every_ns) = self.plan.faults[index];
        self.next(index, world);
        self.fire(fault, every_ns, world);
    }

    /// The next stage of an isolation.
    fn isolate(&mut self, token: u64, world: &mut World) {
        let Some(isolation) = self.plan.isolation else {
            return;
        };
        let (stage, mut victim) = (token >> 8, token as usize & 0xff);
        let span_ns = match stage {
            0 => {
                victim = self.rng.random_range(0..world.n());
                world.note_fault(Fault::OneWay);
                isolation.mute_ns
            }
            1 => {
                world.note_fault(Fault::Partition);
                isolation.apart_ns
            }
            _ => {
                mend_links(world);
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
        let at_ns = world.now_ns() + span_ns;
        world.alarm(at_ns, ALARM | STAGE | next << 8 | victim as u64);
    }

    /// Draws the duration of a fault that comes every `every_ns`, in ns.
    fn outage(&mut self, every_ns: u64) -> u64 {
        let most = self.plan.outage_ns.min(every_ns / 2).max(2 * MS);
        self.rng.random_range(MS..=most)
    }

    fn fire(&mut self, fault: Fault, every_ns: u64, world: &mut World) {
        let node = self.rng.random_range(0..world.n());
        let outage = self.outage(every_ns);
        match fault {
            Fault::Partition | Fault::OneWay | Fault::Bridge => {
                self.cut(fault, outage, world);
                world.note_fault(fault);
            }
            Fault::Switch | Fault::Transfer => self.operate(fault, node, world),
            Fault::Flap => self.begin_flap(node, world),
            _ if world.replica(node).is_none() => {}
            Fault::CrashAll => {
                world.note_fault(fault);
                for node in 0..world.n() {
                    let outage = self.outage(every_ns);
                    self.crash(node, outage, world);
                }
            }
            Fault::Rate | Fault::Distrust | Fault::Jump => {
                world.note_fault(fault);
                self.harm_clock(fault, node, outage, world);
            }
            Fault::Stall | Fault::Full => {
                world.note_fault(fault);
                match fault {
                    Fault::Stall => world.stall_disk(node, outage),
                    _ => world.fill_disk(node, outage),
                }
            }
            Fault::Corrupt | Fault::Wiped => self.lose_disk(fault, node, outage, world),
            _ => self.harm_process(fault, node, outage, world),
        }
    }

    fn harm_process(&mut self, fault: Fault, node: usize, outage: u64, world: &mut World) {
        match fault {
            Fault::Crash | Fault::Epoch => {
                world.note_fault(fault);
                self.crash(node, outage, world);
                if fault == Fault::Epoch {
                    world.begin_clock_anew(node);
                }
            }
            Fault::Leave if world.is_up(node) => {
                world.note_fault(fault);
                world.leave(node, Some(outage));
            }
            Fault::Torn => world.crash_in_sync(node, outage),
            Fault::CrashMidStep | Fault::PauseMidStep => {
                let after = self.rng.random_range(0..24);
                let trap = match fault {
                    Fault::CrashMidStep => Trap::Crash(outage),
                    _ => Trap::Pause(outage),
                };
                world.set_trap(node, after, trap);
            }
            Fault::Pause if world.is_up(node) => {
                world.note_fault(fault);
                world.pause(node, outage);
            }
            _ => {}
        }
    }

    /// A replica, more often than not the leader, begins to flap.
    fn begin_flap(&mut self, node: usize, world: &mut World) {
        let leader = leader(world).filter(|_| self.rng.random());
        let flap = Flap {
            node: leader.unwrap_or(node),
            how: [Fault::Pause, Fault::Partition, Fault::Crash][self.rng.random_range(0..3)],
            left: self.rng.random_range(3..12),
            down_ns: self.rng.random_range(200..3000) * MS,
            well_ns: self.rng.random_range(200..3000) * MS,
        };
        world.note_fault(Fault::Flap);
        self.flaps.push(flap);
        self.flap(self.flaps.len() - 1, world);
    }

    /// A replica that flaps fails once more.
    fn flap(&mut self, index: usize, world: &mut World) {
        let Some(left) = self.flaps[index].left.checked_sub(1) else {
            return;
        };
        self.flaps[index].left = left;
        let flap = self.flaps[index];
        match flap.how {
            Fault::Pause => world.pause(flap.node, flap.down_ns),
            Fault::Partition => {
                for other in (0..world.n()).filter(|other| *other != flap.node) {
                    world.set_cut(flap.node, other, true);
                    world.set_cut(other, flap.node, true);
                }
                self.mend_after(flap.down_ns, world);
            }
            _ => self.crash(flap.node, flap.down_ns, world),
        }
        let next_ns = world.now_ns() + flap.down_ns + flap.well_ns;
        world.alarm(next_ns, ALARM | FLAP | index as u64);
    }

    /// Mends all links after `for_ns`, unless more links are cut before that.
    fn mend_after(&mut self, for_ns: u64, world: &mut World) {
        self.cuts += 1;
        let mended = world.now_ns() + for_ns;
        world.alarm(mended, ALARM | MEND | self.cuts);
    }

    fn harm_clock(&mut self, fault: Fault, node: usize, outage: u64, world: &mut World) {
        match fault {
            Fault::Rate => world.change_rate(node),
            Fault::Distrust => world.distrust_clock(node, outage),
            _ => {
                let by_ns = self.rng.random_range(JUMP_NS);
                world.jump_clock(node, by_ns);
            }
        }
    }

    fn lose_disk(&mut self, fault: Fault, node: usize, outage: u64, world: &mut World) {
        if !self.may_lose(node, world) {
            return;
        }
        world.note_fault(fault);
        self.lost.push(node);
        match fault {
            Fault::Wiped => {
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

    /// Whether another disk may be lost: a majority must be left whole, and a cluster in which not
    /// all members have joined cannot do without any.
    fn may_lose(&self, node: usize, world: &World) -> bool {
        let joined = |node: &usize| {
            let replica = world.replica(*node);
            self.lost.contains(node) || replica.is_some_and(Replica::has_joined)
        };
        self.lost.len() < (world.n() - 1) / 2
            && !self.lost.contains(&node)
            && (0..world.n()).all(|node| joined(&node))
    }

    fn cut(&mut self, fault: Fault, for_ns: u64, world: &mut World) {
        let n = world.n();
        let side: Vec<bool> = (0..n).map(|_| self.rng.random()).collect();
        let bridge = self.rng.random_range(0..n);
        for (from, to) in pairs(n) {
            let apart = side[from] != side[to];
            let cut = match fault {
                Fault::Partition => apart,
                Fault::OneWay => apart && side[from],
                _ => apart && from != bridge && to != bridge,
            };
            if cut {
                world.set_cut(from, to, true);
            }
        }
        self.mend_after(for_ns, world);
    }

    /// The operator asks the replica that takes itself for the leader.
    fn operate(&mut self, fault: Fault, to: usize, world: &mut World) {
        let Some(leader) = leader(world) else {
            return;
        };
        let operator = match fault {
            Fault::Transfer => Operator::Transfer(leasehold_leases::ReplicaId(to as u8)),
            _ => {
                self.asks += 1;
                let (ask, set) = (self.asks, draw_lease_set(&mut self.rng, world.n()));
                Operator::Lease { ask, set }
            }
        };
        world.note_fault(fault);
        world.operate(leader, operator);
    }
}

/// A replica that takes itself for the leader.
fn leader(world: &World) -> Option<usize> {
    (0..world.n()).find(|node| {
        let replica = world.replica(*node);
        replica.is_some_and(|replica| replica.leader().is_some_and(|l| l.index() == *node))
    })
}

fn pairs(n: usize) -> impl Iterator<Item = (usize, usize)> {
    let all = (0..n).flat_map(move |a| (0..n).map(move |b| (a, b)));
    all.filter(|(a, b)| a != b)
}

fn mend_links(world: &mut World) {
    for (from, to) in pairs(world.n()) {
        world.set_cut(from, to, false);
    }
}

/// Ends everything that is wrong, as far as it ends: what is lost stays lost.
pub fn heal(world: &mut World) {
    world.set_faults(Default::default());
    mend_links(world);
    for node in 0..world.n() {
        world.disarm(node);
        world.mend_disk(node);
        world.wake(node);
        world.start(node);
        world.tell_of_clock(node, true);
    }
}
