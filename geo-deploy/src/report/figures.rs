//! The plots of a report: distributions of latency, shares for each site, and time lines of runs
//! with faults.

mod bars;
pub(super) mod cdf;
mod headline;
pub(super) mod time_series;
pub(super) mod timeline;

use super::digest::Digest;
use super::summary::ExperimentSummary;
use super::svg::{Anchor, Ink, Lettering, SERIES, Stroke, Svg};
use super::{ExperimentReport, StrategyRun};

/// Width of most figures, in pixels.
const WIDTH: f64 = 1_000.0;
/// Space to the left of a plot, for its axis.
const LEFT: f64 = 62.0;
/// Space to the right of a plot.
const RIGHT: f64 = 14.0;

/// A plot and the name of its file.
pub(super) struct Figure {
    pub name: String,
    pub caption: String,
    pub svg: Svg,
}

/// Returns all figures of a report. Time lines are included only if there were faults.
pub(super) fn all(
    report: &ExperimentReport,
    digests: &[Digest],
    summary: &ExperimentSummary,
) -> Vec<Figure> {
    let mut figures = vec![
        headline::figure(report, summary),
        bars::local_reads(report, summary),
        bars::writes_at_minimum(report, summary),
    ];
    figures.extend(time_series::figure(report));
    figures.extend(cdf::figures(&cdf::of_report(report, digests, summary)));
    figures.extend(report.runs.iter().flat_map(|run| of_faults(report, run)));
    figures
}

/// Returns the figures that show a run's time line. Returns no figures if the run had no faults.
fn of_faults(report: &ExperimentReport, run: &StrategyRun) -> Vec<Figure> {
    if run.faults.is_empty() {
        Vec::new()
    } else {
        timeline::figures(&timeline_name(run), &timeline::of_run(report, run))
    }
}

/// Returns the file name of a run's time line. The name contains the run's label. Special
/// characters of the label are replaced.
pub(super) fn timeline_name(run: &StrategyRun) -> String {
    format!("timeline-{}", file_name(&run.label))
}

/// Returns a file name for `name`. Characters other than ASCII letters and digits are replaced by
/// `-`.
pub(super) fn file_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    name.chars().map(plain).collect()
}

/// Returns a number for each run. The number determines the colour and the line pattern of the run.
/// The first run of a given strategy has the same number in every report. Further runs of the
/// strategy get the remaining numbers.
pub(super) fn looks(runs: &[StrategyRun]) -> Vec<usize> {
    let usual: Vec<usize> = runs.iter().map(|run| usual_look(&run.strategy)).collect();
    let mut looks = Vec::new();
    for (nth, &look) in usual.iter().enumerate() {
        let mut wanted = (0..SERIES).map(|i| (look + i) % SERIES);
        let free = if usual[..nth].contains(&look) {
            wanted.find(|i| !usual.contains(i) && !looks.contains(i))
        } else {
            Some(look)
        };
        looks.push(free.unwrap_or(look));
    }
    looks
}

fn usual_look(strategy: &str) -> usize {
    match strategy {
        "quorum" => 0,
        "leader" => 1,
        "all" => 2,
        "cost" => 3,
        "fixed" => 4,
        _ => 5,
    }
}

/// Symbol that a legend shows next to a name.
enum LegendKey {
    Line(Stroke),
    Box(Ink),
    Tick,
    Diamond,
    Dot(Ink),
    Square(Ink),
    Band(Ink),
    Cross,
    Shade,
    Notch,
    Pale,
}

impl LegendKey {
    fn width(&self) -> f64 {
        match self {
            LegendKey::Line(_) => 34.0,
            LegendKey::Box(_)
            | LegendKey::Tick
            | LegendKey::Band(_)
            | LegendKey::Shade
            | LegendKey::Pale => 18.0,
            LegendKey::Diamond | LegendKey::Dot(_) | LegendKey::Square(_) | LegendKey::Cross => {
                10.0
            }
            LegendKey::Notch => 4.0,
        }
    }

