//! The report as a list of sections. The report is written as a self-contained page and as
//! Markdown.

use super::digest::Digest;
use super::figures::{self, Figure};
use super::summary::ExperimentSummary;
use super::svg::{SERIES_DARK, SERIES_LIGHT, escape};
use super::table::Table;
use super::{
    ExperimentReport, operation_cost, outage, placement, prose, switches, tables, time_series,
};

/// Style sheet of the page. Colours are defined as variables, and the plots use the same variables.
const STYLE: &str = include_str!("page.css");

/// Part of a report.
#[derive(Default)]
struct Section {
    heading: &'static str,
    warnings: Vec<String>,
    paragraphs: Vec<String>,
    /// Names of the plots. The plots are shown before the tables.
    figures: Vec<String>,
    tables: Vec<Table>,
    /// Notes, shown as a list after everything else.
    notes: Vec<String>,
    /// Preformatted text.
    verbatim: Option<String>,
}

fn sections(report: &ExperimentReport, summary: &ExperimentSummary) -> Vec<Section> {
    let mut sections = Vec::from(results(report, summary));
    if time_series::is_shown(report) {
        sections.insert(1, over_time(report, summary));
    }
    sections.extend(switches::parts_table(summary).map(|table| Section {
        heading: "Parts of the key space",
        tables: vec![table],
        ..Section::default()
    }));
    if !report.all_events().is_empty() {
        sections.push(events_section(report, summary));
    }
    sections.extend([
        Section {
            heading: "Every site",
            paragraphs: vec![prose::tables_note(summary)],
            tables: [tables::per_run(report, summary), tables::details(summary)].concat(),
            ..Section::default()
        },
        Section {
            heading: "The network",
            paragraphs: prose::network(report),
            tables: vec![tables::network(report)],
            ..Section::default()
        },
        repeat(report, summary),
    ]);
    sections
}

/// Returns the sections that show the measurements: latencies, local reads, and writes at their
/// minimum latency.
fn results(report: &ExperimentReport, summary: &ExperimentSummary) -> [Section; 5] {
    [
        Section {
            heading: "In brief",
            warnings: prose::warnings(report, summary),
            paragraphs: vec![prose::setting(report)],
            figures: vec!["headline".to_owned()],
            tables: vec![
                tables::overview(report, summary),
                tables::measured(report, summary),
            ],
            notes: prose::notes(report),
            ..Section::default()
        },
        Section {
            heading: "How long operations took",
            paragraphs: prose::reading_the_curves(report),
            figures: vec!["cdf".to_owned()],
            ..Section::default()
        },
        Section {
            heading: "What true rates allow",
            paragraphs: placement::prose(summary),
            tables: placement::table(summary)
                .into_iter()
                .chain(placement::optimum(report, summary))
                .collect(),
            ..Section::default()
        },
        Section {
            heading: "Local reads, and what learning allows",
            paragraphs: prose::learning(report, summary),
            figures: vec!["local-reads".to_owned()],
            tables: (tables::learning(report, summary).into_iter())
                .chain(operation_cost::table(summary))
                .collect(),
            ..Section::default()
        },
        Section {
            heading: "Writes at their minimum",
            paragraphs: prose::minimum(report, summary),
            figures: vec!["writes-at-minimum".to_owned()],
            tables: vec![tables::minimum(report, summary)],
            ..Section::default()
        },
    ]
}

fn over_time(report: &ExperimentReport, summary: &ExperimentSummary) -> Section {
    Section {
        heading: "Over time",
        paragraphs: [
            time_series::prose(report),
            switches::prose(report).into_iter().collect(),
        ]
        .concat(),
        figures: vec![figures::time_series::NAME.to_owned()],
        tables: time_series::table(summary)
            .into_iter()
            .chain(switches::table(report))
            .collect(),
        ..Section::default()
    }
}

fn events_section(report: &ExperimentReport, summary: &ExperimentSummary) -> Section {
    let faulty = report.runs.iter().filter(|run| !run.faults.is_empty());
    let outages = summary
        .runs
        .iter()
        .filter_map(|run| outage::table(&run.label, &run.outage_groups));
    Section {
        heading: "What happened, and what clients saw of it",
        paragraphs: if report.has_faults() {
            prose::reading_the_outages()
        } else {
            Vec::new()
        },
        figures: faulty.map(figures::timeline_name).collect(),
        tables: outages
            .chain([tables::events(report)])
            .filter(|table| !table.rows.is_empty())
            .collect(),
        notes: prose::configurations(report),
        ..Section::default()
    }
}

