//! The real program as a new user runs it: command lines in, words and files out.
//!
//! One binary for all of these tests: they mostly wait for clusters to elect and
//! promise, and wait side by side.

mod advise;
mod bad_input;
mod chaos;
mod cluster;
mod command_line;
mod demo;
mod disk;
mod examples;
mod failures;
mod hostile;
mod operating;
mod outputs;
mod plot;
mod security;
mod signals;
mod sim;
mod support;
mod tokens;
mod ycsb;
