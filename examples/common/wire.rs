//! Messages of attackers, byte by byte: no client library is in their way.

use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::{Bytes, BytesMut};
use leasehold_transport::{FrameReader, FrameWriter};
use leasehold_wire::command::Op;
use leasehold_wire::request::Body;
use leasehold_wire::{Command, Request, Response, Welcome, decode_greeting, encode_frame, hello};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};

/// Longest time that a replica may take for a handshake before the attacker abandons it.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to a replica's client port that was welcomed.
pub struct Wire {
    pub welcome: Welcome,
    pub reader: FrameReader<OwnedReadHalf>,
    pub writer: FrameWriter<OwnedWriteHalf>,
}

impl Wire {
    pub async fn connect(address: &str) -> anyhow::Result<Wire> {
        let stream = TcpStream::connect(address)
            .await
            .with_context(|| format!("connecting to {address}"))?;
        Wire::greet(stream).await
    }

    /// Opens a connection with a small receive buffer: its own system takes few bytes that nobody
    /// reads.
    pub async fn connect_narrow(address: &str) -> anyhow::Result<Wire> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4 << 10)?;
        Wire::greet(socket.connect(address.parse()?).await?).await
    }

    async fn greet(stream: TcpStream) -> anyhow::Result<Wire> {
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        let (mut reader, mut writer) = (FrameReader::new(reader), FrameWriter::new(writer));
        writer.feed(&hello(None))?;
        writer.flush().await?;
        let greeting = tokio::time::timeout(HANDSHAKE_TIMEOUT, reader.next_frame()).await;
        let frame = greeting.context("no greeting came")??;
        match decode_greeting(frame.context("closed instead of a greeting")?)? {
            Ok(welcome) => Ok(Wire {
                welcome,
                reader,
                writer,
            }),
            Err(refusal) => bail!("refused: {}", refusal.message),
        }
    }

    /// Reads and forgets what the replica answers, in a task of its own. Returns the half
    /// that writes.
    pub fn forget_answers(self) -> FrameWriter<OwnedWriteHalf> {
        let mut reader = self.reader;
        tokio::task::spawn_local(
            async move { while let Ok(Some(_)) = reader.next_frame().await {} },
        );
        self.writer
    }

    /// The two halves, to send and read bytes.
    pub fn raw(self) -> RawConnection {
        (self.reader, self.writer.into_inner())
    }

    /// Sends a request and waits for its answer.
    pub async fn ask(&mut self, request: &Request) -> anyhow::Result<Response> {
        self.writer.feed(request)?;
        self.writer.flush().await?;
        let response = self.reader.next::<Response>().await?;
        response.context("closed instead of an answer")
    }
}

/// A connection that is held, however it is used.
pub type RawConnection = (FrameReader<OwnedReadHalf>, OwnedWriteHalf);

/// A read.
pub fn read(id: u64, op: Op) -> Request {
    Request::new(id, Some(Body::Command(op.into())))
}

/// A write of a session of its own life: `opened_ms` is what the welcome said.
pub fn write(id: u64, session: Session, op: Op) -> Request {
    let Session {
        client,
        sequence,
        opened_ms,
    } = session;
    let command = Command::session(client, sequence, sequence, op).opened(opened_ms);
    Request::new(id, Some(Body::Command(command)))
}

/// Session and sequence number that identify a write.
#[derive(Clone, Copy)]
pub struct Session {
    pub client: u64,
    pub sequence: u64,
    pub opened_ms: u64,
}

/// The frame of a request.
pub fn frame(request: &Request) -> anyhow::Result<Bytes> {
    let mut bytes = BytesMut::new();
    encode_frame(request, &mut bytes)?;
    Ok(bytes.freeze())
}

/// A number that no other session has: attackers of one run count in different places.
pub fn session_number(attacker: u64, counter: u64) -> u64 {
    (u64::from(std::process::id()) << 40) ^ (attacker << 32) ^ counter.wrapping_add(1)
}
