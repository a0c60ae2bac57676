//! An unauthenticated peer, which connects to the ports for peers and claims to be a replica.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use leasehold_leases::{Ballot, ReplicaId, ReplicaSet, Slot};
use leasehold_replica::codec::proto;
use leasehold_replica::message::{
    Accept, Batch, LogId, LogNews, Message, Proposal, RequestId, Value,
};
use leasehold_wire::command::Op;
use leasehold_wire::{Command, StatusReply, encode_frame};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::Target;
use super::link::{Link, MAGICS, hello_from, statuses};
use crate::aftermath::{MADE_UP_KEY, MADE_UP_VALUE};
use crate::cluster::{CLUSTER, NAMES};
use crate::figures::{Figures, figures};

/// Number that no correct replica sends in any field.
pub(super) const ABSURD: u64 = 1 << 56;
/// Amount by which a forged number exceeds the highest known ballot round or a replica's present
/// incarnation.
const FAR: u64 = 1000;
/// Replicated clock that is 17 years in the future, in ms. A replica might still accept this time.
const FAR_MS: u64 = 1 << 39;
/// Interval at which the unauthenticated peer sends its messages.
pub(super) const EVERY: Duration = Duration::from_millis(200);
/// Number that join messages contain as the life of a data directory. No replica's directory has
/// this number.
const LIFE: u64 = 0xDEAD_BEEF_0BAD_F00D;

/// Returns several hellos. In each of them a different field is wrong.
fn wrong_hellos(magic: u32, to: usize, members: usize) -> [proto::Hello; 3] {
    let from = (to + 1) % members;
    let right = || hello_from(magic, from, to, members);
    let other = || "somebody".to_owned();
    [
        proto::Hello {
            cluster: other(),
            from_name: other(),
            to_name: other(),
            ..right()
        },
        proto::Hello {
            from_name: other(),
            to_name: NAMES[to].to_owned(),
            ..right()
        },
        proto::Hello {
            from_name: other(),
            to_name: other(),
            ..right()
        },
    ]
}

/// Sends wrong hellos. Counts the names that an answer contains although the hello did not contain
/// them: the name of the cluster, and the names of replicas.
pub async fn hellos(target: &Target) -> anyhow::Result<Figures> {
    let members = target.peers.len();
    let (mut revealed, mut sent_hellos) = (0.0, 0.0);
    for (to, address) in target.peers.iter().enumerate() {
        let hellos = MAGICS.map(|magic| wrong_hellos(magic, to, members));
        for hello in hellos.into_iter().flatten() {
            let mut hello_bytes = BytesMut::new();
            encode_frame(&hello, &mut hello_bytes)?;
            let answer = answered(address, &hello_bytes).await?;
            let words = NAMES.iter().take(members).chain([&CLUSTER]);
            let new = words.filter(|word| holds(&answer, word) && !holds(&hello_bytes, word));
            revealed += new.count() as f64;
            sent_hellos += 1.0;
        }
    }
    Ok(figures([("hellos", sent_hellos), ("words_told", revealed)]))
}

fn holds(bytes: &[u8], word: &str) -> bool {
    bytes
        .windows(word.len())
        .any(|part| part == word.as_bytes())
}

async fn answered(address: &str, hello_bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(hello_bytes).await?;
    let mut answer = Vec::new();
    let _ = timeout(Duration::from_secs(2), stream.read_to_end(&mut answer)).await;
    Ok(answer)
}

fn number_of(name: &str) -> usize {
    NAMES.iter().position(|other| *other == name).unwrap_or(0)
}

/// Sends round numbers and incarnations. At first the numbers are absurd; later they are numbers
/// that a correct replica might send.
pub async fn numbers(target: &Target) -> anyhow::Result<Figures> {
    let members = target.peers.len();
    let end = target.end();
    let (mut delivered, mut refused, mut attempts) = (0.0, 0.0, 0);
    while Instant::now() < end {
        let Ok(runs) = statuses(target).await else {
            sleep(EVERY).await;
            continue;
        };
        for to in 0..members {
            let from = (to + 1) % members;
            let Some(mut link) = Link::open(target, from, to).await? else {
                refused += 1.0;
                continue;
            };
            for (incarnation, message) in forged(&target.attack, from, &runs, attempts) {
                let sent = link.send_as(incarnation, &runs, message).await?;
                delivered += f64::from(u8::from(sent));
            }
            // Gives the replica time to read the message before the connection ends.
            sleep(Duration::from_millis(20)).await;
        }
        attempts += 1;
        sleep(EVERY).await;
    }
    Ok(figures([("delivered", delivered), ("refused", refused)]))
}

