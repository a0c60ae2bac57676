//! Attack with reads that go through the log. The clients do not wait for the answers.

use std::time::Instant;

use bytes::{BufMut as _, Bytes, BytesMut};
use leasehold_wire::command::Op;
use tokio::io::AsyncWriteExt as _;

use super::Target;
use crate::figures::{Figures, figures};
use crate::wire::{Wire, frame, read};

/// Number of keys in one read. Each key has about 250 bytes, so a read request has 1 MiB.
const KEYS: usize = 4096;
const CONNECTIONS: u64 = 4;
/// Number of requests that are sent on one connection before it is closed.
const REQUESTS: u64 = 3;

/// Sends reads to a replica that holds no lease. Each of 4 clients requests many keys, disconnects
/// without waiting, and connects again.
pub async fn reads(target: &Target) -> anyhow::Result<Figures> {
    let key = |number: usize| Bytes::from(format!("{number:0>250}"));
    let keys: Vec<Bytes> = (0..KEYS).map(key).collect();
    let mut requests = BytesMut::new();
    for id in 1..=REQUESTS {
        requests.put(frame(&read(id, Op::multi_get(keys.clone())))?);
    }
    let (requests, end) = (requests.freeze(), target.end());
    let one = |_| {
        let (address, requests) = (target.clients[1].clone(), requests.clone());
        tokio::task::spawn_local(async move { come_and_go(&address, &requests, end).await })
    };
    let tasks: Vec<_> = (0..CONNECTIONS).map(one).collect();
    let mut sent = 0.0;
    for task in tasks {
        sent += task.await??;
    }
    Ok(figures([("reads_of_1_mib", sent)]))
}

async fn come_and_go(address: &str, requests: &[u8], end: Instant) -> anyhow::Result<f64> {
    let mut sent = 0.0;
    while Instant::now() < end {
        let mut connection = Wire::connect(address).await?.raw();
        // The replica may close the connection before it has read everything.
        if connection.1.write_all(requests).await.is_ok() {
            sent += REQUESTS as f64;
        }
    }
    Ok(sent)
}
