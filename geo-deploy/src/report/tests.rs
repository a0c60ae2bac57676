use std::collections::{BTreeMap, HashMap};

use leasehold_wire::Path as Served;
use leasehold_ycsb::sample::{OpKind, OpOutcome, Sample};
use leasehold_ycsb::{Popularity, Requests, SiteStream};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::*;
use crate::experiment::Distribution;
use crate::run::bookkeeping::{Bookkeeping, IssuedOperation, bookkeeping};
use crate::run::bound::{Replies, SiteSet};
use crate::run::{SwitchReads, in_order};

const CA: usize = 1;
const LOCAL_MS: f64 = 0.4;

fn manifest() -> Manifest {
    Manifest::capture(vec![
        "leasehold".into(),
        "exp".into(),
        "run".into(),
        "fig6".into(),
    ])
}

fn experiment(keys: u64) -> Experiment {
    let sets = ["requests=100", "warmup=50", &format!("keys={keys}")];
    let sets = sets.map(str::to_owned);
    // The paper's figures are only comparable with the key space of the paper.
    Experiment::find("fig6").unwrap().with(&sets).unwrap()
}

/// Returns a run of an ideal cluster: the latency of every operation is the lower bound plus the
/// round trip within a site.
fn ideal_run(e: &Experiment, plan: &StrategyPlan) -> StrategyRun {
    let topology = &e.topology;
    let bounds = Bounds::new(topology, CA);
    let popularity = match plan.distribution(&e.workload) {
        Distribution::Zipf => Popularity::Zipf(e.workload.theta),
        Distribution::Uniform => Popularity::Uniform,
    };
    let mut random = Pcg64Mcg::seed_from_u64(e.seed);
    let requests = Requests {
        keys: e.workload.keys,
        popularity,
        reads: 0.5,
        seed: 1,
    };
    let mut streams: Vec<(usize, SiteStream)> = (0..u64::from(e.workload.clients))
        .flat_map(|client| (0..topology.len()).map(move |site| (site, client)))
        .map(|(site, client)| (site, SiteStream::new(&requests, site as u64, client)))
        .collect();
    let mut counts: HashMap<u64, [u32; 5]> = HashMap::new();
    let mut issued = Vec::new();
    let mut samples = Vec::new();
    for turn in 0..e.workload.requests {
        for (site, stream) in &mut streams {
            let (kind, key) = stream.next();
            let op = IssuedOperation {
                site: *site,
                is_read: kind == OpKind::Read,
                key,
                measured: turn >= e.workload.warmup,
            };
            let of_key = counts.entry(key).or_default();
            let holders: SiteSet = match plan.strategy.as_str() {
                "leader" => SiteSet::one(CA),
                "all" => SiteSet::all(5),
                "fixed" => [
                    CA,
                    if key % 2 == 0 { 0 } else { 3 },
                    if key % 2 == 0 { 2 } else { 4 },
                ]
                .into_iter()
                .collect(),
                _ => {
                    let mut others = topology.nearest_to(CA);
                    others.sort_by_key(|&s| std::cmp::Reverse(of_key[s]));
                    others.into_iter().take(2).chain([CA]).collect()
                }
            };
            of_key[*site] += u32::from(op.is_read);
            issued.push(op);
            if op.measured {
                let bound_ms = if op.is_read {
                    bounds.read_ms(*site, holders).unwrap()
                } else {
                    bounds.write_ms(*site, holders, Replies::LeaderAndOrigin)
                };
                let noise_ms = 0.3 * random.random::<f64>();
                samples.push(Sample {
                    site: *site as u8,
                    kind,
                    path: match (op.is_read, bound_ms == 0.0) {
                        (true, true) => Served::Local,
                        (true, false) => Served::Forwarded,
                        (false, _) => Served::Log,
                    },
                    end: OpOutcome::Ok,
                    start_ns: turn * 100_000_000,
                    latency_ns: ((bound_ms + LOCAL_MS + noise_ms) * 1e6) as u64,
                });
            }
        }
    }
    let learned = (plan.strategy == "quorum").then(|| bookkeeping(topology, CA, issued));
    let (local, minimum) = learned
        .map(
            |Bookkeeping {
                 local_reads,
                 writes_at_minimum,
             }| (local_reads, writes_at_minimum),
        )
        .unzip();
    StrategyRun {
        label: plan.label.clone(),
        strategy: plan.strategy.clone(),
        workload: "reads:writes 1:1".to_owned(),
        issued: e.workload.requests * u64::from(e.workload.clients) * 5,
        samples,
        leased_to: Vec::new(),
        parts: vec![0],
        part_of: Vec::new(),
        switches: Vec::new(),
        repeats: Vec::new(),
        measured: None,
        faults: Vec::new(),
        wall_s: 1.5,
        virtual_s: Some(60.0),
        linearizable: HistoryVerdict::Yes("all keys checked".to_owned()),
        bookkeeping_local: local,
        bookkeeping_minimum: minimum,
        notes: vec!["made up".to_owned()],
        counters: BTreeMap::from([("forwarded".to_owned(), 3)]),
        measured_rtt_ms: Some(topology.matrix().to_vec()),
        network: None,
    }
}

