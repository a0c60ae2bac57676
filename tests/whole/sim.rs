//! Tests of `leasehold sim` with small campaigns.

use std::process::Stdio;

use super::support::{Place, signal, until};

/// Command line of a campaign that takes about a second.
const SMALL: &str = "sim --seconds 2 --rate 50 --out c";

/// Returns the contents of a file of a campaign as JSON.
fn json(place: &Place, name: &str) -> serde_json::Value {
    serde_json::from_str(&place.read(name)).unwrap()
}

#[test]
fn a_small_campaign_sums_up_and_goes_on_where_it_was() {
    let place = Place::new();
    let first = place.words(&format!("{SMALL} --seeds 5")).good();
    assert!(first.contains("in 5 seeds: no violation"), "{first}");
    assert!(first.contains("Too short to meet everything"), "{first}");
    assert_eq!(json(&place, "c/state.json")["next"], 5);
    place.words(&format!("{SMALL} --seeds 12")).good();
    let summary = json(&place, "c/summary.json");
    assert_eq!(summary["totals"]["seeds"], 12);
    assert!(summary["totals"]["operations"].as_u64() > Some(100));
    assert!(summary["cpu_minutes"].as_f64() > Some(0.0));
    let page = place.read("c/summary.md");
    for part in [
        "in 12 seeds: no violation",
        "| agreement |",
        "| message lost |",
        "--rate 50`",
    ] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
    // All at once, on one core, is the same campaign.
    let whole = SMALL.replace("--out c", "--out whole --threads 1");
    place.words(&format!("{whole} --seeds 12")).good();
    assert_eq!(
        json(&place, "whole/summary.json")["totals"],
        summary["totals"]
    );
    // What is done already is not done again.
    let again = place.words(&format!("{SMALL} --seeds 3")).good();
    assert!(again.contains("in 12 seeds: no violation"), "{again}");
}

#[test]
fn a_campaign_goes_on_with_the_same_choices_only() {
    let place = Place::new();
    place.words(&format!("{SMALL} --seeds 1")).good();
    let others = [
        ("--strategy all", "--strategy all of them, not all"),
        ("--replicas 3", "--replicas three to five, not 3"),
        ("--from 1", "--from 0, not 1"),
        ("--twice", "--twice false, not true"),
        ("--no-faults", "--no-faults false, not true"),
    ];
    for (words, error) in others {
        let ended = place.words(&format!("{SMALL} --seeds 1 {words}"));
        ended.refused(&["c/state.json", error]);
    }
    place.write("c/state.json", "{ \"version\": 2 }");
    let ended = place.words(&format!("{SMALL} --seeds 1"));
    ended.refused(&["c/state.json", "not the state of a campaign"]);
}

#[test]
fn a_campaign_goes_on_with_the_same_code_only() {
    let place = Place::new();
    place.words(&format!("{SMALL} --seeds 1")).good();
    let mut state = json(&place, "c/state.json");
    let ours = state["code"].as_str().unwrap().to_owned();
    assert_eq!(ours.len(), 16, "{ours}");
    state["code"] = "0ther".into();
    place.write("c/state.json", &state.to_string());
    let sources = format!("sources 0ther, not {ours}");
    let parts = ["c/state.json", &sources, "another --out", "delete the file"];
    place.words(&format!("{SMALL} --seeds 2")).refused(&parts);
    // What it says helps.
    std::fs::remove_file(place.path("c/state.json")).unwrap();
    place.words(&format!("{SMALL} --seeds 2")).good();
    state["version"] = 1.into();
    place.write("c/state.json", &state.to_string());
    let ended = place.words(&format!("{SMALL} --seeds 3"));
    ended.refused(&["c/state.json", "format version is 1"]);
}

