//! Directed tests of the hazards in the replica (protocol §6). Each test replays a schedule of
//! events under which an earlier wording of a rule was wrong, and fails without the rule. Numbers
//! in names and comments are the numbers of hazards in §6.

mod accepts;
mod asking;
mod backlog;
mod catchup;
mod checkpoints;
mod cluster;
mod compaction;
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
mod txns;
mod windows;
mod work;
mod writes;
mod wrong;
