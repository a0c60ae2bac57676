//! One member of a group: its registers, its claims, and its packets.

mod fingerprint;
mod owner;
mod propose;

use std::collections::HashMap;
use std::time::Duration;

use leasehold_leases::Time;
use leasehold_leases::hashing::SeededState;

use crate::agenda::Agenda;
use crate::attempt::Attempt;
use crate::ballot::{AttemptBallot, Fence, MemberId, Proposer, ROUND_MAX};
use crate::claim::{AcquireRequest, Claim, Holding, Release};
use crate::message::{Body, Lease, LeaseEnd, Packet, RESOURCE_BYTES_MAX, ReportedState, Resource};
use crate::register::Register;
use crate::rules;
use crate::settings::{ClockModel, GroupSettings};

/// Number of times that a release is sent during the time of an attempt, as long as no majority has
/// confirmed it.
const RELEASES_PER_ATTEMPT: u32 = 8;

/// Input of a member.
#[derive(Clone, Debug)]
pub enum MemberInput {
    /// A packet of another member.
    Packet(Packet),
    /// A request of the program to own a resource. Its result is one [`MemberEvent::Acquired`] or
    /// [`MemberEvent::Refused`].
    Acquire {
        /// The resource.
        resource: Resource,
        /// Moment until which the member waits if the resource has an owner or no majority answers.
        /// [`Time::ZERO`] for a request that does not wait, and [`Time::MAX`] for one that waits
        /// forever.
        wait_until: Time,
    },
    /// A request of the program to give a lease up before its end, or to cancel a request to
    /// acquire it.
    Release {
        /// The resource.
        resource: Resource,
        /// Member that should own the resource next. If it waits for the resource, it begins before
        /// the other waiting members. If there is none, members that wait take turns.
        successor: Option<MemberId>,
    },
    /// A query of the program for the owner. Its result is one [`MemberEvent::OwnerFound`]. A later
    /// query for the same resource replaces it.
    FindOwner {
        /// The resource.
        resource: Resource,
    },
    /// The clock of this member was set, or cannot be trusted. The member gives up everything, and
    /// does nothing more. The caller creates a new [`MemberMachine`].
    ClockSet,
    /// The member may promise rounds below `until`: it has kept this number on a disk, or it does
    /// without fence tokens that rise after a restart.
    RoundsReserved {
        /// The reserved rounds are below this number.
        until: u64,
    },
    /// A deadline has been reached.
    Tick,
}

/// Reason for the refusal of a request to acquire a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AcquireRefusal {
    /// Another member owns the resource.
    Taken {
        /// The owner.
        owner: MemberId,
        /// Fence token of the owner's lease.
        fence: Fence,
        /// Moment from which the lease can be taken if the owner does not renew it.
        until: Time,
    },
    /// This member has started and is still silent. The request does not wait that long.
    Starting {
        /// Last moment of the silence.
        until: Time,
    },
    /// No majority of the group has answered in time.
    NoMajority,
    /// This member has a lease of the resource, or an earlier request for it.
    AlreadyRequested,
    /// The name of the resource is empty, or has more than 256 bytes.
    Name,
    /// The clock of this member, or that of another one, is wrong.
    Clock,
    /// The program has cancelled the request.
    Cancelled,
}

/// Result of a query for the owner of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KnownOwner {
    /// At some moment during the query, nobody owned the resource. A majority has confirmed it.
    Free,
    /// A member has confirmed during the query that it owns the resource.
    Is {
        /// The owner.
        member: MemberId,
        /// Fence token of its lease.
        fence: Fence,
        /// Last moment at which the lease may be valid if it is not renewed, by this member's clock.
        until: Time,
    },
    /// Too few members have answered, or the owner has not.
    Unknown,
}

/// Reason for the loss of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseLoss {
    /// The lease was not renewed before its end.
    Expired,
    /// The clock of this member, or that of another one, is wrong.
    Clock,
}

