//! Reads of several keys that go through the log. What is read stays with the replica that was
//! asked, and the log has a placeholder, which says only what the read costs. So reads do not fill
//! disks, and others do not wait for what the reads name.

use leasehold_wire::command::Op;
use leasehold_wire::{Command, SCAN_ENTRIES_MAX};

use crate::cost;

/// Returns the placeholder that is proposed for a read: a scan that takes as long to execute, as
/// far as a scan may. So a slot has capacity for no more placeholders than it would have for the
/// reads themselves.
pub fn placeholder(read: &Command) -> Command {
    let entries = u32::try_from(cost::scanned_instead(read)).unwrap_or(u32::MAX);
    Op::scan("", "", entries.clamp(1, SCAN_ENTRIES_MAX)).into()
}
