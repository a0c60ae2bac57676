//! The files of a throughput experiment: plots of reads and writes a second, and of the replicas'
//! processor time for each operation.

use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;
use serde_json::json;

use super::figures::Figure;
use super::manifest::Manifest;
use super::svg::{Anchor, Ink, Lettering, Stroke, Svg, escape};
use super::table::{Table, grouped, percent};
use super::{page, render};
use crate::throughput::{Case, CaseThroughput, OperationThroughput, ThroughputExperiment};

/// Throughput of each case in the paper (Fig. 8): reads a second and writes a second, in thousands.
const PAPER: [(&str, bool, f64, Option<f64>); 4] = [
    ("leader", true, 149.0, Some(132.0)),
    ("all", true, 617.0, Some(125.0)),
    ("quorum", true, 584.0, Some(115.0)),
    ("quorum", false, 206.0, None),
];

const WIDTH: f64 = 720.0;
const LEFT: f64 = 24.0;
const TOP: f64 = 64.0;
const PLOT_HEIGHT: f64 = 220.0;
const HEIGHT: f64 = TOP + PLOT_HEIGHT + 60.0;

/// A case, and the medians of its runs.
#[derive(Clone, Debug, Serialize)]
struct CaseRow {
    label: String,
    strategy: String,
    lease_aware: bool,
    reads: OperationThroughput,
    writes: OperationThroughput,
    runs: Vec<CaseThroughput>,
}

/// Report of a throughput experiment.
#[derive(Clone, Debug)]
pub struct ThroughputReport {
    experiment: ThroughputExperiment,
    manifest: Manifest,
    rows: Vec<CaseRow>,
}

/// Function that returns one value of a throughput measurement.
type Value = fn(&OperationThroughput) -> f64;

fn median(
    runs: &[CaseThroughput],
    rate: impl Fn(&CaseThroughput) -> OperationThroughput,
) -> OperationThroughput {
    let value = |value: Value| {
        let mut all: Vec<f64> = runs.iter().map(|run| value(&rate(run))).collect();
        all.sort_by(f64::total_cmp);
        let middle = all.len() / 2;
        match all.len() {
            0 => 0.0,
            n if n % 2 == 1 => all[middle],
            _ => f64::midpoint(all[middle - 1], all[middle]),
        }
    };
    OperationThroughput {
        per_s: value(|rate| rate.per_s),
        failed: runs.iter().map(|run| rate(run).failed).sum(),
        local_fraction: value(|rate| rate.local_fraction),
        p50_us: value(|rate| rate.p50_us),
        p99_us: value(|rate| rate.p99_us),
        cpu_us: value(|rate| rate.cpu_us),
        busiest_us: value(|rate| rate.busiest_us),
    }
}

impl ThroughputReport {
    /// Creates the report from the cases and the measurements of each case's runs.
    pub fn new(
        experiment: ThroughputExperiment,
        manifest: Manifest,
        results: Vec<(Case, Vec<CaseThroughput>)>,
    ) -> ThroughputReport {
        let row = |(case, runs): (Case, Vec<CaseThroughput>)| CaseRow {
            lease_aware: case.is_aware(),
            label: case.label,
            strategy: case.strategy,
            reads: median(&runs, |run| run.reads),
            writes: median(&runs, |run| run.writes),
            runs,
        };
        ThroughputReport {
            experiment,
            manifest,
            rows: results.into_iter().map(row).collect(),
        }
    }

    /// Returns the tables, for a terminal.
    pub fn terminal(&self) -> String {
        let tables = self.tables().into_iter().map(|table| table.text());
        let tables: Vec<String> = tables.collect();
        let findings = self.findings().join("\n");
        format!("{}\n{findings}\n", tables.join("\n"))
    }

    /// Writes all files into `dir`.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written; the error names the file.
    pub fn write(&self, dir: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        let put = |name: &str, bytes: &[u8]| {
            let path = dir.join(name);
            std::fs::write(&path, bytes).with_context(|| format!("writing {}", path.display()))
        };
        let mut manifest = serde_json::to_value(&self.manifest)?;
        if let Some(fields) = manifest.as_object_mut() {
            fields.insert("experiment".to_owned(), json!(self.experiment));
        }
        put("manifest.json", &serde_json::to_vec_pretty(&manifest)?)?;
        let summary = json!({
            "experiment": self.experiment.name,
            "backend": "local",
            "seed": self.experiment.seed,
            "cases": self.rows,
        });
        put("summary.json", &serde_json::to_vec_pretty(&summary)?)?;
        let figures = self.figures();
        render::write(&figures, &dir.join("plots"))?;
        put("report.md", self.markdown().as_bytes())?;
        put("report.html", self.html(&figures).as_bytes())
    }

