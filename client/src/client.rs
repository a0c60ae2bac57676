//! A client of a cluster. It is cheap to clone: all clones share its connections and
//! sessions. Every caller may have an operation in flight.
//!
//! It knows the addresses of several replicas, or of one. It asks the nearest that serves,
//! and returns to a nearer one when that serves again (see `replicas`). Operations are sent
//! again after a failure, also to another replica (see `copies`). A read may always be
//! repeated; a write is repeated under the same (client, sequence), so that it is executed
//! once. All attempts together are bounded by the request timeout.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::connection::Connection;
use crate::copies::{Answer, Operation, OperationTrace, refused};
use crate::error::Error;
use crate::options::ClientOptions;
use crate::replicas::{Health, Replicas, Tasks};
use crate::session::{Sessions, Ticket};
use leasehold_wire::command::Op;
use leasehold_wire::request::Body;
use leasehold_wire::{
    Command, Entry, ErrorCode, Field, KeyValue, LeaseRequest, MoveRequest, Outcome, Path,
    StatusReply, StatusRequest, Value, Version, Welcome, outcome, validate_op,
};

/// The result of a command, and how the replica came by it.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// Never an error: those are [`Error::Refused`].
    pub outcome: Outcome,
    /// Path by which a read was served; `Log` or `Unspecified` for a write.
    pub path: Path,
    /// The name of the replica that answered.
    pub replica: Arc<str>,
}

/// Outcome of a compare-and-swap.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CasOutcome {
    /// The value is written, under this version.
    Written(Version),
    /// Nothing is written: the key has this version, or (`None`) does not exist.
    Mismatch(Option<Version>),
}

/// A handle to a client's connections. Dropping the last one closes them.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("options", &self.inner.replicas.options)
            .finish_non_exhaustive()
    }
}

struct Inner {
    replicas: Arc<Replicas>,
    sessions: Mutex<Sessions>,
    tasks: Tasks,
}

impl Client {
    /// Connects to the first replica that answers, in the order of the addresses. Later
    /// breaks of the connection are healed in the background; these first attempts are
    /// not repeated.
    ///
    /// # Errors
    /// `Connect` if none answers, `WrongCluster`, `Refused` if one refuses the token, `PlainToken`.
    pub async fn connect(options: ClientOptions) -> Result<Client, Error> {
        let (replicas, tasks) = Replicas::connect(options).await?;
        let welcome = replicas.all().iter().find_map(Connection::welcome);
        let opened_ms = welcome.unwrap_or_default().log_time_ms;
        let inner = Inner {
            replicas,
            sessions: Mutex::new(Sessions::new(opened_ms)),
            tasks,
        };
        Ok(Client {
            inner: Arc::new(inner),
        })
    }

    /// Returns the greeting that the nearest serving replica sent when its connection was last
    /// made.
    pub fn welcome(&self) -> Welcome {
        let nearest = self.inner.replicas.nearest();
        nearest.welcome().unwrap_or_default()
    }

    /// Returns which replicas are dead, since when, and how often another one had to answer.
    pub fn health(&self) -> Health {
        self.inner.replicas.health()
    }

    /// Ends the connections and everything in flight on them, for all clones.
    pub fn close(&self) {
        self.inner.replicas.all().iter().for_each(Connection::close);
        self.inner.tasks.abort();
    }

    /// Executes one command and waits for its result.
    ///
    /// # Errors
    /// `Timeout`, `Connect`, `Lost`, `Refused`, `Protocol`, `Closed`; see
    /// [`Error::may_have_taken_effect`] for what a failed write leaves behind.
    pub async fn execute(&self, op: Op) -> Result<Reply, Error> {
        self.execute_traced(op).await.0
    }

    /// As [`Client::execute`], and which replicas were asked.
    pub async fn execute_traced(&self, op: Op) -> (Result<Reply, Error>, OperationTrace) {
        if let Err(refusal) = validate_op(&op) {
            return (Err(refused(&refusal, false)), OperationTrace::default());
        }
        let operation = Operation::new(&self.inner.replicas);
        let result = self.execute_once(op, &operation).await;
        (result, operation.trace())
    }

