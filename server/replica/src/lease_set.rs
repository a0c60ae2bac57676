//! Changes of leases that an operator makes while the cluster runs, and their results.

use std::time::Duration;

use leasehold_leases::{ConfigId, KeyRange, LeaseParams, StrategySpec};

/// Maximum number of renewals that build on one ack. After this many renewals without a newer ack,
/// a grantor must establish the lease anew instead of renewing it.
pub const RENEWALS_PER_ACK: u32 = 8;

/// Changes that an operator wants. An omitted setting stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LeaseSet {
    /// New strategies for ranges of keys, in the order in which they are applied.
    pub strategies: Vec<(KeyRange, StrategySpec)>,
    /// New durations. They apply to all keys.
    pub durations: Durations,
    /// Whether durations above [`Durations::LONG`] are allowed.
    pub force: bool,
}

/// Durations of leases. A duration that is omitted (`None`) stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Durations {
    /// New value of [`LeaseParams::t_lease`].
    pub t_lease: Option<Duration>,
    /// New value of [`LeaseParams::t_guard`].
    pub t_guard: Option<Duration>,
    /// New value of [`LeaseParams::renew`]. The cap on the age of an ack is set to a multiple of
    /// this duration.
    pub renew: Option<Duration>,
    /// New value of [`LeaseParams::t_grace`].
    pub t_grace: Option<Duration>,
}

impl Durations {
    /// Maximum duration that an operator can set without `force`. Longer durations are a risk,
    /// because a replica waits after a restart for the longest duration that was ever in force.
    pub const LONG: Duration = Duration::from_secs(60);

    /// Maximum duration. Longer durations are never put in force, and are not believed if a peer
    /// states them. If a lease could last for years, replicas would wait for years after a restart.
    pub const MAX: Duration = Duration::from_secs(24 * 3600);

    /// Largest value that is allowed for the cap on the age of an ack (t0_cap). The cap is a
    /// multiple of the interval between renewals.
    pub const T0_MAX: Duration = Duration::from_secs(24 * 3600 * RENEWALS_PER_ACK as u64);

    /// Shortest interval between renewals that an operator may set.
    pub const RENEW_MIN: Duration = Duration::from_millis(1);

    /// Returns all durations of `params`.
    pub fn of(params: &LeaseParams) -> Durations {
        Durations {
            t_lease: Some(params.t_lease),
            t_guard: Some(params.t_guard),
            renew: Some(params.renew),
            t_grace: Some(params.t_grace),
        }
    }

    /// Whether all durations are at most [`Durations::MAX`].
    pub fn are_sane(&self) -> bool {
        let spans = [self.t_lease, self.t_guard, self.renew, self.t_grace];
        spans
            .into_iter()
            .flatten()
            .all(|span| span <= Durations::MAX)
    }

    /// Returns a copy of `before` in which these durations replace the old ones.
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

/// Result of an operator's request to change leases.
pub type LeaseAnswer = Result<InForce, Refusal>;

/// Reason why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The request can never be put in force. The text contains the reason, and a request that
    /// would be accepted.
    Invalid(String),
    /// The request cannot be put in force now, but may be accepted if it is repeated soon. The text
    /// contains the reason.
    Busy(String),
}

impl Refusal {
    /// Returns the reason.
    pub fn reason(&self) -> &str {
        let (Refusal::Invalid(reason) | Refusal::Busy(reason)) = self;
        reason
    }
}

/// Answer to a request to change leases. The requested leases are now in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InForce {
    /// Configuration under which the request is in force.
    pub config: ConfigId,
    /// Whether the requested settings were in force already before the request.
    pub already: bool,
}
