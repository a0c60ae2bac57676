//! Flows: the steps that an event triggers from part to part. Parts own their state and know
//! nothing of each other's; a flow asks one part what happened and notifies the next. The order of
//! the steps is found here.
//!
//! Each file calls only files that stand before it in this list: `follow` (the leader to follow),
//! `commit` (commits, execution, answers), `accept` (Phase 2), `propose` (values that a leader puts
//! into the log), `elect` (Phase 1), `catchup`, `clients`, `leases`, `leave` (a planned end),
//! `peers` (one message), `upkeep` (what is due).

mod accept;
mod catchup;
mod clients;
mod commit;
mod elect;
mod follow;
mod leases;
mod leave;
mod peers;
mod propose;
mod upkeep;

pub(super) use self::commit::ExecutionBudget;

use leasehold_leases::mutants::mutated;
use leasehold_leases::{Key, Time};

use super::consensus::Consensus;
use super::joining::Joining;
use super::leasing::Leasing;
use super::machine::StateMachine;
use super::origin::{DisconnectedClients, Reads, SessionOpenLimiter, View, Writes};
use super::step::Step;

/// The parts of a replica. Each owns its state.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    pub(super) joining: Joining,
    pub(super) consensus: Consensus,
    pub(super) machine: StateMachine,
    pub(super) leasing: Leasing,
    pub(super) session_opens: SessionOpenLimiter,
    pub(super) writes: Writes,
    pub(super) reads: Reads,
    /// Disconnected clients: their reads are to be dropped.
    pub(super) disconnected: DisconnectedClients,
    /// Until when a leader that leaves waits to hear of its successor.
    pub(super) awaits_successor_until: Time,
    /// Limits on execution.
    pub(super) execution: ExecutionBudget,
    /// Marks that scans of this group of inputs have looked at.
    pub(super) marks_looked_at: usize,
    /// That this replica has left was said.
    pub(super) left: bool,
}

impl Parts {
    /// Reads, and what they look at.
    fn reads(&mut self) -> (&mut Reads, View<'_>) {
        let view = View {
            consensus: &self.consensus,
            leasing: &self.leasing,
            kv: self.machine.kv(),
        };
        (&mut self.reads, view)
    }

    /// State that reads look at.
    pub(super) fn view(&self) -> View<'_> {
        View {
            consensus: &self.consensus,
            leasing: &self.leasing,
            kv: self.machine.kv(),
        }
    }

    /// The slots that reads of these keys waited for were replaced or dropped.
    fn look_again(&mut self, step: &mut Step<'_>, keys: Vec<Key>) {
        if !keys.is_empty() {
            let (reads, view) = self.reads();
            reads.look_again(step, view, keys);
        }
    }

    /// # Panics
    /// If a part contradicts itself, or two contradict each other.
    pub(super) fn check(&self) {
        if mutated() {
            return; // rules are off: oracles are to notice what comes of it
        }
        self.consensus.check();
        self.machine.kv().check();
        self.leasing.check();
        self.writes.check();
        self.reads.check();
        let configs = self.consensus.executed().configs;
        assert_eq!(
            configs.0,
            self.leasing.configs().newest().0,
            "the newest known configuration is the newest executed one"
        );
    }
}
