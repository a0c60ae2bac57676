//! Tests of the advice on strategies and leaders, which follows from the requests to a cluster.

use serde_json::Value;

use super::support::{CA, Cluster, CommandOutput, until};

fn advise(cluster: &Cluster, line: &str) -> CommandOutput {
    cluster.place.words(&format!("lease advise --dir c {line}"))
}

fn advice(cluster: &Cluster, line: &str) -> Value {
    let text = advise(cluster, &format!("--json {line}")).good();
    serde_json::from_str(&text).unwrap()
}

fn in_force(cluster: &Cluster) -> (String, String) {
    let advice = advice(cluster, "");
    let word = |field: &str| advice[field].as_str().unwrap().to_owned();
    (word("strategy"), word("leader"))
}

#[test]
fn a_cluster_says_what_would_do_best_and_does_it() {
    let cluster = Cluster::up();
    let nothing = advise(&cluster, "").good();
    assert!(nothing.contains("Nothing was counted"), "{nothing}");
    assert!(!nothing.contains('%'), "{nothing}");
    assert!(advice(&cluster, "")["best"].is_null());
    advise(&cluster, "--apply").refused(&["nothing was changed", "too little was asked"]);
    advise(&cluster, "--leader XX").refused(&["no node 'XX'", "CA, OR, JP"]);

    let jp = cluster.port + 2;
    for line in ["load", "run -p operationcount=1200"] {
        let line = format!(
            "ycsb {line} -P workloada -p recordcount=50 -threads 4 {CA} --address 127.0.0.1:{jp}"
        );
        cluster.place.words(&line).good();
    }
    until("the leader to hear of it", || {
        advice(&cluster, "")["operations_counted"].as_f64() >= Some(1000.0)
    });

    let all = advice(&cluster, "");
    let forecasts = all["forecasts"].as_array().unwrap();
    assert_eq!(forecasts.len(), 15, "five strategies, three leaders");
    let present: Vec<&Value> = forecasts
        .iter()
        .filter(|one| one["present"] == true)
        .collect();
    assert_eq!(present.len(), 1);
    assert_eq!(
        (&present[0]["strategy"], &present[0]["leader"]),
        (&"quorum".into(), &"CA".into())
    );
    let of = |strategy: &str, leader: &str| {
        let mut all = forecasts.iter();
        let found = all.find(|one| one["strategy"] == strategy && one["leader"] == leader);
        found.unwrap_or_else(|| panic!("{strategy} under {leader} is not in {all:?}"))
    };
    // Clients at JP alone. Machines may be slow, and round trips longer than those of the file.
    let read_ms = |found: &Value| found["sites"][2]["read_ms"].as_f64().unwrap();
    let (leader, none) = (of("leader", "CA"), of("none", "CA"));
    assert!(read_ms(leader) >= 6.0, "{leader}");
    assert!(read_ms(none) >= 10.0, "CA asks a majority: {none}");
    assert_eq!(leader["sites"][0]["reads_per_s"], 0.0, "nobody asks at CA");
    assert_eq!(of("all", "CA")["local_fraction"], 1.0);
    let best = &all["best"];
    assert!(best["mean_ms"].as_f64() <= of("quorum", "CA")["mean_ms"].as_f64());

    let table = advise(&cluster, "--sites").good();
    for part in ["* quorum", "worst stall", "Best", "reads/s", "cost led by"] {
        assert!(table.contains(part), "{part:?} is not in {table}");
    }
    let did = advise(&cluster, "--leader JP --apply").good();
    assert!(did.contains("moved leadership to JP"), "{did}");
    let wanted = advice(&cluster, "")["strategy"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(did.contains(&format!("Best: {wanted} led by JP")), "{did}");
    assert_eq!(in_force(&cluster), (wanted, "JP".to_owned()));
    // JP has led for a short time, and counts again from 0.
    advise(&cluster, "--apply").refused(&["nothing was changed", "too little was asked"]);
    cluster.done();
}
