//! Observers of the node itself. They detect long iterations of the event loop, timeouts that are
//! too short for the measured round-trip times, and files that have changed. They also limit the
//! rate of log lines.

pub(crate) mod files;
pub(crate) mod log_rate_limiter;
pub(crate) mod step;
pub(crate) mod timeouts;
