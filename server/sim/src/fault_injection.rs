//! Fault injection: one fault happens at known times, and the time that clients at every site wait
//! for answers is measured. Each site sends writes at fixed intervals, whether or not earlier
//! writes were answered. So a client that waits does not hide later delays.

use std::collections::BTreeMap;

use leasehold_leases::{ConfigId, ReplicaId, ReplicaSet};
use leasehold_wire::Command;
use leasehold_wire::command::Op;

use super::world::{ClientReply, World, WorldEvent, WorldSettings};
use leasehold_kernel::network::Faults;
use leasehold_replica::action::{ClientHandle, Event};
use leasehold_replica::{OperatorRequest, Settings};

const MS: u64 = 1_000_000;
/// Time for the cluster to elect its leader and establish leases, in ns.
const WARM_UP_NS: u64 = 4000 * MS;
/// Token of the alarm at which the fault is injected. All alarms with lower tokens belong to sites.
const INJECT: u64 = 1 << 32;
const REPAIR: u64 = INJECT + 1;

/// Kind of fault that is injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// The process is killed, and is started again at the end of the fault.
    Kill,
    /// The process is paused.
    Pause,
    /// The replica is cut off from all others.
    Cut,
    /// No message from the replica reaches another replica.
    Mute,
    /// No message from another replica reaches this one.
    Deaf,
    /// The replica is told to end, and is started again at the end of the fault.
    Leave,
    /// The named replica is killed. At the end of the fault, the leader is told to end.
    LeaveAfter(ReplicaId),
    /// The process is killed and started again. From 0.9 s after this start, no message of the
    /// leader reaches the process.
    KillUnheard,
    /// An operator transfers leadership to this replica.
    Transfer(ReplicaId),
    /// No message from another replica reaches this one. Meanwhile, a client sends writes to this
    /// replica, and the slots of these writes stay open at all other replicas. This replica is
    /// killed at the end of the fault. The two fields are the number of writes and the size of each
    /// value in bytes.
    Flood(u64, usize),
}

/// Fault that is injected at known times, and the cluster and the clients that it affects.
#[derive(Clone, Debug)]
pub struct FaultInjection {
    /// Settings of every replica.
    pub settings: Settings,
    /// One-way delays in ns, by sender and receiver.
    pub one_way_ns: Vec<Vec<u64>>,
    /// Faults of links between replicas. They last throughout the run.
    pub faults: Faults,
    /// Maximum number of bytes that a link transmits in a second; 0: no limit.
    pub bytes_per_s: u64,
    /// Interval between two writes of a site, in ns; 0: no site writes.
    pub every_ns: u64,
    /// Fault, and the replica that it is injected into. If no replica is named, the fault is
    /// injected into the current leader. `None`: no fault.
    pub fault: Option<(InjectedFault, Option<ReplicaId>)>,
    /// Time between the warm-up of the cluster and the fault, in ns.
    pub inject_after_ns: u64,
    /// Times at which the fault is repeated, in ns after the first injection.
    pub repeat_after_ns: Vec<u64>,
    /// Duration of each injection of the fault, in ns.
    pub lasts_ns: u64,
    /// Time for which clients write after the fault has begun, in ns.
    pub watch_ns: u64,
}

/// A write of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientWrite {
    /// Site of the client that sent the write.
    pub site: usize,
    /// Time at which the write was sent, in ns.
    pub requested_ns: u64,
    /// Time at which the write was answered, in ns; `None` if it was not answered.
    pub answered_ns: Option<u64>,
    /// Whether the answer to the write was an error.
    pub failed: bool,
}

/// Outcome of a fault injection.
#[derive(Clone, Debug)]
pub struct FaultImpact {
    /// Time at which the fault was first injected, in ns.
    pub injected_ns: u64,
    /// Replica that the fault was injected into.
    pub victim: ReplicaId,
    /// Every write, in the order of sending.
    pub writes: Vec<ClientWrite>,
    /// One entry for each time that a replica began to lead: the time in ns, and the replica.
    pub led: Vec<(u64, ReplicaId)>,
    /// One entry for each time that a replica campaigned: the time in ns, and the replica.
    pub campaigned: Vec<(u64, ReplicaId)>,
    /// One entry for each change of the set of replicas that are excluded from leases: the time in
    /// ns, and the new set.
    pub excluded: Vec<(u64, ReplicaSet)>,
    /// One entry for each replica that completed its shutdown after it was told to end: the time of
    /// completion in ns, and the replica.
    pub left: Vec<(u64, ReplicaId)>,
    /// Description of the violation that an oracle saw, if any.
    pub violation: Option<String>,
}

impl FaultImpact {
    /// Returns the writes at all sites except the site of the replica with the fault.
    fn elsewhere(&self) -> impl Iterator<Item = &ClientWrite> {
        let victim = self.victim.index();
        self.writes.iter().filter(move |write| write.site != victim)
    }

