//! The connections between replicas, one for each direction.
//!
//! A replica sends messages only on connections that it dialled, and receives them only on
//! connections that it accepted. So each direction breaks and recovers by itself. Messages may be
//! lost, and the core repeats its requests. So no message is kept for a peer that is not connected,
//! and messages for a stalled peer are dropped once too many bytes wait.
//!
//! Answers to a peer's reads wait in a separate queue while its connection has enough other bytes
//! to send. Their values are in the store anyway, so queueing them takes no additional memory. A
//! peer requests only a bounded number of reads at a time. If the answers were dropped instead, the
//! peer would repeat the reads, and all values would be read, sent and dropped again.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use leasehold_leases::ReplicaId;
use leasehold_wire::encode_frame;
use prost::Message as _;
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::front::admission::evicting_slots::EvictingSlots;
use crate::front::frames::Frames;
use crate::front::inbox::Inbox;
use crate::front::outbox::{Outbox, UnreadBytes};
use crate::security::halves;
use crate::security::handshakes::{Handshakes, Side};
use crate::sockets;
use crate::watch::log_rate_limiter::LogRateLimiter;
use leasehold_replica::codec::{self, proto};
use leasehold_replica::message::{Envelope, Message};

/// Magic number of the protocol between peers: "LHP" and the version of the protocol.
pub const MAGIC: u32 = 0x4C48_5008;
/// Maximum number of bytes that wait for a peer that reads too slowly. A promise with several parts
/// may exceed this maximum.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Limit on the waiting bytes for long messages. Above this limit, all long messages except
/// promises are dropped. Heartbeats wait behind the same bytes. On a slow link, or for a slow peer,
/// more bytes would delay heartbeats so much that the peer would suspect the leader.
const BULK_BYTES_MAX: usize = 8 << 20;
/// Limit on the waiting bytes for long answers to reads. Above this limit, such answers go into a
/// separate queue. The rest of the space, up to [`BULK_BYTES_MAX`], is for consensus messages.
const ANSWER_BYTES_MAX: usize = 2 << 20;
/// Maximum number of bytes of queued answers. Answers above the maximum are dropped. The answers to
/// all reads that one peer requests at a time have about this total size.
const QUEUED_ANSWER_BYTES_MAX: usize = 64 << 20;
/// Maximum size of a short message, in bytes.
const SHORT_BYTES: usize = 4 << 10;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time to wait for a TCP acknowledgement before a connection is dropped. Without this
/// limit, the wait would grow with the length of an outage.
const STALLED_AFTER_MS: u32 = 5_000;
/// Idle time after which the kernel sends keepalive probes to a peer. Peers send pings more often
/// than this.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(4);
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// A member of the cluster, with the address at which this replica dials it.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) name: String,
    /// Address to dial, as `host:port`.
    pub(crate) address: String,
}

/// Connections that this replica keeps to all other replicas.
#[derive(Debug)]
pub(crate) struct Peers {
    pub(crate) cluster: String,
    pub(crate) me: ReplicaId,
    pub(crate) members: Vec<Member>,
    links: Vec<PeerLink>,
    pub(crate) inbox: Rc<Inbox>,
    /// Number of messages that could not be encoded.
    unsendable: Cell<u64>,
    pub(crate) unread: Rc<UnreadBytes>,
    pub(crate) admission: PeerAdmission,
}

/// Slots and handshakes for accepting peers' connections, and for dialling peers.
#[derive(Debug)]
pub(crate) struct PeerAdmission {
    /// Slots for connections on which the peer has not identified itself yet. The key of a slot is
    /// the IP address.
    pub(crate) unauthenticated: EvictingSlots<IpAddr>,
    /// Slots for connections of identified peers. The key of a slot is the replica.
    pub(crate) accepted: EvictingSlots<ReplicaId>,
    /// TLS handshakes of the connections on both ports, and of the connections that this replica
    /// dials.
    pub(crate) handshakes: Rc<Handshakes>,
    pub(crate) close_log: CloseLogLimiters,
}

