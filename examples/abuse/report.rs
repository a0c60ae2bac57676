//! The files with the results. Each program that was attacked has a file `LABEL.json`. `report.md`,
//! `figures.csv` and `p99.svg` are about all programs together.

mod picture;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

use crate::attacks::ATTACKS;
use crate::judge::{Check, Row};
use crate::provenance::{Program, command, machine};

/// Results of the attacks on one program.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Run {
    pub label: String,
    /// Program that was attacked when the newest rows were measured. Each row also names the
    /// program that was attacked for this row.
    #[serde(default)]
    pub program: Program,
    pub command: String,
    pub machine: String,
    pub rows: Vec<Row>,
}

/// The results of all runs in a directory. One run is the current one, to which rows are added.
pub struct Results {
    dir: PathBuf,
    /// All runs. A run with the label `before` is the first, and a run with the label `after` is
    /// the last.
    runs: Vec<Run>,
    current: usize,
}

impl Results {
    /// Reads the results in a directory. The run with the label `label` becomes the current one.
    pub fn open(dir: &Path, label: &str, program: Program) -> anyhow::Result<Results> {
        if label.is_empty() || !label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            bail!("--label: {label:?} is not a name of letters, digits and hyphens");
        }
        std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        let mut runs = Vec::new();
        for entry in std::fs::read_dir(dir)?.flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|end| end == "json") {
                let text = std::fs::read_to_string(&path)?;
                let run: Run = serde_json::from_str(&text)
                    .with_context(|| format!("{}: not a run's results", path.display()))?;
                runs.push(run);
            }
        }
        if !runs.iter().any(|run| run.label == label) {
            runs.push(Run::default());
        }
        let last = runs.len() - 1;
        let found = runs.iter().position(|run| run.label == label);
        let run = &mut runs[found.unwrap_or(last)];
        run.label = label.to_owned();
        run.program = program;
        run.command = command();
        run.machine = machine();
        runs.sort_by_key(|run| (place(&run.label), run.label.clone()));
        let current = runs.iter().position(|run| run.label == label);
        Ok(Results {
            dir: dir.to_owned(),
            current: current.unwrap_or_default(),
            runs,
        })
    }

    /// Adds a row to the current run. An earlier row for the same attack is replaced.
    pub fn add(&mut self, mut row: Row) {
        let run = &mut self.runs[self.current];
        row.program = run.program.clone();
        let rows = &mut run.rows;
        rows.retain(|other| other.name != row.name);
        rows.push(row);
        let order = |row: &Row| ATTACKS.iter().position(|attack| attack.name == row.name);
        rows.sort_by_key(order);
    }

    pub fn all_passed(&self, label: &str) -> bool {
        let run = self.runs.iter().find(|run| run.label == label);
        run.is_some_and(|run| run.rows.iter().all(Row::passed))
    }

    pub fn write(&self) -> anyhow::Result<()> {
        let run = &self.runs[self.current];
        self.put(
            &format!("{}.json", run.label),
            &serde_json::to_string_pretty(run)?,
        )?;
        self.put("report.md", &self.markdown())?;
        self.put("figures.csv", &self.csv())?;
        self.put("p99.svg", &picture::svg(&self.runs))
    }

    fn put(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let path = self.dir.join(name);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }

    /// Describes one run as text for a terminal. The text has a line for each attack.
    pub fn terminal(&self, label: &str) -> String {
        let mut text = String::new();
        let run = self.runs.iter().find(|run| run.label == label);
        for row in run.map(|run| &run.rows).into_iter().flatten() {
            let _ = writeln!(text, "{:<18} {}", row.name, row.words());
        }
        text
    }

    fn csv(&self) -> String {
        let mut text = "label,attack,figure,value\n".to_owned();
        for run in &self.runs {
            for row in &run.rows {
                for (name, value) in row.figures.iter().chain(&row.waged) {
                    let _ = writeln!(text, "{},{},{name},{value}", run.label, row.name);
                }
            }
        }
        text
    }

    fn markdown(&self) -> String {
        let mut text = HEAD.to_owned();
        let labels: Vec<&str> = self.runs.iter().map(|run| run.label.as_str()).collect();
        let rule = "---|".repeat(labels.len());
        let _ = writeln!(text, "| attack | what it does | {} |", labels.join(" | "));
        let _ = writeln!(text, "|---|---|{rule}");
        for (name, what) in self.attacks() {
            let cells = self.runs.iter().map(|run| verdict(run, &name));
            let cells: Vec<String> = cells.collect();
            let _ = writeln!(
                text,
                "| [{name}](#{name}) | {what} | {} |",
                cells.join(" | ")
            );
        }
        text.push_str(PICTURE);
        for (name, what) in self.attacks() {
            let _ = writeln!(text, "\n### {name}\n\n{}.\n", capital(&what));
            self.details(&name, &mut text);
        }
        text.push_str("\n## Made by\n\n");
        for run in &self.runs {
            let Run {
                label,
                command,
                machine,
                ..
            } = run;
            let programs = programs(run);
            let _ = writeln!(
                text,
                "- `{label}`: {programs}, on {machine}, at last by `{command}`"
            );
        }
        text
    }

    /// Writes a table with the checks of one attack, and the result of each check in each run.
    fn details(&self, name: &str, text: &mut String) {
        let labels: Vec<&str> = self.runs.iter().map(|run| run.label.as_str()).collect();
        let _ = writeln!(text, "| | {} |", labels.join(" | "));
        let _ = writeln!(text, "|---|{}", "---|".repeat(labels.len()));
        let rows: Vec<Option<&Row>> = self.runs.iter().map(|run| row(run, name)).collect();
        let mut named = BTreeSet::new();
        let checks = rows.iter().flatten().flat_map(|row| &row.checks);
        let whats: Vec<&str> = checks.map(|check| check.what.as_str()).collect();
        for what in whats.into_iter().filter(|what| named.insert(*what)) {
            let cell = |row: &Option<&Row>| {
                let found = row.and_then(|row| row.checks.iter().find(|c| c.what == what));
                found.map_or_else(String::new, cell)
            };
            let cells: Vec<String> = rows.iter().map(cell).collect();
            let _ = writeln!(text, "| {what} | {} |", cells.join(" | "));
        }
        let mut line = |what: &str, of: &dyn Fn(&Row) -> String| {
            let cells = rows.iter().map(|row| row.map_or_else(String::new, of));
            let cells: Vec<String> = cells.collect();
            let _ = writeln!(text, "| {what} | {} |", cells.join(" | "));
        };
        line("latency", &Row::latencies);
        line("attackers", &Row::attackers);
    }

    /// Returns the attacks that have a row in at least one run, in the order of the report.
    fn attacks(&self) -> Vec<(String, String)> {
        let measured = |name: &str| self.runs.iter().any(|run| row(run, name).is_some());
        let attacks = ATTACKS.iter().filter(|attack| measured(attack.name));
        attacks
            .map(|attack| (attack.name.to_owned(), attack.what.to_owned()))
            .collect()
    }
}

