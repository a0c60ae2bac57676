//! Clients that take memory and file descriptors, and give nothing back.

use std::time::{Duration, Instant};

use bytes::{BufMut as _, Bytes, BytesMut};
use client::wire::FRAME_BYTES_MAX;
use client::wire::command::Op;
use tokio::io::AsyncWriteExt as _;
use tokio::time::{sleep, sleep_until, timeout};

use super::Target;
use crate::figures::{Figures, figures};
use crate::wire::{Session, Wire, frame, read, session_number, write};

const MIB: usize = 1 << 20;
/// So many refusals one after the other mean that a replica takes no more connections.
const REFUSED_IN_A_ROW: usize = 50;
/// By then a connection that makes no progress must be closed.
const CLOSED_WITHIN: Duration = Duration::from_secs(35);

/// Puts of one connection, as fast as they are answered.
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
        wire.ask(&write(sequence, session, Op::put(key, value)))
            .await?;
    }
    Ok(())
}

/// 24 KB of scans whose answers have 4 MiB each, on one connection that reads nothing.
pub async fn scans_unread(target: &Target) -> anyhow::Result<Figures> {
    let address = &target.clients[0];
    if target.preparing {
        let entry = |i| (format!("wide-{i:04}"), Bytes::from(vec![b'w'; 4 << 10]));
        put_all(address, (0..1000).map(entry)).await?;
        return Ok(Figures::new());
    }
    let end = target.end();
    let (mut scans, mut connections) = (0.0, 0.0);
    while Instant::now() < end {
        let Wire { writer, reader, .. } = Wire::connect_narrow(address).await?;
        let mut all = BytesMut::new();
        let mut id = 0;
        while all.len() < 24_000 {
            id += 1;
            all.put(frame(&read(id, Op::scan("wide-", "widf", 1000)))?);
        }
        let mut socket = writer.into_inner();
        let _ = timeout(Duration::from_secs(3), socket.write_all(&all)).await;
        scans += id as f64;
        connections += 1.0;
        sleep(Duration::from_secs(3)).await;
        drop(reader);
    }
    Ok(figures([("scans", scans), ("connections", connections)]))
}

/// 4 connections with puts of 1 MiB at a fixed rate, whether they are answered or not.
pub async fn large_puts(target: &Target) -> anyhow::Result<Figures> {
    let end = target.end();
    let value = Bytes::from(vec![b'l'; MIB - 16]);
    let one = |number: u64| {
        let (address, value) = (target.clients[0].clone(), value.clone());
        tokio::task::spawn_local(async move { put_on(number, &address, &value, end).await })
    };
    let tasks: Vec<_> = (0..4).map(one).collect();
    let mut sent = 0.0;
    for task in tasks {
        sent += task.await??;
    }
    Ok(figures([("puts_of_1_mib", sent)]))
}

async fn put_on(number: u64, address: &str, value: &Bytes, end: Instant) -> anyhow::Result<f64> {
    let wire = Wire::connect(address).await?;
    let opened_ms = wire.welcome.log_time_ms;
    let mut writer = wire.forget_answers();
    let mut due = tokio::time::Instant::now();
    let mut sent = 0.0;
    for sequence in 1.. {
        sleep_until(due).await;
        due += Duration::from_millis(100);
        if Instant::now() >= end {
            break;
        }
        let session = Session {
            client: session_number(number, 1),
            sequence,
            opened_ms,
        };
        let op = Op::put(format!("large-{number}"), value.clone());
        writer.feed(&write(sequence, session, op))?;
        // Waits no longer than the attack lasts, if the replica reads no more.
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

/// 100 frames of 4 MiB that lack their last byte.
pub async fn partial_frames(target: &Target) -> anyhow::Result<Figures> {
    let part = {
        let mut part = BytesMut::new();
        part.put_u32(FRAME_BYTES_MAX as u32);
        part.put_bytes(0, FRAME_BYTES_MAX - 1);
        part.freeze()
    };
    let held = |_| {
        let (address, part) = (target.clients[0].clone(), part.clone());
        tokio::task::spawn_local(async move {
            let mut wire = Wire::connect(&address).await?;
            let mut socket = wire.writer.into_inner();
            let sent = timeout(CLOSED_WITHIN, socket.write_all(&part)).await;
            let closed = timeout(CLOSED_WITHIN, wire.reader.next_frame()).await;
            anyhow::Ok((matches!(sent, Ok(Ok(()))), closed.is_ok()))
        })
    };
    let tasks: Vec<_> = (0..100).map(held).collect();
    outcome(tasks).await
}

/// How many connections took everything, and how many were still open in the end.
async fn outcome(
    tasks: Vec<tokio::task::JoinHandle<anyhow::Result<(bool, bool)>>>,
) -> anyhow::Result<Figures> {
    let (mut refused, mut whole, mut open) = (0.0, 0.0, 0.0);
    for task in tasks {
        match task.await? {
            Err(_) => refused += 1.0,
            Ok((sent, closed)) => {
                whole += f64::from(u8::from(sent));
                open += f64::from(u8::from(!closed));
            }
        }
    }
    Ok(figures([
        ("refused", refused),
        ("sent", whole),
        ("open_after_35_s", open),
    ]))
}

/// 20 connections that ask for 400 MiB each and read one byte a second.
pub async fn slow_readers(target: &Target) -> anyhow::Result<Figures> {
    let address = &target.clients[0];
    if target.preparing {
        let value = Bytes::from(vec![b's'; MIB - 16]);
        put_all(address, std::iter::once(("slow".to_owned(), value))).await?;
        return Ok(Figures::new());
    }
    let tasks = (0..20).map(|_| {
        let address = address.clone();
        tokio::task::spawn_local(async move { read_slowly(&address).await })
    });
    outcome(tasks.collect()).await
}

async fn read_slowly(address: &str) -> anyhow::Result<(bool, bool)> {
    let Wire { writer, reader, .. } = Wire::connect_narrow(address).await?;
    let mut all = BytesMut::new();
    for id in 1..=400 {
        all.put(frame(&read(id, Op::get("slow")))?);
    }
    let mut socket = writer.into_inner();
    let sent = timeout(CLOSED_WITHIN, socket.write_all(&all)).await;
    let begun = Instant::now();
    let mut byte = [0];
    while begun.elapsed() < CLOSED_WITHIN {
        // A byte a second, of the socket itself: the reader would take more.
        match socket.as_ref().try_read(&mut byte) {
            Ok(0) => return Ok((true, true)),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return Ok((true, true)),
        }
        sleep(Duration::from_secs(1)).await;
    }
    drop(reader);
    Ok((matches!(sent, Ok(Ok(()))), false))
}

/// Opens connections that say hello and then nothing, until many in a row are refused.
/// Returns those that could be had, and how many were refused.
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

/// More idle connections at each replica than it may open files.
pub async fn idle_files(target: &Target) -> anyhow::Result<Figures> {
    let end = target.end();
    let mut writer = Wire::connect(&target.clients[0]).await?;
    let mut held = Vec::new();
    for address in &target.clients {
        held.push(idle(address, 1030, end).await.0);
    }
    let written = super::flood::put_large(&mut writer, end).await;
    let open: usize = held.iter().map(Vec::len).sum();
    Ok(figures([
        ("connected", open as f64),
        ("puts_of_1_mib", written),
    ]))
}

/// Ten thousand idle connections at one replica.
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
