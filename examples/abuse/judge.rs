//! Bounds on the effects of an attack, and the checks of these bounds.

use serde::{Deserialize, Serialize};

use crate::attacks::{Attack, JudgedLatency};
use crate::figures::Figures;
use crate::provenance::Program;
use crate::well_behaved::ClientLatencies;

/// Factor in the bound on a p99 during an attack. The bound is `TIMES` times the p99 of the quiet
/// time, plus `LONGER_US` µs.
const TIMES: f64 = 2.0;
const LONGER_US: f64 = 20_000.0;
/// Maximum latency of a put in µs. It is used for attacks that are judged on the longest put.
const LONGEST_PUT_US: f64 = 100_000.0;
/// Maximum tolerated ratio of the used memory to the bound on memory.
const MEMORY_TOLERATED: f64 = 1.2;

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    pub what: String,
    pub found: String,
    pub bound: String,
    pub good: bool,
}

impl Check {
    /// Checks that a figure is known and does not exceed `bound`.
    pub fn at_most(what: &str, found: Option<f64>, bound: f64) -> Check {
        Check {
            what: what.to_owned(),
            found: found.map_or_else(|| "not known".to_owned(), plain),
            bound: format!("at most {}", plain(bound)),
            good: found.is_some_and(|found| found <= bound),
        }
    }

    /// Checks that a figure is known and is at least `bound`.
    pub fn at_least(what: &str, found: Option<f64>, bound: f64) -> Check {
        Check {
            bound: format!("at least {}", plain(bound)),
            good: found.is_some_and(|found| found >= bound),
            ..Check::at_most(what, found, bound)
        }
    }

    /// Creates a check with a result in words. `good` is true if the check succeeded.
    pub fn described(what: &str, found: &str, good: bool) -> Check {
        Check {
            what: what.to_owned(),
            found: found.to_owned(),
            bound: String::new(),
            good,
        }
    }
}

/// Formats a number: a whole number without decimals, any other number with one decimal.
fn plain(value: f64) -> String {
    if value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

/// Figures and checks of one attack on one program.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    pub name: String,
    pub what: String,
    /// Reason why the attack was not measured; `None` if it was measured.
    pub skipped: Option<String>,
    /// Program that was attacked.
    #[serde(default)]
    pub program: Program,
    pub figures: Figures,
    /// Figures of the attackers about their own work.
    #[serde(default)]
    pub waged: Figures,
    pub checks: Vec<Check>,
}

impl Row {
    pub fn passed(&self) -> bool {
        self.skipped.is_some() || self.checks.iter().all(|check| check.good)
    }

    /// Returns a line for a terminal.
    pub fn words(&self) -> String {
        if let Some(why) = &self.skipped {
            return format!("skipped: {why}");
        }
        let failed = self.checks.iter().filter(|check| !check.good);
        let failed: Vec<String> = failed
            .map(|check| format!("{}: {} ({})", check.what, check.found, check.bound))
            .collect();
        if failed.is_empty() {
            format!("passed; {}", self.latencies())
        } else {
            format!("FAILED: {}; {}", failed.join("; "), self.latencies())
        }
    }

    /// Describes the work of the attackers.
    pub fn attackers(&self) -> String {
        let named = self.waged.iter();
        let named =
            named.map(|(name, value)| format!("{} {}", name.replace('_', " "), plain(*value)));
        named.collect::<Vec<_>>().join(", ")
    }

    pub fn latencies(&self) -> String {
        let ms = |name: &str| self.figures.get(name).copied().unwrap_or_default() / 1000.0;
        format!(
            "p99 of puts {:.1} -> {:.1} ms, of gets {:.1} -> {:.1} ms, longest put {:.0} ms, {:.1} s \
             after it began",
            ms("quiet_put_p99_us"),
            ms("attacked_put_p99_us"),
            ms("quiet_get_p99_us"),
            ms("attacked_get_p99_us"),
            ms("attacked_put_max_us"),
            ms("attacked_put_max_at_ms"),
        )
    }
}

