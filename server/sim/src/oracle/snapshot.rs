//! Input of the oracles: the state of the whole world, and the actions that a replica performs.

use leasehold_leases::{Ballot, ReplicaSet, Slot, Time};

use crate::node::Node;
use leasehold_kernel::clock::Clock;
use leasehold_replica::Replica;
use leasehold_replica::action::Action;
use leasehold_replica::message::{LogId, Message, Value};

/// State of the whole world at one moment of true time.
pub struct WorldSnapshot<'a> {
    /// True time, in ns.
    pub now_ns: u64,
    nodes: &'a [Node],
}

impl<'a> WorldSnapshot<'a> {
    pub(crate) fn new(now_ns: u64, nodes: &'a [Node]) -> WorldSnapshot<'a> {
        WorldSnapshot { now_ns, nodes }
    }

    /// Returns the number of replicas.
    pub fn n(&self) -> usize {
        self.nodes.len()
    }

    /// Returns a process and its machine.
    pub fn node(&self, node: usize) -> &'a Node {
        &self.nodes[node]
    }

    /// Returns a replica, if its process runs.
    pub fn replica(&self, node: usize) -> Option<&'a Replica> {
        self.nodes[node].replica()
    }

    /// Returns a replica's clock.
    pub fn clock(&self, node: usize) -> &'a Clock {
        self.nodes[node].clock()
    }

    /// Returns the current reading of a replica's clock.
    pub fn time(&self, node: usize) -> Time {
        self.clock(node).read(self.now_ns)
    }
}

/// A replica that has taken a step and performs its actions.
#[derive(Clone, Copy)]
pub(super) struct StepContext<'a> {
    pub snapshot: &'a WorldSnapshot<'a>,
    /// Index of the replica.
    pub node: usize,
    /// Actions of the step that are not performed yet.
    pub rest: &'a [Action],
}

/// A value in a slot.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a> {
    pub log: LogId,
    pub slot: Slot,
    pub value: &'a Value,
}

/// A vote without the name of the voter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Vote {
    pub log: LogId,
    pub slot: Slot,
    pub ballot: Ballot,
    pub tag: ReplicaSet,
}

impl Vote {
    /// Returns the votes that a message carries. An Accept may carry the vote of its leader.
    pub fn all_in(message: &Message) -> impl Iterator<Item = Vote> {
        let (own, many) = match message {
            Message::Accept(accept) => {
                let own = accept.vote.map(|tag| Vote {
                    log: accept.log,
                    slot: accept.slot,
                    ballot: accept.ballot,
                    tag,
                });
                (own, None)
            }
            Message::Accepted { ballot, log, votes } => {
                let (log, ballot) = (*log, *ballot);
                let vote = move |(slot, tag): &(Slot, ReplicaSet)| Vote {
                    log,
                    slot: *slot,
                    ballot,
                    tag: *tag,
                };
                (None, Some(votes.iter().map(vote)))
            }
            _ => (None, None),
        };
        own.into_iter().chain(many.into_iter().flatten())
    }
}