fn ideal(keys: u64) -> ExperimentReport {
    let experiment = experiment(keys);
    let runs = experiment.strategies.iter();
    ExperimentReport {
        runs: runs.map(|plan| ideal_run(&experiment, plan)).collect(),
        topology: experiment.topology.clone(),
        backend: "sim".to_owned(),
        seed: experiment.seed,
        manifest: manifest(),
        events: Vec::new(),
        incomplete: None,
        experiment,
    }
}

fn sample(kind: OpKind, path: Served, end: OpOutcome, latency_ms: f64) -> Sample {
    Sample {
        site: 0,
        kind,
        path,
        end,
        start_ns: 0,
        latency_ns: (latency_ms * 1e6) as u64,
    }
}

/// Returns a report with a single run that has exactly these samples.
fn with_samples(samples: Vec<Sample>) -> ExperimentReport {
    let mut report = ideal(1_000);
    report.runs.truncate(1);
    report.runs[0].samples = samples;
    report
}

#[test]
fn figures_of_an_ideal_run_are_its_bounds() {
    let report = ideal(1_000);
    let summary = report.digested().summary().clone();
    let run = |label: &str| summary.runs.iter().find(|run| run.label == label).unwrap();
    for (site, expected) in run("LL").sites.iter().zip([130.0, 85.0, 90.0, 90.0, 163.5]) {
        assert_eq!(site.writes.bound_ms, expected);
        assert_eq!(site.writes.bounds_ms, [expected]);
        assert_eq!(site.writes.min_latency_fraction, 1.0);
        assert!(site.writes.p50_ms > expected && site.writes.max_ms < expected + 1.0);
        assert_eq!(
            site.reads.local_fraction,
            f64::from(u8::from(site.site == "CA"))
        );
    }
    assert_eq!(run("LL").sites[4].reads.bounds_ms, [150.0]);
    assert_eq!(run("ML").local_fraction, 1.0);
    assert_eq!(run("ML").min_latency_fraction, 0.0);
    assert_eq!(run("QL-uniform").sites[0].writes.bounds_ms, [130.0, 270.0]);
    assert_eq!(run("QL").sites[0].writes.bounds_ms, [] as [f64; 0]);
    for site in &run("QL").sites {
        // The ideal cluster does the same bookkeeping as `bookkeeping`.
        assert_eq!(
            Some(site.reads.local_fraction),
            site.reads.bookkeeping_fraction
        );
        assert_eq!(
            Some(site.writes.min_latency_fraction),
            site.writes.bookkeeping_fraction
        );
    }
}

