//! Clients that alternately request small and large values, and read no answers. Encrypted answers
//! wait to be sent, and further answers are appended to them.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::{Bytes, BytesMut};
use leasehold_transport::tls::{Trust, handshake};
use leasehold_wire::command::Op;
use leasehold_wire::{encode_frame, hello};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use super::Target;
use super::memory::put_all;
use crate::figures::{Figures, figures};
use crate::wire::read;

/// Number of connections that are open at the same time.
const CONNECTIONS: u64 = 8;
/// Time for which each connection sends requests.
const SENDS_FOR: Duration = Duration::from_secs(1);
/// Interval between two bursts of requests on a connection.
const BURST_EVERY: Duration = Duration::from_millis(20);
/// Number of requests in a burst.
const BURST: u64 = 50;
/// One request in this number of requests reads the large value. All other requests read a key that
/// does not exist.
const LARGE_ONE_IN: u64 = 10;
const LARGE_BYTES: usize = 100_000;
/// Maximum number of bytes of a handshake.
const HANDSHAKE_BYTES: usize = 64 << 10;

/// Runs the attack. If the replicas have certificates, the attack uses TLS.
pub async fn over_tls(target: &Target) -> anyhow::Result<Figures> {
    let trust = target.authority.as_deref().map(Trust::load).transpose()?;
    if target.preparing {
        return prepare(target, trust).await;
    }
    let end = target.end();
    let one = |number| {
        let places = target.clients.len() as u64;
        let address = target.clients[(number % places) as usize].clone();
        let trust = trust.clone();
        tokio::task::spawn_local(async move { again(&address, trust.as_ref(), end).await })
    };
    let tasks: Vec<_> = (0..CONNECTIONS).map(one).collect();
    let (mut connections, mut requests) = (0.0, 0.0);
    for task in tasks {
        let (made, sent) = task.await??;
        connections += made;
        requests += sent;
    }
    Ok(figures([
        ("connections", connections),
        ("requests", requests),
    ]))
}

async fn prepare(target: &Target, trust: Option<Trust>) -> anyhow::Result<Figures> {
    let value = Bytes::from(vec![b'u'; LARGE_BYTES]);
    if trust.is_none() {
        let entry = std::iter::once(("large".to_owned(), value));
        put_all(&target.clients[0], entry).await?;
        return Ok(Figures::new());
    }
    let options = crate::cluster::options(&target.clients[0], target.authority.as_deref())?;
    let client = leasehold_client::Client::connect(options).await?;
    client.put("large", value).await?;
    Ok(Figures::new())
}

/// Opens one connection after another until `end`. Returns the number of connections and the number
/// of requests.
async fn again(address: &str, trust: Option<&Trust>, end: Instant) -> anyhow::Result<(f64, f64)> {
    let (mut connections, mut requests) = (0.0, 0.0);
    while Instant::now() < end {
        // A replica that has ended is detected by other checks.
        match ask(address, trust).await {
            Ok(sent) => {
                connections += 1.0;
                requests += sent;
            }
            Err(_) => sleep(BURST_EVERY).await,
        }
    }
    Ok((connections, requests))
}

async fn ask(address: &str, trust: Option<&Trust>) -> anyhow::Result<f64> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4 << 10)?;
    let mut stream = socket.connect(address.parse()?).await?;
    stream.set_nodelay(true)?;
    let mut tls = match trust {
        Some(trust) => {
            let connection = trust.connection(None).map_err(anyhow::Error::msg)?;
            Some(handshake(&stream, connection.into(), HANDSHAKE_BYTES).await?)
        }
        None => None,
    };
    let mut plain = BytesMut::new();
    encode_frame(&hello(None), &mut plain)?;
    let (until, mut id) = (Instant::now() + SENDS_FOR, 0);
    while Instant::now() < until {
        for _ in 0..BURST {
            id += 1;
            let key = match id % LARGE_ONE_IN {
                0 => "large",
                _ => "there is none",
            };
            encode_frame(&read(id, Op::get(key)), &mut plain)?;
        }
        let mut sent = Vec::new();
        match &mut tls {
            Some(tls) => {
                std::io::Write::write_all(&mut tls.writer(), &plain)?;
                while tls.wants_write() {
                    tls.write_tls(&mut sent)?;
                }
            }
            None => sent.extend_from_slice(&plain),
        }
        plain.clear();
        if !is_taken(&mut stream, &sent).await.context("sending")? {
            break;
        }
        sleep(BURST_EVERY).await;
    }
    Ok(id as f64)
}

/// Sends the bytes. Returns false if the replica does not read them in time.
async fn is_taken(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<bool> {
    match timeout(SENDS_FOR, stream.write_all(bytes)).await {
        Ok(sent) => sent.map(|()| true),
        Err(_) => Ok(false),
    }
}
