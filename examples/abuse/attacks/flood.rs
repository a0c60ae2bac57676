//! Overload: more work than a replica can do, and more sessions than it can store.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use leasehold_wire::command::Op;
use leasehold_wire::{Request, Response};
use tokio::time::{sleep_until, timeout};

use super::Target;
use super::pipeline::refusal;
use crate::figures::{Figures, figures};
use crate::wire::{Session, Wire, session_number, write};

/// Number of connections of the writers.
const CONNECTIONS: u64 = 200;
/// Number of operations that are in flight on each connection of the writers.
const IN_FLIGHT: u64 = 10;
/// Number of sessions that are opened per second, at all replicas together.
const SESSIONS_A_SECOND: u64 = 70_000;
/// Interval between two groups of new sessions.
const STEP: Duration = Duration::from_millis(10);
/// Maximum number of unanswered requests, at all replicas together, while sessions are opened. The
/// maximum is low, so that the requests of other clients do not wait behind a long queue of these
/// requests.
const UNANSWERED_MAX: u64 = 1_000;

/// Runs 2,000 writers. Each writer sends its next write as soon as its previous write is answered.
pub async fn writers(target: &Target) -> anyhow::Result<Figures> {
    let end = target.end();
    let done = Rc::new(Cell::new(0_u64));
    let one = |number: u64| {
        let address = target.clients[number as usize % target.clients.len()].clone();
        let done = done.clone();
        tokio::task::spawn_local(async move { closed_loop(number, &address, end, &done).await })
    };
    let tasks: Vec<_> = (0..CONNECTIONS).map(one).collect();
    let mut broken = 0.0;
    for task in tasks {
        broken += f64::from(u8::from(task.await?.is_err()));
    }
    let a_second = done.get() as f64 / target.seconds as f64;
    Ok(figures([
        ("writes_a_second", a_second),
        ("broken_connections", broken),
    ]))
}

async fn closed_loop(
    number: u64,
    address: &str,
    end: Instant,
    done: &Cell<u64>,
) -> anyhow::Result<()> {
    let mut wire = Wire::connect(address).await?;
    let opened_ms = wire.welcome.log_time_ms;
    let request = |sequence: u64| {
        let session = Session {
            client: session_number(number, 2),
            sequence,
            opened_ms,
        };
        let key = format!("flood-{}", (number * 31 + sequence) % 10_000);
        write(sequence, session, Op::put(key, vec![b'f'; 100]))
    };
    for sequence in 1..=IN_FLIGHT {
        wire.writer.feed(&request(sequence))?;
    }
    let mut next = IN_FLIGHT;
    while Instant::now() < end {
        wire.writer.flush().await?;
        let mut answer = wire.reader.next::<Response>().await?;
        while answer.is_some() {
            done.set(done.get() + 1);
            next += 1;
            wire.writer.feed(&request(next))?;
            answer = wire.reader.next_buffered::<Response>()?;
        }
    }
    Ok(())
}

/// Number of sessions that were requested, at one replica or at all replicas together.
#[derive(Clone, Copy, Default)]
struct SessionCounts {
    requested: u64,
    answered: u64,
    refused: u64,
}

/// Sends writes at a fixed rate to every replica. Each write opens a new session.
pub async fn sessions(target: &Target) -> anyhow::Result<Figures> {
    let end = target.end();
    let replicas = target.clients.len() as u64;
    let one = |(number, address): (u64, &String)| {
        let address = address.clone();
        tokio::task::spawn_local(async move { open_at(number, replicas, &address, end).await })
    };
    let tasks: Vec<_> = (0..).zip(&target.clients).map(one).collect();
    let mut all = SessionCounts::default();
    for task in tasks {
        let opened = task.await??;
        all.requested += opened.requested;
        all.answered += opened.answered;
        all.refused += opened.refused;
    }
    Ok(figures([
        ("sessions_asked_for", all.requested as f64),
        ("sessions_answered", all.answered as f64),
        ("sessions_refused", all.refused as f64),
    ]))
}

/// Opens sessions at one replica.
async fn open_at(
    number: u64,
    replicas: u64,
    address: &str,
    end: Instant,
) -> anyhow::Result<SessionCounts> {
    let wire = Wire::connect(address).await?;
    let opened_ms = wire.welcome.log_time_ms;
    let (mut reader, mut writer) = (wire.reader, wire.writer);
    let counts = Rc::new(Cell::new(SessionCounts::default()));
    let counted = counts.clone();
    tokio::task::spawn_local(async move {
        while let Ok(Some(response)) = reader.next::<Response>().await {
            let mut opened = counted.get();
            opened.answered += 1;
            opened.refused += u64::from(refusal(&response).is_some());
            counted.set(opened);
        }
    });
    let begun = Instant::now();
    let mut due = tokio::time::Instant::now();
    let mut sent = 0;
    while Instant::now() < end {
        due += STEP;
        sleep_until(due).await;
        let wanted = begun.elapsed().as_secs_f64() * SESSIONS_A_SECOND as f64;
        let wanted = wanted as u64 / replicas;
        let room = (counts.get().answered + UNANSWERED_MAX / replicas).saturating_sub(sent);
        for _ in 0..wanted.saturating_sub(sent).min(room) {
            sent += 1;
            writer.feed(&first_write(number, sent, opened_ms))?;
        }
        let left = end.saturating_duration_since(Instant::now());
        if !matches!(timeout(left, writer.flush()).await, Ok(Ok(()))) {
            break;
        }
    }
    Ok(SessionCounts {
        requested: sent,
        ..counts.get()
    })
}

fn first_write(replica: u64, number: u64, opened_ms: u64) -> Request {
    let session = Session {
        client: session_number(30 + replica, number),
        sequence: 1,
        opened_ms,
    };
    write(number, session, Op::put("session", "s"))
}

/// Sends so many large puts that the storage begins new files.
pub async fn new_files(target: &Target) -> anyhow::Result<Figures> {
    let end = target.end();
    let mut wire = Wire::connect(&target.clients[0]).await?;
    // A file is full in less than a second, but the disk does not fill up.
    let puts = Puts {
        a_second: 20,
        most: u64::MAX,
    };
    let written = put_large(&mut wire, puts, end).await;
    Ok(figures([("puts_of_1_mib", written)]))
}

/// Rate and maximum number of the puts. Each put has 1 MiB.
pub struct Puts {
    pub a_second: u32,
    pub most: u64,
}

/// Sends puts of 1 MiB, each after the previous put is answered. All puts together are larger than
/// a memtable, so that the storage begins new tables and logs. Returns the number of answered puts.
pub async fn put_large(wire: &mut Wire, puts: Puts, end: Instant) -> f64 {
    let value = Bytes::from(vec![b'n'; (1 << 20) - 16]);
    let mut due = tokio::time::Instant::now();
    let mut answered = 0.0;
    for sequence in 1..=puts.most {
        sleep_until(due).await;
        due += Duration::from_secs(1) / puts.a_second;
        let session = Session {
            client: session_number(4, 0),
            sequence,
            opened_ms: wire.welcome.log_time_ms,
        };
        let op = Op::put(format!("new-{}", sequence % 8), value.clone());
        let left = end.saturating_duration_since(Instant::now());
        match timeout(left, wire.ask(&write(sequence, session, op))).await {
            Ok(Ok(_)) => answered += 1.0,
            Ok(Err(_)) | Err(_) => break,
        }
    }
    sleep_until(end.into()).await;
    answered
}
