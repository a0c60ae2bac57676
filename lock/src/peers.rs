//! The connections between members, one for each direction.
//!
//! A member sends packets only on connections that it dialled, and receives them only on
//! connections that it accepted. So the answers to a member go to its address in the group file. A
//! second process with the same name, for example on a copied machine, gets no answers and can own
//! nothing.
//!
//! Packets may be lost: those for a member that is not connected, and those for a member that does
//! not read. The state machine begins new attempts.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use leasehold_lock_core::{MemberId, Packet};
use leasehold_transport::{ClientReadHalf, ClientWriteHalf, FrameReader, split};
use leasehold_wire::encode_frame;
use prost::Message as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::Sender;
use tokio::sync::{Notify, Semaphore};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{Instant, sleep, timeout};

use crate::codec::{self, FRAME_BYTES_MAX, Greeting, HELLO_BYTES_MAX, Hello, MAGIC};
use crate::group::{Group, difference};

/// Maximum number of bytes that wait for a member. Further packets for it are dropped.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Maximum number of connections on which the other end has not said yet which member it is.
const UNIDENTIFIED_MAX: usize = 64;
/// Maximum time for the other end to say which member it is.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a refused member to read the reason.
const LINGER: Duration = Duration::from_secs(1);
/// Maximum time to wait for a TCP acknowledgement before a connection is dropped. Without this
/// limit, the wait would grow with the length of an outage.
const STALLED_AFTER_MS: u32 = 5_000;
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Connections to all other members.
pub(crate) struct Peers {
    group: Arc<Group>,
    me: MemberId,
    links: Vec<Link>,
    /// Packets of other members, for the driver.
    packets: Sender<Packet>,
    unidentified: Arc<Semaphore>,
}

/// The connections to one other member.
#[derive(Default)]
struct Link {
    /// Whether the dialled connection can be used.
    is_connected: Cell<bool>,
    /// Packets that are written next.
    buffer: RefCell<BytesMut>,
    /// Number of bytes that were not written yet.
    unwritten: Cell<usize>,
    /// Notified when bytes were appended.
    filled: Notify,
    /// Notified when all bytes were written.
    emptied: Notify,
    /// Number of packets dropped since the socket last took all bytes.
    dropped: Cell<u64>,
    /// Task of the accepted connection.
    accepted: RefCell<Option<AbortHandle>>,
}

impl Peers {
    pub(crate) fn new(group: Arc<Group>, me: MemberId, packets: Sender<Packet>) -> Rc<Peers> {
        Rc::new(Peers {
            links: group.members().iter().map(|_| Link::default()).collect(),
            group,
            me,
            packets,
            unidentified: Arc::new(Semaphore::new(UNIDENTIFIED_MAX)),
        })
    }

    /// Starts the tasks of all connections.
    ///
    /// # Panics
    /// Outside of the runtime of the member's thread.
    pub(crate) fn start(self: &Rc<Self>, listener: std::net::TcpListener) {
        let listener = TcpListener::from_std(listener).expect("the thread has a runtime");
        spawn_local(self.clone().accept(listener));
        for index in 0..self.links.len() {
            let member = MemberId(index as u8);
            if member != self.me {
                spawn_local(self.clone().dial(member));
            }
        }
    }

    fn link(&self, member: MemberId) -> &Link {
        &self.links[usize::from(member.0)]
    }

    /// Sends a packet. It is lost if its receiver is not connected, or reads too slowly.
    pub(crate) fn send(&self, packet: Packet) {
        let to = packet.to;
        let link = self.link(to);
        if !link.is_connected.get() {
            return;
        }
        if link.unwritten.get() > QUEUE_BYTES_MAX {
            if link.dropped.replace(link.dropped.get() + 1) == 0 {
                let member = self.group.name_of(to);
                tracing::warn!(
                    member,
                    "the member reads nothing; packets for it are dropped"
                );
            }
            return;
        }
        let mut buffer = link.buffer.borrow_mut();
        let before = buffer.len();
        codec::encode_packet(packet, &mut buffer).expect("names of resources are short");
        let appended = buffer.len() - before;
        link.unwritten.set(link.unwritten.get() + appended);
        link.filled.notify_one();
    }

    /// Waits until all packets were written.
    pub(crate) async fn drained(&self) {
        for link in &self.links {
            while link.unwritten.get() > 0 {
                link.emptied.notified().await;
            }
        }
    }

