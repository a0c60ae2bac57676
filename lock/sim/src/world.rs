//! A run: members, their programs, and the network, in true time.

mod faults;
mod program;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use leasehold_kernel::campaign::Sums;
use leasehold_kernel::clock::Clock;
use leasehold_kernel::network::Network;
use leasehold_kernel::process::{Process, Trap};
use leasehold_kernel::queue::EventQueue;
use leasehold_kernel::trace::Trace;
use leasehold_leases::Time;
use leasehold_lock_core::{
    AcquireRefusal, Body, ClockModel, KnownOwner, LeaseLoss, MemberEvent, MemberId, MemberInput,
    MemberMachine, Packet, rules,
};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use self::faults::Outage;
use self::program::Program;
use crate::oracle::{Checked, GroupViolation, Oracle};
use crate::scenario::GroupScenario;

/// Reading of a right clock at the start of a run, in ns: a moment in 2027.
const START_NS: u64 = 1_800_000_000_000_000_000;

/// Maximum number of events of a run. A run with more events makes no progress: the longest of many
/// thousand runs had less than a tenth of it.
const EVENTS_MAX: u64 = 5_000_000;

/// Numbers that a run counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunSums {
    /// Number of runs.
    pub seeds: u64,
    /// Virtual time, in ns.
    pub virtual_ns: u64,
    /// Number of leases that were acquired.
    pub acquired: u64,
    /// Number of renewals.
    pub renewed: u64,
    /// Number of leases that expired.
    pub expired: u64,
    /// Number of releases that a majority confirmed.
    pub released: u64,
    /// Number of releases that no majority confirmed.
    pub unconfirmed: u64,
    /// Number of requests that were refused because the resource had an owner.
    pub taken: u64,
    /// Number of requests that were refused because no majority answered.
    pub no_majority: u64,
    /// Number of queries that found an owner.
    pub owners_found: u64,
    /// Number of queries that found that there was no owner.
    pub found_free: u64,
    /// Number of queries without a certain result.
    pub unknown: u64,
    /// Number of crashes of members.
    pub crashes: u64,
    /// Number of pauses of members.
    pub pauses: u64,
    /// Number of members that stopped because clocks differed by more than `epsilon`.
    pub wrong_clocks: u64,
}

impl RunSums {
    /// Returns the numbers of runs with their names.
    pub fn named(&self) -> [(&'static str, u64); 13] {
        [
            ("leases acquired", self.acquired),
            ("renewals", self.renewed),
            ("leases that expired", self.expired),
            ("releases that a majority confirmed", self.released),
            ("releases that no majority confirmed", self.unconfirmed),
            ("requests refused because of an owner", self.taken),
            ("requests without a majority", self.no_majority),
            ("queries that found an owner", self.owners_found),
            ("queries that found no owner", self.found_free),
            ("queries without a certain result", self.unknown),
            ("crashes", self.crashes),
            ("pauses", self.pauses),
            ("members that distrusted clocks", self.wrong_clocks),
        ]
    }
}

impl Sums for RunSums {
    fn seeds(&self) -> u64 {
        self.seeds
    }

    fn virtual_ns(&self) -> u64 {
        self.virtual_ns
    }

