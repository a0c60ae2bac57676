//! `leasehold cluster status`. It shows the state of each replica, the leader, and the keys that
//! each replica may read locally.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use leasehold_client::{Client, ClientOptions};
use leasehold_geo_deploy::standing::{
    self, ClusterState, ControlRequest, ControlResponse, FaultReport, NodeReport, with_dir,
};
use leasehold_wire::{LeaseRange, StatusReply, StatusRequest};

use super::limits;
use crate::connector::{ClientCredentials, Connector};
use crate::terminal::{runtime, say};

/// Longest time to wait for a replica's answer. A paused replica never answers.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

const LEGEND: &str = "\
state: what the process does, and for how long.   leader: who leads, as this replica knows.
may read: what the replica answers by itself, under promises of at least half of the others.
  every key | its lists: keys that name it as a holder | unlisted keys: keys that name no holders
  differs between key ranges: `lease show` describes each range";

/// Prints the state of the cluster in `dir`. If `with_limits` is true, also prints the limits of
/// its replicas.
pub fn show(dir: &Path, with_limits: bool) -> anyhow::Result<()> {
    let ControlResponse::Status(overview) = standing::ask(dir, ControlRequest::Status)? else {
        anyhow::bail!("the supervisor did not say how the cluster is");
    };
    let state = ClusterState::load(dir)?;
    let addresses = state.clients.iter().map(|port| port.address);
    let rows = overview.nodes.iter().zip(addresses);
    let answers = runtime()?.block_on(ask_all(
        &overview.nodes,
        rows.clone().map(|row| row.1),
        &state,
    ));
    say!(
        "{:8} {:14} {:16} {:8} {:>9} {:>9} {:>7}  {}",
        "site",
        "state",
        "clients at",
        "leader",
        "committed",
        "executed",
        "keys",
        "may read"
    );
    for ((node, address), answer) in rows.zip(&answers) {
        print_node(node, address, answer, overview.nodes.len());
    }
    say!("");
    for line in holders(dir, &state, &answers) {
        say!("{line}");
    }
    for node in &overview.nodes {
        if let Some(why) = &node.why {
            say!("{} has been down for {}: {why}", node.site, ago(node.for_s));
        }
    }
    if let Some(line) = standstill(&overview.nodes) {
        say!("{}", with_dir(&line, dir));
    }
    for fault in &overview.faults {
        say!("{}", fault_line(fault, dir));
    }
    say!("\n{LEGEND}");
    if with_limits {
        for line in limits::lines(answers.iter().flatten().flatten()) {
            say!("{line}");
        }
    }
    Ok(())
}

/// Prints the limits of the replicas at these addresses.
pub fn show_limits(addresses: &[String], credentials: &ClientCredentials) -> anyhow::Result<()> {
    let connector = Connector::new(addresses, Path::new(""), None)?.with(credentials)?;
    let mut silent = Vec::new();
    for address in addresses {
        let mut options = connector.options.clone();
        options.addresses = vec![address.clone()];
        match runtime()?.block_on(ask(Ok(options))) {
            Ok(status) => limits::lines([&status].into_iter())
                .iter()
                .for_each(|line| say!("{line}")),
            Err(error) => silent.push(error.to_string()),
        }
    }
    if silent.is_empty() {
        Ok(())
    } else {
        anyhow::bail!("{}", silent.join("; "))
    }
}

/// Answer of a replica to a status request. `None` if the replica is not running, because no
/// request is sent to such a replica.
type Answer = Option<anyhow::Result<StatusReply>>;

async fn ask_all(
    nodes: &[NodeReport],
    addresses: impl Iterator<Item = SocketAddr>,
    state: &ClusterState,
) -> Vec<Answer> {
    let mut queries = tokio::task::JoinSet::new();
    for (index, (node, address)) in nodes.iter().zip(addresses).enumerate() {
        if node.state == "up" {
            let options = state.options([address]);
            queries.spawn(async move { (index, ask(options).await) });
        }
    }
    let mut answers: Vec<Answer> = nodes.iter().map(|_| None).collect();
    for (index, answer) in queries.join_all().await {
        answers[index] = Some(answer);
    }
    answers
}

async fn ask(options: anyhow::Result<ClientOptions>) -> anyhow::Result<StatusReply> {
    let mut options = options?;
    options.request_timeout = ANSWER_WITHIN;
    options.connect_timeout = ANSWER_WITHIN;
    let client = Client::connect(options).await?;
    let request = StatusRequest {
        leases: true,
        ..StatusRequest::default()
    };
    Ok(client.raw().status(request).await?)
}

