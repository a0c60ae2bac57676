//! One slot of a log: what is accepted in it, and who else has.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use leasehold_leases::{Ballot, ReplicaId, ReplicaSet, Slot, Time};

use super::super::message::Value;
use super::super::weight::weigh;
use super::votes::Votes;
use crate::cost;

/// An accepted value and what its leader said with it.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// At which ballot.
    pub ballot: Ballot,
    /// What.
    pub value: Value,
    /// Whether the acceptance is durable here.
    pub durable: bool,
    /// The highest slot not above this one that may hold a multi-key command.
    pub last_multi: Slot,
    /// A bit per command: execution cannot refuse it.
    pub sure: Arc<[u64]>,
    /// Origins with a command in it.
    pub origins: ReplicaSet,
    /// The tag when it was accepted, for the mutant that votes with it (hazard 7).
    pub early_tag: Option<ReplicaSet>,
    /// Leader: when it was proposed, and when it was last sent.
    pub proposed: Time,
    /// Leader: when it was last sent.
    pub sent: Time,
}

impl Accepted {
    /// Whether execution cannot refuse command `index`.
    pub fn sure(&self, index: usize) -> bool {
        self.sure
            .get(index / 64)
            .is_some_and(|word| word >> (index % 64) & 1 == 1)
    }
}

impl Hash for Accepted {
    /// When it was proposed or sent decides only whom to suspect and what to send
    /// again: not before the horizon.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.ballot, &self.value, self.durable).hash(state);
        (self.last_multi, &self.sure, self.origins).hash(state);
        self.early_tag.hash(state);
    }
}

/// One slot.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// What is accepted in it.
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
    pub fn weight(&self) -> usize {
        let accepted = self.accepted.as_ref();
        accepted.map_or(0, |accepted| weigh(&accepted.value))
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
