//! Latency and throughput over time, with marked events. Each site has a panel for reads and one
//! for writes. Nothing is smoothed: every operation is a dot. If there are too many operations, the
//! plot instead shows the median, the 99th percentile and the maximum for each stretch of time.

mod of_run;
mod panel;

use std::collections::BTreeMap;

use super::{
    Figure, LEFT, LegendKey, LogAxis, RIGHT, WIDTH, file_name, legend, one_two_five_above,
    one_two_five_below,
};
use crate::report::digest::Class;
use crate::report::svg::{Anchor, Ink, Lettering, Stroke, Svg};
use panel::TimelinePanel;

pub(in super::super) use of_run::of_run;

/// Width of a panel, in pixels. This is also the maximum number of points in a panel, because
/// further points would overlap.
pub(in super::super) const COLUMNS: usize = 480;

/// Divides the time from `from_s` to `to_s` into pixels, and returns the lowest and the highest
/// point in each pixel. If there are only a few points, returns all points.
pub(in super::super) fn extremes(
    points: Vec<(f64, f64)>,
    from_s: f64,
    to_s: f64,
) -> Vec<(f64, f64)> {
    if points.len() <= 2 * COLUMNS {
        return points;
    }
    let mut columns: BTreeMap<usize, [(f64, f64); 2]> = BTreeMap::new();
    for point in points {
        let share = (point.0 - from_s) / (to_s - from_s).max(f64::MIN_POSITIVE);
        let column = columns.entry((share * COLUMNS as f64) as usize);
        let [low, high] = column.or_insert([point; 2]);
        if point.1 < low.1 {
            *low = point;
        }
        if point.1 > high.1 {
            *high = point;
        }
    }
    columns.into_values().flatten().collect()
}

/// Width of a single panel with its axes, in pixels.
const SINGLE_WIDTH: f64 = 460.0;
const ROW_HEIGHT: f64 = 202.0;
const COLUMN_GAP: f64 = 66.0;
const FOOT: f64 = 26.0;

/// Data for a time line.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Timeline {
    pub title: String,
    /// Beginning of the time axis, in s.
    pub from_s: f64,
    pub to_s: f64,
    /// Name of each site, with two series: the first for the site's reads, the second for its
    /// writes.
    pub rows: Vec<(String, [Series; 2])>,
    pub marks: Vec<TimelineMark>,
    /// Name of the event at time 0 of the time axis.
    pub since: &'static str,
    /// Additional text for the description of the figure. The text begins with a space, or is
    /// empty.
    pub note: String,
}

/// Data of one panel.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Series {
    /// Answered operations, as points. Each point has the start of the operation in s and its
    /// latency in ms.
    pub dots: Vec<(f64, f64)>,
    /// Answered operations on keys that were leased to a failed site, as points. Each point has the
    /// start of the operation in s and its latency in ms.
    pub leased: Vec<(f64, f64)>,
    /// Operations that failed or timed out, as points. Each point has the start of the operation in
    /// s and its latency in ms.
    pub failed: Vec<(f64, f64)>,
    /// Quantiles of the latencies, which are shown in place of dots.
    pub bands: Vec<Band>,
    /// Throughput of each stretch of time: (beginning in s, end in s, successes a second).
    pub throughput: Vec<(f64, f64, f64)>,
    /// Ranges of the throughput. Each entry has a time in s, and the lowest and highest number of
    /// successes a second around that time.
    pub ranges: Vec<(f64, [f64; 2])>,
}

impl Series {
    fn measured(&self) -> bool {
        let points = [&self.dots, &self.leased, &self.failed];
        points.iter().any(|points| !points.is_empty()) || !self.bands.is_empty()
    }
}

/// Quantiles of latencies, in ms, for the operations that started in a stretch of time. The
/// beginning and the end of the stretch are in s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) struct Band {
    pub from_s: f64,
    pub to_s: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

/// An event that a time line marks.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) enum TimelineMark {
    /// A fault: its beginning and its end in s, and its description.
    Fault(f64, f64, String),
    Election(f64),
    LeaseEnd(f64),
    Configuration(f64),
}