    fn merge(&mut self, other: &RunSums) {
        self.seeds += other.seeds;
        self.virtual_ns += other.virtual_ns;
        self.acquired += other.acquired;
        self.renewed += other.renewed;
        self.expired += other.expired;
        self.released += other.released;
        self.unconfirmed += other.unconfirmed;
        self.taken += other.taken;
        self.no_majority += other.no_majority;
        self.owners_found += other.owners_found;
        self.found_free += other.found_free;
        self.unknown += other.unknown;
        self.crashes += other.crashes;
        self.pauses += other.pauses;
        self.wrong_clocks += other.wrong_clocks;
    }
}

/// Event of the simulation.
#[derive(Debug)]
enum Happening {
    /// A packet arrives.
    Packet(Packet),
    /// The deadline of a member.
    Deadline(usize),
    /// A program acts. The second value is the run of its member, and the third the resource.
    Program(usize, u64, usize),
    /// A program asks for the owner of a resource. The second value is the run of its member, and the
    /// third the resource.
    Query(usize, u64, usize),
    /// A member is started.
    Start(usize),
    /// A pause of a member ends. The second value is its run.
    Resume(usize, u64),
    /// The rate of a member's clock changes.
    Steer(usize),
    /// A fault of this kind occurs.
    Fault(usize),
    /// An outage ends.
    Heal(Outage),
    /// The faults end.
    Calm,
    /// Every resource must have an owner from now on.
    Owned,
}

/// A group of members in true time.
#[derive(Debug)]
pub struct GroupWorld {
    scenario: GroupScenario,
    rng: Pcg64Mcg,
    now_ns: u64,
    queue: EventQueue<Happening>,
    network: Network,
    members: Vec<Process<MemberMachine, Packet, Packet>>,
    programs: BTreeMap<(usize, usize), Program>,
    /// Requests to acquire a resource that have no result yet, by member and resource, with the end
    /// of their wait.
    requests: BTreeMap<(usize, usize), Time>,
    resources: Vec<Bytes>,
    oracle: Oracle,
    /// For each resource, the moment at which its release was confirmed while another program waited
    /// for it. `None` if it was acquired since.
    released_ns: Vec<Option<u64>>,
    /// Times from such a moment to the next owner, in ns.
    gaps_ns: Vec<u64>,
    /// Number of leases that each member has acquired.
    acquired_by: Vec<u64>,
    /// Round above all rounds that each member has used or promised. A member keeps it on its disk.
    floors: Vec<u64>,
    is_calm: bool,
    /// Whether every resource must have an owner that does not change.
    is_owned: bool,
    sums: RunSums,
    trace: Trace,
}

impl GroupWorld {
    /// Creates a world at time 0. Its trace keeps the last `lines` lines, or all lines if `lines` is
    /// 0.
    pub fn new(scenario: GroupScenario, lines: usize) -> GroupWorld {
        let n = usize::from(scenario.settings.members);
        let mut world = GroupWorld {
            rng: Pcg64Mcg::seed_from_u64(scenario.seed ^ 0x1ea5e),
            now_ns: 0,
            queue: EventQueue::new(),
            network: Network::new(scenario.one_way_ns.clone(), scenario.link_faults),
            members: Vec::new(),
            programs: BTreeMap::new(),
            requests: BTreeMap::new(),
            resources: (0..scenario.resources)
                .map(|it| Bytes::from(format!("r{it}")))
                .collect(),
            oracle: Oracle::default(),
            released_ns: vec![None; scenario.resources],
            gaps_ns: Vec::new(),
            acquired_by: vec![0; n],
            floors: vec![0; n],
            is_calm: false,
            is_owned: false,
            sums: RunSums::default(),
            trace: Trace::keeping(lines),
            scenario,
        };
        for member in 0..n {
            let clock = world.draw_clock();
            world.members.push(Process::new(clock));
            world.queue.schedule(0, Happening::Start(member));
            world.queue.schedule(0, Happening::Steer(member));
        }
        for fault in 0..world.scenario.faults.len() {
            world.plan_fault(fault);
        }
        let calm_ns = world.scenario.faulty_ns;
        world.queue.schedule(calm_ns, Happening::Calm);
        world
    }

    /// Runs until every resource has had an owner for a while without faults.
    ///
    /// # Errors
    /// The first violation.
    pub fn run(&mut self) -> Result<RunSums, GroupViolation> {
        let end_ns = self.scenario.faulty_ns + 2 * self.calm_ns();
        while let Some((at_ns, happening)) = self.queue.pop() {
            if at_ns > end_ns {
                break;
            }
            if self.queue.scheduled() > EVENTS_MAX {
                let (oracle, message) = ("progress", format!("{EVENTS_MAX} events"));
                return Err(GroupViolation { oracle, message });
            }
            self.now_ns = at_ns;
            self.happen(happening)
                .map_err(|(oracle, message)| GroupViolation { oracle, message })?;
        }
        self.sums.seeds = 1;
        self.sums.virtual_ns = end_ns;
        Ok(self.sums)
    }

    /// Returns the trace of the run, or its end.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Returns the number of leases that each member has acquired.
    pub fn acquired_by(&self) -> &[u64] {
        &self.acquired_by
    }

    /// Returns the times in ns from the confirmation of a release to the next owner, for each release of
    /// a resource for which another program waited.
    pub fn gaps_ns(&self) -> &[u64] {
        &self.gaps_ns
    }

