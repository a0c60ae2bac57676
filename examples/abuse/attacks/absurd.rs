//! Messages of an unauthenticated peer, which a cluster without certificates believes to be a
//! replica. The messages contain values that no replica can have: rounds, runs, slots, durations
//! and replicated clocks of 2^56.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_leases::{Ballot, ConfigId, LeaseMessage, Promise, ReplicaId, ReplicaSet, Slot};
use leasehold_replica::message::{Accept, Batch, LogId, LogNews, Message, Value};
use leasehold_wire::StatusReply;
use tokio::time::sleep;

use super::Target;
use super::link::{Link, statuses};
use super::peers::{ABSURD, EVERY};
use crate::figures::{Figures, figures};

/// Sends all absurd messages repeatedly, on one connection to each replica. The attacker keeps
/// these connections open, because each new connection would replace a connection of a real
/// replica.
pub async fn numbers(target: &Target) -> anyhow::Result<Figures> {
    let members = target.peers.len();
    let end = target.end();
    let mut links: Vec<Option<Link>> = (0..members).map(|_| None).collect();
    let (mut sent, mut opened) = (0.0, 0.0);
    while Instant::now() < end {
        sleep(EVERY).await;
        let Ok(runs) = statuses(target).await else {
            continue;
        };
        for (to, link) in links.iter_mut().enumerate() {
            if link.as_ref().is_none_or(Link::is_closed) {
                *link = Link::open(target, (to + 1) % members, to).await?;
                opened += 1.0;
            }
            if let Some(link) = link {
                sent += send_all(link, &runs).await?;
            }
        }
    }
    Ok(figures([
        ("absurdities_said", sent),
        ("connections", opened),
    ]))
}

/// Sends all absurd messages on one connection. Returns the number of messages that could be sent.
async fn send_all(link: &mut Link, runs: &[StatusReply]) -> anyhow::Result<f64> {
    let mut sent = 0.0;
    for message in absurdities(link.from, runs) {
        sent += f64::from(u8::from(link.send(runs, message).await?));
    }
    let ping = Message::Ping {
        stamp: 1,
        cost_ms: 0,
        flushed: Default::default(),
    };
    sent += f64::from(u8::from(link.send_as(ABSURD, runs, ping).await?));
    Ok(sent)
}

/// Returns messages of the kinds that replica `from` could send. In each message, one number is
/// absurd.
fn absurdities(from: usize, runs: &[StatusReply]) -> Vec<Message> {
    let newest = runs.iter().map(|status| status.ballot_round).max();
    let at = |round| Ballot {
        round,
        replica: ReplicaId(from as u8),
    };
    let now = at(newest.unwrap_or_default());
    let slot = runs.iter().map(|status| status.committed).max();
    let slot = Slot(slot.unwrap_or_default() + 1);
    let mut all = of_round(at(ABSURD));
    all.extend(of_phase_2(now, slot));
    all.extend(of_slots(now));
    all.extend(of_leases(slot));
    all
}

fn of_round(ballot: Ballot) -> Vec<Message> {
    vec![
        Message::PreVote { ballot, ask: 1 },
        Message::Prepare {
            ballot,
            commits: Default::default(),
        },
        Message::Heartbeat {
            ballot,
            probe: 1,
            logs: Default::default(),
        },
        Message::HeartbeatAck {
            ballot,
            probe: 1,
            suspects: ReplicaSet::EMPTY,
        },
        accept(ballot, Slot(1), 0),
        Message::Accepted {
            ballot,
            log: LogId::Commands,
            votes: [(Slot(1), ReplicaSet::EMPTY)].into_iter().collect(),
        },
        Message::Rejected { promised: ballot },
        Message::Transfer {
            ballot,
            by_operator: false,
        },
    ]
}

/// Returns messages with the present ballot, and with absurd replicated clocks, slots and probes.
/// On one connection, the attacker claims to be the leader. These messages are sent there, too.
fn of_phase_2(ballot: Ballot, slot: Slot) -> Vec<Message> {
    let far = LogNews {
        commit_point: Slot(ABSURD),
        above: Vec::new(),
        log_start: Slot(1),
    };
    let heartbeat = |probe, news: LogNews| Message::Heartbeat {
        ballot,
        probe,
        logs: [news.clone(), news].into(),
    };
    vec![
        accept(ballot, slot, ABSURD),
        accept(ballot, Slot(ABSURD), 0),
        heartbeat(1, far),
        heartbeat(ABSURD, LogNews::default()),
    ]
}

fn of_slots(ballot: Ballot) -> Vec<Message> {
    let log = LogId::Commands;
    vec![
        Message::Prepare {
            ballot,
            commits: [Slot(ABSURD); 2].into(),
        },
        Message::PreVote {
            ballot,
            ask: ABSURD,
        },
        Message::Accepted {
            ballot,
            log,
            votes: [(Slot(ABSURD), ReplicaSet::EMPTY)].into_iter().collect(),
        },
        Message::Fetch {
            log,
            from: Slot(1),
            to: Slot(ABSURD),
        },
        Message::Fetched {
            log,
            entries: vec![(Slot(ABSURD), Value::Noop)],
        },
    ]
}

fn of_leases(slot: Slot) -> Vec<Message> {
    let promise = Promise {
        sequence: 1,
        base: 0,
        t0: Duration::ZERO,
        t_guard: Duration::from_nanos(ABSURD),
        t_lease: Duration::from_nanos(ABSURD),
        config: ConfigId(1),
        highest_accepted: slot,
    };
    let all = [
        LeaseMessage::Guard { sequence: ABSURD },
        LeaseMessage::GuardAck {
            sequence: 1,
            known: ConfigId(ABSURD),
        },
        LeaseMessage::Promise(promise),
        LeaseMessage::Relinquish { up_to: ABSURD },
    ];
    all.map(Message::Lease).into()
}

fn accept(ballot: Ballot, slot: Slot, log_time_ms: u64) -> Message {
    let batch = Batch {
        log_time_ms,
        ..Batch::default()
    };
    Message::Accept(Accept {
        ballot,
        log: LogId::Commands,
        slot,
        value: Value::Commands(Arc::new(batch)),
        vote: Some(ReplicaSet::EMPTY),
        news: LogNews::default(),
        last_multi: Slot::ZERO,
        infallible: Arc::from([]),
    })
}