    /// Returns the length of the outage, in ns. The outage begins with the fault. A site is served
    /// again when it receives a successful answer to a write that it sent after the fault. The
    /// outage ends when all sites except the victim's are served again. Returns `None` if one of
    /// these sites is never served again.
    pub fn outage_ns(&self, sites: usize) -> Option<u64> {
        let first = |site: usize| {
            let since = self.elsewhere().filter(|write| write.site == site);
            let since =
                since.filter(|write| write.requested_ns >= self.injected_ns && !write.failed);
            since.filter_map(|write| write.answered_ns).min()
        };
        let others = (0..sites).filter(|site| *site != self.victim.index());
        let last = others.map(first).collect::<Option<Vec<u64>>>()?;
        Some(last.into_iter().max()? - self.injected_ns)
    }

    /// Returns the longest time, in ns, that a write waited for its answer. Writes at the victim's
    /// site are ignored. Returns `None` if one of the other writes was never answered.
    pub fn longest_ns(&self) -> Option<u64> {
        let waits = self.elsewhere();
        let waits = waits.map(|write| Some(write.answered_ns? - write.requested_ns));
        waits.collect::<Option<Vec<u64>>>()?.into_iter().max()
    }

    /// Returns the number of elections since the fault.
    pub fn elections(&self) -> usize {
        let since = self.led.iter().filter(|(at, _)| *at >= self.injected_ns);
        since.count()
    }

    /// Returns the replica that leads at the end.
    pub fn leader(&self) -> Option<ReplicaId> {
        self.led.last().map(|(_, leader)| *leader)
    }
}

struct InjectionRun<'a> {
    injection: &'a FaultInjection,
    world: World,
    writes: Vec<ClientWrite>,
    /// One map of unanswered writes for each site. The key is the sequence number of a write. The
    /// value is the index of this write in the list of all writes.
    open: Vec<BTreeMap<u64, usize>>,
    next: Vec<u64>,
    victim: ReplicaId,
    /// Time in ns after which clients send no further writes.
    ends_ns: u64,
}

impl FaultInjection {
    /// Runs the injection. The same injection and seed give the same impact.
    pub fn run(&self, seed: u64) -> FaultImpact {
        let n = self.settings.n;
        let mut world = World::new(
            WorldSettings {
                replica: self.settings.clone(),
                one_way_ns: self.one_way_ns.clone(),
                client_one_way_ns: MS / 10,
                sync_ns: MS / 5,
                faults: self.faults,
                drift_ppm: 100,
                encoded: false,
                disks_remember: true,
                segment_bytes: None,
                slow_reads: false,
                faulty_reporter: None,
                watched: true,
            },
            seed,
        );
        world.set_bandwidth(self.bytes_per_s);
        let inject_ns = WARM_UP_NS + self.inject_after_ns;
        let run = InjectionRun {
            injection: self,
            world,
            writes: Vec::new(),
            open: vec![BTreeMap::new(); n],
            next: vec![1; n],
            victim: ReplicaId(0),
            ends_ns: inject_ns + self.watch_ns,
        };
        run.run(inject_ns)
    }
}

