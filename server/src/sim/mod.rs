//! A world of its own for replicas: virtual time, a network, disks and clocks,
//! all decided by one seed. The replica code is the one that runs on real hosts.
//!
//! `world` moves events in order of true time; `network`, `disk` and `clock` say
//! how long things take and what goes wrong; `oracle` knows everything and
//! judges every step; `contended` is a workload that looks for trouble.

pub mod clock;
pub mod contended;
pub mod disk;
pub mod fault;
pub mod network;
pub mod node;
pub mod oracle;
pub mod trace;
pub mod world;
