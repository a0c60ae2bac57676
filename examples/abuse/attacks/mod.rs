//! The attacks. Each is a function that runs in a process of its own. It receives the addresses of
//! the cluster, attacks the cluster for a given time, and returns figures about the attack.

mod absurd;
mod ahead;
mod flood;
mod frames;
mod handshakes;
mod link;
mod logged;
mod many_keys;
mod memory;
mod merges;
mod millions;
mod padded;
mod peers;
mod pipeline;
mod questions;
mod txns;
mod unread;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::aftermath::AftermathCheck;
use crate::cluster::Setting;
use crate::figures::Figures;

/// Maximum memory, in MiB, that a replica uses for the requests in flight. The limit is for all
/// clients of the replica together.
const IN_FLIGHT_MIB: f64 = 512.0;
/// Memory limit of a replica for one connection, in MiB. The limit applies to the connection's
/// requests in flight, and to the answers that the client has not read.
const CONNECTION_MIB: f64 = 48.0;

/// Maximum number of sessions that a replica stores by default.
const SESSIONS_MAX: u64 = 262_144;

/// An attack, and the bounds on its effects.
pub struct Attack {
    pub name: &'static str,
    /// Description of the attack, for the report.
    pub what: &'static str,
    pub setting: Setting,
    /// Whether the attack must be prepared before the measurements begin.
    pub prepares: bool,
    /// Duration of the attack, in seconds.
    pub seconds: u64,
    /// Maximum memory that a replica may use during the attack, in MiB. Up to 20% more is
    /// tolerated.
    pub memory_mib: f64,
    /// Latency on which the attack is judged.
    pub judged: JudgedLatency,
    /// Checks that are made after the attack ends.
    pub after: &'static [AftermathCheck],
}

/// Latency by which an attack is judged. It is the latency of the well-behaved clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JudgedLatency {
    /// The p99 of puts and the p99 of gets. Each p99 is compared with the same p99 of the quiet
    /// time.
    P99,
    /// The longest latency of a put, in addition to the p99 of puts and the p99 of gets.
    LongestPut,
    /// No latency, because the attack uses the whole machine on purpose.
    Nothing,
}

const USUAL: Attack = Attack {
    name: "",
    what: "",
    setting: Setting::USUAL,
    prepares: false,
    seconds: 6,
    memory_mib: 64.0,
    judged: JudgedLatency::P99,
    after: &[],
};

const CERTIFIED: Setting = Setting {
    certified: true,
    ..Setting::USUAL
};

const ALL_READ: Setting = Setting {
    strategy: "all",
    ..CERTIFIED
};

const fn adaptive(strategy: &'static str) -> Setting {
    Setting {
        strategy,
        ..Setting::USUAL
    }
}