#[test]
fn shares_count_paths_and_time_apart() {
    let report = with_samples(vec![
        sample(OpKind::Read, Served::Local, OpOutcome::Ok, 1.0),
        sample(OpKind::Read, Served::Held, OpOutcome::Ok, 90.0),
        sample(OpKind::Read, Served::Forwarded, OpOutcome::Ok, 10.0),
        sample(OpKind::Read, Served::Forwarded, OpOutcome::Ok, 9.99),
        sample(
            OpKind::Read,
            Served::Unspecified,
            OpOutcome::TimedOut,
            5_000.0,
        ),
        sample(OpKind::Update, Served::Log, OpOutcome::Ok, 130.9),
        sample(OpKind::Update, Served::Log, OpOutcome::Ok, 131.1),
        sample(OpKind::Update, Served::Unspecified, OpOutcome::Failed, 1.0),
    ]);
    let summary = report.digested().summary().clone();
    let run = &summary.runs[0];
    let (reads, writes) = (&run.sites[0].reads, &run.sites[0].writes);
    assert_eq!((run.ops, run.failed, run.timed_out), (6, 1, 1));
    assert_eq!((reads.count, reads.timed_out), (4, 1));
    assert_eq!((writes.count, writes.failed), (2, 1));
    assert_eq!(reads.local_fraction, 0.5, "held reads are local");
    assert_eq!(reads.under_10ms_fraction, 0.5, "10 ms is not under 10 ms");
    assert_eq!(
        writes.min_latency_fraction, 0.5,
        "the minimum is 130 ms, the slack 1 ms"
    );
    assert_eq!(reads.by_path["forwarded"], 2);
    assert_eq!(
        (reads.p50_ms, reads.p99_ms, reads.max_ms),
        (9.99, 90.0, 90.0)
    );
    let mean = (1.0 + 90.0 + 10.0 + 9.99 + 130.9 + 131.1) / 6.0;
    assert!((run.mean_ms - mean).abs() < 1e-6);
}

#[test]
fn nothing_measured_is_no_reason_to_fail() {
    let report = with_samples(Vec::new());
    let run = &report.digested().summary().clone().runs[0];
    assert_eq!((run.ops, run.mean_ms), (0, 0.0));
    report
        .digested()
        .write(tempfile::tempdir().unwrap().path())
        .unwrap();
}

#[test]
fn all_files_are_written_and_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let report = ideal(1_000);
    report.digested().write(dir.path()).unwrap();
    let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
    let text = |name: &str| String::from_utf8(read(name)).unwrap();

    let summary: serde_json::Value = serde_json::from_slice(&read("summary.json")).unwrap();
    let site = &summary["runs"][2]["sites"][0];
    assert_eq!(summary["runs"][2]["strategy"], "leader");
    assert_eq!(summary["runs"][2]["linearizable"], "yes");
    assert_eq!(site["site"], "JP");
    assert_eq!(site["writes"]["bound_ms"], 130.0);
    assert!(site["reads"]["by_path"]["forwarded"].as_u64().unwrap() > 0);

    let manifest: serde_json::Value = serde_json::from_slice(&read("manifest.json")).unwrap();
    assert_eq!(manifest["rtt_asked_ms"][0][1], 120.0);
    assert_eq!(manifest["rtt_measured_ms"][0]["rtt_ms"][0][1], 120.0);
    assert_eq!(manifest["durability"], "sync");
    assert_eq!(manifest["experiment"]["workload"]["requests"], 100);
    assert!(manifest["compiler"].as_str().unwrap().starts_with("rustc"));

    let csv = text("cdf.csv");
    let of_series = |prefix: &str| -> Vec<f64> {
        let rows = csv.lines().filter(|row| row.starts_with(prefix));
        rows.map(|row| row.rsplit(',').next().unwrap().parse().unwrap())
            .collect()
    };
    let shares = of_series("ML,IRL,writes,");
    assert!(shares.is_sorted() && shares.last() == Some(&1.0));

    let logged = leasehold_ycsb::measurement::read_hlog(&dir.path().join("latency.hlog")).unwrap();
    let forwarded = &logged["LL:JP:READ:forwarded"];
    assert_eq!(Some(forwarded.len()), site["reads"]["count"].as_u64());

    assert_eq!(text("events.jsonl"), "");
    assert!(
        !dir.path().join("timeline.csv").exists(),
        "nothing happened"
    );
    let panels = ["panels/cdf-JP-reads", "panels/cdf-IRL-writes"];
    let pages = [
        "cdf",
        "cdf-wide",
        "headline",
        "local-reads",
        "writes-at-minimum",
    ];
    for name in pages.into_iter().chain(panels) {
        assert!(text(&format!("plots/{name}.svg")).starts_with("<svg"));
    }
    let html = text("report.html");
    assert!(html.contains("<svg") && html.ends_with("</html>\n"));
    for outside in ["http://", "https://", "src=", "@import", "@s0@"] {
        let found = html.replace("http://www.w3.org/2000/svg", "");
        assert!(
            !found.contains(outside),
            "the page is not self-contained: {outside}"
        );
    }
    let markdown = text("report.md");
    assert!(markdown.contains("| JP |") && markdown.contains("plots/cdf.svg"));
    assert!(
        markdown.contains("seed = 1"),
        "the effective experiment is shown"
    );
}

