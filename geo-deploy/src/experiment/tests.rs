use leasehold_node::config::UnlistedName;

use super::*;

fn fig6() -> Experiment {
    Experiment::find("fig6").unwrap()
}

fn with(sets: &[&str]) -> Result<Experiment, ExperimentError> {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    fig6().with(&sets)
}

fn refused(sets: &[&str], parts: &[&str]) {
    let error = with(sets).expect_err(&sets.join(" ")).to_string();
    for part in parts {
        assert!(error.contains(part), "{part:?} is missing from: {error}");
    }
}

#[test]
fn built_ins_are_valid_and_described() {
    for (name, description) in list() {
        let experiment = Experiment::find(name).unwrap();
        assert_eq!(experiment.name, name);
        assert_eq!(experiment.description, description);
        assert!(!description.is_empty());
    }
}

#[test]
fn fig6_is_the_papers() {
    let e = fig6();
    let labels: Vec<&str> = e.strategies.iter().map(|s| s.label.as_str()).collect();
    assert_eq!(labels, ["QL", "QL-uniform", "LL", "ML", "cost"]);
    assert_eq!(e.topology, Topology::paper());
    assert_eq!((e.workload.keys, e.workload.clients), (100_000, 10));
    assert_eq!((e.workload.requests, e.workload.warmup), (10_000, 5_000));
    assert_eq!((e.lease.t_lease_ms, e.lease.renew_ms), (2_000, 500));
    let uniform = &e.strategies[1];
    assert_eq!(uniform.distribution(&e.workload), Distribution::Uniform);
    let starts = uniform.range_starts(e.workload.keys);
    assert_eq!((starts[0].0, starts[1].0), (0, 50_000));
    assert_eq!(starts[1].1, ["CA", "VA", "IRL"]);
}

#[test]
fn the_effective_experiment_reads_back() {
    let e = with(&["reads=0.9", "topology.rtt_ms.JP.CA=100"]).unwrap();
    assert_eq!(Experiment::parse("again", &e.to_toml()).unwrap(), e);
    let json = serde_json::to_string(&e).unwrap();
    assert_eq!(serde_json::from_str::<Experiment>(&json).unwrap(), e);
}

#[test]
fn short_names_and_dotted_names() {
    let e = with(&[
        "requests=200",
        "warmup=100",
        "seed=7",
        "keys=50",
        "reads=1",
        "clients=2",
        "leader=VA",
        "lease.t_lease_ms=800",
        "lease.unlisted=leader",
        "local.durability=none",
        "strategies.LL.distribution=uniform",
    ])
    .unwrap();
    assert_eq!(
        (e.workload.requests, e.workload.warmup, e.seed),
        (200, 100, 7)
    );
    assert_eq!((e.workload.reads, e.workload.clients), (1.0, 2));
    assert_eq!((e.leader.as_str(), e.leader_index()), ("VA", 3));
    assert_eq!(e.lease.t_lease_ms, 800);
    assert_eq!(e.lease.unlisted, Some(UnlistedName::Leader));
    assert_eq!(e.local.durability, Durability::None);
    assert_eq!(e.strategies[2].distribution, Some(Distribution::Uniform));
}

#[test]
fn who_hears_votes_is_a_setting_of_all_or_of_one_strategy() {
    let e = with(&["accept_replies=all", "strategies.LL.accept_replies=leader"]).unwrap();
    let names = e.strategies.iter().map(|s| s.accept_replies(&e).name());
    assert_eq!(
        names.collect::<Vec<_>>(),
        ["all", "all", "leader", "all", "all"]
    );
    assert_eq!(Experiment::parse("again", &e.to_toml()).unwrap(), e);
    refused(
        &["accept_replies=some"],
        &["some", "`leader`, `origin`, `all`"],
    );
}

#[test]
fn an_open_loop_is_any_experiment_at_a_rate() {
    // Numbers of requests become the time in which the clients of a site would send them.
    let open = with(&["rate=200"]).unwrap().workload;
    let window = MeasurementWindow::Seconds {
        warmup_s: 250.0,
        seconds: 250.0,
    };
    assert_eq!(open.window(), window);
    let timed = with(&["rate=200", "warmup_s=5", "seconds=20"]).unwrap();
    assert_eq!((timed.workload.requests, timed.workload.warmup), (0, 0));
    assert_eq!(Experiment::parse("again", &timed.to_toml()).unwrap(), timed);
    let closed = timed.with(&["requests=10".to_owned()]).unwrap().workload;
    assert_eq!((closed.seconds, closed.warmup_s), (None, None));
    let each = "rate={JP=10,CA=20,OR=20,VA=20,IRL=0}";
    let each = with(&[each, "seconds=4"]).unwrap();
    assert_eq!(each.workload.rate.as_ref().unwrap().at("JP"), 10.0);
    assert_eq!(Experiment::parse("again", &each.to_toml()).unwrap(), each);
    assert!(each.workload.load_in_words().contains("CA 20"));
}

