//! One iteration of a process: a group of inputs is taken, the replica steps through it, oracles
//! judge the step, and its actions are performed.

use leasehold_kernel::process::Trap;

use super::effects::ReplicaHost;
use super::{QueuedEvent, World};
use crate::fault::FaultKind;
use crate::node::Node;
use crate::oracle::WorldSnapshot;
use crate::trace;
use leasehold_leases::clock_watch::ClockReading;
use leasehold_replica::Input;
use leasehold_replica::action::Action;
use leasehold_replica::message::Message;
use leasehold_replica::shell;

impl World {
    /// Passes a group of inputs to a process. A paused process receives the group when the process
    /// resumes. A process that is down never receives the group.
    pub(super) fn arrive(&mut self, node: usize, take: impl FnOnce(&mut Vec<Input>)) {
        if let Some(inbox) = self.nodes[node].process.paused_inbox() {
            return take(inbox);
        }
        let now = self.clock(node);
        self.run_iteration(node, take, || ClockReading::alone(now));
    }

    /// Lets a replica do the work of all timers that are due now.
    pub(super) fn run_due(&mut self, node: usize) {
        if self.is_up(node) {
            let now = self.clock(node);
            self.run_iteration(node, |_| {}, || ClockReading::alone(now));
        }
    }

    /// Lets a replica process one group of inputs. Judges and performs the resulting actions.
    pub(super) fn run_iteration(
        &mut self,
        node: usize,
        take: impl FnOnce(&mut Vec<Input>),
        clock: impl Fn() -> ClockReading,
    ) {
        let mut actions = std::mem::take(&mut self.actions);
        if let Some(leases) = self.step(node, take, clock, &mut actions) {
            if self.settings.watched {
                let snapshot = WorldSnapshot::new(self.now_ns, &self.nodes);
                let verdict = self.oracles.stepped(&snapshot, node, &actions, leases);
                self.judge(verdict);
            }
            self.perform(node, &mut actions);
        }
        self.actions = actions;
        self.reschedule(node);
    }

    /// Lets a replica process one group of inputs. Returns whether the group contains an input
    /// about leases; `None` if the process is down.
    fn step(
        &mut self,
        node: usize,
        take: impl FnOnce(&mut Vec<Input>),
        clock: impl Fn() -> ClockReading,
        actions: &mut Vec<Action>,
    ) -> Option<bool> {
        let now_ns = self.now_ns;
        let Node {
            process,
            watches,
            clock_untrusted,
            ..
        } = &mut self.nodes[node];
        let mut leases = false;
        let lines = &mut self.trace;
        let take = |inputs: &mut Vec<Input>| {
            take(inputs);
            if let Some(trusted) = inputs.iter().filter_map(clock_trusted).next_back() {
                *clock_untrusted = !trusted;
            }
            leases = inputs.iter().any(is_about_leases);
            if let Some(lines) = lines {
                trace::inputs(lines, now_ns, node, inputs);
            }
        };
        let (replica, inputs) = (process.machine_mut()?, &mut self.inputs);
        let buffers = shell::IterationBuffers { inputs, actions };
        shell::run_iteration(replica, watches, buffers, take, clock, |_| {});
        replica.check();
        Some(leases)
    }

    pub(super) fn reschedule(&mut self, node: usize) {
        let target = &mut self.nodes[node];
        let Some(replica) = target.replica() else {
            return;
        };
        let next = replica
            .next_deadline()
            .min(target.watches.disk.next_deadline());
        if let Some(at) = target.process.arm(self.now_ns, next) {
            self.queue.schedule(at, QueuedEvent::Deadline { node });
        }
    }

    /// Performs actions in order, until a trap ends or pauses the process. Two messages of one step
    /// arrive together if they have the same addressee and the same arrival time.
    pub(super) fn perform(&mut self, node: usize, actions: &mut Vec<Action>) {
        self.steps += 1;
        let mut rest = actions.drain(..);
        let mut trapped = None;
        while let Some(action) = rest.next() {
            trapped = self.nodes[node].process.springs();
            match trapped {
                None => self.act(node, action),
                Some(Trap::Crash(_)) => break,
                Some(Trap::Pause(for_ns)) => {
                    self.note_fault(FaultKind::PauseMidStep);
                    let unfinished = std::iter::once(action).chain(rest.by_ref()).collect();
                    self.stop(node, for_ns, unfinished);
                    break;
                }
            }
        }
        drop(rest);
        self.answer(node);
        if let Some(Trap::Crash(down_ns)) = trapped {
            self.note_fault(FaultKind::CrashMidStep);
            self.crash(node);
            self.start_at(node, self.now_ns + down_ns);
        }
    }

    /// Sends the answers that the performed actions produced. Peers and clients receive these
    /// answers.
    fn answer(&mut self, node: usize) {
        for (peer, message) in self.answers.take() {
            let replica = self.nodes[node].replica();
            if let Some(envelope) = replica.map(|r| r.envelope(peer, message)) {
                self.transmit(node, peer, envelope);
            }
        }
        if !self.replies.is_empty() {
            let replies = std::mem::take(&mut self.replies);
            let at = self.now_ns + self.settings.client_one_way_ns;
            self.queue.schedule(at, QueuedEvent::Replies(replies));
        }
    }

    fn act(&mut self, node: usize, action: Action) {
        if let Some(lines) = &mut self.trace {
            trace::action(lines, self.now_ns, node, &action);
        }
        shell::perform(action, &mut ReplicaHost(self, node));
    }
}

/// Returns whether `input` says that the clock can be trusted; `None` if `input` does not concern
/// trust in the clock.
fn clock_trusted(input: &Input) -> Option<bool> {
    match input {
        Input::ClockTrusted(trusted) => Some(*trusted),
        _ => None,
    }
}

/// Whether an input may change promises.
fn is_about_leases(input: &Input) -> bool {
    matches!(input, Input::Peer(envelope) if matches!(envelope.message, Message::Lease(_)))
}
