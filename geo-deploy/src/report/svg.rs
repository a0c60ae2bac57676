//! Functions that draw plots as SVG. The code names the purpose of a colour, not the colour itself.
//!
//! The same drawing can be a file or a part of the report's page. In a file, colours are fixed. In
//! the page, colours are variables, which differ between light and dark mode. Lines differ by
//! pattern as well as by colour. No plotting library that we know of writes both forms, so this
//! module does it.

use std::fmt::{Display, Write};

/// Purpose of a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ink {
    Text,
    Muted,
    Grid,
    Surface,
    Series(usize),
    /// Pale form of a series' colour: a mixture of this colour and the background's colour. The
    /// mixture is opaque, so that it hides the lines below it. Opaque colours also make repeated
    /// PDFs of the same drawing identical.
    Pale(usize),
    /// A colour slightly darker than the background.
    Shade,
}

/// Number of series that can be distinguished.
pub(super) const SERIES: usize = 6;

/// Colours of the series, distinguishable by colour-blind readers (after Okabe and Ito). Some are
/// darkened so that text or thin lines are legible on white. On a dark background, the colours are
/// lightened.
pub(super) const SERIES_LIGHT: [&str; SERIES] = [
    "#0072b2", "#d55e00", "#00876c", "#b0508e", "#c98a00", "#5f6b7a",
];
pub(super) const SERIES_DARK: [&str; SERIES] = [
    "#5ab4f0", "#ff8a4c", "#35c9a3", "#e79acb", "#f0c04a", "#a7b0bd",
];

/// Share of a series' colour in the pale form of this colour, in percent.
const PALE_PERCENT: u32 = 45;

/// Returns the pale form of a colour `#rrggbb` on white.
fn on_white(colour: &str) -> String {
    let part = |at: usize| {
        let digits = colour.get(at..at + 2).unwrap_or("00");
        let value = u32::from_str_radix(digits, 16).unwrap_or(0);
        (value * PALE_PERCENT + 255 * (100 - PALE_PERCENT)) / 100
    };
    format!("#{:02x}{:02x}{:02x}", part(1), part(3), part(5))
}

/// Line patterns, which distinguish series without colour.
const DASHES: [&str; SERIES] = ["", "9 4", "2.5 3.5", "10 3 2 3", "14 4 2 3 2 4", "5 2"];

impl Ink {
    fn token(self) -> String {
        match self {
            Ink::Text => "@text@".to_owned(),
            Ink::Muted => "@muted@".to_owned(),
            Ink::Grid => "@grid@".to_owned(),
            Ink::Surface => "@surface@".to_owned(),
            Ink::Series(i) => format!("@s{}@", i % SERIES),
            Ink::Pale(i) => format!("@p{}@", i % SERIES),
            Ink::Shade => "@shade@".to_owned(),
        }
    }

    pub(super) fn pale(self) -> Ink {
        match self {
            Ink::Series(i) => Ink::Pale(i),
            _ => Ink::Shade,
        }
    }
}

/// Appearance of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stroke {
    pub ink: Ink,
    pub width: f64,
    pub dash: &'static str,
}

impl Stroke {
    pub(super) fn plain(ink: Ink, width: f64) -> Stroke {
        let dash = "";
        Stroke { ink, width, dash }
    }

    pub(super) fn dashed(ink: Ink, width: f64, dash: &'static str) -> Stroke {
        Stroke { ink, width, dash }
    }

    /// Returns the appearance of the line of series `i`.
    pub(super) fn series(i: usize) -> Stroke {
        Stroke::dashed(Ink::Series(i), 2.2, DASHES[i % SERIES])
    }
}

/// Alignment of a text: the point of the text that is placed at the given coordinates.
#[derive(Clone, Copy, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// Appearance of a text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lettering {
    pub ink: Ink,
    pub size: f64,
    pub bold: bool,
    pub anchor: Anchor,
}

impl Lettering {
    pub(super) fn small(ink: Ink, anchor: Anchor) -> Lettering {
        Lettering {
            ink,
            size: 11.5,
            bold: false,
            anchor,
        }
    }

    pub(super) fn title() -> Lettering {
        Lettering {
            ink: Ink::Text,
            size: 13.0,
            bold: true,
            anchor: Anchor::Start,
        }
    }
}

/// Minimum distance between two steps of a line, in pixels. Steps with a smaller distance are drawn
/// as one step.
const STAIR_PX: f64 = 0.3;

/// A drawing in progress. Coordinates are in pixels from the top left.
#[derive(Clone, Debug)]
pub(super) struct Svg {
    width: f64,
    height: f64,
    title: String,
    body: String,
    /// Path that is being drawn. A further part is added to this path if the part has the same
    /// style.
    path: String,
    style: String,
}

impl Svg {
    pub(super) fn new(width: f64, height: f64, title: &str) -> Svg {
        Svg {
            width,
            height,
            title: title.to_owned(),
            body: String::new(),
            path: String::new(),
            style: String::new(),
        }
    }

