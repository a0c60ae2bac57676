//! A workload that changes over time: two sites repeatedly exchange their popular keys.

use serde::{Deserialize, Serialize};

use super::validate::check;
use super::{ExperimentError, MeasurementWindow, WorkloadSpec};
use crate::topology::Topology;

/// Two sites that repeatedly exchange their popular keys. After an exchange, the keys that were
/// popular at one site are popular at the other site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeySwap {
    /// Names of the two sites.
    pub sites: [String; 2],
    /// Time between two exchanges, in s. The first exchange occurs when this time has passed since
    /// the beginning of the measured interval.
    pub every_s: f64,
}

impl KeySwap {
    /// Returns the site with which `site` exchanges its popular keys; `None` if `site` is not one
    /// of the two.
    pub(crate) fn partner(&self, site: usize, topology: &Topology) -> Option<usize> {
        let [a, b] = [&self.sites[0], &self.sites[1]].map(|name| topology.index(name));
        match Some(site) {
            one if one == a => b,
            one if one == b => a,
            _ => None,
        }
    }

    /// Returns the times of the exchanges in a measured interval of this length, in s since the
    /// beginning of the interval.
    pub(crate) fn times_s(&self, length_s: f64) -> Vec<f64> {
        let times = (1..).map(|number| f64::from(number) * self.every_s);
        times.take_while(|at_s| *at_s < length_s).collect()
    }
}

impl WorkloadSpec {
    pub(super) fn validate_swap(&self, topology: &Topology) -> Result<(), ExperimentError> {
        let Some(swap) = &self.swap else {
            return Ok(());
        };
        let [a, b] = [&swap.sites[0], &swap.sites[1]].map(|name| topology.index(name));
        let two = a.is_some() && b.is_some() && a != b;
        let found = swap.sites.join(", ");
        check(two, "workload.swap.sites", found, || {
            let names = topology.names().join(", ");
            format!("name two different sites, of these: {names}")
        })?;
        let MeasurementWindow::Seconds { seconds, .. } = self.window() else {
            return check(false, "workload.swap.every_s", swap.every_s, || {
                "how long is measured must be known: give seconds and warmup_s".into()
            });
        };
        let good = swap.every_s >= 1.0 && swap.every_s < seconds;
        check(good, "workload.swap.every_s", swap.every_s, || {
            format!("at least 1 s, and less than the {seconds} s that are measured, are accepted")
        })
    }
}