#[test]
fn configurations_alone_make_no_timeline() {
    let dir = tempfile::tempdir().unwrap();
    let mut report = ideal(1_000);
    let change = |at| RunEvent {
        run: Some("QL".to_owned()),
        at_s: f64::from(at),
        kind: RunEvent::CONFIGURATION.to_owned(),
        sites: vec!["CA".to_owned()],
        text: "3 keys".to_owned(),
    };
    report.events.extend((0..100).map(change));
    report.digested().write(dir.path()).unwrap();
    assert!(!dir.path().join("timeline.csv").exists());
    assert!(!dir.path().join("plots/timeline.svg").exists());
    let events = std::fs::read_to_string(dir.path().join("events.jsonl")).unwrap();
    assert_eq!(events.lines().count(), 100);
    let markdown = std::fs::read_to_string(dir.path().join("report.md")).unwrap();
    assert!(markdown.contains("QL: 100 lease configurations"));
    assert!(!markdown.contains("3 keys") && !markdown.contains("timeline"));
}

/// Returns a report about a run with two clients at each site. Each client sends one request a
/// second for 60 s. OR fails at 10 s and does not recover. Writes of keys that are leased to OR
/// wait until 18.5 s. All requests to OR fail.
fn faulty() -> ExperimentReport {
    let mut report = ideal(1_000);
    report.runs.truncate(1);
    let run = &mut report.runs[0];
    run.samples.clear();
    let or: SiteSet = [1, 2].into_iter().collect();
    for (second, site, leased) in (0..60_u64)
        .flat_map(|second| (0..5_u8).map(move |site| (second, site)))
        .flat_map(|(second, site)| [true, false].map(|leased| (second, site, leased)))
    {
        let start_ms = second * 1_000 + u64::from(site) * 50 + 7;
        let (died, is_read) = (start_ms >= 10_000, (second + u64::from(site)) % 2 == 0);
        let stalled = died && leased && !is_read && start_ms < 18_500;
        let latency_ms = match (died && site == 2, stalled, is_read) {
            (true, ..) => 2.0,
            (_, true, _) => 18_500.0 - start_ms as f64,
            (.., true) => 0.5 + 20.0 * f64::from(u8::from(!leased)),
            (.., false) => 130.0,
        };
        let how = if died && site == 2 {
            OpOutcome::Failed
        } else {
            OpOutcome::Ok
        };
        let kind = if is_read {
            OpKind::Read
        } else {
            OpKind::Update
        };
        run.samples.push(Sample {
            site,
            start_ns: start_ms * 1_000_000,
            ..sample(kind, Served::Log, how, latency_ms)
        });
        run.leased_to
            .push(if leased { or } else { SiteSet::one(1) });
    }
    run.faults = vec![FaultSpan {
        at_s: 10.0,
        until_s: None,
        sites: SiteSet::one(2),
        text: "kill OR".to_owned(),
        bounds: vec![
            OutageBound {
                leased_writes_s: Some(9.0),
                other_writes_s: Some(0.1),
                ..OutageBound::default()
            };
            5
        ],
    }];
    report
}

#[test]
fn outages_are_told_apart_by_site_operation_and_lease_and_put_beside_their_bound() {
    let report = faulty();
    let summary = report.digested().summary().clone();
    let seen = |site: &str, operation: &str, leased: bool| {
        let mut all = summary.runs[0].outages.iter();
        let found = all
            .find(|o| (o.site.as_str(), o.operation, o.leased) == (site, operation, Some(leased)));
        found.expect("such operations were due").clone()
    };
    let stalled = seen("JP", "writes", true);
    // The first write at JP of a key leased to OR is due at 11.007 s.
    assert_eq!(stalled.outage_s, 18.5 - 11.007);
    assert_eq!(
        (stalled.bound_s, stalled.within_bound()),
        (Some(9.0), Some(true))
    );
    assert_eq!(stalled.median_before_ms, Some(130.0));
    assert_eq!(stalled.median_after_ms, Some(130.0));
    let others = seen("JP", "writes", false);
    let reads = |leased: bool| seen("JP", "reads", leased).median_before_ms;
    assert_eq!(reads(true), reads(false), "of all keys of the site");
    assert_eq!(
        (others.outage_s, others.within_bound()),
        (0.13, Some(false)),
        "more than 0.1 s"
    );
    assert_eq!(
        seen("JP", "reads", true).within_bound(),
        None,
        "nothing is promised"
    );
    let dead = seen("OR", "writes", false);
    assert_eq!(
        (dead.due, dead.failed),
        (25, 25),
        "what failed is not dropped"
    );
    assert!(dead.outage_s > 47.0, "{dead:?}");
    let warnings = prose::warnings(&report, &summary).join(" ");
    assert!(
        warnings.contains("bounds were broken; the worst: after \"kill OR\""),
        "{warnings}"
    );
    let table = outage::table("QL", &summary.runs[0].outage_groups).expect("a fault");
    let text = table.text();
    assert!(
        text.contains("writes, leased to it") && text.contains("NO"),
        "{text}"
    );
}

