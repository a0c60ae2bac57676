//! Admission: every bound on what clients may take from a node, on one page.
//!
//! A request meets the bounds in this order. `limit_` counters in a status show the values in
//! force. Settings are described in `docs/operating.md#limits`.
//!
//! | bound | protects | setting | when it is reached | counter | code |
//! |---|---|---|---|---|---|
//! | connections of all clients | file descriptors | `limits.clients` | the connection is refused with a reason | `clients_refused` | [`fd_budget`], [`limits`] |
//! | connections from one address | slots for other machines | `limits.clients_per_address` | the same | `clients_refused_by_address` | [`addresses`] |
//! | refusals that are being written | file descriptors | – | the socket is closed without a reason | – | [`fd_budget::REJECTIONS_MAX`] |
//! | time for a handshake, a frame, an answer to be taken, idleness | slots | `limits.frame_s`, `stalled_s`, `idle_s` | the connection is closed | `clients_timed_out`, `clients_closed_idle` | `connection/timeouts` |
//! | bytes of unfinished frames | memory | – | the connection with most of them is closed | `clients_crowded_out` | `connection`, `limits` |
//! | requests and bytes in flight on one connection | memory, fairness | `limits.connection_requests`, `connection_in_flight_mb` | the connection is not read from | `clients_paused` | `connection` |
//! | bytes of answers that one client leaves unread | memory | `limits.connection_unread_mb` | the connection is closed | `clients_given_up` | `connection`, `outbox` |
//! | bytes in flight and unread of all clients | memory | `limits.in_flight_mb`, `unread_mb` | connections are not read from, then large requests are refused | `client_requests_refused` | `connection/budget` |
//! | work in one iteration of the loop | latency of others | – | requests wait for the next iteration, round-robin by connection | – | [`inbox`](crate::front::inbox) |
//! | bytes of large writes that the replica has | latency of others | `limits.large_writes_mb` | they wait here, round-robin by connection | `client_large_writes_delayed` | [`large_writes`] |
//! | sessions that are opened | memory, the log | `sessions.max`, `sessions.opened_per_s` | the write is refused, or waits | `openings_refused`, `sessions_refused` | `leasehold_replica` |
//! | bytes of large answers that an iteration encodes | latency of others | – | they wait, round-robin by connection | – | [`large_answers`] |
//! | bytes of answers to transactions that wait | memory | `limits.in_flight_mb` | further answers are encoded immediately, and count as unread | – | [`large_answers`] |
//!
//! Peers have connections of their own. Connections of peers that have not identified themselves
//! yet share [`fd_budget::UNAUTHENTICATED_MAX`] slots, of which a new connection takes the slot of
//! the oldest ([`evicting_slots`]). `limits.connections_per_peer` bounds the connections of an
//! identified peer.

pub(crate) mod addresses;
pub(crate) mod evicting_slots;
pub(crate) mod fd_budget;
pub(crate) mod large_answers;
pub(crate) mod large_writes;
pub(crate) mod limits;
