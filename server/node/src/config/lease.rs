//! The table `[lease]`. It has the same form in configurations of clusters and of experiments.

use std::time::Duration;

use leasehold_leases::{ClockBound, CostSettings, LeaseParams, UnlistedHolders};
use serde::{Deserialize, Serialize};

use leasehold_replica::lease_set::RENEWALS_PER_ACK;
use leasehold_replica::settings::Timing;

/// The section `[lease]` of the file. It contains the strategy and the durations in ms. The
/// strategy decides which replicas may read locally. An omitted duration has its default value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LeaseSection {
    /// Name of the strategy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    /// Duration of a promise in ms.
    pub t_lease_ms: u64,
    /// Guard time in ms. A promise is valid only if it arrives within this time after its guard was
    /// acknowledged.
    pub t_guard_ms: u64,
    /// Interval in ms between renewals of promises.
    pub renew_ms: u64,
    /// Interval in ms at which the lease holders are chosen again.
    pub reconfigure_ms: u64,
    /// Duration in ms after which a silent replica is suspected to have failed.
    pub grace_ms: u64,
    /// Bound on the rate error of each clock: the rate differs from that of true time by at most
    /// this fraction. 0.001 is one part in a thousand.
    pub rho: f64,
    /// Lease holders of keys that have not been read yet, for the strategy `quorum`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unlisted: Option<UnlistedName>,
    /// Settings of the strategy `cost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostSection>,
    /// Key ranges that have their own strategies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub range: Vec<RangeSection>,
}

/// A range of keys, and the replicas that may read its keys locally. If `strategy` is omitted, one
/// of the fields `holders`, `unlisted` and `cost` determines the strategy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RangeSection {
    /// First key of the range.
    pub from: String,
    /// First key after the range. If this field is omitted, the range ends at the first key of the
    /// next range. The last range then has no end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Name of the strategy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    /// Names of the nodes that hold leases on the keys, for the strategy `fixed`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<String>,
    /// Lease holders of keys that have not been read yet, for the strategy `quorum`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unlisted: Option<UnlistedName>,
    /// Settings of the strategy `cost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostSection>,
}

/// Settings of the strategy `cost`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CostSection {
    /// Weight of reads relative to writes, from 0 to 1. At 0.5 reads and writes have the same
    /// weight.
    pub read_weight: f64,
    /// Minimum number of replicas that hold no lease on a key. If any of these replicas fail,
    /// writes to the key need not wait for a lease to end.
    pub spare: u8,
    /// Whether demand is estimated for keys that a site requests rarely or never. The estimate uses
    /// all keys that the site has requested. If false, past counts are used as the future demand.
    /// Experiments use this setting to show the benefit of the estimate.
    pub prior: bool,
}

impl Default for CostSection {
    fn default() -> CostSection {
        let settings = CostSettings::default();
        CostSection {
            read_weight: settings.read_weight(),
            spare: settings.spare,
            prior: settings.prior,
        }
    }
}

impl CostSection {
    /// Returns the settings of the strategy; `None` if the weight is below 0 or above 1.
    pub fn settings(self) -> Option<CostSettings> {
        CostSettings::new(self.read_weight, self.spare, self.prior)
    }
}

/// Name of an [`UnlistedHolders`] in a configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnlistedName {
    /// The name of [`UnlistedHolders::Nearest`].
    #[default]
    Nearest,
    /// The name of [`UnlistedHolders::Leader`].
    Leader,
}

impl UnlistedName {
    /// Returns the name as it is written in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            UnlistedName::Nearest => "nearest",
            UnlistedName::Leader => "leader",
        }
    }
}

impl From<UnlistedName> for UnlistedHolders {
    fn from(name: UnlistedName) -> UnlistedHolders {
        match name {
            UnlistedName::Nearest => UnlistedHolders::Nearest,
            UnlistedName::Leader => UnlistedHolders::Leader,
        }
    }
}

impl Default for LeaseSection {
    fn default() -> LeaseSection {
        let ms = |duration: Duration| duration.as_millis() as u64;
        let params = LeaseParams::for_sites();
        LeaseSection {
            strategy: None,
            t_lease_ms: ms(params.t_lease),
            t_guard_ms: ms(params.t_guard),
            renew_ms: ms(params.renew),
            reconfigure_ms: ms(Timing::default().reconfigure),
            grace_ms: ms(params.t_grace),
            rho: f64::from(params.clock.rho_ppm) / 1e6,
            unlisted: None,
            cost: None,
            range: Vec::new(),
        }
    }
}

impl LeaseSection {
    /// Returns the lease durations for the replicas. The durations are not checked here.
    pub fn params(&self) -> LeaseParams {
        let ms = Duration::from_millis;
        LeaseParams {
            t_lease: ms(self.t_lease_ms),
            t_guard: ms(self.t_guard_ms),
            renew: ms(self.renew_ms),
            t_grace: ms(self.grace_ms),
            t0_cap: ms(self.renew_ms) * RENEWALS_PER_ACK,
            clock: ClockBound {
                // Rounded up: the bound may be too wide, but never too narrow.
                rho_ppm: (self.rho * 1e6).ceil() as u32,
            },
        }
    }

    /// Returns the interval at which the lease holders are chosen again.
    pub fn reconfigure(&self) -> Duration {
        Duration::from_millis(self.reconfigure_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_what_clusters_start_with() {
        let default = LeaseSection::default();
        assert_eq!(default.params(), LeaseParams::for_sites());
        assert_eq!(default.reconfigure(), Timing::default().reconfigure);
        assert_eq!(
            UnlistedHolders::from(UnlistedName::default()),
            UnlistedHolders::default()
        );
    }
}
