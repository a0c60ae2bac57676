//! Requests of operators: status, metrics, leadership transfers and changes of leases.
//!
//! The requests wait in the [inbox](crate::front::inbox) and are answered between two steps of the
//! replica, a bounded number in each iteration of the driver's loop.

pub(crate) mod demand;
pub(crate) mod lease_changes;
mod metrics;
mod status;
pub(crate) mod transfers;
