//! A client of one replica. It is cheap to clone: all clones share one connection and
//! one session. Every caller may have an operation in flight.
//!
//! Operations are sent again after a failure. A read may always be repeated; a write is
//! repeated under the same (client, sequence), so that it is executed once. All attempts together are bounded by
//! the request timeout.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::task::AbortHandle;

use crate::connection::{self, Backoff, CallError, Connection};
use crate::error::Error;
use crate::session::{Session, Ticket};
use crate::wire::command::Op;
use crate::wire::request::Body;
use crate::wire::{
    Command, Entry, ErrorCode, Field, KeyValue, MoveRequest, Outcome, Path, Response, StatusReply,
    StatusRequest, Value, Version, Welcome, outcome, validate_op,
};

/// How to reach a replica, and how long to wait for it.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// `host:port` of a replica's client port.
    pub address: String,
    /// Refuse to talk to any other cluster than this one.
    pub cluster: Option<String>,
    /// For a connection and its handshake; default 5 s.
    pub connect_timeout: Duration,
    /// For an operation, all its attempts and the pauses between them included;
    /// default 10 s.
    pub request_timeout: Duration,
    /// How often an operation is attempted again after the connection broke or
    /// the server was unavailable; default 32.
    pub retries: u32,
}

impl ClientOptions {
    /// The defaults, for the replica at `address` (`host:port`).
    pub fn new(address: impl Into<String>) -> Self {
        ClientOptions {
            address: address.into(),
            cluster: None,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(10),
            retries: 32,
        }
    }
}

/// The result of a command, and how the replica came by it.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// Never an error: those are [`Error::Refused`].
    pub outcome: Outcome,
    /// How a read was served; `Log` or `Unspecified` for a write.
    pub path: Path,
    /// The name of the replica that answered.
    pub replica: Arc<str>,
}

/// What a compare-and-swap did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Swap {
    /// The value is written, under this version.
    Written(Version),
    /// Nothing is written: the key has this version, or (`None`) does not exist.
    Mismatch(Option<Version>),
}

/// A handle to one connection. Dropping the last one closes it.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("options", &self.inner.options)
            .finish_non_exhaustive()
    }
}

