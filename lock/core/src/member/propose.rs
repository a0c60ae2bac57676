//! The proposer's part of a member: attempts to acquire, to renew, and to learn the owner.

use std::time::Duration;

use leasehold_leases::Time;

use super::{AcquireRefusal, LeaseLoss, MemberEvent, MemberMachine, RELEASES_PER_ATTEMPT};
use crate::attempt::Attempt;
use crate::ballot::{AttemptBallot, MemberId};
use crate::claim::{Claim, Holding};
use crate::message::{Body, Lease, LeaseEnd, Resource};
use crate::register::{HighestWrite, Register};
use crate::rules;

/// Number of conflicts after which the back-off does not grow any more.
const CONFLICTS_MAX: u32 = 3;
/// Number of terms after which a waiting member asks again, although it hears of the owner.
const TERMS_UNASKED: u32 = 4;
/// Upper bound of [`MemberMachine::spread`].
const SPREAD_MAX: Duration = Duration::from_millis(8);

impl MemberMachine {
    /// Begins the next attempt, as soon as the member may speak.
    pub(super) fn begin_attempt(&mut self, now: Time, resource: &Resource, claim: &mut Claim) {
        claim.attempt = None;
        if now <= self.silent_until {
            claim.next_attempt = self.silent_until + Duration::from_nanos(1);
            return;
        }
        let request = claim.request.as_mut();
        let waits = request.is_some_and(|request| {
            request.began.get_or_insert(now);
            request.asked = now;
            !request.wants_answer(now)
        });
        let renews = claim.holding.map(Holding::acquired);
        let renews = renews.filter(|_| self.settings.has_timers());
        let register = self.registers.entry(resource.clone());
        let register = register.or_insert_with(|| Register::new(self.floor));
        let last = register.last_round().max(claim.above);
        let round = rules::next_round(&self.settings, now, last);
        if !rules::is_round_possible(&self.settings, now, self.highest_round, round) {
            // Other members would not accept the round. The next interval has new ones.
            claim.next_attempt = now + self.settings.attempt;
            return;
        }
        register.use_round(round);
        self.highest_round = self.highest_round.max(round);
        let proposer = self.me;
        let ballot = AttemptBallot { round, proposer };
        claim.next_attempt = Time::MAX;
        claim.attempt = Some(Attempt::begin(ballot, now));
        let read = Body::Read {
            ballot,
            waits,
            renews,
        };
        self.broadcast(now, resource, claim, read);
    }

    /// Takes the answer of an acceptor.
    pub(super) fn on_answer(
        &mut self,
        now: Time,
        acceptor: MemberId,
        resource: &Resource,
        claim: &mut Claim,
        answer: Body,
    ) {
        let majority = self.settings.majority();
        match answer {
            Body::ReadAck {
                ballot,
                accepted,
                lease,
            } => {
                let attempt = self.current(now, claim, ballot);
                let read =
                    attempt.and_then(|it| it.on_read_ack(acceptor, accepted, lease, majority));
                if let Some(highest) = read {
                    self.on_read(now, resource, claim, highest);
                }
            }
            Body::Taken { ballot, lease } => {
                let members = self.settings.members;
                let Some(attempt) = self.current(now, claim, ballot) else {
                    return;
                };
                if attempt.on_taken(acceptor, lease, members, majority) {
                    let attempt = *attempt;
                    self.on_blocked(now, resource, claim, attempt, lease);
                }
            }
            Body::WriteAck { ballot } => {
                let attempt = self.current(now, claim, ballot);
                let written = attempt.and_then(|it| {
                    let (lease, until) = it.on_write_ack(acceptor, majority)?;
                    Some((lease, until, it.began))
                });
                if let Some((lease, until, began)) = written {
                    claim.attempt = None;
                    self.on_written(now, resource, claim, lease, until, began);
                }
            }
            Body::Nack { ballot, promised } => {
                self.on_nack(now, acceptor, resource, claim, ballot, promised);
            }
            Body::ReleaseAck { acquired } => {
                self.on_release_ack(acceptor, resource, claim, acquired);
            }
            Body::Report { number, state } => {
                self.on_report(now, acceptor, resource, claim, number, state);
            }
            Body::Read { .. } | Body::Write { .. } | Body::Release { .. } | Body::Query { .. } => {}
        }
    }