/// Rate limits of the log lines about closed connections.
#[derive(Debug, Default)]
pub(crate) struct CloseLogLimiters {
    pub(crate) unauthenticated: LogRateLimiter,
    pub(crate) peers: LogRateLimiter,
}

#[derive(Debug, Default)]
struct PeerLink {
    connected: RefCell<Option<Rc<Outbox>>>,
    dirty: Cell<bool>,
    /// Number of the newest promise that was sent at least in part; 0 if there is none.
    promise: Cell<u64>,
    /// Number of dropped messages since the waiting bytes were last at most half of
    /// [`BULK_BYTES_MAX`]. Only the first of these messages is logged.
    dropped: Cell<u64>,
    queued_answers: RefCell<QueuedAnswers>,
    /// Notified when an answer is queued.
    answer_queued: Notify,
}

/// Queued answers to a peer's reads, each with its size in bytes. They wait until the connection
/// can take them.
#[derive(Debug, Default)]
struct QueuedAnswers {
    answers: VecDeque<(Envelope, usize)>,
    bytes: usize,
}

impl QueuedAnswers {
    /// Queues an answer if the queue has space. Returns whether the answer was queued.
    fn push(&mut self, envelope: Envelope, bytes: usize) -> bool {
        let fits = self.bytes + bytes <= QUEUED_ANSWER_BYTES_MAX;
        if fits {
            self.bytes += bytes;
            self.answers.push_back((envelope, bytes));
        }
        fits
    }

    fn pop(&mut self) -> Option<Envelope> {
        let (envelope, bytes) = self.answers.pop_front()?;
        self.bytes -= bytes;
        Some(envelope)
    }
}

impl PeerLink {
    /// Queues a long answer to reads if other answers are queued, or if many bytes wait on the
    /// connection. Drops the answer if the queue is full. Returns the message if it was neither
    /// queued nor dropped.
    fn queue_long_answer(&self, envelope: Envelope, outbox: &Outbox) -> Option<Envelope> {
        if !matches!(envelope.message, Message::ReadAnswers(_)) {
            return Some(envelope);
        }
        let mut queued = self.queued_answers.borrow_mut();
        let has_room = queued.answers.is_empty() && outbox.pending_bytes() <= ANSWER_BYTES_MAX;
        if has_room {
            return Some(envelope);
        }
        let bytes = codec::envelope_bytes(envelope.clone());
        if bytes <= SHORT_BYTES {
            return Some(envelope);
        }
        if queued.push(envelope, bytes) {
            self.answer_queued.notify_one();
        }
        None
    }
}

impl Peers {
    pub(crate) fn new(
        cluster: &str,
        me: ReplicaId,
        members: Vec<Member>,
        inbox: Rc<Inbox>,
        admission: PeerAdmission,
    ) -> Peers {
        Peers {
            cluster: cluster.to_owned(),
            me,
            links: members.iter().map(|_| PeerLink::default()).collect(),
            members,
            inbox,
            unsendable: Cell::default(),
            unread: Rc::default(),
            admission,
        }
    }

    /// Returns the number of messages that this process has dropped because they could not be
    /// encoded. The number should be 0, because the core splits messages that do not fit into a
    /// frame.
    pub(crate) fn unsendable(&self) -> u64 {
        self.unsendable.get()
    }

