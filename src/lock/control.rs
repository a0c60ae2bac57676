//! Requests to a running member: lines of JSON on a Unix socket in the member's directory.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// Maximum length of a request, in bytes. The longest name of a resource takes 1,536 bytes as JSON.
pub const REQUEST_BYTES_MAX: u64 = 8 << 10;
/// Maximum length of an answer, in bytes. A member may own many resources.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Request to a member.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum LockRequest {
    /// Acquire a resource.
    Acquire {
        /// Name of the resource.
        resource: String,
        /// Time to wait if another member owns the resource, in ms; none to wait forever.
        wait_ms: Option<u64>,
    },
    /// Acquire a resource for the program at the other end of this connection.
    Hold {
        /// Name of the resource.
        resource: String,
        /// Time to wait if another member owns the resource, in ms; none to wait forever.
        wait_ms: Option<u64>,
    },
    /// Tell whether the lease of this connection is valid.
    Check,
    /// Release the lease of this connection.
    ReleaseHeld,
    /// Release a resource.
    Release {
        /// Name of the resource.
        resource: String,
    },
    /// Release a resource in favour of a member.
    HandOver {
        /// Name of the resource.
        resource: String,
        /// Name of the member.
        to: String,
    },
    /// Find the owner of a resource.
    Owner {
        /// Name of the resource.
        resource: String,
    },
    /// List the leases of the member.
    List,
}

/// Answer of a member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum LockAnswer {
    /// The member owns the resource.
    Acquired {
        /// Fence token of the lease.
        fence: u64,
        /// Time until the end of the lease if it is not renewed, in ms.
        left_ms: u64,
    },
    /// The member owns the resource for the program at the other end of this connection.
    Held {
        /// Fence token of the lease.
        fence: u64,
        /// Time before the end of the lease at which the program should stop, in ms.
        warn_ms: u64,
    },
    /// The lease of this connection is valid.
    Valid {
        /// Time until the end of the lease if it is not renewed, in ms.
        left_ms: u64,
    },
    /// The lease of this connection is lost.
    Lost {
        /// The reason.
        message: String,
        /// Whether the program must stop at once, because a clock is wrong.
        is_clock_wrong: bool,
    },
    /// Nobody owns the resource.
    Free,
    /// A member owns the resource.
    Owned {
        /// Name of the owner.
        owner: String,
        /// Fence token of its lease.
        fence: u64,
        /// Time until the end of the lease, at most, if it is not renewed, in ms.
        at_most_ms: u64,
    },
    /// The member has released the resource.
    Released {
        /// Time after which others can acquire it, in ms; none if they can now.
        ends_in_ms: Option<u64>,
    },
    /// Leases of the member.
    Leases {
        /// All leases, by the names of their resources.
        leases: Vec<LockLine>,
    },
    /// Another member owns the resource.
    Taken {
        /// Description of the owner.
        message: String,
    },
    /// The request was refused.
    Refused {
        /// The reason.
        message: String,
    },
}

/// Lease of a member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LockLine {
    /// Name of the resource.
    pub resource: String,
    /// Fence token of the lease.
    pub fence: u64,
    /// Time until the end of the lease if it is not renewed, in ms.
    pub left_ms: u64,
}

/// Returns the path of the socket in a member's directory.
pub fn socket(dir: &Path) -> PathBuf {
    dir.join("control.sock")
}

/// Reads a line of JSON. Returns `None` at the end of the connection. `line` holds the beginning of
/// the line if an earlier call was dropped, and is empty otherwise.
pub async fn read_line<T: for<'a> Deserialize<'a>>(
    reader: &mut (impl tokio::io::AsyncBufRead + Unpin),
    bytes_max: u64,
    line: &mut Vec<u8>,
) -> anyhow::Result<Option<T>> {
    let left = bytes_max.saturating_sub(line.len() as u64);
    reader.take(left).read_until(b'\n', line).await?;
    if line.is_empty() {
        return Ok(None);
    }
    if !line.ends_with(b"\n") {
        bail!("a line that is longer than {bytes_max} bytes, or incomplete");
    }
    let value = serde_json::from_slice(line).context("a line that is no request or answer")?;
    line.clear();
    Ok(Some(value))
}

/// Writes a line of JSON.
pub async fn write_line(
    writer: &mut (impl tokio::io::AsyncWrite + Unpin),
    value: &impl Serialize,
) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(writer.write_all(&line).await?)
}

/// Connection to a running member. If it is dropped, the member cancels a request that waits.
pub struct ControlConnection {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    /// Beginning of the next answer.
    line: Vec<u8>,
    /// Number of requests without an answer. It exceeds 1 if a caller has dropped
    /// [`ask`](ControlConnection::ask).
    unanswered: u32,
}

impl ControlConnection {
    /// Connects to the member that runs in `dir`.
    pub async fn open(dir: &Path) -> anyhow::Result<ControlConnection> {
        let path = socket(dir);
        let stream = match UnixStream::connect(&path).await {
            Ok(stream) => stream,
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::ConnectionRefused
                ) =>
            {
                bail!(
                    "{}: no member runs there: start it with `leasehold lock serve --dir {}`",
                    path.display(),
                    dir.display()
                )
            }
            Err(error) => {
                return Err(error).with_context(|| format!("connecting to {}", path.display()));
            }
        };
        let (reader, writer) = stream.into_split();
        let reader = BufReader::new(reader);
        Ok(ControlConnection {
            reader,
            writer,
            line: Vec::new(),
            unanswered: 0,
        })
    }

    /// Sends a request, and waits for its answer.
    pub async fn ask(&mut self, request: &LockRequest) -> anyhow::Result<LockAnswer> {
        self.unanswered += 1;
        write_line(&mut self.writer, request).await?;
        loop {
            let answer = read_line(&mut self.reader, ANSWER_BYTES_MAX, &mut self.line).await?;
            let answer =
                answer.context("the member has ended, and with it its leases; its log says why")?;
            self.unanswered -= 1;
            if self.unanswered == 0 {
                return Ok(answer);
            }
        }
    }
}

/// Sends one request to the member that runs in `dir`. If the returned future is dropped, the member
/// cancels the request.
pub async fn ask(dir: &Path, request: &LockRequest) -> anyhow::Result<LockAnswer> {
    ControlConnection::open(dir).await?.ask(request).await
}
