//! Lease settings, in the one form that experiments, overrides and `cluster.toml` share.

use std::time::Duration;

use leases::{ClockBound, LeaseParams, Unlisted};
use serde::{Deserialize, Serialize};

use super::ExperimentError;
use super::validate::check;

/// Lease durations (in ms) and policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Lease {
    /// How long a promise lasts.
    pub t_lease_ms: u64,
    /// How late a promise may arrive and still count, after its guard was acknowledged.
    pub t_guard_ms: u64,
    /// How often promises are renewed.
    pub renew_ms: u64,
    /// How often holders are chosen anew.
    pub reconfigure_ms: u64,
    /// How long a replica may be silent before it is suspected.
    pub grace_ms: u64,
    /// By how much clock rates may differ: 0.001 is one part in a thousand.
    pub rho: f64,
    /// Who holds keys that nobody has read yet.
    #[serde(with = "UnlistedName")]
    pub unlisted: Unlisted,
}

impl Default for Lease {
    fn default() -> Lease {
        Lease {
            t_lease_ms: 2_000,
            t_guard_ms: 2_000,
            renew_ms: 500,
            reconfigure_ms: 10_000,
            grace_ms: 5_000,
            rho: 0.001,
            unlisted: Unlisted::Nearest,
        }
    }
}

impl Lease {
    /// The durations, as replicas are told them.
    pub fn params(&self) -> LeaseParams {
        let ms = Duration::from_millis;
        LeaseParams {
            t_lease: ms(self.t_lease_ms),
            t_guard: ms(self.t_guard_ms),
            renew: ms(self.renew_ms),
            t_grace: ms(self.grace_ms),
            t0_cap: ms(self.t_lease_ms + self.t_guard_ms),
            clock: ClockBound {
                rho_ppm: (self.rho * 1e6).round() as u32,
            },
        }
    }

    pub(super) fn validate(&self) -> Result<(), ExperimentError> {
        for (field, value) in [
            ("lease.t_lease_ms", self.t_lease_ms),
            ("lease.t_guard_ms", self.t_guard_ms),
            ("lease.renew_ms", self.renew_ms),
            ("lease.reconfigure_ms", self.reconfigure_ms),
            ("lease.grace_ms", self.grace_ms),
        ] {
            check((1..=3_600_000).contains(&value), field, value, || {
                "1 ms to 3600000 ms (an hour) are accepted".into()
            })?;
        }
        let renewed = self.renew_ms < self.t_lease_ms;
        check(renewed, "lease.renew_ms", self.renew_ms, || {
            format!(
                "leases of {} ms would lapse before they are renewed; choose less, a quarter is usual",
                self.t_lease_ms
            )
        })?;
        let bounded = (0.0..=0.1).contains(&self.rho);
        check(bounded, "lease.rho", self.rho, || {
            "0 to 0.1 are accepted (0.001 is one part in a thousand)".into()
        })
    }
}

/// [`Unlisted`] by the names that files and overrides use.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Unlisted", rename_all = "lowercase")]
enum UnlistedName {
    Nearest,
    Leader,
}
