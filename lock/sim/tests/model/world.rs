//! One state of the model, and its successors.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use leasehold_leases::{Time, fingerprint};
use leasehold_lock_core::{
    AcquireRefusal, AttemptBallot, Body, Fence, MemberEvent, MemberId, MemberInput, MemberMachine,
    Packet, rules,
};

use super::model::{Group, Milestone};
use super::scenario::{Clocks, N, Request, TICK};

/// The resource.
pub const RESOURCE: Bytes = Bytes::from_static(b"r");

/// State of the random number generators before each step.
const RANDOM: u64 = 0;

/// A member with its process.
#[derive(Clone)]
pub struct Node {
    /// The member.
    pub member: MemberMachine,
    /// Number of starts before this one.
    restarts: u8,
    /// Round above all rounds that the member has reserved on its disk.
    floor: u64,
    /// Fingerprint of all other fields.
    digest: u64,
}

impl Node {
    fn new(member: MemberMachine, restarts: u8, floor: u64) -> Node {
        let mut node = Node {
            member,
            restarts,
            floor,
            digest: 0,
        };
        node.sum();
        node
    }

    fn sum(&mut self) {
        self.member.set_random(RANDOM);
        let member = self.member.fingerprint();
        self.digest = fingerprint::of(&(member, self.restarts, self.floor));
    }
}

/// A packet in flight.
#[derive(Clone, PartialEq, Eq)]
pub struct Flight {
    packet: Packet,
    /// Whether the sender had been restarted.
    is_restarted: bool,
    digest: u64,
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}->{:?}", self.packet.from, self.packet.to)?;
        for (_, body) in &self.packet.messages {
            write!(f, " {body:?}")?;
        }
        Ok(())
    }
}

/// Event that may happen next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A packet arrives.
    Deliver(Arc<Flight>),
    /// A packet arrives, and a copy of it stays in flight.
    DeliverCopy(Arc<Flight>),
    /// The clock of a member advances.
    Tick(usize),
    /// The clocks of all members advance.
    TickAll,
    /// A member handles its deadline.
    Wake(usize),
    /// A program makes its next request.
    Ask(usize),
    /// A member ends, loses its memory, and starts again.
    Crash(usize),
}

/// Event that must never happen, but did.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Violation {
    /// Two members own the resource.
    Exclusion,
    /// The fence token of a new owner is not above the one before.
    Fences,
    /// A member has acquired the resource in spite of an owner that another one was told of.
    Told,
    /// A member distrusts clocks that are right.
    Clocks,
    /// A member found that one of its own invariants is broken.
    Panic,
}

/// The newest lease that was acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Newest {
    owner: u8,
    fence: Fence,
    /// Whether its program has released it.
    is_released: bool,
}

/// Statement of a member to its program: another member owns the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Statement {
    owner: MemberId,
    fence: Fence,
    until: Time,
}

/// A state. Two states are considered equal if their 64-bit fingerprints are equal.
#[derive(Clone)]
pub struct World {
    nodes: [Arc<Node>; N],
    /// Advance of each clock since exploration began.
    clocks: [Duration; N],
    ticks: [u8; N],
    /// Packets in flight: a set, in the order in which they were sent.
    net: Vec<Arc<Flight>>,
    /// Fingerprint of the packets in flight.
    net_digest: u64,
    /// Number of requests that each program has made.
    asked: [u8; N],
    /// Whether a request to acquire the resource has no result yet.
    is_pending: [bool; N],
    crashes_left: u8,
    duplicates_left: u8,
    newest: Option<Newest>,
    told: Option<Statement>,
    /// Highest fence token of a lease that each member has released.
    released: [Fence; N],
    /// Violation, if there is one.
    pub violation: Option<Violation>,
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for node in &self.nodes {
            node.digest.hash(state);
        }
        (self.clocks, self.ticks, self.asked, self.is_pending).hash(state);
        (self.crashes_left, self.duplicates_left).hash(state);
        (self.newest, self.told, self.released, &self.violation).hash(state);
        self.net_digest.hash(state);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &World) -> bool {
        fingerprint::of(self) == fingerprint::of(other)
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ticks {:?} newest {:?} in flight {:?}",
            self.ticks, self.newest, self.net
        )?;
        match &self.violation {
            Some(violation) => write!(f, " VIOLATION {violation:?}"),
            None => Ok(()),
        }
    }
}

