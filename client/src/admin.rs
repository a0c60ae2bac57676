//! Requests of operators: moves of leadership and changes of leases.

use std::time::Duration;

use bytes::Bytes;
use leasehold_wire as wire;

use crate::client::Client;
use crate::error::Error;
use crate::status::Status;

/// The interface for operators' requests. [`Client::admin`] returns this interface. If the cluster
/// requires tokens, the client's token must have the right `admin`.
#[derive(Clone, Copy, Debug)]
pub struct Admin<'a> {
    client: &'a Client,
}

/// A change of leases. The change sets the strategy for a key range, or sets durations, or does
/// both. Settings without a value in the change stay as they are.
///
/// ```
/// use leasehold_client::LeaseChange;
/// use std::time::Duration;
///
/// // Every replica may read keys that begin with "catalog/".
/// let shared = LeaseChange::strategy("all").range("catalog/", "catalog0");
/// // Leases of 5 s, for all keys.
/// let longer = LeaseChange::durations().lease(Duration::from_secs(5));
/// # let _ = (shared, longer);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeaseChange {
    request: wire::LeaseRequest,
}

impl LeaseChange {
    /// Creates a change that concerns only durations. These durations apply to all keys.
    pub fn durations() -> LeaseChange {
        LeaseChange::default()
    }

    /// Creates a change to the strategy `name`: `leader`, `all`, `quorum`, `cost`, `fixed` or
    /// `none`. The strategy applies to all keys unless [`range`](Self::range) limits it.
    pub fn strategy(name: impl Into<String>) -> LeaseChange {
        let strategy = name.into();
        let request = wire::LeaseRequest {
            strategy,
            ..wire::LeaseRequest::default()
        };
        LeaseChange { request }
    }

    /// Limits the strategy to keys `k` with `from <= k < to`. An empty `to` means that the range
    /// has no end.
    pub fn range(mut self, from: impl Into<Bytes>, to: impl Into<Bytes>) -> LeaseChange {
        self.request.from = from.into();
        self.request.to = to.into();
        self
    }

    /// Sets the names of the holders, for the strategy `fixed`.
    pub fn holders(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> LeaseChange {
        self.request.holders = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the rule for unlisted keys under the strategy `quorum`: `nearest` or `leader`. Unlisted
    /// keys have no holders of their own, for instance because no client has read them. The rule
    /// chooses the holders of these keys.
    pub fn unlisted(mut self, name: impl Into<String>) -> LeaseChange {
        self.request.unlisted = name.into();
        self
    }

    /// Sets the weight that the strategy `cost` gives to the latency of reads: from 0 (only writes
    /// count) to 1 (only reads count).
    pub fn read_weight(mut self, weight: f64) -> LeaseChange {
        self.request.read_weight = Some(weight);
        self
    }

    /// Sets the number of spare replicas, for the strategy `cost`. For each key, at least this many
    /// replicas get no lease.
    pub fn spare(mut self, replicas: u32) -> LeaseChange {
        self.request.spare = Some(replicas);
        self
    }

    /// Sets the duration of a promise.
    pub fn lease(mut self, duration: Duration) -> LeaseChange {
        self.request.t_lease_ms = Some(ms(duration));
        self
    }

    /// Sets the duration of a guard. The duration must not be below the longest one-way delay.
    pub fn guard(mut self, duration: Duration) -> LeaseChange {
        self.request.t_guard_ms = Some(ms(duration));
        self
    }

    /// Sets the interval at which promises are renewed.
    pub fn renew(mut self, interval: Duration) -> LeaseChange {
        self.request.renew_ms = Some(ms(interval));
        self
    }

    /// Sets the time for which a holder may be silent before it is suspected.
    pub fn grace(mut self, duration: Duration) -> LeaseChange {
        self.request.grace_ms = Some(ms(duration));
        self
    }

    /// Allows durations above a minute. With such long durations, a failure can block writes for
    /// more than a minute.
    pub fn force(mut self) -> LeaseChange {
        self.request.force = true;
        self
    }
}

/// Returns a duration in whole milliseconds, rounded up.
fn ms(duration: Duration) -> u64 {
    let ms = duration.as_nanos().div_ceil(1_000_000);
    u64::try_from(ms).unwrap_or(u64::MAX)
}

impl<'a> Admin<'a> {
    pub(crate) fn new(client: &'a Client) -> Admin<'a> {
        Admin { client }
    }

    /// Moves leadership to the replica named `to`, and waits until that replica leads. The request
    /// may be sent to any replica, because replicas forward it to the leader. Returns the status of
    /// the replica that answered.
    ///
    /// # Errors
    /// The same errors as [`Client::execute`]. [`Error::Refused`] contains the reason why
    /// leadership did not move.
    pub async fn move_leadership(self, to: &str) -> Result<Status, Error> {
        let body = wire::request::Body::Move(wire::MoveRequest { to: to.to_owned() });
        let status = self.client.request_status(body).await?;
        Ok(Status::from_wire(status, false))
    }

    /// Changes leases, and waits until the change is in force. The request may be sent to any
    /// replica, because replicas forward it to the leader. A change that is already in force has no
    /// further effect. Returns the status of the replica that answered, with [`Status::leases`].
    ///
    /// # Errors
    /// The same errors as [`Client::execute`]. [`Error::Refused`] states what is wrong with the
    /// change, and what would be accepted.
    pub async fn set_leases(self, change: LeaseChange) -> Result<Status, Error> {
        let body = wire::request::Body::Lease(change.request);
        let status = self.client.request_status(body).await?;
        Ok(Status::from_wire(status, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_of_a_change_has_its_own_field() {
        let s = Duration::from_secs;
        let change = LeaseChange::strategy("fixed")
            .range("a", "b")
            .holders(["CA"])
            .unlisted("leader")
            .read_weight(0.25)
            .spare(3)
            .lease(s(4))
            .guard(s(5))
            .renew(s(6))
            .grace(s(7))
            .force();
        let expected = wire::LeaseRequest {
            from: "a".into(),
            to: "b".into(),
            strategy: "fixed".into(),
            holders: vec!["CA".into()],
            unlisted: "leader".into(),
            read_weight: Some(0.25),
            spare: Some(3),
            t_lease_ms: Some(4000),
            t_guard_ms: Some(5000),
            renew_ms: Some(6000),
            grace_ms: Some(7000),
            force: true,
        };
        assert_eq!(change.request, expected);
        let nothing = LeaseChange::durations().request;
        assert_eq!(nothing, wire::LeaseRequest::default());
    }

    #[test]
    fn durations_are_rounded_up_to_milliseconds() {
        assert_eq!(ms(Duration::from_micros(1_900)), 2);
        assert_eq!(ms(Duration::from_micros(500)), 1);
        assert_eq!(ms(Duration::from_millis(7)), 7);
    }
}
