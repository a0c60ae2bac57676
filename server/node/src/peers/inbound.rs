//! Connections that other replicas make to this one: the identification of the peer, and its
//! messages.
//!
//! Connections with unidentified peers share a number of slots. If no slot is free, a new
//! connection takes the slot of the oldest one, or of the oldest from the same address if that
//! address has too many. Of each identified peer only the newest connections are kept. So neither
//! unidentified peers nor left-over connections keep a peer out.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use leasehold_leases::{ReplicaId, ReplicaSet};
use leasehold_wire::{FrameError, encode_frame};
use prost::Message as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::error::Elapsed;
use tokio::time::timeout_at;

use crate::front::admission::addresses::network_prefix;
use crate::front::admission::evicting_slots::EvictableSlot;
use crate::front::frames::Frames;
use crate::front::outbox::Outbox;
use crate::peers::transport::{MAGIC, Peers, set_socket_options};
use crate::security::halves;
use crate::security::handshakes::Side;
use leasehold_replica::codec::{self, proto};
use leasehold_replica::cost;
use leasehold_replica::input::Input;

/// Number of bytes that are requested from a peer's socket at a time.
const READ_BYTES: usize = 64 << 10;
/// Number of bytes that are taken from one peer before the other peers are served.
const TURN_BYTES: usize = 1 << 20;
/// Maximum time for a peer to state and prove its identity after its connection has begun.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a refused peer to read the reason for the refusal.
const LINGER: Duration = Duration::from_secs(1);
/// Maximum length of a hello, in bytes. It is small, because any machine may send a hello. Names in
/// a hello have at most 64 bytes.
const HELLO_BYTES_MAX: usize = 4 << 10;