    /// Sets the height, after everything is drawn.
    pub(super) fn end_at(&mut self, height: f64) {
        self.height = height;
    }

    pub(super) fn width(&self) -> f64 {
        self.width
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: Stroke) {
        let path = format_args!("M{:.1} {:.1}L{:.1} {:.1}", from.0, from.1, to.0, to.1);
        self.join(stroke_style(stroke), path);
    }

    /// Draws a line in horizontal and vertical steps through `points`, which must be sorted. If
    /// several steps are too close to be distinguished, only the last of these steps is drawn.
    pub(super) fn stairs(&mut self, points: &[(f64, f64)], stroke: Stroke) {
        let Some((first, rest)) = points.split_first() else {
            return;
        };
        let mut path = format!("M{:.1} {:.1}", first.0, first.1);
        let mut from = f64::NEG_INFINITY;
        for (index, (x, y)) in rest.iter().enumerate() {
            let next = rest.get(index + 1);
            if next.is_some_and(|next| next.0 - from < STAIR_PX) {
                continue;
            }
            from = next.map_or(*x, |next| next.0);
            // Writing to a string cannot fail.
            let _ = write!(path, "H{x:.1}V{y:.1}");
        }
        let style = stroke_style(stroke);
        self.element(format_args!("<path d=\"{path}\" {style}/>"));
    }

    pub(super) fn rect(&mut self, at: (f64, f64), size: (f64, f64), fill: Ink) {
        let style = format!("style=\"fill:{}\"", fill.token());
        let ((x, y), (width, height)) = (at, size);
        let back = -width;
        self.join(
            style,
            format_args!("M{x:.1} {y:.1}h{width:.1}v{height:.1}h{back:.1}z"),
        );
    }

    /// Draws round or square dots. Dots within half a pixel of each other are drawn as one dot.
    pub(super) fn dots(&mut self, points: &[(f64, f64)], ink: Ink, square: bool) {
        let half = |v: f64| (v * 2.0).round() as i64;
        let mut places: Vec<(i64, i64)> =
            points.iter().map(|(x, y)| (half(*x), half(*y))).collect();
        places.sort_unstable();
        places.dedup();
        let mut path = String::new();
        for (x, y) in places {
            let _ = write!(path, "M{} {}h.01", x as f64 / 2.0, y as f64 / 2.0);
        }
        if path.is_empty() {
            return;
        }
        let (cap, width) = if square {
            ("square", 3.2)
        } else {
            ("round", 2.6)
        };
        let ink = ink.token();
        self.element(format_args!(
            "<path d=\"{path}\" style=\"fill:none;stroke:{ink};stroke-width:{width};stroke-linecap:{cap}\"/>"
        ));
    }

    /// Draws a small cross at each point.
    pub(super) fn crosses(&mut self, points: &[(f64, f64)], ink: Ink) {
        let mut path = String::new();
        for (x, y) in points {
            let (l, r, t, b) = (x - 2.5, x + 2.5, y - 2.5, y + 2.5);
            let _ = write!(
                path,
                "M{l:.1} {t:.1}L{r:.1} {b:.1}M{l:.1} {b:.1}L{r:.1} {t:.1}"
            );
        }
        if !path.is_empty() {
            let style = stroke_style(Stroke::plain(ink, 1.2));
            self.element(format_args!("<path d=\"{path}\" {style}/>"));
        }
    }