    /// The value of one key, `None` if there is no such key.
    ///
    /// # Errors
    /// As [`Client::execute`].
    pub async fn get(&self, key: impl Into<Bytes>) -> Result<Option<Value>, Error> {
        match self.result(Op::get(key)).await? {
            (outcome::Result::Value(value), _) => Ok(Some(value)),
            (outcome::Result::Missing(_), _) => Ok(None),
            (other, by) => Err(self.unexpected(&by, &other)),
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
    ) -> Result<CasOutcome, Error> {
        match self.result(Op::cas(key, value, expected)).await? {
            (outcome::Result::Written(version), _) => Ok(CasOutcome::Written(version)),
            (outcome::Result::Mismatch(mismatch), _) => Ok(CasOutcome::Mismatch(mismatch.actual)),
            (other, by) => Err(self.unexpected(&by, &other)),
        }
    }

    /// Merges named fields into the record at `key`, creating it if absent. Of several fields of
    /// one name the last counts. If the stored record has several, the first is replaced.
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

    /// Asks a replica for its status: its view of itself and of its cluster.
    ///
    /// # Errors
    /// As [`Client::execute`].
    pub async fn status(&self) -> Result<StatusReply, Error> {
        self.status_about(StatusRequest::default()).await
    }

    /// As [`Client::status`], and the holders of `key`, or of the hottest key that the replica
    /// knows. The leader knows the hottest key if the strategy counts client requests.
    ///
    /// # Errors
    /// As [`Client::execute`].
    pub async fn status_and_holders(&self, key: Option<&[u8]>) -> Result<StatusReply, Error> {
        self.status_about(StatusRequest {
            holders: true,
            key: Bytes::copy_from_slice(key.unwrap_or_default()),
            ..StatusRequest::default()
        })
        .await
    }

    /// As [`Client::status`], and what the leader knows of demand and distances, if it is
    /// the leader that is asked. Takes up to a second: the leader looks at all keys.
    ///
    /// # Errors
    /// As [`Client::execute`].
    pub async fn status_and_demand(&self) -> Result<StatusReply, Error> {
        self.status_about(StatusRequest {
            demand: true,
            ..StatusRequest::default()
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

    /// As [`Client::status`], with what is in force for reads under leases.
    ///
    /// # Errors
    /// As [`Client::execute`].
    pub async fn status_and_leases(&self) -> Result<StatusReply, Error> {
        self.status_about(StatusRequest {
            leases: true,
            ..StatusRequest::default()
        })
        .await
    }

    /// Changes strategies or durations of leases, and waits until they are in force. Any
    /// replica passes this on. To ask again for what is in force does no harm. Returns the
    /// status of the replica that was asked, with what is in force now.
    ///
    /// # Errors
    /// As [`Client::execute`]. `Refused` says why not, and what would do.
    pub async fn set_leases(&self, request: LeaseRequest) -> Result<StatusReply, Error> {
        self.status_of(Body::Lease(request)).await
    }

    async fn status_about(&self, request: StatusRequest) -> Result<StatusReply, Error> {
        self.status_of(Body::Status(request)).await
    }

    async fn status_of(&self, body: Body) -> Result<StatusReply, Error> {
        let operation = Operation::new(&self.inner.replicas);
        let answer = operation.request(body).await?;
        match answer.response.status {
            Some(status) => Ok(*status),
            None => Err(violated(answer.from, "the response holds no status")),
        }
    }

    /// Executes a command under one identity. If its session refuses the only attempt,
    /// once more under the identity of a session that was opened since.
    ///
    /// The command is not executed twice. The replica answers by the first copy in the
    /// log, so no copy was executed before the refused one. And a refusal is final: no
    /// later copy is executed either. After more attempts than one, through whichever
    /// replicas, an earlier attempt may have been executed, and its answer lost. The other
    /// session begins at the log time of the refusal or later, which holds at every replica.
    async fn execute_once(&self, op: Op, operation: &Operation<'_>) -> Result<Reply, Error> {
        if !op.is_write() {
            return reply(operation.request(Body::Command(op.into())).await?);
        }
        match self.attempt_write(&op, operation, 0).await {
            Err(Error::Refused {
                code: ErrorCode::SessionExpired,
                resent: false,
                log_time_ms,
                ..
            }) => {
                // What was refused for good leaves no doubt behind.
                operation.mark_unsent();
                reply(self.attempt_write(&op, operation, log_time_ms).await?)
            }
            result => reply(result?),
        }
    }

    /// In a session that was opened at log time `since_ms` or later.
    async fn attempt_write<'a>(
        &self,
        op: &Op,
        operation: &'a Operation<'_>,
        since_ms: u64,
    ) -> Result<Answer<'a>, Error> {
        let issued = self.issue(since_ms);
        let Ticket {
            client,
            sequence,
            acked_below,
            opened_ms,
        } = issued.ticket;
        let command = Command::session(client, sequence, acked_below, op.clone());
        let command = command.opened(opened_ms);
        let result = operation.request(Body::Command(command)).await;
        if let Err(Error::Refused {
            code: ErrorCode::SessionExpired,
            log_time_ms,
            ..
        }) = &result
        {
            self.sessions().renew(issued.ticket, *log_time_ms);
        }
        result
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        let sessions = &self.inner.sessions;
        sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn issue(&self, since_ms: u64) -> IssuedTicket<'_> {
        let ticket = self.sessions().issue_since(since_ms);
        IssuedTicket {
            client: self,
            ticket,
        }
    }

    async fn written(&self, op: Op) -> Result<Version, Error> {
        match self.result(op).await? {
            (outcome::Result::Written(version), _) => Ok(version),
            (other, by) => Err(self.unexpected(&by, &other)),
        }
    }

    async fn entries(&self, op: Op) -> Result<Vec<Entry>, Error> {
        match self.result(op).await? {
            (outcome::Result::Entries(entries), _) => Ok(entries.entries),
            (other, by) => Err(self.unexpected(&by, &other)),
        }
    }

    /// Returns the result of a command and the name of the replica that answered.
    async fn result(&self, op: Op) -> Result<(outcome::Result, Arc<str>), Error> {
        let Reply {
            outcome, replica, ..
        } = self.execute(op).await?;
        match outcome.result {
            Some(result) => Ok((result, replica)),
            None => Err(self.violated(&replica, NO_OUTCOME)),
        }
    }

    fn unexpected(&self, by: &str, result: &outcome::Result) -> Error {
        let kind = match result {
            outcome::Result::Written(_) => "written",
            outcome::Result::Value(_) => "value",
            outcome::Result::Missing(_) => "missing",
            outcome::Result::Mismatch(_) => "mismatch",
            outcome::Result::Entries(_) => "entries",
            outcome::Result::Error(_) => "error",
        };
        self.violated(by, &format!("{kind:?} is not an answer to this operation"))
    }

    /// A replica, known by its name, has answered what it must not.
    fn violated(&self, by: &str, message: &str) -> Error {
        let mut all = self.inner.replicas.all().iter();
        let of_name = |connection: &&Connection| connection.replica().as_deref() == Some(by);
        let address = all.find(of_name).map(|found| found.address.clone());
        Error::Protocol {
            address: address.unwrap_or_default(),
            message: message.to_owned(),
        }
    }
}

const NO_OUTCOME: &str = "the response holds no outcome";

fn reply(answer: Answer<'_>) -> Result<Reply, Error> {
    let path = answer.response.path();
    match answer.response.outcome {
        Some(outcome) if outcome.result.is_some() => Ok(Reply {
            outcome,
            path,
            replica: answer.from.replica().unwrap_or_default(),
        }),
        _ => Err(violated(answer.from, NO_OUTCOME)),
    }
}

fn violated(by: &Connection, message: &str) -> Error {
    Error::Protocol {
        address: by.address.clone(),
        message: message.to_owned(),
    }
}

/// A ticket in use; settled when its operation ends, however it ends.
struct IssuedTicket<'a> {
    client: &'a Client,
    ticket: Ticket,
}

impl Drop for IssuedTicket<'_> {
    fn drop(&mut self) {
        self.client.sessions().release(self.ticket);
    }
}

#[cfg(test)]
mod tests;
