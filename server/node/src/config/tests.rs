//! Tests that a configuration is read as intended, or refused in words that help.

use std::sync::Arc;
use std::time::Duration;

use leasehold_leases::{
    Ballot, ClockBound, ConfigChange, CostSettings, RangeChange, RangeMap, ReplicaId, ReplicaSet,
    UnlistedHolders,
};
use leasehold_wire::FRAME_BYTES_MAX;

use super::*;
use leasehold_replica::codec;
use leasehold_replica::message::Value;
use leasehold_replica::parts::PART_BYTES;

const NODES: &str = r#"
[[node]]
name = "CA"
client = "127.0.0.1:7001"
peer = "127.0.0.1:7101"
[node.via]
JP = "127.0.0.1:9001"
[[node]]
name = "JP"
client = "127.0.0.1:7002"
peer = "127.0.0.1:7102"
"#;

fn parse(top: &str, nodes: &str) -> Result<ClusterConfig, ConfigError> {
    let text = format!("cluster = \"demo\"\ndata = \"data\"\n{top}\n{nodes}");
    ClusterConfig::parse(&text, Path::new("/etc/leasehold/demo.toml"))
}

fn refusal(top: &str, nodes: &str) -> String {
    parse(top, nodes).unwrap_err().to_string()
}

#[test]
fn what_is_left_out_has_its_default() {
    let config = parse("", NODES).unwrap();
    let default = Settings::new(ReplicaId(1), 2);
    assert_eq!(
        format!("{:?}", config.settings(ReplicaId(1))),
        format!("{default:?}")
    );
    assert_eq!(config.data, Path::new("/etc/leasehold/data"));
    assert_eq!(config.durability, Durability::Sync);
}

#[test]
fn what_is_written_is_taken() {
    let config = parse(
        r#"
        leader = "JP"
        durability = "async"
        accept_replies = "all"
        batch_max = 100
        holders_kb_s = 40
        [lease]
        strategy = "quorum"
        unlisted = "leader"
        t_lease_ms = 900
        t_guard_ms = 800
        renew_ms = 200
        grace_ms = 3000
        reconfigure_ms = 5000
        rho = 0.0000011
        [limits]
        sessions_max = 1000
        sessions_opened_per_s = 5
        [timing]
        heartbeat_ms = 100
        election_timeout_ms = 400
        "#,
        NODES,
    )
    .unwrap();
    let ms = Duration::from_millis;
    assert_eq!(config.leader, Some(ReplicaId(1)));
    assert_eq!(config.durability, Durability::Async);
    assert_eq!(config.accept_replies, AcceptReplies::All);
    assert_eq!(config.batch_max, 100);
    assert_eq!(config.settings(ReplicaId(0)).holders_bytes_s, 40_000);
    let sessions = config.settings(ReplicaId(0)).sessions;
    assert_eq!((sessions.max, sessions.opened_per_s), (1000, 5));
    let unlisted = UnlistedHolders::Leader;
    assert_eq!(config.strategies, StrategySpec::Quorum { unlisted }.into());
    assert_eq!(config.params.t_lease, ms(900));
    assert_eq!(config.params.t_guard, ms(800));
    assert_eq!(config.params.renew, ms(200));
    assert_eq!(config.params.t_grace, ms(3000));
    assert_eq!(config.params.clock, ClockBound { rho_ppm: 2 }, "rounded up");
    assert_eq!(config.timing.reconfigure, ms(5000));
    assert_eq!(config.timing.heartbeat, ms(100));
    assert_eq!(config.nodes[0].via["JP"], "127.0.0.1:9001");
}

#[test]
fn fixed_ranges_are_put_in_order() {
    let config = parse(
        r#"
        [lease]
        strategy = "fixed"
        [[lease.range]]
        from = "m"
        holders = ["JP"]
        [[lease.range]]
        from = "a"
        holders = ["CA", "JP"]
        "#,
        NODES,
    )
    .unwrap();
    let held = |ids: &[u8]| Some(ids.iter().copied().map(ReplicaId).collect());
    let ranges = [("", None), ("a", held(&[0, 1])), ("m", held(&[1]))];
    let ranges = ranges.map(|(from, holders)| (from.into(), StrategySpec::Fixed { holders }));
    let ranges = RangeMap::from_starts(ranges.to_vec()).unwrap();
    assert_eq!(config.strategies, ranges);
}

