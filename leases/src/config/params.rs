//! The durations that a configuration brings, and what must hold between them.

use std::time::Duration;

use crate::time::ClockBound;

/// Durations and the drift bound of a configuration. Replicated, so that all
/// replicas count with the same ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseParams {
    /// Duration of a promise at its holder, from its receipt.
    pub t_lease: Duration,
    /// Time after an ack was sent within which the promise that builds on it may arrive.
    pub t_guard: Duration,
    /// Interval at which a grantor renews.
    pub renew: Duration,
    /// Time for which a replica may stay silent before it is suspected.
    pub t_grace: Duration,
    /// Past this age of the newest ack a grantor establishes anew.
    pub t0_cap: Duration,
    /// Maximum difference of clock rates.
    pub clock: ClockBound,
}

/// Why durations are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamsError {
    /// Renewing without pause would leave time for nothing else.
    #[error("the renewal interval and the lease must be longer than nothing")]
    Zero,
    /// The lease would lapse between any two renewals.
    #[error("the lease must be longer than the interval between its renewals")]
    LapsesBetweenRenewals,
    /// A renewal would find its base too old, and every promise needs a new guard.
    #[error("the cap on an ack's age must be longer than the interval between renewals")]
    CapBelowRenewal,
    /// A replica that answers every renewal would be suspected between two.
    #[error("the grace must be longer than the interval between renewals")]
    GraceBelowRenewal,
    /// No finite stretch makes up for such clocks.
    #[error("clock rates may differ by at most {} ppm", ClockBound::RHO_PPM_MAX)]
    Drift,
}

impl LeaseParams {
    /// Checks the durations against each other, before they are proposed.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn check(&self) -> Result<(), ParamsError> {
        if self.renew.is_zero() || self.t_lease.is_zero() {
            return Err(ParamsError::Zero);
        }
        if self.t_lease <= self.renew {
            return Err(ParamsError::LapsesBetweenRenewals);
        }
        if self.t0_cap <= self.renew {
            return Err(ParamsError::CapBelowRenewal);
        }
        if self.t_grace <= self.renew {
            return Err(ParamsError::GraceBelowRenewal);
        }
        if self.clock.rho_ppm > ClockBound::RHO_PPM_MAX {
            return Err(ParamsError::Drift);
        }
        Ok(())
    }

    /// Whether leases can be counted with these durations at all. The rules of
    /// [`check`](Self::check) that this leaves out cost leases, not safety.
    pub fn is_usable(&self) -> bool {
        let pauses = !self.renew.is_zero() && !self.t_lease.is_zero();
        pauses && self.clock.rho_ppm <= ClockBound::RHO_PPM_MAX
    }

    /// Time for which a restarted replica must assume that grants it has forgotten are still
    /// alive: `(t_guard + t_lease + 2 rho t0_cap)(1+rho)/(1-rho)`.
    ///
    /// # Panics
    /// If `rho` is above [`ClockBound::RHO_PPM_MAX`]: [`check`](Self::check) first.
    pub fn restart_wait(&self) -> Duration {
        self.clock
            .keep_from_send(self.t_lease, self.t_guard, self.t0_cap)
    }
}

impl LeaseParams {
    /// Durations that a cluster starts with, unless it is configured otherwise: as short as a
    /// world-wide network permits without false suspicion (`results/durations`).
    pub fn for_sites() -> LeaseParams {
        LeaseParams {
            t_lease: Duration::from_millis(1000),
            t_guard: Duration::from_millis(750),
            renew: Duration::from_millis(150),
            t_grace: Duration::from_millis(2000),
            t0_cap: Duration::from_millis(1200),
            clock: ClockBound { rho_ppm: 1000 },
        }
    }
}

impl Default for LeaseParams {
    /// The paper's setting (§5.2): lease and guard 2 s, renewal every 500 ms,
    /// grace 5 s; `rho` 0.001.
    fn default() -> Self {
        LeaseParams {
            t_lease: Duration::from_secs(2),
            t_guard: Duration::from_secs(2),
            renew: Duration::from_millis(500),
            t_grace: Duration::from_secs(5),
            t0_cap: Duration::from_secs(4),
            clock: ClockBound { rho_ppm: 1000 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_that_cannot_work_are_refused() {
        let good = LeaseParams::default();
        assert_eq!(good.check(), Ok(()));
        let bad = |change: fn(&mut LeaseParams)| {
            let mut params = good;
            change(&mut params);
            params.check()
        };
        assert_eq!(bad(|p| p.renew = Duration::ZERO), Err(ParamsError::Zero));
        assert_eq!(bad(|p| p.t_lease = Duration::ZERO), Err(ParamsError::Zero));
        assert_eq!(
            bad(|p| p.renew = p.t_lease),
            Err(ParamsError::LapsesBetweenRenewals)
        );
        assert_eq!(
            bad(|p| p.t0_cap = p.renew),
            Err(ParamsError::CapBelowRenewal)
        );
        assert_eq!(
            bad(|p| p.t_grace = p.renew),
            Err(ParamsError::GraceBelowRenewal)
        );
        assert_eq!(
            bad(|p| p.clock.rho_ppm = ClockBound::RHO_PPM_MAX + 1),
            Err(ParamsError::Drift)
        );
    }
}
