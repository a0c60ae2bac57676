use std::time::{Duration, UNIX_EPOCH};

use leasehold_ycsb::measurement::{HlogWriter, new_histogram};

use super::*;

/// Writes a log that begins `late_s` seconds after the usual beginning. In each second, the log has
/// ten reads at JP that take `read_ms`; in its third second, it also has a failed write.
fn log(dir: &Path, name: &str, late_s: u64, read_ms: u64) -> PathBuf {
    let start = UNIX_EPOCH + Duration::from_secs(1_700_000_000 + late_s);
    let mut log = HlogWriter::new(Vec::new(), "a test", start).unwrap();
    let second = Duration::from_secs(1);
    let histogram = |ms: u64, count: u64| {
        let mut histogram = new_histogram();
        histogram.record_n(ms * 1_000, count).unwrap();
        histogram
    };
    for at in 0..5 {
        let tag = Some("JP:READ:local");
        let from = Duration::from_secs(at);
        log.write(from, second, tag, &histogram(read_ms, 10))
            .unwrap();
        if at == 2 {
            let tag = Some("JP:UPDATE-FAILED");
            log.write(from, second, tag, &histogram(9_000, 1)).unwrap();
        }
    }
    let path = dir.join(name);
    std::fs::write(&path, log.finish().unwrap()).unwrap();
    path
}

#[test]
fn load_generators_of_one_run_are_merged_as_histograms() {
    let dir = tempfile::tempdir().unwrap();
    let files = vec![log(dir.path(), "a", 0, 1), log(dir.path(), "b", 2, 100)];
    let gathered = gather::gather(&[(String::new(), files)]).unwrap();
    assert_eq!((gathered.sites.len(), gathered.runs.len()), (1, 1));
    let run = &gathered.runs[0];
    assert_eq!(run.length_s(), 7.0);
    let [reads, writes] = [0, 1].map(|class| run.series("JP", class));
    assert!(reads.ranges.is_empty(), "nothing was put together");
    let rates: Vec<f64> = reads.throughput.iter().map(|(.., rate)| *rate).collect();
    assert_eq!(rates, [10.0, 10.0, 20.0, 20.0, 20.0, 10.0, 10.0]);
    let medians: Vec<f64> = reads.bands.iter().map(|band| band.p50_ms.round()).collect();
    assert_eq!(medians, [1.0, 1.0, 1.0, 1.0, 1.0, 100.0, 100.0]);
    assert_eq!(reads.bands[2].max_ms.round(), 100.0);
    assert!(writes.bands.is_empty());
    let failed: Vec<f64> = writes.failed.iter().map(|(at, _)| *at).collect();
    assert_eq!(failed, [2.5, 4.5], "what failed is shown");
    let steps = run.steps("JP", 0);
    let shares: Vec<f64> = steps.iter().map(|(_, share)| *share).collect();
    assert_eq!(shares, [0.5, 1.0]);
}

