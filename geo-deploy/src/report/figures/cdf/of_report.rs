//! The distributions of a report's runs, with the bounds of their strategies.

use super::{Cdf, Curves};
use crate::report::digest::{Class, Digest};
use crate::report::figures::looks;
use crate::report::summary::{ExperimentSummary, SiteSummary};
use crate::report::{ExperimentReport, svg::Ink};

pub(in super::super::super) fn of_report(
    report: &ExperimentReport,
    digests: &[Digest],
    summary: &ExperimentSummary,
) -> Cdf {
    let looks = looks(&report.runs);
    let labels = report.runs.iter().map(|run| run.label.clone());
    let panel = |site: usize, class: Class| Curves {
        curves: digests
            .iter()
            .zip(&looks)
            .map(|(digest, look)| (*look, digest.of(class)[site].steps().collect()))
            .collect(),
        bounds: bounds(summary, site, class, &looks),
    };
    let names = report.topology.names().into_iter().enumerate();
    Cdf {
        title: format!("Latency distributions of {}", report.experiment.name),
        names: looks.iter().copied().zip(labels).collect(),
        rows: names
            .map(|(site, name)| (name.to_owned(), Class::BOTH.map(|class| panel(site, class))))
            .collect(),
    }
}

fn bounds(
    summary: &ExperimentSummary,
    site: usize,
    class: Class,
    looks: &[usize],
) -> Vec<(f64, Ink)> {
    let rows = || summary.runs.iter().filter_map(|run| run.sites.get(site));
    let of = |row: &SiteSummary| match class {
        Class::Reads => row.reads.bounds_ms.clone(),
        Class::Writes => row.writes.bounds_ms.clone(),
    };
    let minimum = match class {
        Class::Reads => None,
        Class::Writes => rows().next().map(|row| row.writes.bound_ms),
    };
    let coloured = rows()
        .zip(looks)
        .flat_map(|(row, look)| of(row).into_iter().map(|bound| (bound, Ink::Series(*look))));
    // Bounds that equal the minimum share its line.
    let apart = |(bound, _): &(f64, Ink)| minimum.is_none_or(|m| (bound - m).abs() > m * 0.005);
    let muted = minimum.map(|bound| (bound, Ink::Muted));
    coloured.filter(apart).chain(muted).collect()
}