    /// Writes the title of a vertical axis, rotated to be read upwards. The middle of the title is
    /// at the point `at`.
    pub(super) fn upright(&mut self, at: (f64, f64), text: &str) {
        let (x, y) = at;
        let (fill, text) = (Ink::Muted.token(), escape(text));
        self.element(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" transform=\"rotate(-90 {x:.1} {y:.1})\" text-anchor=\"middle\" style=\"font-size:11.5px;fill:{fill}\">{text}</text>"
        ));
    }

    /// Writes a text over data, with an outline in the background's colour.
    pub(super) fn text_over(&mut self, at: (f64, f64), text: &str, look: Lettering) {
        let margin = Ink::Surface.token();
        self.element(format_args!(
            "<g style=\"stroke:{margin};stroke-width:3.5;stroke-linejoin:round\">"
        ));
        self.text(at, text, look);
        self.element(format_args!("</g>"));
        self.text(at, text, look);
    }

    pub(super) fn diamond(&mut self, at: (f64, f64), half: f64, fill: Ink, edge: Ink) {
        let (x, y) = at;
        let (fill, edge) = (fill.token(), edge.token());
        self.element(format_args!(
            "<path d=\"M{:.1} {y:.1}L{x:.1} {:.1}L{:.1} {y:.1}L{x:.1} {:.1}Z\" style=\"fill:{fill};stroke:{edge};stroke-width:1.4\"/>",
            x - half, y - half, x + half, y + half
        ));
    }

    pub(super) fn text(&mut self, at: (f64, f64), text: impl Display, look: Lettering) {
        let anchor = match look.anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let weight = if look.bold { 600 } else { 400 };
        let (size, fill) = (look.size, look.ink.token());
        let text = escape(&text.to_string());
        self.element(format_args!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" style=\"font-size:{size}px;font-weight:{weight};fill:{fill}\">{text}</text>",
            at.0, at.1
        ));
    }

    /// Returns the drawing as a file with a white background.
    pub(super) fn file(&self) -> String {
        let ground = "<rect width=\"100%\" height=\"100%\" style=\"fill:@surface@\"/>";
        let family = "font-family=\"DejaVu Sans, Verdana, Helvetica, Arial, sans-serif\"";
        let text = self.element_with(family, ground);
        let mut text = text
            .replace("@text@", "#1c2430")
            .replace("@muted@", "#5b6573")
            .replace("@grid@", "#d9dee4")
            .replace("@surface@", "#ffffff")
            .replace("@shade@", "#eff1f4");
        for (i, colour) in SERIES_LIGHT.iter().enumerate() {
            text = text.replace(&format!("@s{i}@"), colour);
            text = text.replace(&format!("@p{i}@"), &on_white(colour));
        }
        text
    }

    /// Returns the drawing as part of a page that defines the variables `--text`, `--s0` and so on.
    pub(super) fn inline(&self) -> String {
        let mut text = self.element_with("role=\"img\"", "");
        for name in ["text", "muted", "grid", "surface"] {
            text = text.replace(&format!("@{name}@"), &format!("var(--{name})"));
        }
        for i in 0..SERIES {
            let mixed = format!("color-mix(in srgb,var(--s{i}) {PALE_PERCENT}%,var(--surface))");
            text = text.replace(&format!("@s{i}@"), &format!("var(--s{i})"));
            text = text.replace(&format!("@p{i}@"), &mixed);
        }
        let shade = "color-mix(in srgb,var(--muted) 10%,var(--surface))";
        text = text.replace("@shade@", shade);
        text
    }

    fn element_with(&self, attributes: &str, ground: &str) -> String {
        let (width, height, body) = (self.width, self.height, &self.body);
        let open = self.open_path();
        let title = escape(&self.title);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" {attributes}><title>{title}</title>{ground}\n{body}{open}</svg>\n"
        )
    }

    fn element(&mut self, element: std::fmt::Arguments<'_>) {
        self.close_path();
        // Writing to a string cannot fail.
        let _ = writeln!(self.body, "{element}");
    }

    /// Draws a part of a path. Consecutive parts with the same style are joined into one SVG
    /// element, because time lines have thousands of parts.
    fn join(&mut self, style: String, part: std::fmt::Arguments<'_>) {
        if style != self.style {
            self.close_path();
            self.style = style;
        }
        let _ = write!(self.path, "{part}");
    }

    fn close_path(&mut self) {
        let path = self.open_path();
        self.body.push_str(&path);
        self.path.clear();
    }

    fn open_path(&self) -> String {
        if self.path.is_empty() {
            String::new()
        } else {
            format!("<path d=\"{}\" {}/>\n", self.path, self.style)
        }
    }
}

fn stroke_style(stroke: Stroke) -> String {
    let (ink, width) = (stroke.ink.token(), stroke.width);
    let dash = match stroke.dash {
        "" => String::new(),
        dash => format!(";stroke-dasharray:{dash}"),
    };
    format!("style=\"fill:none;stroke:{ink};stroke-width:{width}{dash};stroke-linejoin:round\"")
}

/// Escapes a text for SVG and HTML. `@` is written as a character reference, so that no text is
/// mistaken for a colour.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('@', "&#64;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_in_one_style_are_one_element_and_keep_their_order() {
        let mut svg = Svg::new(10.0, 10.0, "t");
        svg.rect((1.0, 2.0), (3.0, 4.0), Ink::Shade);
        svg.rect((5.0, 2.0), (3.0, 4.0), Ink::Shade);
        svg.rect((5.0, 2.0), (1.0, 1.0), Ink::Text);
        svg.text((0.0, 0.0), "a", Lettering::title());
        svg.rect((5.0, 3.0), (1.0, 1.0), Ink::Text);
        let file = svg.file();
        let places: Vec<usize> = [
            "M1.0 2.0h3.0v4.0h-3.0zM5.0 2.0h3.0v4.0h-3.0z",
            "M5.0 2.0h1.0v1.0h-1.0z",
            ">a</text>",
            "M5.0 3.0h1.0v1.0h-1.0z",
        ]
        .map(|part| {
            file.find(part)
                .unwrap_or_else(|| panic!("{part} in {file}"))
        })
        .into();
        assert!(places.is_sorted(), "{file}");
        assert_eq!(file.matches("<path").count(), 3);
    }
}