struct Inner {
    options: ClientOptions,
    connection: Arc<Connection>,
    session: Mutex<Session>,
    task: AbortHandle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Client {
    /// Connects to a replica. Later breaks of the connection are healed in the
    /// background; this first attempt is not repeated.
    ///
    /// # Errors
    /// `Connect`, `WrongCluster`.
    pub async fn connect(options: ClientOptions) -> Result<Client, Error> {
        let link = connection::connect(&options).await?;
        let (connection, task) = Connection::new(options.clone(), link);
        let opened_ms = connection.welcome().log_time_ms;
        let inner = Inner {
            options,
            connection,
            session: Mutex::new(Session::new(opened_ms)),
            task: tokio::spawn(task).abort_handle(),
        };
        Ok(Client {
            inner: Arc::new(inner),
        })
    }

    /// What the replica said of itself when the connection was last made.
    pub fn welcome(&self) -> Welcome {
        self.inner.connection.welcome()
    }

    /// Ends the connection and everything in flight on it, for all clones.
    pub fn close(&self) {
        self.inner.connection.close();
        self.inner.task.abort();
    }

    /// Executes one command and waits for its result.
    ///
    /// # Errors
    /// `Timeout`, `Lost`, `Refused`, `Protocol`, `Closed`; see
    /// [`Error::may_have_taken_effect`] for what a failed write leaves behind.
    pub async fn execute(&self, op: Op) -> Result<Reply, Error> {
        validate_op(&op).map_err(|refusal| refused(&refusal, false))?;
        let sent = AtomicBool::new(false);
        let work = self.execute_once(op, &sent);
        self.within_timeout(work, &sent).await
    }

    /// The value of one key, `None` if there is no such key.
    ///
    /// # Errors
    /// As [`Client::execute`].
    pub async fn get(&self, key: impl Into<Bytes>) -> Result<Option<Value>, Error> {
        match self.result(Op::get(key)).await? {
            outcome::Result::Value(value) => Ok(Some(value)),
            outcome::Result::Missing(_) => Ok(None),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Writes one key.
    ///
    /// # Errors
    /// As [`Client::execute`].
    pub async fn put(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
    ) -> Result<Version, Error> {
        self.written(Op::put(key, value)).await
    }

    /// Removes one key, if it exists.
    ///
    /// # Errors
    /// As [`Client::execute`].
    pub async fn delete(&self, key: impl Into<Bytes>) -> Result<Version, Error> {
        self.written(Op::delete(key)).await
    }

    /// Writes `value` if the key's version is `expected` (`None`: if absent).
    ///
    /// # Errors
    /// As [`Client::execute`].
    pub async fn cas(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        expected: Option<Version>,
    ) -> Result<Swap, Error> {
        match self.result(Op::cas(key, value, expected)).await? {
            outcome::Result::Written(version) => Ok(Swap::Written(version)),
            outcome::Result::Mismatch(mismatch) => Ok(Swap::Mismatch(mismatch.actual)),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Merges named fields into the record at `key`, creating it if absent.
    ///
    /// # Errors
    /// As [`Client::execute`].
    pub async fn put_fields(
        &self,
        key: impl Into<Bytes>,
        fields: Vec<Field>,
    ) -> Result<Version, Error> {
        self.written(Op::put_fields(key, fields)).await
    }

    /// Those of `keys` that exist, in the order asked, at one moment.
    ///
    /// # Errors
    /// As [`Client::execute`].
    pub async fn multi_get(&self, keys: Vec<Bytes>) -> Result<Vec<Entry>, Error> {
        self.entries(Op::multi_get(keys)).await
    }

    /// Writes several keys at one moment.
    ///
    /// # Errors
    /// As [`Client::execute`].
    pub async fn multi_put(&self, entries: Vec<KeyValue>) -> Result<Version, Error> {
        self.written(Op::multi_put(entries)).await
    }

    /// Up to `limit` entries with `from <= key`, and `key < to` unless `to` is
    /// empty, in key order, at one moment.
    ///
    /// # Errors
    /// As [`Client::execute`].
    pub async fn scan(
        &self,
        from: impl Into<Bytes>,
        to: impl Into<Bytes>,
        limit: u32,
    ) -> Result<Vec<Entry>, Error> {
        self.entries(Op::scan(from, to, limit)).await
    }

    /// What the replica knows of itself and of its cluster.
    ///
    /// # Errors
    /// As [`Client::execute`].
    pub async fn status(&self) -> Result<StatusReply, Error> {
        self.status_about(StatusRequest::default()).await
    }

    /// As [`Client::status`], and who holds `key`, or the hottest key that the replica
    /// knows. The leader knows it, if the strategy counts what clients ask for.
    ///
    /// # Errors
    /// As [`Client::execute`].
    pub async fn status_and_holders(&self, key: Option<&[u8]>) -> Result<StatusReply, Error> {
        self.status_about(StatusRequest {
            holders: true,
            key: Bytes::copy_from_slice(key.unwrap_or_default()),
        })
        .await
    }

    /// Moves leadership to the replica called `to`, and waits until it leads. Any replica
    /// passes this on. Returns the status of the replica that was asked.
    ///
    /// # Errors
    /// As [`Client::execute`]. `Refused` says why leadership did not move.
    pub async fn move_leadership(&self, to: &str) -> Result<StatusReply, Error> {
        self.status_of(Body::Move(MoveRequest { to: to.to_owned() }))
            .await
    }

    async fn status_about(&self, request: StatusRequest) -> Result<StatusReply, Error> {
        self.status_of(Body::Status(request)).await
    }

    async fn status_of(&self, body: Body) -> Result<StatusReply, Error> {
        let sent = AtomicBool::new(false);
        let work = async {
            let response = self.attempt(body, &sent).await?;
            match response.status {
                Some(status) => Ok(status),
                None => Err(self.violated("the response holds no status")),
            }
        };
        self.within_timeout(work, &sent).await
    }

    async fn within_timeout<T>(
        &self,
        work: impl Future<Output = Result<T, Error>>,
        sent: &AtomicBool,
    ) -> Result<T, Error> {
        let after = self.inner.options.request_timeout;
        match tokio::time::timeout(after, work).await {
            Ok(result) => result,
            Err(_) => {
                self.inner.connection.suspect(after);
                let sent = sent.load(Ordering::Relaxed);
                Err(Error::Timeout { after, sent })
            }
        }
    }

    /// Executes a command under one identity. If its session refuses the only attempt,
    /// once more under the identity of a new session.
    ///
    /// The command is not executed twice. The replica answers by the first copy in the
    /// log, so no copy was executed before the refused one. And a refusal is final: no
    /// later copy is executed either. After more attempts than one an earlier attempt may
    /// have been executed, and its answer lost.
    async fn execute_once(&self, op: Op, sent: &AtomicBool) -> Result<Reply, Error> {
        if !op.is_write() {
            return self.reply(self.attempt(Body::Command(op.into()), sent).await?);
        }
        match self.attempt_write(&op, sent).await {
            Err(Error::Refused {
                code: ErrorCode::SessionExpired,
                resent: false,
                ..
            }) => {
                // What was refused for good leaves no doubt behind.
                sent.store(false, Ordering::Relaxed);
                self.reply(self.attempt_write(&op, sent).await?)
            }
            result => self.reply(result?),
        }
    }

    async fn attempt_write(&self, op: &Op, sent: &AtomicBool) -> Result<Response, Error> {
        let issued = self.issue();
        let Ticket {
            client,
            sequence,
            acked_below,
            opened_ms,
        } = issued.ticket;
        let command = Command::session(client, sequence, acked_below, op.clone());
        let command = command.opened(opened_ms);
        let result = self.attempt(Body::Command(command), sent).await;
        if let Err(Error::Refused {
            code: ErrorCode::SessionExpired,
            log_time_ms,
            ..
        }) = &result
        {
            self.session().renew(issued.ticket, *log_time_ms);
        }
        result
    }

    /// Sends a request until there is an answer that would be the same at every attempt.
    async fn attempt(&self, body: Body, sent: &AtomicBool) -> Result<Response, Error> {
        let mut backoff = Backoff::new();
        let mut attempts = 0;
        loop {
            let result = self.inner.connection.call(body.clone(), sent).await;
            attempts += 1;
            let error = match result.map(refusal) {
                Ok(Ok(response)) => return Ok(response),
                Ok(Err(error)) => refused(&error, attempts > 1),
                Err(CallError::Closed) => return Err(Error::Closed),
                Err(CallError::Lost { reason }) => Error::Lost {
                    address: self.inner.options.address.clone(),
                    attempts,
                    reason,
                },
            };
            let again = attempts <= self.inner.options.retries;
            match error {
                // The next call waits for the next connection, which is pause enough.
                Error::Lost { .. } if again => {}
                Error::Refused {
                    code: ErrorCode::Unavailable,
                    ..
                } if again => tokio::time::sleep(backoff.pause()).await,
                error => return Err(error),
            }
        }
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        let session = &self.inner.session;
        session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn issue(&self) -> Issued<'_> {
        let ticket = self.session().issue();
        Issued {
            client: self,
            ticket,
        }
    }

    fn reply(&self, response: Response) -> Result<Reply, Error> {
        let path = response.path();
        match response.outcome {
            Some(outcome) if outcome.result.is_some() => Ok(Reply {
                outcome,
                path,
                replica: self.inner.connection.replica(),
            }),
            _ => Err(self.violated("the response holds no outcome")),
        }
    }

    async fn result(&self, op: Op) -> Result<outcome::Result, Error> {
        let result = self.execute(op).await?.outcome.result;
        result.ok_or_else(|| self.violated("the response holds no outcome"))
    }

    async fn written(&self, op: Op) -> Result<Version, Error> {
        match self.result(op).await? {
            outcome::Result::Written(version) => Ok(version),
            other => Err(self.unexpected(&other)),
        }
    }

    async fn entries(&self, op: Op) -> Result<Vec<Entry>, Error> {
        match self.result(op).await? {
            outcome::Result::Entries(entries) => Ok(entries.entries),
            other => Err(self.unexpected(&other)),
        }
    }

    fn unexpected(&self, result: &outcome::Result) -> Error {
        let kind = match result {
            outcome::Result::Written(_) => "written",
            outcome::Result::Value(_) => "value",
            outcome::Result::Missing(_) => "missing",
            outcome::Result::Mismatch(_) => "mismatch",
            outcome::Result::Entries(_) => "entries",
            outcome::Result::Error(_) => "error",
        };
        self.violated(format!("{kind:?} is not an answer to this operation"))
    }

    fn violated(&self, message: impl Into<String>) -> Error {
        Error::Protocol {
            address: self.inner.options.address.clone(),
            message: message.into(),
        }
    }
}

/// A ticket in use; settled when its operation ends, however it ends.
struct Issued<'a> {
    client: &'a Client,
    ticket: Ticket,
}

impl Drop for Issued<'_> {
    fn drop(&mut self) {
        self.client.session().settle(self.ticket);
    }
}

/// Splits refusals from answers.
fn refusal(response: Response) -> Result<Response, crate::wire::Error> {
    match response.outcome {
        Some(Outcome {
            result: Some(outcome::Result::Error(error)),
        }) => Err(error),
        _ => Ok(response),
    }
}

fn refused(error: &crate::wire::Error, resent: bool) -> Error {
    Error::Refused {
        code: error.code(),
        message: error.message.clone(),
        resent,
        log_time_ms: error.log_time_ms,
    }
}

#[cfg(test)]
mod tests;
