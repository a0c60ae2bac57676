//! Bars that show a share for each site, next to the share under perfect bookkeeping and the share
//! in the paper.

use super::{ExperimentReport, Figure, LEFT, LegendKey, RIGHT, WIDTH, legend, looks};
use crate::report::paper;
use crate::report::summary::{ExperimentSummary, SiteSummary};
use crate::report::svg::{Anchor, Ink, Lettering, Stroke, Svg};

const TOP: f64 = 80.0;
const PLOT_HEIGHT: f64 = 210.0;
const HEIGHT: f64 = TOP + PLOT_HEIGHT + 34.0;
/// Gap between the bars of two sites, as a fraction of the horizontal space for one site.
const GAP: f64 = 0.2;
const BAR_WIDTH_MAX: f64 = 44.0;

/// One bar. Shares are from 0 to 1.
struct Bar {
    share: f64,
    /// Part of the share that is shown in a pale colour, at the top of the bar.
    pale: f64,
    bookkeeping: Option<f64>,
    paper: Option<f64>,
}

pub(super) fn local_reads(report: &ExperimentReport, summary: &ExperimentSummary) -> Figure {
    let bar = |run: usize, site: &SiteSummary| Bar {
        share: site.reads.local_fraction,
        pale: site.reads.held_fraction,
        bookkeeping: site.reads.bookkeeping_fraction,
        paper: paper::local_reads(report, &report.runs[run], &site.site).map(|p| p / 100.0),
    };
    Figure {
        name: "local-reads".to_owned(),
        caption: format!(
            "Share of each site's reads that its own replica answered under its lease; the pale \
             part was held back by a write in flight.{}",
            legend_words(&bars_of(summary, &bar), "for this site")
        ),
        svg: chart(report, summary, "Local reads, % of reads", &bar),
    }
}

pub(super) fn writes_at_minimum(report: &ExperimentReport, summary: &ExperimentSummary) -> Figure {
    let bar = |run: usize, site: &SiteSummary| Bar {
        share: site.writes.min_latency_fraction,
        pale: 0.0,
        bookkeeping: site.writes.bookkeeping_fraction,
        paper: paper::writes_at_minimum(report, &report.runs[run]).map(|p| p / 100.0),
    };
    Figure {
        name: "writes-at-minimum".to_owned(),
        caption: format!(
            "Share of each site's writes within {} of the least latency that any strategy allows \
             there.{}",
            summary.minimum_tolerance,
            legend_words(&bars_of(summary, &bar), "for all sites together")
        ),
        svg: chart(
            report,
            summary,
            "Writes at their minimum, % of writes",
            &bar,
        ),
    }
}

/// Returns the bars of all runs. The first index is the run, and the second is the site.
fn bars_of(summary: &ExperimentSummary, bar: &dyn Fn(usize, &SiteSummary) -> Bar) -> Vec<Vec<Bar>> {
    let runs = summary.runs.iter().enumerate();
    runs.map(|(run, figures)| figures.sites.iter().map(|site| bar(run, site)).collect())
        .collect()
}

/// Returns the explanation of the marks that the figure contains.
fn legend_words(bars: &[Vec<Bar>], whose: &str) -> String {
    let mut words = String::new();
    if bars.iter().flatten().any(|bar| bar.bookkeeping.is_some()) {
        words.push_str(
            " The tick is what the policy of quorum leases would have reached with perfect \
             bookkeeping of the reads so far.",
        );
    }
    if bars.iter().flatten().any(|bar| bar.paper.is_some()) {
        words.push_str(&format!(" The diamond is what the paper reports {whose}."));
    }
    words
}

fn chart(
    report: &ExperimentReport,
    summary: &ExperimentSummary,
    title: &str,
    bar: &dyn Fn(usize, &SiteSummary) -> Bar,
) -> Svg {
    let mut svg = Svg::new(WIDTH, HEIGHT, title);
    let looks = looks(&report.runs);
    let bars = bars_of(summary, bar);
    draw_legend(&mut svg, report, &looks, &bars);
    frame(&mut svg, title);
    let sites = report.topology.len();
    let site_width = (WIDTH - LEFT - RIGHT) / sites as f64;
    for (site, name) in report.topology.names().into_iter().enumerate() {
        let middle = LEFT + (site as f64 + 0.5) * site_width;
        let look = Lettering {
            anchor: Anchor::Middle,
            ..Lettering::title()
        };
        svg.text((middle, TOP + PLOT_HEIGHT + 21.0), name, look);
        let of_site = bars.iter().map(|of_run| &of_run[site]);
        let inks = looks.iter().map(|look| Ink::Series(*look));
        draw_group(&mut svg, middle, site_width, of_site.zip(inks).collect());
    }
    svg
}