    /// Returns the attempt that an ack with this ballot answers, if it has not ended.
    fn current<'a>(
        &self,
        now: Time,
        claim: &'a mut Claim,
        ballot: AttemptBallot,
    ) -> Option<&'a mut Attempt> {
        let attempt = claim.attempt.as_mut()?;
        let is_over = now >= rules::attempt_end(&self.settings, attempt.began);
        (rules::answers(ballot, attempt.ballot) && !is_over).then_some(attempt)
    }

    /// Handles an attempt that no majority can ack, because too many acceptors hold another lease.
    /// `lease` is one of these leases.
    fn on_blocked(
        &mut self,
        now: Time,
        resource: &Resource,
        claim: &mut Claim,
        attempt: Attempt,
        lease: Lease,
    ) {
        if !claim.request.is_some_and(|it| it.wants_answer(now)) {
            self.abandon(now, resource, claim);
            self.wait_for_end(now, resource, claim, lease);
        } else if !self.settings.has_timers() {
            // The wait has ended meanwhile. An attempt that does not give way finds the owner.
            claim.attempt = None;
            self.begin_attempt(now, resource, claim);
        } else if let Some(lease) = attempt.taken_by(self.settings.majority()) {
            // Otherwise further answers may come, until the attempt ends.
            let reason = self.taken(now, lease);
            self.abandon(now, resource, claim);
            self.refuse(resource, claim, reason);
        }
    }

    fn taken(&self, now: Time, lease: Lease) -> AcquireRefusal {
        AcquireRefusal::Taken {
            owner: lease.owner().member,
            fence: lease.acquired.fence(),
            until: rules::told_takeable_from(&self.settings, lease, now),
        }
    }

    /// Decides what to write after a majority has answered READ (Flease §II.H, lines 3 to 12).
    fn on_read(
        &mut self,
        now: Time,
        resource: &Resource,
        claim: &mut Claim,
        highest: HighestWrite,
    ) {
        let Some(attempt) = claim.attempt else {
            return;
        };
        let until = rules::lease_end(&self.settings, attempt.began, now);
        let has_timers = self.settings.has_timers();
        let end = if has_timers {
            LeaseEnd::Left(self.settings.term)
        } else {
            LeaseEnd::At(until)
        };
        let mut lease = Lease {
            acquired: attempt.ballot,
            end,
        };
        let found = highest.lease();
        if let Some(holding) = claim.holding {
            // No other member writes a lease before this one ends. If the majority does not have it,
            // it is not renewed.
            lease.acquired = holding.acquired();
            if !has_timers && found.is_none_or(|it| it.acquired != lease.acquired) {
                claim.attempt = None;
                return;
            }
            return self.write(now, resource, claim, lease, until);
        }
        let is_free = |found: Lease| {
            let kept_until = rules::kept_until(&self.settings, found, now);
            rules::is_own(found, self.me) || rules::has_ended(kept_until, now)
        };
        // With timers, nothing is found: an acceptor acks only if no other lease blocks the attempt.
        match found.filter(|found| !is_free(*found)) {
            None => self.write(now, resource, claim, lease, until),
            Some(found) if !rules::is_valid(found.until(now), now) => {
                claim.attempt = None;
                self.wait_for_end(now, resource, claim, found);
                // The lease may still be valid by its owner's clock. The request goes on until an
                // attempt can succeed.
                if let Some(request) = &mut claim.request {
                    request.began = Some(claim.next_attempt);
                }
            }
            Some(found) if rules::writes_back() => {
                self.write(now, resource, claim, found, found.until(now));
            }
            Some(found) => {
                claim.attempt = None;
                let until = found.until(now);
                self.on_written(now, resource, claim, found, until, attempt.began);
            }
        }
    }

    /// Sends WRITE. By this member's clock, the lease is valid until `until`.
    fn write(
        &mut self,
        now: Time,
        resource: &Resource,
        claim: &mut Claim,
        lease: Lease,
        until: Time,
    ) {
        let Some(attempt) = &mut claim.attempt else {
            return;
        };
        attempt.write(lease, until, now);
        let ballot = attempt.ballot;
        self.broadcast(now, resource, claim, Body::Write { ballot, lease });
    }

    /// Plans the next attempt for the end of another member's lease, or for the end of the
    /// program's wait. An earlier attempt could not succeed.
    fn wait_for_end(&mut self, now: Time, resource: &Resource, claim: &mut Claim, lease: Lease) {
        let register = self.registers.get(resource);
        let mut next = if register.is_some_and(|it| it.has_released(lease.acquired)) {
            // Some acceptors do not know of the release yet.
            now + self.back_off(claim)
        } else {
            let from = rules::told_takeable_from(&self.settings, lease, now);
            from + self.random_below(self.settings.attempt / 8)
        };
        if let Some(request) = claim.request
            && !request.wants_answer(now)
        {
            next = next.min(request.wait_until);
        }
        claim.next_attempt = next;
    }

    /// Handles a WRITE of `lease` that a majority has accepted, in an attempt that began at `began`. By
    /// this member's clock, the lease is valid until `until`.
    fn on_written(
        &mut self,
        now: Time,
        resource: &Resource,
        claim: &mut Claim,
        lease: Lease,
        until: Time,
        began: Time,
    ) {
        claim.above = 0;
        let until = rules::owned_until(&self.settings, until, now);
        let holding = Holding::new(lease.acquired, until);
        let resource = resource.clone();
        if !rules::is_own(lease, self.me) {
            if let Some(request) = &mut claim.request {
                request.conflicts = 0;
            }
            self.wait_for_end(now, &resource, claim, lease);
            if claim.request.is_some_and(|it| it.wants_answer(now)) {
                let reason = self.taken(now, lease);
                self.refuse(&resource, claim, reason);
            }
            return;
        }
        if !rules::is_valid(until, now) {
            claim.next_attempt = now;
            return;
        }
        claim.next_attempt = began + self.settings.renew;
        let event = if claim.holding.replace(holding).is_some() {
            MemberEvent::Renewed { resource, holding }
        } else {
            claim.request = None;
            MemberEvent::Acquired { resource, holding }
        };
        self.events.push(event);
    }

    fn on_nack(
        &mut self,
        now: Time,
        acceptor: MemberId,
        resource: &Resource,
        claim: &mut Claim,
        ballot: AttemptBallot,
        promised: AttemptBallot,
    ) {
        let attempt = claim.attempt.as_mut().filter(|it| it.ballot == ballot);
        // A late copy of READ is rejected because of the WRITE of the same attempt.
        let Some(attempt) = attempt.filter(|_| promised > ballot) else {
            return;
        };
        let has_ended = attempt.on_nack(acceptor, &self.settings);
        if rules::heeds_nack() {
            claim.above = claim.above.max(promised.round);
        }
        if !has_ended {
            return;
        }
        self.abandon(now, resource, claim);
        if claim.request.is_none() {
            return self.begin_attempt(now, resource, claim);
        }
        claim.next_attempt = now + self.back_off(claim);
    }

    /// Returns a random wait before the next attempt of a request. It grows with each conflict. It is
    /// short after the first one: usually the member has missed a ballot of an earlier owner.
    fn back_off(&mut self, claim: &mut Claim) -> Duration {
        let Some(request) = &mut claim.request else {
            return Duration::ZERO;
        };
        request.conflicts += 1;
        match request.conflicts - 1 {
            0 => self.random_below(self.spread()),
            earlier => {
                let factor = 1 << (earlier - 1).min(CONFLICTS_MAX);
                self.random_below(self.settings.attempt / 16 * factor)
            }
        }
    }

    /// Handles a release that this member's acceptor has received: if the program waits for the
    /// resource, the next attempt begins soon. Members that begin at different moments do not disturb
    /// each other.
    pub(super) fn on_release(
        &mut self,
        now: Time,
        resource: &Resource,
        successor: Option<MemberId>,
    ) {
        if !self.is_waiting(resource) {
            return;
        }
        let spread = self.spread();
        let wait = match successor {
            Some(member) if member == self.me.member => Duration::ZERO,
            Some(_) => self.settings.attempt / 8 + self.random_below(spread),
            None => self.random_below(spread),
        };
        self.change_claim(resource, |_, claim| {
            claim.next_attempt = claim.next_attempt.min(now + wait);
        });
    }

    fn on_release_ack(
        &mut self,
        acceptor: MemberId,
        resource: &Resource,
        claim: &mut Claim,
        acquired: AttemptBallot,
    ) {
        let release = claim.release.as_mut();
        let Some(release) = release.filter(|it| it.acquired == acquired) else {
            return;
        };
        release.acks.add(acceptor);
        if release.acks.count() >= self.settings.majority() {
            // The release to the successor may be lost. Others do not begin before it for a while.
            if let Some(successor) = release.successor
                && !release.acks.contains(successor)
            {
                let body = Body::Release {
                    acquired,
                    successor: release.successor,
                };
                self.outbox[usize::from(successor.0)].push((resource.clone(), body));
            }
            self.end_release(resource, claim, true);
        }
    }

    /// Returns the maximum of the random time after a release at which a waiting member begins.
    fn spread(&self) -> Duration {
        (self.settings.attempt / 64).min(SPREAD_MAX)
    }

    /// Handles a WRITE that this member's acceptor has accepted: a program that waits for the resource
    /// need not ask before the end of this lease. Still it asks now and then, so that the others know
    /// that it waits.
    pub(super) fn on_owner_heard(&mut self, now: Time, resource: &Resource) {
        if !self.is_waiting(resource) {
            return;
        }
        let request = self.claims.get(resource).and_then(|it| it.request);
        if request.is_some_and(|it| it.wants_answer(now)) {
            // The next attempt asks a majority for the owner.
            return;
        }
        let register = self.registers.get(resource);
        let lease = register.and_then(|it| it.held_lease(&self.settings, now));
        // Another member may have written back a lease of an attempt that this member gave up.
        let lease = lease.filter(|it| !rules::is_own(*it, self.me));
        if let Some(lease) = lease {
            self.change_claim(resource, |member, claim| {
                member.wait_for_end(now, resource, claim, lease);
                let asked = claim.request.map_or(now, |it| it.asked);
                let again = now.max(asked + member.settings.term * TERMS_UNASKED);
                claim.next_attempt = claim.next_attempt.min(again);
            });
        }
    }

    /// Whether the program waits for a resource, and no attempt runs.
    fn is_waiting(&self, resource: &Resource) -> bool {
        let claim = self.claims.get(resource);
        claim.is_some_and(|it| it.request.is_some() && it.holding.is_none() && it.attempt.is_none())
    }

    /// Sends a release again to the acceptors that have not confirmed it.
    fn repeat_release(&mut self, claim: &mut Claim, resource: &Resource, now: Time) {
        let Some(release) = claim.release.as_mut().filter(|it| now >= it.repeat) else {
            return;
        };
        release.repeat = now + self.settings.attempt / RELEASES_PER_ATTEMPT;
        let body = Body::Release {
            acquired: release.acquired,
            successor: release.successor,
        };
        let me = self.me.member;
        for (to, messages) in (0..).map(MemberId).zip(&mut self.outbox) {
            if to != me && !release.acks.contains(to) {
                messages.push((resource.clone(), body));
            }
        }
    }

    /// Reports the result of a release.
    pub(super) fn end_release(
        &mut self,
        resource: &Resource,
        claim: &mut Claim,
        is_confirmed: bool,
    ) {
        let Some(release) = claim.release.take() else {
            return;
        };
        claim
            .holding
            .take_if(|it| it.acquired() == release.acquired);
        self.events.push(MemberEvent::Released {
            resource: resource.clone(),
            fence: release.acquired.fence(),
            ends: (!is_confirmed).then_some(release.ends),
        });
    }

    /// Does everything that is due.
    pub(super) fn on_deadline(&mut self, now: Time, resource: &Resource, claim: &mut Claim) {
        let attempt = self.settings.attempt;
        if claim.release.is_some_and(|it| now >= it.give_up) {
            self.end_release(resource, claim, false);
        }
        self.repeat_release(claim, resource, now);
        self.end_query_in_time(now, resource, claim);
        let lost = claim
            .holding
            .take_if(|it| !rules::is_valid(it.until(), now));
        if let Some(holding) = lost {
            claim.attempt = None;
            claim.next_attempt = Time::MAX;
            self.events.push(MemberEvent::Lost {
                resource: resource.clone(),
                fence: holding.fence(),
                reason: LeaseLoss::Expired,
            });
        }
        let settings = &self.settings;
        let current = claim.attempt.as_ref();
        let has_ended = current.is_some_and(|it| now >= it.ends(settings));
        let was_rejected = current.is_some_and(Attempt::was_rejected);
        if has_ended {
            self.abandon(now, resource, claim);
        }
        if claim.attempt.is_some() {
            return;
        }
        if claim.request.is_some_and(|it| it.is_over(now, attempt)) {
            return self.refuse(resource, claim, AcquireRefusal::NoMajority);
        }
        if has_ended && was_rejected && claim.request.is_some() {
            claim.next_attempt = now + self.back_off(claim);
        } else if has_ended || now >= claim.next_attempt {
            self.begin_attempt(now, resource, claim);
        }
    }

    /// Ends an attempt without success. If acceptors have timers, and the lease may be half written,
    /// it is released: otherwise it would block other attempts for a term. Nobody uses it.
    fn abandon(&mut self, now: Time, resource: &Resource, claim: &mut Claim) {
        let attempt = claim.attempt.take();
        let written = attempt.filter(|it| it.written_until().is_some());
        if let Some(attempt) = written
            && self.settings.has_timers()
            && claim.holding.is_none()
        {
            // If this member tries again, the others that wait let it go first.
            let is_waiting = claim.request.is_some_and(|it| !it.wants_answer(now));
            let successor = is_waiting.then_some(self.me.member);
            let release = Body::Release {
                acquired: attempt.ballot,
                successor,
            };
            self.broadcast(now, resource, claim, release);
        }
    }

    /// Refuses the request of the program.
    fn refuse(&mut self, resource: &Resource, claim: &mut Claim, reason: AcquireRefusal) {
        claim.attempt = None;
        claim.next_attempt = Time::MAX;
        if claim.request.take().is_some() {
            let resource = resource.clone();
            self.events.push(MemberEvent::Refused { resource, reason });
        }
    }
}
