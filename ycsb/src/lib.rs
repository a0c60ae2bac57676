//! YCSB workloads, generators, the load generator and its measurements.

pub mod sample;
