//! Deterministic simulator of a cluster: time, the network, disks and clocks are virtual, and one
//! seed decides everything that happens. The simulated replicas run the same code as real hosts.
//! The parts that do not depend on replicas (event queue, clocks, network, processes, recurring
//! faults, campaigns) are in `leasehold-kernel`.
//!
//! | module | part |
//! |---|---|
//! | `world`, `node`, `disk` | events in order of true time, and the processes and disks that they happen to |
//! | `scenario`, `workload`, `swarm`, `fault` | a run drawn from its seed: settings, clients, and faults with their names and counts |
//! | `oracle` | checks of the safety and liveness rules after every step, with full knowledge of the world |
//! | `run`, `trace` | one run from its beginning to its verdict, and the lines of its trace |
//! | `tally` | sums over runs, and the list of faults, paths and checks that never occurred in them |
//! | `self_test`, `faulty_reporter` | broken assumptions about clocks, which the oracles must notice; a replica that reports nonsense |
//! | `fault_injection` | one fault at known times, and the answers that clients saw |

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
