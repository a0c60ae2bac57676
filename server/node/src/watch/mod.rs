//! Observers of the node itself: long iterations of its loop, timeouts that are too short for the
//! measured round trips, files that change, and logs that must not be flooded.

pub(crate) mod files;
pub(crate) mod log_rate_limiter;
pub(crate) mod step;
pub(crate) mod timeouts;
