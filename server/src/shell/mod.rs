//! What the node and the simulator do alike around a replica: when the clock is
//! read, until when an answer may leave, and when a disk is no longer to be counted
//! on. These are rules of the protocol, so there is one code for them, and it is
//! pure: time is handed in.

mod answers;
mod disk_watch;
mod round;

pub use answers::Answers;
pub use disk_watch::DiskWatch;
pub use round::{in_time, round};
