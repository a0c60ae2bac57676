//! Rules that decide which replicas may read a key locally, and until when.
//!
//! Leader leases, Megastore's leases on every replica, and quorum leases are the same mechanism
//! with different holders. This crate implements that mechanism without I/O, without a clock and
//! without randomness: every function that depends on the time takes it as an argument `now`.
//!
//! # Glossary
//! - *replica*: a member of the cluster, named by a number from 0 to 63.
//! - *key*: a string of bytes that names a value.
//! - *holder* of a key: a replica that may read the key locally.
//! - *grantor*: a replica that has made a promise to a holder. The promise says that a write of one
//!   of the holder's keys is committed only if the holder is notified of the write.
//! - *promise*: the message that a grantor sends. *Grant*: the grantor's record of a promise.
//! - *chain*: consecutive promises of one grantor without a lapse between them.
//! - *guard*: the message that precedes a grantor's first promise. When the holder acknowledges the
//!   guard, it opens a *window*: the time within which it takes a promise.
//! - *configuration*: the assignment of keys to holders, and the durations in force. Replicas agree
//!   on configurations through a log of their own. A configuration is named by its slot in that
//!   log.
//! - *strategy*: the policy by which the leader proposes configurations.
//! - *tag*: the set of replicas that must be notified of a write before the write is committed. An
//!   acceptor states the tag when it accepts the write.
//! - *slot*: a position in a log, counted from 1. A replica has applied *executed* slots to its
//!   state. It has stored the entries of *accepted* slots, which may still be replaced.
//! - *barrier*: the slot that a holder must have executed before it reads.
//! - *permit*: permission to read one key, with the time at which it ends.
//! - *restart wait*: the time after a restart during which grants that the replica has forgotten
//!   may still be in force.
//! - *incarnation*: a run of a replica, identified by a counter on its disk.
//!
//! # Units
//! [`Time`] is a reading of one replica's clock, in ns. Readings of two replicas are never
//! compared. Durations are [`std::time::Duration`]: `t_lease` (how long a promise lasts), `t_guard`
//! (how long the window of a promise is open), `t_grace` (the silence after which a replica is
//! suspected), `t0` (the age of the ack on which a promise builds). `rho`, the bound on the error
//! of clock rates, is in parts per million.
//!
//! # How sources are cited
//! `§3.4` is a section of the paper (Moraru, Andersen, Kaminsky: *Paxos Quorum Leases*, SoCC 2014).
//! `H17` is the number of a hazard. The rules that avoid a hazard are in [`mutants::Rule`].

pub mod advice;
pub mod clock_watch;
pub mod config;
pub mod demand;
pub mod fingerprint;
pub mod growing;
pub mod hashing;
pub mod latency;
pub mod membership;
pub mod mutants;
pub mod promise;
pub mod strategy;
pub mod time;
pub mod types;

pub use config::{
    ConfigChange, Configs, CostSettings, KeyRange, KeyView, LeaseParams, ParamsError, Policy,
    RangeChange, RangeMap, StrategySpec, UnlistedHolders,
};
pub use membership::{Membership, majority};
pub use promise::{Grantor, Holder, LeaseMessage, NoPermit, Permit, PollContext, Promise};
pub use strategy::{RemainingChanges, Situation, Survey, SurveyResult};
pub use time::{ClockBound, Time};
pub use types::{Ballot, ConfigId, Incarnation, Key, ReplicaId, ReplicaSet, Slot};
