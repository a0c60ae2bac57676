//! Distributions of latency: a panel per site for reads and one for writes, all
//! strategies in each, as in the paper's Figure 6.

use super::super::digest::{Class, Digest, Latencies};
use super::super::summary::{SiteSummary, Summary};
use super::super::svg::{Anchor, Ink, Lettering, Stroke, Svg};
use super::{Figure, Key, LEFT, LogAxis, RIGHT, Report, WIDTH, legend, looks, ms_label};

const TOP: f64 = 56.0;
/// Space below the panels for the note on bounds.
const FOOT: f64 = 18.0;
const PANEL_HEIGHT: f64 = 132.0;
const ROW_HEIGHT: f64 = PANEL_HEIGHT + 58.0;
const COLUMN_GAP: f64 = 48.0;
const BOUND_DASH: &str = "4 3";

pub(super) fn figure(report: &Report, digests: &[Digest], summary: &Summary) -> Figure {
    let sites = report.topology.len();
    let title = format!("Latency distributions of {}", report.experiment.name);
    let height = TOP + sites as f64 * ROW_HEIGHT + FOOT;
    let mut svg = Svg::new(WIDTH, height, &title);
    let looks = looks(&report.runs);
    draw_legend(&mut svg, report, &looks);
    let note = "thin dashes in a strategy's colour: its lower bound, by distance alone";
    let look = Lettering::small(Ink::Muted, Anchor::Start);
    svg.text((LEFT, height - 12.0), note, look);
    for (column, class) in Class::BOTH.into_iter().enumerate() {
        let axis = axis(extent(class, digests, summary), column);
        for site in 0..sites {
            let panel = Panel {
                class,
                axis,
                top: TOP + site as f64 * ROW_HEIGHT + 24.0,
            };
            let mut rows = summary.runs.iter().filter_map(|run| run.sites.get(site));
            panel.frame(&mut svg, report.topology.names()[site]);
            panel.bounds(&mut svg, &mut rows, &looks);
            // Solid lines first: patterned ones stay visible where they coincide.
            let mut order: Vec<usize> = (0..digests.len()).collect();
            order.sort_by_key(|&run| looks[run] != 0);
            for run in order {
                let latencies = &digests[run].of(class)[site];
                panel.curve(&mut svg, latencies, Stroke::series(looks[run]));
            }
        }
    }
    Figure {
        name: "cdf".to_owned(),
        caption: "Share of operations (up) answered within a time (across, logarithmic). \
                  Further left is faster. A thin dashed line is what distance alone costs that \
                  strategy; the grey one is the least any strategy can give a write there."
            .to_owned(),
        svg,
    }
}

fn draw_legend(svg: &mut Svg, report: &Report, looks: &[usize]) {
    let mut entries: Vec<(Key, String)> = report
        .runs
        .iter()
        .zip(looks)
        .map(|(run, &look)| (Key::Line(Stroke::series(look)), run.label.clone()))
        .collect();
    let minimum = Stroke::dashed(Ink::Muted, 1.4, BOUND_DASH);
    entries.push((Key::Line(minimum), "least possible write".to_owned()));
    legend(svg, &entries, 18.0);
}

/// One axis for a whole column, so that its panels can be compared.
fn axis((low, high): (f64, f64), column: usize) -> LogAxis {
    let width = (WIDTH - LEFT - RIGHT - COLUMN_GAP) / 2.0;
    let from_px = LEFT + column as f64 * (width + COLUMN_GAP);
    // Whole decades where there are several; else no more room than is needed.
    let from_ms = match high / low.max(0.001) > 30.0 {
        true => 10f64.powf(low.max(0.001).log10().floor()),
        false => low.max(0.001) * 0.85,
    };
    LogAxis {
        from_ms,
        to_ms: (high * 1.2).max(from_ms * 3.0),
        from_px,
        to_px: from_px + width,
    }
}

