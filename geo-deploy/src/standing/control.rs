//! Requests to a supervisor: one line of JSON on a port of this machine, and one line back. A
//! client must know the token. Only the user that started the cluster can read it.

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

/// Timeout for the line of either side. The supervisor does not listen while it starts replicas.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Maximum number of connections that are served at a time; others wait. The descriptors are needed
/// for the WAN.
const CONNECTIONS_MAX: usize = 64;
/// The longest line: a fault that names every site of the largest cluster fits.
const LINE_BYTES_MAX: u64 = 64 << 10;
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Request to a supervisor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ControlRequest {
    /// To confirm that it is there.
    Here,
    /// To end the replicas, and itself.
    Down,
    /// To report the state of its replicas, and the current faults.
    Status,
    /// To begin with a fault now. It ends by itself at `until_s`, counted from now.
    Begin {
        /// The fault to begin.
        fault: FaultSpec,
        /// Key with the holder that `holder` means; the hottest key, if there is none.
        key: Option<String>,
    },
    /// To start replicas that are down.
    Start(Vec<FaultTarget>),
    /// To let paused replicas go on.
    Resume(Vec<FaultTarget>),
    /// To end the faults with these numbers; all, if there are none.
    Heal(Vec<u64>),
}

/// Answer of a supervisor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ControlResponse {
    /// It is done. Each line says something of it.
    Done(Vec<String>),
    /// State of the cluster.
    Status(Overview),
    /// It is not done, and why.
    Refused(String),
}

/// State of a standing cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Overview {
    /// In the topology's order.
    pub nodes: Vec<NodeReport>,
    /// In the order in which they began.
    pub faults: Vec<FaultReport>,
}

/// State of a replica's process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// The site.
    pub site: String,
    /// `up`, `paused`, `ending` or `down`.
    pub state: String,
    /// For how long, in s.
    pub for_s: f64,
    /// If it is down: why, and what comes of it.
    pub why: Option<String>,
    /// The process.
    pub process: Option<u32>,
}

/// A fault that holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FaultReport {
    /// To name it by.
    pub number: u64,
    /// The action and its targets; roles that were asked for in brackets.
    pub text: String,
    /// For how long it has held, in s.
    pub for_s: f64,
    /// When it ends by itself, in s from now.
    pub ends_in_s: Option<f64>,
}

#[derive(Serialize, Deserialize)]
struct Envelope {
    token: String,
    version: String,
    request: ControlRequest,
}

/// Asks the supervisor at this address.
///
/// # Errors
/// If it does not answer in time.
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

/// Request of a client that knows the token.
pub(super) struct PendingRequest {
    pub request: ControlRequest,
    pub reply: ReplySender,
}

/// Where an answer goes.
pub(super) struct ReplySender(OwnedWriteHalf);

impl ReplySender {
    /// Sends the answer. It is no error if the client has disconnected.
    pub async fn send(mut self, response: &ControlResponse) {
        let mut line = serde_json::to_vec(response).unwrap_or_default();
        line.push(b'\n');
        let _ = tokio::time::timeout(ANSWER_WITHIN, self.0.write_all(&line)).await;
    }
}

/// Accepts every connection, for ever. A client without the token gets no answer.
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
            // Too many open files: not again at once.
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
    // The token first: without it, nobody learns what this program understands.
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
