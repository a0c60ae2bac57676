//! Keys of the files that users write. The keys have their defaults as far as the program shows
//! them.

use std::collections::BTreeSet;

use super::frozen::assert_frozen;
use super::support::Place;

const NODE: &str = "[[node]]\nname = \"A\"\nclient = \"127.0.0.1:1\"\npeer = \"127.0.0.1:2\"\n";

/// Adds keys to `names`: the keys that a parser lists in its error message `said` about an unknown
/// key.
fn add_accepted(names: &mut BTreeSet<String>, table: &str, said: &str) {
    let (_, accepted) = said
        .split_once("expected ")
        .unwrap_or_else(|| panic!("{table}: {said}"));
    let accepted = accepted.lines().next().unwrap_or_default();
    let keys: Vec<&str> = accepted.split('`').skip(1).step_by(2).collect();
    assert!(!keys.is_empty(), "{table}: {said}");
    names.extend(keys.iter().map(|key| format!("{table}{key}")));
}

#[test]
fn keys_of_a_configuration() {
    let place = Place::new();
    let mut names = BTreeSet::new();
    let tables = [
        ("", "unknown = 1"),
        ("lease.", "[lease]\nunknown = 1"),
        ("lease.cost.", "[lease]\ncost = { unknown = 1 }"),
        ("lease.range.", "[[lease.range]]\nunknown = 1"),
        ("timing.", "[timing]\nunknown = 1"),
        ("limits.", "[limits]\nunknown = 1"),
        ("security.", "[security]\nunknown = true"),
        ("node.", "[[node]]\nunknown = 1"),
    ];
    for (table, text) in tables {
        place.write("keys.toml", text);
        let ended = place.words("serve --config keys.toml --node A");
        add_accepted(&mut names, table, &ended.err);
    }
    assert_frozen("settings.txt", &names);
}

/// `serve --help` shows each setting with its default.
#[test]
fn defaults_of_a_configuration() {
    let help = Place::new().words("serve --help").good();
    let words: Vec<&str> = help.split_whitespace().collect();
    let defaults = words.windows(3).filter(|three| three[1] == "=");
    let name = |three: &[&str]| {
        let ends = |letter: char| [',', ';', ')', '.', '('].contains(&letter);
        let (key, value) = (
            three[0].trim_start_matches('('),
            three[2].trim_end_matches(ends),
        );
        format!("{key} = {value}")
    };
    assert_frozen("defaults.txt", &defaults.map(name).collect());
}

/// Not only the names of an experiment's settings are frozen, but also their values. So an
/// experiment with the same name remains the same experiment.
#[test]
fn experiments() {
    let place = Place::new();
    let listed = place.words("exp list").good();
    let mut names = BTreeSet::new();
    for line in listed.lines().filter(|line| !line.starts_with(' ')) {
        let Some(name) = line.split_whitespace().next() else {
            continue;
        };
        let shown = place.words(&format!("exp show {name}"));
        if !shown.status.success() {
            continue;
        }
        let mut table = String::new();
        for line in shown.out.lines().filter(|line| !line.trim().is_empty()) {
            if line.starts_with('[') {
                table = line.trim_matches(['[', ']']).to_owned() + ".";
            } else if !line.starts_with("description") {
                names.insert(format!("{name}: {table}{line}"));
            }
        }
    }
    assert!(names.len() > 100, "{names:?}");
    assert_frozen("experiments.txt", &names);
}

#[test]
fn keys_of_an_experiment() {
    let place = Place::new();
    let head = "name = \"mine\"\n";
    let mut names = BTreeSet::new();
    let tables = [
        ("", "unknown = 1"),
        ("lease.", "[lease]\nunknown = 1"),
        ("timing.", "[timing]\nunknown = 1"),
        ("workload.", "[workload]\nunknown = 1"),
        ("network.", "[network]\nunknown = 1"),
        ("local.", "[local]\nunknown = 1"),
        ("strategies.", "[[strategies]]\nunknown = 1"),
        ("fault.", "[[fault]]\nunknown = 1"),
    ];
    for (table, text) in tables {
        place.write("mine.toml", &format!("{head}{text}\n"));
        add_accepted(&mut names, table, &place.words("exp show mine.toml").err);
    }
    assert_frozen("experiment-settings.txt", &names);
}

#[test]
fn properties_of_ycsb() {
    let place = Place::new();
    place.write("one.toml", NODE);
    let ended = place.words("ycsb run -P workloada -p unknown=1 -p leasehold.unknown=1 --help");
    let said = ended.good();
    let words = said.split(|letter: char| letter.is_whitespace() || ",;()[]".contains(letter));
    let is_name = |word: &&str| word.starts_with('-') || word.contains("leasehold.");
    let names = words
        .filter(is_name)
        .map(|word| word.trim_end_matches(['.', ':']).to_owned());
    assert_frozen("ycsb.txt", &names.collect());
}
