//! Status of a replica: the replica's view of itself and of its cluster.

use std::time::Duration;

use bytes::Bytes;
use leasehold_wire as wire;

use crate::error::Error;
use crate::types::RefusalKind;

/// Optional parts of a status. They are returned in addition to the parts that every status has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatusQuery {
    /// Keys for which the holders are requested. The answer is in [`Status::holders`].
    pub holders: HoldersQuery,
    /// Whether to request the strategies and durations of leases. The answer is in
    /// [`Status::leases`].
    pub leases: bool,
}

/// Keys for which a status names the holders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldersQuery {
    /// Requests no holders.
    #[default]
    None,
    /// Requests the holders of this key.
    Key(Bytes),
    /// Requests the holders of the key that clients request most often. The leader knows this key
    /// if the strategy counts requests.
    HottestKey,
}

impl StatusQuery {
    /// Adds a request for the holders of `key` to the query.
    pub fn holders_of(mut self, key: impl Into<Bytes>) -> StatusQuery {
        self.holders = HoldersQuery::Key(key.into());
        self
    }

    /// Adds a request for the holders of the hottest key to the query. The hottest key is the key
    /// that clients request most often.
    pub fn holders_of_hottest_key(mut self) -> StatusQuery {
        self.holders = HoldersQuery::HottestKey;
        self
    }

    /// Adds a request for the strategies and durations of leases to the query.
    pub fn leases(mut self) -> StatusQuery {
        self.leases = true;
        self
    }

    /// Checks the query before it is sent.
    ///
    /// # Errors
    /// `Refused` if the holders of an empty key are requested: no key is empty.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match &self.holders {
            HoldersQuery::Key(key) if key.is_empty() => Err(Error::Refused {
                kind: RefusalKind::BadRequest,
                message: "holders: the key is empty".to_owned(),
                resent: false,
                log_time_ms: 0,
            }),
            HoldersQuery::Key(_) | HoldersQuery::None | HoldersQuery::HottestKey => Ok(()),
        }
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
    /// Name of the leader; `None` if the replica knows no leader.
    pub leader: Option<String>,
    /// Time since the replica learned about its present leader.
    pub leader_for: Duration,
    /// Number of the replica's run. This number rises at each start.
    pub incarnation: u64,
    /// Number of slots of the log that are known to be committed.
    pub committed: u64,
    /// Number of slots of the log that are executed.
    pub executed: u64,
    /// Number of keys that the replica stores.
    pub keys: u64,
    /// Durability of writes: `sync`, `async` or `none`.
    pub durability: String,
    /// Number that identifies the newest lease configuration that the replica knows.
    pub configuration: u64,
    /// Names of the lease strategies in force.
    pub strategy: String,
    /// Names of the replicas that hold all other keys: keys to which neither a list nor a range
    /// assigns holders.
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
    /// Whether a promise of this replica to the other replica is in force. While the promise is in
    /// force, this replica's votes demand that the other replica is notified of writes.
    pub granted_to: bool,
    /// Whether a promise of the other replica to this replica is in force. While the promise is in
    /// force, the other replica's votes demand that this replica is notified of writes.
    pub granted_by: bool,
}

/// Holders of a key: replicas that may read it under leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyHolders {
    /// The key. It is empty if the query was for the key that clients request most often, and no
    /// such key is known.
    pub key: Bytes,
    /// Names of the holders under the newest configuration.
    pub holders: Vec<String>,
    /// Names of all replicas that may hold the key under promises that have not expired, including
    /// promises of older configurations.
    pub may_hold: Vec<String>,
}

/// Strategies and durations of leases that are in force.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct LeaseStatus {
    /// Key ranges in ascending order. Together they cover every key.
    pub ranges: Vec<RangeStatus>,
    /// Duration of a promise.
    pub lease: Duration,
    /// Duration of a guard: the time within which a promise must arrive.
    pub guard: Duration,
    /// Interval at which promises are renewed.
    pub renew: Duration,
    /// Time for which a holder may be silent before it is suspected.
    pub grace: Duration,
    /// Maximum drift of clocks that leases tolerate, in parts per million.
    pub max_drift_ppm: u32,
    /// True if the leader sent this status and still has keys to list. Then [`RangeStatus::listed`]
    /// will rise.
    pub unfinished: bool,
    /// Whether the requested change of leases was already in force before the request. This flag is
    /// set only in the answer to a request for a change.
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
    /// Names of the replicas that hold the unlisted keys of the range.
    pub defaults: Vec<String>,
    /// Number of listed keys in the range: keys with holders of their own.
    pub listed: u64,
}