/// Returns the messages that the unauthenticated peer sends while it claims to be replica `from`.
/// Next to each message is the incarnation that the peer claims for `from`.
fn forged(attack: &str, from: usize, runs: &[StatusReply], attempt: u64) -> Vec<(u64, Message)> {
    let newest = runs.iter().map(|status| status.ballot_round).max();
    let run = runs[from].incarnation;
    let mut rounds = vec![newest.unwrap_or_default() + FAR];
    if attempt == 0 {
        rounds.insert(0, ABSURD);
    }
    if attack == "peer-incarnation" {
        let ping = Message::Ping {
            stamp: 1,
            cost_ms: 0,
            flushed: Default::default(),
        };
        let runs = if attempt == 0 {
            vec![ABSURD, run + FAR]
        } else {
            vec![run + FAR]
        };
        return runs.into_iter().map(|run| (run, ping.clone())).collect();
    }
    let message = |round: u64| {
        let ballot = Ballot {
            round,
            replica: ReplicaId(from as u8),
        };
        match attack {
            "peer-prepare" => Message::Prepare {
                ballot,
                commits: Default::default(),
            },
            "peer-heartbeat" => Message::Heartbeat {
                ballot,
                probe: 1,
                logs: Default::default(),
            },
            _ => Message::Rejected { promised: ballot },
        }
    };
    rounds
        .into_iter()
        .map(|round| (run, message(round)))
        .collect()
}

/// Sends proposals in the name of the leader. A proposal contains a value that no client wrote, or
/// advances the replicated clock too far.
pub async fn proposals(target: &Target) -> anyhow::Result<Figures> {
    let end = target.end();
    let (mut delivered, mut refused, mut attempt) = (0.0, 0.0, 0);
    while Instant::now() < end {
        let Ok(runs) = statuses(target).await else {
            sleep(EVERY).await;
            continue;
        };
        let leader = number_of(&runs[0].leader);
        let to = (leader + 1) % target.peers.len();
        match Link::open(target, leader, to).await? {
            None => refused += 1.0,
            Some(mut link) => {
                for message in proposal(&target.attack, leader, &runs[to], attempt) {
                    let sent = link.send(&runs, message).await?;
                    delivered += f64::from(u8::from(sent));
                }
                sleep(Duration::from_millis(20)).await;
            }
        }
        attempt += 1;
        sleep(EVERY).await;
    }
    Ok(figures([("delivered", delivered), ("refused", refused)]))
}

/// Returns accept messages for the next slots, and a heartbeat that declares these slots committed.
fn proposal(attack: &str, leader: usize, follower: &StatusReply, attempt: u64) -> Vec<Message> {
    let ballot = Ballot {
        round: follower.ballot_round,
        replica: ReplicaId(leader as u8),
    };
    let log_time_ms = match (attack, attempt) {
        ("peer-log-time", 0) => ABSURD,
        ("peer-log-time", _) => FAR_MS,
        // The replicated clock begins at 0 with a cluster, so this is only slightly in the future.
        _ => 60_000,
    };
    let first = follower.committed + 1;
    let slots = first..first + 100;
    let last = Slot(slots.end - 1);
    let accept = |slot: u64| {
        Message::Accept(Accept {
            ballot,
            log: LogId::Commands,
            slot: Slot(slot),
            value: Value::Commands(Arc::new(Batch {
                log_time_ms,
                commands: vec![made_up(leader, slot)],
                ..Batch::default()
            })),
            vote: Some(ReplicaSet::EMPTY),
            news: LogNews::default(),
            last_multi: Slot::ZERO,
            infallible: Arc::from([u64::MAX]),
        })
    };
    let mut all: Vec<Message> = slots.map(accept).collect();
    let news = LogNews {
        commit_point: last,
        above: Vec::new(),
        log_start: Slot(1),
    };
    all.push(Message::Heartbeat {
        ballot,
        probe: 0,
        logs: [news, LogNews::default()].into(),
    });
    all
}

fn made_up(leader: usize, slot: u64) -> Proposal {
    let op = Op::put(MADE_UP_KEY, Bytes::from_static(MADE_UP_VALUE));
    Proposal {
        origin: ReplicaId(leader as u8),
        request: RequestId(u64::MAX - slot),
        command: Command::session(u64::MAX - slot, 1, 1, op),
    }
}

/// Sends join messages to all other replicas, in the name of the last replica, which has never been
/// started.
pub async fn join(target: &Target) -> anyhow::Result<Figures> {
    if !target.preparing {
        return Ok(Figures::new());
    }
    let last = target.peers.len() - 1;
    let (mut delivered, mut refused) = (0.0, 0.0);
    for to in 0..last {
        let Some(mut link) = Link::open(target, last, to).await? else {
            refused += 1.0;
            continue;
        };
        // No replica serves clients yet, so runs cannot be requested. The first run is 1.
        let first_run = StatusReply {
            incarnation: 1,
            ..StatusReply::default()
        };
        let runs = vec![first_run; target.peers.len()];
        let sent = link.send(&runs, Message::Join { life: LIFE }).await?;
        delivered += f64::from(u8::from(sent));
        sleep(Duration::from_millis(300)).await;
    }
    Ok(figures([("delivered", delivered), ("refused", refused)]))
}
