//! Changes of leases that an operator makes while the cluster runs, and their results.

use std::time::Duration;

use leasehold_leases::{ConfigId, KeyRange, LeaseParams, StrategySpec};

/// Past so many renewals without an ack a grantor establishes again.
pub const RENEWALS_PER_ACK: u32 = 8;

/// Changes that an operator wants. A setting that is left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LeaseSet {
    /// Other strategies, one range after the other.
    pub strategies: Vec<(KeyRange, StrategySpec)>,
    /// Other durations, of all keys.
    pub durations: Durations,
    /// Durations above [`Durations::LONG`] are meant.
    pub force: bool,
}

/// Durations; those that are left out stay as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Durations {
    /// See [`LeaseParams::t_lease`].
    pub t_lease: Option<Duration>,
    /// See [`LeaseParams::t_guard`].
    pub t_guard: Option<Duration>,
    /// See [`LeaseParams::renew`]. The cap on the age of an ack follows it.
    pub renew: Option<Duration>,
    /// See [`LeaseParams::t_grace`].
    pub t_grace: Option<Duration>,
}

impl Durations {
    /// Durations above this are refused unless they are forced: after a restart a replica
    /// waits for the longest that ever was.
    pub const LONG: Duration = Duration::from_secs(60);

    /// Durations above this are never in force, and are believed of no peer. A lease of years
    /// would be waited for after every restart.
    pub const MAX: Duration = Duration::from_secs(24 * 3600);

    /// The same for the age of an ack, which follows the interval between renewals.
    pub const T0_MAX: Duration = Duration::from_secs(24 * 3600 * RENEWALS_PER_ACK as u64);

    /// The shortest interval between renewals that an operator may set.
    pub const RENEW_MIN: Duration = Duration::from_millis(1);

    /// All that `params` says.
    pub fn of(params: &LeaseParams) -> Durations {
        Durations {
            t_lease: Some(params.t_lease),
            t_guard: Some(params.t_guard),
            renew: Some(params.renew),
            t_grace: Some(params.t_grace),
        }
    }

    /// Whether none is longer than may ever be.
    pub fn are_sane(&self) -> bool {
        let spans = [self.t_lease, self.t_guard, self.renew, self.t_grace];
        spans
            .into_iter()
            .flatten()
            .all(|span| span <= Durations::MAX)
    }

    /// `before`, with these durations.
    pub fn in_place(&self, before: &LeaseParams) -> LeaseParams {
        LeaseParams {
            t_lease: self.t_lease.unwrap_or(before.t_lease),
            t_guard: self.t_guard.unwrap_or(before.t_guard),
            renew: self.renew.unwrap_or(before.renew),
            t_grace: self.t_grace.unwrap_or(before.t_grace),
            t0_cap: self
                .renew
                .map_or(before.t0_cap, |renew| renew * RENEWALS_PER_ACK),
            clock: before.clock,
        }
    }
}

/// Result of an operator's request.
pub type LeaseAnswer = Result<InForce, Refusal>;

/// Why a request is not in force.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// It can never be: the reason, and what would do.
    Invalid(String),
    /// It cannot be now, and may be soon, if it is asked for again: the reason.
    Busy(String),
}

impl Refusal {
    /// The reason.
    pub fn reason(&self) -> &str {
        let (Refusal::Invalid(reason) | Refusal::Busy(reason)) = self;
        reason
    }
}

/// A request is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InForce {
    /// As of this configuration.
    pub config: ConfigId,
    /// It was before it was asked for.
    pub already: bool,
}
