//! Parts of a deterministic simulator for pure state machines. A state machine is stepped with a
//! time and inputs, and returns actions; everything around it is simulated, and decided by one seed.
//!
//! | module | part |
//! |---|---|
//! | [`queue`] | events in order of true time |
//! | [`clock`] | clocks that drift, and are not true time |
//! | [`network`] | links that delay, lose, repeat and reorder messages, and can be cut |
//! | [`process`] | a state machine on its machine: started, killed, paused, with its next deadline |
//! | [`swarm`] | times and durations of faults that recur, drawn from the seed |
//! | [`campaign`] | many seeds, counted in order whatever the number of threads, and continued later |
//! | [`trace`] | the last lines of a run, as a person reads them |
//!
//! Nothing here knows which state machine is simulated. The event loop belongs to its world: it
//! takes the next event from the [queue](queue::EventQueue), moves true time, and steps a
//! [process](process::Process). `leasehold-sim` is the world of replicas, and an example of one.
//!
//! All of it is pure: no clock, no threads, no files. The same seed gives the same run, as long as
//! the world draws from its generator in the same order.

pub mod campaign;
pub mod clock;
pub mod network;
pub mod process;
pub mod queue;
pub mod swarm;
pub mod trace;
