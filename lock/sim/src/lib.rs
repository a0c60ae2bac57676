//! A simulated world for exclusive leases. The members are those of `leasehold-lock-core`, and the
//! parts of the simulator those of `leasehold-kernel`. A seed determines everything in a run:
//! settings, clocks, delays, faults, and requests of programs.
//!
//! | module | contents |
//! |---|---|
//! | [`scenario`] | settings, delays and faults of a run, drawn from a seed |
//! | [`world`] | the run |
//! | [`oracle`] | checks that know the true time and the state of all members |

pub mod oracle;
pub mod scenario;
pub mod world;

pub use self::oracle::GroupViolation;
pub use self::scenario::{GroupScenario, SimulatedClocks};
pub use self::world::{GroupWorld, RunSums};
