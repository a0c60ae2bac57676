//! The files with the results: `charges.csv` and `report.md`.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;

use crate::provenance::{Program, command, machine};
use crate::rows::{FACTOR, Row, distance, median_ratio};

/// Number of rows in the first table of the report. This table lists the rows with ratios that
/// differ most from the median ratio.
const WORST: usize = 15;

/// Results of the measurements of one program.
pub struct Report<'a> {
    pub rows: &'a [Row],
    pub elections: u64,
    pub program: Program,
    pub durability: &'a str,
}

impl Report<'_> {
    /// Returns true if everything was measured, and the ratio of every row is within the allowed
    /// factor.
    pub fn is_good(&self) -> bool {
        self.outside().is_empty() && self.skipped().is_empty()
    }

    fn outside(&self) -> Vec<&Row> {
        let median = median_ratio(self.rows);
        self.by_distance()
            .into_iter()
            .filter(|row| distance(row, median) > FACTOR)
            .collect()
    }

    fn skipped(&self) -> Vec<&Row> {
        self.rows
            .iter()
            .filter(|row| row.skipped.is_some())
            .collect()
    }

    /// Returns the measured rows, sorted by the distance of their ratio from the median ratio. The
    /// most distant row is the first.
    fn by_distance(&self) -> Vec<&Row> {
        let median = median_ratio(self.rows);
        let mut rows: Vec<&Row> = self
            .rows
            .iter()
            .filter(|row| row.skipped.is_none())
            .collect();
        rows.sort_by(|a, b| distance(b, median).total_cmp(&distance(a, median)));
        rows
    }

    pub fn write(&self, out: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(out).with_context(|| format!("creating {}", out.display()))?;
        for (name, text) in [("charges.csv", self.csv()), ("report.md", self.markdown())] {
            let path = out.join(name);
            std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }

    fn csv(&self) -> String {
        let mut text = "kind,size,unit,batch,answer,requests,entries,bytes_in,bytes_out,cpu_ns,\
                        cpu_ns_least,cpu_ns_most,loop_ns,charge,ns_for_each_unit,of_median\n"
            .to_owned();
        let median = median_ratio(self.rows);
        for row in self.rows.iter().filter(|row| row.skipped.is_none()) {
            let [least, middle, most] = row.ns;
            let _ = writeln!(
                text,
                "{},{},{},{},{},{},{},{},{},{middle:.0},{least:.0},{most:.0},{:.0},{:.0},{:.4},{:.3}",
                row.kind,
                row.size,
                row.unit.replace(',', ""),
                row.batch,
                row.answer,
                row.requests,
                row.entries,
                row.bytes_in,
                row.bytes_out,
                row.loop_ns,
                row.charge,
                row.ratio(),
                row.ratio() / median,
            );
        }
        text
    }

    fn verdict(&self) -> String {
        let (outside, skipped) = (self.outside().len(), self.skipped().len());
        let mut text = match outside {
            0 => format!(
                "All {} rows are within a factor of {FACTOR} of the median ratio.",
                self.rows.len() - skipped
            ),
            _ => format!(
                "{outside} of {} rows differ from the median ratio by more than a factor of {FACTOR}.",
                self.rows.len() - skipped
            ),
        };
        if skipped > 0 {
            let _ = write!(text, " {skipped} could not be measured.");
        }
        if self.elections > 0 {
            let _ = write!(text, " There were {} elections meanwhile.", self.elections);
        }
        text
    }

    pub fn terminal(&self) -> String {
        let median = median_ratio(self.rows);
        let mut text = format!(
            "{:<28} {:>8} {:>8} {:>9} {:>9} {:>12} {:>12} {:>7}\n",
            "kind", "size", "entries", "bytes in", "bytes out", "cpu us", "charge", "ratio"
        );
        for row in self.by_distance() {
            let _ = writeln!(
                text,
                "{:<28} {:>8} {:>8} {:>9} {:>9} {:>12.1} {:>12.0} {:>7.2}{}",
                row.kind,
                row.size,
                row.entries,
                row.bytes_in,
                row.bytes_out,
                row.ns[1] / 1000.0,
                row.charge,
                row.ratio() / median,
                if distance(row, median) > FACTOR {
                    " !"
                } else {
                    ""
                },
            );
        }
        for row in self.skipped() {
            let _ = writeln!(
                text,
                "{} {}: not measured: {}",
                row.kind,
                row.size,
                row.skipped.as_deref().unwrap_or_default()
            );
        }
        let _ = writeln!(text, "{}", self.verdict());
        text
    }

    fn markdown(&self) -> String {
        let median = median_ratio(self.rows);
        let mut text = format!(
            "{HEAD}\n{}\n\n## Farthest from the median\n\n",
            self.verdict()
        );
        table(
            &mut text,
            self.by_distance().into_iter().take(WORST),
            median,
        );
        if !self.skipped().is_empty() {
            text.push_str("\n## Not measured\n\n");
        }
        for row in self.skipped() {
            let _ = writeln!(
                text,
                "- {} {}: {}",
                row.kind,
                row.size,
                row.skipped.as_deref().unwrap_or_default()
            );
        }
        text.push_str("\n## All\n\n");
        table(
            &mut text,
            self.rows.iter().filter(|row| row.skipped.is_none()),
            median,
        );
        let _ = writeln!(
            text,
            "\n## Made by\n\n{}, durability `{}`, on {}, by `{}`. The median ratio is {median:.3} ns for each unit.",
            self.program,
            self.durability,
            machine(),
            command(),
        );
        text
    }
}

fn table<'a>(text: &mut String, rows: impl Iterator<Item = &'a Row>, median: f64) {
    text.push_str(
        "| kind | size | batch | answer | entries | bytes in | bytes out | processor time, µs | least to most | loop, µs | charge | ratio |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let [least, middle, most] = row.ns.map(|ns| ns / 1000.0);
        let _ = writeln!(
            text,
            "| {} | {} {} | {} | {} | {} | {} | {} | {middle:.1} | {least:.1} to {most:.1} | {:.1} | {:.0} | {:.2} |",
            row.kind,
            row.size,
            row.unit,
            row.batch,
            row.answer,
            row.entries,
            row.bytes_in,
            row.bytes_out,
            row.loop_ns / 1000.0,
            row.charge,
            row.ratio() / median,
        );
    }
}

const HEAD: &str = "\
# What requests cost, and what they are charged

A replica takes only so much work in a round, and so much of each client. Each request is charged
for it. This table has the processor time that a request takes of the replica that is asked: all
its threads, without what it takes when nobody asks. The *ratio* is processor time for each unit of the charge,
divided by the median of all rows.
";
