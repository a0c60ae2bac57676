//! Requests to a running member: lines of JSON on a Unix socket in the member's directory.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

/// Maximum length of a request or an answer, in bytes. A member may own many resources.
const LINE_BYTES_MAX: u64 = 64 << 20;

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
    /// Release a resource.
    Release {
        /// Name of the resource.
        resource: String,
    },
    /// List the leases of the member.
    List,
}

/// Answer of a member.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum LockAnswer {
    /// The member owns the resource.
    Acquired {
        /// Fence token of the lease.
        fence: u64,
        /// Time until the end of the lease if it is not renewed, in ms.
        left_ms: u64,
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

/// Reads a line of JSON. Returns `None` at the end of the connection.
pub async fn read_line<T: for<'a> Deserialize<'a>>(
    reader: &mut (impl tokio::io::AsyncBufRead + Unpin),
) -> anyhow::Result<Option<T>> {
    let mut line = String::new();
    reader.take(LINE_BYTES_MAX).read_line(&mut line).await?;
    if line.is_empty() {
        return Ok(None);
    }
    let value = serde_json::from_str(&line).context("a line that is no request or answer")?;
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

/// Sends a request to the member that runs in `dir`. If the returned future is dropped, the member
/// cancels the request.
pub async fn ask(dir: &Path, request: &LockRequest) -> anyhow::Result<LockAnswer> {
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
    let (reader, mut writer) = stream.into_split();
    write_line(&mut writer, request).await?;
    let answer = read_line(&mut BufReader::new(reader)).await?;
    answer.context("the member has ended, and with it its leases; its log says why")
}
