//! `[limits]`: limits on the resources that clients may take from a replica, and on the time for
//! which clients may make a replica wait.

use std::time::Duration;

use serde::Deserialize;

use super::check::{CheckResult, Checker};

/// One MiB.
const MIB: usize = 1 << 20;
/// Maximum value of a setting in MiB: one TiB.
const MB_MAX: u64 = 1 << 20;
/// Maximum value of a setting in seconds: one day.
const S_MAX: u64 = 24 * 3600;
/// Maximum value of a setting that counts requests or clients. No replica serves this many.
const COUNT_MAX: u64 = 1 << 20;
/// Maximum value of the setting for the number of connections from one peer. The maximum is low,
/// because a peer needs few connections. Further connections are left over from the peer's earlier
/// runs, and each of them uses a file descriptor.
const PER_PEER_MAX: u64 = 16;

/// Limits on the resources that clients may take from a replica, and on the time for which clients
/// may make a replica wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of requests that the replica processes for one connection at the same time.
    pub connection_requests: usize,
    /// Maximum total number of bytes that are charged for the requests of one connection. The total
    /// may exceed the maximum by the charge of the last admitted request.
    pub connection_in_flight_bytes: usize,
    /// Maximum total number of bytes that are charged for the requests of all connections.
    pub in_flight_bytes: usize,
    /// Maximum total size, in bytes, of the large writes on which the replica works at the same
    /// time. A write of more than 4 KiB is large. A single write may exceed the maximum.
    pub large_writes_bytes: usize,
    /// Maximum number of unread bytes of answers on one connection. Above this maximum, the
    /// connection is closed. An answer that begins below the maximum may exceed it by up to one
    /// frame.
    pub connection_unread_bytes: usize,
    /// Maximum number of bytes that all clients together may leave unread. Above this maximum, the
    /// connection of the client with the most unread bytes is closed.
    pub unread_bytes: usize,
    /// Maximum time for a frame to arrive, from its first byte to its last.
    pub frame: Duration,
    /// Period in which a client must read a minimum number of bytes of its answers.
    pub stalled: Duration,
    /// Maximum time for which a connection without requests is kept.
    pub idle: Duration,
    /// Maximum number of connections of all clients together. If `None`, only the number of
    /// remaining file descriptors limits these connections.
    pub clients: Option<usize>,
    /// Maximum number of connections of clients from one address. `None`: seven eighths of the
    /// maximum for all clients.
    pub clients_per_address: Option<usize>,
    /// Maximum number of connections from one peer to this replica.
    pub connections_per_peer: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connection_requests: 1 << 14,
            connection_in_flight_bytes: 16 * MIB,
            in_flight_bytes: 512 * MIB,
            large_writes_bytes: 2 * MIB,
            connection_unread_bytes: 32 * MIB,
            unread_bytes: 512 * MIB,
            frame: Duration::from_secs(30),
            stalled: Duration::from_secs(30),
            idle: Duration::from_secs(600),
            clients: None,
            clients_per_address: None,
            connections_per_peer: 2,
        }
    }
}

impl Limits {
    /// Returns the maximum number of connections of all clients. `max` is the number of connections
    /// that the file descriptors allow.
    pub(crate) fn clients(&self, max: usize) -> usize {
        self.clients.map_or(max, |configured| configured.min(max))
    }

    /// Returns the maximum number of connections of clients from one address. `max` is the total
    /// number of client connections that the file descriptors allow.
    pub(crate) fn clients_per_address(&self, max: usize) -> usize {
        let all = self.clients(max);
        let most = self.clients_per_address.unwrap_or(all - all.div_ceil(8));
        most.clamp(1, all.max(1))
    }
}

/// The section `[limits]` of the file, before any check.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitsSection {
    connection_requests: Option<u64>,
    connection_in_flight_mb: Option<u64>,
    in_flight_mb: Option<u64>,
    large_writes_mb: Option<u64>,
    connection_unread_mb: Option<u64>,
    unread_mb: Option<u64>,
    frame_s: Option<u64>,
    stalled_s: Option<u64>,
    idle_s: Option<u64>,
    clients: Option<u64>,
    clients_per_address: Option<u64>,
    connections_per_peer: Option<u64>,
    pub(super) sessions_max: Option<u64>,
    pub(super) sessions_opened_per_s: Option<u64>,
}

/// Maximum and unit of a setting.
struct LimitUnit {
    max: u64,
    unit: &'static str,
}

const MB: LimitUnit = LimitUnit {
    max: MB_MAX,
    unit: "MiB",
};
const S: LimitUnit = LimitUnit {
    max: S_MAX,
    unit: "seconds",
};