    /// Returns two counters by name. They count connections on the peers' port that lost their slot
    /// to a newer connection. The first counter is for unidentified peers, and the second is for
    /// identified peers.
    pub(crate) fn counters(&self) -> [(&'static str, u64); 2] {
        [
            (
                "peer_strangers_closed",
                self.admission.unauthenticated.evictions(),
            ),
            (
                "peer_connections_closed",
                self.admission.accepted.evictions(),
            ),
        ]
    }

    /// Returns the TLS handshakes, which both ports share.
    pub(crate) fn handshakes(&self) -> &Handshakes {
        &self.admission.handshakes
    }

    /// Appends a message; [`Peers::flush`] sends it. The message is dropped if too many bytes wait.
    /// Promises are an exception: if the first part of a promise was appended, all its other parts
    /// are appended, too, because a part is useless without the others.
    pub(crate) fn send(&self, to: ReplicaId, envelope: Envelope) {
        let link = &self.links[to.index()];
        let connected = link.connected.borrow();
        let Some(outbox) = connected.as_ref() else {
            return;
        };
        let Some(envelope) = link.queue_long_answer(envelope, outbox) else {
            return;
        };
        let promise = match envelope.message {
            Message::Prepared { answer, .. } => answer,
            _ => 0,
        };
        let belongs = promise > 0 && promise == link.promise.get();
        if !belongs && is_too_much(outbox.pending_bytes(), &envelope) {
            if link.dropped.replace(link.dropped.get() + 1) == 0 {
                let peer = &self.members[to.index()].name;
                tracing::warn!(peer, "the peer takes no messages; new ones are dropped");
            }
            return;
        }
        // A stalled peer still gets short messages.
        if outbox.pending_bytes() <= BULK_BYTES_MAX / 2 {
            link.dropped.set(0);
        }
        link.promise.set(link.promise.get().max(promise));
        self.append(to, envelope, outbox);
        link.dirty.set(true);
    }

    fn append(&self, to: ReplicaId, envelope: Envelope, outbox: &Outbox) {
        let message = envelope.message.name();
        if let Err(error) = codec::encode_envelope(envelope, &mut outbox.buffer()) {
            self.unsendable.set(self.unsendable.get() + 1);
            let peer = &self.members[to.index()].name;
            tracing::error!(
                peer,
                message,
                %error,
                "a message cannot be sent and is dropped; this is a bug in the program, \
                 please report it"
            );
        }
    }

    /// Appends queued answers to `outbox` whenever the connection has taken bytes. Runs for as long
    /// as the future is polled.
    async fn send_queued_answers(&self, to: ReplicaId, outbox: &Outbox) -> Infallible {
        let link = &self.links[to.index()];
        loop {
            outbox.wait_until_at_most(ANSWER_BYTES_MAX).await;
            // The queue is not borrowed while this waits.
            let next = link.queued_answers.borrow_mut().pop();
            match next {
                Some(answers) => {
                    self.append(to, answers, outbox);
                    outbox.flush();
                    // Encoding an answer takes a while.
                    tokio::task::yield_now().await;
                }
                None => link.answer_queued.notified().await,
            }
        }
    }

    /// Writes all appended messages, with one write for each peer.
    pub(crate) fn flush(&self) {
        for link in &self.links {
            if link.dirty.replace(false)
                && let Some(outbox) = link.connected.borrow().as_ref()
            {
                outbox.flush();
            }
        }
    }

    /// Keeps a connection to `peer` for as long as the future is polled.
    pub(crate) async fn dial(self: Rc<Self>, peer: ReplicaId) {
        let Member { name, address } = &self.members[peer.index()];
        let mut backoff = BACKOFF_MIN;
        let mut last_problem = String::new();
        loop {
            let started = Instant::now();
            let problem = self.run_connection(peer).await;
            if problem != last_problem {
                tracing::info!(peer = name, address, problem, "the peer is not connected");
                last_problem = problem;
            }
            if started.elapsed() > BACKOFF_MAX {
                backoff = BACKOFF_MIN;
            }
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// Dials a peer and serves the connection until it ends. Returns the reason for the end.
    async fn run_connection(&self, peer: ReplicaId) -> String {
        let address = &self.members[peer.index()].address;
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address));
        let stream = match connecting.await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return "no answer".to_owned(),
        };
        if let Err(error) = set_socket_options(&stream) {
            return error.to_string();
        }
        let until = tokio::time::Instant::now() + CONNECT_TIMEOUT;
        let handshakes = &self.admission.handshakes;
        let established = match handshakes.perform(stream, Side::Dialled(peer), until).await {
            Ok(established) => established,
            Err(problem) => return problem,
        };
        let (reader, writer) = halves::split(established);
        let outbox = Rc::new(Outbox::new(writer, self.unread.clone()));
        // Names are short, so the frame fits.
        let _ = encode_frame(&self.hello(peer), &mut outbox.buffer());
        outbox.flush();
        let link = &self.links[peer.index()];
        link.queued_answers.take();
        link.connected.replace(Some(outbox.clone()));
        let ended = tokio::select! {
            never = self.send_queued_answers(peer, &outbox) => match never {},
            problem = self.receive_greetings(peer, Frames::new(reader, 1 << 10)) => problem,
            () = outbox.drain() => "the connection broke".to_owned(),
        };
        link.connected.replace(None);
        link.queued_answers.take();
        ended
    }

