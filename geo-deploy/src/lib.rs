//! Topologies, WAN emulation, experiments and their reports.
//!
//! An experiment is a topology, a workload and a list of strategies. A backend
//! runs it, and what it measured becomes a [`report`]. A report shows each figure beside
//! the best possible one: [`run::bound`] computes what distance alone costs, [`run::bookkeeping`]
//! what learning allows, [`true_rates`] what could be had if all rates were known. [`wan`] puts real processes on one
//! machine behind the topology's delays.

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
