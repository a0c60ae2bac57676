//! The time line of a resource: which member of a group owned it when.

use super::svg::{Anchor, Ink, Lettering, Stroke, Svg};

/// State of a member during a span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnershipState {
    /// The member has started, and is silent.
    Silent,
    /// The member owns the resource.
    Owns,
    /// The member's process has ended, and its lease has not.
    NotRenewed,
}

/// Span of time of one member, in seconds since the start.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnershipSpan {
    /// Index of the member.
    pub member: usize,
    /// State of the member.
    pub state: OwnershipState,
    /// Start of the span.
    pub from_s: f64,
    /// End of the span.
    pub to_s: f64,
}

/// Time line of one resource.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnershipTimeline {
    /// Title of the drawing.
    pub title: String,
    /// Names of the members.
    pub members: Vec<String>,
    /// All spans.
    pub spans: Vec<OwnershipSpan>,
    /// Kills of processes: the member, and the time in seconds.
    pub kills: Vec<(usize, f64)>,
    /// End of the time line, in seconds.
    pub end_s: f64,
}

const WIDTH: f64 = 860.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 46.0;
const ROW: f64 = 44.0;
const BAR: f64 = 20.0;

impl OwnershipTimeline {
    /// Returns the drawing as the text of an SVG file.
    pub fn draw(&self) -> String {
        let bottom = TOP + ROW * self.members.len() as f64;
        let mut svg = Svg::new(WIDTH, bottom + 74.0, &self.title);
        let x = |s: f64| LEFT + (WIDTH - LEFT - RIGHT) * s / self.end_s.max(1.0);
        let middle = |member: usize| TOP + ROW * (member as f64 + 0.5);
        svg.text((LEFT, 24.0), &self.title, Lettering::title());
        self.draw_axis(&mut svg, bottom, x);
        for (member, name) in self.members.iter().enumerate() {
            let at = (LEFT - 12.0, middle(member) + 4.0);
            svg.text(at, name, Lettering::small(Ink::Text, Anchor::End));
        }
        for span in &self.spans {
            let (from, to) = (x(span.from_s), x(span.to_s.min(self.end_s)));
            let size = ((to - from).max(1.0), BAR);
            let at = (from, middle(span.member) - BAR / 2.0);
            svg.rect(at, size, ink(span.state, span.member));
        }
        for (member, at_s) in &self.kills {
            let (x, y) = (x(*at_s), middle(*member));
            let stroke = Stroke::plain(Ink::Text, 2.0);
            svg.line((x - 5.0, y - 5.0), (x + 5.0, y + 5.0), stroke);
            svg.line((x - 5.0, y + 5.0), (x + 5.0, y - 5.0), stroke);
        }
        draw_legend(&mut svg, bottom + 56.0);
        svg.file()
    }

    fn draw_axis(&self, svg: &mut Svg, bottom: f64, x: impl Fn(f64) -> f64) {
        // About ten marks, at a multiple of 1, 2 or 5 s.
        let steps = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0];
        let step = steps.into_iter().find(|step| self.end_s / step <= 12.0);
        let step = step.unwrap_or(200.0);
        let mut at_s = 0.0;
        while at_s <= self.end_s {
            let at = x(at_s);
            svg.line((at, TOP), (at, bottom), Stroke::plain(Ink::Grid, 1.0));
            let look = Lettering::small(Ink::Muted, Anchor::Middle);
            svg.text((at, bottom + 16.0), format_args!("{at_s:.0}"), look);
            at_s += step;
        }
        let look = Lettering::small(Ink::Muted, Anchor::End);
        svg.text((WIDTH - RIGHT, bottom + 32.0), "time, s", look);
    }
}

fn ink(state: OwnershipState, member: usize) -> Ink {
    match state {
        OwnershipState::Silent => Ink::Grid,
        OwnershipState::Owns => Ink::Series(member),
        OwnershipState::NotRenewed => Ink::Pale(member),
    }
}

fn draw_legend(svg: &mut Svg, y: f64) {
    let entries = [
        (OwnershipState::Owns, "owns the resource"),
        (
            OwnershipState::NotRenewed,
            "killed (×), its lease has not ended",
        ),
        (OwnershipState::Silent, "silent after its start"),
    ];
    let mut x = LEFT;
    for (state, words) in entries {
        svg.rect((x, y - 9.0), (22.0, 10.0), ink(state, 0));
        let look = Lettering::small(Ink::Muted, Anchor::Start);
        svg.text((x + 28.0, y), words, look);
        x += 60.0 + 6.4 * words.chars().count() as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_span_and_kill_is_drawn_within_the_picture() {
        let span = |state, from_s, to_s| OwnershipSpan {
            member: 1,
            state,
            from_s,
            to_s,
        };
        let timeline = OwnershipTimeline {
            title: "a & b".to_owned(),
            members: vec!["a".to_owned(), "b".to_owned()],
            spans: vec![
                span(OwnershipState::Silent, 0.0, 2.0),
                span(OwnershipState::Owns, 2.0, 5.0),
                span(OwnershipState::NotRenewed, 5.0, 9.0),
            ],
            kills: vec![(1, 5.0)],
            end_s: 8.0,
        };
        let drawn = timeline.draw();
        assert!(drawn.contains("a &amp; b"));
        for (from, length) in [(70.0, 192.5), (262.5, 288.75), (551.25, 288.75)] {
            let bar = format!("M{from:.1} 102.0h{length:.1}v20.0");
            assert!(drawn.contains(&bar), "{bar} in {drawn}");
        }
        assert!(drawn.contains("M546.2 107.0L556.2 117.0"), "{drawn}");
    }
}