    /// Returns warnings, followed by a comparison of the strategies.
    fn findings(&self) -> Vec<String> {
        let mut findings = Vec::new();
        for row in &self.rows {
            let failed = row.reads.failed + row.writes.failed;
            if failed > 0 {
                findings.push(format!("{}: {failed} operations failed.", row.label));
            }
        }
        let of = |strategy: &str| {
            let mut rows = self.rows.iter();
            rows.find(|row| row.strategy == strategy && row.lease_aware)
        };
        for strategy in ["quorum", "cost"] {
            let Some(row) = of(strategy) else { continue };
            if let Some(all) = of("all") {
                findings.push(compared("Reads", row, all, |row| row.reads));
            }
            if let Some(leader) = of("leader") {
                findings.push(compared("Writes", row, leader, |row| row.writes));
            }
        }
        findings
    }

    fn tables(&self) -> Vec<Table> {
        let columns = [
            "",
            "strategy",
            "clients",
            "a second",
            "server CPU, µs each",
            "a second at a processor each",
            "the paper",
            "local",
            "p50 µs",
            "p99 µs",
        ];
        let table = |title: &str, reads: bool| {
            let mut table = Table::new(title, &columns);
            table.words_first = 3;
            table.rows = self.rows.iter().map(|row| cells(row, reads)).collect();
            table
        };
        vec![table("Reads", true), table("Writes", false)]
    }

    fn figures(&self) -> Vec<Figure> {
        let chart = |name: &str, title: &str, value: &dyn Fn(&CaseRow) -> f64| Figure {
            name: name.to_owned(),
            caption: title.to_owned(),
            svg: self.bars(title, value),
        };
        vec![
            chart("reads", "Reads a second, in thousands", &|row| {
                row.reads.per_s / 1e3
            }),
            chart("writes", "Writes a second, in thousands", &|row| {
                row.writes.per_s / 1e3
            }),
            chart(
                "reads-at-a-processor-each",
                "Reads a second if every replica had a processor for itself, in thousands",
                &|row| row.reads.at_a_processor_each() / 1e3,
            ),
            chart(
                "writes-at-a-processor-each",
                "Writes a second if every replica had a processor for itself, in thousands",
                &|row| row.writes.at_a_processor_each() / 1e3,
            ),
            chart("cpu-reads", "Server CPU for a read, in µs", &|row| {
                row.reads.cpu_us
            }),
            chart("cpu-writes", "Server CPU for a write, in µs", &|row| {
                row.writes.cpu_us
            }),
        ]
    }

    fn bars(&self, title: &str, value: &dyn Fn(&CaseRow) -> f64) -> Svg {
        let mut svg = Svg::new(WIDTH, HEIGHT, title);
        let heading = Lettering::small(Ink::Muted, Anchor::Start);
        svg.text((LEFT, TOP - 34.0), title, heading);
        let most = self.rows.iter().map(value).fold(0.0, f64::max);
        let slot = (WIDTH - 2.0 * LEFT) / self.rows.len().max(1) as f64;
        let base = TOP + PLOT_HEIGHT;
        for (place, row) in self.rows.iter().enumerate() {
            let value = value(row);
            let height = if most > 0.0 {
                value / most * PLOT_HEIGHT
            } else {
                0.0
            };
            let left = LEFT + slot * (place as f64 + 0.2);
            let ink = if row.lease_aware {
                Ink::Series(look(&row.strategy))
            } else {
                Ink::Series(look(&row.strategy)).pale()
            };
            svg.rect((left, base - height), (slot * 0.6, height), ink);
            let middle = left + slot * 0.3;
            let small = |ink| Lettering::small(ink, Anchor::Middle);
            svg.text_over(
                (middle, base - height - 6.0),
                &short(value),
                small(Ink::Text),
            );
            svg.text((middle, base + 20.0), &row.label, small(Ink::Text));
            svg.text((middle, base + 38.0), &row.strategy, small(Ink::Muted));
        }
        let axis = Stroke::plain(Ink::Muted, 1.0);
        svg.line((LEFT, base), (WIDTH - LEFT, base), axis);
        svg
    }