#[test]
fn sites_that_exchange_keys_are_two_and_do_so_while_it_is_measured() {
    let swap = |value: &str| format!("workload.swap={value}");
    let good = swap("{ sites = ['JP', 'IRL'], every_s = 60 }");
    let e = with(&[&good, "rate=200"]).unwrap();
    assert_eq!(Experiment::parse("again", &e.to_toml()).unwrap(), e);
    assert_eq!(e.workload.swap.unwrap().times_s(130.0), [60.0, 120.0]);
    refused(&[&good], &["workload.swap.every_s", "give seconds"]);
    for (value, parts) in [
        (
            "{ sites = ['JP', 'JP'], every_s = 60 }",
            ["swap.sites", "two different"],
        ),
        (
            "{ sites = ['JP', 'XX'], every_s = 60 }",
            ["JP, XX", "JP, CA, OR"],
        ),
        (
            "{ sites = ['JP', 'CA'], every_s = 250 }",
            ["every_s = 250", "less than the 250 s"],
        ),
        (
            "{ sites = ['JP', 'CA'], every_s = 0.5 }",
            ["every_s = 0.5", "at least 1 s"],
        ),
    ] {
        refused(&[&swap(value), "rate=200"], &parts);
    }
}

#[test]
fn changes_of_strategy_follow_each_other_within_the_run() {
    let e = Experiment::find("switch").unwrap();
    assert_eq!(Experiment::parse("again", &e.to_toml()).unwrap(), e);
    let later = "strategies.switch.change.1.at_s=30".to_owned();
    let later = e.clone().with(&[later]).unwrap();
    assert_eq!(later.strategies[0].change[0].at_s, 30.0);
    for (set, parts) in [
        ("1.at_s=50", ["change.at_s = 40", "follow each other"]),
        ("1.at_s=-25", ["change.at_s = -25", "-20 s (clients begin)"]),
        ("6.at_s=140", ["change.at_s = 140", "140 s (the end)"]),
        (
            "1.strategy=fixed",
            ["change.strategy = fixed", "none, leader, all, quorum"],
        ),
        ("1.keys=[0.5, 0.5]", ["change.keys", "two rising shares"]),
        ("1.keys=[0.5, 1.5]", ["change.keys", "two rising shares"]),
    ] {
        let set = format!("strategies.switch.change.{set}");
        let error = e.clone().with(&[set]).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{part:?} is missing from: {error}");
        }
    }
    let counted = ["requests=10", "warmup=1", "rate="].map(String::from);
    let mut closed = e;
    closed.workload.rate = None;
    let error = closed.with(&counted[..2]).unwrap_err().to_string();
    assert!(error.contains("give seconds"), "{error}");
}

#[test]
fn loads_that_contradict_themselves_are_refused() {
    refused(&["rate=0"], &["workload.rate = 0", "0.001"]);
    refused(&["rate=fast"], &["rate=fast"]);
    refused(&["rate={XX=1}"], &["workload.rate.XX", "JP, CA"]);
    refused(&["rate={JP=1}"], &["CA is missing", "every site"]);
    refused(
        &["rate=5", "seconds=10", "requests=100"],
        &["seconds and warmup_s, not both"],
    );
    refused(
        &["warmup_s=1"],
        &["workload.warmup_s = 1", "goes with seconds"],
    );
    refused(&["seconds=0"], &["workload.seconds = 0", "more than 0"]);
    refused(&["seconds=5", "warmup_s=-1"], &["workload.warmup_s = -1"]);
    refused(&["workload.outstanding=0"], &["workload.outstanding = 0"]);
    let both = fig6()
        .to_toml()
        .replace("requests = ", "seconds = 5.0\nrequests = ");
    let error = Experiment::parse("f.toml", &both).unwrap_err().to_string();
    assert!(error.contains("not both"), "{error}");
}

