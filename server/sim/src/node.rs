//! One process and the machine it runs on, as the world sees them.

use leasehold_leases::Time;

use super::clock::Clock;
use super::disk::Disk;
use leasehold_replica::action::Action;
use leasehold_replica::shell::Watches;
use leasehold_replica::{Input, Replica};

/// Event that ends or stops a process between two of its actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// It is killed, and started again after this many ns.
    Crash(u64),
    /// It stands still for this many ns.
    Pause(u64),
}

/// A replica that was told to end.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingShutdown {
    /// After how many ns its process starts again, if at all.
    pub(super) down_ns: Option<u64>,
}

/// A process that stands still.
#[derive(Debug, Default)]
pub(super) struct Pause {
    /// Reading of its clock when it stopped.
    pub since: Time,
    /// Actions that it was about to perform.
    pub unfinished: Vec<Action>,
    /// Inputs that have arrived meanwhile.
    pub inbox: Vec<Input>,
}

/// One process and the machine it runs on, as the world sees them.
#[derive(Debug)]
pub struct Node {
    /// `None` while crashed.
    pub(super) replica: Option<Replica>,
    pub(super) disk: Disk,
    pub(super) watches: Watches,
    /// It was told that its clock is not to be believed.
    pub(super) clock_untrusted: bool,
    pub(super) clock: Clock,
    /// The deadline event that counts: in true time, in ns, and by its clock.
    pub(super) deadline: Option<(u64, Time)>,
    /// Number of times that it was started.
    pub(super) run: u64,
    pub(super) pause: Option<Pause>,
    /// Sprung after this many more actions.
    pub(super) trap: Option<(u32, Trap)>,
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
            replica: None,
            disk,
            watches: Watches::default(),
            clock_untrusted: false,
            clock,
            deadline: None,
            run: 0,
            pause: None,
            trap: None,
            crash_in_sync: None,
            shutdown: None,
            lost: false,
        }
    }

    /// The running replica, if it runs.
    pub fn replica(&self) -> Option<&Replica> {
        self.replica.as_ref()
    }

    /// Its clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
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

    /// Whether the deadline event of this true time, in ns, is the one that counts.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        self.deadline.is_some_and(|(at_ns, _)| at_ns == now_ns)
    }

    /// Whether the action about to be performed springs the trap.
    pub(super) fn springs(&mut self) -> Option<Trap> {
        let (left, trap) = self.trap.as_mut()?;
        if *left > 0 {
            *left -= 1;
            return None;
        }
        let trap = *trap;
        self.trap = None;
        Some(trap)
    }
}
