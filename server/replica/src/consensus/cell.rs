//! One slot of a log: the value accepted in it, and the other replicas that have accepted.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use leasehold_leases::{Ballot, ReplicaId, ReplicaSet, Slot, Time};

use super::votes::Votes;
use crate::cost;
use crate::message::Value;
use crate::size_estimate::value_size_estimate;

/// An accepted value and what its leader said with it.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// Ballot at which it was accepted.
    pub ballot: Ballot,
    /// The accepted value.
    pub value: Value,
    /// Whether the acceptance is durable here.
    pub durable: bool,
    /// The highest slot not above this one that may hold a multi-key command.
    pub last_multi: Slot,
    /// One bit per command: set if execution cannot reject it.
    pub infallible: Arc<[u64]>,
    /// Origins with a command in it.
    pub origins: ReplicaSet,
    /// The tag when it was accepted, for the mutant that votes with it (hazard 7).
    pub early_tag: Option<ReplicaSet>,
    /// Leader only: time at which it was proposed.
    pub proposed: Time,
    /// Leader only: time at which it was last sent.
    pub sent: Time,
}

impl Accepted {
    /// Returns whether execution cannot reject command `index`.
    pub fn is_infallible(&self, index: usize) -> bool {
        self.infallible
            .get(index / 64)
            .is_some_and(|word| word >> (index % 64) & 1 == 1)
    }
}

impl Hash for Accepted {
    /// The times at which it was proposed and sent decide only which replica to suspect and what to
    /// send again: not before the horizon.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.ballot, &self.value, self.durable).hash(state);
        (self.last_multi, &self.infallible, self.origins).hash(state);
        self.early_tag.hash(state);
    }
}

/// One slot.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// The value accepted in it, with what its leader said.
    pub accepted: Option<Accepted>,
    /// Acceptances heard of, possibly before the value itself.
    pub votes: Votes,
    /// The accepted value is the chosen one.
    pub committed: bool,
}

impl Hash for Cell {
    /// Nobody counts the votes of a committed slot again.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.accepted, self.committed).hash(state);
        if !self.committed {
            self.votes.hash(state);
        }
    }
}

impl Cell {
    /// About how many bytes its value keeps in memory.
    pub fn size_estimate(&self) -> usize {
        let accepted = self.accepted.as_ref();
        accepted.map_or(0, |accepted| value_size_estimate(&accepted.value))
    }

    /// Units of executing its value.
    pub fn work(&self) -> usize {
        let accepted = self.accepted.as_ref();
        accepted.map_or(0, |accepted| cost::executing(&accepted.value))
    }

    /// Counts an acceptance of `replica` at `ballot`.
    pub fn count(&mut self, replica: ReplicaId, ballot: Ballot, tag: ReplicaSet) {
        let here = self.accepted.as_ref().map(|accepted| accepted.ballot);
        self.votes
            .add(replica, ballot, tag, here.unwrap_or(Ballot::ZERO));
    }
}
