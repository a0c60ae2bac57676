//! Enforcement of the limits on clients: the admission of connections, the closing of connections,
//! and the counters of both in a status.

use std::net::SocketAddr;
use std::rc::Rc;

use crate::front::admission::addresses::AddressSlot;
use crate::front::admission::fd_budget::ConnectionSlot;
use crate::front::connection::{CHECK_INTERVAL, Connection};
use crate::front::frames::Frames;
use crate::front::listener::{Clients, READ_BYTES};

impl Clients {
    /// Takes the slots that a connection from `address` needs. If one of these slots is not free,
    /// returns the reason.
    pub(crate) fn claim_slots(
        &self,
        address: SocketAddr,
    ) -> Result<(ConnectionSlot, AddressSlot), String> {
        let of_address = self.addresses.take(address.ip()).ok_or_else(|| {
            let max = self.addresses.max();
            if self.addresses.count_refusal() {
                tracing::warn!(client = %address, max, "clients are refused: too many are connected from one address");
            }
            format!(
                "this replica has {max} clients connected from this address, as many as \
                 limits.clients_per_address allows: close some, ask another replica, or raise it"
            )
        })?;
        let slot = self.slots.take().ok_or_else(|| {
            let max = self.slots.max();
            if self.slots.count_refusal() {
                tracing::warn!(client = %address, max, "clients are refused: too many are connected");
            }
            format!(
                "this replica has {max} clients connected and no file descriptor for another: \
                 close some, ask another replica, raise limits.clients if it is set, or raise the \
                 limit of open files (ulimit -Hn)"
            )
        })?;
        Ok((slot, of_address))
    }

    /// Closes connections of clients that make this replica wait too long. Runs for as long as the
    /// future is polled.
    pub(crate) async fn enforce_timeouts(self: Rc<Self>) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let all = self.connections.borrow();
            for connection in all.values() {
                if let Some(missed) = connection.check_timeouts() {
                    connection.close_late(missed);
                }
            }
        }
    }

    /// Counts the received bytes of an incomplete frame. If all incomplete frames together take too
    /// much memory, closes connections. Connections on which the frame hardly grows are closed
    /// first.
    pub(crate) fn track_partial_frame(&self, connection: &Connection, frames: &Frames) {
        let partial = frames.partial_bytes();
        // Bytes that an idle connection would hold, too, are not counted.
        let counted = if partial > READ_BYTES { partial } else { 0 };
        connection.track_partial_frame(partial, counted);
        while self.budget.has_excess_partial() {
            let connections = self.connections.borrow();
            let rated = connections.values();
            let rated = rated.filter_map(|one| Some((one.eviction_rank()?, one)));
            match rated.min_by_key(|(rank, _)| *rank) {
                Some((_, first)) => first.evict(),
                None => return,
            }
        }
    }

    /// Returns counters by name. Some counters show the resources that clients use on this replica.
    /// The others show how often each limit took effect.
    pub(crate) fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let budget = &self.budget;
        let counted = &budget.limit_counters;
        let (large_writes, delayed) = self.large_writes();
        [
            ("clients", self.len() as u64),
            ("clients_max", self.slots.max() as u64),
            ("clients_refused", self.slots.refused()),
            ("clients_refused_by_address", self.addresses.refused()),
            ("clients_paused", counted.paused.get()),
            ("clients_given_up", counted.abandoned.get()),
            ("clients_timed_out", counted.timed_out.get()),
            ("clients_closed_idle", counted.idle.get()),
            ("clients_crowded_out", counted.evicted.get()),
            ("client_requests_refused", counted.requests_refused.get()),
            ("client_bytes_in_flight", budget.charged.get() as u64),
            ("client_bytes_large_writes", large_writes as u64),
            ("client_large_writes_delayed", delayed),
            ("client_bytes_partial", budget.partial.get() as u64),
            ("client_bytes_unread", budget.unread.now() as u64),
            ("client_bytes_unread_most", budget.unread.most() as u64),
        ]
        .into_iter()
    }

    /// Returns the limits in force, by name.
    pub(crate) fn limits(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let limits = &self.budget.limits;
        let mib = |bytes: usize| (bytes >> 20) as u64;
        [
            ("limit_clients", self.slots.max() as u64),
            ("limit_clients_per_address", self.addresses.max() as u64),
            (
                "limit_connections_per_peer",
                limits.connections_per_peer as u64,
            ),
            (
                "limit_connection_requests",
                limits.connection_requests as u64,
            ),
            (
                "limit_connection_in_flight_mb",
                mib(limits.connection_in_flight_bytes),
            ),
            ("limit_in_flight_mb", mib(limits.in_flight_bytes)),
            ("limit_large_writes_mb", mib(limits.large_writes_bytes)),
            (
                "limit_connection_unread_mb",
                mib(limits.connection_unread_bytes),
            ),
            ("limit_unread_mb", mib(limits.unread_bytes)),
            ("limit_frame_s", limits.frame.as_secs()),
            ("limit_stalled_s", limits.stalled.as_secs()),
            ("limit_idle_s", limits.idle.as_secs()),
        ]
        .into_iter()
    }
}
