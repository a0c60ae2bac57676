//! The report of a run, line by line as YCSB's exporters write it.

use client::wire::Path;
use hdrhistogram::Histogram;

use super::{Basis, Interval, Key, Measurements, What, path_name};
use crate::sample::OpKind;

/// `exporter`: the form of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exporter {
    /// `[READ], Operations, 5`.
    Text,
    /// One JSON object after another.
    Json,
    /// One JSON array of objects.
    JsonArray,
}

/// One figure of a report.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// What was measured: `OVERALL`, `READ`, `READ-FAILED` ...
    pub metric: String,
    /// Which figure of it, with its unit.
    pub measurement: String,
    /// The figure.
    pub value: Number,
}

/// A figure: YCSB writes the two kinds differently.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A count, or a latency in microseconds.
    Whole(u64),
    /// A mean or a rate.
    Real(f64),
}

/// All figures of a run: overall, then by operation, failures and paths.
/// `runtime_ms` and `operations` are those of the measured phase; `percentiles`
/// are in percent.
pub fn report_lines(
    measurements: &Measurements,
    runtime_ms: u64,
    operations: u64,
    percentiles: &[f64],
) -> Vec<Line> {
    let mut lines = Vec::new();
    let throughput = if runtime_ms == 0 {
        0.0
    } else {
        1000.0 * operations as f64 / runtime_ms as f64
    };
    push(
        &mut lines,
        "OVERALL",
        "RunTime(ms)",
        Number::Whole(runtime_ms),
    );
    push(
        &mut lines,
        "OVERALL",
        "Throughput(ops/sec)",
        Number::Real(throughput),
    );
    for basis in [Basis::Service, Basis::Intended] {
        for what in all_kinds() {
            operation_lines(&mut lines, measurements, what, basis, percentiles);
        }
    }
    for (what, path) in read_paths(measurements) {
        let basis = measurements.main_basis();
        let histogram =
            measurements.total(|key| key.basis == basis && key.what == what && key.path == path);
        let metric = format!("{}@{}", what.name(), path_name(path));
        latency_lines(&mut lines, &metric, &histogram, percentiles);
    }
    lines
}

fn all_kinds() -> impl Iterator<Item = What> {
    let kinds = [
        OpKind::Read,
        OpKind::Update,
        OpKind::Insert,
        OpKind::Scan,
        OpKind::ReadModifyWrite,
    ];
    let of_kind = |kind| [What::Done(kind), What::Failed(kind)];
    kinds.into_iter().flat_map(of_kind).chain([What::Verify])
}

fn operation_lines(
    lines: &mut Vec<Line>,
    measurements: &Measurements,
    what: What,
    basis: Basis,
    percentiles: &[f64],
) {
    let histogram = measurements.total(|key| key.basis == basis && key.what == what);
    let main = basis == measurements.main_basis();
    let returns: Vec<_> = measurements.returns(what).filter(|_| main).collect();
    if histogram.is_empty() && returns.is_empty() {
        return;
    }
    let metric = reported_name(what, basis, measurements.interval());
    latency_lines(lines, &metric, &histogram, percentiles);
    for (returned, count) in returns {
        let measurement = format!("Return={}", returned.name());
        push(lines, &metric, &measurement, Number::Whole(count));
    }
}

/// The name under which a histogram is reported.
pub(super) fn reported_name(what: What, basis: Basis, interval: Interval) -> String {
    match (basis, interval) {
        (Basis::Intended, Interval::Both) => format!("Intended-{}", what.name()),
        _ => what.name(),
    }
}

/// Operations that read, by path: what the leases are for.
fn read_paths(measurements: &Measurements) -> Vec<(What, Path)> {
    let reads = |key: &&Key| {
        let read = What::Done(OpKind::Read) == key.what || What::Done(OpKind::Scan) == key.what;
        read && key.path != Path::Unspecified
    };
    let mut found: Vec<_> = measurements
        .keys()
        .filter(reads)
        .map(|key| (key.what, key.path))
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn latency_lines(
    lines: &mut Vec<Line>,
    metric: &str,
    histogram: &Histogram<u64>,
    percentiles: &[f64],
) {
    push(lines, metric, "Operations", Number::Whole(histogram.len()));
    push(
        lines,
        metric,
        "AverageLatency(us)",
        Number::Real(histogram.mean()),
    );
    push(
        lines,
        metric,
        "MinLatency(us)",
        Number::Whole(histogram.min()),
    );
    push(
        lines,
        metric,
        "MaxLatency(us)",
        Number::Whole(histogram.max()),
    );
    for &percentile in percentiles {
        let measurement = format!("{}PercentileLatency(us)", ordinal(percentile));
        let value = histogram.value_at_quantile(percentile / 100.0);
        push(lines, metric, &measurement, Number::Whole(value));
    }
}

fn push(lines: &mut Vec<Line>, metric: &str, measurement: &str, value: Number) {
    lines.push(Line {
        metric: metric.to_owned(),
        measurement: measurement.to_owned(),
        value,
    });
}

/// `95` as `95th`, `99.9` as it is.
fn ordinal(percentile: f64) -> String {
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

/// A number as Java writes it: always with a decimal point, and with an exponent
/// from ten million on.
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

/// The report as text, in the form of `exporter`.
pub fn format_lines(lines: &[Line], exporter: Exporter) -> String {
    match exporter {
        Exporter::Text => lines.iter().map(text_line).collect(),
        Exporter::Json => lines.iter().map(|line| json_object(line) + "\n").collect(),
        Exporter::JsonArray => {
            let objects: Vec<_> = lines.iter().map(json_object).collect();
            format!("[ {} ]\n", objects.join(", "))
        }
    }
}

fn text_line(line: &Line) -> String {
    let value = value_text(line.value);
    format!("[{}], {}, {value}\n", line.metric, line.measurement)
}

// The names are this crate's own and hold nothing that JSON would escape.
fn json_object(line: &Line) -> String {
    format!(
        "{{\n  \"metric\" : \"{}\",\n  \"measurement\" : \"{}\",\n  \"value\" : {}\n}}",
        line.metric,
        line.measurement,
        value_text(line.value)
    )
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
