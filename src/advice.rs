//! The tables of `lease advise` and `exp advise`.

use leasehold_leases::ReplicaId;
use leasehold_leases::advice::{Forecast, HolderPlan};
use serde_json::{Value, json};

use crate::terminal::say;

/// Additional information for the tables. The forecasts do not contain this information.
pub struct AdviceContext<'a> {
    /// Names of the replicas.
    pub names: &'a [String],
    /// Plan and leader that are in force now. Tables mark the line with this plan and this leader.
    /// If the field is `None`, tables mark no line.
    pub now: Option<(HolderPlan, ReplicaId)>,
    /// Time, in seconds, for which a write waits if a holder has failed.
    pub stall_s: f64,
}

impl AdviceContext<'_> {
    /// Returns the name of a replica.
    pub fn name(&self, replica: ReplicaId) -> &str {
        self.names.get(replica.index()).map_or("?", String::as_str)
    }

    pub fn is_now(&self, forecast: &Forecast) -> bool {
        self.now == Some((forecast.plan, forecast.leader))
    }

    /// Prints a table with a line for each forecast, in the given order.
    pub fn table(&self, forecasts: &[&Forecast]) {
        say!(
            "  {:8} {:>7} {:>8} {:>8} {:>8} {:>7} {:>8}  worst stall of writes",
            "strategy",
            "leader",
            "mean ms",
            "read ms",
            "write ms",
            "local",
            "minimum"
        );
        for forecast in forecasts {
            let mark = if self.is_now(forecast) { '*' } else { ' ' };
            say!(
                "{mark} {:8} {:>7} {:>8.1} {:>8.1} {:>8.1} {:>6.1}% {:>7.1}%  {}",
                forecast.plan.name(),
                self.name(forecast.leader),
                forecast.mean_ms,
                forecast.read_ms,
                forecast.write_ms,
                forecast.local * 100.0,
                forecast.at_minimum * 100.0,
                self.stall(forecast)
            );
        }
    }

    fn stall(&self, forecast: &Forecast) -> String {
        match forecast.worst_stall() {
            None => "-".to_owned(),
            Some((replica, share)) => format!(
                "{:.1} s, {:.0}% of them, if {} fails",
                self.stall_s,
                share * 100.0,
                self.name(replica)
            ),
        }
    }

    /// Prints a table with the latencies that clients of each site would have under this forecast.
    pub fn sites(&self, forecast: &Forecast) {
        say!(
            "{} led by {}:",
            forecast.plan.name(),
            self.name(forecast.leader)
        );
        say!(
            "  {:8} {:>9} {:>9} {:>8} {:>8} {:>7} {:>8}",
            "site",
            "reads/s",
            "writes/s",
            "read ms",
            "write ms",
            "local",
            "minimum"
        );
        for (name, site) in self.names.iter().zip(&forecast.sites) {
            say!(
                "  {name:8} {:>9.1} {:>9.1} {:>8.1} {:>8.1} {:>6.1}% {:>7.1}%",
                site.reads,
                site.writes,
                site.read_ms,
                site.write_ms,
                site.local * 100.0,
                site.at_minimum * 100.0
            );
        }
    }

    /// Returns a forecast as JSON.
    pub fn json(&self, forecast: &Forecast) -> Value {
        let sites = self.names.iter().zip(&forecast.sites);
        let sites = sites.map(|(name, site)| {
            json!({
                "site": name,
                "reads_per_s": site.reads,
                "writes_per_s": site.writes,
                "read_ms": site.read_ms,
                "write_ms": site.write_ms,
                "local_fraction": site.local,
                "min_latency_fraction": site.at_minimum,
            })
        });
        let stall = forecast.worst_stall().map(|(replica, share)| {
            json!({ "site": self.name(replica), "s": self.stall_s, "writes_fraction": share })
        });
        json!({
            "strategy": forecast.plan.name(),
            "leader": self.name(forecast.leader),
            "present": self.is_now(forecast),
            "mean_ms": forecast.mean_ms,
            "read_ms": forecast.read_ms,
            "write_ms": forecast.write_ms,
            "local_fraction": forecast.local,
            "min_latency_fraction": forecast.at_minimum,
            "worst_stall": stall,
            "spare_replicas": forecast.spare(),
            "sites": sites.collect::<Vec<_>>(),
        })
    }
}

/// Returns the best forecast of each plan, and every other forecast for which `also` returns true.
/// The forecasts are in order of mean latency.
pub fn shortlist(forecasts: &[Forecast], also: impl Fn(&Forecast) -> bool) -> Vec<&Forecast> {
    let mut sorted: Vec<&Forecast> = forecasts.iter().collect();
    sorted.sort_by(|a, b| a.mean_ms.total_cmp(&b.mean_ms));
    let mut seen = Vec::new();
    sorted.retain(|forecast| {
        let first = !seen.contains(&forecast.plan);
        seen.push(forecast.plan);
        first || also(forecast)
    });
    sorted
}