#[test]
fn ranges_have_strategies_of_their_own() {
    let config = parse(
        r#"
        [lease]
        strategy = "cost"
        cost = { spare = 1 }
        [[lease.range]]
        from = "p"
        unlisted = "leader"
        [[lease.range]]
        from = "b"
        to = "f"
        strategy = "all"
        [[lease.range]]
        from = "g"
        holders = ["JP"]
        [[lease.range]]
        from = "z"
        strategy = "cost"
        [lease.range.cost]
        read_weight = 0.25
        "#,
        NODES,
    )
    .unwrap();
    let cost = |weight, spare| CostSettings::new(weight, spare, true).unwrap();
    let of_all = StrategySpec::Cost(cost(0.5, 1));
    let holders = Some([ReplicaId(1)].into_iter().collect());
    let unlisted = UnlistedHolders::Leader;
    let ranges = [
        ("", of_all.clone()),
        ("b", StrategySpec::All),
        ("f", of_all),
        ("g", StrategySpec::Fixed { holders }),
        ("p", StrategySpec::Quorum { unlisted }),
        ("z", StrategySpec::Cost(cost(0.25, 0))),
    ];
    let ranges = ranges.map(|(from, spec)| (from.into(), spec));
    assert_eq!(
        config.strategies,
        RangeMap::from_starts(ranges.to_vec()).unwrap()
    );
}

#[test]
fn a_range_that_cannot_be_is_refused_with_what_would_do() {
    let a = "from = \"a\"\n";
    for (range, parts) in [
        (
            "",
            [
                "strategy of lease.range from \"a\"",
                "is not given",
                "none, leader",
            ],
        ),
        (
            "strategy = \"best\"",
            ["strategy of", "is \"best\"", "quorum, fixed, cost"],
        ),
        (
            "strategy = \"fixed\"",
            ["holders of", "is empty", "at least one node"],
        ),
        (
            "strategy = \"all\"\nholders = [\"CA\"]",
            ["holders of", "only strategy = \"fixed\"", "leave it out"],
        ),
        (
            "strategy = \"all\"\nunlisted = \"leader\"",
            ["unlisted of", "only strategy = \"quorum\"", "leave it out"],
        ),
        (
            "strategy = \"all\"\ncost = { spare = 1 }",
            ["cost of", "only strategy = \"cost\"", "leave it out"],
        ),
        ("cost = { spare = 2 }", ["cost.spare of", "is 2", "0 to 1"]),
        (
            "cost = { read_weight = 1.5 }",
            ["cost.read_weight of", "is 1.5", "0 (only writes count)"],
        ),
        (
            "strategy = \"all\"\nto = \"a\"",
            [
                "to of lease.range from \"a\"",
                "is \"a\"",
                "ends after its first key",
            ],
        ),
        (
            "strategy = \"all\"\nto = \"c\"\n[[lease.range]]\nfrom = \"b\"\nstrategy = \"all\"",
            [
                "to of lease.range from \"a\"",
                "is \"c\"",
                "from \"b\" begins before",
            ],
        ),
        (
            "strategy = \"all\"\n[[lease.range]]\nfrom = \"a\"\nstrategy = \"all\"",
            [
                "lease.range.from",
                "is \"a\"",
                "an earlier range begins there",
            ],
        ),
    ] {
        let message = refusal(&format!("[[lease.range]]\n{a}{range}"), NODES);
        for part in parts {
            assert!(message.contains(part), "{part:?} is not in {message:?}");
        }
    }
    // The keys between two ranges form a range, too.
    let apart = |n: usize| {
        let range = |i| format!("[[lease.range]]\nfrom='{i:04}'\nto='{i:04}x'\nstrategy='all'\n");
        (0..n).map(range).collect::<String>()
    };
    assert!(parse(&apart(511), NODES).is_ok());
    let message = refusal(&apart(512), NODES);
    assert!(message.contains("in 1024 ranges"), "{message}");
}

/// Returns the configuration text of `count` ranges. Their first keys have `length` bytes.
fn fixed(count: usize, length: usize) -> String {
    let range = |nth: usize| {
        let from = format!("{nth:05}{}", "x".repeat(length - 5));
        format!("[[lease.range]]\nfrom = \"{from}\"\nholders = [\"JP\"]\n")
    };
    let ranges: String = (0..count).map(range).collect();
    format!("[lease]\nstrategy = \"fixed\"\n{ranges}")
}

