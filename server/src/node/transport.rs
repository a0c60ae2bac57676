//! The connections between replicas: one for each direction.
//!
//! A replica writes only on connections it dialled and reads only from those it
//! accepted, so each direction breaks and heals by itself. Messages may be lost
//! and the core asks again, so nothing is kept for a peer that is not connected,
//! and what a stalled peer does not take is dropped past a bound.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use client::wire::{FrameError, encode_frame};
use leases::{ReplicaId, ReplicaSet};
use prost::Message as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::error::Elapsed;
use tokio::time::timeout_at;

use super::descriptors::{Seat, Seats};
use super::ends;
use super::frames::Frames;
use super::handshakes::{Handshakes, Side};
use super::inbox::Inbox;
use super::outbox::{Outbox, Unread};
use super::sockets;
use crate::codec::{self, proto};
use crate::replica::input::Input;
use crate::replica::message::{Envelope, Message};

/// "LHP" and the protocol's version.
const MAGIC: u32 = 0x4C48_5005;
/// Bytes asked of a peer's socket at a time.
const READ_BYTES: usize = 64 << 10;
/// Bytes that may wait for a peer that reads nothing; promises may exceed that.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// From its connection on, a peer has so long to say who it is, and to prove it.
const HELLO_WITHIN: Duration = Duration::from_secs(5);
/// How long a refused peer has to read why.
const LINGER: Duration = Duration::from_secs(1);
/// The longest hello: names have at most 64 bytes, and whoever sends it may be anybody.
const HELLO_BYTES_MAX: usize = 4 << 10;
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Unacknowledged for so long, a connection is given up: TCP alone would wait
/// longer after an outage the longer the outage was.
const STALLED_AFTER_MS: u32 = 5_000;
/// Peers ping each other more often than that: who has sent nothing for so long is asked.
const SILENT_AFTER: Duration = Duration::from_secs(4);
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// A member of the cluster, as this replica reaches it.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) name: String,
    /// `host:port` to dial.
    pub(super) address: String,
}

/// This replica's view of all others.
#[derive(Debug)]
pub(super) struct Peers {
    cluster: String,
    me: ReplicaId,
    members: Vec<Member>,
    links: Vec<Link>,
    inbox: Rc<Inbox>,
    /// Messages that could not be encoded.
    unsendable: Cell<u64>,
    unread: Rc<Unread>,
    door: Door,
}

/// How connections are made and accepted.
#[derive(Debug)]
pub(super) struct Door {
    /// For connections that this replica accepts.
    pub(super) seats: Seats,
    /// On those, and on those that it dials.
    pub(super) handshakes: Rc<Handshakes>,
}

#[derive(Debug, Default)]
struct Link {
    connected: RefCell<Option<Rc<Outbox>>>,
    dirty: Cell<bool>,
    /// The number of the newest promise of which a part was taken; 0: none.
    promise: Cell<u64>,
    /// Messages dropped since the link was last idle.
    dropped: Cell<u64>,
}

impl Peers {
    pub(super) fn new(
        cluster: &str,
        me: ReplicaId,
        members: Vec<Member>,
        inbox: Rc<Inbox>,
        door: Door,
    ) -> Peers {
        Peers {
            cluster: cluster.to_owned(),
            me,
            links: members.iter().map(|_| Link::default()).collect(),
            members,
            inbox,
            unsendable: Cell::default(),
            unread: Rc::default(),
            door,
        }
    }

    /// Messages of this run that could not be encoded, and were dropped. There should
    /// be none: the core splits what does not fit into a frame.
    pub(super) fn unsendable(&self) -> u64 {
        self.unsendable.get()
    }

    /// Those of both ports.
    pub(super) fn handshakes(&self) -> &Handshakes {
        &self.door.handshakes
    }

    /// Appends a message; [`Peers::flush`] sends it. It is dropped if too much waits. But of a
    /// promise whose first part was taken all parts are, since a part is of no use without the
    /// others: whoever asked for it would ask again, in vain.
    pub(super) fn send(&self, to: ReplicaId, envelope: Envelope) {
        let link = &self.links[to.index()];
        let connected = link.connected.borrow();
        let Some(outbox) = connected.as_ref() else {
            return;
        };
        let promise = match envelope.message {
            Message::Prepared { answer, .. } => answer,
            _ => 0,
        };
        let belongs = promise > 0 && promise == link.promise.get();
        if !belongs && outbox.pending_bytes() > QUEUE_BYTES_MAX {
            if link.dropped.replace(link.dropped.get() + 1) == 0 {
                let peer = &self.members[to.index()].name;
                tracing::warn!(peer, "takes no messages; what is new is dropped");
            }
            return;
        }
        link.dropped.set(0);
        link.promise.set(link.promise.get().max(promise));
        let message = envelope.message.name();
        if let Err(error) = codec::encode_envelope(envelope, &mut outbox.buffer()) {
            self.unsendable.set(self.unsendable.get() + 1);
            let peer = &self.members[to.index()].name;
            tracing::error!(
                peer,
                message,
                %error,
                "a message is dropped, for it cannot be sent; this is a mistake of the program, please report it"
            );
        }
        link.dirty.set(true);
    }

