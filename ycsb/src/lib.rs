//! YCSB workloads, generators, the load generator and its measurements.
//!
//! - [`generator`]: seeded number generators, YCSB's and our own.
//! - [`site_stream`]: the requests of the paper's experiments.
//! - [`sample`]: one measured operation, the raw material of every report.

pub mod generator;
pub mod sample;
pub mod site_stream;

pub use site_stream::{Popularity, SiteStream};
