//! A world of its own for replicas: virtual time, a network, disks and clocks, all decided by one
//! seed. The replica's code is the one that runs on real hosts. Parts that know no replica (queue,
//! clocks, network, processes, recurring faults, campaigns) are `leasehold-kernel`.
//!
//! | module | part |
//! |---|---|
//! | `world`, `node`, `disk` | events in order of true time, and what they happen to |
//! | `scenario`, `workload`, `swarm`, `fault` | a run drawn from its seed: settings, clients, and faults with their names and counts |
//! | `oracle` | judges every step; it sees everything |
//! | `run`, `trace` | one run from its beginning to its verdict, and its lines |
//! | `tally` | sums over runs, and what never happened in them |
//! | `self_test`, `faulty_reporter` | broken assumptions about clocks, which the oracles must notice; a replica that reports nonsense |
//! | `fault_injection` | one fault at known times, and what clients saw |

pub mod disk;
pub mod fault;
pub mod fault_injection;
pub mod faulty_reporter;
pub mod node;
pub mod oracle;
#[cfg(test)]
mod paced;
pub mod run;
pub mod scenario;
pub mod self_test;
pub mod swarm;
#[cfg(test)]
mod switched;
pub mod tally;
pub mod trace;
pub mod workload;
pub mod world;
