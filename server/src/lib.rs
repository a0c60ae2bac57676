//! The replica (pure), the node that gives it sockets, disk and time, and the
//! simulator that gives it a world of its own.

// Without the shell some of what it uses is used by nobody.
#![cfg_attr(feature = "mutants", allow(dead_code, unused_imports))]

pub mod codec;
pub mod cost;
#[cfg(not(feature = "mutants"))]
pub mod node;
pub mod replica;
#[cfg(not(feature = "mutants"))]
pub mod security;
pub mod shell;
pub mod sim;
mod turns;
