//! `leasehold cluster status --limits`. For each limit, it shows the part that is in use, and how
//! often the limit has taken effect.

use std::collections::BTreeMap;

use leasehold_wire::StatusReply;

/// Names of the counters for one limit. The table has a line for each limit.
struct Row {
    what: &'static str,
    /// Name of the counter that contains the value of the limit.
    limit: &'static str,
    unit: &'static str,
    /// Counter of the amount that is in use, out of the limit. The pair contains the name of the
    /// counter, and the divisor for its value.
    taken: Option<(&'static str, f64)>,
    /// Counters that grow when the limit takes effect. Each pair contains the name of a counter,
    /// and a word for the events that it counts.
    acted: &'static [(&'static str, &'static str)],
}

const MIB: f64 = (1 << 20) as f64;

const ROWS: [Row; 14] = [
    Row {
        what: "clients",
        limit: "limit_clients",
        unit: "",
        taken: Some(("clients", 1.0)),
        acted: &[("clients_refused", "refused")],
    },
    Row {
        what: "clients from one address",
        limit: "limit_clients_per_address",
        unit: "",
        taken: None,
        acted: &[("clients_refused_by_address", "refused")],
    },
    Row {
        what: "connections of one peer",
        limit: "limit_connections_per_peer",
        unit: "",
        taken: None,
        acted: &[("peer_connections_closed", "closed")],
    },
    Row {
        what: "requests in flight, one connection",
        limit: "limit_connection_requests",
        unit: "",
        taken: None,
        acted: &[("clients_paused", "pauses")],
    },
    Row {
        what: "bytes in flight, one connection",
        limit: "limit_connection_in_flight_mb",
        unit: "MiB",
        taken: None,
        acted: &[],
    },
    Row {
        what: "bytes in flight, all",
        limit: "limit_in_flight_mb",
        unit: "MiB",
        taken: Some(("client_bytes_in_flight", MIB)),
        acted: &[
            ("client_requests_refused", "requests refused"),
            ("clients_crowded_out", "closed"),
        ],
    },
    Row {
        what: "bytes of large writes in work",
        limit: "limit_large_writes_mb",
        unit: "MiB",
        taken: Some(("client_bytes_large_writes", MIB)),
        acted: &[("client_large_writes_delayed", "delayed")],
    },
    Row {
        what: "bytes unread, one connection",
        limit: "limit_connection_unread_mb",
        unit: "MiB",
        taken: None,
        acted: &[("clients_given_up", "closed")],
    },
    Row {
        what: "bytes unread, all",
        limit: "limit_unread_mb",
        unit: "MiB",
        taken: Some(("client_bytes_unread", MIB)),
        acted: &[],
    },
    Row {
        what: "time for a message",
        limit: "limit_frame_s",
        unit: "s",
        taken: None,
        acted: &[("clients_timed_out", "closed")],
    },
    Row {
        what: "time to read answers",
        limit: "limit_stalled_s",
        unit: "s",
        taken: None,
        acted: &[],
    },
    Row {
        what: "time without a request",
        limit: "limit_idle_s",
        unit: "s",
        taken: None,
        acted: &[("clients_closed_idle", "closed")],
    },
    Row {
        what: "sessions of clients of all nodes",
        limit: "limit_sessions_max",
        unit: "",
        taken: Some(("sessions", 1.0)),
        acted: &[
            ("sessions_made_room", "ended to make room"),
            ("sessions_refused", "refused"),
        ],
    },
    Row {
        what: "sessions opened here in a second",
        limit: "limit_sessions_opened_per_s",
        unit: "",
        taken: None,
        acted: &[("openings_refused", "refused")],
    },
];

/// Counters that belong to no configurable limit. Each line of the table has a title and its
/// counters.
const OTHERS: [(&str, &[(&str, &str)]); 4] = [
    (
        "rounds",
        &[("long_rounds", "long"), ("longest_round_ms", "ms at most")],
    ),
    (
        "peers",
        &[
            ("refused_messages", "messages refused"),
            ("peer_strangers_closed", "strangers closed"),
        ],
    ),
    (
        "handshakes",
        &[
            ("tls_handshakes_failed", "failed"),
            ("tls_handshakes", "done"),
        ],
    ),
    (
        "tokens",
        &[
            ("clients_unauthenticated", "clients refused"),
            ("clients_revoked", "closed"),
            ("requests_denied", "requests denied"),
            ("tokens_outdated", "files out of date"),
        ],
    ),
];

/// Returns the lines of a table with the limits of each replica that answered.
pub fn lines<'a>(reported: impl Iterator<Item = &'a StatusReply>) -> Vec<String> {
    let mut lines = Vec::new();
    for status in reported {
        let counters = status.counters.iter();
        let known = counters.map(|counter| (counter.name.as_str(), counter.value));
        let known: BTreeMap<&str, u64> = known.collect();
        let (name, wide) = (&status.replica, 36);
        lines.push(format!(
            "\n{name:wide$} {:>12} {:>12}  has acted",
            "limit", "taken now"
        ));
        lines.extend(ROWS.iter().map(|row| line(row, &known)));
        lines.extend(OTHERS.iter().map(|(what, counters)| {
            let acted = acted(counters, &known);
            let line = format!("{what:wide$} {:>12} {:>12}  {acted}", "-", "-");
            line.trim_end().to_owned()
        }));
    }
    lines
}

