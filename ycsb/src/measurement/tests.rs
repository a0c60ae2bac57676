use super::*;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn ms(latency: u64) -> Duration {
    Duration::from_millis(latency)
}

fn read(path: Path, latency_ms: u64) -> OpMeasurement {
    OpMeasurement {
        site: 0,
        kind: OpKind::Read,
        path,
        away: false,
        returned: ReturnCode::Ok,
        service: ms(latency_ms),
        intended: ms(latency_ms + 10),
    }
}

fn failed(returned: ReturnCode) -> OpMeasurement {
    OpMeasurement {
        returned,
        ..read(Path::Unspecified, 500)
    }
}

fn sample(site: u8, start_ms: u64, latency_us: u64, end: OpOutcome) -> Sample {
    Sample {
        site,
        kind: OpKind::Read,
        path: Path::Local,
        end,
        start_ns: start_ms * 1_000_000,
        latency_ns: latency_us * 1_000,
    }
}

/// Returns the report's lines for a run of two seconds, in which three operations ended.
fn lines(measurements: &Measurements, sites: &[String], percentiles: &[f64]) -> Vec<ReportLine> {
    let account = Account {
        runtime: ms(2_000),
        succeeded: 2,
        failed: 1,
        ..Account::default()
    };
    let report = WorkloadReport {
        measurements,
        account: &account,
        availability: &Availability::default(),
        sites,
        percentiles,
    };
    report.lines()
}

fn report(measurements: &Measurements) -> String {
    let lines = lines(measurements, &[], &[50.0, 95.0, 99.9]);
    format_lines(&lines, Exporter::Text)
}

#[test]
// A histogram computes its mean from the middles of its cells, in Java as here: 500096.
fn the_report_has_ycsbs_lines() {
    let mut measurements = Measurements::new(Interval::Op);
    measurements.record(&read(Path::Local, 1));
    measurements.record(&read(Path::Forwarded, 3));
    measurements.record(&failed(ReturnCode::Timeout));
    measurements.record(&failed(ReturnCode::NotFound));
    assert_eq!(
        report(&measurements),
        "[OVERALL], RunTime(ms), 2000\n\
         [OVERALL], Throughput(ops/sec), 1.5\n\
         [OVERALL], Operations, 3\n\
         [OVERALL], Succeeded, 2\n\
         [OVERALL], Failed, 1\n\
         [OVERALL], Abandoned, 0\n\
         [OVERALL], NeverSent, 0\n\
         [READ], Operations, 2\n\
         [READ], AverageLatency(us), 2000.5\n\
         [READ], MinLatency(us), 1000\n\
         [READ], MaxLatency(us), 3001\n\
         [READ], 50thPercentileLatency(us), 1000\n\
         [READ], 95thPercentileLatency(us), 3001\n\
         [READ], 99.9PercentileLatency(us), 3001\n\
         [READ], Return=OK, 2\n\
         [READ], Return=NOT_FOUND, 1\n\
         [READ], Return=TIMEOUT, 1\n\
         [READ-FAILED], Operations, 2\n\
         [READ-FAILED], AverageLatency(us), 500096.0\n\
         [READ-FAILED], MinLatency(us), 499968\n\
         [READ-FAILED], MaxLatency(us), 500223\n\
         [READ-FAILED], 50thPercentileLatency(us), 500223\n\
         [READ-FAILED], 95thPercentileLatency(us), 500223\n\
         [READ-FAILED], 99.9PercentileLatency(us), 500223\n\
         [READ@local], Operations, 1\n\
         [READ@local], AverageLatency(us), 1000.0\n\
         [READ@local], MinLatency(us), 1000\n\
         [READ@local], MaxLatency(us), 1000\n\
         [READ@local], 50thPercentileLatency(us), 1000\n\
         [READ@local], 95thPercentileLatency(us), 1000\n\
         [READ@local], 99.9PercentileLatency(us), 1000\n\
         [READ@forwarded], Operations, 1\n\
         [READ@forwarded], AverageLatency(us), 3001.0\n\
         [READ@forwarded], MinLatency(us), 3000\n\
         [READ@forwarded], MaxLatency(us), 3001\n\
         [READ@forwarded], 50thPercentileLatency(us), 3001\n\
         [READ@forwarded], 95thPercentileLatency(us), 3001\n\
         [READ@forwarded], 99.9PercentileLatency(us), 3001\n"
    );
}

