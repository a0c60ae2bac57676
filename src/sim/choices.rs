//! Parameters of a campaign. They are read from the command line, passed to the simulator, and
//! written as the flags that repeat the campaign.

use clap::Args;
use leasehold_sim::scenario::{Choices, RATE, strategies};
use leasehold_sim::self_test::ClockSelfTest;

/// Bound on clock drift that the simulated replicas assume, in ppm. The self-test `--control drift`
/// lets clocks drift ten times as much.
const RHO_PPM: u32 = 1000;

#[derive(Args)]
pub struct ChoiceArgs {
    /// Virtual time in which a seed begins requests, in seconds
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Requests a virtual second, over all replicas
    #[arg(long, value_name = "N", default_value_t = RATE, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// Runs begin with this strategy; may be repeated [default: all of them]
    #[arg(long = "strategy", value_name = "NAME", value_parser = ["none", "leader", "all", "quorum", "fixed", "cost"])]
    strategies: Vec<String>,
    /// Replicas of each cluster [default: three to five, by seed]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(3..=7))]
    replicas: Option<u8>,
    /// How far clocks run from true time; leases count with 1000 [default: 1000; 10000 for
    /// `--control drift`]
    #[arg(long, value_name = "PPM", value_parser = clap::value_parser!(u32).range(..=100_000))]
    drift_ppm: Option<u32>,
    /// Lets only the network and clients misbehave, not processes, disks, clocks or operators
    #[arg(long)]
    no_faults: bool,
}

/// Parses a number of cluster-hours.
pub fn hours(text: &str) -> Result<f64, String> {
    let hours: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    let good = hours > 0.0 && hours <= 1e6;
    good.then_some(hours)
        .ok_or_else(|| "more than 0, and a million at most".to_owned())
}

impl ChoiceArgs {
    /// Returns all choices. A choice that the user did not make has the default value.
    pub fn resolve(&self, control: Option<ClockSelfTest>) -> ResolvedChoices {
        let beyond = control == Some(ClockSelfTest::Drift);
        let drift_ppm = self.drift_ppm;
        let mut names: Vec<&str> = strategies().iter().map(|(name, _)| *name).collect();
        names.dedup();
        names.retain(|name| self.strategies.iter().any(|wanted| wanted == name));
        ResolvedChoices {
            seconds: self.seconds,
            rate: self.rate,
            strategies: names.into_iter().map(str::to_owned).collect(),
            replicas: self.replicas,
            drift_ppm: drift_ppm.unwrap_or(if beyond { 10 * RHO_PPM } else { RHO_PPM }),
            faults: !self.no_faults,
            control,
        }
    }
}

/// All parameters of a campaign. Parameters that the user did not choose have their defaults.
#[derive(Clone, Debug)]
pub struct ResolvedChoices {
    seconds: u64,
    rate: u32,
    /// Strategies with which runs may begin. If the list is empty, runs may begin with any
    /// strategy.
    strategies: Vec<String>,
    replicas: Option<u8>,
    drift_ppm: u32,
    faults: bool,
    pub control: Option<ClockSelfTest>,
}

impl ResolvedChoices {
    /// Returns the choices in the form that the simulator needs.
    pub fn choices(&self) -> Choices {
        let all = strategies();
        let names = all.iter().map(|(name, _)| *name);
        let mut strategies: Vec<&'static str> = names
            .filter(|name| self.strategies.iter().any(|wanted| wanted == name))
            .collect();
        strategies.dedup();
        Choices {
            run_ns: self.seconds * 1_000_000_000,
            rate: self.rate,
            strategies,
            faults: self.faults,
            replicas: self.replicas.map(usize::from),
            drift_ppm: self.drift_ppm,
            self_test: self.control,
        }
    }

    /// Returns all parameters, each with the name of its flag.
    pub fn named(&self) -> Vec<(&'static str, String)> {
        let strategies = if self.strategies.is_empty() {
            "all of them".to_owned()
        } else {
            self.strategies.join(", ")
        };
        let replicas = self.replicas;
        vec![
            ("--seconds", self.seconds.to_string()),
            ("--rate", self.rate.to_string()),
            ("--strategy", strategies),
            (
                "--replicas",
                replicas.map_or("three to five".to_owned(), |n| n.to_string()),
            ),
            ("--drift-ppm", self.drift_ppm.to_string()),
            ("--no-faults", (!self.faults).to_string()),
        ]
    }

    /// Returns the flags that make the same choices on a command line. A flag with its default
    /// value is omitted.
    pub fn flags(&self) -> String {
        let mut words = String::new();
        let mut add = |flag: &str, value: &dyn std::fmt::Display| {
            words.push_str(&format!(" --{flag} {value}"));
        };
        if let Some(control) = self.control {
            add("control", &control.name());
        }
        if self.seconds != 60 {
            add("seconds", &self.seconds);
        }
        if self.rate != RATE {
            add("rate", &self.rate);
        }
        for name in &self.strategies {
            add("strategy", name);
        }
        if let Some(n) = self.replicas {
            add("replicas", &n);
        }
        if self.drift_ppm != RHO_PPM || self.control.is_some() {
            add("drift-ppm", &self.drift_ppm);
        }
        if !self.faults {
            words.push_str(" --no-faults");
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_are_a_number_above_nothing() {
        assert_eq!(hours("0.5"), Ok(0.5));
        for bad in ["", "x", "0", "-1", "inf", "NaN", "1e7"] {
            assert!(hours(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_strategies_on_offer_are_those_of_the_simulator() {
        let args = ChoiceArgs {
            seconds: 1,
            rate: 1,
            strategies: ["none", "leader", "all", "quorum", "fixed", "cost"]
                .map(str::to_owned)
                .to_vec(),
            replicas: None,
            drift_ppm: None,
            no_faults: false,
        };
        assert_eq!(args.resolve(None).choices().strategies.len(), 6);
    }
}
