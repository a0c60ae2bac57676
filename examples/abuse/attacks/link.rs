//! A connection to a port for peers, on which an attacker claims to be a replica. The attacker
//! knows the cluster from the status, which every client can read.

use std::io::ErrorKind;
use std::time::Duration;

use anyhow::Context as _;
use bytes::BytesMut;
use leasehold_client::Client;
use leasehold_leases::{Incarnation, ReplicaId};
use leasehold_node::PEER_MAGIC;
use leasehold_replica::codec::{encode_envelope, proto};
use leasehold_replica::message::{Envelope, Message};
use leasehold_transport::FrameReader;
use leasehold_wire::{StatusReply, StatusRequest, encode_frame};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Target;
use crate::cluster::{CLUSTER, NAMES, options};

/// Magic numbers of the peer protocol ("LHP" and a version) that the attacked program may use. The
/// newest is first. A replica refuses every hello with a version other than its own. The attackers'
/// messages have the same meaning in all of these versions.
pub const MAGICS: [u32; 3] = [PEER_MAGIC, 0x4C48_5006, 0x4C48_5005];

/// Returns a correct hello from replica `from` to replica `to`.
pub fn hello_from(magic: u32, from: usize, to: usize, members: usize) -> proto::Hello {
    proto::Hello {
        magic,
        cluster: CLUSTER.to_owned(),
        members: members as u32,
        from: from as u32,
        from_name: NAMES[from].to_owned(),
        to: to as u32,
        to_name: NAMES[to].to_owned(),
    }
}

/// A connection of the attacker. The replica may assume that another replica opened the connection.
pub struct Link {
    pub from: usize,
    pub to: usize,
    stream: TcpStream,
}

impl Link {
    /// Opens a connection. Returns `None` if the replica refuses the hellos of all versions.
    pub async fn open(target: &Target, from: usize, to: usize) -> anyhow::Result<Option<Link>> {
        for magic in MAGICS {
            let mut stream = TcpStream::connect(&target.peers[to]).await?;
            let mut hello = BytesMut::new();
            encode_frame(&hello_from(magic, from, to, target.peers.len()), &mut hello)?;
            stream.write_all(&hello).await?;
            let mut reader = FrameReader::new(&mut stream);
            let greeting = timeout(Duration::from_secs(2), reader.next::<proto::Greeting>()).await;
            if matches!(greeting, Ok(Ok(Some(greeting))) if greeting.refusal.is_empty()) {
                return Ok(Some(Link { from, to, stream }));
            }
        }
        Ok(None)
    }

    /// Sends a message. Returns true if the message could be sent.
    pub async fn send(&mut self, runs: &[StatusReply], message: Message) -> anyhow::Result<bool> {
        let incarnation = runs[self.from].incarnation;
        self.send_as(incarnation, runs, message).await
    }

    pub async fn send_as(
        &mut self,
        incarnation: u64,
        runs: &[StatusReply],
        message: Message,
    ) -> anyhow::Result<bool> {
        let envelope = Envelope {
            from: ReplicaId(self.from as u8),
            from_incarnation: Incarnation(incarnation),
            to_incarnation: Incarnation(runs[self.to].incarnation),
            message,
        };
        let mut bytes = BytesMut::new();
        encode_envelope(envelope, &mut bytes).context("encoding a forged message")?;
        Ok(self.stream.write_all(&bytes).await.is_ok())
    }

    /// Returns true if the replica has closed the connection. While the connection is open, the
    /// replica sends nothing on it.
    pub fn is_closed(&self) -> bool {
        let read = self.stream.try_read(&mut [0]);
        !read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }
}

/// Requests the status of every replica, as a client.
pub async fn statuses(target: &Target) -> anyhow::Result<Vec<StatusReply>> {
    let mut all = Vec::new();
    for address in &target.clients {
        let mut options = options(address, target.authority.as_deref())?;
        options.request_timeout = Duration::from_secs(1);
        let client = Client::connect(options).await?;
        all.push(client.raw().status(StatusRequest::default()).await?);
        client.close();
    }
    Ok(all)
}
