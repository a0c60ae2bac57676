//! Parts of a deterministic simulator for pure state machines. A state machine is stepped with a
//! time and inputs, and returns actions. The environment of the state machine is simulated, and
//! determined by one seed.
//!
//! | module | contents |
//! |---|---|
//! | [`queue`] | events in order of true time |
//! | [`clock`] | clocks that drift from true time |
//! | [`network`] | links that delay, lose, duplicate and reorder messages, and that can be cut |
//! | [`process`] | a state machine that is started, killed and paused, and its next deadline |
//! | [`swarm`] | random times and durations of recurring faults |
//! | [`campaign`] | many seeds, with results in order that do not depend on the number of threads |
//! | [`trace`] | the last lines of a run, in readable form |
//!
//! No module depends on the state machine that is simulated. The event loop belongs to the *world*
//! of this state machine. It takes the next event from the [queue](queue::EventQueue), advances
//! true time, and steps a [process](process::Process). `leasehold-sim` is an example: it is the
//! world of replicas.
//!
//! All modules are pure: they use no clock, no threads and no files. The same seed results in the
//! same run, if the world takes numbers from its random generator in the same order.

pub mod campaign;
pub mod clock;
pub mod network;
pub mod process;
pub mod queue;
pub mod swarm;
pub mod trace;