impl Peers {
    /// Accepts connections of peers for as long as the future is polled.
    pub(crate) async fn accept(self: Rc<Self>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, address)) => {
                    let slot = self
                        .admission
                        .unauthenticated
                        .take(network_prefix(address.ip()));
                    tokio::task::spawn_local(self.clone().serve(stream, address, slot));
                    // A connection that has lost its slot closes before the next one is accepted.
                    tokio::task::yield_now().await;
                }
                Err(error) => {
                    tracing::warn!(%error, "a peer's connection cannot be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn serve(
        self: Rc<Self>,
        stream: TcpStream,
        address: SocketAddr,
        slot: EvictableSlot<IpAddr>,
    ) {
        let identified = tokio::select! {
            biased;
            () = slot.evicted() => {
                tracing::debug!(%address, "a connection is closed for a newer one, before the peer has identified itself");
                return;
            }
            identified = self.identify(stream) => identified,
        };
        drop(slot);
        let (outcome, close_log) = match identified {
            Ok(peer) => (self.serve_peer(peer).await, &self.admission.close_log.peers),
            Err(problem) => (Err(problem), &self.admission.close_log.unauthenticated),
        };
        // The driver still handles the messages that came before the end.
        self.inbox.wake();
        if let Err(problem) = outcome
            && let Some(untold) = close_log.due(Instant::now())
        {
            tracing::warn!(%address, problem, untold, "a peer's connection is closed");
        }
    }

    /// Identifies the peer at the other end of a new connection.
    async fn identify(&self, stream: TcpStream) -> Result<IdentifiedPeer, String> {
        set_socket_options(&stream).map_err(|error| error.to_string())?;
        let until = tokio::time::Instant::now() + HELLO_TIMEOUT;
        let handshakes = &self.admission.handshakes;
        let established = handshakes.perform(stream, Side::Peer, until).await?;
        let verified_members = established.verified_members;
        let (reader, writer) = halves::split(established);
        let outbox = Outbox::new(writer, self.unread.clone());
        let mut frames = Frames::new(reader, READ_BYTES);
        let hello = timeout_at(until, self.read_hello(&mut frames, verified_members));
        match self.reply_to_hello(hello.await, &outbox) {
            Ok(from) => {
                // The socket may not be known to be writable yet, and nothing else is written
                // later.
                let _ = timeout_at(until, outbox.wait_until_empty()).await;
                Ok(IdentifiedPeer {
                    from,
                    frames,
                    outbox,
                })
            }
            Err(problem) => {
                send_rejection(&outbox, &mut frames).await;
                Err(problem)
            }
        }
    }

    /// Serves a peer until its connection ends, or until newer connections of the same peer have
    /// taken the connection's slot.
    async fn serve_peer(&self, mut peer: IdentifiedPeer) -> Result<(), String> {
        let slot = self.admission.accepted.take(peer.from);
        let ended = tokio::select! {
            biased;
            () = slot.evicted() => Err("the peer has newer connections".to_owned()),
            ended = self.receive_messages(peer.from, &mut peer.frames) => ended,
        };
        // A reply to the peer may still be under way.
        drop(peer.outbox);
        ended
    }

    /// Reads the peer's hello. Returns the replica at the other end; `None` if the peer has closed
    /// the connection. `verified_members` contains the members that the peer may claim to be,
    /// according to its certificate. If no proof is required, `verified_members` is `None`.
    async fn read_hello(
        &self,
        frames: &mut Frames,
        verified_members: Option<ReplicaSet>,
    ) -> Result<Option<ReplicaId>, HelloRejection> {
        if verified_members.is_some_and(|verified_members| verified_members == ReplicaSet::EMPTY) {
            let problem = "its certificate is that of no member of this cluster";
            return Err(HelloRejection::same(problem.to_owned()));
        }
        let hello = match frames.wait_at_most(HELLO_BYTES_MAX).await {
            Ok(Some(frame)) => proto::Hello::decode(frame),
            Ok(None) => return Ok(None),
            Err(error) => return Err(HelloRejection::same(error.to_string())),
        };
        let hello =
            hello.map_err(|error| HelloRejection::same(format!("malformed hello: {error}")))?;
        let from = self.check(&hello)?;
        match verified_members {
            Some(verified_members) if !verified_members.contains(from) => {
                let name = &hello.from_name;
                let problem = format!("hello.from_name is {name:?}, its certificate is another's");
                Err(HelloRejection::same(problem))
            }
            _ => Ok(Some(from)),
        }
    }

    /// Answers a hello. Returns the replica at the other end. If the peer is refused, returns the
    /// reason as text for this node's log. The answer to a refused peer only says which field is
    /// wrong. It contains no information that the peer did not send itself, because the peer may be
    /// any machine.
    fn reply_to_hello(
        &self,
        read: Result<Result<Option<ReplicaId>, HelloRejection>, Elapsed>,
        outbox: &Outbox,
    ) -> Result<ReplicaId, String> {
        let checked = match read {
            Ok(Ok(Some(from))) => Ok(from),
            Ok(Ok(None)) => return Err("closed before its hello".to_owned()),
            Ok(Err(rejection)) => Err(rejection),
            Err(_) => Err(HelloRejection::same("no hello came".to_owned())),
        };
        let refusal = checked.as_ref().err();
        let refusal = refusal.map(|rejection| rejection.reply.clone());
        let refusal = refusal.unwrap_or_default();
        // The greeting fits into a frame: a hello is bounded, and the greeting quotes no other
        // string.
        let _ = encode_frame(&proto::Greeting { refusal }, &mut outbox.buffer());
        outbox.flush();
        checked.map_err(|rejection| rejection.log_message)
    }

    fn check(&self, hello: &proto::Hello) -> Result<ReplicaId, HelloRejection> {
        expect_version(hello.magic)?;
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
            return Err(HelloRejection::same(problem));
        };
        expect("from_name", &hello.from_name, &member.name)?;
        let from = ReplicaId(hello.from as u8);
        if from == self.me {
            let problem = "hello.from is this replica itself".to_owned();
            return Err(HelloRejection::same(problem));
        }
        Ok(from)
    }

    /// Passes a peer's messages to the driver. Messages that arrived together are passed together.
    async fn receive_messages(&self, from: ReplicaId, frames: &mut Frames) -> Result<(), String> {
        let mut turn = 0;
        loop {
            while let Some(frame) = frames.next().map_err(|error| error.to_string())? {
                let bytes = frame.len();
                turn += bytes;
                let envelope = codec::decode_envelope(frame).map_err(|error| error.to_string())?;
                if envelope.from != from {
                    return Err(format!("{from:?} speaks for {:?}", envelope.from));
                }
                let units = cost::of_message(&envelope.message, bytes);
                self.inbox.push_peer(Input::Peer(envelope), units);
            }
            self.inbox.wake();
            self.inbox.wait_for_peer_capacity().await;
            if turn >= TURN_BYTES {
                turn = 0;
                tokio::task::yield_now().await;
            }
            match frames.fill().await.map_err(FrameError::from) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

/// A peer that has stated and proved its identity.
struct IdentifiedPeer {
    from: ReplicaId,
    frames: Frames,
    /// Writing half of the connection. It is kept only because the connection would close without
    /// it. Nothing more is written to it.
    outbox: Outbox,
}

/// Reason why a peer is refused. There is one text for the peer and one text for this node's log.
#[derive(Debug)]
struct HelloRejection {
    reply: String,
    log_message: String,
}

impl HelloRejection {
    /// Returns a rejection with the same text for the peer and for the log. The text must contain
    /// only facts that the peer knows.
    fn same(problem: String) -> HelloRejection {
        HelloRejection {
            reply: problem.clone(),
            log_message: problem,
        }
    }
}

/// Refuses a hello of another version of the protocol between replicas. The version is the last byte
/// of the magic number.
fn expect_version(magic: u32) -> Result<(), HelloRejection> {
    if magic == MAGIC {
        return Ok(());
    }
    if magic >> 8 != MAGIC >> 8 {
        let problem = format!("hello.magic is {magic:#010x}, which is not the hello of a replica");
        return Err(HelloRejection::same(problem));
    }
    let (found, wanted) = (magic & 0xff, MAGIC & 0xff);
    Err(HelloRejection {
        reply: format!(
            "this replica does not speak version {found} of the protocol between replicas; \
             run the same version of leasehold on all nodes"
        ),
        log_message: format!(
            "it speaks version {found} of the protocol between replicas, and this replica speaks \
             version {wanted}; run the same version of leasehold on all nodes"
        ),
    })
}

/// Refuses a hello if the value of `field` is not the expected one.
fn expect(field: &str, found: impl ToString, wanted: impl ToString) -> Result<(), HelloRejection> {
    let (found, wanted) = (found.to_string(), wanted.to_string());
    if found == wanted {
        return Ok(());
    }
    Err(HelloRejection {
        reply: format!(
            "hello.{field} is {found:?}, which is not what this replica expects: \
             its log says more; compare the configurations of both replicas"
        ),
        log_message: format!(
            "hello.{field} is {found:?}, expected was {wanted:?}; \
             compare the configurations of both replicas"
        ),
    })
}

/// Waits a moment so that a refused peer can read the reason.
async fn send_rejection(outbox: &Outbox, frames: &mut Frames) {
    let delivered = async {
        outbox.wait_until_empty().await;
        outbox.shutdown_write();
        // If the connection were closed with bytes unread, the answer would be lost.
        frames.discard().await;
    };
    let _ = tokio::time::timeout(LINGER, delivered).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_named_as_such() {
        assert!(expect_version(MAGIC).is_ok());
        let older = expect_version(MAGIC - 1).unwrap_err();
        let (found, wanted) = ((MAGIC - 1) & 0xff, MAGIC & 0xff);
        for text in [&older.reply, &older.log_message] {
            assert!(text.contains(&format!("version {found} ")), "{text}");
            assert!(text.contains("same version of leasehold"), "{text}");
        }
        assert!(older.log_message.contains(&format!("version {wanted};")));
        assert!(
            !older.reply.contains(&format!("version {wanted}")),
            "a stranger must not learn the version of this replica"
        );
        let stranger = expect_version(0x4745_5420).unwrap_err();
        assert!(stranger.reply.contains("not the hello of a replica"));
    }
}