/// Returns a figure named `name` with all panels, followed by one figure for each panel. Returns no
/// figure if nothing was measured.
pub(in super::super) fn figures(name: &str, timeline: &Timeline) -> Vec<Figure> {
    let Some(page) = Scale::of(timeline) else {
        return Vec::new();
    };
    let rows: Vec<usize> = (0..timeline.rows.len()).collect();
    let mut figures = vec![draw(name.to_owned(), timeline, &page, &rows)];
    for &row in &rows {
        for &class in &page.classes {
            let site = file_name(&timeline.rows[row].0);
            let name = format!("panels/{name}-{site}-{}", Class::BOTH[class].name());
            figures.push(draw(name, timeline, &page.single(class), &[row]));
        }
    }
    figures
}

fn draw(name: String, timeline: &Timeline, scale: &Scale, rows: &[usize]) -> Figure {
    let mut svg = Svg::new(scale.figure_width, 0.0, &timeline.title);
    let page = scale.figure_width == WIDTH;
    if page {
        svg.text((LEFT, 20.0), &timeline.title, Lettering::title());
    }
    let legend_top = if page { 44.0 } else { 18.0 };
    let top = legend(&mut svg, &entries(timeline), legend_top) + 20.0;
    for (place, &row) in rows.iter().enumerate() {
        let (site, series) = &timeline.rows[row];
        for (column, &class) in scale.classes.iter().enumerate() {
            let panel = TimelinePanel {
                scale,
                left: scale.left(column),
                top: top + place as f64 * ROW_HEIGHT + 34.0,
                throughput_max: scale.throughput_max[class],
            };
            let title = format!("{site}, {}", Class::BOTH[class].name());
            panel.ground(&mut svg, &timeline.marks);
            panel.frame(&mut svg, &title, column == 0);
            panel.marks(&mut svg, &timeline.marks);
            panel.series(&mut svg, &series[class]);
            if place == 0 {
                panel.named(&mut svg, &timeline.marks);
            }
        }
    }
    let height = top + rows.len() as f64 * ROW_HEIGHT + FOOT;
    let look = Lettering::small(Ink::Muted, Anchor::Middle);
    for column in 0..scale.classes.len() {
        let middle = scale.left(column) + scale.panel_width() / 2.0;
        let title = format!("time since {}, s", timeline.since);
        svg.text((middle, height - 14.0), title, look);
    }
    svg.end_at(height);
    Figure {
        name,
        caption: caption(timeline),
        svg,
    }
}

fn entries(timeline: &Timeline) -> Vec<(LegendKey, String)> {
    let series = || timeline.rows.iter().flat_map(|(_, series)| series);
    let has = |mark: fn(&TimelineMark) -> bool| timeline.marks.iter().any(mark);
    let leased = series().any(|s| !s.leased.is_empty());
    let dots = if leased {
        "other operations"
    } else {
        "an operation"
    };
    let all = [
        (
            series().any(|s| !s.dots.is_empty()),
            LegendKey::Dot(Ink::Series(0)),
            dots,
        ),
        (
            leased,
            LegendKey::Square(Ink::Series(1)),
            "on a key leased to the failed site",
        ),
        (
            series().any(|s| !s.bands.is_empty()),
            LegendKey::Band(Ink::Series(0)),
            "median, 99th percentile (band) and maximum (line)",
        ),
        (
            series().any(|s| !s.throughput.is_empty()),
            LegendKey::Box(Ink::Pale(0)),
            "successes a second (dark top: more than the axis)",
        ),
        (
            series().any(|s| !s.ranges.is_empty()),
            LegendKey::Line(panel::RANGE),
            "least and most of them within a pixel",
        ),
        (
            series().any(|s| !s.failed.is_empty()),
            LegendKey::Cross,
            "failed or given up",
        ),
        (
            has(|mark| matches!(mark, TimelineMark::Fault(..))),
            LegendKey::Shade,
            "fault",
        ),
        (
            has(|mark| matches!(mark, TimelineMark::Election(_))),
            LegendKey::Line(panel::ELECTION),
            "election",
        ),
        (
            has(|mark| matches!(mark, TimelineMark::LeaseEnd(_))),
            LegendKey::Line(panel::LEASE_END),
            "leases ended",
        ),
        (
            has(|mark| matches!(mark, TimelineMark::Configuration(_))),
            LegendKey::Notch,
            "new configuration",
        ),
    ];
    let there = all.into_iter().filter(|(there, ..)| *there);
    there
        .map(|(_, key, label)| (key, label.to_owned()))
        .collect()
}