    /// Keeps a connection to a member.
    async fn dial(self: Rc<Self>, to: MemberId) {
        let member = self.group.name_of(to);
        let link = self.link(to);
        let mut backoff = BACKOFF_MIN;
        let mut last_problem = String::new();
        loop {
            let problem = match self.connect(to).await {
                Err(problem) => problem,
                Ok((mut reader, mut writer)) => {
                    if !last_problem.is_empty() || backoff == BACKOFF_MIN {
                        tracing::info!(member, "connected");
                    }
                    let began = Instant::now();
                    link.is_connected.set(true);
                    let problem = tokio::select! {
                        problem = link.write(&mut writer) => problem,
                        // The other end sends nothing more.
                        end = reader.next_frame_at_most(0) => match end {
                            Err(error) => error.to_string(),
                            Ok(_) => "the other end closed the connection".to_owned(),
                        },
                    };
                    link.is_connected.set(false);
                    link.buffer.borrow_mut().clear();
                    link.unwritten.set(0);
                    link.emptied.notify_waiters();
                    // Another process with this member's name may take the connection again and again.
                    if began.elapsed() > BACKOFF_MAX {
                        backoff = BACKOFF_MIN;
                    }
                    problem
                }
            };
            if problem != last_problem {
                tracing::info!(member, problem, "not connected");
                last_problem = problem;
            }
            sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// Connects to a member.
    ///
    /// # Errors
    /// Returns the reason, in words.
    async fn connect(
        &self,
        to: MemberId,
    ) -> Result<(FrameReader<ClientReadHalf>, ClientWriteHalf), String> {
        let address = &self.group.members()[usize::from(to.0)].address;
        let connecting = timeout(HELLO_TIMEOUT, TcpStream::connect(address)).await;
        let stream = connecting.map_err(|_| "no answer".to_owned())?;
        let stream = stream.map_err(|error| error.to_string())?;
        set_options(&stream).map_err(|error| error.to_string())?;
        let (reader, mut writer) = split(stream, None);
        let mut reader = FrameReader::new(reader);
        let hello = Hello {
            magic: MAGIC,
            from: self.group.name_of(self.me).to_owned(),
            to: self.group.name_of(to).to_owned(),
            agreement: self.group.agreement(),
        };
        let greeted = async {
            write_frame(&mut writer, &hello).await?;
            let frame = reader.next_frame_at_most(HELLO_BYTES_MAX).await;
            let frame = frame.map_err(|error| error.to_string())?;
            let frame = frame.ok_or("the other end closed the connection before its greeting")?;
            let greeting = Greeting::decode(frame);
            greeting.map_err(|error| format!("malformed greeting: {error}"))
        };
        let greeting = timeout(HELLO_TIMEOUT, greeted).await;
        let greeting: Result<Greeting, String> = greeting.map_err(|_| "no greeting".to_owned())?;
        let Greeting { refusal } = greeting?;
        if refusal.is_empty() {
            Ok((reader, writer))
        } else {
            Err(format!("refused: {refusal}"))
        }
    }

    /// Accepts connections.
    async fn accept(self: Rc<Self>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, address)) => {
                    // A stranger that says nothing keeps its place for a few seconds only.
                    let Ok(permit) = self.unidentified.clone().try_acquire_owned() else {
                        continue;
                    };
                    let peers = self.clone();
                    spawn_local(async move {
                        let identified = timeout(HELLO_TIMEOUT, peers.identify(stream)).await;
                        drop(permit);
                        match identified {
                            Ok(Ok((from, reader, writer))) => peers.serve(from, reader, writer),
                            Ok(Err(problem)) => {
                                tracing::warn!(%address, problem, "a connection is refused");
                            }
                            Err(_) => tracing::warn!(%address, "a connection without a hello"),
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection cannot be accepted");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Reads the hello of a new connection, and answers it.
    ///
    /// # Errors
    /// Returns the reason of a refusal, in words.
    async fn identify(
        &self,
        stream: TcpStream,
    ) -> Result<(MemberId, FrameReader<ClientReadHalf>, ClientWriteHalf), String> {
        set_options(&stream).map_err(|error| error.to_string())?;
        let (reader, mut writer) = split(stream, None);
        let mut reader = FrameReader::new(reader);
        let frame = reader.next_frame_at_most(HELLO_BYTES_MAX).await;
        let checked = match frame {
            Ok(Some(frame)) => Hello::decode(frame)
                .map_err(|error| format!("malformed hello: {error}"))
                .and_then(|hello| self.check(&hello)),
            Ok(None) => return Err("closed before its hello".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let refusal = checked.as_ref().err().cloned().unwrap_or_default();
        write_frame(&mut writer, &Greeting { refusal }).await?;
        match checked {
            Ok(from) => Ok((from, reader, writer)),
            Err(problem) => {
                // If the connection were closed with bytes unread, the answer could be lost.
                let _ = timeout(LINGER, reader.next_frame_at_most(0)).await;
                Err(problem)
            }
        }
    }

    fn check(&self, hello: &Hello) -> Result<MemberId, String> {
        if hello.magic != MAGIC {
            let (found, wanted) = (hello.magic, MAGIC);
            return Err(format!(
                "hello.magic is {found:#010x}, expected was {wanted:#010x}; run the same version of \
                 leasehold in all members"
            ));
        }
        let me = self.group.name_of(self.me);
        let (ours, theirs) = (self.group.agreement(), &hello.agreement);
        if let Some((ours, theirs)) = difference(&ours, theirs) {
            let from = &hello.from;
            return Err(format!(
                "the groups differ: {from:?} has {theirs}, {me:?} has {ours}; give all members the same \
                 group file"
            ));
        }
        if hello.to != me {
            let to = &hello.to;
            return Err(format!(
                "it dials member {to:?}, but this is {me:?}; correct the addresses"
            ));
        }
        let from = self
            .group
            .member(&hello.from)
            .filter(|from| *from != self.me);
        from.ok_or_else(|| format!("hello.from is {:?}, no other member", hello.from))
    }

    /// Serves an accepted connection of a member, in place of an earlier one.
    fn serve(
        self: Rc<Self>,
        from: MemberId,
        mut reader: FrameReader<ClientReadHalf>,
        writer: ClientWriteHalf,
    ) {
        let peers = self.clone();
        let task = spawn_local(async move {
            let problem = peers.receive(from, &mut reader).await;
            let member = peers.group.name_of(from);
            tracing::debug!(member, problem, "the connection has ended");
            drop(writer);
        });
        let earlier = self.link(from).accepted.replace(Some(task.abort_handle()));
        if let Some(earlier) = earlier {
            earlier.abort();
        }
    }

    /// Passes packets of a member to the driver. Returns the reason for the end of the connection.
    async fn receive(&self, from: MemberId, reader: &mut FrameReader<ClientReadHalf>) -> String {
        loop {
            let frame = match reader.next_frame_at_most(FRAME_BYTES_MAX).await {
                Ok(Some(frame)) => frame,
                Ok(None) => return "closed by the member".to_owned(),
                Err(error) => return error.to_string(),
            };
            let packet = match codec::decode_packet(frame, from, self.me) {
                Ok(packet) => packet,
                Err(error) => return error.to_string(),
            };
            if self.packets.send(packet).await.is_err() {
                return "this member ends".to_owned();
            }
        }
    }
}

impl Link {
    /// Writes appended bytes until the connection breaks. Returns the reason.
    async fn write(&self, writer: &mut ClientWriteHalf) -> String {
        loop {
            self.filled.notified().await;
            loop {
                // What is appended during the write is written next.
                let mut bytes = self.buffer.borrow_mut().split();
                if bytes.is_empty() {
                    break;
                }
                let count = bytes.len();
                let written = async {
                    writer.write_all_buf(&mut bytes).await?;
                    writer.flush().await
                };
                if let Err(error) = written.await {
                    let error: io::Error = error;
                    return error.to_string();
                }
                self.unwritten.set(self.unwritten.get() - count);
            }
            self.dropped.set(0);
            self.emptied.notify_waiters();
        }
    }
}

async fn write_frame(
    writer: &mut ClientWriteHalf,
    message: &impl prost::Message,
) -> Result<(), String> {
    let mut buffer = BytesMut::new();
    encode_frame(message, &mut buffer).map_err(|error| error.to_string())?;
    let written = async {
        writer.write_all_buf(&mut buffer).await?;
        writer.flush().await
    };
    written.await.map_err(|error: io::Error| error.to_string())
}

fn set_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    Ok(rustix::net::sockopt::set_tcp_user_timeout(
        stream,
        STALLED_AFTER_MS,
    )?)
}