impl Checker<'_> {
    pub(super) fn limits(&self, found: &LimitsSection) -> CheckResult<Limits> {
        let default = Limits::default();
        let bytes = |field, found, default: usize| {
            let mb = self.limit(field, found, (default / MIB) as u64, &MB)?;
            Ok(mb as usize * MIB)
        };
        let duration = |field, found, default: Duration| {
            let s = self.limit(field, found, default.as_secs(), &S)?;
            Ok(Duration::from_secs(s))
        };
        let requests = LimitUnit {
            max: COUNT_MAX,
            unit: "requests",
        };
        let per_peer = LimitUnit {
            max: PER_PEER_MAX,
            unit: "connections",
        };
        let limits = Limits {
            connection_requests: self.limit(
                "connection_requests",
                found.connection_requests,
                default.connection_requests as u64,
                &requests,
            )? as usize,
            connection_in_flight_bytes: bytes(
                "connection_in_flight_mb",
                found.connection_in_flight_mb,
                default.connection_in_flight_bytes,
            )?,
            in_flight_bytes: bytes("in_flight_mb", found.in_flight_mb, default.in_flight_bytes)?,
            large_writes_bytes: bytes(
                "large_writes_mb",
                found.large_writes_mb,
                default.large_writes_bytes,
            )?,
            connection_unread_bytes: bytes(
                "connection_unread_mb",
                found.connection_unread_mb,
                default.connection_unread_bytes,
            )?,
            unread_bytes: bytes("unread_mb", found.unread_mb, default.unread_bytes)?,
            frame: duration("frame_s", found.frame_s, default.frame)?,
            stalled: duration("stalled_s", found.stalled_s, default.stalled)?,
            idle: duration("idle_s", found.idle_s, default.idle)?,
            clients: self.clients("clients", found.clients)?,
            clients_per_address: self.clients("clients_per_address", found.clients_per_address)?,
            connections_per_peer: self.limit(
                "connections_per_peer",
                found.connections_per_peer,
                default.connections_per_peer as u64,
                &per_peer,
            )? as usize,
        };
        self.fit_each_other(&limits, found)?;
        Ok(limits)
    }

    fn limit(
        &self,
        field: &str,
        found: Option<u64>,
        default: u64,
        unit: &LimitUnit,
    ) -> CheckResult<u64> {
        let LimitUnit { max, unit } = unit;
        match found {
            None => Ok(default),
            Some(found) if (1..=*max).contains(&found) => Ok(found),
            Some(found) => {
                let accepted = format!("accepted are 1 to {max} {unit}; the default is {default}");
                Err(self.refuse(format!("limits.{field}"), found, accepted))
            }
        }
    }

    fn clients(&self, field: &str, found: Option<u64>) -> CheckResult<Option<usize>> {
        match found {
            None => Ok(None),
            Some(found) if (1..=COUNT_MAX).contains(&found) => Ok(Some(found as usize)),
            Some(found) => {
                let accepted = format!(
                    "accepted are 1 to {COUNT_MAX} connections; leave it out for as many as the \
                     limit of open files has room for"
                );
                Err(self.refuse(format!("limits.{field}"), found, accepted))
            }
        }
    }

    /// Refuses limits for one connection that are higher than the limits for all connections
    /// together.
    fn fit_each_other(&self, limits: &Limits, found: &LimitsSection) -> CheckResult<()> {
        for (field, given, one, all_field, all) in [
            (
                "connection_in_flight_mb",
                found.connection_in_flight_mb,
                limits.connection_in_flight_bytes,
                "in_flight_mb",
                limits.in_flight_bytes,
            ),
            (
                "connection_unread_mb",
                found.connection_unread_mb,
                limits.connection_unread_bytes,
                "unread_mb",
                limits.unread_bytes,
            ),
        ] {
            if one > all {
                let by_default = if given.is_none() { ", by default" } else { "" };
                let found = format!("{}{by_default}", one / MIB);
                let accepted = format!(
                    "it is of one connection, and may not be above limits.{all_field} ({}), \
                     which is of all: lower it, or raise that",
                    all / MIB
                );
                return Err(self.refuse(format!("limits.{field}"), found, accepted));
            }
        }
        let Some((of_address, all)) = limits.clients_per_address.zip(limits.clients) else {
            return Ok(());
        };
        if of_address > all {
            let accepted =
                format!("it may not be above limits.clients ({all}): lower it, or raise that");
            return Err(self.refuse("limits.clients_per_address", of_address, accepted));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_never_gets_the_last_places() {
        let limits = Limits::default();
        assert_eq!(limits.clients(600), 600);
        assert_eq!(limits.clients_per_address(600), 525);
        assert_eq!(limits.clients_per_address(5), 4);
        assert_eq!(limits.clients_per_address(1), 1);
        let few = Limits {
            clients: Some(100),
            ..limits
        };
        assert_eq!((few.clients(600), few.clients_per_address(600)), (100, 87));
        assert_eq!(
            few.clients(50),
            50,
            "no more than there are descriptors for"
        );
        let asked = Limits {
            clients_per_address: Some(200),
            ..limits
        };
        assert_eq!(asked.clients_per_address(600), 200);
        assert_eq!(asked.clients_per_address(150), 150);
    }
}
