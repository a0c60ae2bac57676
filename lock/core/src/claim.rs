//! The local interest in a resource: a request to acquire it, the lease that this member holds, or
//! a release that is not confirmed yet.

use std::time::Duration;

use leasehold_leases::Time;

use crate::attempt::{Attempt, MemberSet};
use crate::ballot::{AttemptBallot, Fence, MemberId};
use crate::message::Body;
use crate::settings::GroupSettings;

/// A lease that this member holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holding {
    acquired: AttemptBallot,
    until: Time,
}

impl Holding {
    pub(crate) fn new(acquired: AttemptBallot, until: Time) -> Holding {
        Holding { acquired, until }
    }

    /// Returns the ballot of the attempt that acquired the lease.
    pub(crate) fn acquired(self) -> AttemptBallot {
        self.acquired
    }

    /// Returns the fence token. A renewal does not change it.
    pub fn fence(self) -> Fence {
        self.acquired.fence()
    }

    /// Returns the last moment at which the lease is valid, by this member's clock.
    pub fn until(self) -> Time {
        self.until
    }
}

/// A request to acquire the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AcquireRequest {
    /// Moment until which the member waits if the resource has an owner.
    pub wait_until: Time,
    /// Moment from which the time limit of the request counts; `None` before the first attempt. It is
    /// the beginning of the first attempt. If a lease was found that its owner may still use, it is
    /// the next attempt.
    pub began: Option<Time>,
    /// Moment before the newest READ; [`Time::ZERO`] before the first one.
    pub asked: Time,
    /// Number of attempts that a higher ballot has ended, since the request began or since another
    /// owner was last found.
    pub conflicts: u32,
}

impl AcquireRequest {
    /// Creates a request for which no attempt has begun.
    pub fn new(wait_until: Time) -> AcquireRequest {
        AcquireRequest {
            wait_until,
            began: None,
            asked: Time::ZERO,
            conflicts: 0,
        }
    }

    /// Whether the program expects an answer now. Until then, attempts give way to an owner.
    pub fn wants_answer(self, now: Time) -> bool {
        now >= self.wait_until
    }

    /// Returns the moment from which the request is refused if it has no other result. An attempt
    /// that is still running then may end it otherwise.
    fn ends(self, attempt: Duration) -> Time {
        let began = self.began.unwrap_or(Time::MAX);
        began.max(self.wait_until) + attempt
    }

    /// Whether the request is refused if it has no lease by now.
    pub fn is_over(self, now: Time, attempt: Duration) -> bool {
        now >= self.ends(attempt)
    }
}

/// A release that was sent, and that no majority has confirmed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Release {
    /// Ballot of the lease.
    pub acquired: AttemptBallot,
    /// Moment from which other members can take the resource if the release is lost.
    pub ends: Time,
    /// Member that should own the resource next.
    pub successor: Option<MemberId>,
    /// Moment at which the member stops waiting for acks.
    pub give_up: Time,
    /// Moment at which the release is sent again to the acceptors that have not confirmed it.
    pub repeat: Time,
    /// Moment before the release was sent.
    pub sent: Time,
    /// Acceptors that have confirmed.
    pub acks: MemberSet,
}

/// A query for the owner that has no result yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OwnerQuery {
    /// Number of the query.
    pub number: u64,
    /// Moment before the query was sent.
    pub sent: Time,
    /// Members that have answered.
    pub answered: MemberSet,
    /// Acceptors that have reported the resource as free.
    pub free: MemberSet,
}

/// The local interest in one resource.
#[derive(Clone, Debug, Hash)]
pub struct Claim {
    /// Request of the program that has no result yet.
    pub request: Option<AcquireRequest>,
    /// The lease that this member holds.
    pub holding: Option<Holding>,
    /// Current attempt.
    pub attempt: Option<Attempt>,
    /// Highest round that an acceptor named when it rejected an attempt; 0 if there is none.
    pub above: u64,
    /// Moment at which the next attempt begins; [`Time::MAX`] if none is planned.
    pub next_attempt: Time,
    /// Release that is not confirmed yet.
    pub release: Option<Release>,
    /// Query for the owner.
    pub query: Option<OwnerQuery>,
    /// Deadline in the agenda.
    pub due: Time,
}

impl Default for Claim {
    fn default() -> Claim {
        Claim {
            request: None,
            holding: None,
            attempt: None,
            above: 0,
            next_attempt: Time::MAX,
            release: None,
            query: None,
            due: Time::MAX,
        }
    }
}

impl Claim {
    /// Whether nothing is left to do.
    pub fn is_idle(&self) -> bool {
        self.request.is_none()
            && self.holding.is_none()
            && self.attempt.is_none()
            && self.release.is_none()
            && self.query.is_none()
    }

    /// Returns a moment shortly before this member sent the request that `answer` answers; `None` if
    /// it is unknown.
    pub fn asked(&self, answer: Body) -> Option<Time> {
        let attempt = |ballot| self.attempt.filter(|it| it.ballot == ballot);
        match answer {
            Body::ReadAck { ballot, .. }
            | Body::Taken { ballot, .. }
            | Body::Nack { ballot, .. } => Some(attempt(ballot)?.began),
            Body::WriteAck { ballot } => Some(attempt(ballot)?.sent),
            Body::ReleaseAck { acquired } => {
                let release = self.release.filter(|it| it.acquired == acquired);
                Some(release?.sent)
            }
            Body::Report { number, .. } => {
                let query = self.query.filter(|it| it.number == number);
                Some(query?.sent)
            }
            Body::Read { .. } | Body::Write { .. } | Body::Release { .. } | Body::Query { .. } => {
                None
            }
        }
    }

    /// Returns the time of the next deadline.
    pub fn deadline(&self, settings: &GroupSettings) -> Time {
        let mut due = self.next_attempt;
        match (&self.attempt, self.request) {
            (Some(current), _) => due = due.min(current.ends(settings)),
            (None, Some(request)) => due = due.min(request.ends(settings.attempt)),
            (None, None) => {}
        }
        if let Some(holding) = self.holding {
            due = due.min(holding.until() + Duration::from_nanos(1));
        }
        if let Some(release) = &self.release {
            due = due.min(release.give_up).min(release.repeat);
        }
        if let Some(query) = &self.query {
            due = due.min(query.sent + settings.attempt);
        }
        due
    }
}