#[test]
fn ranges_that_one_message_cannot_hold_are_refused() {
    for (most, length) in [(1_023, 8), (1_023, 512), (128, 4_096)] {
        let strategies = parse(&fixed(most, length), NODES).unwrap().strategies;
        // A configuration may state all ranges twice: strategies first, then holders.
        let changes = strategies.iter().map(|(range, _)| RangeChange {
            strategy: Some(StrategySpec::Fixed {
                holders: Some(ReplicaSet::all(64)),
            }),
            defaults: Some(ReplicaSet::all(64)),
            ..RangeChange::nothing(range)
        });
        let changes: Vec<RangeChange> = changes.collect();
        let change = ConfigChange {
            ranges: [&changes[..], &changes[..]].concat(),
            ..ConfigChange::default()
        };
        let mut entry = Vec::new();
        codec::encode_entry(Ballot::ZERO, &Value::Config(Arc::new(change)), &mut entry);
        assert!(
            entry.len() <= FRAME_BYTES_MAX - PART_BYTES,
            "{}",
            entry.len()
        );

        let message = refusal(&fixed(most + 1, length), NODES);
        let found = format!("{} bytes in {} ranges", (most + 1) * length, most + 1);
        for part in [
            "[[lease.range]] is",
            &found,
            "1023 ranges and 524288 bytes",
            "fewer ranges",
        ] {
            assert!(message.contains(part), "{part:?} is not in {message:?}");
        }
    }
}

#[test]
fn a_refusal_names_file_field_finding_and_what_is_accepted() {
    for (top, parts) in [
        ("leader = \"XX\"", ["leader is", "\"XX\"", "CA, JP"]),
        (
            "durability = \"fast\"",
            ["durability", "\"fast\"", "sync, async, none"],
        ),
        (
            "accept_replies = \"some\"",
            ["accept_replies", "\"some\"", "leader, origin, all"],
        ),
        ("batch_max = 0", ["batch_max", "is 0", "1 to 65536"]),
        (
            "holders_kb_s = 9",
            ["holders_kb_s", "is 9", "10 to 4000 KB a second"],
        ),
        (
            "[limits]\nsessions_max = 0",
            ["limits.sessions_max", "is 0", "to 16777216"],
        ),
        (
            "[limits]\nsessions_max = 123",
            ["limits.sessions_max", "is 123", "accepted are 124"],
        ),
        (
            "[limits]\nsessions_opened_per_s = 2115",
            [
                "limits.sessions_opened_per_s",
                "is 2115",
                "accepted are 1 to 2114 sessions",
            ],
        ),
        (
            "[limits]\nsessions_max = 1000\nsessions_opened_per_s = 9",
            [
                "limits.sessions_opened_per_s",
                "accepted are 1 to 8 sessions",
                "limits.sessions_max, 1000",
            ],
        ),
        (
            "[lease]\nstrategy = \"best\"",
            [
                "lease.strategy",
                "\"best\"",
                "none, leader, all, quorum, fixed",
            ],
        ),
        (
            "[lease]\nunlisted = \"leader\"",
            ["lease.unlisted", "\"leader\"", "leave it out"],
        ),
        (
            "[lease]\nstrategy = \"fixed\"",
            ["[[lease.range]]", "not given", "holders"],
        ),
        (
            "[lease]\nstrategy = \"fixed\"\n[[lease.range]]\nfrom = \"a\"\nholders = [\"XX\"]",
            ["lease.range from \"a\"", "\"XX\"", "CA, JP"],
        ),
        (
            "[lease]\nt_guard_ms = 0",
            ["lease.t_guard_ms", "is 0", "1 to 86400000"],
        ),
        (
            "[lease]\nt_lease_ms = 150",
            ["lease.t_lease_ms", "is 150", "above lease.renew_ms (150)"],
        ),
        (
            "[lease]\ngrace_ms = 100",
            ["lease.grace_ms", "is 100", "above lease.renew_ms (150)"],
        ),
        ("[lease]\nrho = 0.7", ["lease.rho", "is 0.7", "0 to 0.5"]),
        ("[lease]\nrho = nan", ["lease.rho", "is NaN", "0 to 0.5"]),
        ("[lease]\nrho = -0.1", ["lease.rho", "is -0.1", "0 to 0.5"]),
        (
            "[timing]\nheartbeat_ms = 1000",
            ["timing.election_timeout_ms", "is 1000", "at least twice"],
        ),
        (
            "[timing]\nping_ms = 0",
            ["timing.ping_ms", "is 0", "the default is 500"],
        ),
        ("colour = 1", ["colour", "unknown field", "cluster"]),
    ] {
        let message = refusal(top, NODES);
        assert!(
            message.starts_with("/etc/leasehold/demo.toml: "),
            "{message}"
        );
        for part in parts {
            assert!(message.contains(part), "{part:?} is not in {message:?}");
        }
    }
}

