//! Exclusive leases without a lock server. The members of a small group, 3 to 15 processes, agree
//! on one *owner* of each *resource*, and until when it owns the resource. When an owner dies,
//! another member can own the resource after a bounded time. No member writes to a disk for a lease.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use leasehold_lock::{Check, Group, Member, Wait};
//!
//! let group = Group::load("group.toml".as_ref())?;
//! let member = Member::start(group, "a", Some("/var/lib/lock".as_ref()))?;
//! let held = member.acquire("printer", Wait::Forever).await?;
//! while let Check::Valid { left } = held.check() {
//!     // Use the printer for a time shorter than `left`, and then check again.
//! #   let _ = left;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The algorithm is that of `leasehold_lock_core`. This package gives it sockets, a clock and a
//! thread.

pub mod codec;

mod clock;
mod directory;
mod driver;
mod group;
mod held;
mod member;
mod peers;

pub use directory::DirectoryError;
pub use group::{Group, GroupError, GroupMember};
pub use held::{Check, Held, LeaseView, Loss, Released, UnknownSuccessor};
pub use member::{AcquireError, Member, Owner, StartError, Wait};
