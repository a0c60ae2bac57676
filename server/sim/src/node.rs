//! One process and the machine it runs on, as the world sees them.

use leasehold_kernel::clock::Clock;
use leasehold_kernel::process::Process;
use leasehold_replica::action::Action;
use leasehold_replica::shell::Watches;
use leasehold_replica::{Input, Replica};

use super::disk::Disk;

/// A replica that was told to end.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingShutdown {
    /// After how many ns its process starts again, if at all.
    pub(super) down_ns: Option<u64>,
}

/// One process and the machine it runs on, as the world sees them.
#[derive(Debug)]
pub struct Node {
    /// The process, which runs a replica unless it is down.
    pub(super) process: Process<Replica, Input, Action>,
    pub(super) disk: Disk,
    pub(super) watches: Watches,
    /// It was told that its clock is not to be believed.
    pub(super) clock_untrusted: bool,
    /// It is killed during its next sync, and started again after this many ns.
    pub(super) crash_in_sync: Option<u64>,
    /// It was told to end, and has not yet.
    pub(super) shutdown: Option<PendingShutdown>,
    /// Its disk is damaged or was lost: it never takes part again.
    pub(super) lost: bool,
}

impl Node {
    /// A process that was never started, on a new machine.
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

    /// The running replica, if it runs.
    pub fn replica(&self) -> Option<&Replica> {
        self.process.machine()
    }

    /// Its clock.
    pub fn clock(&self) -> &Clock {
        self.process.clock()
    }

    /// Whether it takes its storage to be writable.
    pub fn is_writable(&self) -> bool {
        self.watches.disk.writable()
    }

    /// Whether it was not told otherwise of its clock.
    pub fn trusts_clock(&self) -> bool {
        !self.clock_untrusted
    }

    /// Its disk.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }
}
