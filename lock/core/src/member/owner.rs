//! Queries for the owner of a resource. They change nothing.

use leasehold_leases::Time;

use super::{KnownOwner, MemberEvent, MemberMachine};
use crate::ballot::MemberId;
use crate::claim::{Claim, Holding, OwnerQuery};
use crate::message::{Body, Lease, LeaseEnd, ReportedState, Resource};
use crate::register::Register;
use crate::rules;

impl MemberMachine {
    /// Begins a query. Members that are still silent know nothing.
    pub(super) fn find_owner(&mut self, now: Time, resource: Resource) {
        if let Some(holding) = self.holding(&resource, now) {
            let owner = KnownOwner::Is {
                member: self.me.member,
                fence: holding.fence(),
                until: holding.until(),
            };
            return self
                .events
                .push(MemberEvent::OwnerFound { resource, owner });
        }
        if self.is_clock_wrong || now <= self.silent_until {
            let owner = KnownOwner::Unknown;
            return self
                .events
                .push(MemberEvent::OwnerFound { resource, owner });
        }
        self.change_claim(&resource, |member, claim| {
            let number = member.random();
            claim.query = Some(OwnerQuery {
                number,
                sent: now,
                answered: Default::default(),
                free: Default::default(),
            });
            let own = member.state(now, &resource, None);
            let me = member.me.member;
            member.broadcast(now, &resource, claim, Body::Query { number });
            member.on_report(now, me, &resource, claim, number, own);
        });
    }

    /// Answers the query of another member.
    pub(super) fn report(&self, now: Time, resource: &Resource, number: u64) -> Body {
        let holding = self.holding(resource, now);
        let state = self.state(now, resource, holding);
        Body::Report { number, state }
    }

    /// Returns what this member knows. `holding` is its own lease, if it is valid.
    fn state(&self, now: Time, resource: &Resource, holding: Option<Holding>) -> ReportedState {
        let settings = &self.settings;
        if let Some(holding) = holding {
            return ReportedState::Mine(Lease {
                acquired: holding.acquired(),
                end: if settings.has_timers() {
                    LeaseEnd::Left(holding.until().since(now))
                } else {
                    LeaseEnd::At(holding.until())
                },
            });
        }
        let unused = Register::default();
        let register = self.registers.get(resource).unwrap_or(&unused);
        if register.may_report_free(settings, self.silent_until, now) {
            ReportedState::Free
        } else {
            ReportedState::Held
        }
    }

    /// Takes the answer of a member.
    pub(super) fn on_report(
        &mut self,
        now: Time,
        from: MemberId,
        resource: &Resource,
        claim: &mut Claim,
        number: u64,
        state: ReportedState,
    ) {
        let Some(query) = claim.query.as_mut().filter(|it| it.number == number) else {
            return;
        };
        query.answered.add(from);
        let owner = match state {
            ReportedState::Mine(lease) => Some(KnownOwner::Is {
                member: from,
                fence: lease.acquired.fence(),
                until: rules::ends_by(&self.settings, lease, now),
            }),
            ReportedState::Held => None,
            ReportedState::Free => {
                query.free.add(from);
                let is_free = query.free.count() >= self.settings.majority();
                is_free.then_some(KnownOwner::Free)
            }
        };
        let have_all_answered = query.answered.count() >= self.settings.members.into();
        let owner = owner.or_else(|| have_all_answered.then_some(KnownOwner::Unknown));
        // An answer after the end of the query might describe the time after it.
        if now >= query.sent + self.settings.attempt {
            return;
        }
        if let Some(owner) = owner {
            self.end_query(resource, claim, owner);
        }
    }

    /// Ends a query to which too few members have answered in time.
    pub(super) fn end_query_in_time(&mut self, now: Time, resource: &Resource, claim: &mut Claim) {
        let query = claim.query.as_ref();
        if query.is_some_and(|it| now >= it.sent + self.settings.attempt) {
            self.end_query(resource, claim, KnownOwner::Unknown);
        }
    }

    fn end_query(&mut self, resource: &Resource, claim: &mut Claim, owner: KnownOwner) {
        claim.query = None;
        let resource = resource.clone();
        self.events
            .push(MemberEvent::OwnerFound { resource, owner });
    }
}
