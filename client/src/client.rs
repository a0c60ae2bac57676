//! A client of a cluster. It is cheap to clone: all clones share the same connections and sessions.
//! Many callers may have operations in flight at the same time.
//!
//! A client knows the addresses of one or several replicas. It sends requests to the nearest
//! replica that serves. When a nearer replica serves again, new requests are sent to that replica
//! (see `replicas`). After a failure, an operation is sent again, possibly to another replica (see
//! `copies`). A read may always be repeated. A write is repeated under the same (client, sequence),
//! so that it is executed once. The request timeout limits all attempts together.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::connection::Connection;
use crate::copies::{Answer, OperationAttempts, OperationTrace, refused};
use crate::error::Error;
use crate::options::ClientOptions;
use crate::replicas::{Health, Replicas, Tasks};
use crate::session::{Sessions, Ticket};
use leasehold_wire::command::Op;
use leasehold_wire::outcome::Result as WireResult;
use leasehold_wire::request::Body;
use leasehold_wire::{Command, StatusReply, Welcome, validate_op};

use crate::admin::Admin;
use crate::raw::RawReply;
use crate::status::{HoldersQuery, ServerInfo, Status, StatusQuery};
use crate::types::{
    CasOutcome, Operation, OperationResult, ReadPath, RefusalKind, Reply, StoredEntry, Version,
    VersionedValue,
};

