//! Clients that occupy memory and file descriptors of a replica and do not release them.

use std::time::{Duration, Instant};

use bytes::{BufMut as _, Bytes, BytesMut};
use leasehold_wire::command::Op;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::{FRAME_BYTES_MAX, Request};
use tokio::io::AsyncWriteExt as _;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::task::JoinHandle;
use tokio::time::{sleep, sleep_until, timeout};

use super::Target;
use super::flood::{Puts, put_large};
use crate::figures::{Figures, figures};
use crate::wire::{RawConnection, Session, Wire, frame, read, session_number, write};

const MIB: usize = 1 << 20;
/// Number of refusals in a row after which the attack assumes that the replica accepts no more
/// connections.
const REFUSED_IN_A_ROW: usize = 50;

/// Sends puts on one connection. Each put is sent as soon as the previous put is answered.
pub async fn put_all(
    address: &str,
    entries: impl Iterator<Item = (String, Bytes)>,
) -> anyhow::Result<()> {
    let mut wire = Wire::connect(address).await?;
    let session = Session {
        client: session_number(90, 0),
        sequence: 0,
        opened_ms: wire.welcome.log_time_ms,
    };
    for (sequence, (key, value)) in (1..).zip(entries) {
        let session = Session {
            sequence,
            ..session
        };
        let put = write(sequence, session, Op::put(key, value));
        let answer = wire.ask(&put).await?;
        let result = answer.outcome.and_then(|outcome| outcome.result);
        let done = matches!(result, Some(Answer::Written(_)));
        anyhow::ensure!(done, "a put was answered {result:?}");
    }
    Ok(())
}

/// Number of entries of 4 KiB in one scan. This many entries fill an answer.
const WIDE_ENTRIES: u32 = 960;

fn wide_scan(id: u64) -> Request {
    read(id, Op::scan("wide-", "widf", WIDE_ENTRIES))
}

/// Sends scans on one connection, and reads no answer. The requests have 24 KB together; the answer
/// to each request would have 4 MiB.
pub async fn scans_unread(target: &Target) -> anyhow::Result<Figures> {
    let address = &target.clients[0];
    if target.preparing {
        let entry = |i| (format!("wide-{i:04}"), Bytes::from(vec![b'w'; 4 << 10]));
        put_all(address, (0..WIDE_ENTRIES).map(entry)).await?;
        let answer = Wire::connect(address).await?.ask(&wide_scan(1)).await?;
        let found = match answer.outcome.and_then(|outcome| outcome.result) {
            Some(Answer::Entries(found)) => found.entries.len(),
            _ => 0,
        };
        anyhow::ensure!(
            found == WIDE_ENTRIES as usize,
            "a scan found {found} entries"
        );
        return Ok(Figures::new());
    }
    let end = target.end();
    let (mut scans, mut connections) = (0.0, 0.0);
    while Instant::now() < end {
        let mut held = Wire::connect_narrow(address).await?.raw();
        let mut all = BytesMut::new();
        let mut id = 0;
        while all.len() < 24_000 {
            id += 1;
            all.put(frame(&wide_scan(id))?);
        }
        write_until(&mut held.1, &all, Instant::now() + Duration::from_secs(3)).await;
        scans += id as f64;
        connections += 1.0;
        sleep(Duration::from_secs(3)).await;
        drop(held);
    }
    Ok(figures([("scans", scans), ("connections", connections)]))
}

/// Interval between two puts on one connection, if the puts have a fixed rate.
const LARGE_PUT_EVERY: Duration = Duration::from_millis(100);

/// Keys and rate of the puts of 1 MiB on one connection.
#[derive(Clone, Copy)]
struct LargePuts {
    pause: Duration,
    keys: u64,
}

/// Sends puts of 1 MiB on 4 connections. The rate of the puts is fixed, even if the replica does
/// not answer.
pub async fn large_puts(target: &Target) -> anyhow::Result<Figures> {
    let pause = LARGE_PUT_EVERY;
    pipeline(target, LargePuts { pause, keys: 1 }).await
}

/// Sends puts of 1 MiB on 4 connections, as fast as the replica accepts them. Each connection has
/// `keys` keys of its own.
pub async fn large_puts_flood(target: &Target, keys: u64) -> anyhow::Result<Figures> {
    let pause = Duration::ZERO;
    pipeline(target, LargePuts { pause, keys }).await
}

async fn pipeline(target: &Target, puts: LargePuts) -> anyhow::Result<Figures> {
    let end = target.end();
    let value = Bytes::from(vec![b'l'; MIB - 16]);
    let one = |number: u64| {
        let (address, value) = (target.clients[0].clone(), value.clone());
        tokio::task::spawn_local(async move { put_on(number, &address, &value, puts, end).await })
    };
    let tasks: Vec<_> = (0..4).map(one).collect();
    let mut sent = 0.0;
    for task in tasks {
        sent += task.await??;
    }
    Ok(figures([("puts_of_1_mib", sent)]))
}

