//! YCSB workloads, generators, the load generator and its measurements.
//!
//! - [`generator`]: seeded number generators, both YCSB's and additional ones.
//! - [`site_stream`]: the requests of the paper's experiments.
//! - [`properties`]: YCSB's property files and `-p name=value`.
//! - [`workload`]: YCSB's core workload, a stream of operations for each thread.
//! - [`measurement`]: histograms of a run and the reports made of them.
//! - [`connect`]: assigns replicas to addresses, and connects.
//! - [`output`]: lines on standard output and standard error.
//! - [`store`]: the interface of a store under test.
//! - [`runner`]: the load generator.
//! - [`summary`]: the summary that is shown to a person at the end of a run.
//! - [`sample`]: one measured operation. Every report is made from such samples.

pub mod args;
pub mod command;
pub mod connect;
pub mod generator;
pub mod measurement;
pub mod output;
pub mod properties;
pub mod runner;
pub mod sample;
pub mod settings;
pub mod site_stream;
pub mod status;
pub mod store;
pub mod summary;
pub mod workload;

pub use site_stream::{Popularity, Requests, SiteStream};
