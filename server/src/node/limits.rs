//! The limits as a status lists them, beside what is taken now and how often they acted.

use super::listener::Clients;

impl Clients {
    /// What clients take of this replica, and how often a limit acted, by name.
    pub(super) fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let budget = &self.budget;
        let acted = &budget.acted;
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