    /// Reads from a connection that this replica dialled. The peer sends only a greeting on this
    /// connection. Returns the reason for the connection's end.
    async fn receive_greetings(&self, peer: ReplicaId, mut frames: Frames) -> String {
        loop {
            let greeting = match frames.wait().await {
                Ok(Some(frame)) => proto::Greeting::decode(frame),
                Ok(None) => return "closed by the peer".to_owned(),
                Err(error) => return error.to_string(),
            };
            match greeting {
                Ok(proto::Greeting { refusal }) if refusal.is_empty() => {
                    let Member { name, address } = &self.members[peer.index()];
                    tracing::info!(peer = name, address, "the peer is connected");
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
}

/// Whether this message must be dropped. `pending` is the number of bytes that wait.
fn is_too_much(pending: usize, envelope: &Envelope) -> bool {
    if pending <= BULK_BYTES_MAX {
        return false;
    }
    let is_promise = matches!(envelope.message, Message::Prepared { .. });
    let is_short = || codec::envelope_bytes(envelope.clone()) <= SHORT_BYTES;
    pending > QUEUE_BYTES_MAX || !is_promise && !is_short()
}

pub(crate) fn set_socket_options(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    rustix::net::sockopt::set_tcp_user_timeout(stream, STALLED_AFTER_MS)?;
    sockets::enable_keepalive(stream, KEEPALIVE_IDLE)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use leasehold_leases::{Ballot, Incarnation, Slot};
    use leasehold_wire::command::Op;
    use leasehold_wire::{Command, Outcome, Path, Version};

    use tokio::net::TcpListener;

    use super::*;
    use leasehold_replica::message::{LogId, PerLog, ReadAnswer, RequestId};

    const TO: ReplicaId = ReplicaId(1);

    /// Returns the connections of one member, and the socket at which the only other member is
    /// connected. The other member reads nothing.
    async fn unread_peers() -> (Peers, TcpStream) {
        let member = |name: &str| Member {
            name: name.to_owned(),
            address: "127.0.0.1:9".to_owned(),
        };
        let members = vec![member("A"), member("B")];
        let admission = PeerAdmission {
            unauthenticated: EvictingSlots::new(1, 1),
            accepted: EvictingSlots::new(1, 1),
            handshakes: Rc::new(Handshakes::none()),
            close_log: CloseLogLimiters::default(),
        };
        let peers = Peers::new("c", ReplicaId(0), members, Rc::default(), admission);
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

    /// Appends a message repeatedly, until at least `bytes` bytes wait.
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
    async fn long_messages_leave_room_for_short_ones() {
        let (peers, _silent) = unread_peers().await;
        let value = Bytes::from(vec![7; 1 << 20]);
        let put = Command::session(1, 1, 1, Op::put("k", value));
        let forward = Message::Forward {
            commands: vec![(RequestId(1), put)],
        };
        append(&peers, &forward, QUEUE_BYTES_MAX);
        let long = pending(&peers);
        assert!(long <= BULK_BYTES_MAX + (2 << 20), "{long}");
        append(&peers, &Message::TransferRequest, 100);
        assert!(pending(&peers) >= long + 100);
    }

    fn answer(bytes: usize) -> Message {
        let value = Bytes::from(vec![7; bytes]);
        let outcome = Outcome::value(value, Version::default());
        Message::ReadAnswers(vec![ReadAnswer {
            request: RequestId(1),
            outcome: Some((outcome, Path::Forwarded)),
        }])
    }

    #[tokio::test]
    async fn answers_to_reads_wait_until_the_connection_takes_them() {
        let (peers, taking) = unread_peers().await;
        append(&peers, &answer(1 << 20), 40 << 20);
        let long = pending(&peers);
        assert!(long <= ANSWER_BYTES_MAX + (2 << 20), "{long}");
        append(&peers, &answer(100), 1);
        assert!(pending(&peers) > long, "a short one does not wait");
        let outbox = peers.links[TO.index()].connected.borrow().clone();
        let outbox = outbox.unwrap();
        outbox.flush();
        let mut frames = Frames::new(taking, 64 << 10);
        let take = async {
            for _ in 0..=40 {
                let frame = frames.wait().await.unwrap().unwrap();
                let envelope = codec::decode_envelope(frame).unwrap();
                assert!(matches!(envelope.message, Message::ReadAnswers(_)));
            }
        };
        tokio::select! {
            () = take => {}
            never = peers.send_queued_answers(TO, &outbox) => match never {},
            () = outbox.drain() => panic!("the connection broke"),
        }
        assert_eq!(peers.links[TO.index()].queued_answers.borrow().bytes, 0);
    }

    #[tokio::test]
    async fn answers_that_wait_go_in_their_order_and_no_faster_than_they_are_taken() {
        let (peers, _silent) = unread_peers().await;
        append(&peers, &answer(1 << 20), 40 << 20);
        let outbox = peers.links[TO.index()].connected.borrow().clone();
        let outbox = outbox.unwrap();
        // The bytes are freed as if the connection had taken them.
        outbox.free();
        append(&peers, &answer(1 << 20), 1);
        assert_eq!(pending(&peers), 0, "others have waited for longer");
        let turns = async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = turns => {}
            never = peers.send_queued_answers(TO, &outbox) => match never {},
        }
        let most = ANSWER_BYTES_MAX + (2 << 20);
        assert!((1..=most).contains(&pending(&peers)));
    }

    #[tokio::test]
    async fn answers_that_wait_are_bounded() {
        let (peers, _silent) = unread_peers().await;
        append(&peers, &answer(1 << 20), 100 << 20);
        let queued = peers.links[TO.index()].queued_answers.borrow().bytes;
        assert!((QUEUED_ANSWER_BYTES_MAX - (2 << 20)..=QUEUED_ANSWER_BYTES_MAX).contains(&queued));
        assert!(pending(&peers) <= ANSWER_BYTES_MAX + (2 << 20));
    }

    #[tokio::test]
    async fn what_would_be_sent_again_is_dropped_past_a_bound() {
        let (peers, _silent) = unread_peers().await;
        let accept = Message::TransferRequest;
        append(&peers, &accept, QUEUE_BYTES_MAX * 5 / 4);
        let pending = pending(&peers);
        assert!(pending <= QUEUE_BYTES_MAX + 100, "{pending}");
    }

    #[tokio::test]
    async fn that_messages_are_dropped_is_told_once_although_short_ones_are_sent() {
        let (peers, _silent) = unread_peers().await;
        let put = Command::session(9, 1, 1, Op::put("k", vec![7; 1 << 20]));
        let long = Message::Forward {
            commands: vec![(RequestId(1), put)],
        };
        append(&peers, &long, BULK_BYTES_MAX + (2 << 20));
        for dropped in 3..6 {
            append(&peers, &Message::TransferRequest, 1);
            append(&peers, &long, 1);
            assert_eq!(peers.links[TO.index()].dropped.get(), dropped);
        }
    }
}
