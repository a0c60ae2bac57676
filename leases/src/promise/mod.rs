//! The lease engine: guard, promise, renew, expire (§3.5, Figure 5).
//!
//! Every replica is a grantor to every other, and a holder of what the others
//! promised. Everything rests on two rules of time:
//!
//! 1. *A holder stops before its grantor does.* The grantor records the expiry
//!    of a grant before it sends the promise, and outwaits every clock it could
//!    meet; the holder counts `t_lease` from receipt on its own clock, and takes
//!    a promise only within the window of an ack it sent itself.
//! 2. *Validity is a comparison*, of `now` with a stored deadline at the time
//!    of use, never a flag that a timer clears.
//!
//! | file | what |
//! |---|---|
//! | `message.rs` | messages between grantors and holders |
//! | `rules.rs` | the hazard rules of the engine, one predicate each |
//! | `grantor.rs`, `peer.rs`, `grants.rs` | what this replica has promised to the others |
//! | `live.rs` | replicas that an acceptance must notify because of that (tags) |
//! | `holder.rs`, `chain.rs` | what it has been promised, and may read because of it |

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
