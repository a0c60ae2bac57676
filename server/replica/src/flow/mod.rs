//! Flows: the steps from part to part that an event triggers. Parts own their state and know
//! nothing of each other's state. A flow calls one part and passes the result on to the next part,
//! so the order of the steps is defined here.
//!
//! Each file calls only files that come before it in this list: `follow` (the leader to follow),
//! `commit` (commits, execution, answers), `accept` (Phase 2), `propose` (values that a leader
//! proposes), `elect` (Phase 1), `catchup`, `clients`, `leases`, `leave` (a planned end), `peers`
//! (one message), `upkeep` (work that is due).

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

use super::compaction::Compaction;
use super::consensus::Consensus;
use super::joining::Joining;
use super::leasing::Leasing;
use super::machine::StateMachine;
use super::origin::{DisconnectedClients, Reads, SessionOpenLimiter, View, Writes};
use super::step::Step;

/// Parts of a replica. Each part owns its state.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    pub(super) joining: Joining,
    pub(super) consensus: Consensus,
    pub(super) compaction: Compaction,
    pub(super) machine: StateMachine,
    pub(super) leasing: Leasing,
    pub(super) session_opens: SessionOpenLimiter,
    pub(super) writes: Writes,
    pub(super) reads: Reads,
    /// Disconnected clients. Their requests must still be dropped.
    pub(super) disconnected: DisconnectedClients,
    /// Time until which a leader that is about to end waits for a message from its successor.
    pub(super) awaits_successor_until: Time,
    /// Limits on execution in groups of inputs.
    pub(super) execution: ExecutionBudget,
    /// Number of marks that scans have examined in this group of inputs.
    pub(super) marks_looked_at: usize,
    /// Whether this replica has announced that it has left.
    pub(super) left: bool,
}

impl Parts {
    /// Returns the part that serves reads, and the state that it uses.
    fn reads(&mut self) -> (&mut Reads, View<'_>) {
        let view = View {
            consensus: &self.consensus,
            leasing: &self.leasing,
            kv: self.machine.kv(),
        };
        (&mut self.reads, view)
    }

    /// Returns the state that is used to serve reads.
    pub(super) fn view(&self) -> View<'_> {
        View {
            consensus: &self.consensus,
            leasing: &self.leasing,
            kv: self.machine.kv(),
        }
    }

    /// Tries again to serve the waiting reads of `keys`, because slots for which these reads waited
    /// were replaced or dropped.
    fn look_again(&mut self, step: &mut Step<'_>, keys: Vec<Key>) {
        if !keys.is_empty() {
            let (reads, view) = self.reads();
            reads.look_again(step, view, keys);
        }
    }

    /// Checks the invariants within the parts and between them.
    ///
    /// # Panics
    /// If an invariant is broken.
    pub(super) fn check(&self) {
        if mutated() {
            return; // Some rules are off, and oracles are to notice the consequences.
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