fn print_node(node: &NodeReport, address: SocketAddr, answer: &Answer, n: usize) {
    let state = format!("{} {}", node.state, ago(node.for_s));
    let head = format!("{:8} {state:14} {address:<16}", node.site);
    match answer {
        None => say!("{head} -"),
        Some(Err(error)) => say!("{head} {error}"),
        Some(Ok(status)) => say!(
            "{head} {:8} {:>9} {:>9} {:>7}  {}",
            status.leader,
            status.committed,
            status.executed,
            status.keys,
            may_read(status, n)
        ),
    }
}

/// Describes the keys that a replica may read locally, according to the replica's status.
fn may_read(status: &StatusReply, n: usize) -> String {
    let promised = status.peers.iter().filter(|peer| peer.granted_by).count();
    let readable = readable_keys(status);
    if readable == "nothing" {
        return readable.to_owned();
    }
    if status.excluded.contains(&status.replica) {
        return "nothing: it is suspected and excluded".to_owned();
    }
    if promised < n / 2 {
        return format!(
            "nothing: promised by {promised} of the others, {} are needed",
            n / 2
        );
    }
    readable.to_owned()
}

/// Describes the keys that a replica may read locally if enough promises are valid.
fn readable_keys(status: &StatusReply) -> &'static str {
    let readable = |strategy: &str, unlisted: &[String]| {
        let holds_unlisted = unlisted.contains(&status.replica);
        match (strategy, holds_unlisted) {
            ("all", _) | ("leader", true) => "every key",
            ("none", _) | ("leader", false) => "nothing",
            (_, true) => "its lists, unlisted keys",
            (_, false) => "its lists",
        }
    };
    let mut of_ranges = ranges(status)
        .iter()
        .map(|range| readable(&range.strategy, &range.defaults));
    let Some(first) = of_ranges.next() else {
        return readable(&status.strategy, &status.unlisted);
    };
    if of_ranges.all(|other| other == first) {
        first
    } else {
        "differs between key ranges"
    }
}

/// Returns the key ranges that a replica reports, each with its strategy.
fn ranges(status: &StatusReply) -> &[LeaseRange] {
    status.leases.as_ref().map_or(&[], |leases| &leases.ranges)
}

/// Describes which replicas hold which keys, according to the newest lease configuration that the
/// replicas report.
fn holders(dir: &Path, state: &ClusterState, answers: &[Answer]) -> Vec<String> {
    let statuses = answers.iter().flatten().flatten();
    let Some(newest) = statuses.max_by_key(|status| status.configuration) else {
        return vec!["No replica answers.".to_owned()];
    };
    let listed = ranges(newest).iter().map(|range| range.listed).sum();
    let strategy = match newest.strategy.as_str() {
        "" => &state.strategy,
        strategy => strategy,
    };
    let mut line = if ranges(newest).len() > 1 {
        let hint = format!("Strategy {strategy}; key ranges differ (`leasehold lease show`)");
        with_dir(&hint, dir)
    } else if newest.unlisted.is_empty() {
        format!("Strategy {strategy}")
    } else {
        let names = newest.unlisted.join(", ");
        format!("Strategy {strategy}; unlisted keys are held by {names}")
    };
    match listed {
        0 => {}
        1 => line += "; 1 key is listed with holders of its own",
        n => line += &format!("; {n} keys are listed with holders of their own"),
    }
    if !newest.excluded.is_empty() {
        line += &format!("; excluded: {}", newest.excluded.join(", "));
    }
    vec![line + ".", demand(answers)]
}

/// Describes the stored counts of requests (the demand). Also describes how many bytes a second
/// replicas need to report their counts to the leader.
fn demand(answers: &[Answer]) -> String {
    let most = |name: &str| {
        let statuses = answers.iter().flatten().flatten();
        let counters = statuses.flat_map(|status| &status.counters);
        let named = counters.filter(|counter| counter.name == name);
        named.map(|counter| counter.value).max().unwrap_or(0)
    };
    let keys = most("demand_keys");
    format!(
        "Demand: counted for {keys} key{} at the leader; at most {:.1} MiB at a replica, and {:.1} KB/s from a replica to the leader.",
        if keys == 1 { "" } else { "s" },
        most("demand_bytes") as f64 / f64::from(1 << 20),
        most("demand_report_bytes") as f64 / 1000.0
    )
}

