//! Placeholders for reads of several keys that go through the log. The read itself stays at the
//! replica that received it. The log holds a placeholder: a command without effect that causes as
//! much work as the read. So reads do not fill disks, and replicas need not send or store the keys
//! that reads name.

use leasehold_wire::command::Op;
use leasehold_wire::{Command, SCAN_ENTRIES_MAX};

use crate::cost;

/// Returns the placeholder that is proposed for a read. The placeholder is a scan that takes as
/// long to execute as the read, so a slot can hold no more placeholders than reads. The scan has at
/// most `SCAN_ENTRIES_MAX` entries.
pub fn placeholder(read: &Command) -> Command {
    let entries = u32::try_from(cost::scanned_instead(read)).unwrap_or(u32::MAX);
    Op::scan("", "", entries.clamp(1, SCAN_ENTRIES_MAX)).into()
}