async fn put_on(
    number: u64,
    address: &str,
    value: &Bytes,
    puts: LargePuts,
    end: Instant,
) -> anyhow::Result<f64> {
    let wire = Wire::connect(address).await?;
    let opened_ms = wire.welcome.log_time_ms;
    let mut writer = wire.forget_answers();
    let mut due = tokio::time::Instant::now();
    let mut sent = 0.0;
    for sequence in 1.. {
        sleep_until(due).await;
        due += puts.pause;
        if Instant::now() >= end {
            break;
        }
        let session = Session {
            client: session_number(number, 1),
            sequence,
            opened_ms,
        };
        let key = format!("large-{number}-{}", sequence % puts.keys);
        let op = Op::put(key, value.clone());
        writer.feed(&write(sequence, session, op))?;
        // If the replica stops reading, this waits only until the end of the attack.
        match timeout(
            end.saturating_duration_since(Instant::now()),
            writer.flush(),
        )
        .await
        {
            Ok(Ok(())) => sent += 1.0,
            Ok(Err(_)) | Err(_) => break,
        }
    }
    Ok(sent)
}

/// Sends 100 frames of 4 MiB. The last byte of each frame is missing.
pub async fn partial_frames(target: &Target) -> anyhow::Result<Figures> {
    let end = target.end();
    let part = {
        let mut part = BytesMut::new();
        part.put_u32(FRAME_BYTES_MAX as u32);
        part.put_bytes(0, FRAME_BYTES_MAX - 1);
        part.freeze()
    };
    let send = |_| {
        let (address, part) = (target.clients[0].clone(), part.clone());
        tokio::task::spawn_local(async move {
            let mut held = Wire::connect(&address).await?.raw();
            write_until(&mut held.1, &part, end).await;
            anyhow::Ok(held)
        })
    };
    outcome((0..100).map(send).collect(), end).await
}

/// Waits until all connections are made, and keeps them open until the end of the attack.
async fn outcome(
    tasks: Vec<JoinHandle<anyhow::Result<RawConnection>>>,
    end: Instant,
) -> anyhow::Result<Figures> {
    let mut held = Vec::new();
    for task in tasks {
        held.extend(task.await?);
    }
    sleep_until(end.into()).await;
    Ok(figures([("connections", held.len() as f64)]))
}

/// Opens 20 connections. On each connection, requests 400 MiB, and then reads one byte per second.
pub async fn slow_readers(target: &Target) -> anyhow::Result<Figures> {
    let address = &target.clients[0];
    if target.preparing {
        let value = Bytes::from(vec![b's'; MIB - 16]);
        put_all(address, std::iter::once(("slow".to_owned(), value))).await?;
        return Ok(Figures::new());
    }
    let end = target.end();
    let read = |_| {
        let address = address.clone();
        tokio::task::spawn_local(async move { read_slowly(&address, end).await })
    };
    outcome((0..20).map(read).collect(), end).await
}

async fn read_slowly(address: &str, end: Instant) -> anyhow::Result<RawConnection> {
    let mut held = Wire::connect_narrow(address).await?.raw();
    let mut all = BytesMut::new();
    for id in 1..=400 {
        all.put(frame(&read(id, Op::get("slow")))?);
    }
    write_until(&mut held.1, &all, end).await;
    while Instant::now() < end {
        sleep(Duration::from_secs(1)).await;
        // Reads from the socket itself, because the reader would read more. The end of the stream
        // does not matter here.
        let _ = held.1.as_ref().try_read(&mut [0]);
    }
    Ok(held)
}

/// Sends as many of the bytes as the replica accepts before `end`.
async fn write_until(socket: &mut OwnedWriteHalf, bytes: &[u8], end: Instant) {
    let left = end.saturating_duration_since(Instant::now());
    let _ = timeout(left, socket.write_all(bytes)).await;
}

/// Opens connections until many connections in a row are refused. Each connection sends a hello,
/// and then nothing. Returns the accepted connections, and the number of refused connections.
async fn idle(address: &str, count: usize, end: Instant) -> (Vec<Wire>, usize) {
    let (mut held, mut refused, mut in_a_row) = (Vec::new(), 0, 0);
    while held.len() + refused < count && in_a_row < REFUSED_IN_A_ROW && Instant::now() < end {
        match timeout(Duration::from_millis(500), Wire::connect(address)).await {
            Ok(Ok(wire)) => {
                held.push(wire);
                in_a_row = 0;
            }
            Ok(Err(_)) | Err(_) => {
                refused += 1;
                in_a_row += 1;
            }
        }
    }
    (held, refused)
}

/// At each replica, opens more idle connections than the number of files that the replica may open.
pub async fn idle_files(target: &Target) -> anyhow::Result<Figures> {
    let end = target.end();
    let mut writer = Wire::connect(&target.clients[0]).await?;
    let mut held = Vec::new();
    for address in &target.clients {
        held.push(idle(address, 1030, end).await.0);
    }
    let puts = Puts {
        a_second: 10,
        most: 80,
    };
    let written = put_large(&mut writer, puts, end).await;
    let open: usize = held.iter().map(Vec::len).sum();
    Ok(figures([
        ("connected", open as f64),
        ("puts_of_1_mib", written),
    ]))
}

/// Opens ten thousand idle connections at one replica.
pub async fn idle_many(target: &Target) -> anyhow::Result<Figures> {
    let end = target.end();
    let address = &target.clients[0];
    let (held, refused) = idle(address, 10_000, end).await;
    sleep_until(end.into()).await;
    Ok(figures([
        ("connected", held.len() as f64),
        ("refused", refused as f64),
    ]))
}
