//! One process and its machine, as the world sees them.

use leasehold_kernel::clock::Clock;
use leasehold_kernel::process::Process;
use leasehold_replica::action::Action;
use leasehold_replica::shell::Watches;
use leasehold_replica::{Input, Replica};

use super::disk::Disk;

/// A replica that was told to end.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingShutdown {
    /// Time in ns after which the process starts again; `None` if it does not.
    pub(super) down_ns: Option<u64>,
}

/// One process and its machine, as the world sees them.
#[derive(Debug)]
pub struct Node {
    /// The process, which runs a replica unless it is down.
    pub(super) process: Process<Replica, Input, Action>,
    pub(super) disk: Disk,
    pub(super) watches: Watches,
    /// Whether the replica was told that its clock cannot be trusted.
    pub(super) clock_untrusted: bool,
    /// If the process is to be killed during its next sync: the time in ns after which it starts
    /// again.
    pub(super) crash_in_sync: Option<u64>,
    /// State of a shutdown: the replica was told to end and has not ended yet.
    pub(super) shutdown: Option<PendingShutdown>,
    /// Whether the disk is damaged or was wiped, so that the replica never participates again.
    pub(super) lost: bool,
}

impl Node {
    /// Creates a process that was never started, on a new machine.
    pub(super) fn new(disk: Disk, clock: Clock) -> Node {
        Node {
            process: Process::new(clock),
            disk,
            watches: Watches::default(),
            clock_untrusted: false,
            crash_in_sync: None,
            shutdown: None,
            lost: false,
        }
    }

    /// Returns the replica, if the process runs.
    pub fn replica(&self) -> Option<&Replica> {
        self.process.machine()
    }

    /// Returns the clock of the machine.
    pub fn clock(&self) -> &Clock {
        self.process.clock()
    }

    /// Whether the replica considers its storage writable.
    pub fn is_writable(&self) -> bool {
        self.watches.disk.writable()
    }

    /// Whether the replica was not told to distrust its clock.
    pub fn trusts_clock(&self) -> bool {
        !self.clock_untrusted
    }

    /// Returns the disk of the machine.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }
}