fn line(row: &Row, known: &BTreeMap<&str, u64>) -> String {
    let limit = known.get(row.limit).map_or("-".to_owned(), |limit| {
        format!("{limit} {}", row.unit).trim_end().to_owned()
    });
    let taken = row.taken.and_then(|(name, divisor)| {
        let taken = *known.get(name)? as f64 / divisor;
        Some(if divisor > 1.0 {
            format!("{taken:.1} {}", row.unit)
        } else {
            taken.to_string()
        })
    });
    let taken = taken.unwrap_or_else(|| "-".to_owned());
    let acted = acted(row.acted, known);
    format!("{:36} {limit:>12} {taken:>12}  {acted}", row.what)
        .trim_end()
        .to_owned()
}

fn acted(counters: &[(&str, &str)], known: &BTreeMap<&str, u64>) -> String {
    let reported = counters.iter().filter_map(|(name, what)| {
        let count = known.get(name)?;
        Some(format!("{count} {what}"))
    });
    reported.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use leasehold_wire::Counter;

    use super::*;

    #[test]
    fn limits_are_shown_beside_what_is_taken_and_how_often_they_acted() {
        let counter = |(name, value): (&str, u64)| Counter {
            name: name.to_owned(),
            value,
        };
        let counters = [
            ("limit_in_flight_mb", 512),
            ("client_bytes_in_flight", 3 << 19),
            ("client_requests_refused", 7),
            ("clients_crowded_out", 2),
            ("limit_clients", 600),
            ("clients", 12),
            ("limit_frame_s", 30),
            ("long_rounds", 3),
            ("longest_round_ms", 70),
            ("limit_sessions_max", 262_144),
            ("sessions", 5),
            ("sessions_made_room", 1),
            ("sessions_refused", 0),
            ("requests_denied", 4),
            ("tokens_outdated", 1),
        ];
        let status = StatusReply {
            replica: "CA".to_owned(),
            counters: counters.map(counter).to_vec(),
            ..StatusReply::default()
        };
        let lines = lines([&status].into_iter());
        let words = |start: &str| {
            let line = lines
                .iter()
                .find(|line| line.trim_start().starts_with(start));
            line.unwrap()
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        };
        let of_bytes = "bytes in flight, all 512 MiB 1.5 MiB 7 requests refused, 2 closed";
        assert_eq!(words("bytes in flight, all"), of_bytes);
        assert_eq!(words("clients "), "clients 600 12");
        let of_sessions =
            "sessions of clients of all nodes 262144 5 1 ended to make room, 0 refused";
        assert_eq!(words("sessions of"), of_sessions);
        assert_eq!(words("time for a message"), "time for a message 30 s -");
        assert_eq!(
            words("time to read"),
            "time to read answers - -",
            "an older replica"
        );
        assert_eq!(words("rounds"), "rounds - - 3 long, 70 ms at most");
        let of_tokens = "tokens - - 4 requests denied, 1 files out of date";
        assert_eq!(words("tokens"), of_tokens);
        assert!(lines[0].trim_start().starts_with("CA"));
    }
}