    /// Returns the time within which every resource has an owner again after the last fault.
    fn calm_ns(&self) -> u64 {
        let settings = &self.scenario.settings;
        let wait = rules::restart_wait(settings);
        let owned = wait + settings.term + settings.attempt * 20;
        let owned = match settings.clocks {
            ClockModel::Synchronised { epsilon } => owned + epsilon,
            // By the slowest clock.
            ClockModel::Bounded(bound) => bound.outwait(owned),
        };
        owned.as_nanos() as u64
    }

    fn happen(&mut self, happening: Happening) -> Checked {
        match happening {
            Happening::Packet(packet) => {
                let to = usize::from(packet.to.0);
                if let Some(inbox) = self.members[to].paused_inbox() {
                    inbox.push(packet);
                    return Ok(());
                }
                self.step(to, MemberInput::Packet(packet))
            }
            Happening::Deadline(member) => {
                if !self.members[member].is_due(self.now_ns) {
                    return Ok(());
                }
                self.members[member].take_deadline();
                self.step(member, MemberInput::Tick)
            }
            Happening::Program(member, run, resource) => self.act(member, run, resource),
            Happening::Query(member, run, resource) => self.query(member, run, resource),
            Happening::Start(member) => {
                self.start(member);
                Ok(())
            }
            Happening::Resume(member, run) => self.resume(member, run),
            Happening::Steer(member) => {
                self.steer(member);
                Ok(())
            }
            Happening::Fault(index) => {
                self.fault(index);
                Ok(())
            }
            Happening::Heal(outage) => {
                self.heal(outage);
                Ok(())
            }
            Happening::Calm => {
                self.calm();
                Ok(())
            }
            Happening::Owned => {
                self.is_owned = true;
                self.check_results()?;
                self.check_owned()
            }
        }
    }

    /// Starts a member that is down.
    fn start(&mut self, member: usize) {
        if self.members[member].machine().is_some() {
            return;
        }
        let process = &mut self.members[member];
        let run = process.begin_run();
        let now = process.clock().read(self.now_ns);
        let id = MemberId(member as u8);
        let (name, seed) = (self.rng.random(), self.rng.random());
        let settings = self.scenario.settings.clone();
        let floor = self.floors[member];
        self.floors[member] = floor + rules::ROUNDS_RESERVED;
        process.boot(MemberMachine::new(settings, id, name, seed, floor, now));
        self.trace
            .line(self.now_ns, format_args!("m{member} starts"));
        for resource in 0..self.resources.len() {
            let at_ns = self.now_ns + self.draw_ns(0.5);
            let act = Happening::Program(member, run, resource);
            self.queue.schedule(at_ns, act);
            self.plan_query(member, resource);
        }
    }

    /// Passes an input to a member that runs, and performs its actions.
    fn step(&mut self, member: usize, input: MemberInput) -> Checked {
        self.take(member, input)?;
        self.flush(member);
        Ok(())
    }

    /// Passes an input to a member that runs.
    fn take(&mut self, member: usize, input: MemberInput) -> Checked {
        let process = &mut self.members[member];
        if !process.is_up() {
            return Ok(());
        }
        let now = process.clock().read(self.now_ns);
        let Some(machine) = process.machine_mut() else {
            return Ok(());
        };
        if let MemberInput::Packet(packet) = &input {
            let (from, messages) = (packet.from, &packet.messages);
            self.trace.line(
                self.now_ns,
                format_args!("m{member} <- {from:?} {messages:?}"),
            );
        }
        machine.step(now, input);
        let events = machine.take_events();
        for event in events {
            self.on_event(member, now, event)?;
        }
        for resource in 0..self.resources.len() {
            self.check_holders(resource)?;
        }
        Ok(())
    }

    /// Performs the actions of a member that follow from its inputs at this moment.
    fn flush(&mut self, member: usize) {
        let process = &mut self.members[member];
        if !process.is_up() {
            return;
        }
        let now = process.clock().read(self.now_ns);
        if let Some(machine) = process.machine_mut() {
            let packets = machine.take_packets(now);
            self.perform(member, packets);
            self.arm(member);
        }
    }

    fn arm(&mut self, member: usize) {
        let process = &mut self.members[member];
        let Some(machine) = process.machine() else {
            return;
        };
        let next = machine.next_deadline();
        if let Some(at_ns) = process.arm(self.now_ns, next) {
            self.queue.schedule(at_ns, Happening::Deadline(member));
        }
    }

