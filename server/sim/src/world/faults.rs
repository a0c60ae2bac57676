//! Faults of replicas, links, clocks and disks: starts, ends and pauses of processes, and every
//! other fault that `swarm` plans.

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

/// Maximum duration of a replica's shutdown, in ns.
pub const LEAVE_WITHIN_NS: u64 = 2_000_000_000;
/// Interval between two attempts to write to a full disk, in ns.
pub(super) const FULL_RETRY_NS: u64 = 500_000_000;
/// Time in ns that is longer than any run: about a century.
const FOREVER_NS: u64 = 3_000_000_000_000_000_000;

impl World {
    /// Sets the faults of all links between replicas.
    pub fn set_faults(&mut self, faults: Faults) {
        self.network.faults = faults;
    }

    /// Ends the delays of reads of logs. Reads that have begun may still be slow.
    pub fn end_slow_reads(&mut self) {
        self.settings.slow_reads = false;
    }

    /// Cuts the link from one replica to another, or repairs it.
    pub fn set_cut(&mut self, from: usize, to: usize, cut: bool) {
        self.network.set_cut(from, to, cut);
    }

    /// Limits each link to `bytes_per_s` bytes a second. Messages on a link are transmitted one
    /// after another. If `bytes_per_s` is 0, there is no limit.
    pub fn set_bandwidth(&mut self, bytes_per_s: u64) {
        self.network.bytes_per_s = bytes_per_s;
    }

    /// Sets the degradation of the link from one replica to another.
    pub fn set_degradation(&mut self, from: usize, to: usize, degradation: LinkDegradation) {
        self.network.set_degradation(from, to, degradation);
    }

    /// Sets the maximum number of log entries that one read of a replica's disk returns.
    #[cfg(test)]
    pub fn set_read_max(&mut self, node: usize, most: usize) {
        self.nodes[node].disk.read_max = most;
    }

    /// Starts a replica from its disk, unless it already runs or is lost.
    pub fn start(&mut self, node: usize) {
        if self.nodes[node].replica().is_some() || self.nodes[node].lost {
            return;
        }
        if self.nodes[node].disk.is_full() {
            // A run begins by writing its incarnation, which a full disk does not accept.
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

    /// Schedules the start of a replica.
    pub fn start_at(&mut self, node: usize, at_ns: u64) {
        self.queue.schedule(at_ns, QueuedEvent::Start(node));
    }

    /// Kills a replica immediately. Unsynced data is lost, but a part of the data in the current
    /// sync may survive.
    pub fn crash(&mut self, node: usize) {
        if self.nodes[node].replica().is_none() {
            return;
        }
        self.oracles.crashed(node);
        let interrupted = self.nodes[node].disk.interrupted();
        let survivors = self.rng.random_range(0..=interrupted);
        self.fired.add(FaultKind::Torn, u64::from(interrupted > 0));
        let unflushed = self.nodes[node].disk.unflushed();
        let flushed = self.rng.random_range(0..=unflushed);
        let in_part = (1..unflushed).contains(&flushed);
        self.fired.add(FaultKind::PartFlushed, u64::from(in_part));
        let leads = self.nodes[node]
            .replica()
            .is_some_and(|it| it.leads_at().is_some());
        let is_unsynced = leads && self.nodes[node].disk.awaits_entry();
        self.fired
            .add(FaultKind::LeaderUnsynced, u64::from(is_unsynced));
        let target = &mut self.nodes[node];
        target.process.kill();
        target.crash_in_sync = None;
        target.shutdown = None;
        if target.disk.has_log() {
            // All sectors survive some crashes, and no sector survives some others.
            let lost = [0.0, 0.2, 0.5, 1.0][self.rng.random_range(0..4)];
            let (mut any_lost, mut any_survived) = (false, false);
            let survives = || {
                let survives = !self.rng.random_bool(lost);
                any_survived |= survives;
                any_lost |= !survives;
                survives
            };
            target.disk.crash_in_sectors(survives, flushed);
            let is_torn = any_lost && any_survived;
            self.fired.add(FaultKind::TornSectors, u64::from(is_torn));
        } else {
            target.disk.crash(survivors, flushed);
        }
        self.note_trace(node, format_args!("is killed"));
    }

    /// Tells a replica to end. The process is killed when the replica has completed its shutdown,
    /// or after a maximum time. The process is started again `down_ns` later. If `down_ns` is
    /// `None`, the process is never started again.
    pub fn leave(&mut self, node: usize, down_ns: Option<u64>) {
        self.nodes[node].shutdown = Some(PendingShutdown { down_ns });
        self.arrive(node, |inbox| inbox.push(Input::Stop));
        let run = self.nodes[node].process.run();
        let at = self.now_ns + LEAVE_WITHIN_NS;
        self.queue
            .schedule(at, QueuedEvent::Kill { node, run, down_ns });
    }

    /// Ends the process of a replica that was told to end and has completed its shutdown.
    pub(super) fn left(&mut self, node: usize) {
        if let Some(PendingShutdown { down_ns }) = self.nodes[node].shutdown {
            let run = self.nodes[node].process.run();
            let at = self.now_ns;
            self.queue
                .schedule(at, QueuedEvent::Kill { node, run, down_ns });
        }
    }

    /// Schedules a crash of a replica during its next sync. The replica is started again `down_ns`
    /// later.
    pub fn crash_in_sync(&mut self, node: usize, down_ns: u64) {
        self.nodes[node].crash_in_sync = Some(down_ns);
    }

    /// Disarms a replica: cancels its trap, and cancels the crash during its next sync.
    pub fn disarm(&mut self, node: usize) {
        self.nodes[node].process.disarm();
        self.nodes[node].crash_in_sync = None;
    }

    /// Gives a replica that is down a new clock, which counts from another origin. This simulates a
    /// reboot of the replica's machine.
    pub fn reset_clock(&mut self, node: usize) {
        let clock = self.draw_clock();
        self.nodes[node].process.replace_clock(clock);
    }

    /// Changes the rate of a clock. The new rate is within the bound on drift.
    pub fn change_rate(&mut self, node: usize) {
        let rate = self.draw_rate();
        let now_ns = self.now_ns;
        let change = |clock: &mut Clock| clock.set_rate(now_ns, rate);
        self.nodes[node].process.change_clock(change);
        self.reschedule(node);
    }

    /// Makes a clock jump forward, which breaks the assumptions about clocks.
    pub fn jump_clock(&mut self, node: usize, by_ns: u64) {
        self.oracles.elections.excuse();
        let jump = |clock: &mut Clock| clock.jump(by_ns);
        self.nodes[node].process.change_clock(jump);
        self.reschedule(node);
    }

    /// Tells a replica that its clock cannot be trusted. After `for_ns`, tells the replica that the
    /// clock can be trusted again. The clock itself stays within the bound on drift. The fault
    /// tests that a replica without a trusted clock does not need its clock.
    pub fn distrust_clock(&mut self, node: usize, for_ns: u64) {
        self.report_clock_trust(node, false);
        self.step_at(self.now_ns + for_ns, node, Input::ClockTrusted(true));
    }

    /// Tells a replica whether its clock can be trusted.
    pub fn report_clock_trust(&mut self, node: usize, trusted: bool) {
        self.arrive(node, |inbox| inbox.push(Input::ClockTrusted(trusted)));
    }

    /// Pauses a replica until it is woken. Messages that arrive during the pause wait.
    pub fn freeze(&mut self, node: usize) {
        self.pause(node, FOREVER_NS);
    }

    /// Pauses a replica for a while. Messages that arrive during the pause wait.
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

    /// Ends a replica's pause early.
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
            *again = inbox; // a trap paused the replica again in the same step
            return;
        }
        let now = self.clock(node);
        // The process may have been paused before it read its clock for the next group of inputs,
        // or after. A reading from before the pause must not be used (hazard 25).
        let reading = Cell::new(since);
        let take = |inputs: &mut Vec<Input>| {
            reading.set(now);
            inputs.append(&mut inbox);
        };
        self.run_iteration(node, take, || ClockReading::alone(reading.get()));
    }