/// Returns the explanation that writes are stalled; `None` if a majority of the replicas is
/// running.
fn standstill(nodes: &[NodeReport]) -> Option<String> {
    let n = nodes.len();
    let down = nodes.iter().filter(|node| node.state != "up").count();
    (down > n - (n / 2 + 1)).then(|| {
        format!(
            "{down} of {n} replicas do not run: nothing is written until a majority runs; `leasehold \
             cluster start NODE`, or `resume`"
        )
    })
}

/// Describes an active fault of the cluster in `dir` in one line.
pub fn fault_line(fault: &FaultReport, dir: &Path) -> String {
    let end = match fault.ends_in_s {
        Some(s) => format!("ends in {}", ago(s)),
        None => with_dir(
            &format!("until `leasehold fault heal {}`", fault.number),
            dir,
        ),
    };
    format!(
        "fault {}: {}, for {}, {end}",
        fault.number,
        fault.text,
        ago(fault.for_s)
    )
}

/// Formats a duration in a few characters.
fn ago(seconds: f64) -> String {
    match seconds as u64 {
        s @ 0..120 => format!("{s} s"),
        s @ 120..7200 => format!("{} min", s / 60),
        s => format!("{} h", s / 3600),
    }
}

#[cfg(test)]
mod tests {
    use leasehold_wire::{Leases, Peer};

    use super::*;

    fn status(strategy: &str, unlisted: &[&str], granted: usize) -> StatusReply {
        let peer = |index| Peer {
            granted_by: index < granted,
            ..Peer::default()
        };
        StatusReply {
            replica: "JP".to_owned(),
            strategy: strategy.to_owned(),
            unlisted: unlisted.iter().map(|name| (*name).to_owned()).collect(),
            peers: (0..4).map(peer).collect(),
            ..StatusReply::default()
        }
    }

    #[test]
    fn it_says_who_may_read_what() {
        let may = |strategy, unlisted: &[&str], granted| {
            may_read(&status(strategy, unlisted, granted), 5)
        };
        assert_eq!(may("none", &[], 4), "nothing");
        assert_eq!(may("leader", &["CA"], 4), "nothing");
        assert_eq!(may("leader", &["JP"], 2), "every key");
        assert_eq!(may("all", &["JP"], 2), "every key");
        assert_eq!(may("quorum", &["JP"], 3), "its lists, unlisted keys");
        assert_eq!(may("quorum", &["CA"], 3), "its lists");
        assert!(may("all", &["JP"], 1).contains("promised by 1 of the others, 2 are needed"));
        let of_ranges = |second: (&str, &[&str])| {
            let range = |(strategy, defaults): (&str, &[&str])| LeaseRange {
                strategy: strategy.to_owned(),
                defaults: defaults.iter().map(|name| (*name).to_owned()).collect(),
                ..LeaseRange::default()
            };
            let leases = Leases {
                ranges: vec![range(("leader", &["JP"])), range(second)],
                ..Leases::default()
            };
            let status = StatusReply {
                leases: Some(leases),
                ..status("leader", &["JP"], 4)
            };
            may_read(&status, 5)
        };
        assert_eq!(of_ranges(("all", &[])), "every key");
        assert_eq!(of_ranges(("leader", &["CA"])), "differs between key ranges");
        assert_eq!(of_ranges(("none", &[])), "differs between key ranges");
        let mut suspected = status("all", &["CA"], 4);
        suspected.excluded.push("JP".to_owned());
        assert!(may_read(&suspected, 5).contains("excluded"));
    }

    #[test]
    fn a_lost_majority_is_said() {
        let node = |state: &str| NodeReport {
            site: "JP".to_owned(),
            state: state.to_owned(),
            for_s: 1.0,
            why: None,
            process: None,
        };
        let nodes = |states: [&str; 3]| states.map(node);
        assert_eq!(standstill(&nodes(["up", "up", "down"])), None);
        assert!(
            standstill(&nodes(["up", "paused", "down"]))
                .unwrap()
                .contains("2 of 3")
        );
    }

    #[test]
    fn times_are_short() {
        assert_eq!(
            [ago(0.4), ago(119.9), ago(120.0), ago(7300.0)],
            ["0 s", "119 s", "2 min", "2 h"]
        );
    }
}