fn repeat(report: &ExperimentReport, summary: &ExperimentSummary) -> Section {
    let m = &report.manifest;
    let durations = report.runs.iter().map(|run| match run.virtual_s {
        Some(virtual_s) => format!("{} {:.1} s for {virtual_s:.1} s", run.label, run.wall_s),
        None => format!("{} {:.1} s", run.label, run.wall_s),
    });
    let durations: Vec<String> = durations.collect();
    let facts = [
        ("command", m.command.join(" ")),
        ("seed", report.seed.to_string()),
        ("backend", report.backend.clone()),
        (
            "source",
            format!("version {}, revision {}", m.version, m.revision_shown()),
        ),
        ("compiler", m.compiler.clone()),
        (
            "machine",
            format!("{}, {}, clock {}", m.cpu, m.kernel, m.clock),
        ),
        ("took", durations.join("; ")),
    ];
    let mut table = Table::new("What was run", &["", ""]);
    table.words = true;
    table.rows = facts.map(|(name, fact)| vec![name.to_owned(), fact]).into();
    Section {
        heading: "How to repeat this",
        paragraphs: vec!["The effective experiment, every default and override in it:".to_owned()],
        tables: std::iter::once(table)
            .chain(tables::counters(summary))
            .collect(),
        verbatim: Some(report.experiment.to_toml()),
        ..Section::default()
    }
}

fn title(report: &ExperimentReport, summary: &ExperimentSummary) -> String {
    format!(
        "{}: {}",
        report.experiment.name,
        prose::finding(report, summary)
    )
}

pub(super) fn markdown(report: &ExperimentReport, summary: &ExperimentSummary) -> String {
    let mut text = format!("# {}\n", title(report, summary));
    text.push_str(&format!("\n{}\n", report.experiment.description));
    for section in sections(report, summary) {
        text.push_str(&format!("\n## {}\n\n", section.heading));
        for warning in &section.warnings {
            text.push_str(&format!("> **{warning}**\n\n"));
        }
        for paragraph in &section.paragraphs {
            text.push_str(&format!("{paragraph}\n\n"));
        }
        for name in &section.figures {
            text.push_str(&format!("![{name}](plots/{name}.svg)\n\n"));
        }
        for table in &section.tables {
            text.push_str(&format!("{}\n", table.markdown()));
        }
        for note in &section.notes {
            text.push_str(&format!("- {note}\n"));
        }
        if let Some(verbatim) = &section.verbatim {
            text.push_str(&format!("```toml\n{verbatim}```\n"));
        }
    }
    text
}

pub(super) fn html(
    report: &ExperimentReport,
    digests: &[Digest],
    summary: &ExperimentSummary,
) -> String {
    let figures = figures::all(report, digests, summary);
    let title = title(report, summary);
    let lead = format!(
        "{} backend, seed {}, revision {}",
        report.backend,
        report.seed,
        report.manifest.revision_shown()
    );
    let parts = sections(report, summary);
    let body: String = parts
        .iter()
        .map(|section| html_section(section, &figures))
        .collect();
    whole(&title, &lead, &report.experiment.description, &body)
}

/// Returns an HTML page that needs no other file.
pub(super) fn whole(title: &str, lead: &str, description: &str, body: &str) -> String {
    let [title, lead, description] = [title, lead, description].map(escape);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <style>\n{}\n{STYLE}</style>\n</head>\n<body>\n<main>\n<header><p class=\"lead\">{lead}</p>\
         <h1>{title}</h1><p class=\"lead\">{description}</p></header>\n{body}</main>\n</body>\n</html>\n",
        series_variables()
    )
}

/// Returns the style sheet variables for the colours of the series (`--s0` and so on), for a light
/// and for a dark background.
fn series_variables() -> String {
    let list = |colours: &[&str]| -> String {
        let numbered = colours.iter().enumerate();
        numbered
            .map(|(i, colour)| format!("--s{i}:{colour};"))
            .collect()
    };
    format!(
        ":root{{{}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{}}}}}",
        list(&SERIES_LIGHT),
        list(&SERIES_DARK)
    )
}

fn html_section(section: &Section, figures: &[Figure]) -> String {
    let mut html = format!("<section>\n<h2>{}</h2>\n", escape(section.heading));
    for warning in &section.warnings {
        html.push_str(&format!("<p class=\"warning\">{}</p>\n", escape(warning)));
    }
    for paragraph in &section.paragraphs {
        html.push_str(&format!("<p>{}</p>\n", escape(paragraph)));
    }
    if let Some(verbatim) = &section.verbatim {
        html.push_str(&format!("<pre>{}</pre>\n", escape(verbatim)));
    }
    for name in &section.figures {
        for figure in figures.iter().filter(|figure| &figure.name == name) {
            let (svg, caption) = (figure.svg.inline(), escape(&figure.caption));
            html.push_str(&format!(
                "<figure class=\"plot\"><div>{svg}</div><figcaption>{caption}</figcaption></figure>\n"
            ));
        }
    }
    for table in &section.tables {
        html.push_str(&table.html());
    }
    if !section.notes.is_empty() {
        let notes = section.notes.iter();
        let items: String = notes
            .map(|note| format!("<li>{}</li>\n", escape(note)))
            .collect();
        html.push_str(&format!("<ul>\n{items}</ul>\n"));
    }
    html.push_str("</section>\n");
    html
}