#[test]
fn twelve_hours_take_a_point_for_each_pixel_and_keep_their_extremes() {
    let dir = tempfile::tempdir().unwrap();
    let start = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let mut log = HlogWriter::new(Vec::new(), "a test", start).unwrap();
    let mut usual = new_histogram();
    usual.record_n(1_000, 10).unwrap();
    let mut slow = usual.clone();
    slow.record_n(5_000_000, 1).unwrap();
    let mut failed = new_histogram();
    failed.record_n(30_000, 1).unwrap();
    let (stall, spike) = (20_000, 30_000);
    for at in (0..43_200).filter(|at| *at != stall) {
        let (from, second) = (Duration::from_secs(at), Duration::from_secs(1));
        let reads = if at == spike { &slow } else { &usual };
        log.write(from, second, Some("JP:READ:local"), reads)
            .unwrap();
        log.write(from, second, Some("JP:READ-FAILED"), &failed)
            .unwrap();
    }
    let path = dir.path().join("long.hlog");
    std::fs::write(&path, log.finish().unwrap()).unwrap();
    let gathered = gather::gather(&[(String::new(), vec![path])]).unwrap();
    let run = &gathered.runs[0];
    assert_eq!(run.length_s(), 43_200.0);
    let series = run.series("JP", 0);
    let most = timeline::COLUMNS;
    assert!((most / 2..=most).contains(&series.bands.len()));
    assert!(series.throughput.len() <= most && series.failed.len() <= 2 * most);
    let around = |at: u64| {
        let at = at as f64 + 0.5;
        let column = series.throughput.iter();
        let mut column = column.filter(move |(from, to, _)| (*from..*to).contains(&at));
        column.next().copied().unwrap()
    };
    let (from, to, per_s) = around(stall);
    assert!(
        per_s > 9.0 && per_s < 10.0,
        "a second of a minute and a half: {per_s}"
    );
    let range = series.ranges.iter().find(|(at, _)| (from..to).contains(at));
    assert_eq!(range.unwrap().1, [0.0, 10.0]);
    let (from, ..) = around(spike);
    for band in &series.bands {
        assert_eq!(band.p50_ms.round(), 1.0);
        let longest = if band.from_s == from { 5_000.0 } else { 1.0 };
        // The precision of a histogram is three digits.
        assert!((band.max_ms / longest - 1.0).abs() < 0.01, "{band:?}");
    }
    let drawn = figures(&gathered)
        .into_iter()
        .map(|figure| figure.svg.file().len());
    let longest = drawn.max().unwrap();
    assert!(longest < 500_000, "{longest} bytes");
}

#[test]
fn a_log_may_come_through_a_pipe() {
    let dir = tempfile::tempdir().unwrap();
    let file = log(dir.path(), "a", 0, 1);
    let pipe = dir.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let bytes = std::fs::read(file).unwrap();
    let writer = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::write(pipe, bytes).unwrap()
    });
    let gathered = gather::gather(&[(String::new(), vec![pipe])]).unwrap();
    writer.join().unwrap();
    assert_eq!(gathered.runs[0].series("JP", 0).bands.len(), 5);
}

#[test]
fn named_runs_are_compared_and_drawn_in_every_format() {
    let dir = tempfile::tempdir().unwrap();
    let runs = [
        ("fast".to_owned(), vec![log(dir.path(), "a", 0, 1)]),
        ("slow".to_owned(), vec![log(dir.path(), "b", 90, 100)]),
    ];
    let out = dir.path().join("plots");
    let names = plot(&runs, &out).unwrap();
    assert!(names.contains(&"timeline-fast".to_owned()), "{names:?}");
    assert!(
        names.contains(&"panels/cdf-JP-reads".to_owned()),
        "{names:?}"
    );
    assert!(
        !names.iter().any(|name| name.contains("cdf-JP-writes")),
        "no write was answered"
    );
    for name in &names {
        let svg = std::fs::read(out.join(format!("{name}.svg"))).unwrap();
        assert_eq!(svg[..4], *b"<svg");
    }
    let svg = std::fs::read_to_string(out.join("timeline-slow.svg")).unwrap();
    assert!(svg.contains("slow: latency and throughput over time"));
    let before = std::fs::read(out.join("timeline-fast.svg")).unwrap();
    plot(&runs, &out).unwrap();
    assert_eq!(
        before,
        std::fs::read(out.join("timeline-fast.svg")).unwrap(),
        "same bytes"
    );
}

#[test]
fn what_cannot_be_drawn_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let one = log(dir.path(), "a", 0, 1);
    let run = |i: usize| (format!("run{i}"), vec![one.clone()]);
    let many: Vec<NamedLogs> = (0..7).map(run).collect();
    let error = plot(&many, dir.path()).unwrap_err().to_string();
    assert!(error.contains("at most 6"), "{error}");
    let words = dir.path().join("words.hlog");
    std::fs::write(&words, "no log at all\n").unwrap();
    let error = plot(&[(String::new(), vec![words.clone()])], dir.path()).unwrap_err();
    assert!(error.to_string().contains("words.hlog"), "{error}");
    std::fs::write(&words, "#[Histogram log format version 1.3]\n").unwrap();
    let error = plot(&[(String::new(), vec![words])], dir.path()).unwrap_err();
    assert!(error.to_string().contains("no operation"), "{error}");
}
