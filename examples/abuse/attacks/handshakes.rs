//! Bytes that are sent before a handshake, or in place of one.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::{BufMut as _, Bytes, BytesMut};
use leasehold_client::Client;
use leasehold_wire::{encode_frame, hello};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{sleep_until, timeout};

use super::Target;
use crate::cluster::options;
use crate::figures::{Figures, figures};

/// Time within which a replica must end an unfinished handshake: 5 s, plus one second because the
/// machine may be busy.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(6);
/// Number of silent connections to each port.
const SILENT: usize = 20;
/// Beginning of a TLS record of 512 bytes, which is never completed.
const HALF_RECORD: &[u8] = &[0x16, 3, 1, 2, 0, 1, 0];
/// Number of complete handshakes per second at each client port.
const HANDSHAKES_A_SECOND: u64 = 100;
/// Number of connections that are opened per second. Each connection sends something other than a
/// hello.
const CONNECTS_A_SECOND: u64 = 500;

/// Opens connections that send nothing, and connections that send an overlong hello.
pub async fn silent_and_long(target: &Target) -> anyhow::Result<Figures> {
    let silent = hold(target, b"");
    let mut read = 0.0;
    for address in &target.clients {
        read += f64::from(u8::from(long_hello_is_read(address).await?));
    }
    Ok(figures([
        ("silent_open_after_6_s", open(silent).await?),
        ("long_hellos_read", read),
    ]))
}

/// Opens connections to every port. Each connection sends only `sent`, and has a task of its own.
/// The result of a task is true if the replica has not closed the connection in time.
fn hold(target: &Target, sent: &'static [u8]) -> Vec<JoinHandle<bool>> {
    let ports = target.clients.iter().chain(&target.peers);
    let each = ports.flat_map(|port| std::iter::repeat_n(port.clone(), SILENT));
    let connections =
        each.map(|port| tokio::task::spawn_local(async move { is_left_open(&port, sent).await }));
    connections.collect()
}

async fn open(connections: Vec<JoinHandle<bool>>) -> anyhow::Result<f64> {
    let mut open = 0.0;
    for task in connections {
        open += f64::from(u8::from(task.await?));
    }
    Ok(open)
}

/// Sends TLS records that are never completed. At the same time, completes handshakes at a fixed
/// rate.
pub async fn tls(target: &Target) -> anyhow::Result<Figures> {
    let end = target.end();
    let half = hold(target, HALF_RECORD);
    let pause = Duration::from_micros(1_000_000 / HANDSHAKES_A_SECOND);
    let mut due = tokio::time::Instant::now();
    let (begun, done) = (Cell::new(0.0), Rc::new(Cell::new(0.0)));
    while Instant::now() < end {
        sleep_until(due).await;
        due += pause;
        for address in &target.clients {
            begun.set(begun.get() + 1.0);
            let (options, done) = (options(address, target.authority.as_deref())?, done.clone());
            tokio::task::spawn_local(async move {
                if let Ok(client) = Client::connect(options).await {
                    done.set(done.get() + 1.0);
                    client.close();
                }
            });
        }
    }
    Ok(figures([
        ("half_open_after_6_s", open(half).await?),
        ("handshakes_begun", begun.get()),
        ("handshakes_done", done.get()),
    ]))
}

/// Returns true if a connection that sends only `sent` is still open after the time for a
/// handshake.
async fn is_left_open(address: &str, sent: &[u8]) -> bool {
    let Ok(mut stream) = TcpStream::connect(address).await else {
        return false;
    };
    if stream.write_all(sent).await.is_err() {
        return false;
    }
    let mut received = Vec::new();
    timeout(HANDSHAKE_WITHIN, stream.read_to_end(&mut received))
        .await
        .is_err()
}

/// Returns true if the replica welcomes a hello of 5 KiB. The hello is this long because it
/// contains an unknown field.
async fn long_hello_is_read(address: &str) -> anyhow::Result<bool> {
    let mut short = BytesMut::new();
    encode_frame(&hello(None), &mut short)?;
    let mut long = BytesMut::new();
    let padding = 5 << 10;
    long.put_u32((short.len() - 4 + 3 + padding) as u32);
    long.put(&short[4..]);
    // Field 15, a string: its tag, and its length in two bytes.
    long.put_slice(&[0x7a, 0x80 | (padding & 0x7f) as u8, (padding >> 7) as u8]);
    long.put_bytes(b'p', padding);
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(&long).await?;
    let mut answer = BytesMut::new();
    let _ = timeout(Duration::from_secs(2), stream.read_buf(&mut answer)).await;
    let answer = leasehold_wire::split_frame(&mut answer).ok().flatten();
    let greeting = answer.map(leasehold_wire::decode_greeting);
    Ok(matches!(greeting, Some(Ok(Ok(_)))))
}

/// Opens connections at a fixed rate, to all ports in turn. Each connection sends something other
/// than a hello.
pub async fn connects(target: &Target) -> anyhow::Result<Figures> {
    let end = target.end();
    let ports: Vec<&String> = target.clients.iter().chain(&target.peers).collect();
    let noise = Bytes::from_static(b"GET / HTTP/1.1\r\nHost: quillwort\r\n\r\n");
    let pause = Duration::from_micros(1_000_000 / CONNECTS_A_SECOND);
    let mut due = tokio::time::Instant::now();
    let mut begun = 0_u64;
    while Instant::now() < end {
        sleep_until(due).await;
        due += pause;
        let port = ports[begun as usize % ports.len()].clone();
        begun += 1;
        let noise = noise.clone();
        tokio::task::spawn_local(async move {
            let mut stream = TcpStream::connect(port).await?;
            stream.write_all(&noise).await?;
            let mut received = Vec::new();
            stream.read_to_end(&mut received).await
        });
    }
    Ok(figures([("connections", begun as f64)]))
}
