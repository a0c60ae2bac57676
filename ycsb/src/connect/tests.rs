use super::*;
use crate::properties::Properties;

/// Round trips between CA, OR and JP, in ms.
const ROUND_TRIPS: [(&str, [u64; 3]); 3] = [
    ("CA", [0, 20, 120]),
    ("OR", [20, 0, 100]),
    ("JP", [120, 100, 0]),
];

fn found(name: &str) -> Result<ReplicaInfo, String> {
    let (_, row) = ROUND_TRIPS.iter().find(|(it, _)| *it == name).unwrap();
    let peers = ROUND_TRIPS
        .iter()
        .zip(row)
        .filter(|((peer, _), _)| *peer != name);
    Ok(ReplicaInfo {
        cluster: "test".into(),
        replica: name.into(),
        peers: peers
            .map(|((peer, _), ms)| (peer.to_string(), ms * 1000))
            .collect(),
    })
}

fn dead() -> Result<ReplicaInfo, String> {
    Err("connection refused".into())
}

fn survey(found: Vec<Result<ReplicaInfo, String>>) -> AddressSurvey {
    let address = |place| ReplicaName::from(format!("a:{place}"));
    AddressSurvey::of((1..=found.len()).map(address).collect(), found)
}

fn settings(addresses: usize, text: &str) -> Settings {
    let mut properties = Properties::new();
    let list: Vec<String> = (1..=addresses).map(|place| format!("a:{place}")).collect();
    let list = format!("leasehold.address={}\n{text}", list.join(","));
    properties.load_text("test", &list).unwrap();
    Settings::new(&properties).unwrap()
}

fn names(sites: &[ClientSite]) -> Vec<&str> {
    sites.iter().map(|site| site.name.as_str()).collect()
}

#[test]
fn sites_without_names_are_called_as_their_replicas() {
    let here = survey(vec![found("OR"), found("JP"), found("CA")]);
    let sites = here.sites(&settings(3, "")).unwrap();
    assert_eq!(names(&sites), ["OR", "JP", "CA"]);
    let numbers: Vec<u64> = sites.iter().map(|site| site.number).collect();
    assert_eq!(numbers, [0, 1, 2], "the workload does not depend on names");
    let one = survey(vec![found("OR")]);
    assert_eq!(names(&one.sites(&settings(1, "")).unwrap()), ["0"]);
}

#[test]
fn the_name_of_another_replica_is_refused() {
    let here = survey(vec![found("CA"), found("OR"), found("JP")]);
    let refusal = |site| match here.sites(&settings(3, site)) {
        Ok(sites) => panic!("{sites:?}"),
        Err(error) => error.to_string(),
    };
    let message = refusal("site=CA,JP,OR");
    assert!(message.contains("a:2 is replica OR, not JP"), "{message}");
    assert!(message.contains("CA,OR,JP, in this order"), "{message}");
    for good in ["CA,OR,JP", "west,north,east", "CA"] {
        let sites = here.sites(&settings(3, &format!("site={good}"))).unwrap();
        assert_eq!(sites[0].name, good.split(',').next().unwrap());
    }
    let alone = survey(vec![found("OR")]);
    assert!(alone.sites(&settings(1, "site=CA")).is_err());
}

#[test]
fn who_does_not_answer_is_the_one_that_is_missing() {
    let here = survey(vec![found("CA"), dead(), found("JP")]);
    let unnamed = settings(3, "");
    let sites = here.sites(&unnamed).unwrap();
    assert_eq!(names(&sites), ["CA", "OR", "JP"]);
    let warnings = here.warnings(&sites);
    let [warning] = &warnings[..] else {
        panic!("{warnings:?}");
    };
    for part in [
        "a:2 (site OR) does not answer:",
        "refused",
        "threads ask a:1",
    ] {
        assert!(warning.contains(part), "{warning}");
    }
    assert!(here.sites(&settings(3, "site=CA,JP,OR")).is_err());

    let unsure = survey(vec![found("CA"), dead(), dead()]);
    let sites = unsure.sites(&unnamed).unwrap();
    assert_eq!(names(&sites), ["CA", "1", "2"]);
    let warnings = unsure.warnings(&sites);
    assert!(
        warnings[1].contains("nobody can tell which"),
        "{warnings:?}"
    );
}

#[test]
fn a_dead_replica_is_named_also_by_a_client_that_never_reached_it() {
    let here = survey(vec![found("CA"), found("OR"), dead(), dead()]);
    let names = here.names();
    assert_eq!(names.len(), 2, "{names:?}");
    let change = ReplicaChange {
        address: "a:2".into(),
        replica: None,
        liveness: LivenessChange::Dead {
            reason: "connection refused".into(),
        },
    };
    let message = describe_change(&change, names.get("a:2").map(String::as_str));
    assert!(
        message.starts_with("a:2 (OR) does not answer (connection"),
        "{message}"
    );
    assert!(describe_change(&change, None).starts_with("a:2 does not answer"));
}

#[test]
fn threads_ask_the_nearest_next() {
    let here = survey(vec![found("CA"), found("JP"), found("OR")]);
    assert_eq!(here.order(0), [0, 2, 1]);
    assert_eq!(here.order(1), [1, 2, 0]);
    let without = survey(vec![found("CA"), dead(), found("OR")]);
    assert_eq!(without.order(1), [1, 2, 0], "as the others have measured");
}

#[test]
fn nobody_and_two_clusters_are_errors() {
    let error = survey(vec![dead(), dead()])
        .ensure_one_cluster()
        .unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("a:1: connection refused; a:2: "),
        "{message}"
    );
    let mut other = found("OR").unwrap();
    other.cluster = "prod".into();
    let error = survey(vec![found("CA"), Ok(other)]).ensure_one_cluster();
    let message = error.unwrap_err().to_string();
    assert!(message.contains("a:2 of \"prod\""), "{message}");
}