/// Result of a request, or a change of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MemberEvent {
    /// This member owns the resource.
    Acquired {
        /// The resource.
        resource: Resource,
        /// The lease.
        holding: Holding,
    },
    /// This member has renewed its lease.
    Renewed {
        /// The resource.
        resource: Resource,
        /// The lease.
        holding: Holding,
    },
    /// A request to acquire a resource was refused.
    Refused {
        /// The resource.
        resource: Resource,
        /// The reason.
        reason: AcquireRefusal,
    },
    /// This member does not own the resource any more, although its program has not released it.
    Lost {
        /// The resource.
        resource: Resource,
        /// Fence token of the lost lease.
        fence: Fence,
        /// The reason.
        reason: LeaseLoss,
    },
    /// The program has released the lease.
    Released {
        /// The resource.
        resource: Resource,
        /// Fence token of the released lease.
        fence: Fence,
        /// `None` if a majority has confirmed the release, so that others can acquire the resource
        /// immediately. Otherwise the moment from which they can.
        ends: Option<Time>,
    },
    /// A query for the owner has a result.
    OwnerFound {
        /// The resource.
        resource: Resource,
        /// The owner.
        owner: KnownOwner,
    },
    /// The member needs more rounds. It promises none of them before it gets
    /// [`MemberInput::RoundsReserved`] with this number.
    ReserveRounds {
        /// The rounds to reserve are below this number.
        until: u64,
    },
    /// The clock of another member differs from the clock of this member by more than `epsilon`.
    /// One of both is wrong. This member then holds nothing and answers nothing. The caller creates a
    /// new [`MemberMachine`].
    ClocksDiffer {
        /// The other member.
        member: MemberId,
    },
}

/// One member of a group. The documentation of the package has the call contract.
#[derive(Clone, Debug)]
pub struct MemberMachine {
    settings: GroupSettings,
    me: Proposer,
    /// Last moment of the restart wait.
    silent_until: Time,
    /// Whether a clock was found to be wrong. The member then takes no packets and no requests.
    is_clock_wrong: bool,
    /// State of the random number generator.
    random: u64,
    /// Round above all rounds that this member has used or promised before it started.
    floor: u64,
    /// The member promises rounds below this number only.
    reserved: u64,
    /// Whether more rounds have been requested.
    is_reserving: bool,
    /// Highest round that this member knows, of any resource.
    highest_round: u64,
    /// State as an acceptor.
    registers: HashMap<Resource, Register, SeededState>,
    /// State as a proposer.
    claims: HashMap<Resource, Claim, SeededState>,
    agenda: Agenda,
    /// Messages since the last [`MemberMachine::take_packets`], by receiver.
    outbox: Vec<Vec<(Resource, Body)>>,
    events: Vec<MemberEvent>,
}

impl MemberMachine {
    /// Starts a member at `now`. `run` is a random number, and `seed` is the seed of all random
    /// numbers of the member. `floor` is above all rounds that earlier processes of this member have
    /// used or promised. The caller has reserved [`rules::ROUNDS_RESERVED`] rounds from there on, and
    /// reserves more for [`MemberEvent::ReserveRounds`]. Fence tokens may fall if `floor` is too low.
    /// With synchronised clocks, rounds follow from the clock, and `floor` may be 0.
    ///
    /// # Panics
    /// If the settings are not valid, or if `me` is not a member.
    pub fn new(
        settings: GroupSettings,
        me: MemberId,
        run: u64,
        seed: u64,
        floor: u64,
        now: Time,
    ) -> MemberMachine {
        assert_eq!(settings.validate(), Ok(()));
        assert!(me.0 < settings.members, "only members take part");
        MemberMachine {
            me: Proposer { member: me, run },
            silent_until: now + rules::restart_wait(&settings),
            is_clock_wrong: false,
            random: seed,
            highest_round: floor,
            floor,
            reserved: floor.saturating_add(rules::ROUNDS_RESERVED),
            is_reserving: false,
            registers: HashMap::with_hasher(SeededState::default()),
            claims: HashMap::with_hasher(SeededState::default()),
            agenda: Agenda::default(),
            outbox: vec![Vec::new(); settings.members.into()],
            events: Vec::new(),
            settings,
        }
    }

    /// Returns the last moment of the wait after the start. Until then, the member is silent.
    pub fn silent_until(&self) -> Time {
        self.silent_until
    }

    /// Returns the lease of a resource that this member owns at `now`.
    pub fn holding(&self, resource: &[u8], now: Time) -> Option<Holding> {
        let holding = self.claims.get(resource)?.holding?;
        rules::is_valid(holding.until(), now).then_some(holding)
    }

    /// Returns the time of the next deadline; [`Time::MAX`] if there is none.
    pub fn next_deadline(&self) -> Time {
        self.agenda.next()
    }

    /// Takes one input.
    pub fn step(&mut self, now: Time, input: MemberInput) {
        // A lease that has just ended does not count any more.
        self.meet_deadlines(now);
        match input {
            MemberInput::Packet(packet) => self.on_packet(now, packet),
            MemberInput::Acquire {
                resource,
                wait_until,
            } => self.acquire(now, resource, wait_until),
            MemberInput::Release {
                resource,
                successor,
            } => self.release(now, resource, successor),
            MemberInput::FindOwner { resource } => self.find_owner(now, resource),
            MemberInput::ClockSet => self.distrust_clock(),
            MemberInput::RoundsReserved { until } => {
                self.reserved = self.reserved.max(until);
                self.is_reserving = false;
            }
            MemberInput::Tick => {}
        }
        self.meet_deadlines(now);
    }

