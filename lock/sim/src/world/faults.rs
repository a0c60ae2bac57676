//! Faults: crashes, pauses and cuts.

use leasehold_kernel::network::{Faults, Partition};
use leasehold_kernel::process::Trap;
use leasehold_lock_core::{MemberId, MemberInput, Packet};
use rand::RngExt as _;

use super::{GroupWorld, Happening};
use crate::oracle::Checked;
use crate::scenario::GroupFault;

/// Links that are cut.
#[derive(Debug)]
pub(super) struct Outage(Vec<(usize, usize)>);

impl GroupWorld {
    pub(super) fn plan_fault(&mut self, index: usize) {
        let every_ns = self.scenario.faults[index].1;
        let at_ns = self.now_ns + self.rng.random_range(0..2 * every_ns);
        self.queue.schedule(at_ns, Happening::Fault(index));
    }

    /// Returns a random duration of an outage, in ns. Half of all outages last about as long as the
    /// term or as the wait after a restart, because these meet most rules.
    fn draw_outage_ns(&mut self) -> u64 {
        match self.rng.random_range(0..4) {
            0 => self.draw_ns(0.3),
            1 => self.draw_ns(3.0),
            _ => {
                let term_ns = self.scenario.settings.term.as_nanos() as f64;
                (term_ns * self.rng.random_range(0.6..2.0)) as u64
            }
        }
    }

    pub(super) fn fault(&mut self, index: usize) {
        if self.is_calm {
            return;
        }
        self.plan_fault(index);
        let n = self.members.len();
        let kind = self.scenario.faults[index].0;
        self.trace.line(self.now_ns, format_args!("{kind:?}"));
        match kind {
            GroupFault::Crash => {
                let member = self.rng.random_range(0..n);
                // Half of the members are started again immediately.
                let down_ns = match self.rng.random_range(0..2) {
                    0 => self.draw_ns(0.1),
                    _ => self.draw_outage_ns(),
                };
                let after = self.rng.random_range(0..6);
                self.members[member].set_trap(after, Trap::Crash(down_ns));
            }
            GroupFault::Pause => {
                let (member, paused_ns) = (self.rng.random_range(0..n), self.draw_outage_ns());
                let after = self.rng.random_range(0..6);
                self.members[member].set_trap(after, Trap::Pause(paused_ns));
            }
            GroupFault::CrashAll => {
                for member in 0..n {
                    let down_ns = self.draw_ns(0.2);
                    self.crash(member, down_ns);
                }
            }
            GroupFault::Roll => {
                let gap_ns = self.draw_ns(1.5);
                for member in 0..n {
                    let down_ns = 1 + gap_ns * member as u64;
                    self.crash(member, down_ns);
                }
            }
            GroupFault::Cut => {
                let shapes = [Partition::TwoWay, Partition::OneWay, Partition::Bridge];
                let shape = shapes[self.rng.random_range(0..3)];
                let links = shape.draw(&mut self.rng, n);
                for (from, to) in &links {
                    self.network.set_cut(*from, *to, true);
                }
                let at_ns = self.now_ns + self.draw_outage_ns();
                self.queue.schedule(at_ns, Happening::Heal(Outage(links)));
            }
        }
    }

    pub(super) fn heal(&mut self, outage: Outage) {
        for (from, to) in outage.0 {
            self.network.set_cut(from, to, false);
        }
    }

    pub(super) fn crash(&mut self, member: usize, down_ns: u64) {
        self.trace
            .line(self.now_ns, format_args!("m{member} crashes"));
        self.sums.crashes += 1;
        self.members[member].kill();
        // The programs of the member crash, too.
        self.programs.retain(|(of, _), _| *of != member);
        self.requests.retain(|(of, _), _| *of != member);
        self.oracle.on_crash(MemberId(member as u8));
        self.queue
            .schedule(self.now_ns + down_ns, Happening::Start(member));
    }

    pub(super) fn pause(&mut self, member: usize, paused_ns: u64, unfinished: Vec<Packet>) {
        self.trace
            .line(self.now_ns, format_args!("m{member} is paused"));
        self.sums.pauses += 1;
        let process = &mut self.members[member];
        process.stop(self.now_ns, unfinished);
        let resume = Happening::Resume(member, process.run());
        self.queue.schedule(self.now_ns + paused_ns, resume);
    }

    /// Ends a pause. The member sends the packets that it had prepared, and then takes the packets
    /// that have arrived.
    pub(super) fn resume(&mut self, member: usize, run: u64) -> Checked {
        if self.members[member].run() != run {
            return Ok(());
        }
        let Some(pause) = self.members[member].resume() else {
            return Ok(());
        };
        self.trace
            .line(self.now_ns, format_args!("m{member} resumes"));
        self.perform(member, pause.unfinished);
        // All packets are one batch, with one clock sample.
        for packet in pause.inbox {
            self.take(member, MemberInput::Packet(packet))?;
        }
        self.step(member, MemberInput::Tick)
    }

    /// Ends all faults. Programs now keep their leases.
    pub(super) fn calm(&mut self) {
        self.is_calm = true;
        self.network.faults = Faults::default();
        for from in 0..self.members.len() {
            self.members[from].disarm();
            for to in 0..self.members.len() {
                self.network.set_cut(from, to, false);
            }
        }
        let resumed_ns = self.now_ns + 3 * self.scenario.settings.term.as_nanos() as u64;
        let owned_ns = resumed_ns + self.calm_ns();
        self.queue.schedule(owned_ns, Happening::Owned);
    }
}
