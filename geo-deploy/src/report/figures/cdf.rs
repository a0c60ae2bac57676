//! Distributions of latency. Each site has a panel for reads and one for writes, and each panel
//! shows all strategies, as in the paper's Figure 6. The figure is drawn in three forms: as a page,
//! in a wide form for slides, and as single panels that fit into a column of a paper.

mod of_report;
mod panel;

use super::{Figure, LEFT, LegendKey, LogAxis, RIGHT, file_name, legend};
use crate::report::digest::Class;
use crate::report::svg::{Anchor, Ink, Lettering, Stroke, Svg};
use panel::CdfPanel;

pub(in super::super) use of_report::of_report;

/// Space above the panels, for two rows of the legend.
const TOP: f64 = 56.0;
/// Space above a panel, for the title of the panel.
const HEAD: f64 = 24.0;
/// Space below a panel, for the horizontal axis.
const AXIS: f64 = 34.0;
/// Space below the panels, for the titles of the axes.
const FOOT: f64 = 22.0;
const BOUND_DASH: &str = "4 3";

/// Data for a figure of latency distributions. All forms of the figure show the same data.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Cdf {
    pub title: String,
    /// A number and a name for each curve, in the order of the legend. The number determines the
    /// colour and the line pattern of the curve.
    pub names: Vec<(usize, String)>,
    /// Name of each site, with two sets of curves: the first for the site's reads, the second for
    /// its writes.
    pub rows: Vec<(String, [Curves; 2])>,
}

/// Curves and bounds of one panel.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Curves {
    /// A number and the points for each curve. The number determines the colour and the line
    /// pattern of the curve. A point is a pair of a latency, in ms, and the share of operations (0
    /// to 1) that took at most this time.
    pub curves: Vec<(usize, Vec<(f64, f64)>)>,
    /// Lower bounds on the latency, in ms, with their colours. A bound of a strategy has the colour
    /// of this strategy. The bound for writes under all strategies has a muted colour.
    pub bounds: Vec<(f64, Ink)>,
}

/// Layout of one form of the figure. Sizes are in pixels.
struct CdfLayout {
    name: &'static str,
    width: f64,
    panel_height: f64,
    /// Space between columns.
    gap: f64,
    /// Whether the sites are arranged side by side. Otherwise, they are arranged one below the
    /// other.
    sites_across: bool,
}

const PAGE: CdfLayout = CdfLayout {
    name: "cdf",
    width: 1_000.0,
    panel_height: 132.0,
    gap: 58.0,
    sites_across: false,
};
const WIDE: CdfLayout = CdfLayout {
    name: "cdf-wide",
    width: 1_280.0,
    panel_height: 190.0,
    gap: 46.0,
    sites_across: true,
};
const SINGLE: CdfLayout = CdfLayout {
    name: "panels/cdf",
    width: 360.0,
    panel_height: 150.0,
    gap: 0.0,
    sites_across: false,
};

/// Returns the figure in several forms: for the page, in a wide form, and as single panels. Only
/// the classes (reads, writes) that were measured are shown.
pub(in super::super) fn figures(cdf: &Cdf) -> Vec<Figure> {
    let sites: Vec<usize> = (0..cdf.rows.len()).collect();
    let measured = |class: usize| {
        let mut panels = cdf.rows.iter().map(|(_, panels)| &panels[class]);
        panels.any(|panel| panel.curves.iter().any(|(_, steps)| !steps.is_empty()))
    };
    let classes: Vec<usize> = (0..2).filter(|class| measured(*class)).collect();
    let mut figures = vec![PAGE.draw(cdf, &sites, &classes, String::new())];
    figures.push(WIDE.draw(cdf, &sites, &classes, String::new()));
    for &site in &sites {
        for &class in &classes {
            let name = Class::BOTH[class].name();
            let suffix = format!("-{}-{name}", file_name(&cdf.rows[site].0));
            figures.push(SINGLE.draw(cdf, &[site], &[class], suffix));
        }
    }
    figures
}