/// Adds the latencies of clients in one phase to `figures`. `when` is the name of the phase, and is
/// part of the names of the new figures.
pub fn name_figures(figures: &mut Figures, when: &str, noticed: &ClientLatencies) {
    let named = [
        ("put_p50_us", noticed.put_p50_us),
        ("put_p99_us", noticed.put_p99_us),
        ("put_max_us", noticed.put_max_us),
        ("put_max_at_ms", noticed.put_max_at_ms),
        ("get_p50_us", noticed.get_p50_us),
        ("get_p99_us", noticed.get_p99_us),
        ("get_max_us", noticed.get_max_us),
        ("operations", noticed.operations),
        ("failed", noticed.failed),
    ];
    figures.extend(named.map(|(name, value)| (format!("{when}_{name}"), value as f64)));
}

/// Returns the checks that are made for every attack.
pub fn usual(attack: &Attack, figures: &Figures) -> Vec<Check> {
    let of = |name: &str| figures.get(name).copied().unwrap_or_default();
    let mut checks = Vec::new();
    if attack.judged != JudgedLatency::Nothing {
        for kind in ["put", "get"] {
            let quiet = of(&format!("quiet_{kind}_p99_us"));
            let attacked = of(&format!("attacked_{kind}_p99_us"));
            let bound = quiet * TIMES + LONGER_US;
            let what = format!("p99 of {kind}s, ms");
            checks.push(Check::at_most(&what, Some(ms(attacked)), ms(bound)));
        }
        checks.push(Check::at_most(
            "operations that failed",
            Some(of("attacked_failed")),
            0.0,
        ));
    }
    if attack.judged == JudgedLatency::LongestPut {
        let longest = ms(of("attacked_put_max_us"));
        checks.push(Check::at_most(
            "longest put, ms",
            Some(longest),
            ms(LONGEST_PUT_US),
        ));
    }
    checks.push(Check::at_most("elections", Some(of("elections")), 0.0));
    let bound = (attack.memory_mib * MEMORY_TOLERATED).round();
    let taken = Some(of("memory_taken_mib").round());
    checks.push(Check::at_most(
        "memory taken by a replica, MiB",
        taken,
        bound,
    ));
    checks
}

fn ms(us: f64) -> f64 {
    (us / 100.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attacks::ATTACKS;
    use crate::figures::figures;

    fn attack(name: &str) -> &'static Attack {
        let found = ATTACKS.iter().find(|attack| attack.name == name);
        found.expect("an attack of this name")
    }

    #[test]
    fn what_exceeds_its_bound_fails() {
        let good = figures([
            ("quiet_put_p99_us", 5_000.0),
            ("attacked_put_p99_us", 30_000.0),
        ]);
        let puts = |figures: &Figures| usual(attack("connects"), figures)[0].clone();
        assert!(puts(&good).good);
        let slow = figures([
            ("quiet_put_p99_us", 5_000.0),
            ("attacked_put_p99_us", 30_200.0),
        ]);
        assert!(!puts(&slow).good, "{:?}", puts(&slow));
    }

    #[test]
    fn an_election_fails_every_attack() {
        let one = figures([("elections", 1.0)]);
        for attack in ATTACKS {
            let checks = usual(attack, &one);
            let elections = checks.iter().find(|check| check.what == "elections");
            assert!(!elections.expect("it is judged").good, "{}", attack.name);
        }
    }

    #[test]
    fn what_is_not_known_is_not_good() {
        assert!(!Check::at_most("sessions", None, 10.0).good);
        assert!(Check::at_most("sessions", Some(10.0), 10.0).good);
        assert!(!Check::at_least("refused_messages", None, 1.0).good);
        assert!(!Check::at_least("refused_messages", Some(0.0), 1.0).good);
        assert!(Check::at_least("refused_messages", Some(1.0), 1.0).good);
    }
}