/// The shortest and the longest time that a column shows, in ms.
fn extent(class: Class, digests: &[Digest], summary: &Summary) -> (f64, f64) {
    let measured = digests.iter().flat_map(|digest| digest.of(class));
    let measured = measured.filter(|latencies| latencies.count() > 0);
    let (mut low, mut high) = (f64::INFINITY, 0f64);
    for latencies in measured {
        low = low.min(latencies.quantile_ms(0.0));
        // The longest hundred-thousandth would stretch the axis for nothing.
        high = high.max(latencies.quantile_ms(0.9999));
    }
    for site in summary.runs.iter().flat_map(|run| &run.sites) {
        let bounds = match class {
            Class::Reads => &site.reads.bounds_ms,
            Class::Writes => &site.writes.bounds_ms,
        };
        high = bounds.iter().copied().fold(high, f64::max);
        if class == Class::Writes && site.writes.bound_ms > 0.0 {
            low = low.min(site.writes.bound_ms);
        }
    }
    if !low.is_finite() || high <= 0.0 {
        (low, high) = (1.0, 1_000.0);
    }
    (low, high)
}

struct Panel {
    class: Class,
    axis: LogAxis,
    top: f64,
}

impl Panel {
    fn y(&self, share: f64) -> f64 {
        self.top + (1.0 - share) * PANEL_HEIGHT
    }

    fn frame(&self, svg: &mut Svg, site: &str) {
        let (left, right) = (self.axis.from_px, self.axis.to_px);
        let title = format!("{site}, {}", self.class.name());
        svg.text((left, self.top - 9.0), title, Lettering::title());
        for percent in [0, 25, 50, 75, 100] {
            let y = self.y(f64::from(percent) / 100.0);
            svg.line((left, y), (right, y), Stroke::plain(Ink::Grid, 1.0));
            if percent % 50 == 0 {
                let look = Lettering::small(Ink::Muted, Anchor::End);
                svg.text((left - 7.0, y + 4.0), format!("{percent}%"), look);
            }
        }
        let bottom = self.y(0.0);
        for (value, labelled) in self.axis.ticks() {
            let x = self.axis.place(value);
            svg.line((x, self.top), (x, bottom), Stroke::plain(Ink::Grid, 1.0));
            if labelled {
                let look = Lettering::small(Ink::Muted, Anchor::Middle);
                svg.text((x, bottom + 16.0), ms_label(value), look);
            }
        }
        svg.line(
            (left, bottom),
            (right, bottom),
            Stroke::plain(Ink::Muted, 1.0),
        );
        let look = Lettering::small(Ink::Muted, Anchor::End);
        svg.text((right, self.top - 9.0), "ms, logarithmic", look);
    }

    fn bounds(&self, svg: &mut Svg, rows: &mut dyn Iterator<Item = &SiteSummary>, looks: &[usize]) {
        let mut minimum = None;
        let mut coloured = Vec::new();
        for (row, &look) in rows.zip(looks) {
            let bounds = match self.class {
                Class::Reads => &row.reads.bounds_ms,
                Class::Writes => &row.writes.bounds_ms,
            };
            if self.class == Class::Writes {
                minimum = Some(row.writes.bound_ms);
            }
            coloured.extend(bounds.iter().map(|&bound| (bound, Ink::Series(look))));
        }
        // One line for bounds that fall together: the minimum's.
        coloured.retain(|(bound, _)| minimum.is_none_or(|m| (bound - m).abs() > m * 0.005));
        coloured.extend(minimum.map(|bound| (bound, Ink::Muted)));
        for (bound, ink) in coloured
            .into_iter()
            .filter(|(bound, _)| *bound >= self.axis.from_ms)
        {
            let x = self.axis.place(bound);
            let stroke = Stroke::dashed(ink, 1.4, BOUND_DASH);
            svg.line((x, self.top), (x, self.y(0.0)), stroke);
        }
    }

    fn curve(&self, svg: &mut Svg, latencies: &Latencies, stroke: Stroke) {
        if latencies.count() == 0 {
            return;
        }
        // Half a pixel is as fine as it can be seen.
        let x = |ms| (self.axis.place(ms) * 2.0).round() / 2.0;
        let mut points = vec![(x(latencies.quantile_ms(0.0)), self.y(0.0))];
        for (ms, share) in latencies.steps() {
            let x = x(ms);
            let first = points.len() == 1;
            match points.last_mut() {
                Some(last) if last.0 == x && !first => last.1 = self.y(share),
                _ => points.push((x, self.y(share))),
            }
        }
        points.push((self.axis.to_px, self.y(1.0)));
        svg.stairs(&points, stroke);
    }
}
