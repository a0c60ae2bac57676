//! Queries to the replicas: which replica leads, and which replicas hold a key.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use leasehold_client::{Client, ClientOptions};
use leasehold_wire::{StatusReply, StatusRequest};
use rand_pcg::Pcg64Mcg;

use super::client_access::ClientAccess;
use crate::fault::FaultContext;
use crate::topology::Topology;

/// Longest time to wait for the answer of a replica. Without a limit, the wait for a paused replica
/// would not end, because a paused replica never answers.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// Roles of the replicas. Sites are given by their index in the topology.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// Site of the leader; `None` if no replica leads.
    pub leader: Option<usize>,
    /// Sites that hold a lease on the requested key. If no key was requested, these are the holders
    /// of the hottest key.
    pub holders: Vec<usize>,
    /// For each site, true if the replica's process runs.
    pub up: Vec<bool>,
}

impl Roles {
    /// Asks every replica that is up, and returns the roles.
    pub(super) async fn query(
        access: &ClientAccess,
        addresses: &[SocketAddr],
        up: Vec<bool>,
        key: Option<&[u8]>,
    ) -> Roles {
        let mut queries = tokio::task::JoinSet::new();
        for (site, address) in addresses.iter().enumerate().filter(|(site, _)| up[*site]) {
            let (options, key) = (access.options([address]), key.map(<[u8]>::to_vec));
            queries.spawn(async move {
                let status = status(options, key.as_deref());
                (site, tokio::time::timeout(ANSWER_WITHIN, status).await)
            });
        }
        let answers = queries.join_all().await.into_iter();
        let answers = answers.filter_map(|(site, status)| Some((site, status.ok()??)));
        Roles::from_answers(&answers.collect::<Vec<_>>(), up)
    }

    /// Derives the roles from the answers. If several replicas report that they lead, the leader is
    /// the replica with the highest ballot. A replica that was cut off may still report that it
    /// leads.
    fn from_answers(answers: &[(usize, StatusReply)], up: Vec<bool>) -> Roles {
        let leads = answers
            .iter()
            .filter(|(_, status)| status.leader == status.replica);
        let leader = leads.max_by_key(|(_, status)| status.ballot_round);
        // Only the leader knows which keys are requested at other sites. Without a leader, the
        // holders are taken from the newest configuration that any replica knows.
        let newest = answers
            .iter()
            .max_by_key(|(_, status)| status.configuration);
        let source = leader.or(newest);
        let named = |name: &String| {
            let mut found = answers.iter();
            found
                .find(|(_, status)| status.replica == *name)
                .map(|(site, _)| *site)
        };
        Roles {
            leader: leader.map(|(site, _)| *site),
            holders: source.map_or(Vec::new(), |(_, status)| {
                status.holders.iter().filter_map(named).collect()
            }),
            up,
        }
    }

    /// Returns the context of a fault that begins now.
    pub fn fault_context<'a>(
        &self,
        topology: &'a Topology,
        rng: &'a mut Pcg64Mcg,
    ) -> FaultContext<'a> {
        FaultContext {
            topology,
            leader: self.leader,
            holders: self.holders.clone(),
            up: self.up.clone(),
            rng,
        }
    }
}

async fn status(mut options: ClientOptions, key: Option<&[u8]>) -> Option<StatusReply> {
    options.connect_timeout = ANSWER_WITHIN;
    options.request_timeout = ANSWER_WITHIN;
    let client = Client::connect(options).await.ok()?;
    let request = StatusRequest {
        holders: true,
        key: Bytes::copy_from_slice(key.unwrap_or_default()),
        ..StatusRequest::default()
    };
    client.raw().status(request).await.ok()
}