impl CdfLayout {
    fn draw(&self, cdf: &Cdf, sites: &[usize], classes: &[usize], suffix: String) -> Figure {
        let (columns, rows) = if self.sites_across {
            (sites.len(), classes.len())
        } else {
            (classes.len(), sites.len())
        };
        let row_height = HEAD + self.panel_height + AXIS;
        let height = TOP + rows as f64 * row_height + FOOT;
        let mut svg = Svg::new(self.width, height, &cdf.title);
        draw_legend(&mut svg, cdf);
        let width = self.panel_width(columns);
        let left = |column: usize| LEFT + column as f64 * (width + self.gap);
        for (i, &site) in sites.iter().enumerate() {
            for (j, &class) in classes.iter().enumerate() {
                let (column, row) = if self.sites_across { (i, j) } else { (j, i) };
                let (low, high) = extent(class, cdf);
                let panel = CdfPanel {
                    axis: axis(low, high, left(column), width),
                    top: TOP + row as f64 * row_height + HEAD,
                    height: self.panel_height,
                };
                let (name, curves) = &cdf.rows[site];
                let what = Class::BOTH[class].name();
                panel.draw(&mut svg, &format!("{name}, {what}"), &curves[class]);
                if column == 0 {
                    let middle = panel.top + self.panel_height / 2.0;
                    let title = if self.sites_across || columns == 1 {
                        what
                    } else {
                        "operations"
                    };
                    svg.upright((LEFT - 46.0, middle), &format!("share of {title}"));
                }
            }
        }
        for column in 0..columns {
            let middle = left(column) + width / 2.0;
            let look = Lettering::small(Ink::Muted, Anchor::Middle);
            svg.text((middle, height - 14.0), "latency, ms (logarithmic)", look);
        }
        Figure {
            name: format!("{}{suffix}", self.name),
            caption: caption(cdf),
            svg,
        }
    }

    fn panel_width(&self, columns: usize) -> f64 {
        let gaps = self.gap * columns.saturating_sub(1) as f64;
        (self.width - LEFT - RIGHT - gaps) / columns.max(1) as f64
    }
}

fn has_bounds(cdf: &Cdf, muted: bool) -> bool {
    let panels = cdf.rows.iter().flat_map(|(_, panels)| panels);
    let mut bounds = panels.flat_map(|panel| &panel.bounds);
    bounds.any(|(_, ink)| (*ink == Ink::Muted) == muted)
}

fn draw_legend(svg: &mut Svg, cdf: &Cdf) {
    let line = |look: usize| LegendKey::Line(Stroke::series(look));
    let names = cdf.names.iter();
    let mut entries: Vec<(LegendKey, String)> = names
        .map(|(look, name)| (line(*look), name.clone()))
        .collect();
    let thin = |ink| LegendKey::Line(Stroke::dashed(ink, 1.4, BOUND_DASH));
    if has_bounds(cdf, true) {
        entries.push((thin(Ink::Muted), "least possible write".to_owned()));
    }
    legend(svg, &entries, 18.0);
}

fn caption(cdf: &Cdf) -> String {
    let mut caption = "Share of operations (up) answered within a time (across, logarithmic). \
                       Further left is faster."
        .to_owned();
    if has_bounds(cdf, false) {
        caption.push_str(
            " A thin dashed line in a strategy's colour is what distance alone costs it.",
        );
    }
    if has_bounds(cdf, true) {
        caption.push_str(" The grey one is the least any strategy can give a write there.");
    }
    caption
}

/// Returns an axis from the latency `low` to the latency `high`. All panels of a class have the
/// same axis, so that they can be compared.
fn axis(low: f64, high: f64, from_px: f64, width: f64) -> LogAxis {
    // If there are several decades, the axis has whole ones. Otherwise it has no more space than
    // necessary.
    let from_ms = if high / low.max(0.001) > 30.0 {
        10f64.powf(low.max(0.001).log10().floor())
    } else {
        low.max(0.001) * 0.85
    };
    LogAxis {
        from_ms,
        to_ms: (high * 1.2).max(from_ms * 3.0),
        from_px,
        to_px: from_px + width,
    }
}

/// Returns the shortest and the longest latency, in ms, in the panels of a class.
fn extent(class: usize, cdf: &Cdf) -> (f64, f64) {
    let (mut low, mut high) = (f64::INFINITY, 0f64);
    for panel in cdf.rows.iter().map(|(_, panels)| &panels[class]) {
        for (_, steps) in panel.curves.iter().filter(|(_, steps)| !steps.is_empty()) {
            low = low.min(steps[0].0);
            // The longest latencies, one in ten thousand, are omitted because they would stretch
            // the axis.
            let last = steps.partition_point(|(_, share)| *share < 0.9999);
            high = high.max(steps[last.min(steps.len() - 1)].0);
        }
        for (bound, ink) in &panel.bounds {
            high = high.max(*bound);
            if *ink == Ink::Muted && *bound > 0.0 {
                low = low.min(*bound);
            }
        }
    }
    if !low.is_finite() || high <= 0.0 {
        (low, high) = (1.0, 1_000.0);
    }
    (low, high)
}
