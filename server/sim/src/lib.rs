//! A world of its own for replicas: virtual time, a network, disks and clocks,
//! all decided by one seed. The replica code is the one that runs on real hosts.
//!
//! `world` moves events in order of true time; `network`, `disk`, `clock` and
//! `node` are what it is made of. `scenario` draws a run from its seed; `workload`
//! is its clients, `swarm` what goes wrong besides the network's habits (`fault`
//! names and counts it). `oracle` knows everything and judges every step; `run`
//! brings them together, and `trace` tells a person what happened. `tally` adds runs
//! up and knows what never happened in them, `saved` is what a campaign of them keeps
//! on disk; `control` breaks what is assumed of clocks (self-tests), and `odd` is a replica
//! whose reports are nonsense. `drill` injects one fault at known times, and measures what
//! clients saw.

pub mod clock;
pub mod disk;
pub mod fault;
pub mod fault_injection;
pub mod faulty_reporter;
pub mod network;
pub mod node;
pub mod oracle;
#[cfg(test)]
mod paced;
pub mod run;
pub mod saved;
pub mod scenario;
pub mod self_test;
pub mod swarm;
#[cfg(test)]
mod switched;
pub mod tally;
pub mod trace;
pub mod workload;
pub mod world;
