//! The lines of a report, in the formats of YCSB's exporters.

/// `exporter`: the format in which the report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exporter {
    /// Text: `[READ], Operations, 5`.
    Text,
    /// One JSON object after another.
    Json,
    /// One JSON array of objects.
    JsonArray,
}

/// One figure of a report.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportLine {
    /// Subject of the figure, for example `OVERALL`, `READ` or `READ-FAILED`.
    pub metric: String,
    /// Name of the figure, including the unit.
    pub measurement: String,
    /// The figure.
    pub value: Number,
}

/// Number in a report. YCSB formats the two kinds differently.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A count, or a latency in microseconds.
    Whole(u64),
    /// A mean or a rate.
    Real(f64),
}

/// Formats a percentile, for example `95` as `95th`. A percentile with a fraction, such as `99.9`,
/// is unchanged.
pub(super) fn ordinal(percentile: f64) -> String {
    if percentile.fract() != 0.0 {
        return java_double(percentile);
    }
    let whole = percentile as u64;
    let suffix = match (whole % 100, whole % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{whole}{suffix}")
}

/// Formats a number as Java does: always with a decimal point, and with an exponent if the number
/// is at least ten million.
fn java_double(x: f64) -> String {
    let magnitude = x.abs();
    if x == 0.0 || (1e-3..1e7).contains(&magnitude) || !x.is_finite() {
        return format!("{x:?}");
    }
    let text = format!("{x:E}");
    match text.split_once('E') {
        Some((digits, exponent)) if !digits.contains('.') => format!("{digits}.0E{exponent}"),
        _ => text,
    }
}

/// Formats the report in the format of `exporter`.
pub fn format_lines(lines: &[ReportLine], exporter: Exporter) -> String {
    match exporter {
        Exporter::Text => lines.iter().map(text_line).collect(),
        Exporter::Json => lines.iter().map(|line| json_object(line) + "\n").collect(),
        Exporter::JsonArray => {
            let objects: Vec<_> = lines.iter().map(json_object).collect();
            format!("[ {} ]\n", objects.join(", "))
        }
    }
}

fn text_line(line: &ReportLine) -> String {
    let value = value_text(line.value);
    format!("[{}], {}, {value}\n", line.metric, line.measurement)
}

fn json_object(line: &ReportLine) -> String {
    format!(
        "{{\n  \"metric\" : {},\n  \"measurement\" : {},\n  \"value\" : {}\n}}",
        json_string(&line.metric),
        json_string(&line.measurement),
        value_text(line.value)
    )
}

/// Formats a JSON string. Characters are escaped where this is necessary.
fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn value_text(value: Number) -> String {
    match value {
        Number::Whole(value) => value.to_string(),
        Number::Real(value) => java_double(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinals_are_ycsbs() {
        let all = [
            50.0, 95.0, 99.0, 1.0, 2.0, 3.0, 11.0, 12.0, 21.0, 99.9, 99.99,
        ];
        let expected = [
            "50th", "95th", "99th", "1st", "2nd", "3rd", "11th", "12th", "21st", "99.9", "99.99",
        ];
        assert_eq!(all.map(ordinal), expected);
    }

    #[test]
    fn numbers_are_javas() {
        let all = [0.0, 1000.0, 0.5, 1234.5678, 1e7, 12_345_678.9, 0.0001];
        let expected = [
            "0.0",
            "1000.0",
            "0.5",
            "1234.5678",
            "1.0E7",
            "1.23456789E7",
            "1.0E-4",
        ];
        assert_eq!(all.map(java_double), expected);
    }
}