/// A handle to a client's connections. Dropping the last handle closes the connections.
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
    /// Connects to the first replica that answers, in the order of the addresses. If the first
    /// attempt fails at every address, this method does not try again. If an established connection
    /// breaks later, the connection is restored in the background.
    ///
    /// # Errors
    /// `Connect` if no replica answers, `WrongCluster`, `Refused` if a replica refuses the token,
    /// `PlainToken`.
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

    /// Returns the cluster, and the replica that the client is connected to. This replica is the
    /// nearest replica that serves.
    pub fn server(&self) -> ServerInfo {
        ServerInfo::from_wire(self.last_welcome())
    }

    pub(crate) fn last_welcome(&self) -> Welcome {
        let nearest = self.inner.replicas.nearest();
        nearest.welcome().unwrap_or_default()
    }

    /// Returns the state of every replica. Also returns the number of operations that were first
    /// sent to one replica but answered by another.
    pub fn health(&self) -> Health {
        self.inner.replicas.health()
    }

    /// Closes the connections and ends every operation in flight, for all clones.
    pub fn close(&self) {
        self.inner.replicas.all().iter().for_each(Connection::close);
        self.inner.tasks.abort();
    }

    /// Executes one operation and waits for its result. For most uses, the methods for single kinds
    /// of operations are simpler. The reply of this method also names the path by which a read was
    /// served, and the replica that answered.
    ///
    /// # Errors
    /// `Timeout`, `Connect`, `Lost`, `Refused`, `Protocol`, `Closed`, and for a transaction `Executed`.
    /// [`Error::may_have_taken_effect`] tells whether a failed write may have taken effect.
    pub async fn execute(&self, operation: Operation) -> Result<Reply, Error> {
        let lengths = match &operation {
            Operation::Txn(txn) => txn.lengths(),
            _ => [0; 2],
        };
        let reply = self.execute_op(operation.into_wire()).await.0?;
        let RawReply {
            outcome,
            path,
            replica,
        } = reply;
        let result = outcome
            .result
            .ok_or_else(|| self.violated(&replica, NO_OUTCOME))?;
        if let WireResult::Txn(txn) = &result {
            if txn.abridged {
                return Err(Error::Executed {
                    held: !txn.or_else,
                    version: txn.version.map(Version::from_wire),
                });
            }
            if txn.results.len() != lengths[usize::from(txn.or_else)] {
                let message = "the transaction has more or fewer results than operations";
                return Err(self.violated(&replica, message));
            }
        }
        let result = OperationResult::from_wire(result);
        let result = result.map_err(|problem| self.violated(&replica, problem))?;
        let path = ReadPath::from_wire(path);
        Ok(Reply {
            result,
            path,
            replica,
        })
    }

    /// Returns the value of one key; `None` if the key does not exist.
    ///
    /// # Errors
    /// The same errors as [`Client::execute`].
    pub async fn get(&self, key: impl Into<Bytes>) -> Result<Option<VersionedValue>, Error> {
        let key = key.into();
        let reply = self.execute(Operation::Get { key }).await?;
        match reply.result {
            OperationResult::Value(value) => Ok(Some(value)),
            OperationResult::Missing => Ok(None),
            other => Err(self.unexpected(&reply.replica, &other)),
        }
    }

    /// Writes one key. The key may exist already, or may be absent.
    ///
    /// # Errors
    /// The same errors as [`Client::execute`].
    pub async fn put(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
    ) -> Result<Version, Error> {
        let (key, value) = (key.into(), value.into());
        self.write(Operation::Put { key, value }).await
    }

    /// Removes one key, if it exists.
    ///
    /// # Errors
    /// The same errors as [`Client::execute`].
    pub async fn delete(&self, key: impl Into<Bytes>) -> Result<Version, Error> {
        let key = key.into();
        self.write(Operation::Delete { key }).await
    }

    /// Writes `value` if the key's version is `expected`. If `expected` is `None`, the key must be
    /// absent.
    ///
    /// # Errors
    /// The same errors as [`Client::execute`].
    pub async fn compare_and_swap(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        expected: Option<Version>,
    ) -> Result<CasOutcome, Error> {
        let (key, value) = (key.into(), value.into());
        let operation = Operation::CompareAndSwap {
            key,
            value,
            expected,
        };
        let reply = self.execute(operation).await?;
        match reply.result {
            OperationResult::Written(version) => Ok(CasOutcome::Written(version)),
            OperationResult::Mismatch(actual) => Ok(CasOutcome::Mismatch(actual)),
            other => Err(self.unexpected(&reply.replica, &other)),
        }
    }

    /// Merges named fields into the record at `key`, and creates the record if it is absent. If
    /// `fields` contains several values for one name, the last value is written. If the stored
    /// record has several fields of one name, the first of them is replaced.
    /// [`VersionedValue::fields`] reads a record.
    ///
    /// # Errors
    /// The same errors as [`Client::execute`].
    pub async fn put_fields<N: Into<Bytes>, V: Into<Bytes>>(
        &self,
        key: impl Into<Bytes>,
        fields: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Version, Error> {
        let (key, fields) = (key.into(), pairs(fields));
        self.write(Operation::PutFields { key, fields }).await
    }

    /// Returns an entry for each given key that exists, in the order of `keys`. All keys are read
    /// at one moment.
    ///
    /// # Errors
    /// The same errors as [`Client::execute`].
    pub async fn multi_get(
        &self,
        keys: impl IntoIterator<Item = impl Into<Bytes>>,
    ) -> Result<Vec<StoredEntry>, Error> {
        let keys = keys.into_iter().map(Into::into).collect();
        self.entries(Operation::MultiGet { keys }).await
    }

    /// Writes several keys at one moment. Either all keys are written, or none.
    ///
    /// # Errors
    /// The same errors as [`Client::execute`].
    pub async fn multi_put<K: Into<Bytes>, V: Into<Bytes>>(
        &self,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Version, Error> {
        let entries = pairs(entries);
        self.write(Operation::MultiPut { entries }).await
    }

    /// Returns up to `limit` entries with `from <= key < to`, in the order of their keys. An empty
    /// `to` means that the range has no end. All entries are read at one moment.
    ///
    /// # Errors
    /// The same errors as [`Client::execute`].
    pub async fn scan(
        &self,
        from: impl Into<Bytes>,
        to: impl Into<Bytes>,
        limit: u32,
    ) -> Result<Vec<StoredEntry>, Error> {
        let (from, to) = (from.into(), to.into());
        self.entries(Operation::Scan { from, to, limit }).await
    }

    /// Requests the status of a replica. The status contains the replica's view of itself and of
    /// its cluster, and the parts that `query` selects.
    ///
    /// # Errors
    /// The same errors as [`Client::execute`].
    pub async fn status(&self, query: StatusQuery) -> Result<Status, Error> {
        query.check()?;
        let has_holders = query.holders != HoldersQuery::None;
        let body = Body::Status(query.into_wire());
        let status = self.request_status(body).await?;
        Ok(Status::from_wire(status, has_holders))
    }

    /// Returns the interface for operators' requests.
    pub fn admin(&self) -> Admin<'_> {
        Admin::new(self)
    }

    /// Executes one command. Also returns the replicas to which the command was sent.
    pub(crate) async fn execute_op(&self, op: Op) -> (Result<RawReply, Error>, OperationTrace) {
        if let Err(refusal) = validate_op(&op) {
            return (Err(refused(&refusal, false)), OperationTrace::default());
        }
        let attempts = OperationAttempts::new(&self.inner.replicas);
        let result = self.execute_once(op, &attempts).await;
        (result, attempts.trace())
    }

    /// Sends a request, and returns the status that a replica sends as the answer.
    pub(crate) async fn request_status(&self, body: Body) -> Result<StatusReply, Error> {
        let attempts = OperationAttempts::new(&self.inner.replicas);
        let answer = attempts.request(body).await?;
        match answer.response.status {
            Some(status) => Ok(*status),
            None => Err(violated(answer.from, "the response holds no status")),
        }
    }

    /// Executes a command so that it takes effect at most once. A command is refused if its session
    /// has expired. If only one copy was sent before this refusal, this method sends the command
    /// once more, in a session that was opened after the refusal.
    ///
    /// The command is not executed twice. The first copy in the log determines the replica's
    /// answer, so no copy was executed before the refused copy. The refusal is also final: no later
    /// copy is executed in the old session. If several copies were sent before the refusal, one of
    /// them may have been executed and its answer lost. In this case, the command is not sent
    /// again. The new session begins at the log time of the refusal or later. This time is the same
    /// on every replica.
    async fn execute_once(
        &self,
        op: Op,
        operation: &OperationAttempts<'_>,
    ) -> Result<RawReply, Error> {
        if !op.is_write() {
            return reply(operation.request(Body::Command(op.into())).await?);
        }
        match self.attempt_write(&op, operation, 0).await {
            Err(Error::Refused {
                kind: RefusalKind::SessionExpired,
                resent: false,
                log_time_ms,
                ..
            }) => {
                // A command that was refused for good has not taken effect.
                operation.mark_unsent();
                reply(self.attempt_write(&op, operation, log_time_ms).await?)
            }
            result => reply(result?),
        }
    }

    /// Attempts a write in a session that was opened at log time `since_ms` or later.
    async fn attempt_write<'a>(
        &self,
        op: &Op,
        operation: &'a OperationAttempts<'_>,
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
            kind: RefusalKind::SessionExpired,
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

    async fn write(&self, operation: Operation) -> Result<Version, Error> {
        let reply = self.execute(operation).await?;
        match reply.result {
            OperationResult::Written(version) => Ok(version),
            other => Err(self.unexpected(&reply.replica, &other)),
        }
    }

    async fn entries(&self, operation: Operation) -> Result<Vec<StoredEntry>, Error> {
        let reply = self.execute(operation).await?;
        match reply.result {
            OperationResult::Entries(entries) => Ok(entries),
            other => Err(self.unexpected(&reply.replica, &other)),
        }
    }

    pub(crate) fn unexpected(&self, by: &str, result: &OperationResult) -> Error {
        let kind = match result {
            OperationResult::Written(_) => "written",
            OperationResult::Value(_) => "value",
            OperationResult::Missing => "missing",
            OperationResult::Mismatch(_) => "mismatch",
            OperationResult::Entries(_) => "entries",
            OperationResult::Txn(_) => "txn",
        };
        self.violated(by, &format!("{kind:?} is not an answer to this operation"))
    }

    /// Builds the error for an answer that the protocol does not allow. `by` is the name of the
    /// replica that sent the answer.
    pub(crate) fn violated(&self, by: &str, message: &str) -> Error {
        let mut all = self.inner.replicas.all().iter();
        let of_name = |connection: &&Connection| connection.replica().as_deref() == Some(by);
        let address = all.find(of_name).map(|found| found.address.clone());
        Error::Protocol {
            address: address.unwrap_or_default(),
            message: message.to_owned(),
        }
    }
}

fn pairs<A: Into<Bytes>, B: Into<Bytes>>(
    all: impl IntoIterator<Item = (A, B)>,
) -> Vec<(Bytes, Bytes)> {
    let all = all.into_iter();
    all.map(|(a, b)| (a.into(), b.into())).collect()
}

const NO_OUTCOME: &str = "the response holds no outcome";

fn reply(answer: Answer<'_>) -> Result<RawReply, Error> {
    let path = answer.response.path();
    match answer.response.outcome {
        Some(outcome) if outcome.result.is_some() => Ok(RawReply {
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

/// Ticket of an operation in flight. The ticket is released when the operation ends, with or
/// without success.
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
