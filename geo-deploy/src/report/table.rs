//! A table that can be rendered for a terminal, as Markdown and as HTML.

use super::svg::escape;

/// A table. The first column is text. The other columns are numbers, unless they are marked as
/// text.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Table {
    pub title: String,
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// True if all columns are text.
    pub words: bool,
    /// Number of text columns at the left of the table.
    pub words_first: usize,
}

/// Character that is shown for a missing value.
const DASH: &str = "–";

impl Table {
    pub(super) fn new(title: impl Into<String>, columns: &[&str]) -> Table {
        Table {
            title: title.into(),
            columns: columns.iter().map(|column| (*column).to_owned()).collect(),
            rows: Vec::new(),
            words: false,
            words_first: 1,
        }
    }

    /// Removes columns that contain no value.
    pub(super) fn without_empty_columns(mut self) -> Table {
        let empty = |rows: &[Vec<String>], column: usize| {
            let mut cells = rows.iter().filter_map(|row| row.get(column));
            !rows.is_empty() && cells.all(|cell| cell == DASH || cell.is_empty())
        };
        for column in (1..self.columns.len()).rev() {
            if empty(&self.rows, column) {
                self.columns.remove(column);
                for row in self.rows.iter_mut().filter(|row| row.len() > column) {
                    row.remove(column);
                }
            }
        }
        self
    }

    /// Renders the table for a terminal: aligned, without colours.
    pub(super) fn text(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            let cells = cells.chain(self.columns.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |cells: &[String]| {
            let padded = cells.iter().zip(&widths).enumerate();
            let padded = padded.map(|(i, (cell, &width))| match i {
                i if i < self.words_first => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            let line = padded.collect::<Vec<_>>().join("  ");
            format!("{}\n", line.trim_end())
        };
        let rule = "-".repeat(widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1));
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        format!("{}\n{}{rule}\n{rows}", self.title, line(&self.columns))
    }

    /// Renders the table for `report.md`.
    pub(super) fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let text = |column: usize| self.words || column < self.words_first;
        let aligned =
            (0..self.columns.len()).map(|column| if text(column) { "---" } else { "---:" });
        let rule: Vec<String> = aligned.map(str::to_owned).collect();
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        format!(
            "**{}**\n\n{}{}{rows}",
            self.title,
            line(&self.columns),
            line(&rule)
        )
    }

    /// Renders the table for the page.
    pub(super) fn html(&self) -> String {
        let cell = |(column, cell): (usize, &String), tag: &str| {
            let class = if column > 0 && column < self.words_first {
                " class=\"word\""
            } else {
                ""
            };
            format!("<{tag}{class}>{}</{tag}>", escape(cell))
        };
        let row = |row: &Vec<String>| {
            let tag = |column: usize| if column == 0 { "th" } else { "td" };
            let cells = row.iter().enumerate();
            let cells: String = cells.map(|(i, text)| cell((i, text), tag(i))).collect();
            format!("<tr>{cells}</tr>\n")
        };
        let heads = self.columns.iter().enumerate();
        let heads: String = heads.map(|head| cell(head, "th")).collect();
        let rows: String = self.rows.iter().map(row).collect();
        let class = if self.words { "table words" } else { "table" };
        format!(
            "<figure class=\"{class}\"><figcaption>{}</figcaption><div><table><thead><tr>{heads}</tr></thead>\n<tbody>{rows}</tbody></table></div></figure>\n",
            escape(&self.title)
        )
    }
}

/// Formats a number with separators between the thousands.
pub(super) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number of milliseconds: with two decimals below ten, and with one decimal otherwise.
pub(super) fn ms(value: f64) -> String {
    if value < 10.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.1}")
    }
}

/// Formats several bounds in ms. Returns a dash if there are no bounds. A strategy that does not
/// fix the holders has no bounds.
pub(super) fn bounds(values: &[f64]) -> String {
    let shown = |value: &f64| format!("{}", (value * 10.0).round() / 10.0);
    match values {
        [] => DASH.to_owned(),
        values => values.iter().map(shown).collect::<Vec<_>>().join(" / "),
    }
}

/// Returns a share as a percentage.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// Formats a share as a percentage. Returns a dash if there is no share.
pub(super) fn percent_or_dash(share: Option<f64>) -> String {
    share.map_or_else(|| DASH.to_owned(), percent)
}