impl World {
    /// Creates a world in which the silence of the members after their start is over.
    pub fn new(group: &Group) -> World {
        let scenario = &group.scenario;
        let wait = rules::restart_wait(&scenario.settings) + TICK;
        let node = |me: usize| {
            let id = MemberId(me as u8);
            let started = scenario.start(me) - wait;
            let settings = scenario.settings.clone();
            let mut member = MemberMachine::new(settings, id, me as u64, RANDOM, 0, started);
            let mut floor = rules::ROUNDS_RESERVED;
            if !scenario.may_crash.contains(&me) {
                // Members that do not crash have reserved rounds above those of one that does.
                floor *= 4;
                member.step(started, MemberInput::RoundsReserved { until: floor });
            }
            Arc::new(Node::new(member, 0, floor))
        };
        World {
            nodes: std::array::from_fn(node),
            clocks: [Duration::ZERO; N],
            ticks: [0; N],
            net: Vec::new(),
            net_digest: 0,
            asked: [0; N],
            is_pending: [false; N],
            crashes_left: scenario.crashes,
            duplicates_left: scenario.duplicates,
            newest: None,
            told: None,
            released: [Fence(0); N],
            violation: None,
        }
    }

    fn clock(&self, group: &Group, member: usize) -> Time {
        group.scenario.start(member) + self.clocks[member]
    }

    /// Whether a member takes packets and requests.
    fn speaks(&self, group: &Group, member: usize) -> bool {
        self.clock(group, member) > self.nodes[member].member.silent_until()
    }

    fn is_due(&self, group: &Group, member: usize) -> bool {
        self.nodes[member].member.next_deadline() <= self.clock(group, member)
    }

    fn holds(&self, group: &Group, member: usize) -> bool {
        let now = self.clock(group, member);
        let member = &self.nodes[member].member;
        group.run(|| member.holding(&RESOURCE, now).is_some())
    }

    /// Adds all events that may happen next.
    pub fn actions(&self, group: &Group, actions: &mut Vec<Action>) {
        if self.violation.is_some() || self.is_over(group) {
            return;
        }
        let scenario = &group.scenario;
        for flight in &self.net {
            // A packet to a silent member has no effect: it is as good as lost.
            if self.speaks(group, usize::from(flight.packet.to.0)) {
                actions.push(Action::Deliver(flight.clone()));
                if self.duplicates_left > 0 {
                    actions.push(Action::DeliverCopy(flight.clone()));
                }
            }
        }
        for member in 0..N {
            if self.is_due(group, member) {
                actions.push(Action::Wake(member));
            }
            let next = scenario.programs[member].get(usize::from(self.asked[member]));
            let is_free = !self.is_pending[member] && !self.holds(group, member);
            let can_ask = match next {
                Some(Request::Acquire | Request::Wait(_)) => is_free && self.speaks(group, member),
                Some(Request::Release) => true,
                None => false,
            };
            if can_ask {
                actions.push(Action::Ask(member));
            }
            if self.crashes_left > 0 && scenario.may_crash.contains(&member) {
                actions.push(Action::Crash(member));
            }
        }
        // Nothing happens before the first request.
        if self.asked == [0; N] {
            return;
        }
        match scenario.clocks {
            Clocks::Together(_) if self.ticks[0] < scenario.horizon => {
                actions.push(Action::TickAll);
            }
            Clocks::Together(_) => {}
            Clocks::Apart => {
                let least = self.ticks.iter().min().copied().unwrap_or(0);
                let may_tick =
                    |it: &usize| self.ticks[*it] < scenario.horizon && self.ticks[*it] == least;
                actions.extend((0..N).filter(may_tick).map(Action::Tick));
            }
        }
    }

