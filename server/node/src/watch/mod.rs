//! Observers of the node itself. They detect long iterations of its loop, timeouts that are too
//! short for the measured round trips, and files that change, and keep logs from being flooded.

pub(crate) mod files;
pub(crate) mod log_rate_limiter;
pub(crate) mod step;
pub(crate) mod timeouts;
