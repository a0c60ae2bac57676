//! Status of a replica: its view of itself and of its cluster.

use std::time::Duration;

use bytes::Bytes;
use leasehold_wire as wire;

/// Optional parts of a status, to be returned besides the parts that every status has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatusQuery {
    /// Keys for which holders are requested, in [`Status::holders`].
    pub holders: HoldersQuery,
    /// Whether to request the strategies and durations of leases, in [`Status::leases`].
    pub leases: bool,
}

/// Keys for which a status names the holders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldersQuery {
    /// Holders are not requested.
    #[default]
    None,
    /// Holders of this key.
    Key(Bytes),
    /// Holders of the key with the most requests, as far as the replica knows it. The leader knows
    /// that key if the strategy counts requests.
    HottestKey,
}

impl StatusQuery {
    /// Requests the holders of `key`, too.
    pub fn holders_of(mut self, key: impl Into<Bytes>) -> StatusQuery {
        self.holders = HoldersQuery::Key(key.into());
        self
    }

    /// Requests the holders of the key with the most requests, too.
    pub fn holders_of_hottest_key(mut self) -> StatusQuery {
        self.holders = HoldersQuery::HottestKey;
        self
    }

    /// Requests the strategies and durations of leases, too.
    pub fn leases(mut self) -> StatusQuery {
        self.leases = true;
        self
    }

    pub(crate) fn into_wire(self) -> wire::StatusRequest {
        let (holders, key) = match self.holders {
            HoldersQuery::None => (false, Bytes::new()),
            HoldersQuery::Key(key) => (true, key),
            HoldersQuery::HottestKey => (true, Bytes::new()),
        };
        wire::StatusRequest {
            holders,
            key,
            leases: self.leases,
            ..wire::StatusRequest::default()
        }
    }
}

/// A replica's view of itself and of its cluster.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Status {
    /// Name of the replica.
    pub replica: String,
    /// Name of the leader; `None` if the replica knows of none.
    pub leader: Option<String>,
    /// Time for which the replica has known its present leader as the leader.
    pub leader_for: Duration,
    /// Number of the replica's run: it rises at each start.
    pub incarnation: u64,
    /// Number of slots of the log that are known to be committed.
    pub committed: u64,
    /// Number of slots of the log that are executed.
    pub executed: u64,
    /// Number of keys.
    pub keys: u64,
    /// Durability of writes: `sync`, `async` or `none`.
    pub durability: String,
    /// The newest lease configuration that the replica knows.
    pub configuration: u64,
    /// Names of the lease strategies in force.
    pub strategy: String,
    /// Names of the replicas that hold keys for which no list and no range names holders.
    pub unlisted_holders: Vec<String>,
    /// Names of the replicas that are excluded from leases, because they have failed or are
    /// leaving.
    pub excluded: Vec<String>,
    /// Links to the other replicas.
    pub peers: Vec<PeerStatus>,
    /// Counters, by name.
    pub counters: Vec<(String, u64)>,
    /// Holders of a key, if they were requested.
    pub holders: Option<KeyHolders>,
    /// Strategies and durations of leases, if they were requested.
    pub leases: Option<LeaseStatus>,
}

/// Link from one replica to another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerStatus {
    /// Name of the other replica.
    pub name: String,
    /// Measured round trip; `None` if it is not measured yet.
    pub round_trip: Option<Duration>,
    /// Whether the replica has promised the other one to name it in its votes.
    pub granted_to: bool,
    /// Whether the other replica has promised to name this one in its votes.
    pub granted_by: bool,
}

/// Holders of a key: replicas that may read it under leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyHolders {
    /// The key; empty if the key with the most requests was requested and there is none.
    pub key: Bytes,
    /// Names of the holders under the newest configuration.
    pub holders: Vec<String>,
    /// Names of all replicas that may hold the key under promises that have not expired.
    pub may_hold: Vec<String>,
}

