//! Directed tests of the hazards that live in the replica (protocol §6): each is
//! the schedule that broke an earlier wording of its rule, and fails without it.
//! Numbers in names and comments are those of §6.

mod asking;
mod backlog;
mod catchup;
mod checkpoints;
mod cluster;
mod elections;
mod forged;
mod frames;
mod joining;
mod lease_sets;
mod leases;
mod logged_reads;
#[cfg(feature = "mutants")]
mod mutants;
mod numbers;
mod reads;
mod restarts;
mod sessions;
mod transfer;
mod windows;
mod work;
mod writes;
mod wrong;
