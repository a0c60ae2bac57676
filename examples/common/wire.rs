//! Attackers' connections to replicas. Their messages are built and sent without the client
//! library.

use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::{Bytes, BytesMut};
use leasehold_transport::{FrameReader, FrameWriter};
use leasehold_wire::command::Op;
use leasehold_wire::request::Body;
use leasehold_wire::{Command, Request, Response, Welcome, decode_greeting, encode_frame, hello};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};

/// Longest time that an attacker waits for a handshake to complete.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to a replica's client port. The replica has already sent its welcome.
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

    /// Opens a connection with a small receive buffer. The attacker's operating system can then
    /// store only a few of the bytes that the attacker has not read.
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

    /// Reads the replica's answers in a separate task, and ignores them. Returns the half of the
    /// connection to which requests are written.
    pub fn forget_answers(self) -> FrameWriter<OwnedWriteHalf> {
        let mut reader = self.reader;
        tokio::task::spawn_local(
            async move { while let Ok(Some(_)) = reader.next_frame().await {} },
        );
        self.writer
    }

    /// Returns the two halves of the connection, which receive and send bytes.
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

/// The two halves of a connection that is held open.
pub type RawConnection = (FrameReader<OwnedReadHalf>, OwnedWriteHalf);

/// Builds a read request with the operation `op`.
pub fn read(id: u64, op: Op) -> Request {
    Request::new(id, Some(Body::Command(op.into())))
}

/// Builds a write request with the operation `op`, as part of a new session. The session's
/// `opened_ms` must be the value from the replica's welcome.
pub fn write(id: u64, session: Session, op: Op) -> Request {
    let Session {
        client,
        sequence,
        opened_ms,
    } = session;
    let command = Command::session(client, sequence, sequence, op).opened(opened_ms);
    Request::new(id, Some(Body::Command(command)))
}

/// Identity of a write, which consists of its session and its sequence number.
#[derive(Clone, Copy)]
pub struct Session {
    pub client: u64,
    pub sequence: u64,
    pub opened_ms: u64,
}

/// Returns the bytes of the frame in which a request is sent.
pub fn frame(request: &Request) -> anyhow::Result<Bytes> {
    let mut bytes = BytesMut::new();
    encode_frame(request, &mut bytes)?;
    Ok(bytes.freeze())
}

/// Returns a number for a session. Different values of `attacker` or `counter` give different
/// numbers.
pub fn session_number(attacker: u64, counter: u64) -> u64 {
    (u64::from(std::process::id()) << 40) ^ (attacker << 32) ^ counter.wrapping_add(1)
}