    /// Sets a trap: pauses or ends a replica after it has performed `actions` more actions.
    pub fn set_trap(&mut self, node: usize, actions: u32, trap: Trap) {
        self.nodes[node].process.set_trap(actions, trap);
    }

    /// Stalls a replica's disk for `for_ns`: no sync ends in that time.
    pub fn stall_disk(&mut self, node: usize, for_ns: u64) {
        self.nodes[node].disk.stalled_until_ns = self.now_ns + for_ns;
    }

    /// Fills a replica's disk for a while. The replica notices slightly later that there is free
    /// space again.
    pub fn fill_disk(&mut self, node: usize, for_ns: u64) {
        self.fill_disk_until_repaired(node);
        let at = self.now_ns + for_ns + FULL_RETRY_NS;
        self.queue.schedule(at, QueuedEvent::DiskRetry { node });
    }

    /// Fills a replica's disk until it is repaired.
    pub fn fill_disk_until_repaired(&mut self, node: usize) {
        let disk = &mut self.nodes[node].disk;
        disk.set_full(true);
        disk.has_reserve = self.rng.random_bool(0.5);
    }

    /// Ends the stall of a disk, and frees space on it. Damage to a disk is not repaired.
    pub fn repair_disk(&mut self, node: usize) {
        self.nodes[node].disk.stalled_until_ns = self.now_ns;
        self.try_disk(node);
    }

    /// Damages a replica's disk. The replica stops and never participates again.
    pub fn lose(&mut self, node: usize) {
        self.crash(node);
        self.nodes[node].lost = true;
    }

    /// Ends a replica immediately and wipes its disk. If the replica has participated before, it
    /// finds out at its next start that its disk was wiped, and never participates again.
    pub fn wipe(&mut self, node: usize) {
        self.crash(node);
        self.nodes[node].disk.wipe();
    }

    /// Lets a replica try to write to a disk that was full.
    pub(super) fn try_disk(&mut self, node: usize) {
        if self.nodes[node].disk.set_full(false) {
            self.begin_sync(node);
        }
        self.nodes[node].watches.disk.set_full(false);
        self.run_due(node);
    }
}
