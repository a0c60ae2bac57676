//! Limits of clients: which connections get a place, which are closed, and the counters of it in
//! a status.

use std::net::SocketAddr;
use std::rc::Rc;

use super::addresses::AddressSeat;
use super::connection::{Connection, LOOK_EVERY};
use super::descriptors::Seat;
use super::frames::Frames;
use super::listener::{Clients, READ_BYTES};

impl Clients {
    /// A place for a connection from there, or why there is none.
    pub(super) fn seat(&self, address: SocketAddr) -> Result<(Seat, AddressSeat), String> {
        let of_address = self.addresses.take(address.ip()).ok_or_else(|| {
            let max = self.addresses.max();
            if self.addresses.refuse() {
                tracing::warn!(client = %address, max, "clients are refused: too many from one address");
            }
            format!(
                "this replica has {max} clients connected from this address, as many as \
                 limits.clients_per_address allows: close some, ask another replica, or raise it"
            )
        })?;
        let seat = self.seats.take().ok_or_else(|| {
            let max = self.seats.max();
            if self.seats.refuse() {
                tracing::warn!(client = %address, max, "clients are refused: too many are connected");
            }
            format!(
                "this replica has {max} clients connected and no file descriptor for another: \
                 close some, ask another replica, raise limits.clients if it is set, or raise the \
                 limit of open files (ulimit -Hn)"
            )
        })?;
        Ok((seat, of_address))
    }

    /// Closes connections of clients that let this replica wait, for as long as it is polled.
    pub(super) async fn keep_time(self: Rc<Self>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let all = self.connections.borrow();
            for connection in all.values() {
                if let Some(late) = connection.look() {
                    connection.close_late(late);
                }
            }
        }
    }

    /// Counts the bytes that are here of a frame that is not whole yet. If such frames take too
    /// much together, connections with frames that hardly grow are ended.
    pub(super) fn hold(&self, connection: &Connection, frames: &Frames) {
        let partial = frames.partial_bytes();
        // What an idle connection holds, too, is not counted.
        let counted = match partial > READ_BYTES {
            true => partial,
            false => 0,
        };
        connection.hold(partial, counted);
        while self.budget.is_crowded() {
            let connections = self.connections.borrow();
            let rated = connections.values();
            let rated = rated.filter_map(|one| Some((one.keeps_its_place()?, one)));
            match rated.min_by_key(|(place, _)| *place) {
                Some((_, first)) => first.crowd_out(),
                None => return,
            }
        }
    }

    /// Counters of what clients take of this replica, and of how often a limit acted, by name.
    pub(super) fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let budget = &self.budget;
        let acted = &budget.acted;
        let (large_writes, delayed) = self.large_writes();
        [
            ("clients", self.len() as u64),
            ("clients_max", self.seats.max() as u64),
            ("clients_refused", self.seats.refused()),
            ("clients_refused_by_address", self.addresses.refused()),
            ("clients_paused", acted.paused.get()),
            ("clients_given_up", acted.given_up.get()),
            ("clients_timed_out", acted.timed_out.get()),
            ("clients_closed_idle", acted.idle.get()),
            ("clients_crowded_out", acted.crowded_out.get()),
            ("client_requests_refused", acted.requests_refused.get()),
            ("client_bytes_in_flight", budget.charged.get() as u64),
            ("client_bytes_large_writes", large_writes as u64),
            ("client_large_writes_delayed", delayed),
            ("client_bytes_partial", budget.partial.get() as u64),
            ("client_bytes_unread", budget.unread.now() as u64),
            ("client_bytes_unread_most", budget.unread.most() as u64),
        ]
        .into_iter()
    }

    /// The limits that are in force, by name.
    pub(super) fn limits(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let limits = &self.budget.limits;
        let mib = |bytes: usize| (bytes >> 20) as u64;
        [
            ("limit_clients", self.seats.max() as u64),
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