#[test]
fn intended_latency_is_reported_as_asked() {
    let mean_of = |interval, metric: &str| {
        let mut measurements = Measurements::new(interval);
        measurements.record(&read(Path::Unspecified, 1));
        let lines = lines(&measurements, &[], &[]);
        let found = lines
            .iter()
            .find(|l| l.metric == metric && l.measurement == "MinLatency(us)");
        found.map(|line| line.value)
    };
    let (short, long) = (Some(Number::Whole(1_000)), Some(Number::Whole(11_000)));
    assert_eq!(mean_of(Interval::Op, "READ"), short);
    assert_eq!(mean_of(Interval::Op, "Intended-READ"), None);
    assert_eq!(
        mean_of(Interval::Intended, "READ").map(near),
        long.map(near)
    );
    assert_eq!(mean_of(Interval::Both, "READ"), short);
    assert_eq!(
        mean_of(Interval::Both, "Intended-READ").map(near),
        long.map(near)
    );
}

/// Returns a number rounded to the three digits that a histogram keeps.
fn near(number: Number) -> u64 {
    match number {
        Number::Whole(value) => (value + 50) / 100,
        Number::Real(value) => (value / 100.0).round() as u64,
    }
}

#[test]
fn all_failed_is_still_a_report() {
    let mut measurements = Measurements::new(Interval::Op);
    measurements.record(&failed(ReturnCode::Error));
    let report = report(&measurements);
    assert!(report.contains("[READ], Operations, 0\n"), "{report}");
    assert!(report.contains("[READ], Return=ERROR, 1\n"), "{report}");
    assert!(
        report.contains("[READ-FAILED], Operations, 1\n"),
        "{report}"
    );
}

#[test]
fn checks_are_counted() {
    let mut measurements = Measurements::new(Interval::Op);
    measurements.record_check(0, ReturnCode::Ok, Duration::from_micros(3));
    measurements.record_check(0, ReturnCode::UnexpectedState, Duration::from_micros(3));
    let report = report(&measurements);
    assert!(report.contains("[VERIFY], Operations, 2\n"), "{report}");
    assert!(
        report.contains("[VERIFY], Return=UNEXPECTED_STATE, 1\n"),
        "{report}"
    );
}

#[test]
fn json_exports_are_json() {
    let mut measurements = Measurements::new(Interval::Op);
    measurements.record(&read(Path::Local, 1));
    // Users choose the names of sites.
    let lines = lines(&measurements, &["a \"site\"".into()], &[99.0]);
    let array = format_lines(&lines, Exporter::JsonArray);
    let parsed: Vec<serde_json::Value> = serde_json::from_str(&array).unwrap();
    assert_eq!(parsed.len(), lines.len());
    assert_eq!(parsed[1]["metric"], "OVERALL");
    assert_eq!(parsed[1]["measurement"], "Throughput(ops/sec)");
    assert_eq!(parsed[1]["value"], 1.5);
    let at_site = |line: &&serde_json::Value| line["metric"] == "READ@a \"site\":local";
    assert_eq!(parsed.iter().filter(at_site).count(), 5);
    let objects = format_lines(&lines, Exporter::Json);
    let stream = serde_json::Deserializer::from_str(&objects).into_iter::<serde_json::Value>();
    assert_eq!(stream.map(Result::unwrap).collect::<Vec<_>>(), parsed);
}

#[test]
fn merging_is_the_same_as_measuring_together() {
    let (mut a, mut b, mut both) = (
        Measurements::new(Interval::Both),
        Measurements::new(Interval::Both),
        Measurements::new(Interval::Both),
    );
    for latency in 1..200 {
        let measured = read(
            if latency % 3 == 0 {
                Path::Held
            } else {
                Path::Local
            },
            latency,
        );
        if latency % 2 == 0 { &mut a } else { &mut b }.record(&measured);
        both.record(&measured);
    }
    a.end_interval();
    b.record(&failed(ReturnCode::Timeout));
    both.record(&failed(ReturnCode::Timeout));
    a.merge(&b);
    assert_eq!(report(&a), report(&both));
}

#[test]
fn intervals_hold_what_came_since_the_last_and_totals_hold_all() {
    let mut measurements = Measurements::new(Interval::Op);
    measurements.record(&read(Path::Local, 1));
    assert_eq!(measurements.end_interval().len(), 1);
    assert_eq!(measurements.end_interval().len(), 0);
    measurements.record(&read(Path::Local, 2));
    measurements.record(&read(Path::Held, 2));
    let interval = measurements.end_interval();
    assert_eq!(interval.iter().map(|(_, h)| h.len()).sum::<u64>(), 2);
    assert_eq!(measurements.total(|_| true).len(), 3);
}

