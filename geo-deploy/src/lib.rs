//! Topologies, WAN emulation, experiments and their reports.
//!
//! An experiment is a topology, a workload and a list of strategies. A backend runs it, and a
//! [`report`] shows the measurements. Each measured figure is shown next to the best possible one:
//!
//! - [`run::bound`] computes the latency that distance alone causes.
//! - [`run::bookkeeping`] computes the share of local reads that is possible when holders are
//!   learned.
//! - [`true_rates`] computes the mean latency that would be possible if all rates were known.
//!
//! [`wan`] runs real processes on one machine, with the delays of the topology between them.

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
