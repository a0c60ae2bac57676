//! Load of the clients, and the interval in which operations are measured.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::validate::check;
use super::{ExperimentError, WorkloadSpec};
use crate::topology::Topology;

/// Longest warm-up or measured interval, in s: a week.
const SECONDS_MAX: f64 = 604_800.0;
/// Maximum rate of a site, in operations a second.
const RATE_MAX: f64 = 1e6;
/// Maximum number of operations that one site may have in flight.
const OUTSTANDING_MAX: u32 = 1_000_000;

/// Rate of an open loop, in operations a second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a number, or one for each site, as in { JP = 50, CA = 200 }, is expected"
)]
pub enum RequestRate {
    /// Every site has the same rate.
    Equal(f64),
    /// Rate of each site, by the name of the site. Every site must be named.
    Sites(BTreeMap<String, f64>),
}

impl RequestRate {
    /// Returns the rate at a site, in operations a second; 0 if the site is not named.
    pub fn at(&self, site: &str) -> f64 {
        match self {
            RequestRate::Equal(rate) => *rate,
            RequestRate::Sites(rates) => rates.get(site).copied().unwrap_or(0.0),
        }
    }
}

/// Interval in which operations are measured. An operation is measured if it *begins* in the
/// interval. The interval is the same for all sites.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MeasurementWindow {
    /// The interval begins when the slowest client has made its warm-up requests. The interval ends
    /// when the slowest client has made all its requests. Until that time, the other clients
    /// continue to send requests.
    Counts {
        /// Number of warm-up requests of each client. A client makes these requests before the
        /// measured interval.
        warmup: u64,
        /// Number of requests of each client, including the client's warm-up requests.
        requests: u64,
    },
    /// The beginning and the duration of the interval are given in seconds.
    Seconds {
        /// Time from the first request of a client to the beginning of the measured interval, in s.
        warmup_s: f64,
        /// Duration of the measured interval, in s.
        seconds: f64,
    },
}

impl WorkloadSpec {
    /// Returns the interval in which operations are measured. In an open loop, this function
    /// converts a number of requests into a duration. In this time, each client of the site with
    /// the lowest rate sends this many requests.
    pub fn window(&self) -> MeasurementWindow {
        if let Some(seconds) = self.seconds {
            let warmup_s = self.warmup_s.unwrap_or(0.0);
            return MeasurementWindow::Seconds { warmup_s, seconds };
        }
        let Some(slowest) = self.lowest_rate() else {
            return MeasurementWindow::Counts {
                warmup: self.warmup,
                requests: self.requests,
            };
        };
        let takes_s = |requests: u64| requests as f64 * f64::from(self.clients) / slowest;
        MeasurementWindow::Seconds {
            warmup_s: takes_s(self.warmup),
            seconds: takes_s(self.requests - self.warmup),
        }
    }

    /// Returns the lowest rate among the sites that send requests; `None` in a closed loop.
    fn lowest_rate(&self) -> Option<f64> {
        match self.rate.as_ref()? {
            RequestRate::Equal(rate) => Some(*rate),
            RequestRate::Sites(rates) => {
                let asking = rates.values().copied().filter(|rate| *rate > 0.0);
                asking.min_by(f64::total_cmp)
            }
        }
    }

    /// Describes the load at each site, and the interval in which operations are measured.
    pub fn load_in_words(&self) -> String {
        let clients = self.clients;
        let asked = match &self.rate {
            None => format!("{clients} clients in a closed loop at each site"),
            Some(RequestRate::Equal(rate)) => format!("{rate} operations a second at each site"),
            Some(RequestRate::Sites(rates)) => {
                let each = rates.iter().map(|(site, rate)| format!("{site} {rate}"));
                let each: Vec<String> = each.collect();
                format!("operations a second: {}", each.join(", "))
            }
        };
        let measured = match self.window() {
            MeasurementWindow::Counts { warmup, requests } => format!(
                "measured from when the slowest client has made {warmup} requests until the \
                 slowest has made {requests}"
            ),
            MeasurementWindow::Seconds { warmup_s, seconds } => {
                format!("measured for {seconds} s after {warmup_s} s")
            }
        };
        format!("{asked}, {measured}")
    }

    pub(super) fn validate_load(&self, topology: &Topology) -> Result<(), ExperimentError> {
        self.validate_window()?;
        let good = (1..=OUTSTANDING_MAX).contains(&self.outstanding);
        check(good, "workload.outstanding", self.outstanding, || {
            format!("1 to {OUTSTANDING_MAX} operations of a site may be in flight")
        })?;
        match &self.rate {
            None => Ok(()),
            Some(RequestRate::Equal(rate)) => rate_of("workload.rate", *rate, 0.001),
            Some(RequestRate::Sites(rates)) => rates_of(rates, topology),
        }
    }

    fn validate_window(&self) -> Result<(), ExperimentError> {
        if let Some(seconds) = self.seconds {
            let counts = self.requests > 0 || self.warmup > 0;
            check(!counts, "workload.seconds", seconds, || {
                "requests and warmup say already when it ends: give requests and warmup \
                 (operations of a client), or seconds and warmup_s, not both"
                    .into()
            })?;
            let good = seconds > 0.0 && seconds <= SECONDS_MAX;
            check(good, "workload.seconds", seconds, || {
                "more than 0 s and at most a week (604800 s) are accepted".into()
            })?;
            let warmup_s = self.warmup_s.unwrap_or(0.0);
            let good = (0.0..=SECONDS_MAX).contains(&warmup_s);
            return check(good, "workload.warmup_s", warmup_s, || {
                "0 s to a week (604800 s) are accepted".into()
            });
        }
        if let Some(warmup_s) = self.warmup_s {
            return check(false, "workload.warmup_s", warmup_s, || {
                "it goes with seconds: say for how many seconds to measure, or give warmup as a \
                 number of operations of a client"
                    .into()
            });
        }
        check(
            self.requests > 0,
            "workload.requests",
            self.requests,
            || "at least 1 is needed, or say for how many seconds to measure".into(),
        )?;
        let measured = self.warmup < self.requests;
        check(measured, "workload.warmup", self.warmup, || {
            format!(
                "nothing would be measured, as each client makes {} requests in total; raise requests or lower warmup",
                self.requests
            )
        })
    }
}

fn rate_of(field: &str, rate: f64, least: f64) -> Result<(), ExperimentError> {
    check((least..=RATE_MAX).contains(&rate), field, rate, || {
        format!("{least} to {RATE_MAX} operations a second are accepted")
    })
}

fn rates_of(rates: &BTreeMap<String, f64>, topology: &Topology) -> Result<(), ExperimentError> {
    let names = topology.names();
    for (site, rate) in rates {
        let field = format!("workload.rate.{site}");
        check(names.contains(&site.as_str()), &field, rate, || {
            format!("no such site; the sites are {}", names.join(", "))
        })?;
        let silent = *rate == 0.0;
        rate_of(&field, if silent { 1.0 } else { *rate }, 0.001)?;
    }
    let missing = names.iter().find(|site| !rates.contains_key(**site));
    check(
        missing.is_none(),
        "workload.rate",
        format!("{rates:?}"),
        || {
            format!(
                "{} is missing: name every site (0: it asks nothing), or give one number for all",
                missing.unwrap_or(&"")
            )
        },
    )?;
    let asks = rates.values().any(|rate| *rate > 0.0);
    check(asks, "workload.rate", format!("{rates:?}"), || {
        "at least one site must ask something".into()
    })
}
