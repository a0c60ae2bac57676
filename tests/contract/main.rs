//! Names that others rely on, frozen: settings, counters, files, exit statuses and filters of the log.
//!
//! Users write these names into scripts, configurations and dashboards, and most of them come from
//! identifiers of the code, which can be renamed without a word from the compiler. So each list is a
//! file beside this one. A test that differs from its file fails; `CONTRACT=write cargo test --test
//! contract` writes the files anew. A name that is gone keeps an alias for one release, and
//! CHANGELOG says so. `src/contract.rs` freezes the command line.

mod exit_status;
mod files;
mod frozen;
mod node;
mod settings;
#[path = "../whole/support.rs"]
#[allow(dead_code)]
mod support;
