//! The lease engine: guard, promise, renew, expire (§3.5, Figure 5).
//!
//! Every replica is a grantor to every other replica, and a holder of the promises of the others.
//! Safety rests on two rules of time:
//!
//! 1. *A holder stops before its grantor does.* The grantor records the expiry of a grant before it
//!    sends the promise, and waits long enough for the slowest clock that the bound allows. The
//!    holder measures `t_lease` from the receipt of the promise on its own clock. It takes a
//!    promise only within the window of an ack that it sent itself.
//! 2. *Validity is a comparison* of `now` with a stored deadline at the time of use. It is never a
//!    flag that a timer clears.
//!
//! | file | contents |
//! |---|---|
//! | `message.rs` | messages between grantors and holders |
//! | `rules.rs` | the hazard rules of the engine, one predicate each |
//! | `grantor.rs`, `peer.rs`, `grants.rs` | promises that this replica has made to the others |
//! | `live_grants.rs` | replicas that must be notified of writes because of promises (tags) |
//! | `holder.rs`, `chain.rs` | promises that this replica has received, and permits to read |

mod chain;
mod grantor;
mod grants;
mod holder;
mod live_grants;
mod message;
mod peer;
mod rules;
#[cfg(test)]
mod tests;

pub use grantor::{Grantor, PollContext};
pub use holder::{Holder, NoPermit, Permit};
pub use live_grants::LiveGrants;
pub use message::{LeaseMessage, Promise};