    fn meet_deadlines(&mut self, now: Time) {
        while let Some((due, resource)) = self.agenda.take_due(now) {
            self.change_claim(&resource, |member, claim| {
                assert_eq!(claim.due, due, "the agenda has the deadlines of claims");
                claim.due = Time::MAX;
                member.on_deadline(now, &resource, claim);
            });
        }
    }

    /// Takes the packets that the steps since the last call have produced, at most one for each
    /// member. `now` is the clock sample of these steps.
    pub fn take_packets(&mut self, now: Time) -> Vec<Packet> {
        let from = self.me.member;
        let packet = |(to, messages): (usize, &mut Vec<_>)| Packet {
            from,
            to: MemberId(to as u8),
            sent: now,
            messages: std::mem::take(messages),
        };
        let filled = self.outbox.iter_mut().enumerate();
        let filled = filled.filter(|(_, messages)| !messages.is_empty());
        filled.map(packet).collect()
    }

    /// Takes the events of the steps since the last call.
    pub fn take_events(&mut self) -> Vec<MemberEvent> {
        std::mem::take(&mut self.events)
    }

    /// Calls `change` with the claim of a resource, and updates the agenda.
    fn change_claim(
        &mut self,
        resource: &Resource,
        change: impl FnOnce(&mut MemberMachine, &mut Claim),
    ) {
        let mut claim = self.claims.remove(resource).unwrap_or_default();
        change(self, &mut claim);
        let due = claim.deadline(&self.settings);
        self.agenda.replace(resource, claim.due, due);
        claim.due = due;
        if !claim.is_idle() {
            self.claims.insert(resource.clone(), claim);
        }
    }

    fn acquire(&mut self, now: Time, resource: Resource, wait_until: Time) {
        let is_named = (1..=RESOURCE_BYTES_MAX).contains(&resource.len());
        let claim = self.claims.get(&resource);
        let is_busy = claim.is_some_and(|it| it.request.is_some() || it.holding.is_some());
        let until = self.silent_until;
        let reasons = [
            (!is_named, AcquireRefusal::Name),
            (is_busy, AcquireRefusal::AlreadyRequested),
            (self.is_clock_wrong, AcquireRefusal::Clock),
            (
                now.max(wait_until) <= until,
                AcquireRefusal::Starting { until },
            ),
        ];
        if let Some((_, reason)) = reasons.into_iter().find(|(applies, _)| *applies) {
            self.events.push(MemberEvent::Refused { resource, reason });
            return;
        }
        self.change_claim(&resource, |member, claim| {
            claim.request = Some(AcquireRequest::new(wait_until));
            member.begin_attempt(now, &resource, claim);
        });
    }

    fn release(&mut self, now: Time, resource: Resource, successor: Option<MemberId>) {
        self.change_claim(&resource, |member, claim| {
            let attempt = claim.attempt.take();
            claim.next_attempt = Time::MAX;
            if claim.request.take().is_some() {
                let reason = AcquireRefusal::Cancelled;
                member.events.push(MemberEvent::Refused {
                    resource: resource.clone(),
                    reason,
                });
                // The lease may be half written. Nobody uses it.
                if let Some(attempt) = attempt {
                    let release = Body::Release {
                        acquired: attempt.ballot,
                        successor: None,
                    };
                    member.broadcast(now, &resource, claim, release);
                }
            }
            if claim.holding.is_some() {
                member.give_up(now, &resource, claim, attempt, successor);
            }
        });
    }

    /// Sends the release of the lease that this member holds. `attempt` is the attempt to renew it
    /// that is given up.
    fn give_up(
        &mut self,
        now: Time,
        resource: &Resource,
        claim: &mut Claim,
        attempt: Option<Attempt>,
        successor: Option<MemberId>,
    ) {
        self.end_release(resource, claim, false);
        let Some(holding) = claim.holding else {
            return;
        };
        let acquired = holding.acquired();
        let register = self.registers.get(resource);
        let next = register.and_then(|it| it.next_waiting(self.me.member));
        let successor = successor.or(next);
        // A renewal may be half written.
        let written = attempt.and_then(Attempt::written_until);
        let until = written.unwrap_or(Time::ZERO);
        claim.release = Some(Release {
            acquired,
            ends: rules::takeable_from(&self.settings, until.max(holding.until())),
            successor,
            give_up: now + self.settings.attempt,
            repeat: now + self.settings.attempt / RELEASES_PER_ATTEMPT,
            sent: now,
            acks: Default::default(),
        });
        if rules::stops_before_release() {
            claim.holding = None;
        }
        let release = Body::Release {
            acquired,
            successor,
        };
        self.broadcast(now, resource, claim, release);
    }