    /// Sends packets, unless a fault occurs before one of them.
    fn perform(&mut self, member: usize, packets: Vec<Packet>) {
        let mut packets = packets.into_iter();
        while let Some(packet) = packets.next() {
            match self.members[member].springs() {
                None => {}
                Some(Trap::Crash(down_ns)) => return self.crash(member, down_ns),
                Some(Trap::Pause(paused_ns)) => {
                    let unfinished = std::iter::once(packet).chain(packets).collect();
                    return self.pause(member, paused_ns, unfinished);
                }
            }
            for (resource, body) in &packet.messages {
                if let Body::Release { acquired, .. } = body {
                    let owner = packet.from;
                    self.oracle.on_release(resource, owner, acquired.fence());
                }
            }
            let (from, to) = (usize::from(packet.from.0), usize::from(packet.to.0));
            let arrivals: Vec<u64> = self
                .network
                .deliveries(&mut self.rng, self.now_ns, from, to)
                .collect();
            for at_ns in arrivals {
                let happening = Happening::Packet(packet.clone());
                self.queue.schedule(at_ns, happening);
            }
        }
    }

    fn on_event(&mut self, member: usize, now: Time, event: MemberEvent) -> Checked {
        self.trace
            .line(self.now_ns, format_args!("m{member} {event:?}"));
        let id = MemberId(member as u8);
        match event {
            MemberEvent::Acquired { resource, holding } => {
                self.sums.acquired += 1;
                self.acquired_by[member] += 1;
                self.on_result(member, &resource)?;
                let index = self.resource(&resource);
                if let Some(released_ns) = self.released_ns[index].take() {
                    self.gaps_ns.push(self.now_ns - released_ns);
                }
                let epsilon_ns = self.epsilon().map_or(0, |it| it.as_nanos() as u64);
                self.oracle
                    .on_acquired(&resource, id, holding, now.0, epsilon_ns)?;
                self.on_acquired(member, &resource);
            }
            MemberEvent::Renewed { .. } => self.sums.renewed += 1,
            MemberEvent::Refused { resource, reason } => {
                self.on_result(member, &resource)?;
                match reason {
                    AcquireRefusal::Taken {
                        owner,
                        fence,
                        until,
                    } => {
                        self.sums.taken += 1;
                        // Later, the lease may be one that was read and not written back.
                        if self.epsilon().is_some_and(|epsilon| now + epsilon < until) {
                            self.oracle.on_told(&resource, owner, fence, until.0);
                        }
                    }
                    AcquireRefusal::NoMajority => self.sums.no_majority += 1,
                    _ => {}
                }
                self.plan_program(member, &resource, 1.0);
            }
            MemberEvent::Lost {
                resource, reason, ..
            } => {
                self.sums.expired += u64::from(reason == LeaseLoss::Expired);
                if self.is_owned {
                    let message = format!("{id:?} lost {resource:?} without a fault");
                    return Err(("liveness", message));
                }
                self.plan_program(member, &resource, 1.0);
            }
            MemberEvent::Released { resource, ends, .. } => {
                match ends {
                    None => self.sums.released += 1,
                    Some(_) => self.sums.unconfirmed += 1,
                }
                let index = self.resource(&resource);
                let mut waiting = self.requests.iter();
                if waiting.any(|((_, of), until)| *of == index && *until == Time::MAX) {
                    self.released_ns[index] = Some(self.now_ns);
                }
                self.plan_program(member, &resource, 1.0);
            }
            MemberEvent::OwnerFound { resource, owner } => {
                match owner {
                    KnownOwner::Is { .. } => self.sums.owners_found += 1,
                    KnownOwner::Free => self.sums.found_free += 1,
                    KnownOwner::Unknown => self.sums.unknown += 1,
                }
                self.check_holders(self.resource(&resource))?;
                self.oracle.on_owner_found(&resource, id, owner)?;
                let resource = self.resource(&resource);
                self.plan_query(member, resource);
            }
            MemberEvent::ReserveRounds { until } => {
                self.floors[member] = self.floors[member].max(until);
                if let Some(machine) = self.members[member].machine_mut() {
                    machine.step(now, MemberInput::RoundsReserved { until });
                }
            }
            MemberEvent::ClocksDiffer { .. } => {
                self.sums.wrong_clocks += 1;
                let epsilon_ns = self.epsilon().map_or(0, |it| it.as_nanos() as u64);
                if self.scenario.clock_difference_ns <= epsilon_ns {
                    let message = format!("{id:?} distrusts clocks that are right");
                    return Err(("clocks", message));
                }
            }
        }
        Ok(())
    }

