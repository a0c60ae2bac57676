//! A group of members. A schedule controls its messages and its clocks.

use std::time::Duration;

use bytes::Bytes;
use leasehold_leases::Time;
use leasehold_leases::time::ClockBound;
use leasehold_lock_core::{
    AcquireRefusal, ClockModel, GroupSettings, KnownOwner, MemberEvent, MemberId, MemberInput,
    MemberMachine, Packet, rules,
};

/// Reading of a right clock at the start of a schedule. An interval of ballots begins here.
pub const START: Time = Time(1_800_000_000_000_000_000 / 9_900_000_000 * 9_900_000_000);
/// Term of the leases in schedules.
pub const TERM: Duration = Duration::from_secs(10);
/// Bound on the difference between clocks in schedules with synchronised clocks.
pub const EPSILON: Duration = Duration::from_millis(100);
/// Bound on the error of clock rates in schedules with timers: a tenth.
pub const BOUND: ClockBound = ClockBound { rho_ppm: 100_000 };

const RESOURCE: Bytes = Bytes::from_static(b"resource");

/// Processes with their clocks, and the packets between them. Processes are named by their indexes.
/// The index is the member, except for copies of processes.
pub struct Group {
    settings: GroupSettings,
    processes: Vec<MemberMachine>,
    /// Differences of the clocks from true time, in ms.
    offsets_ms: Vec<i64>,
    /// Time since the start, in ms.
    now_ms: i64,
    /// Packets that were sent and not delivered, with the indexes of their senders.
    in_flight: Vec<(usize, Packet)>,
    /// Whether processes reserve rounds as soon as they need them.
    pub reserves: bool,
    /// Events so far, with the indexes of their processes.
    pub events: Vec<(usize, MemberEvent)>,
}

/// Returns a time at which members can start, so that their wait is over at the start of a schedule.
/// This also holds for a slow clock.
fn started(settings: &GroupSettings) -> Time {
    START - rules::restart_wait(settings) - Duration::from_secs(1)
}

impl Group {
    /// Starts members with synchronised clocks. Their wait after the start is over at time 0.
    pub fn new(members: u8) -> Group {
        Group::with(members, ClockModel::Synchronised { epsilon: EPSILON })
    }

    /// Starts members with clocks of bounded rates. Their wait after the start is over at time 0.
    pub fn with_timers(members: u8) -> Group {
        Group::with(members, ClockModel::Bounded(BOUND))
    }

    fn with(members: u8, clocks: ClockModel) -> Group {
        let settings = GroupSettings::new(members, TERM, clocks);
        let started = started(&settings);
        let start = |member| {
            let run = 100 + u64::from(member);
            MemberMachine::new(settings.clone(), MemberId(member), run, run, 0, started)
        };
        Group {
            processes: (0..members).map(start).collect(),
            offsets_ms: vec![0; members.into()],
            now_ms: 0,
            in_flight: Vec::new(),
            reserves: false,
            events: Vec::new(),
            settings,
        }
    }

    /// Starts a copy of the machine of a member, with another run. Returns its index.
    pub fn copy(&mut self, member: u8) -> usize {
        let started = started(&self.settings);
        let id = MemberId(member);
        let copy = MemberMachine::new(self.settings.clone(), id, 200, 200, 0, started);
        self.processes.push(copy);
        self.offsets_ms.push(0);
        self.processes.len() - 1
    }

    /// Sets the time since the start, in ms.
    pub fn at(&mut self, ms: i64) -> &mut Group {
        assert!(ms >= self.now_ms, "time goes on");
        self.now_ms = ms;
        self
    }

    /// Sets the difference of a clock from true time.
    pub fn offset(&mut self, process: usize, ms: i64) {
        self.offsets_ms[process] = ms;
    }

    /// Lets a clock run fast (1) or slow (-1) from time 0 on, as far as its bound allows.
    pub fn drift(&mut self, process: usize, direction: i64) {
        let rho_ppm = i64::from(BOUND.rho_ppm);
        self.offset(process, direction * self.now_ms * rho_ppm / 1_000_000);
    }

    /// Reads a clock.
    pub fn clock(&self, process: usize) -> Time {
        let ms = self.now_ms + self.offsets_ms[process];
        Time(START.0.wrapping_add_signed(ms * 1_000_000))
    }

    fn step(&mut self, process: usize, input: MemberInput) {
        let now = self.clock(process);
        let member = &mut self.processes[process];
        member.step(now, input);
        let packets = member.take_packets(now).into_iter();
        self.in_flight.extend(packets.map(|it| (process, it)));
        let events = member.take_events();
        for event in &events {
            if let (true, MemberEvent::ReserveRounds { until }) = (self.reserves, event) {
                let until = *until;
                member.step(now, MemberInput::RoundsReserved { until });
            }
        }
        let events = events.into_iter();
        self.events.extend(events.map(|it| (process, it)));
    }

