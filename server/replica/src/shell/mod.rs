//! Rules that the node and the simulator apply alike around a replica: when the clock is read, how
//! actions are performed, until when an answer may leave, and when a disk or a clock is no longer
//! to be counted on. These are rules of the protocol, so there is one code for them. The code is
//! pure: time is handed in.

mod answers;
mod clock_watch;
mod disk_watch;
mod perform;
mod round;

pub use answers::FencedAnswers;
pub use clock_watch::{ClockReading, ClockWatch, Divergence, OtherClocks};
pub use disk_watch::DiskWatch;
pub use perform::{FencedReply, Host, perform};
pub use round::{IterationPart, Watches, run_iteration};
