//! Topologies, WAN emulation, experiments and their reports.
//!
//! An experiment is a topology, a workload and a list of strategies. A backend runs it, and a
//! [`report`] shows the measurements. Reports show measured values next to values that these
//! modules compute:
//!
//! - [`run::bound`] computes the minimum latency that the distances between sites allow.
//! - [`run::bookkeeping`] computes the share of local reads that a learning strategy would reach
//!   with perfect bookkeeping.
//! - [`true_rates`] computes the mean latency that would be possible if all rates were known.
//!
//! [`wan`] emulates the network between real processes on one machine, with the delays of the
//! topology.

pub mod advice;
pub mod backend;
pub mod chaos;
mod cluster_file;
pub mod experiment;
pub mod fault;
#[cfg(feature = "pictures")]
pub mod pictures;
pub mod report;
pub mod run;
pub mod standing;
pub mod throughput;
pub mod topology;
pub mod true_rates;
pub mod wan;
