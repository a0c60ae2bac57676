//! Rules that the node and the simulator both apply around a replica. They define when the clock is
//! read, how actions are performed, and how long an answer may still be sent. They also define when
//! a disk or a clock is no longer reliable. These are rules of the protocol, so the node and the
//! simulator share their code. The code does not read a clock: the caller passes the time.

mod disk_watch;
mod fenced_answers;
mod iteration;
mod perform;

pub use disk_watch::DiskWatch;
pub use fenced_answers::FencedAnswers;
pub use iteration::{IterationBuffers, IterationPart, Watches, run_iteration};
pub use perform::{FencedReply, Host, perform};
