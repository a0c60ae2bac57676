//! Rules that the node and the simulator apply alike around a replica: when the clock is read, how
//! actions are performed, until when an answer may leave, and when a disk or a clock is no longer
//! to be counted on. These are rules of the protocol, so there is one code for them. The code is
//! pure: time is handed in.

mod disk_watch;
mod fenced_answers;
mod iteration;
mod perform;

pub use disk_watch::DiskWatch;
pub use fenced_answers::FencedAnswers;
pub use iteration::{IterationBuffers, IterationPart, Watches, run_iteration};
pub use perform::{FencedReply, Host, perform};