#[test]
fn faults_are_fields_like_others_and_checked() {
    let fig7 = || {
        let mut experiment = Experiment::find("fig7").unwrap();
        experiment.fault[0].until_s = None;
        experiment
    };
    let set = |sets: &[&str]| {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        fig7().with(&sets)
    };
    let e = set(&["fault.1.at_s=5", "fault.1.until_s=9", "fault.1.target=JP"]).unwrap();
    assert_eq!((e.fault[0].at_s, e.fault[0].until_s), (5.0, Some(9.0)));
    assert_eq!(e.fault[0].to_string(), "kill JP");
    assert_eq!(Experiment::parse("again", &e.to_toml()).unwrap(), e);
    assert_eq!(e.strategies[0].faults(&e), e.fault);
    for (sets, parts) in [
        (
            &["fault.1.target=XX"][..],
            &["fault.1.target", "JP, CA"][..],
        ),
        (&["fault.1.target=all"], &["fault.1.until_s", "majority"]),
        (
            &["fault.2.at_s=5"],
            &["fault.2.at_s", "no such setting", "has 1 [[fault]]"],
        ),
        (&["fault.1.tagret=JP"], &["fault.1.tagret", "target, to"]),
        (&["fault.0.at_s=5"], &["fault.0.at_s", "no such setting"]),
        (&["fault.1.action=explode"], &["explode"]),
        (
            &["seconds=8"],
            &["fault.1.at_s = 10", "never begin", "measure longer"],
        ),
    ] {
        let error = set(sets).expect_err(&sets.join(" ")).to_string();
        for part in parts {
            assert!(error.contains(part), "{part:?} is missing from: {error}");
        }
    }
    let own = "[[strategies.fault]]\nat_s = 1\naction = \"pause\"\ntarget = \"VA\"\nuntil_s = 3\n";
    let e = Experiment::parse("own.toml", &format!("{}{own}", fig7().to_toml())).unwrap();
    assert_eq!(e.strategies[0].faults(&e)[0].to_string(), "pause VA");
    let bad = own.replace("VA", "XX");
    let error = Experiment::parse("own.toml", &format!("{}{bad}", fig7().to_toml())).unwrap_err();
    assert!(
        error.to_string().contains("strategies.QL.fault.1.target"),
        "{error}"
    );
}

#[test]
fn fields_that_an_experiment_leaves_out_can_be_set() {
    let fig7 = Experiment::find("fig7").unwrap();
    assert!(fig7.timing.is_default(), "fig7 says nothing about timing");
    let sets = [
        "timing.election_timeout_ms=500",
        "fault.1.action=slow",
        "fault.1.target=JP",
        "fault.1.to=CA",
        "fault.1.delay_ms=80",
    ];
    let e = fig7.with(&sets.map(str::to_owned)).unwrap();
    assert_eq!(e.timing.election_timeout_ms, Some(500));
    assert_eq!(e.fault[0].to_string(), "slow JP from CA by 80 ms");
    refused(
        &["timing.election_timeot_ms=5"],
        &["no such setting", "timing.election_timeout_ms"],
    );
}

#[test]
fn strategies_are_chosen_by_label_or_name() {
    let e = with(&["strategies=leader,QL-uniform,none"]).unwrap();
    let labels: Vec<&str> = e.strategies.iter().map(|s| s.label.as_str()).collect();
    assert_eq!(labels, ["LL", "QL-uniform", "none"]);
    assert_eq!(e.strategies[1].ranges.len(), 2);
}

#[test]
fn a_topology_comes_from_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("two.toml");
    std::fs::write(&file, "sites=['CA','NY']\n[rtt_ms]\nCA={NY=60}").unwrap();
    let set = format!("topology={}", file.display());
    let e = with(&[&set, "strategies=leader"]).unwrap();
    assert_eq!(e.topology.names(), ["CA", "NY"]);
    refused(&["topology=no/such.toml"], &["topology", "no/such.toml"]);
    std::fs::write(&file, "sites=['CA','NY']").unwrap();
    refused(&[&set], &["two.toml", "no round trip for CA-NY"]);
}

