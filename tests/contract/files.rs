//! Files that the program writes: the names of the files, the keys of JSON files, and the columns
//! of CSV files.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::frozen::assert_frozen;
use super::support::Place;

/// Adds the path of every key in a JSON value to `keys`. In a path, `[]` stands for any item of a
/// list.
pub fn keys_of_json(path: &str, value: &Value, keys: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                keys_of_json(&format!("{path}.{name}"), value, keys);
            }
        }
        Value::Array(items) => {
            for item in items {
                keys_of_json(&format!("{path}[]"), item, keys);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            keys.insert(path.to_owned());
        }
    }
}

fn add_folder(root: &Path, folder: &Path, names: &mut BTreeSet<String>) {
    for entry in folder.read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_folder(root, &path, names);
            continue;
        }
        let name = path.strip_prefix(root).unwrap().display().to_string();
        names.insert(name.clone());
        let kind = path
            .extension()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let text = || std::fs::read_to_string(&path).unwrap();
        let mut keys = BTreeSet::new();
        match kind.as_str() {
            "csv" => _ = keys.insert(format!(" {}", text().lines().next().unwrap_or_default())),
            "json" => keys_of_json(" ", &serde_json::from_str(&text()).unwrap(), &mut keys),
            "jsonl" => text().lines().for_each(|line| {
                keys_of_json(" ", &serde_json::from_str(line).unwrap(), &mut keys);
            }),
            _ => {}
        }
        names.extend(keys.into_iter().map(|key| format!("{name}{key}")));
    }
}

fn written_in(place: &Place, folder: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let root = place.path(folder);
    add_folder(&root, &root, &mut names);
    names
}

#[test]
fn of_an_experiment() {
    let place = Place::new();
    for (name, changes) in [
        (
            "fig6",
            "--set clients=1 --set requests=200 --set warmup=100 --set keys=100",
        ),
        ("failover", ""),
        (
            "table2",
            "--set clients=1 --set requests=200 --set warmup=100 --set keys=100",
        ),
    ] {
        place
            .words(&format!("exp run {name} {changes} --out {name}"))
            .good();
        assert_frozen(&format!("files-{name}.txt"), &written_in(&place, name));
    }
    let advice = place.words("exp advise fig6 --json").good();
    let mut keys = BTreeSet::new();
    keys_of_json("", &serde_json::from_str(&advice).unwrap(), &mut keys);
    assert_frozen("advice.txt", &keys);
}

#[test]
fn of_a_campaign() {
    let place = Place::new();
    place
        .words("sim --seeds 4 --seconds 5 --out campaign")
        .good();
    assert_frozen("files-campaign.txt", &written_in(&place, "campaign"));
}

/// Result files that earlier programs wrote must remain readable.
#[test]
fn results_that_are_kept_can_be_read() {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    let mut names = BTreeSet::new();
    add_folder(&results, &results, &mut names);
    let manifests = names.iter().filter(|name| name.ends_with("manifest.json"));
    assert!(manifests.count() >= 10, "{names:?}");
}