/// Describes the program that was attacked in the rows of a run. If there are several programs,
/// also lists the rows of each program.
fn programs(run: &Run) -> String {
    let mut of: BTreeMap<&Program, Vec<&str>> = BTreeMap::new();
    for row in &run.rows {
        of.entry(&row.program).or_default().push(&row.name);
    }
    if of.len() < 2 {
        let program = of.keys().next().copied();
        return program.unwrap_or(&run.program).to_string();
    }
    let of = of.into_iter();
    let of = of.map(|(program, rows)| format!("{program} (of {})", rows.join(", ")));
    of.collect::<Vec<_>>().join("; ")
}

const HEAD: &str = "\
# Attacks

Each attack has a fresh cluster of real replica processes on loopback, and attackers in a process of
their own with a lower priority. Well-behaved clients beside each replica put and get at a fixed rate,
before the attack (*quiet*) and during it (*attacked*); latency counts from the moment at which an
operation should have begun. An attack fails if the p99 of puts or of gets is above twice the quiet one
plus 20 ms, if an operation fails, if there is an election, if a replica ends, or if it takes more than
its bound of memory and 20%. Some attacks are judged by more, and `writers` not by latency: it fills
the machine on purpose. Where the program can make certificates, strangers attack clusters that have
them (`peer-…` but `peer-absurd`, `connects`, `tls-…`). `figures.csv` has all figures.