#[test]
fn an_interrupted_campaign_goes_on() {
    let place = Place::new();
    let line = "sim --hours 1000 --seconds 5 --out c";
    let words: Vec<&str> = line.split(' ').collect();
    let campaign = place.start(&words, Stdio::null());
    until("some seeds", || {
        let state = std::fs::read(place.path("c/state.json"));
        state.is_ok_and(|bytes| {
            let state: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
            state["next"].as_u64() > Some(0)
        })
    });
    // Nobody else goes on with it meanwhile.
    let beside = place.words("sim --seconds 5 --out c --seeds 1");
    beside.refused(&["another process runs a campaign in c", "another --out"]);
    signal("INT", campaign.child.id());
    let ended = campaign.wait();
    assert!(ended.out.contains("no violation"), "{ended:#?}");
    ended.interrupted(&["interrupted", "the same command goes on"]);
    let next = json(&place, "c/state.json")["next"].as_u64().unwrap();
    assert_eq!(json(&place, "c/summary.json")["totals"]["seeds"], next);
    let on = format!("sim --seconds 5 --out c --seeds {}", next + 1);
    place.words(&on).good();
    assert_eq!(json(&place, "c/state.json")["next"], next + 1);
}

#[test]
fn a_violation_ends_a_campaign_and_can_be_repeated() {
    let place = Place::new();
    // Clocks that drift fifty times as far as leases count with.
    let line = "sim --seeds 1000 --seconds 10 --strategy all --drift-ppm 50000 --out c";
    let ended = place.words(line);
    let words = |part: &str| {
        let line = ended.out.lines().find_map(|line| line.split_once(part));
        line.unwrap_or_else(|| panic!("{part} is not in {ended:#?}"))
            .1
            .to_owned()
    };
    let (trace, command) = (
        words("the end of its trace: "),
        words("to repeat it: leasehold "),
    );
    let what = words(": containment: ");
    assert!(place.read(&trace).contains(&what));
    let page = place.read("c/summary.md");
    assert!(page.contains(&what));
    let campaign = page
        .split('`')
        .find_map(|text| text.strip_prefix("leasehold "));
    place
        .words(campaign.expect("a command repeats it"))
        .refused(&["violates containment"]);
    let again = place.words(&command);
    assert!(again.out.contains(&what), "{again:#?}");
    again.refused(&["violates containment"]);
    // It stays until it is put right.
    let seed = json(&place, "c/state.json")["next"].as_u64().unwrap();
    place
        .words(line)
        .refused(&[&format!("seed {seed} violates containment")]);
    ended.refused(&[&format!("seed {seed} violates containment")]);
}

#[test]
fn what_never_happened_fails_a_campaign_that_is_asked_to_be_strict() {
    let place = Place::new();
    place
        .words("sim --seeds 1 --seconds 1 --strict")
        .refused(&["proves less than it should", "never fired"]);
}

#[test]
fn a_seed_that_runs_twice_is_the_same_run() {
    let place = Place::new();
    let out = place.words("sim --seeds 4 --seconds 2 --twice").good();
    assert!(
        out.contains("in 4 seeds: no violation, and no difference"),
        "{out}"
    );
}

#[test]
fn one_seed_is_told_line_by_line() {
    let place = Place::new();
    place
        .words("sim --from 3 --seconds 2 --trace")
        .refused(&["--trace", "--seed 3"]);
    let out = place
        .words("sim --seed 3 --seconds 2 --trace --lines 20")
        .good();
    assert_eq!(out.lines().count(), 22, "{out}");
    assert!(out.contains("\nseed 3: "), "{out}");
    assert!(out.contains("no violation"), "{out}");
    let whole = place.words("sim --seed 3 --seconds 2 --trace").good();
    assert!(
        whole.ends_with(&out) && whole.contains("Promise #"),
        "{out}"
    );
}

#[test]
fn clocks_beyond_the_bound_serve_a_stale_read() {
    let place = Place::new();
    let out = place.words("sim --control drift").good();
    assert!(
        out.contains("The control works: drift was noticed"),
        "{out}"
    );
    // The line that is printed repeats it.
    let line = out.lines().find_map(|line| line.split_once("leasehold "));
    let (_, command) = line.unwrap_or_else(|| panic!("no line to repeat it: {out}"));
    let again = place.words(command);
    assert!(again.out.contains("stale read") || again.out.contains("linearizable"));
    again.refused(&["violates"]);
    // Without the drift there is nothing to notice, and the control says so.
    let seeds = "sim --control drift --drift-ppm 1000 --seeds 3";
    place
        .words(seeds)
        .refused(&["the control fails", "in 3 seeds"]);
}

#[test]
fn a_clock_that_jumps_is_noticed() {
    let place = Place::new();
    let out = place.words("sim --control jump").good();
    assert!(out.contains("containment"), "{out}");
}