#[test]
fn mistakes_name_the_key_and_what_exists() {
    refused(&["requests"], &["requests", "key=value"]);
    refused(&["reqests=5"], &["reqests", "requests", "lease.t_lease_ms"]);
    refused(&["lease.t_leese_ms=5"], &["t_leese_ms", "lease.t_lease_ms"]);
    refused(&["lease.x.y=5"], &["lease.x.y", "no such setting"]);
    let whole = "a whole number, 0 or more is expected";
    refused(
        &["requests=many"],
        &["requests=many", "\"many\" was given", whole],
    );
    refused(
        &["rate=fast"],
        &["rate=fast", "a number, or one for each site"],
    );
    for number in ["99999999999999999999", "-99_999_999_999_999_999_999"] {
        let set = format!("requests={number}");
        refused(&[&set], &[&set, "out of range", "9223372036854775807"]);
    }
    refused(
        &["clients=4294967296"],
        &["clients=4294967296", "4294967295"],
    );
    for name in ["../../esc", "", "a/b", ".", "a b"] {
        let set = format!("name={name}");
        refused(&[&set], &[&format!("name = {name:?}"), "letters, digits"]);
        let set = format!("strategies.LL.label={name}");
        let found = format!("strategies.label = {name:?}");
        refused(&[&set], &[&found, "letters, digits"]);
    }
    refused(
        &["requests=100"],
        &["workload.warmup = 5000", "100 requests", "lower warmup"],
    );
    refused(&["leader=XX"], &["leader = XX", "JP, CA, OR, VA, IRL"]);
    refused(
        &["strategies=paxos"],
        &["paxos", "leader, all, quorum, fixed"],
    );
    refused(&["strategies=leader,leader"], &["LL", "twice"]);
    refused(&["strategies="], &["strategies", "at least one"]);
    refused(&["reads=1.5"], &["workload.reads = 1.5", "0 to 1"]);
    refused(
        &["lease.renew_ms=5000"],
        &["lease.renew_ms = 5000", "2000 ms"],
    );
    refused(
        &["topology.rtt_ms.CA.JP=1"],
        &["topology.rtt_ms.CA.JP=1", "same from both ends"],
    );
    let unknown = Experiment::find("fig66").unwrap_err().to_string();
    let names: Vec<&str> = list().into_iter().map(|(name, _)| name).collect();
    assert!(names.is_sorted() && names.contains(&"fig6"), "{names:?}");
    assert!(unknown.contains("fig66") && unknown.contains(&names.join(", ")));
    let missing = Experiment::find("nowhere.toml").unwrap_err().to_string();
    assert!(missing.contains("nowhere.toml"));
}

#[test]
fn files_refuse_unknown_fields_and_odd_ranges() {
    let text = fig6().to_toml();
    for strategy in [
        "strategy = \"all\"",
        "range = [{ from = \"a\", holders = [\"CA\"] }]",
    ] {
        let odd = text.replace("[lease]\n", &format!("[lease]\n{strategy}\n"));
        let error = Experiment::parse("f.toml", &odd).unwrap_err().to_string();
        assert!(error.contains("write them in [[strategies]]"), "{error}");
    }
    let odd = text.replace("seed = 1", "sead = 1");
    let error = Experiment::parse("f.toml", &odd).unwrap_err().to_string();
    assert!(
        error.contains("sead") && error.contains("f.toml"),
        "{error}"
    );
    let short = text.replacen("share = 0.5", "share = 0.4", 1);
    let error = Experiment::parse("f.toml", &short).unwrap_err().to_string();
    assert!(
        error.contains("QL-uniform.ranges") && error.contains("sum to 1"),
        "{error}"
    );
}

#[test]
fn what_is_shown_has_the_values_that_apply_and_reads_back() {
    for (name, parts) in [
        (
            "fig6",
            [
                "election_timeout_ms = 1000",
                "# workload.rate: a closed loop",
            ],
        ),
        (
            "failover",
            [
                "election_timeout_ms = 250",
                "# strategies.cut-off.fault.1.to: all but the targets",
            ],
        ),
        (
            "rolling",
            [
                "heartbeat_ms = ",
                "# fault.1.until_s: a restart ends by itself",
            ],
        ),
    ] {
        let experiment = Experiment::find(name).unwrap();
        let text = experiment.shown();
        for part in parts {
            assert!(text.contains(part), "{part:?} is missing from:\n{text}");
        }
        let again = Experiment::parse("again", &text).unwrap();
        assert_eq!(again.timing_of_replicas(), experiment.timing_of_replicas());
        assert_eq!(
            (again.fault, again.strategies),
            (experiment.fault, experiment.strategies)
        );
    }
}
