//! Names on which users rely, and which are therefore frozen: settings, counters, files, exit
//! statuses and log filters.
//!
//! Users write these names into scripts, configurations and dashboards. Most of the names come from
//! identifiers in the code, and the compiler does not warn if one of these is renamed. So each list
//! of names is a file beside this one, and a test fails if the names differ from its file.
//! `CONTRACT=write cargo test --test contract` writes the files again. A name that is removed keeps
//! an alias for one release, and CHANGELOG mentions it. `src/contract.rs` freezes the command line.

mod exit_status;
mod files;
mod frozen;
mod node;
mod settings;
#[path = "../whole/support.rs"]
#[allow(dead_code)]
mod support;
