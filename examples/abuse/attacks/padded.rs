//! Tiny puts in frames with padding. Decoders skip the padding.

use std::time::Duration;

use anyhow::Context as _;
use bytes::{BufMut as _, BytesMut};
use leasehold_wire::command::Op;
use tokio::io::AsyncWriteExt as _;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::Target;
use crate::figures::{Figures, figures};
use crate::wire::{Session, Wire, frame, session_number, write};

const STEP: Duration = Duration::from_millis(10);
/// Number of puts with small padding in one step.
const SMALL_A_STEP: u64 = 20;
/// Size of the small padding, in bytes. Replicas accept this size.
const SMALL_PADDING: usize = 4_000;
/// Number of steps from one put with large padding to the next. The large padding is far larger
/// than the small padding.
const STEPS_OF_LARGE: u64 = 10;
const LARGE_PADDING: usize = 1 << 20;
/// Tag of the field with the padding. Requests have no such field in any version.
const UNKNOWN: u8 = 15 << 3 | 2;

/// Sends padded puts to every replica, at a fixed rate.
pub async fn puts(target: &Target) -> anyhow::Result<Figures> {
    let end = Instant::from_std(target.end());
    let clients = target.clients.clone().into_iter().zip(0..);
    let tasks: Vec<_> = clients
        .map(|(address, number)| {
            tokio::task::spawn_local(async move { puts_at(&address, number, end).await })
        })
        .collect();
    let (mut sent, mut broken) = (0, 0.0);
    for task in tasks {
        match task.await? {
            Ok(puts) => sent += puts,
            Err(_) => broken += 1.0,
        }
    }
    Ok(figures([
        ("puts", sent as f64),
        ("broken_connections", broken),
    ]))
}

/// Sends padded puts to one replica. Returns the number of these puts.
async fn puts_at(address: &str, number: u64, end: Instant) -> anyhow::Result<u64> {
    let wire = Wire::connect(address).await?;
    let opened_ms = wire.welcome.log_time_ms;
    let (mut reader, mut writer) = wire.raw();
    tokio::task::spawn_local(async move { while let Ok(Some(_)) = reader.next_frame().await {} });
    let mut sequence = 0;
    let mut padded = |padding| {
        sequence += 1;
        let session = Session {
            client: session_number(10, number),
            sequence,
            opened_ms,
        };
        let op = Op::put(format!("padded-{}", sequence % 100), "p");
        pad(&frame(&write(sequence, session, op))?, padding)
    };
    let mut due = Instant::now();
    let mut sent = 0;
    for step in 0.. {
        sleep_until(due).await;
        due += STEP;
        let mut frames = BytesMut::new();
        for _ in 0..SMALL_A_STEP {
            frames.extend(padded(SMALL_PADDING)?);
        }
        if step % STEPS_OF_LARGE == 0 {
            frames.extend(padded(LARGE_PADDING)?);
        }
        match timeout_at(end, writer.write_all(&frames)).await {
            Ok(written) => written.context("closed amid puts")?,
            Err(_) => break,
        }
        sent += SMALL_A_STEP;
        if Instant::now() >= end {
            break;
        }
    }
    Ok(sent)
}

/// Returns the frame, extended by `padding` bytes.
fn pad(frame: &[u8], padding: usize) -> anyhow::Result<BytesMut> {
    let (_, request) = frame.split_at(size_of::<u32>());
    let mut field = BytesMut::new();
    field.put_u8(UNKNOWN);
    let mut length = padding;
    while length >= 0x80 {
        field.put_u8(length as u8 | 0x80);
        length >>= 7;
    }
    field.put_u8(length as u8);
    field.put_bytes(b'p', padding);
    let mut padded = BytesMut::new();
    padded.put_u32(u32::try_from(request.len() + field.len())?);
    padded.extend_from_slice(request);
    padded.extend(field);
    Ok(padded)
}
