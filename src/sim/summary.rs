//! Summary of a campaign. The terminal, the JSON file and the Markdown page show the same figures.

use std::collections::BTreeMap;

use leasehold_sim::fault::FaultKind;
use leasehold_sim::tally::CampaignTally;
use serde::Serialize;

use super::campaign::CampaignProgress;
use super::choices::ResolvedChoices;
use super::progress::CampaignClock;
use super::seed::SeedFailure;
use super::store::SIMULATED;

/// Summary of a campaign, as it is written to the JSON file.
#[derive(Serialize)]
pub struct CampaignSummary {
    /// Command that repeats the campaign. The field `code` identifies the version of the simulated
    /// code.
    command: String,
    code: &'static str,
    /// All parameters of the campaign, each with the name of its flag.
    choices: Vec<(&'static str, String)>,
    /// First seed of the campaign. The last seed is `next` - 1.
    from: u64,
    next: u64,
    cluster_hours: f64,
    cpu_minutes: f64,
    wall_minutes: f64,
    cluster_hours_per_cpu_minute: f64,
    /// Mean number of requests per second of virtual time. Only the part of each run in which
    /// clients begin operations is considered.
    asked_per_virtual_second: f64,
    answered_per_virtual_second: f64,
    /// Digest of all events of all seeds.
    digest: String,
    /// True if every seed ran twice, and the two runs were compared.
    #[serde(skip)]
    twice: bool,
    violations: Vec<SeedFailure>,
    /// Faults, checks and reads that should have occurred in the campaign but never occurred.
    pub missing: Vec<String>,
    totals: CampaignTally,
    /// Kinds of faults that were possible, in the order in which the summary shows them.
    #[serde(skip)]
    faults: Vec<FaultKind>,
}

/// A section: its title, and its rows (name, figure).
type Section = (&'static str, Vec<(String, String)>);

impl CampaignSummary {
    /// Creates the summary of a campaign that began with the seed `from`. `twice` is true if each
    /// seed ran twice.
    pub fn new(
        resolved: &ResolvedChoices,
        progress: &CampaignProgress,
        clock: &CampaignClock,
        from: u64,
        twice: bool,
    ) -> CampaignSummary {
        let totals = progress.sums().clone();
        let hours = totals.cluster_hours();
        let cpu_minutes = clock.cpu_s() / 60.0;
        let asking_s = totals.asking_ns as f64 / 1e9;
        let rate = |operations: u64| operations as f64 / asking_s.max(1e-9);
        let choices = resolved.choices();
        let mut named = resolved.named();
        named.push(("--twice", twice.to_string()));
        let twice_flag = if twice { " --twice" } else { "" };
        // Failed seeds are not included, but the command must repeat them too.
        let failed = progress
            .failures()
            .into_iter()
            .map(|failure| failure.seed + 1);
        let until = failed.max().unwrap_or(0).max(progress.next());
        let seeds = until - from;
        let words = resolved.flags();
        let faults = FaultKind::ALL.into_iter();
        CampaignSummary {
            command: format!("leasehold sim --seeds {seeds} --from {from}{words}{twice_flag}"),
            code: SIMULATED,
            choices: named,
            from,
            next: progress.next(),
            cluster_hours: hours,
            cpu_minutes,
            wall_minutes: clock.wall_s() / 60.0,
            cluster_hours_per_cpu_minute: hours / cpu_minutes.max(1e-9),
            asked_per_virtual_second: rate(totals.asked),
            answered_per_virtual_second: rate(totals.operations),
            digest: format!("{:016x}", totals.digest),
            twice,
            violations: progress.failures().into_iter().cloned().collect(),
            missing: totals.missing(&choices),
            totals,
            faults: faults.filter(|fault| choices.enables(*fault)).collect(),
        }
    }

    /// Describes the size and the result of the campaign in one line.
    fn brief(&self) -> String {
        let result = match self.violations.len() {
            0 if self.twice => {
                "no violation, and no difference between the two runs of any".to_owned()
            }
            0 => "no violation".to_owned(),
            1 => "1 violation".to_owned(),
            many => format!("{many} violations"),
        };
        let (hours, seeds) = (self.cluster_hours, grouped(self.totals.seeds));
        format!("{hours:.1} cluster-hours in {seeds} seeds: {result}")
    }

    fn sections(&self) -> Vec<Section> {
        let totals = &self.totals;
        let counts = |all: &BTreeMap<String, u64>| {
            all.iter().map(|(name, n)| row(name, grouped(*n))).collect()
        };
        let fired = self.faults.iter();
        let fired = fired.map(|fault| row(fault.name(), grouped(totals.fired(*fault))));
        vec![
            ("In all", [self.operations(), self.costs()].concat()),
            ("Operations by path", counts(&totals.paths)),
            ("Checks by oracle", counts(&totals.oracles)),
            ("Faults that fired", fired.collect()),
            ("Seeds by strategy", counts(&totals.strategies)),
        ]
    }

    /// Returns the rows that describe the simulated seeds and the results of operations.
    fn operations(&self) -> Vec<(String, String)> {
        let totals = &self.totals;
        let seeds = match totals.seeds {
            0 => "none".to_owned(),
            _ => format!("{} to {}", self.from, self.next - 1),
        };
        let tenths = |number: f64| format!("{number:.1}");
        vec![
            row("seeds", seeds),
            row("operations asked", grouped(totals.asked)),
            row("operations answered", grouped(totals.operations)),
            row(
                "asked per virtual second, while clients asked",
                tenths(self.asked_per_virtual_second),
            ),
            row(
                "answered per virtual second, likewise",
                tenths(self.answered_per_virtual_second),
            ),
            row("operations of unknown fate", grouped(totals.unknown)),
            row("histories left undecided", grouped(totals.undecided)),
        ]
    }

    /// Returns rows about four subjects: reads close to a lease's end, the longest wait for answers
    /// after all faults are healed, the processor time, and the digest.
    fn costs(&self) -> Vec<(String, String)> {
        let totals = &self.totals;
        vec![
            row(
                "reads within 10 ms of a lease's end",
                grouped(totals.near_end),
            ),
            row(
                "longest until all was answered, after all was healed",
                format!("{:.1} virtual s", totals.healing_max_ns as f64 / 1e9),
            ),
            row("CPU-minutes", format!("{:.2}", self.cpu_minutes)),
            row(
                "cluster-hours per CPU-minute",
                format!("{:.1}", self.cluster_hours_per_cpu_minute),
            ),
            row("digest", self.digest.clone()),
        ]
    }

    /// Returns the summary for the terminal.
    pub fn text(&self) -> String {
        let sections = self.sections();
        let rows = sections.iter().flat_map(|(_, rows)| rows);
        let width = rows.map(|(name, _)| name.len()).max().unwrap_or(0);
        let mut text = String::new();
        for (title, rows) in &sections {
            text.push_str(&format!("{title}\n"));
            for (name, figure) in rows {
                text.push_str(&format!("  {name:width$}  {figure:>16}\n"));
            }
        }
        text + &self.brief()
    }

    /// Returns the summary in Markdown.
    pub fn page(&self) -> String {
        let mut page = format!(
            "# A campaign of simulated seeds\n\n**{}.** To repeat it, with the same sources \
             (code {}): `{}`\n",
            self.brief(),
            self.code,
            self.command
        );
        for SeedFailure { seed, oracle, what } in &self.violations {
            page.push_str(&format!("\nSeed {seed} violates {oracle}: {what}\n"));
        }
        if !self.missing.is_empty() {
            let missing = self.missing.join("; ");
            page.push_str(&format!("\nNever met: {missing}.\n"));
        }
        for (title, rows) in self.sections() {
            page.push_str(&format!("\n## {title}\n\n| | |\n|---|---:|\n"));
            for (name, figure) in rows {
                page.push_str(&format!("| {name} | {figure} |\n"));
            }
        }
        page
    }
}

fn row(name: &str, figure: String) -> (String, String) {
    (name.to_owned(), figure)
}

/// Formats a number. The digits are in groups of three.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_come_in_threes() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1234567, "1,234,567"),
        ] {
            assert_eq!(grouped(number), text);
        }
    }
}