#[test]
fn faults_make_a_timeline() {
    let dir = tempfile::tempdir().unwrap();
    let mut report = faulty();
    report.runs[0].faults[0].until_s = Some(40.0);
    report.events.push(RunEvent {
        run: Some("QL".to_owned()),
        at_s: 19.0,
        kind: RunEvent::ELECTION.to_owned(),
        sites: vec!["CA".to_owned()],
        text: "leads in round 2".to_owned(),
    });
    report.digested().write(dir.path()).unwrap();
    let text = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let events = text("events.jsonl");
    let events = events
        .lines()
        .map(|line| serde_json::from_str::<RunEvent>(line).unwrap());
    let events: Vec<RunEvent> = events.collect();
    let kinds: Vec<(&str, f64)> = events.iter().map(|e| (e.kind.as_str(), e.at_s)).collect();
    let expected = [
        (RunEvent::FAULT, 10.0),
        (RunEvent::ELECTION, 19.0),
        (RunEvent::FAULT_END, 40.0),
    ];
    assert_eq!(kinds, expected);
    assert_eq!(events[0].sites, ["OR"]);
    let timeline = text("timeline.csv");
    // Two writes started at 11.0 s. One of them took until 18.5 s, when four others ended too.
    assert!(
        timeline.contains("QL,JP,writes,11.0,2,0,0,130.000,7493.000,7493.000,0\n"),
        "{timeline}"
    );
    assert!(
        timeline.contains("QL,JP,writes,18.5,0,0,0,,,,4\n"),
        "{timeline}"
    );
    assert!(
        timeline.contains("QL,OR,writes,11.1,2,2,0,,,,0\n"),
        "{timeline}"
    );
    assert!(text("outages.csv").contains("QL,,1,kill OR,JP,writes,true,"));
    let svg = text("plots/timeline-QL.svg");
    for word in [
        "kill OR",
        "election",
        "failed or given up",
        "leased to the failed site",
    ] {
        assert!(svg.contains(word), "{word}");
    }
    assert!(
        !svg.contains("leases ended"),
        "nothing is explained that is not there"
    );
    assert!(text("report.md").contains("timeline-QL.svg"));
}

#[test]
fn the_title_is_what_was_found() {
    let mut report = ideal(1_000);
    let summary = report.digested().summary().clone();
    let found = prose::finding(&report, &summary);
    let ql = summary.runs.iter().find(|run| run.label == "QL").unwrap();
    let local = format!("{:.1}% of reads local", ql.local_fraction * 100.0);
    assert!(
        found.starts_with("quorum leases (QL)") && found.contains(&local),
        "{found}"
    );
    assert!(
        found.contains("for LL") && found.contains("for ML"),
        "{found}"
    );
    report.runs[0].linearizable = HistoryVerdict::No("k7".to_owned());
    assert!(
        prose::finding(&report, &report.digested().summary().clone()).contains("NOT linearizable")
    );
    let faulty = faulty();
    let found = prose::finding(&faulty, &faulty.digested().summary().clone());
    assert!(
        found.contains("\"kill OR\"") && found.contains("at most 8.44 s"),
        "{found}"
    );
    assert!(
        found.contains("bounds broken") && found.contains("at other sites"),
        "others' writes take more than 0.1 s: {found}"
    );
    let mut blackout = faulty;
    blackout.runs[0].faults[0].sites = (0..5).collect();
    let found = prose::finding(&blackout, &blackout.digested().summary().clone());
    assert!(found.contains("operations waited at most"), "{found}");
    assert!(!found.contains("other sites"), "{found}");
}

