//! Who may read locally, and until when.
//!
//! Leader leases, Megastore's leases on every replica and quorum leases are one
//! mechanism with different holders. This crate is that mechanism, without I/O,
//! without a clock and without chance: `now` is an argument everywhere.
//!
//! # Glossary
//! - *holder* of a key: a replica that may read it locally.
//! - *grantor*: a replica that has promised a holder to let no write of a key the
//!   holder holds be committed without the holder being notified.
//! - *promise*: the message; *grant*: what the grantor remembers of it.
//! - *configuration*: which replicas hold which key; agreed through its own log.
//! - *tag*: the set of replicas that an acceptor demands to be notified of a write.
//! - *barrier*: the slot a holder must have executed before it reads under a promise.
//! - *permit*: leave to read one key, with the time at which it ends.

pub mod config;
pub mod demand;
pub mod fingerprint;
pub mod membership;
pub mod mutants;
pub mod promise;
pub mod strategy;
pub mod time;
pub mod types;

pub use config::{ConfigChange, Configs, Key, KeyRange, KeyView, LeaseParams, ParamsError};
pub use membership::{Membership, majority};
pub use promise::{Grantor, Holder, LeaseMessage, NoPermit, Permit, PollContext, Promise};
pub use strategy::{Situation, Strategy, StrategySpec, Unlisted};
pub use time::{ClockBound, Time};
pub use types::{Ballot, ConfigId, Incarnation, ReplicaId, ReplicaSet, Slot};
