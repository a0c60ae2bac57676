//! The format of percentile distributions that the tools of the HdrHistogram project write and
//! plot.

use std::io::{self, Write};

use hdrhistogram::Histogram;

use super::DIGITS;

/// Number of lines for each halving of the distance from 100%.
const TICKS_PER_HALF_DISTANCE: u32 = 5;

/// Writes a table with the four columns `Value Percentile TotalCount 1/(1-Percentile)`, and a
/// summary below it. Values are divided by `unit`: 1000 turns microseconds into milliseconds.
///
/// # Errors
/// If `out` fails.
pub fn write_hgrm(out: &mut impl Write, histogram: &Histogram<u64>, unit: f64) -> io::Result<()> {
    writeln!(
        out,
        "{:>12} {:>14} {:>10} {:>14}\n",
        "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
    )?;
    let digits = usize::from(DIGITS);
    let mut total = 0;
    for step in histogram.iter_quantiles(TICKS_PER_HALF_DISTANCE) {
        total += step.count_since_last_iteration();
        let value = histogram.highest_equivalent(step.value_iterated_to()) as f64 / unit;
        let quantile = step.quantile_iterated_to();
        write!(out, "{value:12.digits$} {quantile:2.12} {total:10}")?;
        match quantile {
            1.0.. => writeln!(out)?,
            _ => writeln!(out, " {:14.2}", 1.0 / (1.0 - quantile))?,
        }
    }
    summary(out, histogram, unit)
}

fn summary(out: &mut impl Write, histogram: &Histogram<u64>, unit: f64) -> io::Result<()> {
    let digits = usize::from(DIGITS);
    let (mean, deviation) = (histogram.mean() / unit, histogram.stdev() / unit);
    writeln!(
        out,
        "#[Mean    = {mean:12.digits$}, StdDeviation   = {deviation:12.digits$}]"
    )?;
    let (max, count) = (histogram.max() as f64 / unit, histogram.len());
    writeln!(
        out,
        "#[Max     = {max:12.digits$}, Total count    = {count:12}]"
    )?;
    let (buckets, sub_buckets) = (histogram.buckets(), 2 << (10 * DIGITS / 3));
    writeln!(
        out,
        "#[Buckets = {buckets:12}, SubBuckets     = {sub_buckets:12}]"
    )
}
