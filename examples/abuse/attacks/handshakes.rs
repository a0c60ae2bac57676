//! What comes before a handshake, and instead of one.

use std::time::{Duration, Instant};

use bytes::{BufMut as _, Bytes, BytesMut};
use client::wire::{encode_frame, hello};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep_until, timeout};

use super::Target;
use crate::figures::{Figures, figures};

/// A handshake may take 5 s; a second more for a machine that is busy.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(6);
/// Silent connections at each port.
const SILENT: usize = 20;
/// Connections a second that send what is no hello.
const CONNECTS_A_SECOND: u64 = 500;

/// Connections that say nothing, and hellos that are longer than a hello may be.
pub async fn silent_and_long(target: &Target) -> anyhow::Result<Figures> {
    let ports = target.clients.iter().chain(&target.peers);
    let silent = ports.flat_map(|port| std::iter::repeat_n(port.clone(), SILENT));
    let silent =
        silent.map(|port| tokio::task::spawn_local(async move { is_left_open(&port).await }));
    let silent: Vec<_> = silent.collect();
    let mut read = 0.0;
    for address in &target.clients {
        read += f64::from(u8::from(long_hello_is_read(address).await?));
    }
    let mut open = 0.0;
    for task in silent {
        open += f64::from(u8::from(task.await?));
    }
    Ok(figures([
        ("silent_open_after_6_s", open),
        ("long_hellos_read", read),
    ]))
}

/// Whether a connection that says nothing is open when the time for a handshake is over.
async fn is_left_open(address: &str) -> bool {
    let Ok(mut stream) = TcpStream::connect(address).await else {
        return false;
    };
    let mut told = Vec::new();
    timeout(HANDSHAKE_WITHIN, stream.read_to_end(&mut told))
        .await
        .is_err()
}

/// Whether a hello of 5 KiB is welcomed: a field that nobody knows makes it so long.
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
    let answer = client::wire::split_frame(&mut answer).ok().flatten();
    let greeting = answer.map(client::wire::decode_greeting);
    Ok(matches!(greeting, Some(Ok(Ok(_)))))
}

/// Connections that send what is no hello, at a fixed rate, on all ports in turn.
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
            let mut told = Vec::new();
            stream.read_to_end(&mut told).await
        });
    }
    Ok(figures([("connections", begun as f64)]))
}
