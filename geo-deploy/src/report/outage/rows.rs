//! Outages as a reader sees them: faults of the same text together.

use super::super::table::{Table, grouped, ms};
use super::Outage;

/// A table with more rows keeps only the worst site of each fault and group.
const ROWS_MAX: usize = 60;

/// Faults of the same text, seen by one group of operations at one site.
struct Row<'a> {
    all: Vec<&'a Outage>,
    /// Lengths of the outages in s, rising.
    outages_s: Vec<f64>,
}

/// The outages of one run; `None` if it had no faults, or nothing was due.
pub(in super::super) fn table(label: &str, outages: &[Outage]) -> Option<Table> {
    let mut rows = rows(outages);
    if rows.is_empty() {
        return None;
    }
    let several = rows.iter().any(|row| row.all.len() > 1);
    let mut title = format!("{label}: outages that clients saw");
    if rows.len() > ROWS_MAX {
        rows = worst(rows);
        title.push_str("; of each fault the site that it hit worst, outages.csv has them all");
    }
    let mut table = Table::new(title, &columns(several));
    table.rows = rows.iter().map(|row| row.cells(several)).collect();
    table.words_first = 3;
    Some(table.without_empty_columns())
}

fn columns(several: bool) -> Vec<&'static str> {
    let lengths: &[&str] = match several {
        true => &["faults", "outage p50 s", "p99 s", "longest s"],
        false => &["outage s"],
    };
    let first = ["fault", "clients at", "operations"];
    let last = [
        "longest wait s",
        "bound s",
        "kept",
        "due",
        "failed",
        "timed out",
        "median before ms",
        "after ms",
    ];
    [&first[..], lengths, &last[..]].concat()
}

fn rows(outages: &[Outage]) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for outage in outages {
        let same = |row: &&mut Row<'_>| {
            let first = row.all[0];
            (&first.text, &first.site, first.group())
                == (&outage.text, &outage.site, outage.group())
        };
        match rows.iter_mut().find(same) {
            Some(row) => row.all.push(outage),
            None => rows.push(Row {
                all: vec![outage],
                outages_s: Vec::new(),
            }),
        }
    }
    for row in &mut rows {
        row.outages_s = row.all.iter().map(|outage| outage.outage_s).collect();
        row.outages_s.sort_by(f64::total_cmp);
    }
    rows
}

/// Of each fault and group, the site where most bounds were broken, or where clients
/// waited longest.
fn worst(rows: Vec<Row<'_>>) -> Vec<Row<'_>> {
    let mut kept: Vec<Row<'_>> = Vec::new();
    for row in rows {
        let same = |other: &&mut Row<'_>| {
            let (a, b) = (other.all[0], row.all[0]);
            (&a.text, a.group()) == (&b.text, b.group())
        };
        match kept.iter_mut().find(same) {
            Some(other) if row.harm() > other.harm() => *other = row,
            Some(_) => {}
            None => kept.push(row),
        }
    }
    kept
}

impl Row<'_> {
    fn cells(&self, several: bool) -> Vec<String> {
        let first = self.all[0];
        let sum = |count: fn(&Outage) -> u64| grouped(self.all.iter().map(|o| count(o)).sum());
        let mut cells = vec![first.text.clone(), first.site.clone(), first.group()];
        if several {
            cells.push(self.all.len().to_string());
            cells.extend([0.5, 0.99].map(|q| seconds(self.quantile_s(q))));
        }
        cells.push(seconds(self.quantile_s(1.0)));
        let longest = self.all.iter().map(|outage| outage.longest_s);
        cells.push(seconds(longest.fold(0.0, f64::max)));
        cells.push(self.bound());
        cells.push(self.kept());
        cells.push(sum(|outage| outage.due));
        cells.push(sum(|outage| outage.failed));
        cells.push(sum(|outage| outage.timed_out));
        cells.push(self.median_ms(|outage| outage.median_before_ms));
        cells.push(self.median_ms(|outage| outage.median_after_ms));
        cells
    }

    /// The outage in s that the share `q` of the faults does not exceed.
    fn quantile_s(&self, q: f64) -> f64 {
        let rank = (q * self.outages_s.len() as f64).ceil().max(1.0) as usize;
        self.outages_s[rank.min(self.outages_s.len()) - 1]
    }

    /// How many bounds were broken, and the longest time without an answer, in s.
    fn harm(&self) -> (usize, f64) {
        let broken = self
            .all
            .iter()
            .filter(|outage| outage.kept() == Some(false));
        let longest = self
            .all
            .iter()
            .map(|outage| outage.outage_s.max(outage.longest_s));
        (broken.count(), longest.fold(0.0, f64::max))
    }

    fn bound(&self) -> String {
        let bounds = self.all.iter().filter_map(|outage| outage.bound_s);
        let greatest = bounds.max_by(f64::total_cmp);
        greatest.map_or_else(dash, seconds)
    }

    fn kept(&self) -> String {
        let kept: Vec<bool> = self.all.iter().filter_map(|outage| outage.kept()).collect();
        let count = kept.iter().filter(|kept| **kept).count();
        match (kept.len(), kept.len() - count) {
            (0, _) => dash(),
            (_, 0) => "yes".to_owned(),
            (1, _) => "NO".to_owned(),
            (all, _) => format!("{count} of {all}"),
        }
    }

    /// The median of the faults' medians.
    fn median_ms(&self, of: fn(&Outage) -> Option<f64>) -> String {
        let mut medians: Vec<f64> = self.all.iter().filter_map(|outage| of(outage)).collect();
        medians.sort_by(f64::total_cmp);
        let middle = medians.len().saturating_sub(1) / 2;
        medians.get(middle).map_or_else(dash, |median| ms(*median))
    }
}

fn seconds(value: f64) -> String {
    format!("{value:.3}")
}

fn dash() -> String {
    "–".to_owned()
}