#[test]
fn means_are_given_by_operation_and_by_site() {
    let ms = |site: u8, latency_ms: f64| Sample {
        site,
        ..sample(OpKind::Read, Served::Local, OpOutcome::Ok, latency_ms)
    };
    let report = with_samples(vec![ms(0, 10.0), ms(0, 10.0), ms(0, 10.0), ms(1, 50.0)]);
    let run = &report.digested().summary().clone().runs[0];
    assert_eq!((run.mean_ms, run.mean_by_site_ms), (20.0, 30.0));
    let text = report.digested().terminal();
    assert!(
        text.contains("mean ms by operation") && text.contains("by site"),
        "{text}"
    );
}

#[test]
fn on_one_machine_writes_have_a_greater_tolerance_and_the_report_names_it() {
    let write = |ms| sample(OpKind::Update, Served::Log, OpOutcome::Ok, ms);
    let mut report = with_samples(vec![write(130.9), write(133.8), write(134.0)]);
    let share = |report: &ExperimentReport| {
        report.digested().summary().clone().runs[0].sites[0]
            .writes
            .min_latency_fraction
    };
    assert_eq!(share(&report), 1.0 / 3.0, "within 1 ms of 130 ms");
    report.backend = "local".to_owned();
    assert_eq!(share(&report), 2.0 / 3.0, "within 3% of 130 ms");
    let table = tables::minimum(&report, &report.digested().summary().clone());
    assert!(table.title.contains("3 ms or 3%"), "{}", table.title);
}

#[test]
fn held_reads_are_told_apart_from_local_ones() {
    let read = |path| sample(OpKind::Read, path, OpOutcome::Ok, 1.0);
    let report = with_samples(vec![
        read(Served::Local),
        read(Served::Held),
        read(Served::Held),
        read(Served::Forwarded),
    ]);
    let reads = &report.digested().summary().clone().runs[0].sites[0].reads;
    assert_eq!((reads.local_fraction, reads.held_fraction), (0.75, 0.5));
}

#[test]
fn columns_without_a_figure_are_left_out() {
    let mut report = ideal(1_000);
    report.runs.retain(|run| run.label == "LL");
    let summary = report.digested().summary().clone();
    let table = &tables::per_run(&report, &summary)[0];
    assert!(
        !table.columns.iter().any(|column| column == "bookkeeping"),
        "{:?}",
        table.columns
    );
    assert_eq!(table.columns.len(), table.rows[0].len());
    let minimum = tables::minimum(&report, &summary);
    assert!(!minimum.columns.iter().any(|column| column == "the paper"));
}

#[test]
fn strategies_have_one_order() {
    let runs = in_order(ideal(1_000).runs);
    let order: Vec<&str> = runs.iter().map(|run| run.label.as_str()).collect();
    assert_eq!(order, ["LL", "ML", "QL-uniform", "QL", "cost"]);
}

#[test]
fn a_strategy_has_its_own_look_beside_two_runs_of_another() {
    let named = |strategies: &[&str]| {
        let run = ideal(1_000).runs.remove(0);
        let runs = strategies.iter().map(|strategy| StrategyRun {
            strategy: (*strategy).to_owned(),
            ..run.clone()
        });
        super::figures::looks(&runs.collect::<Vec<_>>())
    };
    let alone = |strategy| named(&[strategy])[0];
    let looks = named(&["all", "all", "quorum", "quorum", "cost", "cost"]);
    assert_eq!(looks[0], alone("all"));
    assert_eq!(looks[2], alone("quorum"));
    assert_eq!(looks[4], alone("cost"));
    let mut apart = looks;
    apart.sort_unstable();
    apart.dedup();
    assert_eq!(apart.len(), 6, "each run has a look of its own");
}