    /// Returns the state after an event.
    pub fn after(&self, group: &Group, action: Action) -> World {
        let mut world = self.clone();
        match action {
            Action::Deliver(flight) => {
                world.net.retain(|it| *it != flight);
                world.deliver(group, &flight);
            }
            Action::DeliverCopy(flight) => {
                world.duplicates_left -= 1;
                world.deliver(group, &flight);
            }
            Action::Tick(member) => world.tick(member, TICK),
            Action::TickAll => {
                if let Clocks::Together(rates) = group.scenario.clocks {
                    for (member, rate) in rates.into_iter().enumerate() {
                        world.tick(member, Duration::from_millis(rate.into()));
                    }
                }
            }
            Action::Wake(member) => world.step(group, member, MemberInput::Tick),
            Action::Ask(member) => world.ask(group, member),
            Action::Crash(member) => world.crash(group, member),
        }
        if !group.scenario.is_paused {
            for member in 0..N {
                if world.violation.is_none() && world.is_due(group, member) {
                    world.step(group, member, MemberInput::Tick);
                }
            }
        }
        world.forget_unusable(group);
        world.net_digest = world.sum_net(group);
        let owners = (0..N).filter(|it| world.holds(group, *it)).count();
        if owners > 1 && world.violation.is_none() {
            world.violation = Some(Violation::Exclusion);
        }
        world
    }

    fn tick(&mut self, member: usize, advance: Duration) {
        self.ticks[member] += 1;
        self.clocks[member] += advance;
    }

    fn deliver(&mut self, group: &Group, flight: &Flight) {
        let to = usize::from(flight.packet.to.0);
        let mut packet = flight.packet.clone();
        // The clocks are right, so their watch has no effect.
        packet.sent = self.clock(group, to);
        let is_ack = |(_, body): &(Bytes, Body)| {
            matches!(body, Body::ReadAck { .. } | Body::WriteAck { .. })
        };
        if flight.is_restarted && packet.messages.iter().any(is_ack) {
            group.reach(Milestone::RestartedAcks);
        }
        self.step(group, to, MemberInput::Packet(packet));
    }

    fn ask(&mut self, group: &Group, member: usize) {
        let now = self.clock(group, member);
        let request = group.scenario.programs[member][usize::from(self.asked[member])];
        self.asked[member] += 1;
        let resource = RESOURCE;
        let wait_until = match request {
            Request::Release => {
                if let Some(newest) = &mut self.newest {
                    newest.is_released |= usize::from(newest.owner) == member;
                }
                let successor = None;
                let release = MemberInput::Release {
                    resource,
                    successor,
                };
                return self.step(group, member, release);
            }
            Request::Acquire => Time::ZERO,
            Request::Wait(ticks) => now + TICK * u32::from(ticks),
        };
        self.is_pending[member] = true;
        let acquire = MemberInput::Acquire {
            resource,
            wait_until,
        };
        self.step(group, member, acquire);
    }

    fn crash(&mut self, group: &Group, member: usize) {
        self.crashes_left -= 1;
        let now = self.clock(group, member);
        let (settings, id) = (group.scenario.settings.clone(), MemberId(member as u8));
        let node = &self.nodes[member];
        let restarts = node.restarts + 1;
        let run = (member + N * usize::from(restarts)) as u64;
        // With synchronised clocks, nothing is kept on disks.
        let floor = if settings.has_timers() { node.floor } else { 0 };
        let start = || MemberMachine::new(settings, id, run, RANDOM, floor, now);
        let started = group.run(start);
        let reserved = floor + rules::ROUNDS_RESERVED;
        self.nodes[member] = Arc::new(Node::new(started, restarts, reserved));
        self.is_pending[member] = false;
    }