#[test]
fn percentile_distributions_have_the_standard_form() {
    let mut histogram = new_histogram();
    for latency in [1_000, 2_000, 3_000, 4_000] {
        histogram.record(latency).unwrap();
    }
    let mut out = Vec::new();
    write_hgrm(&mut out, &histogram, 1_000.0).unwrap();
    let text = String::from_utf8(out).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines[0],
        "       Value     Percentile TotalCount 1/(1-Percentile)"
    );
    assert_eq!(lines[1], "");
    assert_eq!(
        lines[2],
        "       1.000 0.000000000000          1           1.00"
    );
    assert!(
        text.contains("\n       4.001 1.000000000000          4\n"),
        "{text}"
    );
    assert!(
        text.contains("\n#[Mean    =        2.501, StdDeviation   =        1.118]\n"),
        "{text}"
    );
    assert!(
        text.contains("\n#[Max     =        4.001, Total count    =            4]\n"),
        "{text}"
    );
    assert!(text.ends_with("SubBuckets     =         2048]\n"), "{text}");
}

#[test]
fn samples_become_a_log_that_can_be_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("latency.hlog");
    let sites = ["CA".to_owned(), "New York, NY".to_owned()];
    let quorum = [
        sample(0, 100, 400, OpOutcome::Ok),
        sample(0, 2_500, 600, OpOutcome::Ok),
        sample(1, 1_200, 700, OpOutcome::Ok),
        sample(1, 1_300, 9_000_000, OpOutcome::TimedOut),
    ];
    let leader = [
        sample(0, 1_500, 800, OpOutcome::Ok),
        sample(7, 0, 900, OpOutcome::Failed),
    ];
    let runs = [
        HlogRun {
            label: "quorum",
            sites: &sites,
            samples: &quorum,
        },
        HlogRun {
            label: "leader",
            sites: &sites,
            samples: &leader,
        },
    ];
    let start = UNIX_EPOCH + Duration::from_millis(1_500_000_000_250);
    write_hlog(&path, start, Duration::from_secs(1), &runs).unwrap();

    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[1], "#[Histogram log format version 1.3]");
    assert_eq!(
        lines[2],
        "#[StartTime: 1500000000.250 (seconds since epoch)]"
    );
    assert!(lines[3].starts_with("\"StartTimestamp\",\"Interval_Length\""));
    let starts: Vec<_> = lines[4..]
        .iter()
        .map(|line| line.split(',').nth(1).unwrap())
        .collect();
    assert_eq!(
        starts,
        ["0.000", "0.000", "1.000", "1.000", "1.000", "2.000"]
    );

    let read = read_hlog(&path).unwrap();
    let counts: Vec<_> = read
        .iter()
        .map(|(tag, h)| (tag.as_str(), h.len()))
        .collect();
    assert_eq!(
        counts,
        [
            ("leader:7:READ-FAILED", 1),
            ("leader:CA:READ:local", 1),
            ("quorum:CA:READ:local", 2),
            ("quorum:New_York__NY:READ-FAILED", 1),
            ("quorum:New_York__NY:READ:local", 1),
        ]
    );
    assert_eq!(read["quorum:CA:READ:local"].min(), 400);
}

#[test]
fn files_of_a_run_hold_every_operation() {
    let folder = tempfile::tempdir().unwrap();
    // The folder is created, as the documented `-p hdrhistogram.output.path=run/` requires.
    let folder = folder.path().join("run");
    let prefix = format!("{}/", folder.display());
    let start = SystemTime::UNIX_EPOCH;
    let mut files =
        IntervalFiles::create(&prefix, start, vec!["VA".into()], Interval::Both).unwrap();
    let mut measurements = Measurements::new(Interval::Both);
    for second in 0..3 {
        measurements.record(&read(Path::Local, 1));
        measurements.record(&read(Path::Held, 2));
        let interval = measurements.end_interval();
        files.write(
            Duration::from_secs(second),
            Duration::from_secs(1),
            &interval,
        );
    }
    files.finish(&measurements).unwrap();
    let count = |file: &str, tag: &str| read_hlog(&folder.join(file)).unwrap()[tag].len();
    assert_eq!(count("READ.hdr", ""), 6);
    assert_eq!(count("Intended-READ.hdr", ""), 6);
    assert_eq!(count("latency.hlog", "VA:READ:held"), 3);
    assert_eq!(count("latency.hlog", "VA:Intended-READ:local"), 3);
    let distribution = std::fs::read_to_string(folder.join("READ.hgrm")).unwrap();
    assert!(distribution.contains("Total count    =            6]"));
}

#[test]
fn intervals_that_follow_each_other_do_not_overlap_in_the_log() {
    let mut log = HlogWriter::new(Vec::new(), "test", SystemTime::UNIX_EPOCH).unwrap();
    // If the start and the length of the first interval were rounded separately, it would end at
    // 2.001.
    let ends_us = [1_000_600, 2_000_400, 3_000_600, 4_000_100];
    let measured = Histogram::<u64>::new(3).unwrap();
    for pair in ends_us.windows(2) {
        let [from, to] = [pair[0], pair[1]].map(Duration::from_micros);
        log.write(from, to - from, None, &measured).unwrap();
    }
    let text = String::from_utf8(log.finish().unwrap()).unwrap();
    let times = text.lines().filter_map(|line| line.rsplit_once(",HIST"));
    let times: Vec<&str> = times.map(|(times, _)| times).collect();
    assert_eq!(
        times,
        [
            "1.001,0.999,0.000",
            "2.000,1.001,0.000",
            "3.001,0.999,0.000"
        ]
    );
}