#[test]
fn labels_cannot_break_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let mut report = ideal(1_000);
    let odd = "a,b <i>\"x\" & @text@ | y";
    report.runs[0].label = odd.to_owned();
    report.experiment.strategies[0].label = odd.to_owned();
    report.digested().write(dir.path()).unwrap();
    let html = std::fs::read_to_string(dir.path().join("report.html")).unwrap();
    assert!(!html.contains("<i>") && html.contains("&#64;text&#64;"));
    let csv = std::fs::read_to_string(dir.path().join("cdf.csv")).unwrap();
    assert!(csv.contains("\"a,b <i>\"\"x\"\" & @text@ | y\",JP,reads"));
}

#[test]
fn what_must_not_be_overlooked_is_said() {
    let mut report = ideal(1_000);
    report.runs[0].linearizable = HistoryVerdict::No("k7: read 3 after 4".to_owned());
    report.runs[1].measured_rtt_ms.as_mut().unwrap()[0][1] = 125.0;
    report.runs[2].samples[0].end = OpOutcome::Failed;
    let warnings = prose::warnings(&report, &report.digested().summary().clone());
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert!(warnings[0].contains("NOT LINEARIZABLE") && warnings[0].contains("k7"));
    assert!(warnings[1].contains("JP-CA 125.0 instead of 120"));
    assert!(warnings[2].contains("1 operations failed"));
    let terminal = report.digested().terminal();
    assert!(terminal.contains("linearizable: no"));
    for warning in warnings {
        assert!(terminal.contains(&format!("WARNING: {warning}\n")));
    }
}

#[test]
fn the_papers_figures_stand_only_beside_its_own_experiment() {
    let report = ideal(100_000);
    let words = prose::learning(&report, &report.digested().summary().clone()).join(" ");
    assert!(words.contains("(paper 80%), where"), "{words}");
    let other = ideal(1_000);
    assert!(
        !prose::learning(&other, &other.digested().summary().clone())
            .join(" ")
            .contains("paper 80%")
    );
    assert_eq!(
        paper::writes_at_minimum(&report, &report.runs[0]),
        Some(70.0)
    );
    assert_eq!(paper::writes_at_minimum(&report, &report.runs[2]), None);
    assert_eq!(paper::writes_at_minimum(&other, &other.runs[0]), None);
}

#[test]
fn what_one_machine_adds_is_said_of_local_runs_only() {
    let mut report = ideal(1_000);
    let said = |report: &ExperimentReport| {
        let paragraphs = prose::minimum(report, &report.digested().summary().clone());
        paragraphs.iter().any(|text| text.contains("one machine"))
    };
    assert!(!said(&report));
    let within =
        |report: &ExperimentReport| prose::reading_the_curves(report)[1].contains("0.4 ms within");
    assert!(within(&report));
    report.backend = "local".to_owned();
    assert!(said(&report) && !within(&report));
}

#[test]
fn terminal_tables_line_up() {
    let text = ideal(1_000).digested().terminal();
    let table: Vec<&str> = text.lines().take(8).collect();
    assert!(table[0].starts_with("QL (quorum)"));
    let width = table[1].chars().count();
    for row in &table[3..8] {
        assert_eq!(row.chars().count(), width, "{text}");
    }
}

/// Returns a report about a run of 40 s in which a site sends one read a second. Each read takes 1
/// ms. In the 10 s after a change at 20 s, however, each read takes 100 ms.
fn changed(kind: &str, text: &str) -> ExperimentReport {
    let slow = |at_s: u64| (20..30).contains(&at_s);
    let read = |at_s: u64| Sample {
        start_ns: (at_s + 5) * 1_000_000_000,
        ..if slow(at_s) {
            sample(OpKind::Read, Served::Forwarded, OpOutcome::Ok, 100.0)
        } else {
            sample(OpKind::Read, Served::Local, OpOutcome::Ok, 1.0)
        }
    };
    let mut report = with_samples((0..40).map(read).collect());
    report.runs[0].measured = Some(MeasuredInterval {
        start_s: 5.0,
        end_s: 45.0,
    });
    report.events.push(RunEvent {
        run: Some("QL".to_owned()),
        at_s: 25.0,
        kind: kind.to_owned(),
        sites: vec!["JP".to_owned(), "IRL".to_owned()],
        text: text.to_owned(),
    });
    report
}

