//! The replica (pure), the node that gives it sockets, disk and time, and the
//! simulator that gives it a world of its own.

pub mod codec;
pub mod node;
pub mod replica;
pub mod shell;
pub mod sim;
