//! The thread of the relays. It accepts connections, connects to the relays' targets, and forwards
//! bytes in order after the link's delay.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};
use tokio::task::{LocalSet, spawn_local};

use super::RelayPlan;
use super::alarm::TimerQueue;
use super::link::Link;

/// Maximum number of bytes that are read in one step.
const CHUNK_BYTES_MAX: usize = 64 << 10;
/// Maximum number of bytes that are queued for one direction of one connection. While the queue is
/// full, the relay does not read, so the sender must wait.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Pause after a failed accept, because an immediate retry would probably fail again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Starts the relays' thread. The thread ends when `stopped` is resolved, or when the sender of
/// `stopped` is dropped. The thread also runs the task `beside`, with which tests keep the thread
/// busy.
pub(super) fn spawn(
    plans: Vec<RelayPlan>,
    stopped: oneshot::Receiver<()>,
    beside: impl Future<Output = ()> + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build()?;
    std::thread::Builder::new()
        .name("wan".to_owned())
        .spawn(move || {
            let tasks = LocalSet::new();
            tasks.spawn_local(beside);
            let result = tasks.block_on(&runtime, serve(plans, stopped));
            if let Err(error) = result {
                tracing::error!(%error, "the emulated network failed");
            }
        })
}

async fn serve(plans: Vec<RelayPlan>, stopped: oneshot::Receiver<()>) -> io::Result<()> {
    let timers = Rc::new(TimerQueue::new()?);
    for plan in plans {
        let listener = TcpListener::from_std(plan.listener)?;
        spawn_local(accept(
            listener,
            plan.target,
            plan.forth,
            plan.back,
            timers.clone(),
        ));
    }
    tokio::select! {
        result = timers.run() => result,
        _ = stopped => Ok(()),
    }
}

async fn accept(
    listener: TcpListener,
    target: SocketAddr,
    forth: Arc<Link>,
    back: Arc<Link>,
    timers: Rc<TimerQueue>,
) {
    loop {
        match listener.accept().await {
            Ok((sender, _)) => {
                let (forth, back, timers) = (forth.clone(), back.clone(), timers.clone());
                spawn_local(async move {
                    if let Err(error) = connect(sender, target, &forth, &back, &timers).await {
                        tracing::debug!(%target, %error, "relayed connection closed");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%target, %error, "relay cannot accept");
                timers.until(Instant::now() + ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Forwards the bytes of one connection in both directions, until the target closes its half or an
/// error occurs.
async fn connect(
    sender: TcpStream,
    target: SocketAddr,
    forth: &Link,
    back: &Link,
    timers: &TimerQueue,
) -> io::Result<()> {
    sender.set_nodelay(true)?;
    // The handshake takes one delay in each direction.
    forth.wait_uncut().await;
    back.wait_uncut().await;
    timers
        .until(Instant::now() + forth.delay() + back.delay())
        .await;
    let receiver = TcpStream::connect(target).await?;
    receiver.set_nodelay(true)?;
    let (sender_read, sender_write) = sender.into_split();
    let (receiver_read, receiver_write) = receiver.into_split();
    let outbound = async {
        carry(sender_read, receiver_write, forth, timers).await?;
        // The sender has closed its half, but may still receive.
        std::future::pending().await
    };
    tokio::select! {
        result = outbound => result,
        result = carry(receiver_read, sender_write, back, timers) => result,
    }
}

struct Chunk {
    due: Instant,
    /// Bytes to forward. An empty list marks the end of the stream.
    bytes: Vec<u8>,
}

/// Bytes in flight in one direction of one connection.
#[derive(Default)]
struct Queue {
    chunks: RefCell<VecDeque<Chunk>>,
    bytes: RefCell<usize>,
    filled: Notify,
    emptied: Notify,
}

/// Forwards bytes in one direction of one connection until the stream of bytes ends.
async fn carry(
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    link: &Link,
    timers: &TimerQueue,
) -> io::Result<()> {
    let queue = Queue::default();
    tokio::try_join!(
        take_in(from, &queue, link),
        put_out(to, &queue, link, timers)
    )
    .map(drop)
}

async fn take_in(mut from: OwnedReadHalf, queue: &Queue, link: &Link) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES_MAX];
    loop {
        while *queue.bytes.borrow() >= QUEUE_BYTES_MAX {
            queue.emptied.notified().await;
        }
        let read = from.read(&mut buffer).await?;
        *queue.bytes.borrow_mut() += read;
        queue.chunks.borrow_mut().push_back(Chunk {
            due: link.due(Instant::now(), read),
            bytes: buffer[..read].to_vec(),
        });
        queue.filled.notify_one();
        if read == 0 {
            return Ok(());
        }
    }
}

async fn put_out(
    mut to: OwnedWriteHalf,
    queue: &Queue,
    link: &Link,
    timers: &TimerQueue,
) -> io::Result<()> {
    loop {
        let front = queue.chunks.borrow().front().map(|chunk| chunk.due);
        let Some(due) = front else {
            queue.filled.notified().await;
            continue;
        };
        timers.until(due).await;
        while link.is_cut() {
            link.wait_uncut().await;
            timers.until(Instant::now() + link.delay()).await;
        }
        let Some(chunk) = queue.chunks.borrow_mut().pop_front() else {
            continue;
        };
        if chunk.bytes.is_empty() {
            return to.shutdown().await;
        }
        to.write_all(&chunk.bytes).await?;
        *queue.bytes.borrow_mut() -= chunk.bytes.len();
        queue.emptied.notify_one();
    }
}
