//! Tests of the real program as a new user runs it, with command lines as input, and printed text
//! and files as output.
//!
//! All of these tests are in one binary. They mostly wait for clusters to elect a leader and to
//! grant leases, and so they wait at the same time.

mod advise;
mod bad_input;
mod chaos;
mod cluster;
mod command_line;
mod data;
mod demo;
mod disk;
mod examples;
mod failures;
mod hostile;
mod inspect;
mod lock;
mod operating;
mod outputs;
mod plot;
mod security;
mod signals;
mod sim;
mod support;
mod tokens;
mod ycsb;
