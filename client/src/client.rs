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
use crate::copies::{Answer, OperationAttempts, OperationTrace, refused};
use crate::error::Error;
use crate::options::ClientOptions;
use crate::replicas::{Health, Replicas, Tasks};
use crate::session::{Sessions, Ticket};
use leasehold_wire::command::Op;
use leasehold_wire::request::Body;
use leasehold_wire::{Command, StatusReply, Welcome, validate_op};

use crate::admin::Admin;
use crate::raw::RawReply;
use crate::status::{HoldersQuery, ServerInfo, Status, StatusQuery};
use crate::types::{
    CasOutcome, Operation, OperationResult, ReadPath, RefusalKind, Reply, StoredEntry, Version,
    VersionedValue,
};

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

    /// Cluster and replica that the client is connected to: the nearest replica that serves.
    pub fn server(&self) -> ServerInfo {
        ServerInfo::from_wire(self.last_welcome())
    }

    pub(crate) fn last_welcome(&self) -> Welcome {
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

    /// Executes one operation and waits for its result. The methods below are shorter for most
    /// uses; this one also says how the operation was served.
    ///
    /// # Errors
    /// `Timeout`, `Connect`, `Lost`, `Refused`, `Protocol`, `Closed`; see
    /// [`Error::may_have_taken_effect`] for what a failed write leaves behind.
    pub async fn execute(&self, operation: Operation) -> Result<Reply, Error> {
        let reply = self.execute_op(operation.into_wire()).await.0?;
        let RawReply {
            outcome,
            path,
            replica,
        } = reply;
        let result = outcome.result.and_then(OperationResult::from_wire);
        let result = result.ok_or_else(|| self.violated(&replica, NO_OUTCOME))?;
        let path = ReadPath::from_wire(path);
        Ok(Reply {
            result,
            path,
            replica,
        })
    }

    /// The value of one key; `None` if there is no such key.
    ///
    /// # Errors
    /// As [`Client::execute`].
    pub async fn get(&self, key: impl Into<Bytes>) -> Result<Option<VersionedValue>, Error> {
        let key = key.into();
        let reply = self.execute(Operation::Get { key }).await?;
        match reply.result {
            OperationResult::Value(value) => Ok(Some(value)),
            OperationResult::Missing => Ok(None),
            other => Err(self.unexpected(&reply.replica, &other)),
        }
    }

    /// Writes one key, whatever it holds.
    ///
    /// # Errors
    /// As [`Client::execute`].
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
    /// As [`Client::execute`].
    pub async fn delete(&self, key: impl Into<Bytes>) -> Result<Version, Error> {
        let key = key.into();
        self.write(Operation::Delete { key }).await
    }

    /// Writes `value` if the key's version is `expected`; `None` requires the key to be absent.
    ///
    /// # Errors
    /// As [`Client::execute`].
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

    /// Merges named fields into the record at `key`, which is created if it is absent. Of several
    /// fields of one name the last counts. If the stored record has several, the first is replaced.
    /// [`VersionedValue::fields`] reads a record.
    ///
    /// # Errors
    /// As [`Client::execute`].
    pub async fn put_fields<N: Into<Bytes>, V: Into<Bytes>>(
        &self,
        key: impl Into<Bytes>,
        fields: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Version, Error> {
        let (key, fields) = (key.into(), pairs(fields));
        self.write(Operation::PutFields { key, fields }).await
    }

    /// Those of `keys` that exist, in the order asked, at one moment.
    ///
    /// # Errors
    /// As [`Client::execute`].
    pub async fn multi_get(
        &self,
        keys: impl IntoIterator<Item = impl Into<Bytes>>,
    ) -> Result<Vec<StoredEntry>, Error> {
        let keys = keys.into_iter().map(Into::into).collect();
        self.entries(Operation::MultiGet { keys }).await
    }

    /// Writes several keys at one moment: all of them or none.
    ///
    /// # Errors
    /// As [`Client::execute`].
    pub async fn multi_put<K: Into<Bytes>, V: Into<Bytes>>(
        &self,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Version, Error> {
        let entries = pairs(entries);
        self.write(Operation::MultiPut { entries }).await
    }

    /// Up to `limit` entries with `from <= key`, and `key < to` unless `to` is empty, in key order,
    /// at one moment.
    ///
    /// # Errors
    /// As [`Client::execute`].
    pub async fn scan(
        &self,
        from: impl Into<Bytes>,
        to: impl Into<Bytes>,
        limit: u32,
    ) -> Result<Vec<StoredEntry>, Error> {
        let (from, to) = (from.into(), to.into());
        self.entries(Operation::Scan { from, to, limit }).await
    }

    /// Asks a replica for its status: its view of itself and of its cluster, with what `query` asks
    /// for.
    ///
    /// # Errors
    /// As [`Client::execute`].
    pub async fn status(&self, query: StatusQuery) -> Result<Status, Error> {
        let has_holders = query.holders != HoldersQuery::None;
        let body = Body::Status(query.into_wire());
        let status = self.request_status(body).await?;
        Ok(Status::from_wire(status, has_holders))
    }

    /// Requests of operators.
    pub fn admin(&self) -> Admin<'_> {
        Admin::new(self)
    }

    /// Executes one command, and says which replicas were asked.
    pub(crate) async fn execute_op(&self, op: Op) -> (Result<RawReply, Error>, OperationTrace) {
        if let Err(refusal) = validate_op(&op) {
            return (Err(refused(&refusal, false)), OperationTrace::default());
        }
        let attempts = OperationAttempts::new(&self.inner.replicas);
        let result = self.execute_once(op, &attempts).await;
        (result, attempts.trace())
    }

    /// Makes a request that is answered with a status.
    pub(crate) async fn request_status(&self, body: Body) -> Result<StatusReply, Error> {
        let attempts = OperationAttempts::new(&self.inner.replicas);
        let answer = attempts.request(body).await?;
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

    fn unexpected(&self, by: &str, result: &OperationResult) -> Error {
        let kind = match result {
            OperationResult::Written(_) => "written",
            OperationResult::Value(_) => "value",
            OperationResult::Missing => "missing",
            OperationResult::Mismatch(_) => "mismatch",
            OperationResult::Entries(_) => "entries",
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
