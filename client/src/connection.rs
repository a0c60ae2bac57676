//! One connection that heals: a table of calls that wait for an answer, and a
//! task that owns the socket, writes what the table holds, and connects again
//! when the connection breaks.
//!
//! The table is the only state. A call that is dropped leaves the table at once, sent or
//! not, so a caller can give up at any moment. Calls have rising
//! ids; those at or above `unsent_from` have not been written yet, so everything
//! that is queued when the socket is free leaves in one write.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::client::ClientOptions;
use crate::error::Error;
use crate::session::random_u64;
use crate::wire::{
    ErrorCode, FrameError, FrameReader, FrameWriter, Request, Response, Welcome, decode_greeting,
    hello, request,
};

/// One write to the socket is closed when it holds this much.
const WRITE_BYTES: usize = 256 << 10;
/// First and longest pause between attempts.
const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Pauses that double up to a limit, each shortened at random by up to half, so
/// that clients that failed together do not return together.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub fn new() -> Self {
        Backoff { next: BACKOFF_MIN }
    }

    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(BACKOFF_MAX);
        let spread = pause.as_micros() as u64 / 2;
        pause - Duration::from_micros(random_u64() % (spread + 1))
    }
}

/// Why a call has no response.
#[derive(Debug, Clone)]
pub(crate) enum CallError {
    /// The connection that it was sent on is gone; it may be sent again.
    Lost { reason: String },
    /// The client is closed for good.
    Closed,
}

/// A connection that has been greeted.
pub(crate) struct Link {
    reader: FrameReader<OwnedReadHalf>,
    writer: FrameWriter<OwnedWriteHalf>,
    pub welcome: Welcome,
}

/// Connects and greets within the connect timeout.
pub(crate) async fn connect(options: &ClientOptions) -> Result<Link, Error> {
    let failed = |source| Error::Connect {
        address: options.address.clone(),
        source,
    };
    match tokio::time::timeout(options.connect_timeout, open(options)).await {
        Ok(result) => result,
        Err(_) => Err(failed(io::ErrorKind::TimedOut.into())),
    }
}

async fn open(options: &ClientOptions) -> Result<Link, Error> {
    let failed = |source| Error::Connect {
        address: options.address.clone(),
        source,
    };
    let stream = TcpStream::connect(&options.address).await.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    let (reader, writer) = stream.into_split();
    let (mut reader, mut writer) = (FrameReader::new(reader), FrameWriter::new(writer));
    let cluster = options.cluster.as_deref();
    let greeting = async {
        writer.feed(&hello(cluster))?;
        writer.flush().await?;
        let frame = reader.next_frame().await?;
        let frame = frame.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        decode_greeting(frame)
    };
    let greeting = greeting
        .await
        .map_err(|error| failed(io::Error::other(not_greeted(error))))?;
    let welcome = greeting.map_err(|refusal| refused_greeting(options, &refusal))?;
    if cluster.is_some_and(|name| !name.is_empty() && name != welcome.cluster) {
        let message = format!("it is of {:?}", welcome.cluster);
        let address = options.address.clone();
        return Err(Error::WrongCluster { address, message });
    }
    Ok(Link {
        reader,
        writer,
        welcome,
    })
}

/// What the operator is told when a port answers with something else.
fn not_greeted(error: FrameError) -> String {
    match error {
        FrameError::Io(error) => format!("no greeting came: {error}"),
        other => format!("what answers there is not a replica's client port ({other})"),
    }
}

fn refused_greeting(options: &ClientOptions, refusal: &crate::wire::Error) -> Error {
    let (address, message) = (options.address.clone(), refusal.message.clone());
    match refusal.code() {
        ErrorCode::WrongCluster => Error::WrongCluster { address, message },
        _ => Error::Connect {
            address,
            source: io::Error::other(message),
        },
    }
}

struct Waiting {
    /// Taken when it is written.
    body: Option<request::Body>,
    reply: oneshot::Sender<Response>,
}