    fn setting(&self) -> [String; 2] {
        let it = &self.experiment;
        [
            format!(
                "{} replicas and their clients share one machine ({}), so the totals are bounded by \
                 its processors. The load generator takes up to {} of them. {} keys, all asked for \
                 alike, values of {} bytes, durability {}; {} connections with {} operations in \
                 flight on each; {} s of reads, then {} s of writes, {} of them: medians.",
                it.replicas.len(),
                self.manifest.cpu,
                it.cores,
                grouped(it.keys),
                it.value_bytes,
                it.durability.name(),
                it.connections,
                it.in_flight,
                it.seconds,
                it.seconds,
                it.runs
            ),
            "Server CPU is the user and system time of all replicas together, for each operation. \
             \"A second at a processor each\" is what the replica with most of that time would \
             serve on a processor of its own, with its share of the operations: the paper's \
             replicas had a machine each. Clients that know who holds a key (lease-aware) ask \
             holders in turn, and the leader for writes; the others ask the replica that they are \
             connected to. Holders were chosen while clients asked all replicas alike."
                .to_owned(),
        ]
    }

    fn title(&self) -> String {
        format!(
            "{}: reads and writes a second on one site",
            self.experiment.name
        )
    }

    fn markdown(&self) -> String {
        let mut text = format!("# {}\n\n{}\n\n", self.title(), self.experiment.description);
        for paragraph in self.setting() {
            text.push_str(&format!("{paragraph}\n\n"));
        }
        for finding in self.findings() {
            text.push_str(&format!("- {finding}\n"));
        }
        for figure in self.figures() {
            let name = figure.name;
            text.push_str(&format!("\n![{name}](plots/{name}.svg)\n"));
        }
        for table in self.tables() {
            text.push_str(&format!("\n{}", table.markdown()));
        }
        let command = self.manifest.command.join(" ");
        let revision = self.manifest.revision_shown();
        text.push_str(&format!(
            "\n## How to repeat this\n\n`{command}`, revision {revision}, {}\n\n```toml\n{}```\n",
            self.manifest.kernel,
            self.experiment.to_toml()
        ));
        text
    }

    fn html(&self, figures: &[Figure]) -> String {
        let mut body = String::from("<section>\n<h2>In brief</h2>\n");
        for paragraph in self.setting() {
            body.push_str(&format!("<p>{}</p>\n", escape(&paragraph)));
        }
        let findings = self.findings();
        let items = findings
            .iter()
            .map(|it| format!("<li>{}</li>\n", escape(it)));
        body.push_str(&format!("<ul>\n{}</ul>\n", items.collect::<String>()));
        for figure in figures {
            let (svg, caption) = (figure.svg.inline(), escape(&figure.caption));
            body.push_str(&format!(
                "<figure class=\"plot\"><div>{svg}</div><figcaption>{caption}</figcaption></figure>\n"
            ));
        }
        for table in self.tables() {
            body.push_str(&table.html());
        }
        body.push_str(&format!(
            "</section>\n<section>\n<h2>How to repeat this</h2>\n<p>{}</p>\n<pre>{}</pre>\n</section>\n",
            escape(&self.manifest.command.join(" ")),
            escape(&self.experiment.to_toml())
        ));
        let lead = format!("local backend, revision {}", self.manifest.revision_shown());
        page::whole(&self.title(), &lead, &self.experiment.description, &body)
    }
}

/// Compares two cases by their measured rates, and by the processor time of the busiest replica.
fn compared(
    what: &str,
    row: &CaseRow,
    other: &CaseRow,
    rate: impl Fn(&CaseRow) -> OperationThroughput,
) -> String {
    let (mine, its) = (rate(row), rate(other));
    let against = |value: Value| {
        let base = value(&its);
        let change = if base > 0.0 {
            (value(&mine) / base - 1.0) * 100.0
        } else {
            0.0
        };
        format!("{change:+.1}%")
    };
    format!(
        "{what} of {} against {}: {} measured, {} at a processor each, server CPU {}.",
        row.label,
        other.label,
        against(|rate| rate.per_s),
        against(OperationThroughput::at_a_processor_each),
        against(|rate| rate.cpu_us)
    )
}

