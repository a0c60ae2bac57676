//! One table, three renderings: terminal, Markdown and HTML.

use super::svg::escape;

/// A table; the first column is text, the others are figures.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Table {
    pub title: String,
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// All columns are text, not figures.
    pub words: bool,
}

impl Table {
    pub(super) fn new(title: impl Into<String>, columns: &[&str]) -> Table {
        Table {
            title: title.into(),
            columns: columns.iter().map(|column| (*column).to_owned()).collect(),
            rows: Vec::new(),
            words: false,
        }
    }

    /// For a terminal: aligned, no colours.
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
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            let line = padded.collect::<Vec<_>>().join("  ");
            format!("{}\n", line.trim_end())
        };
        let rule = "-".repeat(widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1));
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        format!("{}\n{}{rule}\n{rows}", self.title, line(&self.columns))
    }

    /// For `report.md`.
    pub(super) fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let mut rule = vec!["---".to_owned()];
        let aligned = if self.words { "---" } else { "---:" };
        rule.resize(self.columns.len(), aligned.to_owned());
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        format!(
            "**{}**\n\n{}{}{rows}",
            self.title,
            line(&self.columns),
            line(&rule)
        )
    }

    /// For the page.
    pub(super) fn html(&self) -> String {
        let cells = |tag: &str, cells: &[String]| -> String {
            let cell = |cell: &String| format!("<{tag}>{}</{tag}>", escape(cell));
            cells.iter().map(cell).collect()
        };
        let row = |row: &Vec<String>| {
            let (first, rest) = row.split_at(row.len().min(1));
            format!("<tr>{}{}</tr>\n", cells("th", first), cells("td", rest))
        };
        let rows: String = self.rows.iter().map(row).collect();
        let class = if self.words { "table words" } else { "table" };
        format!(
            "<figure class=\"{class}\"><figcaption>{}</figcaption><div><table><thead><tr>{}</tr></thead>\n<tbody>{rows}</tbody></table></div></figure>\n",
            escape(&self.title),
            cells("th", &self.columns)
        )
    }
}

/// A count, its thousands set apart.
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

/// Milliseconds: two decimals below ten, one above.
pub(super) fn ms(value: f64) -> String {
    match value < 10.0 {
        true => format!("{value:.2}"),
        false => format!("{value:.1}"),
    }
}

/// Several bounds in ms; a dash where the strategy does not decide them.
pub(super) fn bounds(values: &[f64]) -> String {
    let shown = |value: &f64| format!("{}", (value * 10.0).round() / 10.0);
    match values {
        [] => "–".to_owned(),
        values => values.iter().map(shown).collect::<Vec<_>>().join(" / "),
    }
}

/// A share as a percentage.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// A share as a percentage, or a dash.
pub(super) fn percent_or_dash(share: Option<f64>) -> String {
    share.map_or_else(|| "–".to_owned(), percent)
}