    /// Returns the maximum difference between clocks, if they are synchronised.
    fn epsilon(&self) -> Option<Duration> {
        match self.scenario.settings.clocks {
            ClockModel::Synchronised { epsilon } => Some(epsilon),
            ClockModel::Bounded(_) => None,
        }
    }

    /// Checks that at most one member holds a resource. A paused member counts, because its program
    /// may have compared its clock just before the pause.
    fn check_holders(&mut self, resource: usize) -> Checked {
        let resource = &self.resources[resource];
        let holders = self.members.iter().enumerate().filter_map(|(id, process)| {
            let now = process.clock().read(self.now_ns);
            let holding = process.machine()?.holding(resource, now)?;
            Some((MemberId(id as u8), holding))
        });
        self.oracle
            .on_holders(resource, &holders.collect::<Vec<_>>())
    }

    fn check_owned(&self) -> Checked {
        for resource in &self.resources {
            let mut processes = self.members.iter();
            let is_owned = processes.any(|process| {
                let now = process.clock().read(self.now_ns);
                let machine = process.machine();
                machine.is_some_and(|it| it.holding(resource, now).is_some())
            });
            if !is_owned {
                let message = format!("{resource:?} has no owner after the last fault");
                return Err(("liveness", message));
            }
        }
        Ok(())
    }

    /// Returns a random duration of up to `terms` terms, in ns.
    fn draw_ns(&mut self, terms: f64) -> u64 {
        let term_ns = self.scenario.settings.term.as_nanos() as f64;
        (term_ns * terms * self.rng.random::<f64>()) as u64
    }

    /// Returns the clock of a member at the start of a run.
    fn draw_clock(&mut self) -> Clock {
        if self.scenario.settings.has_timers() {
            // Readings of different clocks have nothing in common.
            let reading_ns = self.rng.random_range(0..START_NS);
            return Clock::new(0, reading_ns, self.draw_rate_ppm());
        }
        let offset = self.draw_offset();
        Clock::new(0, START_NS.wrapping_add_signed(offset), 0)
    }

    /// Returns a random error of a clock's rate, in parts per million. The extremes are frequent.
    fn draw_rate_ppm(&mut self) -> i32 {
        let most = self.scenario.clock_error_ppm as i32;
        match self.rng.random_range(0..4) {
            0 => most,
            1 => -most,
            _ => self.rng.random_range(-most..=most),
        }
    }

    /// Returns a random offset of a clock from true time, in ns. The extremes are frequent.
    fn draw_offset(&mut self) -> i64 {
        // The rate of a clock has a resolution of 1 part per million.
        let most = (self.scenario.clock_difference_ns / 2).saturating_sub(10_000) as i64;
        match self.rng.random_range(0..4) {
            0 => most,
            1 => -most,
            _ => self.rng.random_range(-most..=most),
        }
    }

    /// Steers a member's clock to a new offset, or gives it a new rate.
    fn steer(&mut self, member: usize) {
        if self.scenario.settings.has_timers() {
            let rate_ppm = self.draw_rate_ppm();
            let span_ns = 1_000_000 + self.draw_ns(2.0);
            return self.set_rate(member, rate_ppm, span_ns);
        }
        let target = self.draw_offset();
        let span_ns = self.scenario.clock_difference_ns * 2 + 1_000_000 + self.draw_ns(1.0);
        let reading = self.members[member].clock().read(self.now_ns).0;
        let offset = reading as i64 - (START_NS + self.now_ns) as i64;
        let rate_ppm = i128::from(target - offset) * 1_000_000 / i128::from(span_ns);
        self.set_rate(member, rate_ppm as i32, span_ns);
    }

    /// Changes the rate of a member's clock for a time.
    fn set_rate(&mut self, member: usize, rate_ppm: i32, span_ns: u64) {
        let now_ns = self.now_ns;
        self.members[member].change_clock(|clock| clock.set_rate(now_ns, rate_ppm));
        self.arm(member);
        self.queue
            .schedule(now_ns + span_ns, Happening::Steer(member));
    }
}