    /// Sends a message to all members, and takes the answer of this member's own acceptor.
    fn broadcast(&mut self, now: Time, resource: &Resource, claim: &mut Claim, body: Body) {
        let me = self.me.member;
        for (to, messages) in self.outbox.iter_mut().enumerate() {
            if to != usize::from(me.0) {
                messages.push((resource.clone(), body));
            }
        }
        if let Some(answer) = self.accept(now, resource, body) {
            self.on_answer(now, me, resource, claim, answer);
        }
    }

    /// Answers a READ, WRITE or release as an acceptor. Returns `None` for every other message, and if
    /// the round is not reserved.
    fn accept(&mut self, now: Time, resource: &Resource, body: Body) -> Option<Body> {
        if !matches!(
            body,
            Body::Read { .. } | Body::Write { .. } | Body::Release { .. }
        ) {
            return None;
        }
        if let Body::Read { ballot, .. } | Body::Write { ballot, .. } = body
            && !self.may_promise(ballot.round)
        {
            return None;
        }
        let settings = &self.settings;
        let register = self.registers.entry(resource.clone());
        let register = register.or_insert_with(|| Register::new(self.floor));
        let blocking = match body {
            Body::Read {
                ballot,
                waits,
                renews,
            } => {
                let gives_way = waits || settings.has_timers();
                let taken = || register.taken(settings, ballot, renews, now);
                let blocking = gives_way.then(taken).flatten();
                register.note_waiting(ballot.proposer.member, waits);
                blocking
            }
            Body::Write { ballot, lease } if settings.has_timers() => {
                register.taken(settings, ballot, Some(lease.acquired), now)
            }
            _ => None,
        };
        if blocking.is_some() {
            return blocking;
        }
        let nack = |ballot, promised| Body::Nack { ballot, promised };
        Some(match body {
            Body::Read { ballot, .. } => match register.read(settings, ballot) {
                Ok((accepted, lease)) => Body::ReadAck {
                    ballot,
                    accepted,
                    lease,
                },
                Err(promised) => nack(ballot, promised),
            },
            Body::Write { ballot, lease } => match register.write(settings, ballot, lease, now) {
                Ok(()) => Body::WriteAck { ballot },
                Err(promised) => nack(ballot, promised),
            },
            Body::Release {
                acquired,
                successor,
            } => {
                register.release(acquired, successor);
                Body::ReleaseAck { acquired }
            }
            _ => return None,
        })
    }

    /// Whether the member has reserved a round. Requests more rounds before they are used up.
    fn may_promise(&mut self, round: u64) -> bool {
        if !self.settings.has_timers() {
            return true;
        }
        let wanted = round.saturating_add(rules::ROUNDS_RESERVED / 2);
        if wanted >= self.reserved && !self.is_reserving {
            self.is_reserving = true;
            let until = round.saturating_add(rules::ROUNDS_RESERVED);
            self.events.push(MemberEvent::ReserveRounds { until });
        }
        rules::may_promise(self.reserved, round)
    }

    fn on_packet(&mut self, now: Time, packet: Packet) {
        let Packet {
            from,
            to,
            sent,
            messages,
        } = packet;
        let is_known = from.0 < self.settings.members && from != self.me.member;
        if !is_known || to != self.me.member || self.is_clock_wrong {
            return;
        }
        // A clock that is set during the wait would end the wait too early.
        if rules::clocks_differ(&self.settings, None, sent, now) {
            return self.on_wrong_clock(from);
        }
        if now <= self.silent_until {
            return;
        }
        for (resource, body) in messages {
            let since = self.claims.get(&resource).and_then(|it| it.asked(body));
            if rules::clocks_differ(&self.settings, since, sent, now) {
                self.on_wrong_clock(from);
                return;
            }
            if !self.is_sane(now, from, &resource, body) {
                continue;
            }
            if let Some(round) = body.round() {
                let is_possible =
                    rules::is_round_possible(&self.settings, now, self.highest_round, round);
                // A member that has been down for long learns the rounds of the others in steps.
                let known = self.highest_round.saturating_add(rules::LEAP_MAX);
                self.highest_round = self.highest_round.max(round.min(known));
                if !is_possible {
                    continue;
                }
            }
            let answer = match body {
                Body::Query { number } => Some(self.report(now, &resource, number)),
                _ => self.accept(now, &resource, body),
            };
            match (body, answer) {
                (Body::Release { successor, .. }, _) => self.on_release(now, &resource, successor),
                (_, Some(Body::WriteAck { .. })) => self.on_owner_heard(now, &resource),
                _ => {}
            }
            match answer {
                Some(answer) => self.outbox[usize::from(from.0)].push((resource, answer)),
                None if self.claims.contains_key(&resource) => {
                    self.change_claim(&resource, |member, claim| {
                        member.on_answer(now, from, &resource, claim, body);
                    });
                }
                None => {}
            }
        }
    }