/// Returns the index of a strategy's colour. A strategy has the same colour in every report.
fn look(strategy: &str) -> usize {
    match strategy {
        "quorum" => 0,
        "leader" => 1,
        "all" => 2,
        "cost" => 3,
        "fixed" => 4,
        _ => 5,
    }
}

fn cells(row: &CaseRow, reads: bool) -> Vec<String> {
    let rate = if reads { row.reads } else { row.writes };
    let thousands = |per_s: f64| grouped(per_s.round() as u64);
    let mut paper = PAPER.iter();
    let paper = paper.find(|it| it.0 == row.strategy && it.1 == row.lease_aware);
    let paper = paper.and_then(|it| if reads { Some(it.2) } else { it.3 });
    let local = if reads {
        percent(rate.local_fraction)
    } else {
        "–".to_owned()
    };
    vec![
        row.label.clone(),
        row.strategy.clone(),
        if row.lease_aware {
            "lease-aware"
        } else {
            "oblivious"
        }
        .to_owned(),
        thousands(rate.per_s),
        format!("{:.2}", rate.cpu_us),
        thousands(rate.at_a_processor_each()),
        paper.map_or_else(|| "–".to_owned(), |thousands| format!("{thousands}K")),
        local,
        format!("{:.0}", rate.p50_us),
        format!("{:.0}", rate.p99_us),
    ]
}

/// Formats a value. Values below 10 have two decimals, values below 100 have one decimal, and
/// greater values have none.
fn short(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(per_s: f64, busiest_us: f64) -> OperationThroughput {
        OperationThroughput {
            per_s,
            busiest_us,
            cpu_us: busiest_us * 2.0,
            ..OperationThroughput::default()
        }
    }

    fn report(failed: u64) -> ThroughputReport {
        let experiment = ThroughputExperiment::find("fig8", &[]).unwrap().unwrap();
        let measured = |reads: f64, writes: f64| CaseThroughput {
            reads: OperationThroughput {
                failed,
                ..rate(reads, 1e6 / reads)
            },
            writes: rate(writes, 1e6 / writes),
        };
        let figures = [(150e3, 100e3), (600e3, 60e3), (582e3, 91e3), (200e3, 80e3)];
        let cases = experiment.cases.clone().into_iter().zip(figures);
        let results = cases.map(|(case, (reads, writes))| {
            let runs = [0.9, 1.0, 1.3].map(|by| measured(reads * by, writes * by));
            (case, runs.to_vec())
        });
        let results = results.collect();
        ThroughputReport::new(
            experiment,
            Manifest::capture(vec!["leasehold".into()]),
            results,
        )
    }

    #[test]
    fn medians_are_compared_and_stand_beside_the_papers_figures() {
        let text = report(0).terminal();
        assert!(text.contains("582,000"), "{text}");
        assert!(text.contains("584K") && text.contains("206K"), "{text}");
        assert!(
            text.contains("Reads of QL against ML: -3.0% measured"),
            "{text}"
        );
        assert!(
            text.contains("Writes of QL against LL: -9.0% measured"),
            "{text}"
        );
        assert!(!text.contains("failed"), "{text}");
        assert!(report(1).terminal().contains("LL: 3 operations failed."));
    }

    #[test]
    fn all_files_are_written() {
        let dir = tempfile::tempdir().unwrap();
        report(0).write(dir.path()).unwrap();
        for file in [
            "manifest.json",
            "summary.json",
            "report.md",
            "report.html",
            "plots/reads.svg",
            "plots/cpu-writes.svg",
        ] {
            assert!(dir.path().join(file).exists(), "{file}");
        }
        let page = std::fs::read_to_string(dir.path().join("report.html")).unwrap();
        assert!(page.contains("<svg") && page.contains("QL-oblivious"));
        let summary = std::fs::read(dir.path().join("summary.json")).unwrap();
        let summary: serde_json::Value = serde_json::from_slice(&summary).unwrap();
        assert_eq!(summary["cases"][2]["reads"]["per_s"], 582e3);
        assert_eq!(summary["cases"][2]["runs"].as_array().unwrap().len(), 3);
    }
}