    /// Writes all messages appended, once per peer.
    pub(super) fn flush(&self) {
        for link in &self.links {
            if link.dirty.replace(false)
                && let Some(outbox) = link.connected.borrow().as_ref()
            {
                outbox.flush();
            }
        }
    }

    /// Keeps a connection to `peer`, for as long as it is polled.
    pub(super) async fn dial(self: Rc<Self>, peer: ReplicaId) {
        let Member { name, address } = &self.members[peer.index()];
        let mut backoff = BACKOFF_MIN;
        let mut last_problem = String::new();
        loop {
            let started = Instant::now();
            let problem = self.converse(peer).await;
            if problem != last_problem {
                tracing::info!(peer = name, address, problem, "not connected");
                last_problem = problem;
            }
            if started.elapsed() > BACKOFF_MAX {
                backoff = BACKOFF_MIN;
            }
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// Dials and stays connected. Returns why it no longer is.
    async fn converse(&self, peer: ReplicaId) -> String {
        let address = &self.members[peer.index()].address;
        let connecting = tokio::time::timeout(CONNECT_WITHIN, TcpStream::connect(address));
        let stream = match connecting.await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return "no answer".to_owned(),
        };
        if let Err(error) = prepare(&stream) {
            return error.to_string();
        }
        let until = tokio::time::Instant::now() + CONNECT_WITHIN;
        let handshakes = &self.door.handshakes;
        let shaken = match handshakes.shake(stream, Side::Dialled(peer), until).await {
            Ok(shaken) => shaken,
            Err(problem) => return problem,
        };
        let (reader, writer) = ends::split(shaken);
        let outbox = Rc::new(Outbox::new(writer, self.unread.clone()));
        // Names are short, so it fits.
        let _ = encode_frame(&self.hello(peer), &mut outbox.buffer());
        outbox.flush();
        let link = &self.links[peer.index()];
        link.connected.replace(Some(outbox.clone()));
        let ended = tokio::select! {
            problem = self.listen_to_dialled(peer, Frames::new(reader, 1 << 10)) => problem,
            () = outbox.drain() => "the connection broke".to_owned(),
        };
        link.connected.replace(None);
        ended
    }

    /// Reads from a connection that this replica dialled. The peer sends nothing on it but
    /// a greeting.
    async fn listen_to_dialled(&self, peer: ReplicaId, mut frames: Frames) -> String {
        loop {
            let greeting = match frames.wait().await {
                Ok(Some(frame)) => proto::Greeting::decode(frame),
                Ok(None) => return "closed by the peer".to_owned(),
                Err(error) => return error.to_string(),
            };
            match greeting {
                Ok(proto::Greeting { refusal }) if refusal.is_empty() => {
                    let Member { name, address } = &self.members[peer.index()];
                    tracing::info!(peer = name, address, "connected");
                }
                Ok(proto::Greeting { refusal }) => return format!("refused: {refusal}"),
                Err(error) => return format!("malformed greeting: {error}"),
            }
        }
    }

    fn hello(&self, to: ReplicaId) -> proto::Hello {
        proto::Hello {
            magic: MAGIC,
            cluster: self.cluster.clone(),
            members: self.members.len() as u32,
            from: self.me.0.into(),
            from_name: self.members[self.me.index()].name.clone(),
            to: to.0.into(),
            to_name: self.members[to.index()].name.clone(),
        }
    }

    /// Takes connections of peers for as long as it is polled.
    pub(super) async fn accept(self: Rc<Self>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, address)) => match self.door.seats.take() {
                    Some(seat) => {
                        tokio::task::spawn_local(self.clone().serve(stream, address, seat));
                    }
                    // A peer tries again.
                    None if self.door.seats.refuse() => {
                        tracing::warn!(%address, "too many connections on the peers' port");
                    }
                    None => {}
                },
                Err(error) => {
                    tracing::warn!(%error, "cannot take a peer's connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn serve(self: Rc<Self>, stream: TcpStream, address: SocketAddr, _seat: Seat) {
        if let Err(error) = prepare(&stream) {
            tracing::info!(%address, %error, "a peer's connection broke");
            return;
        }
        let until = tokio::time::Instant::now() + HELLO_WITHIN;
        let shaken = match self.door.handshakes.shake(stream, Side::Peer, until).await {
            Ok(shaken) => shaken,
            Err(problem) => {
                tracing::warn!(%address, problem, "a peer's connection is closed");
                return;
            }
        };
        let proved = shaken.proved;
        let (reader, writer) = ends::split(shaken);
        let outbox = Outbox::new(writer, self.unread.clone());
        let mut frames = Frames::new(reader, READ_BYTES);
        let hello = timeout_at(until, self.read_hello(&mut frames, proved));
        let outcome = match self.greet(hello.await, &outbox) {
            Ok(from) => self.listen(from, &mut frames).await,
            Err(problem) => {
                say_farewell(&outbox, &mut frames).await;
                Err(problem)
            }
        };
        // The driver still handles the messages that came before the end.
        self.inbox.ring();
        if let Err(problem) = outcome {
            tracing::warn!(%address, problem, "a peer's connection is closed");
        }
    }

    /// The replica at the other end; `None` if it has gone. `proved` are those that it has
    /// proved to be, if that is asked for.
    async fn read_hello(
        &self,
        frames: &mut Frames,
        proved: Option<ReplicaSet>,
    ) -> Result<Option<ReplicaId>, Refusal> {
        if proved.is_some_and(|proved| proved == ReplicaSet::EMPTY) {
            let problem = "its certificate is that of no member of this cluster";
            return Err(Refusal::same(problem.to_owned()));
        }
        let hello = match frames.wait_at_most(HELLO_BYTES_MAX).await {
            Ok(Some(frame)) => proto::Hello::decode(frame),
            Ok(None) => return Ok(None),
            Err(error) => return Err(Refusal::same(error.to_string())),
        };
        let hello = hello.map_err(|error| Refusal::same(format!("malformed hello: {error}")))?;
        let from = self.check(&hello)?;
        match proved {
            Some(proved) if !proved.contains(from) => {
                let name = &hello.from_name;
                let problem = format!("hello.from_name is {name:?}, its certificate is another's");
                Err(Refusal::same(problem))
            }
            _ => Ok(Some(from)),
        }
    }

    /// Answers a hello. The replica at the other end, or why it is refused, for the own log. A
    /// refused one is told which field is wrong, and nothing that it did not say itself: it may
    /// be anybody.
    fn greet(
        &self,
        read: Result<Result<Option<ReplicaId>, Refusal>, Elapsed>,
        outbox: &Outbox,
    ) -> Result<ReplicaId, String> {
        let checked = match read {
            Ok(Ok(Some(from))) => Ok(from),
            Ok(Ok(None)) => return Err("closed before its hello".to_owned()),
            Ok(Err(refusal)) => Err(refusal),
            Err(_) => Err(Refusal::same("no hello came".to_owned())),
        };
        let refusal = checked.as_ref().err();
        let refusal = refusal.map(|refusal| refusal.told.clone());
        let refusal = refusal.unwrap_or_default();
        // It fits: a hello is bounded, and no other string is quoted.
        let _ = encode_frame(&proto::Greeting { refusal }, &mut outbox.buffer());
        outbox.flush();
        checked.map_err(|refusal| refusal.known)
    }

    fn check(&self, hello: &proto::Hello) -> Result<ReplicaId, Refusal> {
        let magic = |number: u32| format!("{number:#010x}");
        expect("magic", magic(hello.magic), magic(MAGIC))?;
        expect("cluster", &hello.cluster, &self.cluster)?;
        expect("members", hello.members, self.members.len())?;
        expect(
            "to_name",
            &hello.to_name,
            &self.members[self.me.index()].name,
        )?;
        expect("to", hello.to, self.me.0)?;
        let Some(member) = self.members.get(hello.from as usize) else {
            let problem = format!("hello.from is {}, no such replica", hello.from);
            return Err(Refusal::same(problem));
        };
        expect("from_name", &hello.from_name, &member.name)?;
        let from = ReplicaId(hello.from as u8);
        if from == self.me {
            let problem = "hello.from is this replica itself".to_owned();
            return Err(Refusal::same(problem));
        }
        Ok(from)
    }

    /// Passes a peer's messages to the driver, in groups that arrived together.
    async fn listen(&self, from: ReplicaId, frames: &mut Frames) -> Result<(), String> {
        loop {
            while let Some(frame) = frames.next().map_err(|error| error.to_string())? {
                let bytes = frame.len();
                let envelope = codec::decode_envelope(frame).map_err(|error| error.to_string())?;
                if envelope.from != from {
                    return Err(format!("{from:?} speaks for {:?}", envelope.from));
                }
                self.inbox.push_peer(Input::Peer(envelope), bytes);
            }
            self.inbox.ring();
            self.inbox.room_for_peers().await;
            match frames.fill().await.map_err(FrameError::from) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

/// Why a peer is refused: in the words that it is told, and in those of the own log.
#[derive(Debug)]
struct Refusal {
    told: String,
    known: String,
}

impl Refusal {
    /// There is nothing in it that the peer does not know.
    fn same(problem: String) -> Refusal {
        Refusal {
            told: problem.clone(),
            known: problem,
        }
    }
}

/// Refuses a hello in which `field` is not what it should be.
fn expect(field: &str, found: impl ToString, wanted: impl ToString) -> Result<(), Refusal> {
    let (found, wanted) = (found.to_string(), wanted.to_string());
    if found == wanted {
        return Ok(());
    }
    Err(Refusal {
        told: format!(
            "hello.{field} is {found:?}, which is not what this replica expects: \
             its log says more; compare the configurations of both replicas"
        ),
        known: format!(
            "hello.{field} is {found:?}, expected was {wanted:?}; \
             compare the configurations of both replicas"
        ),
    })
}

/// Gives a refused peer a moment to read why.
async fn say_farewell(outbox: &Outbox, frames: &mut Frames) {
    let farewell = async {
        outbox.emptied().await;
        outbox.shut();
        // Closing with bytes unread would take the answer back.
        frames.discard().await;
    };
    let _ = tokio::time::timeout(LINGER, farewell).await;
}

fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    rustix::net::sockopt::set_tcp_user_timeout(stream, STALLED_AFTER_MS)?;
    sockets::notice_silence(stream, SILENT_AFTER)
}

#[cfg(test)]
mod tests {
    use leases::{Ballot, Incarnation, Slot};

    use super::*;
    use crate::replica::message::{LogId, PerLog};

    const TO: ReplicaId = ReplicaId(1);

    /// Two members, of which the second is connected and reads nothing.
    async fn unread_peers() -> (Peers, TcpStream) {
        let member = |name: &str| Member {
            name: name.to_owned(),
            address: "127.0.0.1:9".to_owned(),
        };
        let members = vec![member("A"), member("B")];
        let door = Door {
            seats: Seats::new(1),
            handshakes: Rc::new(Handshakes::none()),
        };
        let peers = Peers::new("c", ReplicaId(0), members, Rc::default(), door);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap());
        let (stream, accepted) = tokio::join!(stream, listener.accept());
        let writer = stream.unwrap().into_split().1;
        let outbox = Rc::new(Outbox::new(writer, peers.unread.clone()));
        peers.links[TO.index()].connected.replace(Some(outbox));
        (peers, accepted.unwrap().0)
    }

    fn pending(peers: &Peers) -> usize {
        let connected = peers.links[TO.index()].connected.borrow();
        connected.as_ref().unwrap().pending_bytes()
    }

    /// Appends a message over and over, until so many bytes would wait.
    fn append(peers: &Peers, message: &Message, bytes: usize) {
        let envelope = Envelope {
            from: ReplicaId(0),
            from_incarnation: Incarnation(1),
            to_incarnation: Incarnation(1),
            message: message.clone(),
        };
        for _ in 0..bytes.div_ceil(codec::envelope_bytes(envelope.clone())) {
            peers.send(TO, envelope.clone());
        }
    }

    #[tokio::test]
    async fn a_promise_is_queued_whole_or_not_at_all() {
        let (peers, _silent) = unread_peers().await;
        let ballot = Ballot::ZERO;
        let starts = |n| (1..=n).map(|slot| (LogId::Commands, ballot, Slot(slot)));
        let part = |answer| Message::Prepared {
            ballot,
            answer,
            part: 0,
            parts: 1,
            commits: PerLog::default(),
            entries: Vec::new(),
            log_starts: starts(50_000).collect(),
        };
        let large = QUEUE_BYTES_MAX * 3 / 2;
        append(&peers, &part(1), large);
        let whole = pending(&peers);
        assert!(whole >= large, "{whole}");
        append(&peers, &part(2), large);
        assert_eq!(
            pending(&peers),
            whole,
            "nothing of a copy that was asked for meanwhile"
        );
        peers.flush();
        append(&peers, &part(3), large);
        assert!(
            pending(&peers) <= whole,
            "nor of one that is asked for later"
        );
    }

    #[tokio::test]
    async fn what_would_be_sent_again_is_dropped_past_a_bound() {
        let (peers, _silent) = unread_peers().await;
        let accept = Message::TransferRequest;
        append(&peers, &accept, QUEUE_BYTES_MAX * 5 / 4);
        let pending = pending(&peers);
        assert!(pending <= QUEUE_BYTES_MAX + 100, "{pending}");
    }
}