    /// Whether a member that works correctly can have sent this message.
    fn is_sane(&self, now: Time, from: MemberId, resource: &Resource, body: Body) -> bool {
        let settings = &self.settings;
        let is_ballot = |ballot: AttemptBallot| {
            ballot.proposer.member.0 < settings.members && ballot.round <= ROUND_MAX
        };
        let is_end = |end: LeaseEnd| match (settings.clocks, end) {
            (ClockModel::Synchronised { epsilon }, LeaseEnd::At(until)) => {
                until <= now + settings.term + epsilon
            }
            (ClockModel::Bounded(bound), LeaseEnd::Left(left)) => {
                left <= bound.outwait(settings.term)
            }
            (ClockModel::Synchronised { .. }, LeaseEnd::Left(_))
            | (ClockModel::Bounded(_), LeaseEnd::At(_)) => false,
        };
        let is_lease = |lease: Lease| is_ballot(lease.acquired) && is_end(lease.end);
        let is_named = (1..=RESOURCE_BYTES_MAX).contains(&resource.len());
        is_named
            && match body {
                Body::Read { ballot, .. } => is_ballot(ballot) && ballot.proposer.member == from,
                Body::Write { ballot, lease } => {
                    is_ballot(ballot)
                        && ballot.proposer.member == from
                        && is_lease(lease)
                        && lease.acquired <= ballot
                }
                Body::Release {
                    acquired,
                    successor,
                } => {
                    is_ballot(acquired)
                        && acquired.proposer.member == from
                        && successor.is_none_or(|it| it.0 < settings.members)
                }
                Body::ReadAck {
                    ballot,
                    accepted,
                    lease,
                } => is_ballot(accepted) && accepted < ballot && lease.is_none_or(is_lease),
                Body::Taken { lease, .. } => is_lease(lease),
                Body::Nack { promised, .. } => is_ballot(promised),
                Body::Report {
                    state: ReportedState::Mine(lease),
                    ..
                } => is_lease(lease) && lease.owner().member == from,
                Body::WriteAck { .. }
                | Body::ReleaseAck { .. }
                | Body::Query { .. }
                | Body::Report { .. } => true,
            }
    }

    fn on_wrong_clock(&mut self, member: MemberId) {
        self.events.push(MemberEvent::ClocksDiffer { member });
        self.distrust_clock();
    }

    /// Gives up everything, because a clock is wrong.
    fn distrust_clock(&mut self) {
        self.is_clock_wrong = true;
        let mut claims: Vec<_> = self.claims.drain().collect();
        claims.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (resource, claim) in claims {
            self.agenda.replace(&resource, claim.due, Time::MAX);
            if let Some(holding) = claim.holding {
                self.events.push(MemberEvent::Lost {
                    resource: resource.clone(),
                    fence: holding.fence(),
                    reason: LeaseLoss::Clock,
                });
            }
            if claim.request.is_some() {
                let reason = AcquireRefusal::Clock;
                self.events.push(MemberEvent::Refused {
                    resource: resource.clone(),
                    reason,
                });
            }
            if claim.query.is_some() {
                let owner = KnownOwner::Unknown;
                let resource = resource.clone();
                self.events
                    .push(MemberEvent::OwnerFound { resource, owner });
            }
            if let Some(release) = claim.release {
                self.events.push(MemberEvent::Released {
                    resource,
                    fence: release.acquired.fence(),
                    ends: Some(release.ends),
                });
            }
        }
    }

    /// Returns a random number.
    fn random(&mut self) -> u64 {
        // SplitMix64 (Steele et al., OOPSLA 2014).
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a random duration below `most`.
    fn random_below(&mut self, most: Duration) -> Duration {
        let most = most.as_nanos().max(1);
        let below = (u128::from(self.random()) * most) >> 64;
        Duration::from_nanos(u64::try_from(below).unwrap_or(u64::MAX))
    }
}