struct Table {
    calls: BTreeMap<u64, Waiting>,
    /// The id of the next call; 0 is the connection itself.
    next_id: u64,
    /// Calls from this id on have not been written to the current connection.
    unsent_from: u64,
    /// The last connection's greeting.
    welcome: Welcome,
    /// The name of the replica in it.
    replica: Arc<str>,
    /// Why the last connection ended.
    loss: String,
    /// When the server was last heard.
    heard: Instant,
    closed: bool,
}

/// What the callers and the connection's task share.
pub(crate) struct Connection {
    table: Mutex<Table>,
    /// There is something to write.
    queued: Notify,
    /// The connection is to be given up.
    suspected: Notify,
}

impl Connection {
    /// A connection over `link`, and the task that must run for it to work.
    pub fn new(
        options: ClientOptions,
        link: Link,
    ) -> (Arc<Connection>, impl Future<Output = ()> + Send + 'static) {
        let table = Table {
            calls: BTreeMap::new(),
            next_id: 1,
            unsent_from: 1,
            welcome: link.welcome.clone(),
            replica: link.welcome.replica.as_str().into(),
            loss: String::new(),
            heard: Instant::now(),
            closed: false,
        };
        let connection = Arc::new(Connection {
            table: Mutex::new(table),
            queued: Notify::new(),
            suspected: Notify::new(),
        });
        let task = run(Arc::clone(&connection), options, link);
        (connection, task)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn welcome(&self) -> Welcome {
        self.table().welcome.clone()
    }

    /// The name of the replica that it leads to.
    pub fn replica(&self) -> Arc<str> {
        self.table().replica.clone()
    }

    /// Sends a request and waits for its response, without limit. Afterwards, or
    /// when this future is dropped, `sent` is set if it may have reached the
    /// server.
    pub async fn call(
        &self,
        body: request::Body,
        sent: &AtomicBool,
    ) -> Result<Response, CallError> {
        let mut call = self.enqueue(body, sent)?;
        (&mut call.reply).await.map_err(|_| self.loss())
    }

    fn enqueue<'a>(
        &'a self,
        body: request::Body,
        sent: &'a AtomicBool,
    ) -> Result<Call<'a>, CallError> {
        let (sender, reply) = oneshot::channel();
        let mut table = self.table();
        if table.closed {
            return Err(CallError::Closed);
        }
        let id = table.next_id;
        table.next_id += 1;
        let waiting = Waiting {
            body: Some(body),
            reply: sender,
        };
        table.calls.insert(id, waiting);
        drop(table);
        self.queued.notify_one();
        Ok(Call {
            connection: self,
            id,
            reply,
            sent,
        })
    }

    fn loss(&self) -> CallError {
        let table = self.table();
        if table.closed {
            return CallError::Closed;
        }
        let reason = table.loss.clone();
        CallError::Lost { reason }
    }

    /// A call got no answer within `silence`. If nothing else was heard either,
    /// the connection is taken for dead, since TCP may need minutes to notice.
    pub fn suspect(&self, silence: Duration) {
        if self.table().heard.elapsed() >= silence {
            // Wakes only who waits now: the next connection is not suspected.
            self.suspected.notify_waiters();
        }
    }

    /// Ends all calls and refuses new ones.
    pub fn close(&self) {
        let mut table = self.table();
        table.closed = true;
        table.calls.clear();
    }

    /// Calls in the table, for tests of what is left behind.
    #[cfg(test)]
    pub fn calls(&self) -> usize {
        self.table().calls.len()
    }

    /// Appends unsent calls to `writer`, up to the size of one write; whether
    /// there were any.
    fn feed(&self, writer: &mut FrameWriter<OwnedWriteHalf>) -> bool {
        let mut table = self.table();
        let table = &mut *table;
        for (&id, waiting) in table.calls.range_mut(table.unsent_from..) {
            if writer.buffered_bytes() >= WRITE_BYTES {
                break;
            }
            table.unsent_from = id + 1;
            let body = waiting.body.take();
            if let Err(error) = writer.feed(&Request { id, body }) {
                // Sizes are checked before a call is queued, so this is one that
                // the check forgot; its caller will time out.
                tracing::error!(%error, "request cannot be sent");
            }
        }
        writer.buffered_bytes() > 0
    }

    fn answer(&self, response: Response) {
        let mut table = self.table();
        table.heard = Instant::now();
        // Absent: the caller has given up.
        if let Some(waiting) = table.calls.remove(&response.id) {
            let _ = waiting.reply.send(response);
        }
    }

    fn connected(&self, welcome: &Welcome) {
        let mut table = self.table();
        table.welcome = welcome.clone();
        table.replica = welcome.replica.as_str().into();
        table.heard = Instant::now();
        drop(table);
        self.queued.notify_one();
    }

    /// Drops what was sent on the connection that ended; what was not stays, and
    /// goes out on the next one.
    fn lost(&self, reason: String) {
        let mut table = self.table();
        table.loss = reason;
        let unsent_from = table.unsent_from;
        let unsent = table.calls.split_off(&unsent_from);
        table.calls = unsent;
    }
}

