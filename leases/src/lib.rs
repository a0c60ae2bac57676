//! Rules that decide which replicas may read locally, and until when.
//!
//! Leader leases, Megastore's leases on every replica and quorum leases are one
//! mechanism with different holders. This crate is that mechanism, without I/O,
//! without a clock and without randomness: `now` is an argument everywhere.
//!
//! # Glossary
//! - *replica*: a member of the cluster, named by a number from 0 to 63.
//! - *key*: bytes. *Holder* of a key: a replica that may read it locally.
//! - *grantor*: a replica that has promised a holder to let no write of a key that
//!   the holder holds be committed without the holder being notified.
//! - *promise*: the message. *Grant*: what the grantor remembers of it.
//! - *chain*: the promises of one grantor that followed each other without a lapse.
//! - *guard*: the message that comes first. Its ack opens a *window* at the holder,
//!   in which a promise is taken.
//! - *configuration*: which replicas hold which key, and the durations in force;
//!   agreed through a log of its own, and named by its slot there.
//! - *strategy*: the policy by which the leader proposes configurations.
//! - *tag*: the set of replicas that an acceptor demands to be notified of a write.
//! - *slot*: a position in a log, counted from 1. *Executed* slots have changed the
//!   state here; *accepted* ones are stored here, and may yet be replaced.
//! - *barrier*: the slot that a holder must have executed before it reads.
//! - *permit*: leave to read one key, with the time at which it ends.
//! - *restart wait*: the time after a restart in which forgotten grants may live.
//! - *incarnation*: a run of a replica, counted by a number on its disk.
//!
//! # Units
//! [`Time`] is a reading of one replica's clock, in ns; readings of two replicas are
//! never compared. Durations are [`std::time::Duration`]: `t_lease` (how long a promise
//! lasts), `t_guard` (how long its window is open), `t_grace` (silence after which a
//! replica is suspected), `t0` (age of the ack that a promise builds on). `rho`, the
//! bound on clock rates, is in parts per million.
//!
//! # How sources are cited
//! `§3.4` is a section of the paper (Moraru, Andersen, Kaminsky: *Paxos Quorum
//! Leases*, SoCC 2014). `H17` is a hazard. Its rules are in [`mutants::Rule`].

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