/// All attacks, in the order of the report.
pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "peer-hello",
        what: "a stranger says a wrong hello on the peers' ports, and reads the refusal",
        setting: CERTIFIED,
        seconds: 3,
        after: &[AftermathCheck::NothingRevealed],
        ..USUAL
    },
    Attack {
        name: "peer-prepare",
        what: "a stranger says it is a replica, and campaigns: rounds of 2^56, then 1,000 above the newest",
        setting: CERTIFIED,
        after: &[AftermathCheck::Restart],
        ..USUAL
    },
    Attack {
        name: "peer-heartbeat",
        what: "a stranger says it is a replica and leads: rounds of 2^56, then 1,000 above the newest",
        setting: CERTIFIED,
        after: &[AftermathCheck::Restart],
        ..USUAL
    },
    Attack {
        name: "peer-rejected",
        what: "a stranger says it is a replica that has promised a higher round, likewise",
        setting: CERTIFIED,
        after: &[AftermathCheck::Restart],
        ..USUAL
    },
    Attack {
        name: "peer-value",
        what: "a stranger says it is the leader, proposes a value that nobody wrote, and says it is committed",
        setting: ALL_READ,
        after: &[AftermathCheck::NobodyWrote, AftermathCheck::Restart],
        ..USUAL
    },
    Attack {
        name: "peer-incarnation",
        what: "a stranger says it is a later run of a replica: 2^56, then 1,000 later",
        setting: CERTIFIED,
        after: &[AftermathCheck::Restart],
        ..USUAL
    },
    Attack {
        name: "peer-log-time",
        what: "a stranger says it is the leader, at a log time of 2^56 ms, then 17 years ahead",
        setting: CERTIFIED,
        after: &[AftermathCheck::LogTime, AftermathCheck::Restart],
        ..USUAL
    },
    Attack {
        name: "peer-join",
        what: "a stranger joins as a replica that has never started yet",
        setting: Setting {
            one_late: true,
            ..CERTIFIED
        },
        prepares: true,
        seconds: 2,
        ..USUAL
    },
    Attack {
        name: "peer-absurd",
        what: "a stranger that passes for a replica says rounds, runs, slots, spans and log times of 2^56; no certificates",
        after: &[
            AftermathCheck::Rose("refused_messages"),
            AftermathCheck::LogTime,
            AftermathCheck::Restart,
        ],
        ..USUAL
    },
    Attack {
        name: "scans-unread",
        what: "one connection sends 24 KB of scans of 4 MiB each and reads nothing; again every 3 s",
        prepares: true,
        seconds: 12,
        memory_mib: CONNECTION_MIB,
        ..USUAL
    },
    Attack {
        name: "tls-unread",
        what: "8 connections over TLS ask for small and large values, 2,500 a second each, and read nothing",
        setting: CERTIFIED,
        prepares: true,
        seconds: 10,
        memory_mib: IN_FLIGHT_MIB,
        ..USUAL
    },
    Attack {
        name: "large-puts",
        what: "4 clients pipeline puts of 1 MiB, 10 a second each",
        seconds: 10,
        memory_mib: IN_FLIGHT_MIB,
        ..USUAL
    },
    Attack {
        name: "large-puts-flood",
        what: "4 clients pipeline puts of 1 MiB as fast as they are taken",
        seconds: 10,
        memory_mib: IN_FLIGHT_MIB,
        ..USUAL
    },
    Attack {
        name: "large-puts-spread",
        what: "the same over 64 keys, of which each is to be written down",
        seconds: 10,
        memory_mib: IN_FLIGHT_MIB,
        ..USUAL
    },
    Attack {
        name: "logged-reads",
        what: "4 clients ask a replica that holds nothing for 4,096 long keys, three times, leave, and come again",
        seconds: 10,
        memory_mib: IN_FLIGHT_MIB,
        ..USUAL
    },
    Attack {
        name: "padded-puts",
        what: "2,000 tiny puts a second at each replica, in frames filled with 4,000 bytes, and 10 with 1 MiB",
        seconds: 10,
        ..USUAL
    },
    Attack {
        name: "partial-frames",
        what: "100 connections send all but the last byte of a frame of 4 MiB, and wait",
        seconds: 37,
        memory_mib: IN_FLIGHT_MIB,
        after: &[AftermathCheck::ConnectionsLeft(5)],
        ..USUAL
    },
    Attack {
        name: "slow-readers",
        what: "20 clients ask for 400 values of 1 MiB each and read 1 byte a second",
        prepares: true,
        seconds: 46,
        memory_mib: IN_FLIGHT_MIB,
        after: &[AftermathCheck::ConnectionsLeft(5)],
        ..USUAL
    },
    Attack {
        name: "idle-files",
        what: "1,030 idle connections at each replica that may open 1,024 files, and puts that begin new files",
        setting: Setting {
            files: Some(1024),
            ..Setting::USUAL
        },
        seconds: 12,
        memory_mib: 256.0,
        ..USUAL
    },
    Attack {
        name: "idle-many",
        what: "10,000 idle connections at one replica",
        seconds: 10,
        memory_mib: IN_FLIGHT_MIB,
        ..USUAL
    },
    Attack {
        name: "needless-frames",
        what: "33 connections send frames of 64 KiB that hold nothing, as fast as they are taken",
        ..USUAL
    },
    Attack {
        name: "empty-frames",
        what: "250 connections send frames without a byte, as fast as they are refused",
        ..USUAL
    },
    Attack {
        name: "writers",
        what: "2,000 closed-loop writers, as fast as they are answered",
        seconds: 10,
        memory_mib: 256.0,
        judged: JudgedLatency::Nothing,
        ..USUAL
    },
    Attack {
        name: "merges",
        what: "clients keep 48,000 merges of one field into records of 250 KB in flight",
        prepares: true,
        seconds: 12,
        memory_mib: 256.0,
        after: &[AftermathCheck::LongestRound(100)],
        ..USUAL
    },
    Attack {
        name: "merges-spread",
        what: "the same with 128 such records",
        prepares: true,
        seconds: 12,
        memory_mib: 256.0,
        after: &[AftermathCheck::LongestRound(100)],
        ..USUAL
    },
    Attack {
        name: "merges-ahead",
        what: "every 2 s 12 connections send 2,000 merges each, and before them the writes that make their records large",
        seconds: 12,
        memory_mib: 256.0,
        after: &[
            AftermathCheck::LongestRound(100),
            AftermathCheck::AtMost("calm_cas_longest_ms", 1000.0),
        ],
        ..USUAL
    },
    Attack {
        name: "multi-puts",
        what: "multi-puts of 10,000 tiny keys: one at a time, then 4 clients with 8 in flight each",
        seconds: 12,
        memory_mib: 256.0,
        after: &[AftermathCheck::LongestRound(100)],
        ..USUAL
    },
    Attack {
        name: "txns",
        what: "clients keep 48,000 transactions in flight, each of which puts four keys blindly",
        seconds: 12,
        memory_mib: 256.0,
        judged: JudgedLatency::Nothing,
        after: &[AftermathCheck::LongestRound(100)],
        ..USUAL
    },
    Attack {
        name: "txns-long",
        what: "4 clients send transactions of 1,024 puts and additions, 80 in flight each",
        seconds: 12,
        memory_mib: 256.0,
        after: &[AftermathCheck::LongestRound(100)],
        ..USUAL
    },
    Attack {
        name: "txns-short",
        what: "12 connections keep 250 transactions in flight each; each deletes a field of an absent key and puts 200 keys of two bytes, in less than 2 KiB",
        seconds: 12,
        memory_mib: 256.0,
        after: &[AftermathCheck::LongestRound(100)],
        ..USUAL
    },
    Attack {
        name: "txns-rewrites",
        what: "clients keep 3,000 transactions in flight, which append to values and merge into records of 250 KB: as many bytes as are allowed, or more",
        prepares: true,
        seconds: 12,
        memory_mib: 256.0,
        after: &[AftermathCheck::LongestRound(100)],
        ..USUAL
    },
    Attack {
        name: "txns-failed",
        what: "12 connections keep 16 transactions in flight each; in each transaction, a comparison of a value of 1 MiB fails",
        prepares: true,
        seconds: 12,
        memory_mib: IN_FLIGHT_MIB,
        after: &[AftermathCheck::LongestRound(100)],
        ..USUAL
    },
    Attack {
        name: "multi-gets-absent",
        what: "4 clients ask the holder for 10,000 absent keys at once, 2 in flight each",
        seconds: 8,
        after: &[AftermathCheck::LongestRound(100)],
        ..USUAL
    },
    Attack {
        name: "status-holders",
        what: "4 connections ask who holds the hottest of 262,144 keys, 16 in flight each",
        setting: adaptive("quorum"),
        prepares: true,
        seconds: 8,
        after: &[AftermathCheck::LongestRound(100)],
        ..USUAL
    },
    Attack {
        name: "status-ranges",
        what: "4 connections ask what is in force in 1,023 ranges, 16 in flight each",
        prepares: true,
        seconds: 8,
        memory_mib: 4.0 * CONNECTION_MIB,
        after: &[AftermathCheck::LongestRound(100)],
        ..USUAL
    },
    Attack {
        name: "lease-sets",
        what: "64 changes of the leases of small ranges wait at a time, and one that ends is replaced",
        seconds: 8,
        after: &[AftermathCheck::LongestRound(100)],
        ..USUAL
    },
    Attack {
        name: "handshakes",
        what: "connections that say nothing, and hellos longer than 4 KiB",
        seconds: 8,
        after: &[
            AftermathCheck::AtMost("silent_open_after_6_s", 0.0),
            AftermathCheck::AtMost("long_hellos_read", 0.0),
        ],
        ..USUAL
    },
    Attack {
        name: "tls-handshakes",
        what: "connections that send half a TLS record, and 100 whole handshakes a second at each port",
        setting: CERTIFIED,
        seconds: 8,
        after: &[AftermathCheck::AtMost("half_open_after_6_s", 0.0)],
        ..USUAL
    },
    Attack {
        name: "connects",
        what: "500 connections a second that send what is no hello, on all ports",
        setting: CERTIFIED,
        seconds: 8,
        ..USUAL
    },
    Attack {
        name: "sessions",
        what: "new sessions of one write each, up to 70,000 a second by all replicas, 1,000 unanswered",
        seconds: 20,
        memory_mib: 256.0,
        judged: JudgedLatency::LongestPut,
        after: &[
            AftermathCheck::CounterAtMost("sessions", SESSIONS_MAX + 1_000),
            AftermathCheck::Restart,
            AftermathCheck::CounterAtMostNow("sessions", SESSIONS_MAX),
        ],
        ..USUAL
    },
    Attack {
        name: "growth",
        what: "keys grow from nothing to 2.1 million",
        seconds: 40,
        memory_mib: 1024.0,
        judged: JudgedLatency::LongestPut,
        after: &[AftermathCheck::LongestRound(100)],
        ..USUAL
    },
    Attack {
        name: "demand",
        what: "each replica is asked for 100,000 keys a second, of 262,144 in turn, with adaptive holders",
        setting: adaptive("quorum"),
        seconds: 20,
        memory_mib: 256.0,
        judged: JudgedLatency::LongestPut,
        after: &[AftermathCheck::LongestRound(100)],
        ..USUAL
    },
    Attack {
        name: "holders-quorum",
        what: "2.1 million keys are loaded and read, with `quorum`",
        setting: adaptive("quorum"),
        seconds: 57,
        memory_mib: 1536.0,
        judged: JudgedLatency::LongestPut,
        after: &[AftermathCheck::LongestRound(100), AftermathCheck::PeerBytes],
        ..USUAL
    },
    Attack {
        name: "holders-cost",
        what: "2.1 million keys are loaded and read, with `cost`",
        setting: adaptive("cost"),
        seconds: 57,
        memory_mib: 1536.0,
        judged: JudgedLatency::LongestPut,
        after: &[AftermathCheck::LongestRound(100), AftermathCheck::PeerBytes],
        ..USUAL
    },
    Attack {
        name: "disk-readonly",
        what: "a replica's directory becomes read-only while puts begin new files, again and again",
        setting: Setting {
            unprivileged: true,
            ..Setting::USUAL
        },
        seconds: 60,
        memory_mib: 256.0,
        after: &[AftermathCheck::EndedByItself],
        ..USUAL
    },
];