impl Status {
    /// Returns the value of a counter; `None` if the replica has no counter of this name.
    pub fn counter(&self, name: &str) -> Option<u64> {
        let mut counters = self.counters.iter();
        counters.find(|(found, _)| found == name).map(|it| it.1)
    }

    /// Converts a status message. `has_holders` is true if holders were requested. In this case, an
    /// empty list of holders is also an answer.
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
            max_drift_ppm: leases.rho_ppm,
            unfinished: leases.unfinished,
            already: leases.already,
        }
    }
}

/// Cluster and replica to which a client is connected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerInfo {
    /// Name of the cluster.
    pub cluster: String,
    /// Name of the replica.
    pub replica: String,
    /// Number of the replica's run. This number rises at each start.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_query_asks_for_what_it_says() {
        let request = StatusQuery::default().into_wire();
        assert_eq!(request, wire::StatusRequest::default());
        let request = StatusQuery::default().holders_of("k").leases().into_wire();
        assert_eq!((request.holders, &request.key[..]), (true, &b"k"[..]));
        assert!(request.leases && !request.demand);
        let hottest = StatusQuery::default().holders_of_hottest_key();
        assert!(hottest.check().is_ok() && hottest.into_wire().key.is_empty());
        let error = StatusQuery::default().holders_of("").check().unwrap_err();
        assert!(error.to_string().contains("holders"), "{error}");
    }

    #[test]
    fn every_field_of_a_status_comes_from_its_own() {
        let leases = wire::Leases {
            ranges: vec![wire::LeaseRange {
                from: "a".into(),
                to: "b".into(),
                strategy: "quorum".into(),
                settings: "nearest".into(),
                defaults: words(&["CA"]),
                listed: 5,
            }],
            t_lease_us: 1,
            t_guard_us: 2,
            renew_us: 3,
            grace_us: 4,
            rho_ppm: 6,
            unfinished: true,
            already: false,
        };
        let reply = wire::StatusReply {
            replica: "CA".into(),
            leader: "OR".into(),
            committed: 11,
            executed: 12,
            configuration: 13,
            incarnation: 14,
            keys: 15,
            leader_since_ms: 16,
            strategy: "cost".into(),
            durability: "sync".into(),
            unlisted: words(&["u"]),
            excluded: words(&["x"]),
            holders_of: "k".into(),
            holders: words(&["h"]),
            may_hold: words(&["h", "m"]),
            counters: vec![wire::Counter {
                name: "clients".into(),
                value: 7,
            }],
            peers: vec![wire::Peer {
                name: "JP".into(),
                rtt_us: 9,
                granted_to: true,
                granted_by: false,
            }],
            leases: Some(leases),
            ..wire::StatusReply::default()
        };
        let us = Duration::from_micros;
        let status = Status::from_wire(reply.clone(), true);
        let expected = Status {
            replica: "CA".into(),
            leader: Some("OR".into()),
            leader_for: Duration::from_millis(16),
            incarnation: 14,
            committed: 11,
            executed: 12,
            keys: 15,
            durability: "sync".into(),
            configuration: 13,
            strategy: "cost".into(),
            unlisted_holders: words(&["u"]),
            excluded: words(&["x"]),
            peers: vec![PeerStatus {
                name: "JP".into(),
                round_trip: Some(us(9)),
                granted_to: true,
                granted_by: false,
            }],
            counters: vec![("clients".into(), 7)],
            holders: Some(KeyHolders {
                key: "k".into(),
                holders: words(&["h"]),
                may_hold: words(&["h", "m"]),
            }),
            leases: Some(LeaseStatus {
                ranges: vec![RangeStatus {
                    from: "a".into(),
                    to: "b".into(),
                    strategy: "quorum".into(),
                    settings: "nearest".into(),
                    defaults: words(&["CA"]),
                    listed: 5,
                }],
                lease: us(1),
                guard: us(2),
                renew: us(3),
                grace: us(4),
                max_drift_ppm: 6,
                unfinished: true,
                already: false,
            }),
        };
        assert_eq!(status, expected);
        assert_eq!(status.counter("clients"), Some(7));
        assert_eq!(Status::from_wire(reply, false).holders, None);
        let unknown = Status::from_wire(wire::StatusReply::default(), false);
        assert_eq!(unknown.leader, None);
    }
}