#[test]
fn nodes_that_would_collide_are_refused() {
    for (from, to, parts) in [
        (
            "\"JP\"\nclient",
            "\"CA\"\nclient",
            ["node[1].name", "\"CA\""],
        ),
        ("7102", "7001", ["peer of node JP", "client of node CA"]),
        (
            "\"JP\"\nclient",
            "\"../JP\"\nclient",
            ["node[1].name", "directory"],
        ),
        (
            "\"JP\"\nclient",
            "\"ca\"\nclient",
            ["node[1].name", "ca.pem and ca.key"],
        ),
        ("127.0.0.1:7002", "7002", ["client of node JP", "\"7002\""]),
        (
            "127.0.0.1:7002",
            "host:0",
            ["client of node JP", "1 to 65535"],
        ),
        ("JP = \"127", "XX = \"127", ["via of node CA", "\"XX\""]),
        ("JP = \"127", "CA = \"127", ["via of node CA", "itself"]),
    ] {
        let nodes = NODES.replacen(from, to, 1);
        assert_ne!(nodes, NODES);
        let message = refusal("", &nodes);
        for part in parts {
            assert!(message.contains(part), "{part:?} is not in {message:?}");
        }
    }
    assert!(refusal("", "").contains("given 0 times"));
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let message = ClusterConfig::load(Path::new("/nowhere/x.toml")).unwrap_err();
    assert!(message.to_string().starts_with("/nowhere/x.toml: "));
}

#[test]
fn limits_are_read_with_their_units_or_refused_with_what_fits() {
    let default = parse("", NODES).unwrap().limits;
    assert_eq!(default, Limits::default());
    let found = parse(
        r#"
        [limits]
        connection_requests = 100
        connection_in_flight_mb = 8
        in_flight_mb = 64
        large_writes_mb = 4
        connection_unread_mb = 16
        unread_mb = 128
        frame_s = 10
        stalled_s = 20
        idle_s = 86400
        clients = 1000
        clients_per_address = 1000
        connections_per_peer = 3
        "#,
        NODES,
    );
    let expected = Limits {
        connection_requests: 100,
        connection_in_flight_bytes: 8 << 20,
        in_flight_bytes: 64 << 20,
        large_writes_bytes: 4 << 20,
        connection_unread_bytes: 16 << 20,
        unread_bytes: 128 << 20,
        frame: Duration::from_secs(10),
        stalled: Duration::from_secs(20),
        idle: Duration::from_secs(86_400),
        clients: Some(1000),
        clients_per_address: Some(1000),
        connections_per_peer: 3,
    };
    assert_eq!(found.unwrap().limits, expected);
    for (line, parts) in [
        (
            "frame_s = 0",
            ["limits.frame_s is 0", "1 to 86400 seconds", "default is 30"],
        ),
        (
            "in_flight_mb = 2000000",
            [
                "limits.in_flight_mb is 2000000",
                "MiB",
                "the default is 512",
            ],
        ),
        (
            "in_flight_mb = 4",
            [
                "limits.connection_in_flight_mb is 16, by default",
                "limits.in_flight_mb (4)",
                "lower it, or raise",
            ],
        ),
        (
            "connection_unread_mb = 2048",
            [
                "limits.connection_unread_mb is 2048;",
                "limits.unread_mb (512)",
                "lower it, or raise",
            ],
        ),
        (
            "clients = 0",
            ["limits.clients is 0", "1 to 1048576", "leave it out"],
        ),
        (
            "clients = 10\nclients_per_address = 11",
            [
                "limits.clients_per_address is 11",
                "limits.clients (10)",
                "lower it",
            ],
        ),
        (
            "connections_per_peer = 17",
            ["limits.connections_per_peer is 17", "1 to 16", "is 2"],
        ),
        (
            "in_flight_mb = \"4 MiB\"",
            [
                "in_flight_mb",
                "string \"4 MiB\"",
                "a whole number, 0 or more",
            ],
        ),
        ("frames_s = 1", ["frames_s", "unknown field", "frame_s"]),
    ] {
        let refusal = refusal(&format!("[limits]\n{line}"), NODES);
        for part in parts {
            assert!(refusal.contains(part), "{part:?} is not in {refusal:?}");
        }
    }
}