fn caption(timeline: &Timeline) -> String {
    let bands = timeline
        .rows
        .iter()
        .flat_map(|(_, series)| series)
        .any(|s| !s.bands.is_empty());
    let latencies = if bands {
        "Where a panel has too many operations for dots, each stretch of time shows the \
                 median, the 99th percentile and the maximum of the operations that started in it."
    } else {
        "Every operation is a dot at its start."
    };
    format!(
        "Latency (logarithmic) and below it successes a second, over time, reads and writes \
         apart, a row for each site. {latencies} Nothing is smoothed.{}",
        timeline.note
    )
}

/// Returns the upper end of the throughput axis. The axis is long enough for the usual throughputs.
/// After an outage, many operations are answered in a short time. The bars for this short time
/// would exceed the axis, so the bars are cut off and marked.
fn usual_most(mut per_s: Vec<f64>) -> f64 {
    per_s.sort_by(f64::total_cmp);
    let at = (per_s.len() as f64 * 0.95) as usize;
    let usual = per_s.get(at.min(per_s.len().saturating_sub(1)));
    one_two_five_above(usual.copied().unwrap_or(1.0).max(1.0) * 1.3)
}

/// Scale of all panels. Panels with the same scale can be compared.
#[derive(Clone)]
struct Scale {
    figure_width: f64,
    from_s: f64,
    to_s: f64,
    low_ms: f64,
    high_ms: f64,
    /// Indexes of the classes (reads, writes) that were measured. The page has a column for each
    /// class.
    classes: Vec<usize>,
    /// Greatest throughput of reads and of writes, in operations a second.
    throughput_max: [f64; 2],
}

impl Scale {
    fn of(timeline: &Timeline) -> Option<Scale> {
        let series = || timeline.rows.iter().flat_map(|(_, series)| series);
        let (mut low, mut high) = (f64::INFINITY, 0f64);
        for one in series() {
            let dots = one.dots.iter().chain(&one.leased).chain(&one.failed);
            let bands = one.bands.iter().flat_map(|band| [band.p50_ms, band.max_ms]);
            for ms in dots.map(|(_, ms)| *ms).chain(bands) {
                (low, high) = (low.min(ms), high.max(ms));
            }
        }
        if high <= 0.0 || timeline.to_s <= timeline.from_s {
            return None;
        }
        let low = low.max(0.01);
        let most = |class: usize| {
            let points = timeline
                .rows
                .iter()
                .flat_map(|(_, series)| &series[class].throughput);
            usual_most(points.map(|(.., per_s)| *per_s).collect())
        };
        let measured = |class: &usize| timeline.rows.iter().any(|(_, s)| s[*class].measured());
        Some(Scale {
            figure_width: WIDTH,
            classes: (0..2).filter(measured).collect(),
            from_s: timeline.from_s,
            to_s: timeline.to_s,
            low_ms: one_two_five_below(low * 0.9),
            high_ms: one_two_five_above((high * 1.1).max(low * 10.0)),
            throughput_max: [most(0), most(1)],
        })
    }

    /// Returns the scale for a single panel of this class.
    fn single(&self, class: usize) -> Scale {
        Scale {
            figure_width: SINGLE_WIDTH,
            classes: vec![class],
            ..self.clone()
        }
    }

    fn panel_width(&self) -> f64 {
        let columns = self.classes.len().max(1) as f64;
        (self.figure_width - LEFT - RIGHT - COLUMN_GAP * (columns - 1.0)) / columns
    }

    fn left(&self, column: usize) -> f64 {
        LEFT + column as f64 * (self.panel_width() + COLUMN_GAP)
    }

    /// Returns the horizontal position of a time: the distance from the left edge of a panel, in
    /// pixels.
    fn along(&self, at_s: f64) -> f64 {
        let at_s = at_s.clamp(self.from_s, self.to_s);
        (at_s - self.from_s) / (self.to_s - self.from_s) * self.panel_width()
    }
}
