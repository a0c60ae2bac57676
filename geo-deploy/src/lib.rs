//! Topologies, WAN emulation, experiments and their reports: everything around
//! the replicas that turns a question about geography into files that answer it.
//!
//! An experiment is a topology, a workload and a list of strategies. A backend
//! runs it; what it measured becomes a [`report`]. [`bound`] says what distance
//! alone costs and [`attainable`] what learning allows, so that every figure
//! stands beside the best it could have been. [`wan`] puts real processes on one
//! machine behind the topology's delays.

pub mod attainable;
pub mod backend;
pub mod bound;
mod cluster_file;
pub mod experiment;
pub mod report;
pub mod standing;
pub mod topology;
pub mod wan;
