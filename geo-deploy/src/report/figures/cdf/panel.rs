//! One panel of a figure of distributions.

use super::{Anchor, BOUND_DASH, Curves, Ink, Lettering, LogAxis, Stroke, Svg};
use crate::report::figures::ms_label;

pub(super) struct CdfPanel {
    pub axis: LogAxis,
    pub top: f64,
    pub height: f64,
}

impl CdfPanel {
    pub(super) fn draw(&self, svg: &mut Svg, title: &str, curves: &Curves) {
        self.frame(svg, title);
        for &(bound, ink) in &curves.bounds {
            if bound >= self.axis.from_ms {
                let x = self.axis.place(bound);
                let stroke = Stroke::dashed(ink, 1.4, BOUND_DASH);
                svg.line((x, self.top), (x, self.y(0.0)), stroke);
            }
        }
        // Solid lines are drawn first, so that patterned lines stay visible where they coincide.
        let mut order: Vec<&(usize, Vec<(f64, f64)>)> = curves.curves.iter().collect();
        order.sort_by_key(|(look, _)| *look != 0);
        for (look, steps) in order {
            self.curve(svg, steps, Stroke::series(*look));
        }
    }

    fn y(&self, share: f64) -> f64 {
        self.top + (1.0 - share) * self.height
    }

    fn frame(&self, svg: &mut Svg, title: &str) {
        let (left, right) = (self.axis.from_px, self.axis.to_px);
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
        let mut free_from = f64::NEG_INFINITY;
        for (value, labelled) in self.axis.ticks() {
            let x = self.axis.place(value);
            svg.line((x, self.top), (x, bottom), Stroke::plain(Ink::Grid, 1.0));
            // Labels that would touch the previous one are omitted.
            if labelled && x - 14.0 > free_from {
                let look = Lettering::small(Ink::Muted, Anchor::Middle);
                svg.text((x, bottom + 16.0), ms_label(value), look);
                free_from = x + 14.0;
            }
        }
        let axis = Stroke::plain(Ink::Muted, 1.0);
        svg.line((left, bottom), (right, bottom), axis);
    }

    fn curve(&self, svg: &mut Svg, steps: &[(f64, f64)], stroke: Stroke) {
        let Some(first) = steps.first() else {
            return;
        };
        // Rounded to half a pixel, because finer steps cannot be seen.
        let x = |ms| (self.axis.place(ms) * 2.0).round() / 2.0;
        let mut points = vec![(x(first.0), self.y(0.0))];
        for &(ms, share) in steps {
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