    fn draw(&self, svg: &mut Svg, x: f64, y: f64) {
        let to = x + self.width();
        let middle = (x + self.width() / 2.0, y);
        match self {
            LegendKey::Line(stroke) => svg.line((x, y), (to, y), *stroke),
            LegendKey::Box(ink) => svg.rect((x, y - 6.0), (to - x, 12.0), *ink),
            LegendKey::Tick => svg.line((x, y), (to, y), Stroke::plain(Ink::Text, 2.6)),
            LegendKey::Diamond => svg.diamond(middle, 5.0, Ink::Surface, Ink::Text),
            LegendKey::Dot(ink) => svg.dots(&[middle], *ink, false),
            LegendKey::Square(ink) => svg.dots(&[middle], *ink, true),
            LegendKey::Band(ink) => {
                svg.rect((x, y - 4.0), (to - x, 8.0), ink.pale());
                svg.line((x, y + 4.0), (to, y + 4.0), Stroke::plain(*ink, 2.2));
                svg.line((x, y - 7.0), (to, y - 7.0), Stroke::plain(*ink, 0.9));
            }
            LegendKey::Cross => svg.crosses(&[middle], Ink::Text),
            LegendKey::Shade => {
                svg.rect((x, y - 7.0), (to - x, 14.0), Ink::Shade);
                svg.line((x, y - 7.0), (x, y + 7.0), Stroke::plain(Ink::Text, 1.3));
            }
            LegendKey::Pale => svg.rect((x, y - 6.0), (to - x, 12.0), Ink::Pale(0)),
            LegendKey::Notch => svg.line(
                (x + 2.0, y - 3.0),
                (x + 2.0, y + 3.0),
                Stroke::plain(Ink::Muted, 1.0),
            ),
        }
    }
}

/// Draws a legend in as many rows as necessary. The first row is at the vertical position `y`.
/// Returns the vertical position of the last row.
fn legend(svg: &mut Svg, entries: &[(LegendKey, String)], y: f64) -> f64 {
    let (mut x, mut y) = (LEFT, y);
    for (key, label) in entries {
        let width = key.width();
        // Letters of this size are 7 pixels wide on average.
        let whole = width + 6.0 + 7.2 * label.chars().count() as f64;
        if x > LEFT && x + whole > svg.width() - RIGHT {
            (x, y) = (LEFT, y + 20.0);
        }
        key.draw(svg, x, y);
        let look = Lettering {
            size: 12.5,
            ..Lettering::small(Ink::Text, Anchor::Start)
        };
        svg.text((x + width + 6.0, y + 4.0), label, look);
        x += whole + 22.0;
    }
    y
}

/// Formats a latency in ms, as a label for an axis or a mark.
fn ms_label(ms: f64) -> String {
    let rounded = (ms * 100.0).round() / 100.0;
    if ms >= 10.0 {
        format!("{}", (ms * 10.0).round() / 10.0)
    } else {
        format!("{rounded}")
    }
}

/// Rounds `value` up to 1, 2 or 5 times a power of ten.
fn one_two_five_above(value: f64) -> f64 {
    let decade = 10f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|step| step * decade);
    let found = steps.into_iter().find(|step| *step >= value * 0.999_999);
    found.unwrap_or(10.0 * decade)
}

/// Rounds `value` down to 1, 2 or 5 times a power of ten.
fn one_two_five_below(value: f64) -> f64 {
    let decade = 10f64.powf(value.log10().floor());
    let steps = [5.0, 2.0, 1.0].map(|step| step * decade);
    let found = steps.into_iter().find(|step| *step <= value * 1.000_001);
    found.unwrap_or(decade)
}

/// A logarithmic axis for latencies.
#[derive(Clone, Copy, Debug)]
struct LogAxis {
    from_ms: f64,
    to_ms: f64,
    from_px: f64,
    to_px: f64,
}

impl LogAxis {
    fn place(&self, ms: f64) -> f64 {
        let ms = ms.clamp(self.from_ms, self.to_ms);
        let part = (ms / self.from_ms).ln() / (self.to_ms / self.from_ms).ln();
        self.from_px + part * (self.to_px - self.from_px)
    }

    /// Returns the values at which grid lines are drawn. Each value is paired with a flag, which is
    /// true if the grid line has a label. An axis that spans fewer powers of ten has more lines for
    /// each power.
    fn ticks(&self) -> Vec<(f64, bool)> {
        let decades = (self.to_ms / self.from_ms).log10();
        let steps: &[f64] = if decades < 1.3 {
            &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0]
        } else {
            &[1.0, 2.0, 5.0]
        };
        let inside = self.from_ms * 0.999_999..=self.to_ms * 1.000_001;
        let mut ticks = Vec::new();
        let mut decade = 10f64.powf(self.from_ms.log10().floor());
        while decade <= self.to_ms * 1.000_001 {
            let values = steps
                .iter()
                .map(|step| (step * decade, *step == 1.0 || decades < 2.1));
            ticks.extend(values.filter(|(value, _)| inside.contains(value)));
            decade *= 10.0;
        }
        ticks
    }
}