";

const PICTURE: &str = "
![p99 of puts, quiet and attacked](p99.svg)

## Details
";

fn place(label: &str) -> u8 {
    match label {
        "before" => 0,
        "after" => 2,
        _ => 1,
    }
}

fn row<'a>(run: &'a Run, name: &str) -> Option<&'a Row> {
    run.rows.iter().find(|row| row.name == name)
}

/// Returns the verdict on an attack in a run. The verdict lists the checks that failed.
fn verdict(run: &Run, name: &str) -> String {
    let Some(row) = row(run, name) else {
        return "not measured".to_owned();
    };
    if let Some(why) = &row.skipped {
        return format!("skipped: {why}");
    }
    if row.passed() {
        return "passed".to_owned();
    }
    let failed = row.checks.iter().filter(|check| !check.good);
    let failed: Vec<String> = failed
        .map(|check| format!("{}: {}", check.what, short(&check.found)))
        .collect();
    format!("**failed**: {}", failed.join("; "))
}

/// Shortens a text, and removes characters that would end a table cell.
fn short(text: &str) -> String {
    let text: String = text.chars().take(200).collect();
    text.replace('|', "/").replace('\n', " ")
}

fn cell(check: &Check) -> String {
    let found = short(&check.found);
    let found = if check.good {
        found
    } else {
        format!("**{found}**")
    };
    if check.bound.is_empty() {
        found
    } else {
        format!("{found} ({})", check.bound)
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Results {
        let row = |good: bool| Row {
            name: "connects".to_owned(),
            checks: vec![Check::at_most(
                "elections",
                Some(f64::from(u8::from(!good))),
                0.0,
            )],
            ..Row::default()
        };
        let run = |label: &str, good| Run {
            label: label.to_owned(),
            rows: vec![row(good)],
            ..Run::default()
        };
        Results {
            dir: PathBuf::new(),
            runs: vec![run("before", false), run("after", true)],
            current: 1,
        }
    }

    #[test]
    fn verdicts_stand_side_by_side() {
        let text = results().markdown();
        assert!(
            text.contains("| **failed**: elections: 1 | passed |"),
            "{text}"
        );
        assert!(text.contains("| elections | **1** (at most 0) | 0 (at most 0) |"));
        assert!(!results().all_passed("before") && results().all_passed("after"));
    }

    #[test]
    fn rows_of_several_programs_say_of_which() {
        let mut results = results();
        let program = |revision: &str| Program {
            version: "leasehold 1".to_owned(),
            revision: revision.to_owned(),
            built: "2026-01-01 00:00 UTC".to_owned(),
        };
        let row = |name: &str| Row {
            name: name.to_owned(),
            ..Row::default()
        };
        results.runs[1].program = program("aaa");
        results.add(row("connects"));
        let one = results.markdown();
        assert!(
            one.contains("- `after`: leasehold 1, revision aaa, built 2026-01-01 00:00 UTC, on"),
            "{one}"
        );
        results.runs[1].program = program("bbb");
        results.add(row("growth"));
        let two = results.markdown();
        assert!(two.contains("revision aaa, built 2026-01-01 00:00 UTC (of connects); "));
        assert!(two.contains("revision bbb, built 2026-01-01 00:00 UTC (of growth), on"));
    }

    #[test]
    fn a_row_takes_the_place_of_an_earlier_one() {
        let mut results = results();
        results.add(Row {
            name: "connects".to_owned(),
            skipped: Some("of a reason".to_owned()),
            ..Row::default()
        });
        assert_eq!(results.runs[1].rows.len(), 1);
        assert!(results.markdown().contains("| skipped: of a reason |"));
    }
}
