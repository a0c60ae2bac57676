//! One panel of a time line: latencies above throughput, with a common time axis.

use super::{Anchor, Band, Ink, Lettering, LogAxis, Scale, Series, Stroke, Svg, TimelineMark};
use crate::report::figures::{ms_label, one_two_five_above};

const LATENCY_HEIGHT: f64 = 96.0;
const GAP: f64 = 8.0;
const THROUGHPUT_HEIGHT: f64 = 30.0;
const HEIGHT: f64 = LATENCY_HEIGHT + GAP + THROUGHPUT_HEIGHT;

pub(super) const ELECTION: Stroke = Stroke {
    ink: Ink::Text,
    width: 1.3,
    dash: "6 3",
};
pub(super) const LEASE_END: Stroke = Stroke {
    ink: Ink::Text,
    width: 1.3,
    dash: "1.5 2.5",
};

pub(super) const RANGE: Stroke = Stroke {
    ink: Ink::Series(0),
    width: 0.7,
    dash: "",
};

pub(super) struct TimelinePanel<'a> {
    pub scale: &'a Scale,
    pub left: f64,
    pub top: f64,
    /// Upper end of the throughput axis, in successes a second. The axis is in the lower part of
    /// the panel.
    pub throughput_max: f64,
}

impl TimelinePanel<'_> {
    fn x(&self, at_s: f64) -> f64 {
        self.left + self.scale.along(at_s)
    }

    fn right(&self) -> f64 {
        self.left + self.scale.panel_width()
    }

    fn bottom(&self) -> f64 {
        self.top + HEIGHT
    }

    fn axis(&self) -> LogAxis {
        LogAxis {
            from_ms: self.scale.low_ms,
            to_ms: self.scale.high_ms,
            from_px: self.top + LATENCY_HEIGHT,
            to_px: self.top,
        }
    }

    /// Draws the grid, the title of the panel and the labels of the axes. If `titled` is true, also
    /// draws the titles of the axes.
    pub(super) fn frame(&self, svg: &mut Svg, title: &str, titled: bool) {
        svg.text((self.left, self.top - 21.0), title, Lettering::title());
        let axis = self.axis();
        let number = Lettering::small(Ink::Muted, Anchor::End);
        let grid = Stroke::plain(Ink::Grid, 1.0);
        let ticks = axis.ticks().into_iter().filter(|(_, labelled)| *labelled);
        let ticks: Vec<f64> = ticks.map(|(value, _)| value).collect();
        for &value in &ticks {
            self.level(svg, axis.place(value), grid);
        }
        self.level(svg, self.bottom() - THROUGHPUT_HEIGHT, grid);
        for &value in &ticks {
            let at = (self.left - 7.0, axis.place(value) + 4.0);
            svg.text(at, ms_label(value), number);
        }
        let most = format!("{}", self.throughput_max);
        svg.text(
            (self.left - 7.0, self.bottom() - THROUGHPUT_HEIGHT + 8.0),
            most,
            number,
        );
        self.level(svg, self.bottom(), Stroke::plain(Ink::Muted, 1.0));
        self.seconds(svg);
        if titled {
            let x = self.left - 44.0;
            svg.upright((x, self.top + LATENCY_HEIGHT / 2.0), "latency, ms");
            svg.upright((x, self.bottom() - THROUGHPUT_HEIGHT / 2.0), "ops/s");
        }
    }

    fn level(&self, svg: &mut Svg, y: f64, stroke: Stroke) {
        svg.line((self.left, y), (self.right(), y), stroke);
    }

    fn seconds(&self, svg: &mut Svg) {
        let (from, to) = (self.scale.from_s, self.scale.to_s);
        let step = one_two_five_above((to - from) / 8.0);
        let first = (from / step).ceil();
        let ticks = (0..).map(|i| (first + f64::from(i)) * step);
        let ticks: Vec<f64> = ticks.take_while(|at| *at <= to + step / 1e6).collect();
        for &at in &ticks {
            let (x, grid) = (self.x(at), Stroke::plain(Ink::Grid, 1.0));
            svg.line((x, self.top), (x, self.bottom()), grid);
        }
        let look = Lettering::small(Ink::Muted, Anchor::Middle);
        for &at in &ticks {
            svg.text((self.x(at), self.bottom() + 15.0), ms_label(at), look);
        }
    }

    /// Draws a shaded area for the time of each fault. This function must be called before anything
    /// else is drawn.
    pub(super) fn ground(&self, svg: &mut Svg, marks: &[TimelineMark]) {
        for mark in marks {
            if let TimelineMark::Fault(from, to, _) = mark {
                let (from, to) = (self.x(*from), self.x(*to));
                let size = ((to - from).max(1.0), HEIGHT);
                svg.rect((from, self.top), size, Ink::Shade);
            }
        }
    }

    /// Draws a vertical line for each event, behind the data. The line of a `Configuration` is
    /// short; other lines have the full height of the panel.
    pub(super) fn marks(&self, svg: &mut Svg, marks: &[TimelineMark]) {
        let between = (self.top + LATENCY_HEIGHT, self.top + LATENCY_HEIGHT + GAP);
        for mark in marks {
            let (at, from, to, stroke) = match mark {
                TimelineMark::Fault(at, ..) => {
                    let stroke = Stroke::plain(Ink::Text, 1.3);
                    (*at, self.top - 3.0, self.bottom(), stroke)
                }
                TimelineMark::Election(at) => (*at, self.top, self.bottom(), ELECTION),
                TimelineMark::LeaseEnd(at) => (*at, self.top, self.bottom(), LEASE_END),
                TimelineMark::Configuration(at) => {
                    (*at, between.0, between.1, Stroke::plain(Ink::Muted, 1.0))
                }
            };
            svg.line((self.x(at), from), (self.x(at), to), stroke);
        }
    }

    /// Draws the names of the faults above the panel, in two lines. Omits names that would touch a
    /// previous name.
    pub(super) fn named(&self, svg: &mut Svg, marks: &[TimelineMark]) {
        // Names start to the right of the title, which is at most this wide.
        let mut free_from = [self.left, self.left + 96.0];
        for mark in marks {
            let TimelineMark::Fault(from, _, text) = mark else {
                continue;
            };
            // Letters of this size are 6.6 pixels wide on average.
            let width = 6.6 * text.chars().count() as f64;
            let x = self.x(*from).min(self.right() - width);
            if let Some(line) = free_from.iter().position(|free| x >= *free) {
                let look = Lettering::small(Ink::Text, Anchor::Start);
                svg.text((x, self.top - 6.0 - 13.0 * line as f64), text, look);
                free_from[line] = x + width + 8.0;
            }
        }
    }

    pub(super) fn series(&self, svg: &mut Svg, series: &Series) {
        let axis = self.axis();
        let place = |points: &[(f64, f64)]| -> Vec<(f64, f64)> {
            points
                .iter()
                .map(|(s, ms)| (self.x(*s), axis.place(*ms)))
                .collect()
        };
        self.bands(svg, series, &axis);
        svg.dots(&place(&series.dots), Ink::Series(0), false);
        svg.dots(&place(&series.leased), Ink::Series(1), true);
        svg.crosses(&place(&series.failed), Ink::Text);
        self.throughput(svg, series);
    }

    fn bands(&self, svg: &mut Svg, series: &Series, axis: &LogAxis) {
        let span = |band: &Band| {
            let (from, to) = (self.x(band.from_s), self.x(band.to_s));
            (from, (to - from).max(0.7))
        };
        for band in &series.bands {
            let (from, width) = span(band);
            let [p50, p99] = [band.p50_ms, band.p99_ms].map(|ms| axis.place(ms));
            svg.rect((from, p99), (width, (p50 - p99).max(1.0)), Ink::Pale(0));
        }
        let mut level = |at_ms: fn(&Band) -> f64, thick: f64| {
            for band in &series.bands {
                let ((from, width), y) = (span(band), axis.place(at_ms(band)));
                let stroke = Stroke::plain(Ink::Series(0), thick);
                svg.line((from, y), (from + width, y), stroke);
            }
        };
        level(|band| band.p50_ms, 2.2);
        level(|band| band.max_ms, 0.9);
    }

    fn throughput(&self, svg: &mut Svg, series: &Series) {
        let bottom = self.bottom();
        for &(from, to, per_s) in series.throughput.iter().filter(|(.., per_s)| *per_s > 0.0) {
            let (from, to) = (self.x(from), self.x(to));
            let height = (per_s / self.throughput_max).min(1.0) * THROUGHPUT_HEIGHT;
            let size = ((to - from).max(0.5), height);
            svg.rect((from, bottom - height), size, Ink::Pale(0));
            if per_s > self.throughput_max {
                svg.rect((from, bottom - height - 2.0), (size.0, 2.0), Ink::Series(0));
            }
        }
        let height = |per_s: f64| (per_s / self.throughput_max).min(1.0) * THROUGHPUT_HEIGHT;
        for &(at_s, ends) in &series.ranges {
            let (x, [least, most]) = (self.x(at_s), ends.map(height));
            svg.line((x, bottom - least), (x, bottom - most), RANGE);
        }
    }
}
