//! Requests to a supervisor. A request is one line of JSON sent to a port of this machine, and the
//! response is another line. The request must contain the token. Only the user that started the
//! cluster can read the token.

use std::io::{self, BufRead as _, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};

use crate::fault::{FaultSpec, FaultTarget};

/// Timeout for reading or writing a line, both in the supervisor and in its clients.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Maximum number of connections that are served at the same time; other connections wait. There is
/// a limit because connections use file descriptors, which the emulated network also needs.
const CONNECTIONS_MAX: usize = 64;
/// Maximum length of a request, in bytes. This length is enough for a fault that targets every site
/// of the largest cluster.
const LINE_BYTES_MAX: u64 = 64 << 10;
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Request to a supervisor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ControlRequest {
    /// Confirm that the supervisor runs.
    Here,
    /// End the replicas and the supervisor.
    Down,
    /// Report the state of the replicas, and the current faults.
    Status,
    /// Begin a fault now. If the fault has a time `until_s`, the fault ends by itself after this
    /// number of seconds.
    Begin {
        /// The fault to begin.
        fault: FaultSpec,
        /// Key that determines the targets with the role `holder`: such a target is a holder of
        /// this key. `None` means the hottest key.
        key: Option<String>,
    },
    /// Start replicas that are down.
    Start(Vec<FaultTarget>),
    /// Resume paused replicas.
    Resume(Vec<FaultTarget>),
    /// End the faults with these IDs. If the list is empty, end all faults.
    Heal(Vec<u64>),
}

/// Response of a supervisor to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ControlResponse {
    /// The request was carried out. Each line describes a result.
    Done(Vec<String>),
    /// State of the cluster.
    Status(Overview),
    /// The request was refused. The text is the reason.
    Refused(String),
}

/// State of a standing cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Overview {
    /// States of the replicas' processes, in the topology's order.
    pub nodes: Vec<NodeReport>,
    /// Current faults, in the order in which they began.
    pub faults: Vec<FaultReport>,
}

/// State of a replica's process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Name of the site.
    pub site: String,
    /// State of the process: `up`, `paused`, `ending` or `down`.
    pub state: String,
    /// Time since the process entered this state, in s.
    pub for_s: f64,
    /// Text that explains why the process is down, and whether it will be started again; `None` if
    /// the process is not down.
    pub why: Option<String>,
    /// Identifier of the process; `None` if the process is down.
    pub process: Option<u32>,
}

/// An active fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FaultReport {
    /// ID of the fault. A request to heal the fault contains this ID.
    pub number: u64,
    /// Action and targets of the fault. If the request named a role, the role is in brackets.
    pub text: String,
    /// Time since the fault began, in s.
    pub for_s: f64,
    /// Time until the fault ends by itself, in s; `None` if the fault lasts until a request ends
    /// it.
    pub ends_in_s: Option<f64>,
}

#[derive(Serialize, Deserialize)]
struct Envelope {
    token: String,
    version: String,
    request: ControlRequest,
}

/// Sends a request to the supervisor at this address.
///
/// # Errors
/// If the supervisor does not answer in time.
pub(super) fn ask(
    control: SocketAddr,
    token: &str,
    request: ControlRequest,
    within: Duration,
) -> io::Result<ControlResponse> {
    let mut stream = std::net::TcpStream::connect_timeout(&control, ANSWER_WITHIN)?;
    stream.set_read_timeout(Some(within))?;
    let envelope = Envelope {
        token: token.to_owned(),
        version: VERSION.to_owned(),
        request,
    };
    let mut line = serde_json::to_vec(&envelope)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = String::new();
    io::BufReader::new(stream).read_line(&mut answer)?;
    Ok(serde_json::from_str(&answer)?)
}

/// Request of a client that sent the correct token, and the sender for the response to it.
pub(super) struct PendingRequest {
    pub request: ControlRequest,
    pub reply: ReplySender,
}

/// Sender for the response to one request.
pub(super) struct ReplySender(OwnedWriteHalf);

impl ReplySender {
    /// Sends the response. It is no error if the client has disconnected.
    pub async fn send(mut self, response: &ControlResponse) {
        let mut line = serde_json::to_vec(response).unwrap_or_default();
        line.push(b'\n');
        let _ = tokio::time::timeout(ANSWER_WITHIN, self.0.write_all(&line)).await;
    }
}

/// Accepts connections for ever. A client without the token gets no response.
pub(super) async fn listen(
    control: TcpListener,
    token: String,
    requests: mpsc::Sender<PendingRequest>,
) {
    let connection_slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(slot) = connection_slots.clone().acquire_owned().await else {
            return; // it is never closed
        };
        let Ok((stream, _)) = control.accept().await else {
            // There may be too many open files, so an immediate retry would fail, too.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let (token, requests) = (token.clone(), requests.clone());
        tokio::spawn(async move {
            let _slot = slot;
            let outcome = tokio::time::timeout(ANSWER_WITHIN, read_request(stream, &token)).await;
            match outcome {
                Ok(Ok(request)) => drop(requests.send(request).await),
                Ok(Err(error)) => tracing::debug!(%error, "the control port was misused"),
                Err(_) => {}
            }
        });
    }
}

async fn read_request(stream: TcpStream, token: &str) -> anyhow::Result<PendingRequest> {
    let (from, to) = stream.into_split();
    let mut line = String::new();
    let mut from = tokio::io::BufReader::new(from.take(LINE_BYTES_MAX));
    from.read_line(&mut line).await?;
    // The token is checked first. A client without it must not learn which requests are understood.
    #[derive(Deserialize)]
    struct Head {
        token: String,
        version: String,
    }
    let head: Head = serde_json::from_str(&line).context("no request")?;
    if head.token != token {
        bail!("another token");
    }
    let reply = ReplySender(to);
    if head.version != VERSION {
        let words = format!(
            "this cluster was started by leasehold {VERSION}, and this is {}: use that program",
            head.version
        );
        reply.send(&ControlResponse::Refused(words)).await;
        bail!("another version");
    }
    match serde_json::from_str::<Envelope>(&line) {
        Ok(envelope) => Ok(PendingRequest {
            request: envelope.request,
            reply,
        }),
        Err(error) => {
            let words = format!("the supervisor does not understand the request: {error}");
            reply.send(&ControlResponse::Refused(words)).await;
            Err(error).context("a request that is not understood")
        }
    }
}