#[test]
fn a_damaged_log_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.hlog");
    for text in ["0.0,1.0,5.0,HISTFAAAA\n", "0.0,1.0,5.0,&&&\n"] {
        std::fs::write(&path, text).unwrap();
        let error = read_hlog(&path).unwrap_err().to_string();
        assert!(
            error.contains("damaged.hlog: not an interval log"),
            "{error}"
        );
    }
    assert!(read_hlog(&folder.path().join("none")).is_err());
}

#[test]
fn what_has_no_answer_is_told_and_counts_in_the_intended_latency() {
    let mut measurements = Measurements::new(Interval::Both);
    measurements.record(&read(Path::Local, 1));
    for service in [Some(ms(400)), None] {
        measurements.record_unanswered(&UnansweredOps {
            site: 0,
            kind: OpKind::Read,
            service,
            intended: ms(500),
            count: 3,
        });
    }
    measurements.record_due(0, ms(500), 7);
    let lines = lines(&measurements, &[], &[]);
    let count = |metric: &str| {
        let found = lines
            .iter()
            .find(|line| line.metric == metric && line.measurement == "Operations");
        found.map(|line| line.value)
    };
    let cases = [
        ("READ", Some(1)),
        ("READ-ABANDONED", Some(3)),
        ("READ-NEVER-SENT", None),
        ("Intended-READ", Some(7)),
        ("Intended-READ-ABANDONED", Some(3)),
        ("Intended-READ-NEVER-SENT", Some(3)),
        ("Intended-ALL", Some(7)),
    ];
    for (metric, expected) in cases {
        assert_eq!(count(metric), expected.map(Number::Whole), "{metric}");
    }
}

#[test]
fn sites_and_replicas_have_lines_of_their_own() {
    let mut measurements = Measurements::new(Interval::Op);
    let mut availability = Availability::new(ms(0));
    for (site, latency, path) in [(0, 1, Path::Local), (0, 3, Path::Held), (1, 9, Path::Local)] {
        measurements.record(&OpMeasurement {
            site,
            away: latency == 9,
            ..read(path, latency)
        });
        availability.succeeded(site, OpKind::Read, ms(100 * latency));
        availability.left(site, ms(1_000));
        availability.answered(&"a:1".into(), ms(100 * latency));
    }
    availability.unanswered(&"a:1".into(), ms(950));
    availability.used(&"b:2".into(), 1);
    let report = WorkloadReport {
        measurements: &measurements,
        account: &Account {
            target: Some(100.0),
            never_sent: 50,
            ..Account::default()
        },
        availability: &availability,
        sites: &["JP".into(), "CA".into()],
        percentiles: &[],
    };
    let text = format_lines(&report.lines(), Exporter::Text);
    for line in [
        "[OVERALL], NeverSent, 50",
        "[OVERALL], Target(ops/sec), 100.0",
        "[TARGET-MISSED], Operations, 50",
        "[READ], Operations, 3",
        "[READ@local], Operations, 1",
        "[READ@away], Operations, 1",
        "[READ@JP], Operations, 2",
        "[READ@JP:local], Operations, 1",
        "[READ@JP:held], MinLatency(us), 3000",
        "[READ@CA:away], Operations, 1",
        "[READS@JP], LongestGap(ms), 700",
        "[READS@JP], LongestGapStart(ms), 300",
        "[READS@CA], LongestGap(ms), 900",
        "[REPLICA@a:1], Answered, 3",
        "[REPLICA@a:1], Unanswered, 1",
        "[REPLICA@a:1], SilentSince(ms), 900",
        "[REPLICA@b:2], Unanswered, 0",
    ] {
        assert!(
            text.contains(&format!("{line}\n")),
            "{line} is not in\n{text}"
        );
    }
    assert!(!text.contains("[REPLICA@b:2], SilentSince"), "{text}");
    assert!(!text.contains("[READ@CA:local]"), "{text}");
    // A single site without a name stands for the whole run.
    let unnamed = WorkloadReport {
        sites: &[],
        ..report
    };
    let text = format_lines(&unnamed.lines(), Exporter::Text);
    assert!(text.contains("[READS], LongestGap(ms), 700\n"), "{text}");
    assert!(!text.contains("[READ@JP"), "{text}");
}
