//! Faults of replicas, links, clocks and disks: starts and ends, pauses, and everything that `swarm`
//! plans.

use std::cell::Cell;

use leasehold_kernel::clock::Clock;
use leasehold_kernel::network::{Faults, LinkDegradation};
use leasehold_kernel::process::{Pause, Trap};
use leasehold_leases::ReplicaId;
use rand::RngExt as _;

use super::{QueuedEvent, World};
use crate::fault::FaultKind;
use crate::node::PendingShutdown;
use crate::oracle::WorldSnapshot;
use leasehold_leases::clock_watch::ClockReading;
use leasehold_replica::action::Action;
use leasehold_replica::shell::Watches;
use leasehold_replica::{Input, Replica};

/// Maximum time that a replica may take to leave, in ns.
pub const LEAVE_WITHIN_NS: u64 = 2_000_000_000;
/// Interval between two tries of a full disk, in ns.
const FULL_RETRY_NS: u64 = 500_000_000;
/// Longer than any run: a century, in ns.
const FOREVER_NS: u64 = 3_000_000_000_000_000_000;

impl World {
    /// Changes what goes wrong between replicas from now on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.network.faults = faults;
    }

    /// Cuts the link from one replica to another, or repairs it.
    pub fn set_cut(&mut self, from: usize, to: usize, cut: bool) {
        self.network.set_cut(from, to, cut);
    }

    /// Links take so many bytes in a second, one message after another; 0: any number.
    pub fn set_bandwidth(&mut self, bytes_per_s: u64) {
        self.network.bytes_per_s = bytes_per_s;
    }

    /// Makes the link from one replica to another worse than its delay says, or repairs it.
    pub fn set_degradation(&mut self, from: usize, to: usize, degradation: LinkDegradation) {
        self.network.set_degradation(from, to, degradation);
    }

    /// A disk brings so many entries of a log a read, at most.
    #[cfg(test)]
    pub fn set_read_max(&mut self, node: usize, most: usize) {
        self.nodes[node].disk.read_max = most;
    }

    /// Starts a replica from its disk, unless it runs or is lost.
    pub fn start(&mut self, node: usize) {
        if self.nodes[node].replica().is_some() || self.nodes[node].lost {
            return;
        }
        if self.nodes[node].disk.is_full() {
            // A run begins with a write: its incarnation.
            return self.start_at(node, self.now_ns + FULL_RETRY_NS);
        }
        let mut settings = self.settings.replica.clone();
        settings.me = ReplicaId(node as u8);
        let seed = self.rng.random();
        let now = self.clock(node);
        let target = &mut self.nodes[node];
        target.process.begin_run();
        target.watches = Watches::default();
        target.clock_untrusted = false;
        let recovered = target.disk.recover(|| self.rng.random());
        let replica = Replica::new(now, settings, recovered, seed);
        target.process.boot(replica);
        self.note_trace(node, format_args!("starts"));
        if self.settings.watched {
            let snapshot = WorldSnapshot::new(self.now_ns, &self.nodes);
            let verdict = self.oracles.started(&snapshot, node);
            self.judge(verdict);
        }
        self.reschedule(node);
    }

    /// Starts a replica later.
    pub fn start_at(&mut self, node: usize, at_ns: u64) {
        self.queue.schedule(at_ns, QueuedEvent::Start(node));
    }

    /// Ends a replica at once; what was not synced is lost, but for a part of
    /// what was being synced.
    pub fn crash(&mut self, node: usize) {
        if self.nodes[node].replica().is_none() {
            return;
        }
        self.oracles.crashed(node);
        let interrupted = self.nodes[node].disk.interrupted();
        let survivors = self.rng.random_range(0..=interrupted);
        self.fired.add(FaultKind::Torn, u64::from(interrupted > 0));
        let target = &mut self.nodes[node];
        target.process.kill();
        target.crash_in_sync = None;
        target.shutdown = None;
        target.disk.crash(survivors);
        self.note_trace(node, format_args!("is killed"));
    }

    /// Tells a replica to end: it is killed once it has left, or after a while. It is started
    /// again after `down_ns`, if at all.
    pub fn leave(&mut self, node: usize, down_ns: Option<u64>) {
        self.nodes[node].shutdown = Some(PendingShutdown { down_ns });
        self.arrive(node, |inbox| inbox.push(Input::Stop));
        let run = self.nodes[node].process.run();
        let at = self.now_ns + LEAVE_WITHIN_NS;
        self.queue
            .schedule(at, QueuedEvent::Kill { node, run, down_ns });
    }

    /// A replica that was told to end has left: its process ends.
    pub(super) fn left(&mut self, node: usize) {
        if let Some(PendingShutdown { down_ns }) = self.nodes[node].shutdown {
            let run = self.nodes[node].process.run();
            let at = self.now_ns;
            self.queue
                .schedule(at, QueuedEvent::Kill { node, run, down_ns });
        }
    }

    /// Ends a replica during its next sync, and starts it again later.
    pub fn crash_in_sync(&mut self, node: usize, down_ns: u64) {
        self.nodes[node].crash_in_sync = Some(down_ns);
    }

    /// No trap is set any more.
    pub fn disarm(&mut self, node: usize) {
        self.nodes[node].process.disarm();
        self.nodes[node].crash_in_sync = None;
    }

    /// A replica that is down comes back on a machine that started again: its
    /// clock counts from elsewhere.
    pub fn reset_clock(&mut self, node: usize) {
        let clock = self.draw_clock();
        self.nodes[node].process.replace_clock(clock);
    }

    /// A clock runs at another rate within the bound.
    pub fn change_rate(&mut self, node: usize) {
        let rate = self.draw_rate();
        let now_ns = self.now_ns;
        let change = |clock: &mut Clock| clock.set_rate(now_ns, rate);
        self.nodes[node].process.change_clock(change);
        self.reschedule(node);
    }

    /// A clock jumps ahead: outside what is assumed of clocks.
    pub fn jump_clock(&mut self, node: usize, by_ns: u64) {
        self.oracles.elections.excuse();
        let jump = |clock: &mut Clock| clock.jump(by_ns);
        self.nodes[node].process.change_clock(jump);
        self.reschedule(node);
    }

    /// A replica is told that its clock is not to be believed, for a while. The clock
    /// itself runs on within the bound: what is tried is that nobody needs it meanwhile.
    pub fn distrust_clock(&mut self, node: usize, for_ns: u64) {
        self.report_clock_trust(node, false);
        self.step_at(self.now_ns + for_ns, node, Input::ClockTrusted(true));
    }

    /// A replica's clock is to be believed, or not.
    pub fn report_clock_trust(&mut self, node: usize, trusted: bool) {
        self.arrive(node, |inbox| inbox.push(Input::ClockTrusted(trusted)));
    }

    /// A replica stands still until it is woken; what arrives waits for it.
    pub fn freeze(&mut self, node: usize) {
        self.pause(node, FOREVER_NS);
    }

    /// A replica stands still for a while; what arrives waits for it.
    pub fn pause(&mut self, node: usize, for_ns: u64) {
        if self.is_up(node) {
            self.stop(node, for_ns, Vec::new());
        }
    }

    pub(super) fn stop(&mut self, node: usize, for_ns: u64, unfinished: Vec<Action>) {
        self.nodes[node].process.stop(self.now_ns, unfinished);
        self.note_trace(
            node,
            format_args!("stands still for {} ms", for_ns / 1_000_000),
        );
        let run = self.nodes[node].process.run();
        self.queue
            .schedule(self.now_ns + for_ns, QueuedEvent::Resume { node, run });
    }

    /// Ends a replica's pause before its time.
    pub fn wake(&mut self, node: usize) {
        let Some(pause) = self.nodes[node].process.resume() else {
            return;
        };
        self.note_trace(node, format_args!("goes on"));
        let Pause {
            since,
            unfinished,
            mut inbox,
        } = pause;
        let mut actions = unfinished;
        self.perform(node, &mut actions);
        if let Some(again) = self.nodes[node].process.paused_inbox() {
            *again = inbox; // a trap stopped it in the same step
            return;
        }
        let now = self.clock(node);
        // It may have stopped after it read its clock for the next group, or
        // before: what it had read then must not be used (hazard 25).
        let reading = Cell::new(since);
        let take = |inputs: &mut Vec<Input>| {
            reading.set(now);
            inputs.append(&mut inbox);
        };
        self.run_iteration(node, take, || ClockReading::alone(reading.get()));
    }

    /// After `actions` more actions of its steps, a replica stops or ends.
    pub fn set_trap(&mut self, node: usize, actions: u32, trap: Trap) {
        self.nodes[node].process.set_trap(actions, trap);
    }

    /// No sync of a replica ends for a while.
    pub fn stall_disk(&mut self, node: usize, for_ns: u64) {
        self.nodes[node].disk.stalled_until_ns = self.now_ns + for_ns;
    }

    /// A disk has no room for a while; then it takes a moment to be noticed.
    pub fn fill_disk(&mut self, node: usize, for_ns: u64) {
        self.nodes[node].disk.set_full(true);
        let at = self.now_ns + for_ns + FULL_RETRY_NS;
        self.queue.schedule(at, QueuedEvent::DiskRetry { node });
    }

    /// A disk has no room until it is repaired.
    pub fn fill_disk_until_repaired(&mut self, node: usize) {
        self.nodes[node].disk.set_full(true);
    }

    /// Ends a disk's troubles, as far as they end.
    pub fn repair_disk(&mut self, node: usize) {
        self.nodes[node].disk.stalled_until_ns = self.now_ns;
        self.try_disk(node);
    }

    /// A replica's disk is damaged. The replica stops, and never takes part again.
    pub fn lose(&mut self, node: usize) {
        self.crash(node);
        self.nodes[node].lost = true;
    }

    /// Ends a replica at once, and its disk loses everything: if it took part
    /// before, the next start finds it out, and it is mute.
    pub fn wipe(&mut self, node: usize) {
        self.crash(node);
        self.nodes[node].disk.wipe();
    }

    /// A full disk is tried again.
    pub(super) fn try_disk(&mut self, node: usize) {
        if self.nodes[node].disk.set_full(false) {
            self.begin_sync(node);
        }
        self.nodes[node].watches.disk.set_full(false);
        self.run_due(node);
    }
}