/// Strategies and durations of leases that are in force.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct LeaseStatus {
    /// Key ranges in rising order. They cover every key.
    pub ranges: Vec<RangeStatus>,
    /// Duration of a promise.
    pub lease: Duration,
    /// Duration of a guard, within which a promise must arrive.
    pub guard: Duration,
    /// Interval at which promises are renewed.
    pub renew: Duration,
    /// Time for which a silent holder is awaited before it is suspected.
    pub grace: Duration,
    /// Whether the requested change was in force before the request.
    pub already: bool,
}

/// Strategy of a key range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RangeStatus {
    /// The first key.
    pub from: Bytes,
    /// The first key after the range; empty if the range has no end.
    pub to: Bytes,
    /// Name of the strategy.
    pub strategy: String,
    /// Settings of the strategy as text; empty if it has none.
    pub settings: String,
    /// Names of the holders of keys that are not listed.
    pub defaults: Vec<String>,
    /// Number of keys with holders of their own.
    pub listed: u64,
}

impl Status {
    /// Returns the value of a counter; `None` if the replica has no counter of this name.
    pub fn counter(&self, name: &str) -> Option<u64> {
        let mut counters = self.counters.iter();
        counters.find(|(found, _)| found == name).map(|it| it.1)
    }

    /// Converts a status of the wire. `has_holders` states that holders were requested; an empty
    /// list is then an answer, too.
    pub(crate) fn from_wire(status: wire::StatusReply, has_holders: bool) -> Status {
        let peer = |peer: wire::Peer| PeerStatus {
            name: peer.name,
            round_trip: (peer.rtt_us > 0).then(|| Duration::from_micros(peer.rtt_us)),
            granted_to: peer.granted_to,
            granted_by: peer.granted_by,
        };
        let counters = status.counters.into_iter();
        Status {
            replica: status.replica,
            leader: Some(status.leader).filter(|leader| !leader.is_empty()),
            leader_for: Duration::from_millis(status.leader_since_ms),
            incarnation: status.incarnation,
            committed: status.committed,
            executed: status.executed,
            keys: status.keys,
            durability: status.durability,
            configuration: status.configuration,
            strategy: status.strategy,
            unlisted_holders: status.unlisted,
            excluded: status.excluded,
            peers: status.peers.into_iter().map(peer).collect(),
            counters: counters.map(|it| (it.name, it.value)).collect(),
            holders: has_holders.then_some(KeyHolders {
                key: status.holders_of,
                holders: status.holders,
                may_hold: status.may_hold,
            }),
            leases: status.leases.map(LeaseStatus::from_wire),
        }
    }
}

impl LeaseStatus {
    fn from_wire(leases: wire::Leases) -> LeaseStatus {
        let range = |range: wire::LeaseRange| RangeStatus {
            from: range.from,
            to: range.to,
            strategy: range.strategy,
            settings: range.settings,
            defaults: range.defaults,
            listed: range.listed,
        };
        LeaseStatus {
            ranges: leases.ranges.into_iter().map(range).collect(),
            lease: Duration::from_micros(leases.t_lease_us),
            guard: Duration::from_micros(leases.t_guard_us),
            renew: Duration::from_micros(leases.renew_us),
            grace: Duration::from_micros(leases.grace_us),
            already: leases.already,
        }
    }
}

/// Cluster and replica that a client is connected to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerInfo {
    /// Name of the cluster.
    pub cluster: String,
    /// Name of the replica.
    pub replica: String,
    /// Number of the replica's run: it rises at each start.
    pub incarnation: u64,
    /// Names of all replicas of the cluster.
    pub replicas: Vec<String>,
}

impl ServerInfo {
    pub(crate) fn from_wire(welcome: wire::Welcome) -> ServerInfo {
        ServerInfo {
            cluster: welcome.cluster,
            replica: welcome.replica,
            incarnation: welcome.incarnation,
            replicas: welcome.replicas,
        }
    }
}
