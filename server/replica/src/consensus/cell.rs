//! One slot of a log: the value accepted in it, and the replicas that have accepted.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use leasehold_leases::{Ballot, ReplicaId, ReplicaSet, Slot, Time};

use super::votes::Votes;
use crate::cost;
use crate::message::Value;
use crate::size_estimate::value_size_estimate;

/// Accepted value, with information from the leader about the value.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// Ballot under which the value was accepted.
    pub ballot: Ballot,
    /// The accepted value.
    pub value: Value,
    /// Whether the acceptance is durable here.
    pub durable: bool,
    /// Highest slot, up to and including this one, that may hold a multi-key command.
    pub last_multi: Slot,
    /// One bit for each command: set if execution cannot reject the command.
    pub infallible: Arc<[u64]>,
    /// Origins of the commands in the value.
    pub origins: ReplicaSet,
    /// Tag at the time of acceptance. Only mutants use this field: deliberately broken variants of
    /// this program, for tests (hazard 7).
    pub early_tag: Option<ReplicaSet>,
    /// Time at which the value was proposed. Only a leader uses this field.
    pub proposed: Time,
    /// Time at which the value was last sent. Only a leader uses this field.
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
    /// Hashes this value, except the times at which the value was proposed and sent. While a
    /// fingerprint is valid, these times have no effect (`Replica::fingerprint`).
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.ballot, &self.value, self.durable).hash(state);
        (self.last_multi, &self.infallible, self.origins).hash(state);
        self.early_tag.hash(state);
    }
}

/// State of one slot.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// Value accepted in the slot, with information from the leader about the value.
    pub accepted: Option<Accepted>,
    /// Acceptances that were received for the slot. These acceptances may arrive before the value
    /// itself.
    pub votes: Votes,
    /// Whether the accepted value is known to be the chosen value.
    pub committed: bool,
}

impl Hash for Cell {
    /// Omits the votes of a committed slot, because they are not counted again.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.accepted, self.committed).hash(state);
        if !self.committed {
            self.votes.hash(state);
        }
    }
}

impl Cell {
    /// Returns the estimated size of the slot's value in memory, in bytes.
    pub fn size_estimate(&self) -> usize {
        let accepted = self.accepted.as_ref();
        accepted.map_or(0, |accepted| value_size_estimate(&accepted.value))
    }

    /// Returns the cost of executing the slot's value, in units of `crate::cost`.
    pub fn work(&self) -> usize {
        let accepted = self.accepted.as_ref();
        accepted.map_or(0, |accepted| cost::executing(&accepted.value))
    }

    /// Counts an acceptance that `replica` made under `ballot`.
    pub fn count(&mut self, replica: ReplicaId, ballot: Ballot, tag: ReplicaSet) {
        let here = self.accepted.as_ref().map(|accepted| accepted.ballot);
        self.votes
            .add(replica, ballot, tag, here.unwrap_or(Ballot::ZERO));
    }
}
