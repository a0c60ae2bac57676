//! The main result: mean, median and 99th percentile of the latency of all operations, by strategy
//! and site.

use super::{
    ExperimentReport, Figure, LEFT, LegendKey, RIGHT, WIDTH, legend, looks, ms_label,
    one_two_five_above,
};
use crate::report::summary::{ExperimentSummary, RunSummary};
use crate::report::svg::{Anchor, Ink, Lettering, Stroke, Svg};

const TOP: f64 = 52.0;
const PLOT_HEIGHT: f64 = 108.0;
const ROW_HEIGHT: f64 = PLOT_HEIGHT + 56.0;
/// Gap between two groups of bars, as a fraction of the width of a group.
const GAP: f64 = 0.16;
const BAR_WIDTH_MAX: f64 = 42.0;
/// Minimum space between the numbers above two adjacent bars, in pixels.
const FIGURE_GAP: f64 = 4.0;
/// Width of a digit, as a fraction of the font size.
const DIGIT_WIDTH: f64 = 0.636;

/// Function that returns the values of one row of the figure: first the value over all sites, then
/// one value for each site.
type Values = fn(&RunSummary) -> Vec<f64>;

pub(super) fn figure(report: &ExperimentReport, summary: &ExperimentSummary) -> Figure {
    let rows: [(&str, Values); 3] = [
        ("mean latency, ms", |run| {
            let sites = run.sites.iter().map(|site| site.all.mean_ms);
            std::iter::once(run.mean_ms).chain(sites).collect()
        }),
        ("median latency, ms", |run| {
            let sites = run.sites.iter().map(|site| site.all.p50_ms);
            std::iter::once(run.p50_ms).chain(sites).collect()
        }),
        ("99th percentile, ms", |run| {
            let sites = run.sites.iter().map(|site| site.all.p99_ms);
            std::iter::once(run.p99_ms).chain(sites).collect()
        }),
    ];
    let height = TOP + rows.len() as f64 * ROW_HEIGHT;
    let mut svg = Svg::new(WIDTH, height, "Latency by strategy and site");
    let looks = looks(&report.runs);
    let labels = report.runs.iter().zip(&looks);
    let entries: Vec<(LegendKey, String)> = labels
        .map(|(run, look)| (LegendKey::Box(Ink::Series(*look)), run.label.clone()))
        .collect();
    legend(&mut svg, &entries, 18.0);
    for (row, (title, values)) in rows.into_iter().enumerate() {
        let mut groups = vec!["all operations"];
        groups.extend(report.topology.names());
        let chart = LatencyChart {
            top: TOP + row as f64 * ROW_HEIGHT + 22.0,
            title,
            groups,
            runs: summary.runs.iter().map(values).collect(),
        };
        chart.draw(&mut svg, &looks);
    }
    Figure {
        name: "headline".to_owned(),
        caption: "Mean, median and 99th percentile of the latency of all operations, reads and \
                  writes together, of every site and of each. Lower is better. \"All operations\" \
                  counts every operation once, so sites that make more of them weigh more."
            .to_owned(),
        svg,
    }
}

struct LatencyChart<'a> {
    top: f64,
    title: &'a str,
    groups: Vec<&'a str>,
    /// Values of the bars. The first index is the run, and the second is the group of bars.
    runs: Vec<Vec<f64>>,
}

impl LatencyChart<'_> {
    fn draw(&self, svg: &mut Svg, looks: &[usize]) {
        let greatest = self.runs.iter().flatten().copied().fold(0.0, f64::max);
        let most = tick_above(greatest.max(0.1));
        self.frame(svg, most);
        let group_width = (WIDTH - LEFT - RIGHT) / self.groups.len() as f64;
        let bar_width = group_width * (1.0 - GAP) / self.runs.len().max(1) as f64;
        let bar_width = bar_width.min(BAR_WIDTH_MAX);
        let figure_size = self.figure_size(bar_width);
        for (group, name) in self.groups.iter().enumerate() {
            let middle = LEFT + (group as f64 + 0.5) * group_width;
            let look = Lettering {
                anchor: Anchor::Middle,
                ..Lettering::title()
            };
            svg.text((middle, self.y(0.0) + 19.0), name, look);
            let first = middle - bar_width * self.runs.len() as f64 / 2.0;
            for (run, look) in looks.iter().enumerate() {
                let value = self.runs[run][group];
                let (left, top) = (first + run as f64 * bar_width, self.y(value / most));
                let size = (bar_width - 3.0, self.y(0.0) - top);
                svg.rect((left + 1.5, top), size, Ink::Series(*look));
                let small = Lettering {
                    size: figure_size,
                    ..Lettering::small(Ink::Text, Anchor::Middle)
                };
                let at = (left + bar_width / 2.0, top - 4.0);
                svg.text_over(at, &figure_of(value), small);
            }
        }
    }

    /// Returns a font size at which adjacent numbers above bars do not overlap.
    fn figure_size(&self, bar_width: f64) -> f64 {
        let values = self.runs.iter().flatten();
        let longest = values.map(|ms| figure_of(*ms).len()).max().unwrap_or(1);
        let fits = (bar_width - FIGURE_GAP) / (longest as f64 * DIGIT_WIDTH);
        fits.min(Lettering::small(Ink::Text, Anchor::Middle).size)
    }

    fn y(&self, share: f64) -> f64 {
        self.top + (1.0 - share.clamp(0.0, 1.0)) * PLOT_HEIGHT
    }

    fn frame(&self, svg: &mut Svg, most: f64) {
        for share in [0.0, 0.5, 1.0] {
            let y = self.y(share);
            let ink = if share == 0.0 { Ink::Muted } else { Ink::Grid };
            svg.line((LEFT, y), (WIDTH - RIGHT, y), Stroke::plain(ink, 1.0));
            let look = Lettering::small(Ink::Muted, Anchor::End);
            svg.text((LEFT - 7.0, y + 4.0), ms_label(share * most), look);
        }
        svg.upright((LEFT - 46.0, self.top + PLOT_HEIGHT / 2.0), self.title);
    }
}

/// Returns the upper end of an axis. The axis leaves space for the numbers above the bars.
fn tick_above(greatest: f64) -> f64 {
    let step = one_two_five_above(greatest / 5.0);
    (greatest * 1.08 / step).ceil() * step
}

/// Formats a value as a short number, which is shown above a bar.
fn figure_of(ms: f64) -> String {
    match ms {
        ms if ms >= 10.0 => format!("{ms:.0}"),
        ms => format!("{ms:.1}"),
    }
}