#[test]
fn what_clients_change_is_drawn_and_how_soon_a_strategy_followed_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut report = changed(RunEvent::SWAP, "JP and IRL exchange their popular keys");
    report.runs[0].strategy = "cost".to_owned();
    report.digested().write(dir.path()).unwrap();
    let text = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let csv = text("course.csv");
    assert!(csv.contains("QL,15.0,20.0,5,1.000,1.000000\n"), "{csv}");
    assert!(csv.contains("QL,20.0,25.0,5,100.000,0.000000\n"), "{csv}");
    assert!(text("plots/over-time.svg").contains("JP, IRL swap"));
    let found = &report.digested().summary().clone().runs[0].adapting;
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].at_s, found[0].steady_ms), (20.0, 1.0));
    assert_eq!(found[0].back_after_s, Some(10.0));
    assert_eq!(found[0].back_after_periods, Some(1.0));
    assert_eq!(found[0].kept, Some(true));
    report.runs[0].strategy = "quorum".to_owned();
    assert_eq!(
        report.digested().summary().clone().runs[0].adapting[0].kept,
        None
    );
    assert!(text("report.md").contains("back within a tenth"));
    assert!(
        text("report.html").contains("over-time") || text("report.html").contains("JP, IRL swap")
    );
}

#[test]
fn changes_of_strategy_are_drawn_and_what_they_interrupted_is_told() {
    let mut report = changed(RunEvent::SWITCH, "all");
    report.runs[0].switches = vec![SwitchReads {
        at_s: 20.0,
        to: "all".to_owned(),
        reads: 17,
        lost: 3,
    }];
    report.runs[0].samples[25].end = OpOutcome::Failed;
    let markdown = page::markdown(&report, &report.digested().summary().clone());
    assert!(
        markdown.contains("| QL | 20 | all | 20 | 1 | 17 | 3 |"),
        "{markdown}"
    );
    assert!(markdown.contains("plots/over-time.svg"));
    assert!(
        report.digested().summary().clone().runs[0]
            .adapting
            .is_empty()
    );
}

#[test]
fn parts_of_the_key_space_stand_beside_their_strategy_alone() {
    let mut report = ideal(1_000);
    report
        .runs
        .retain(|run| ["QL", "ML"].contains(&&*run.label));
    for run in &mut report.runs {
        run.parts = vec![0, 500];
        run.part_of = (0..run.samples.len()).map(|i| (i % 2) as u8).collect();
    }
    let change = crate::experiment::StrategyChange {
        at_s: -1.0,
        strategy: "all".to_owned(),
        keys: [0.5, 1.0],
    };
    let quorum = report.experiment.strategies.iter_mut();
    for plan in quorum.filter(|plan| plan.label == "QL") {
        plan.change = vec![change.clone()];
    }
    let summary = report.digested().summary().clone();
    let parts = &summary.runs[0].parts;
    let strategies: Vec<&str> = parts.iter().map(|part| part.strategy.as_str()).collect();
    assert_eq!(strategies, ["quorum", "all"]);
    assert_eq!(parts[0].ops + parts[1].ops, summary.runs[0].ops);
    let table = switches::parts_table(&summary).unwrap().markdown();
    // The ideal run ignores the change, so its second part is far from Megastore's.
    assert!(
        table.contains("| 500 | QL | all |") && table.contains("| NO |"),
        "{table}"
    );
    assert!(
        !table.contains("| ML | all | 50"),
        "runs with one strategy have no lines of their own"
    );
}

#[test]
fn held_reads_and_the_work_for_an_operation_are_told() {
    let mut report = with_samples(vec![
        sample(OpKind::Read, Served::Held, OpOutcome::Ok, 30.0),
        sample(OpKind::Read, Served::Local, OpOutcome::Ok, 1.0),
        sample(OpKind::Update, Served::Log, OpOutcome::Ok, 90.0),
        sample(OpKind::Read, Served::Held, OpOutcome::TimedOut, 50.0),
    ]);
    report.runs[0].issued = 10;
    report.runs[0]
        .counters
        .insert("messages_sent".to_owned(), 85);
    let effort = &report.digested().summary().clone().runs[0].effort;
    assert_eq!((effort.held, effort.held_fraction), (1, 0.5));
    assert_eq!((effort.held_mean_ms, effort.held_ms_per_read), (30.0, 15.0));
    assert_eq!(
        (effort.messages_per_op, effort.cpu_us_per_op),
        (Some(8.5), None)
    );
    assert_eq!(effort.accept_replies, "origin");
}