    /// Passes an input to a member, and performs its actions.
    fn step(&mut self, group: &Group, member: usize, input: MemberInput) {
        let now = self.clock(group, member);
        let node = Arc::make_mut(&mut self.nodes[member]);
        let result = catch_unwind(AssertUnwindSafe(|| {
            group.run(|| {
                let machine = &mut node.member;
                machine.step(now, input);
                let events = machine.take_events();
                for event in &events {
                    if let MemberEvent::ReserveRounds { until } = *event {
                        node.floor = node.floor.max(until);
                        machine.step(now, MemberInput::RoundsReserved { until });
                    }
                }
                let packets = machine.take_packets(now);
                node.sum();
                (events, packets)
            })
        }));
        let is_restarted = node.restarts > 0;
        let Ok((events, packets)) = result else {
            self.violation = Some(Violation::Panic);
            return;
        };
        for event in events {
            self.on_event(group, member, now, event);
        }
        for packet in packets {
            self.send(group, packet, is_restarted);
        }
    }

    fn send(&mut self, group: &Group, mut packet: Packet, is_restarted: bool) {
        for (_, body) in &packet.messages {
            if let Body::Release { acquired, .. } = body {
                let released = &mut self.released[usize::from(packet.from.0)];
                *released = acquired.fence().max(*released);
            }
        }
        packet.sent = Time::ZERO;
        let digest = fingerprint::of(&(packet.from, packet.to, &packet.messages, is_restarted));
        if self.net.iter().any(|it| it.digest == digest) {
            return;
        }
        let is_same_link = |it: &Flight| (it.packet.from, it.packet.to) == (packet.from, packet.to);
        let on_link = self.net.iter().filter(|it| is_same_link(it)).count();
        if on_link >= group.scenario.link
            && let Some(oldest) = self.net.iter().position(|it| is_same_link(it))
        {
            self.net.remove(oldest);
        }
        self.net.push(Arc::new(Flight {
            packet,
            is_restarted,
            digest,
        }));
    }

    /// Returns the fingerprint of the packets in flight. The order of those between two members counts
    /// only if the oldest can be lost.
    fn sum_net(&self, group: &Group) -> u64 {
        let order = |(index, flight): (usize, &Arc<Flight>)| {
            let link = (flight.packet.from, flight.packet.to);
            let is_limited = group.scenario.link < usize::MAX;
            let earlier = self.net[..index]
                .iter()
                .filter(|it| (it.packet.from, it.packet.to) == link);
            (if is_limited { earlier.count() } else { 0 }, flight.digest)
        };
        let mut packets: Vec<_> = self.net.iter().enumerate().map(order).collect();
        packets.sort_unstable();
        fingerprint::of(&packets)
    }

    /// Removes packets that can have no effect any more.
    fn forget_unusable(&mut self, group: &Group) {
        if group.keeps_unusable {
            return;
        }
        let mut net = std::mem::take(&mut self.net);
        group.run(|| net.retain(|it| self.may_matter(group, &it.packet)));
        self.net = net;
    }

    /// Whether a packet can have an effect.
    fn may_matter(&self, group: &Group, packet: &Packet) -> bool {
        let (from, to) = (usize::from(packet.from.0), usize::from(packet.to.0));
        let member = &self.nodes[to].member;
        let (here, there) = (self.clock(group, to), self.clock(group, from));
        if member.silent_until() >= group.end(to) {
            return false;
        }
        // With timers, a member that has restarted promises only higher rounds than before.
        let forgets = !group.scenario.settings.has_timers()
            && self.crashes_left > 0
            && group.scenario.may_crash.contains(&to);
        packet.messages.iter().any(|(resource, body)| match *body {
            Body::Read { ballot, .. } | Body::Write { ballot, .. } => {
                let promised = AttemptBallot {
                    round: u64::MAX,
                    ..ballot
                };
                let nack = Body::Nack { ballot, promised };
                forgets
                    || member.may_accept(resource, *body)
                    || self.nodes[from].member.can_use(there, resource, nack)
            }
            answer => member.can_use(here, resource, answer),
        })
    }