/// One attempt, in the table for exactly as long as someone waits for it.
struct Call<'a> {
    connection: &'a Connection,
    id: u64,
    reply: oneshot::Receiver<Response>,
    sent: &'a AtomicBool,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut table = self.connection.table();
        let unsent = table.calls.remove(&self.id).is_some() && self.id >= table.unsent_from;
        if !unsent {
            self.sent.store(true, Ordering::Relaxed);
        }
    }
}

async fn run(connection: Arc<Connection>, options: ClientOptions, first: Link) {
    let mut link = first;
    let mut backoff = Backoff::new();
    loop {
        connection.connected(&link.welcome);
        let connected = Instant::now();
        let reason = drive(&connection, link).await;
        tracing::debug!(address = options.address, reason, "connection lost");
        connection.lost(reason);
        // A server that ends every connection unanswered is not called in a loop.
        if connection.table().heard > connected {
            backoff = Backoff::new();
        }
        link = match reconnect(&options, &mut backoff).await {
            Ok(link) => link,
            Err(error) => {
                tracing::error!(%error, "client closed");
                return connection.close();
            }
        };
    }
}

/// Tries until it succeeds. Callers have their own timeouts, so the only error
/// is one that no waiting will cure.
async fn reconnect(options: &ClientOptions, backoff: &mut Backoff) -> Result<Link, Error> {
    loop {
        tokio::time::sleep(backoff.pause()).await;
        match connect(options).await {
            Err(Error::Connect { .. }) => {}
            result => return result,
        }
    }
}

/// Runs one connection until it ends; returns why it did. Reading and writing
/// are independent, so that two full socket buffers cannot block each other.
async fn drive(connection: &Connection, link: Link) -> String {
    let Link {
        mut reader,
        mut writer,
        ..
    } = link;
    tokio::select! {
        reason = read_responses(connection, &mut reader) => reason,
        reason = write_requests(connection, &mut writer) => reason,
        () = connection.suspected.notified() => "the server is silent".to_owned(),
    }
}

async fn read_responses(
    connection: &Connection,
    reader: &mut FrameReader<OwnedReadHalf>,
) -> String {
    loop {
        match reader.next::<Response>().await {
            Ok(Some(Response { id: 0, outcome, .. })) => {
                return format!("the server ended it: {outcome:?}");
            }
            Ok(Some(response)) => connection.answer(response),
            Ok(None) => return "closed by the server".to_owned(),
            Err(error) => return error.to_string(),
        }
    }
}

async fn write_requests(
    connection: &Connection,
    writer: &mut FrameWriter<OwnedWriteHalf>,
) -> String {
    loop {
        connection.queued.notified().await;
        while connection.feed(writer) {
            if let Err(error) = writer.flush().await {
                return error.to_string();
            }
        }
    }
}