    /// Requests the resource, without a wait.
    pub fn acquire(&mut self, process: usize) {
        let (resource, wait_until) = (RESOURCE, Time::ZERO);
        self.step(
            process,
            MemberInput::Acquire {
                resource,
                wait_until,
            },
        );
    }

    /// Requests the resource, and waits for it.
    pub fn acquire_forever(&mut self, process: usize) {
        let (resource, wait_until) = (RESOURCE, Time::MAX);
        self.step(
            process,
            MemberInput::Acquire {
                resource,
                wait_until,
            },
        );
    }

    /// Releases the resource.
    pub fn release(&mut self, process: usize) {
        self.release_to(process, None);
    }

    /// Releases the resource in favour of a member.
    pub fn release_to(&mut self, process: usize, successor: Option<MemberId>) {
        let resource = RESOURCE;
        let release = MemberInput::Release {
            resource,
            successor,
        };
        self.step(process, release);
    }

    /// Asks for the owner of the resource.
    pub fn find_owner(&mut self, process: usize) {
        let resource = RESOURCE;
        self.step(process, MemberInput::FindOwner { resource });
    }

    /// Returns the results of all queries for the owner so far.
    pub fn found_owners(&self) -> Vec<KnownOwner> {
        let owner = |(_, event): &(usize, MemberEvent)| match event {
            MemberEvent::OwnerFound { owner, .. } => Some(*owner),
            _ => None,
        };
        self.events.iter().filter_map(owner).collect()
    }

    /// Passes a deadline to a process.
    pub fn tick(&mut self, process: usize) {
        self.step(process, MemberInput::Tick);
    }

    /// Kills a process and starts it again.
    pub fn restart(&mut self, process: usize) {
        self.restart_above(process, 0);
    }

    /// Kills a process and starts it again. Its rounds begin at `floor`.
    pub fn restart_above(&mut self, process: usize, floor: u64) {
        let (settings, id) = (self.settings.clone(), MemberId(process as u8));
        let run = 1000 + self.now_ms as u64;
        let now = self.clock(process);
        self.processes[process] = MemberMachine::new(settings, id, run, run, floor, now);
    }

    /// Tells a process that it has reserved rounds on its disk.
    pub fn reserve(&mut self, process: usize, until: u64) {
        self.step(process, MemberInput::RoundsReserved { until });
    }

    /// Takes the packets that are in flight from one process to another.
    pub fn take(&mut self, from: usize, to: usize) -> Vec<Packet> {
        let is_theirs = |(sender, packet): &mut (usize, Packet)| {
            *sender == from && usize::from(packet.to.0) == to
        };
        let taken = self.in_flight.extract_if(.., is_theirs);
        taken.map(|(_, packet)| packet).collect()
    }

    /// Passes packets to a process.
    pub fn pass(&mut self, to: usize, packets: &[Packet]) {
        for packet in packets {
            self.step(to, MemberInput::Packet(packet.clone()));
        }
    }

    /// Delivers the packets that are in flight from one process to another.
    pub fn deliver(&mut self, from: usize, to: usize) {
        let packets = self.take(from, to);
        self.pass(to, &packets);
    }

    /// Delivers all packets between two processes until there are none.
    pub fn talk(&mut self, a: usize, b: usize) {
        for _ in 0..4 {
            self.deliver(a, b);
            self.deliver(b, a);
        }
    }

    /// Drops all packets in flight.
    pub fn drop_all(&mut self) {
        self.in_flight.clear();
    }

    /// Returns the processes that hold a valid lease, each by its own clock.
    pub fn owners(&self) -> Vec<usize> {
        let holds = |process: &usize| {
            let now = self.clock(*process);
            self.processes[*process].holding(&RESOURCE, now).is_some()
        };
        (0..self.processes.len()).filter(holds).collect()
    }

    /// Returns true if a process was told that another one owns the resource.
    pub fn is_told(&self) -> bool {
        self.events.iter().any(|(_, event)| match event {
            MemberEvent::Refused { reason, .. } => matches!(reason, AcquireRefusal::Taken { .. }),
            _ => false,
        })
    }

    /// Checks that exactly this process owns the resource.
    pub fn assert_owner(&self, owner: usize) {
        assert_eq!(self.owners(), [owner], "at {} ms", self.now_ms);
    }

    /// Checks that at most one process owns the resource.
    pub fn assert_exclusive(&self) {
        let owners = self.owners();
        assert!(owners.len() <= 1, "{owners:?} own it at {} ms", self.now_ms);
    }
}
