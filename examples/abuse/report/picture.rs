//! Plot of the p99 of puts in the quiet time and under attack, for every attack and run.

use std::fmt::Write as _;

use super::{Run, row};
use crate::attacks::ATTACKS;

const LEFT: f64 = 170.0;
const RIGHT: f64 = 90.0;
const WIDTH: f64 = 860.0;
const BAR: f64 = 9.0;
const GAP: f64 = 10.0;
const TOP: f64 = 56.0;
/// Latency at the lower end of the logarithmic axis, in ms.
const FROM_MS: f64 = 0.1;
/// Latency at the upper end of the logarithmic axis, in ms.
const TO_MS: f64 = 10_000.0;
const COLOURS: [&str; 3] = ["#d55e00", "#0072b2", "#00876c"];
const QUIET: &str = "#c4c9cf";

/// Returns the horizontal position of a latency on the plot.
fn x(ms: f64) -> f64 {
    let share = (ms.clamp(FROM_MS, TO_MS) / FROM_MS).log10() / (TO_MS / FROM_MS).log10();
    LEFT + share * (WIDTH - LEFT - RIGHT)
}

/// Returns the plot as SVG.
pub fn svg(runs: &[Run]) -> String {
    let mut body = String::new();
    let mut y = TOP;
    for attack in ATTACKS {
        let of_runs = runs.iter().map(|run| row(run, attack.name));
        let rows: Vec<_> = of_runs
            .enumerate()
            .filter_map(|(i, row)| Some((i, row?)))
            .collect();
        if rows.is_empty() {
            continue;
        }
        let middle = y + BAR * rows.len() as f64;
        text(&mut body, LEFT - 8.0, middle + 4.0, "end", attack.name);
        for (run, row) in rows {
            let ms = |name: &str| row.figures.get(name).copied().unwrap_or_default() / 1000.0;
            bar(&mut body, y, ms("quiet_put_p99_us"), QUIET);
            y += BAR;
            let colour = COLOURS[run % COLOURS.len()];
            bar(&mut body, y, ms("attacked_put_p99_us"), colour);
            y += BAR;
        }
        y += GAP;
    }
    let height = y + 10.0;
    let mut all = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    legend(&mut all, runs);
    scale(&mut all, y);
    all + &body + "</svg>\n"
}

fn bar(body: &mut String, y: f64, ms: f64, colour: &str) {
    let (from, to) = (x(FROM_MS), x(ms));
    let width = (to - from).max(1.0);
    let _ = writeln!(
        body,
        "<rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{colour}\"/>",
        BAR - 1.5
    );
    let label = format!("{ms:.1} ms");
    let _ = writeln!(
        body,
        "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"8.5\" fill=\"#444\">{label}</text>",
        to.max(from) + 4.0,
        y + BAR - 2.0
    );
}

fn text(body: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let _ = writeln!(
        body,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"#222\">{words}</text>"
    );
}

fn legend(all: &mut String, runs: &[Run]) {
    text(
        all,
        10.0,
        20.0,
        "start",
        "p99 of puts of well-behaved clients:",
    );
    let mut at = 240.0;
    let runs = runs.iter().enumerate();
    let attacked = runs.map(|(i, run)| {
        (
            COLOURS[i % COLOURS.len()],
            format!("attacked, {}", run.label),
        )
    });
    for (colour, words) in std::iter::once((QUIET, "quiet".to_owned())).chain(attacked) {
        let _ = writeln!(
            all,
            "<rect x=\"{at:.1}\" y=\"11\" width=\"10\" height=\"10\" fill=\"{colour}\"/>"
        );
        text(all, at + 15.0, 20.0, "start", &words);
        at += 40.0 + 7.0 * words.len() as f64;
    }
}

/// Draws a vertical line at every power of ten on the axis.
fn scale(all: &mut String, bottom: f64) {
    let mut ms = FROM_MS;
    while ms <= TO_MS * 1.01 {
        let at = x(ms);
        let _ = writeln!(
            all,
            "<line x1=\"{at:.1}\" y1=\"{:.1}\" x2=\"{at:.1}\" y2=\"{bottom:.1}\" stroke=\"#e4e7ea\"/>",
            TOP - 6.0
        );
        text(all, at, TOP - 10.0, "middle", &format!("{ms} ms"));
        ms *= 10.0;
    }
}
