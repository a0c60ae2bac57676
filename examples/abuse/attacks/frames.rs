//! Frames that a replica refuses. They are sent on many connections, as fast as the replica reads
//! them.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use bytes::{BufMut as _, Bytes, BytesMut};
use tokio::io::AsyncWriteExt as _;
use tokio::time::timeout_at;

use super::Target;
use crate::figures::{Figures, figures};
use crate::wire::Wire;

/// Tag of a field with the type `bytes`. Requests do not have this field in any version.
const UNKNOWN: u8 = 15 << 3 | 2;
/// Number of bytes in one write to a connection.
const CHUNK_BYTES: usize = 1 << 20;

/// Sends frames of 64 KiB to a replica on 33 connections. The frames contain only an unknown field.
/// On each connection, the attacker always sends more data than the replica reads in one step.
pub async fn needless(target: &Target) -> anyhow::Result<Figures> {
    let mut frame = BytesMut::new();
    frame.put_u32(64 << 10);
    // The length of the field takes three bytes.
    let length = (64 << 10) - 4;
    frame.put_slice(&[
        UNKNOWN,
        length as u8 | 0x80,
        (length >> 7) as u8 | 0x80,
        (length >> 14) as u8,
    ]);
    frame.put_bytes(0, length);
    flood(target, 33, &frame).await
}

/// Sends empty frames to a replica on 250 connections. Each frame is refused with an answer that is
/// longer than the frame.
pub async fn empty(target: &Target) -> anyhow::Result<Figures> {
    flood(target, 250, &[0; 4]).await
}

/// Sends the same frame to the leader repeatedly, on this number of connections, and reads the
/// answers.
async fn flood(target: &Target, connections: u64, frame: &[u8]) -> anyhow::Result<Figures> {
    let end = target.end();
    let chunk = Bytes::from(frame.repeat(CHUNK_BYTES / frame.len()));
    let sent = Rc::new(Cell::new(0));
    let one = |_| {
        let (address, chunk, sent) = (target.clients[0].clone(), chunk.clone(), sent.clone());
        tokio::task::spawn_local(async move { send(&address, &chunk, end, &sent).await })
    };
    let tasks: Vec<_> = (0..connections).map(one).collect();
    let mut broken = 0.0;
    for task in tasks {
        broken += f64::from(u8::from(task.await?.is_err()));
    }
    Ok(figures([
        ("mib_sent", (sent.get() >> 20) as f64),
        ("broken_connections", broken),
    ]))
}

async fn send(address: &str, chunk: &[u8], end: Instant, sent: &Cell<usize>) -> anyhow::Result<()> {
    let (mut answers, mut writer) = Wire::connect(address).await?.raw();
    let reading =
        tokio::task::spawn_local(
            async move { while let Ok(Some(_)) = answers.next_frame().await {} },
        );
    let mut left = chunk;
    while let Ok(written) = timeout_at(end.into(), writer.write(left)).await {
        let written = written?;
        sent.set(sent.get() + written);
        left = if written == left.len() {
            chunk
        } else {
            &left[written..]
        };
    }
    reading.abort();
    Ok(())
}