/// Draws the bars of one site next to each other.
fn draw_group(svg: &mut Svg, middle: f64, site_width: f64, bars: Vec<(&Bar, Ink)>) {
    let bar_width = site_width * (1.0 - GAP) / bars.len().max(1) as f64;
    let bar_width = bar_width.min(BAR_WIDTH_MAX);
    let first = middle - bar_width * bars.len() as f64 / 2.0;
    for (run, (bar, ink)) in bars.into_iter().enumerate() {
        let left = first + run as f64 * bar_width;
        draw_bar(svg, bar, left, bar_width, ink);
    }
}

fn draw_legend(svg: &mut Svg, report: &ExperimentReport, looks: &[usize], bars: &[Vec<Bar>]) {
    let runs = report.runs.iter().zip(looks);
    let mut entries: Vec<(LegendKey, String)> = runs
        .map(|(run, &look)| (LegendKey::Box(Ink::Series(look)), run.label.clone()))
        .collect();
    if bars.iter().flatten().any(|bar| bar.pale > 0.0) {
        entries.push((LegendKey::Pale, "held back by a write in flight".to_owned()));
    }
    if bars.iter().flatten().any(|bar| bar.bookkeeping.is_some()) {
        entries.push((LegendKey::Tick, "perfect bookkeeping".to_owned()));
    }
    if bars.iter().flatten().any(|bar| bar.paper.is_some()) {
        entries.push((LegendKey::Diamond, "the paper".to_owned()));
    }
    legend(svg, &entries, 18.0);
}

fn y(share: f64) -> f64 {
    TOP + (1.0 - share.clamp(0.0, 1.0)) * PLOT_HEIGHT
}

fn frame(svg: &mut Svg, title: &str) {
    svg.text(
        (LEFT, TOP - 24.0),
        title,
        Lettering::small(Ink::Muted, Anchor::Start),
    );
    for percent in [0, 25, 50, 75, 100] {
        let y = y(f64::from(percent) / 100.0);
        let ink = if percent == 0 { Ink::Muted } else { Ink::Grid };
        svg.line((LEFT, y), (WIDTH - RIGHT, y), Stroke::plain(ink, 1.0));
        let look = Lettering::small(Ink::Muted, Anchor::End);
        svg.text((LEFT - 7.0, y + 4.0), percent, look);
    }
}

fn draw_bar(svg: &mut Svg, bar: &Bar, left: f64, width: f64, ink: Ink) {
    let (inner, inner_width) = (left + 1.5, width - 3.0);
    let top = y(bar.share);
    let solid = y(bar.share - bar.pale);
    svg.rect((inner, solid), (inner_width, y(0.0) - solid), ink);
    svg.rect((inner, top), (inner_width, solid - top), ink.pale());
    let middle = left + width / 2.0;
    let mut label_y = top - 6.0;
    if let Some(books) = bar.bookkeeping {
        let y = y(books);
        let (from, to) = ((left - 1.0, y), (left + width + 1.0, y));
        svg.line(from, to, Stroke::plain(Ink::Text, 2.6));
        label_y = above(label_y, y);
    }
    if let Some(paper) = bar.paper {
        let y = y(paper);
        svg.diamond((middle, y), 5.0, Ink::Surface, Ink::Text);
        label_y = above(label_y, y - 4.0);
    }
    let look = Lettering::small(Ink::Text, Anchor::Middle);
    let percent = format!("{:.0}", bar.share * 100.0);
    svg.text_over((middle, label_y), &percent, look);
}

/// Returns the vertical position for the number above a bar. The result is `label_y`, or a higher
/// position if a mark at `mark_y` would cross a number at `label_y`.
fn above(label_y: f64, mark_y: f64) -> f64 {
    let crossed = label_y - 15.0..=label_y + 6.0;
    if crossed.contains(&mark_y) {
        mark_y - 6.0
    } else {
        label_y
    }
}
