//! One process and the machine that it runs on, with the faults that are planned for them.

use leasehold_kernel::clock::Clock;
use leasehold_kernel::process::Process;
use leasehold_replica::action::Action;
use leasehold_replica::shell::Watches;
use leasehold_replica::{Input, Replica};

use super::disk::Disk;

/// State of a replica that was told to end and has not ended yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingShutdown {
    /// Time in ns for which the process is down after it has ended; `None` if it does not start
    /// again.
    pub(super) down_ns: Option<u64>,
}

/// One process and the machine that it runs on, with the faults that are planned for them.
#[derive(Debug)]
pub struct Node {
    /// The process, which runs a replica unless it is down.
    pub(super) process: Process<Replica, Input, Action>,
    pub(super) disk: Disk,
    pub(super) watches: Watches,
    /// Whether the replica was told that its clock cannot be trusted.
    pub(super) clock_untrusted: bool,
    /// Time in ns for which the process is down after a planned crash during its next sync; `None`
    /// if no such crash is planned.
    pub(super) crash_in_sync: Option<u64>,
    /// State of the shutdown of a replica that was told to end and has not ended yet.
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

    /// Whether the replica may trust its clock. The result is true until this run of the replica is
    /// told otherwise. After that, the last such input decides.
    pub fn trusts_clock(&self) -> bool {
        !self.clock_untrusted
    }

    /// Returns the disk of the machine.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }
}
