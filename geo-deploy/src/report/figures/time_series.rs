//! Plot of mean latency and of the share of local reads over time, with a line for each strategy.
//! Deliberate changes are marked.

use super::{
    ExperimentReport, Figure, LEFT, LegendKey, RIGHT, WIDTH, legend, looks, ms_label,
    one_two_five_above,
};
use crate::report::svg::{Anchor, Ink, Lettering, Stroke, Svg};
use crate::report::time_series::{ChangeMark, TimeSlice, is_shown, marks, time_slices};

/// Name of the figure and of its file, without the extension.
pub(in super::super) const NAME: &str = "over-time";

const LATENCY_HEIGHT: f64 = 240.0;
const LOCAL_HEIGHT: f64 = 110.0;
const GAP: f64 = 40.0;
const CHANGE: Stroke = Stroke {
    ink: Ink::Text,
    width: 1.2,
    dash: "5 3",
};

/// Returns the figure; `None` if no run has a deliberate change, such as a change of strategy.
pub(super) fn figure(report: &ExperimentReport) -> Option<Figure> {
    if !is_shown(report) {
        return None;
    }
    let lines: Vec<Vec<TimeSlice>> = (report.runs.iter())
        .map(|run| time_slices(report, run))
        .collect();
    let ends = lines.iter().flatten().map(|stretch| stretch.to_s);
    let chart = TimeSeriesChart {
        to_s: ends.fold(1.0, f64::max),
        looks: looks(&report.runs),
        marks: all_marks(report),
        lines,
    };
    let mut svg = Svg::new(WIDTH, 0.0, "Mean latency and local reads over time");
    let labels = report.runs.iter().zip(&chart.looks);
    let entries: Vec<(LegendKey, String)> = labels
        .map(|(run, look)| (LegendKey::Line(Stroke::series(*look)), run.label.clone()))
        .collect();
    let top = legend(&mut svg, &entries, 18.0) + 42.0;
    chart.latency(&mut svg, top);
    let local = top + LATENCY_HEIGHT + GAP;
    chart.local(&mut svg, local);
    let bottom = local + LOCAL_HEIGHT;
    let look = Lettering::small(Ink::Muted, Anchor::Middle);
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    let title = "time since the measured interval began, s";
    svg.text((middle, bottom + 34.0), title, look);
    svg.end_at(bottom + 46.0);
    Some(Figure {
        name: NAME.to_owned(),
        caption: "Mean latency of all operations, and share of reads that were local, in \
                  stretches of time. Dashed lines are changes on purpose."
            .to_owned(),
        svg,
    })
}

/// Returns the marks of all runs. A change is marked once, even if it occurs in several runs.
fn all_marks(report: &ExperimentReport) -> Vec<ChangeMark> {
    let mut all: Vec<ChangeMark> = Vec::new();
    for mark in report.runs.iter().flat_map(|run| marks(report, run)) {
        let same =
            |other: &ChangeMark| other.text == mark.text && (other.at_s - mark.at_s).abs() < 0.5;
        if !all.iter().any(same) {
            all.push(mark);
        }
    }
    all
}

struct TimeSeriesChart {
    to_s: f64,
    looks: Vec<usize>,
    marks: Vec<ChangeMark>,
    /// Points of the lines, by run.
    lines: Vec<Vec<TimeSlice>>,
}

/// Position of a panel, and the upper end of the panel's vertical axis.
#[derive(Clone, Copy)]
struct TimeSeriesPanel {
    top: f64,
    height: f64,
    most: f64,
}

impl TimeSeriesPanel {
    fn y(self, value: f64) -> f64 {
        self.top + (1.0 - (value / self.most).clamp(0.0, 1.0)) * self.height
    }
}

impl TimeSeriesChart {
    fn x(&self, at_s: f64) -> f64 {
        LEFT + at_s / self.to_s * (WIDTH - LEFT - RIGHT)
    }

    fn latency(&self, svg: &mut Svg, top: f64) {
        let means = self.lines.iter().flatten().map(TimeSlice::mean_ms);
        let greatest = means.fold(1.0, f64::max);
        let step = one_two_five_above(greatest / 8.0);
        let panel = TimeSeriesPanel {
            top,
            height: LATENCY_HEIGHT,
            most: (greatest * 1.05 / step).ceil() * step,
        };
        let steps = (panel.most / step).round() as u32;
        let ticks = (0..=steps).map(|i| f64::from(i) * step);
        let ticks = ticks.map(|value| (value, ms_label(value)));
        self.frame(svg, panel, ticks.collect(), "mean latency, ms");
        self.names(svg, panel);
        self.series(svg, panel, |stretch| {
            (stretch.operations > 0).then(|| stretch.mean_ms())
        });
    }

    fn local(&self, svg: &mut Svg, top: f64) {
        let panel = TimeSeriesPanel {
            top,
            height: LOCAL_HEIGHT,
            most: 1.0,
        };
        let ticks = [0.0, 0.25, 0.5, 0.75, 1.0].map(|s| (s, format!("{:.0}%", s * 100.0)));
        self.frame(svg, panel, ticks.into(), "local reads");
        self.series(svg, panel, TimeSlice::local);
    }

    fn frame(&self, svg: &mut Svg, panel: TimeSeriesPanel, ticks: Vec<(f64, String)>, title: &str) {
        let right = WIDTH - RIGHT;
        let number = Lettering::small(Ink::Muted, Anchor::End);
        for (value, label) in ticks {
            let y = panel.y(value);
            svg.line((LEFT, y), (right, y), Stroke::plain(Ink::Grid, 1.0));
            svg.text((LEFT - 7.0, y + 4.0), label, number);
        }
        let bottom = panel.top + panel.height;
        let step = one_two_five_above(self.to_s / 12.0);
        let middle = Lettering::small(Ink::Muted, Anchor::Middle);
        for tick in 0..=(self.to_s / step + 1e-6) as u32 {
            let at_s = f64::from(tick) * step;
            svg.text((self.x(at_s), bottom + 16.0), ms_label(at_s), middle);
        }
        for mark in &self.marks {
            let x = self.x(mark.at_s);
            svg.line((x, panel.top - 4.0), (x, bottom), CHANGE);
        }
        svg.upright((LEFT - 46.0, panel.top + panel.height / 2.0), title);
    }

    /// Draws the names of the changes above the panel. A name that would touch the previous name is
    /// placed higher.
    fn names(&self, svg: &mut Svg, panel: TimeSeriesPanel) {
        let mut free_from = [LEFT; 2];
        for mark in &self.marks {
            // Letters of this size are 6.6 pixels wide on average.
            let width = 6.6 * mark.text.chars().count() as f64;
            let x = self.x(mark.at_s).min(WIDTH - RIGHT - width);
            if let Some(line) = free_from.iter().position(|free| x >= *free) {
                let look = Lettering::small(Ink::Text, Anchor::Start);
                svg.text((x, panel.top - 8.0 - 13.0 * line as f64), &mark.text, look);
                free_from[line] = x + width + 8.0;
            }
        }
    }

    fn series(
        &self,
        svg: &mut Svg,
        panel: TimeSeriesPanel,
        value: impl Fn(&TimeSlice) -> Option<f64>,
    ) {
        for (line, look) in self.lines.iter().zip(&self.looks) {
            let known = line.iter().filter_map(|stretch| {
                let y = panel.y(value(stretch)?);
                Some([(self.x(stretch.from_s), y), (self.x(stretch.to_s), y)])
            });
            let points: Vec<(f64, f64)> = known.flatten().collect();
            svg.stairs(&points, Stroke::series(*look));
        }
    }
}