/// Parameters of an attack. The attackers' process receives them in this form.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Target {
    pub attack: String,
    /// True if the process only prepares the attack. Nothing is measured during the preparation.
    pub preparing: bool,
    pub seconds: u64,
    pub clients: Vec<String>,
    pub peers: Vec<String>,
    /// Certificate of the cluster's authority; `None` if the replicas have no certificates.
    pub authority: Option<PathBuf>,
    /// Number of keys that are loaded in attacks with millions of keys.
    pub keys: u64,
}

impl Target {
    pub fn end(&self) -> Instant {
        Instant::now() + Duration::from_secs(self.seconds)
    }
}

/// Runs one attack in this process, and prints the figures of the attack. `target` contains the
/// parameters as JSON.
pub fn wage(target: &str) -> anyhow::Result<()> {
    let target: Target = serde_json::from_str(target)?;
    // The attackers must end when the program that started them ends.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let tasks = tokio::task::LocalSet::new();
    let figures = runtime.block_on(tasks.run_until(attack(&target)))?;
    leasehold_ycsb::say!("{}", serde_json::to_string(&figures)?);
    Ok(())
}

async fn attack(target: &Target) -> anyhow::Result<Figures> {
    match target.attack.as_str() {
        "peer-hello" => peers::hellos(target).await,
        "peer-join" => peers::join(target).await,
        "peer-value" | "peer-log-time" => peers::proposals(target).await,
        "peer-absurd" => absurd::numbers(target).await,
        name if name.starts_with("peer-") => peers::numbers(target).await,
        "scans-unread" => memory::scans_unread(target).await,
        "tls-unread" => unread::over_tls(target).await,
        "large-puts" => memory::large_puts(target).await,
        "large-puts-flood" => memory::large_puts_flood(target, 1).await,
        "large-puts-spread" => memory::large_puts_flood(target, 16).await,
        "logged-reads" => logged::reads(target).await,
        "padded-puts" => padded::puts(target).await,
        "partial-frames" => memory::partial_frames(target).await,
        "slow-readers" => memory::slow_readers(target).await,
        "idle-files" => memory::idle_files(target).await,
        "idle-many" => memory::idle_many(target).await,
        "writers" => flood::writers(target).await,
        "merges" if target.preparing => merges::prepare(target, merges::FEW).await,
        "merges" => merges::merge(target, merges::FEW).await,
        "merges-spread" if target.preparing => merges::prepare(target, merges::MANY).await,
        "merges-spread" => merges::merge(target, merges::MANY).await,
        "merges-ahead" => ahead::merge(target).await,
        "multi-puts" => many_keys::multi_puts(target).await,
        "txns" => txns::blind(target).await,
        "txns-long" => txns::long(target).await,
        "txns-short" => txns::dense(target).await,
        "txns-rewrites" if target.preparing => txns::prepare_rewrites(target).await,
        "txns-rewrites" => txns::rewrites(target).await,
        "txns-failed" if target.preparing => txns::prepare_comparisons(target).await,
        "txns-failed" => txns::comparisons(target).await,
        "multi-gets-absent" => many_keys::multi_gets_absent(target).await,
        "status-holders" if target.preparing => questions::make_demand(target).await,
        "status-holders" => questions::status_holders(target).await,
        "status-ranges" if target.preparing => questions::make_ranges(target).await,
        "status-ranges" => questions::status_ranges(target).await,
        "lease-sets" => questions::lease_sets(target).await,
        "sessions" => flood::sessions(target).await,
        "disk-readonly" => flood::new_files(target).await,
        "handshakes" => handshakes::silent_and_long(target).await,
        "tls-handshakes" => handshakes::tls(target).await,
        "needless-frames" => frames::needless(target).await,
        "empty-frames" => frames::empty(target).await,
        "connects" => handshakes::connects(target).await,
        "growth" => millions::grow(target).await,
        "demand" => millions::demand(target).await,
        "holders-quorum" | "holders-cost" => millions::holders(target).await,
        other => Err(anyhow::anyhow!("no attack is called {other}")),
    }
    .with_context(|| format!("attack {}", target.attack))
}