impl InjectionRun<'_> {
    fn run(mut self, inject_ns: u64) -> FaultImpact {
        if self.injection.every_ns > 0 {
            let n = self.world.n() as u64;
            // The sites begin at different times.
            (0..n).for_each(|site| {
                let begin = WARM_UP_NS * 3 / 4 + site * self.injection.every_ns / n;
                self.world.alarm(begin, site);
            });
        }
        for after_ns in [0].iter().chain(&self.injection.repeat_after_ns) {
            let at_ns = inject_ns + after_ns;
            self.world.alarm(at_ns, INJECT);
            self.world.alarm(at_ns + self.injection.lasts_ns, REPAIR);
        }
        // The last writes may take as long again to be answered.
        let end_ns = self.ends_ns + self.injection.watch_ns;
        while !self.is_over(end_ns) {
            match self.world.advance() {
                Some(WorldEvent::Nothing | WorldEvent::Ended(..)) => {}
                Some(WorldEvent::Replied(replies)) => {
                    replies.iter().for_each(|reply| self.replied(reply))
                }
                Some(WorldEvent::Alarm(INJECT)) => self.inject(),
                Some(WorldEvent::Alarm(REPAIR)) => self.repair(),
                Some(WorldEvent::Alarm(site)) => self.write(site as usize),
                None => break,
            }
        }
        self.impact(inject_ns)
    }

    fn is_over(&self, end_ns: u64) -> bool {
        let now_ns = self.world.now_ns();
        let answered = now_ns >= self.ends_ns && self.open.iter().all(BTreeMap::is_empty);
        answered || now_ns >= end_ns || self.world.violation().is_some()
    }

    /// Sends a write of a client at `site`, if the replica of the site accepts connections.
    fn write(&mut self, site: usize) {
        let now_ns = self.world.now_ns();
        if now_ns >= self.ends_ns {
            return;
        }
        self.world
            .alarm(now_ns + self.injection.every_ns, site as u64);
        if !self.world.refuses(site) {
            self.send_write(site, 5);
        }
    }

    /// Sends a write from a client at `site`. The written value has a length of `bytes`.
    fn send_write(&mut self, site: usize, bytes: usize) {
        let sequence = self.next[site];
        self.next[site] += 1;
        self.open[site].insert(sequence, self.writes.len());
        let acked_below = self.open[site].keys().next().copied().unwrap_or(sequence);
        let key = format!("key{}", sequence % 16);
        let client = 1 + site as u64;
        let command = Command::session(
            client,
            sequence,
            acked_below,
            Op::put(key, vec![b'v'; bytes]),
        );
        self.writes.push(ClientWrite {
            site,
            requested_ns: self.world.now_ns(),
            answered_ns: None,
            failed: false,
        });
        let from = ClientHandle {
            connection: site as u64,
            request: sequence,
        };
        self.world.request(site, vec![(from, command)]);
    }

    fn replied(&mut self, reply: &ClientReply) {
        let site = reply.to.connection as usize;
        if let Some(write) = self.open[site].remove(&reply.to.request) {
            self.writes[write].answered_ns = Some(self.world.now_ns());
            let result = reply.outcome.result.as_ref();
            let written = matches!(result, Some(leasehold_wire::outcome::Result::Written(_)));
            self.writes[write].failed = !written;
        }
    }

    fn leader(&self) -> Option<ReplicaId> {
        let leads = |node: &usize| {
            let replica = self.world.replica(*node);
            replica.is_some_and(|replica| replica.leads_at().is_some())
        };
        let leader = (0..self.world.n()).find(leads)?;
        Some(ReplicaId(leader as u8))
    }

    fn inject(&mut self) {
        let Some((fault, named)) = self.injection.fault else {
            return;
        };
        self.victim = named.or(self.leader()).expect("a replica leads");
        let victim = self.victim.index();
        match fault {
            InjectedFault::Kill | InjectedFault::KillUnheard => self.world.crash(victim),
            InjectedFault::LeaveAfter(dead) => self.world.crash(dead.index()),
            InjectedFault::Leave => self.world.leave(victim, Some(self.injection.lasts_ns)),
            InjectedFault::Pause => self.world.pause(victim, self.injection.lasts_ns),
            InjectedFault::Cut | InjectedFault::Mute | InjectedFault::Deaf => self.cut(fault, true),
            InjectedFault::Flood(values, bytes) => {
                self.cut(InjectedFault::Deaf, true);
                (0..values).for_each(|_| self.send_write(victim, bytes));
            }
            InjectedFault::Transfer(to) => {
                self.world.operate(victim, OperatorRequest::Transfer(to))
            }
        }
    }

    fn cut(&mut self, fault: InjectedFault, cut: bool) {
        let victim = self.victim.index();
        for other in (0..self.world.n()).filter(|other| *other != victim) {
            if fault != InjectedFault::Deaf {
                self.world.set_cut(victim, other, cut);
            }
            if fault != InjectedFault::Mute {
                self.world.set_cut(other, victim, cut);
            }
        }
    }

    fn repair(&mut self) {
        match self.injection.fault {
            Some((InjectedFault::LeaveAfter(_), _)) => self.world.leave(self.victim.index(), None),
            Some((InjectedFault::KillUnheard, _))
                if self.world.replica(self.victim.index()).is_some() =>
            {
                let leader = self.leader().expect("a replica leads");
                self.world
                    .set_cut(leader.index(), self.victim.index(), true);
            }
            Some((InjectedFault::KillUnheard, _)) => {
                self.world.start(self.victim.index());
                self.world.alarm(self.world.now_ns() + 900 * MS, REPAIR);
            }
            Some((InjectedFault::Flood(..), _)) => self.world.crash(self.victim.index()),
            Some((InjectedFault::Kill, _)) => self.world.start(self.victim.index()),
            Some((fault @ (InjectedFault::Cut | InjectedFault::Mute | InjectedFault::Deaf), _)) => {
                self.cut(fault, false)
            }
            _ => {}
        }
    }

    fn impact(self, injected_ns: u64) -> FaultImpact {
        let notes = &self.world.notes;
        let noted = |wanted: fn(&Event) -> bool| {
            let notes = notes.iter().filter(move |(.., note)| wanted(note));
            notes.map(|(at, replica, _)| (*at, *replica)).collect()
        };
        let mut newest = (ConfigId(0), ReplicaSet::EMPTY);
        let excluded = notes.iter().filter_map(|(at, _, note)| {
            let Event::Configured { id, excluded, .. } = note else {
                return None;
            };
            if *id <= newest.0 {
                return None; // another replica has announced this configuration
            }
            let before = std::mem::replace(&mut newest, (*id, *excluded));
            (before.1 != *excluded).then_some((*at, *excluded))
        });
        FaultImpact {
            injected_ns,
            victim: self.victim,
            led: noted(|note| matches!(note, Event::Leading(_))),
            campaigned: noted(|note| matches!(note, Event::Campaigning(_))),
            left: noted(|note| matches!(note, Event::Left)),
            excluded: excluded.collect(),
            violation: self.world.violation().map(|seen| format!("{seen:?}")),
            writes: self.writes,
        }
    }
}