    /// Whether no member can acquire the resource any more, and at most one can renew its lease. An
    /// attempt to renew may outlast the lease.
    fn is_over(&self, group: &Group) -> bool {
        let is_busy = |it: &&Arc<Node>| it.member.next_deadline() < Time::MAX;
        if self.nodes.iter().filter(is_busy).count() > 1 {
            return false;
        }
        (0..N).all(|member| {
            let asked = usize::from(self.asked[member]);
            let mut left = group.scenario.programs[member][asked..].iter();
            !self.is_pending[member] && left.all(|it| *it == Request::Release)
        })
    }

    fn on_event(&mut self, group: &Group, member: usize, now: Time, event: MemberEvent) {
        match event {
            MemberEvent::Acquired { holding, .. } => {
                self.is_pending[member] = false;
                self.on_acquired(group, member, now, holding.fence());
            }
            MemberEvent::Renewed { .. } => group.reach(Milestone::Renewed),
            MemberEvent::Refused { reason, .. } => {
                self.is_pending[member] = false;
                match reason {
                    AcquireRefusal::NoMajority => group.reach(Milestone::Abandoned),
                    AcquireRefusal::Taken {
                        owner,
                        fence,
                        until,
                    } => {
                        group.reach(Milestone::Told);
                        self.on_told(
                            group,
                            now,
                            Statement {
                                owner,
                                fence,
                                until,
                            },
                        );
                    }
                    _ => {}
                }
            }
            MemberEvent::Lost { .. } => group.reach(Milestone::Lost),
            // No program asks for the owner.
            MemberEvent::OwnerFound { .. } => {}
            MemberEvent::Released { ends: None, .. } => group.reach(Milestone::Released),
            MemberEvent::Released { .. } | MemberEvent::ReserveRounds { .. } => {}
            MemberEvent::ClocksDiffer { .. } => self.violation = Some(Violation::Clocks),
        }
    }

    fn on_acquired(&mut self, group: &Group, member: usize, now: Time, fence: Fence) {
        let me = member as u8;
        group.reach(match member {
            0 => Milestone::AcquiredByM0,
            _ => Milestone::AcquiredByM1,
        });
        if self.nodes[member].restarts > 0 {
            group.reach(Milestone::RestartedAcquires);
        }
        let newest = Newest {
            owner: me,
            fence,
            is_released: false,
        };
        if let Some(earlier) = self.newest.replace(newest) {
            if earlier.fence >= fence {
                self.violation = Some(Violation::Fences);
            }
            if earlier.owner != me {
                group.reach(if earlier.is_released {
                    Milestone::TakenAfterRelease
                } else {
                    Milestone::TakenAfterEnd
                });
            }
        }
        let told = self.told.take();
        let is_early = |it: &Statement| it.owner != MemberId(me) && now < it.until;
        let is_released = |it: &Statement| self.released[usize::from(it.owner.0)] >= it.fence;
        if told.is_some_and(|it| is_early(&it) && !is_released(&it)) {
            self.violation = Some(Violation::Told);
        }
    }

    /// Records that a program was told of an owner. The oracle of the simulator does the same.
    fn on_told(&mut self, group: &Group, now: Time, mut statement: Statement) {
        let settings = &group.scenario.settings;
        if settings.has_timers() || now + TICK >= statement.until {
            return;
        }
        // The statement of a request that waited may be older than the newest lease.
        if self.newest.is_some_and(|it| it.fence > statement.fence) {
            return;
        }
        if let Some(earlier) = self.told.filter(|it| it.fence == statement.fence) {
            statement.until = statement.until.max(earlier.until);
        }
        self.told = Some(statement);
    }
}
