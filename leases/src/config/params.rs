//! Durations that a configuration sets, and the rules that these durations must satisfy together.

use std::time::Duration;

use crate::time::ClockBound;

/// Durations and the drift bound of a configuration. They are replicated, so that all replicas use
/// the same values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseParams {
    /// Duration of a promise, measured by its holder from the receipt of the promise.
    pub t_lease: Duration,
    /// Maximum time between the sending of an ack and the arrival of a promise that builds on this
    /// ack. The age of the ack at the grantor is not included.
    pub t_guard: Duration,
    /// Interval at which a grantor renews its promises.
    pub renew: Duration,
    /// Time for which a replica may stay silent before it is suspected.
    pub t_grace: Duration,
    /// Maximum age of an ack on which a promise may build. If the newest ack is older than this,
    /// the grantor sends a guard again.
    pub t0_cap: Duration,
    /// Bound on the error of clock rates.
    pub clock: ClockBound,
}

/// Reason why durations are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamsError {
    /// The renewal interval or the lease duration is zero.
    #[error("the renewal interval and the lease must be longer than nothing")]
    Zero,
    /// The lease would end before its next renewal.
    #[error("the lease must be longer than the interval between its renewals")]
    LapsesBetweenRenewals,
    /// The newest ack would be too old at each renewal, so every promise would need a new guard.
    #[error("the cap on an ack's age must be longer than the interval between renewals")]
    CapBelowRenewal,
    /// A replica would be suspected between two renewals, although it answers every renewal.
    #[error("the grace must be longer than the interval between renewals")]
    GraceBelowRenewal,
    /// Clock rates may differ so much that no finite extension of the durations is sufficient.
    #[error("clock rates may differ by at most {} ppm", ClockBound::RHO_PPM_MAX)]
    Drift,
}

impl LeaseParams {
    /// Checks that the durations satisfy all rules, including the rules that compare two durations.
    /// A replica calls this function before it proposes durations.
    ///
    /// # Errors
    /// The first rule that is violated.
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

    /// Whether leases can work with these durations at all. This is a weaker test than
    /// [`check`](Self::check). The rules that it does not test are not necessary for safety, but
    /// leases may end if one of them is violated.
    pub fn is_usable(&self) -> bool {
        let pauses = !self.renew.is_zero() && !self.t_lease.is_zero();
        pauses && self.clock.rho_ppm <= ClockBound::RHO_PPM_MAX
    }

    /// Returns the restart wait: `(t_guard + t_lease + 2 rho t0_cap)(1+rho)/(1-rho)`. For this
    /// time, a restarted replica must assume that forgotten grants are still in force.
    ///
    /// # Panics
    /// If `rho` is above [`ClockBound::RHO_PPM_MAX`], which [`check`](Self::check) refuses.
    pub fn restart_wait(&self) -> Duration {
        self.clock
            .keep_from_send(self.t_lease, self.t_guard, self.t0_cap)
    }
}

impl LeaseParams {
    /// Returns the durations with which a cluster starts by default. They are the shortest
    /// durations that cause no false suspicions in a world-wide network (`results/durations`).
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
    /// Returns the durations of the paper's experiments (§5.2): lease and guard 2 s, renewal every
    /// 500 ms, grace 5 s. `rho` is 0.001.
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
