//! Latency over time with the faults marked: what a failure costs, and for how long.

use std::collections::BTreeMap;

use super::super::digest::Class;
use super::super::svg::{Anchor, Ink, Lettering, Stroke, Svg};
use super::super::{Event, StrategyRun};
use super::one_two_five_below;
use super::{
    Figure, Key, LEFT, LogAxis, RIGHT, Report, WIDTH, legend, ms_label, one_two_five_above,
};

const TOP: f64 = 56.0;
const PANEL_HEIGHT: f64 = 190.0;
const ROW_HEIGHT: f64 = PANEL_HEIGHT + 66.0;
/// Width of a bucket, in ns.
const BUCKET_NS: u64 = 100_000_000;

/// The longest latency of each class by bucket of start time.
type Longest = BTreeMap<u64, f64>;

pub(super) fn figure(report: &Report) -> Option<Figure> {
    if !report.has_faults() || report.runs.is_empty() {
        return None;
    }
    let height = TOP + report.runs.len() as f64 * ROW_HEIGHT;
    let mut svg = Svg::new(WIDTH, height, "Latency over time");
    let entries = [
        (Key::Line(Stroke::series(0)), "reads".to_owned()),
        (Key::Line(Stroke::series(1)), "writes".to_owned()),
    ];
    legend(&mut svg, &entries, 18.0);
    let longest = |run| Class::BOTH.map(|class| longest(run, class));
    let panels: Vec<[Longest; 2]> = report.runs.iter().map(longest).collect();
    let scale = Scale::of(&panels);
    for (row, (run, longest)) in report.runs.iter().zip(&panels).enumerate() {
        let top = TOP + row as f64 * ROW_HEIGHT + 24.0;
        panel(&mut svg, run, longest, &scale, top);
        marks(&mut svg, report, run, &scale, top);
    }
    Some(Figure {
        name: "timeline",
        caption: "Longest latency of the operations that started in each tenth of a second, over \
                  all sites. Vertical lines are what happened."
            .to_owned(),
        svg,
    })
}

fn longest(run: &StrategyRun, class: Class) -> Longest {
    let mut longest = Longest::new();
    for sample in run.samples.iter().filter(|s| Class::of(s.kind) == class) {
        let at = longest.entry(sample.start_ns / BUCKET_NS).or_insert(0.0);
        *at = f64::max(*at, sample.latency_ns as f64 / 1e6);
    }
    longest
}

/// One scale for all panels, so that they can be compared.
struct Scale {
    from_s: f64,
    to_s: f64,
    low_ms: f64,
    high_ms: f64,
}

impl Scale {
    fn of(panels: &[[Longest; 2]]) -> Scale {
        let points = || panels.iter().flatten().flatten();
        let values = || points().map(|(_, &ms)| ms);
        let low = values().fold(f64::INFINITY, f64::min);
        let high = values().fold(0f64, f64::max);
        let (low, high) = match high > 0.0 {
            true => (low.max(0.01), high),
            false => (1.0, 1_000.0),
        };
        let first = points().map(|(&bucket, _)| bucket).min().unwrap_or(0);
        let last = points().map(|(&bucket, _)| bucket).max().unwrap_or(first);
        Scale {
            from_s: seconds(first),
            to_s: seconds(last + 1),
            low_ms: one_two_five_below(low),
            high_ms: one_two_five_above(high.max(low * 10.0)),
        }
    }

    fn x(&self, at_s: f64) -> f64 {
        let part = (at_s.clamp(self.from_s, self.to_s) - self.from_s) / (self.to_s - self.from_s);
        LEFT + part * (WIDTH - LEFT - RIGHT)
    }

    fn axis(&self, top: f64) -> LogAxis {
        LogAxis {
            from_ms: self.low_ms,
            to_ms: self.high_ms,
            from_px: top + PANEL_HEIGHT,
            to_px: top,
        }
    }
}

fn seconds(bucket: u64) -> f64 {
    (bucket * BUCKET_NS) as f64 / 1e9
}

fn panel(svg: &mut Svg, run: &StrategyRun, longest: &[Longest; 2], scale: &Scale, top: f64) {
    let axis = scale.axis(top);
    frame(svg, &run.label, &axis, scale);
    for (look, longest) in longest.iter().enumerate() {
        let place = |(&bucket, &ms): (&u64, &f64)| (scale.x(seconds(bucket)), axis.place(ms));
        let points: Vec<(f64, f64)> = longest.iter().map(place).collect();
        let stroke = Stroke {
            width: 1.6,
            ..Stroke::series(look)
        };
        svg.stairs(&points, stroke);
    }
}

fn marks(svg: &mut Svg, report: &Report, run: &StrategyRun, scale: &Scale, top: f64) {
    let concerns = |label: &Option<String>| label.as_ref().is_none_or(|label| *label == run.label);
    let marked = |event: &&Event| concerns(&event.run) && event.kind != Event::CONFIGURATION;
    let events = report.happened();
    for (i, event) in events.iter().filter(marked).enumerate() {
        let x = scale.x(event.at_s);
        let stroke = Stroke::dashed(Ink::Text, 1.2, "3 3");
        svg.line((x, top), (x, top + PANEL_HEIGHT), stroke);
        // Lowered in turn, so that neighbours can be read.
        let y = top + 13.0 + (i % 4) as f64 * 14.0;
        let (x, anchor) = match x > WIDTH * 0.8 {
            true => (x - 5.0, Anchor::End),
            false => (x + 5.0, Anchor::Start),
        };
        svg.text((x, y), &event.text, Lettering::small(Ink::Text, anchor));
    }
}

fn frame(svg: &mut Svg, label: &str, axis: &LogAxis, scale: &Scale) {
    let (top, bottom) = (axis.to_px, axis.from_px);
    svg.text((LEFT, top - 9.0), label, Lettering::title());
    let look = Lettering::small(Ink::Muted, Anchor::End);
    svg.text((WIDTH - RIGHT, top - 9.0), "ms, logarithmic", look);
    for (value, labelled) in axis.ticks() {
        let y = axis.place(value);
        svg.line((LEFT, y), (WIDTH - RIGHT, y), Stroke::plain(Ink::Grid, 1.0));
        if labelled {
            svg.text((LEFT - 7.0, y + 4.0), ms_label(value), look);
        }
    }
    let step = one_two_five_above((scale.to_s - scale.from_s) / 10.0);
    let mut at = (scale.from_s / step).ceil() * step;
    // The last label would leave the drawing.
    while at <= scale.to_s - step / 4.0 {
        let look = Lettering::small(Ink::Muted, Anchor::Middle);
        svg.text(
            (scale.x(at), bottom + 17.0),
            format!("{} s", ms_label(at)),
            look,
        );
        at += step;
    }
    let (left, right) = ((LEFT, bottom), (WIDTH - RIGHT, bottom));
    svg.line(left, right, Stroke::plain(Ink::Muted, 1.0));
}
