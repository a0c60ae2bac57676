//! A command that is said not to have left a replica has not left it, and never does (protocol §1
//! "Sessions"): a client that is notified so may count on it, and ask another replica. This is
//! reported to a client that opens too many sessions, to a client that puts long fields where
//! merges wait (`too_many_merges`), and, about what waited, to a disconnected client
//! (`client_disconnected`). It must be true.
//!
//! A replica answers whatever it is asked to write in the end, also if its client has disconnected
//! meanwhile: the node keeps capacity for the answer until then. Whether it does, `run` looks once
//! all is well. A merge that waited for ever would hold up all that come after it.
//!
//! Departures are seen by what a replica sends: commands for the leader, and proposals of its own
//! clients' commands. A write is judged until this replica has answered it for good: what it asked
//! for before may leave later.

use std::collections::{BTreeSet, HashMap, HashSet};

use foldhash::fast::FixedState;
use leasehold_wire::{Command, Outcome};

use super::{Verdict, WriteId, ensure, id};
use crate::fault::{FaultCounts, FaultKind};
use leasehold_replica::Replica;
use leasehold_replica::action::ClientHandle;
use leasehold_replica::message::{Envelope, Message, RequestId};
use leasehold_replica::unavailable::{
    is_client_disconnected, is_sent_again, is_too_many_merges, is_unsent,
};

pub(super) const NAME: &str = "unsent";

/// Where a write is that a replica was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteLocation {
    /// At the replica. `queued`: though there is a leader it could have been sent to.
    Local { queued: bool },
    /// It was sent.
    Sent,
    /// At its client, which was notified that it was not sent.
    Returned,
    /// It was answered for good, or an earlier run was asked for it: copies may come later.
    Unknown,
}

const LOCAL: WriteLocation = WriteLocation::Local { queued: false };

#[derive(Clone, Copy, Debug)]
struct WriteState {
    location: WriteLocation,
    is_merge: bool,
    /// Requests for it that are not answered, and when the first of them came, in ns.
    requests: usize,
    since_ns: u64,
    /// As what it was last forwarded to a leader.
    forwarded: Option<RequestId>,
}

/// Requests that one replica has received.
#[derive(Clone, Debug, Default)]
struct NodeRequests {
    writes: HashMap<WriteId, WriteState, FixedState>,
    requests: HashMap<ClientHandle, WriteId, FixedState>,
    /// Since its last step.
    fresh: Vec<WriteId>,
    /// Connections that have ended.
    disconnected: HashSet<u64, FixedState>,
    /// Writes that wait, by when they were asked for.
    waiting: BTreeSet<(u64, WriteId)>,
}

/// Oracle that judges writes that are said not to have been sent.
#[derive(Debug)]
pub struct UnsentOracle {
    nodes: Vec<NodeRequests>,
    /// Fates of merges that were queued, and how often each occurred.
    pub fired: FaultCounts,
    /// Answers judged.
    pub checks: u64,
}

impl UnsentOracle {
    pub(super) fn new(n: usize) -> UnsentOracle {
        UnsentOracle {
            nodes: vec![NodeRequests::default(); n],
            fired: FaultCounts::default(),
            checks: 0,
        }
    }

    /// A client's command has reached `node`.
    pub(super) fn requested(
        &mut self,
        now_ns: u64,
        node: usize,
        from: ClientHandle,
        command: &Command,
    ) {
        if !command.is_write() {
            return;
        }
        let identity = (command.client, command.sequence);
        let at = &mut self.nodes[node];
        if at.requests.insert(from, identity).is_some() {
            return; // sent to it twice
        }
        at.fresh.push(identity);
        let write = at.writes.entry(identity).or_insert(WriteState {
            location: LOCAL,
            is_merge: command.as_merge().is_some(),
            requests: 0,
            since_ns: 0,
            forwarded: None,
        });
        if write.location == WriteLocation::Returned {
            write.location = LOCAL;
        }
        if write.requests == 0 {
            write.since_ns = now_ns;
            at.waiting.insert((now_ns, identity));
        }
        write.requests += 1;
    }

    /// A client's connection to `node` has ended.
    pub(super) fn hung_up(&mut self, node: usize, connection: u64) {
        self.nodes[node].disconnected.insert(connection);
    }

    /// `node` has ended: it answers nobody any more.
    pub(super) fn crashed(&mut self, node: usize) {
        let at = &mut self.nodes[node];
        for write in at.writes.values_mut() {
            (write.location, write.requests, write.forwarded) = (WriteLocation::Unknown, 0, None);
        }
        let writes = std::mem::take(&mut at.writes);
        *at = NodeRequests {
            writes,
            ..NodeRequests::default()
        };
    }

    /// `node` sends a message.
    pub(super) fn sent(&mut self, node: usize, envelope: &Envelope) -> Verdict {
        match &envelope.message {
            Message::Forward { commands } => commands.iter().try_for_each(|(name, command)| {
                self.leaves(node, command)?;
                self.forwards(node, *name, command)
            }),
            Message::Accept(accept) => {
                let proposed = accept.value.commands().iter();
                let mut own = proposed.filter(|proposed| proposed.origin == id(node));
                own.try_for_each(|proposed| self.leaves(node, &proposed.command))
            }
            _ => Ok(()),
        }
    }

    fn leaves(&mut self, node: usize, command: &Command) -> Verdict {
        let identity = (command.client, command.sequence);
        if let Some(write) = self.nodes[node].writes.get_mut(&identity) {
            ensure!(
                NAME,
                write.location != WriteLocation::Returned,
                "{:?} sends {identity:?}, but its client was told that it was not sent",
                id(node)
            );
            if matches!(write.location, WriteLocation::Local { .. }) {
                write.location = WriteLocation::Sent;
            }
        }
        Ok(())
    }

    /// Judges the name of a forwarded command: one that is sent again has another name than before.
    fn forwards(&mut self, node: usize, name: RequestId, command: &Command) -> Verdict {
        let identity = (command.client, command.sequence);
        if let Some(write) = self.nodes[node].writes.get_mut(&identity) {
            let before = write.forwarded.replace(name);
            ensure!(
                NAME,
                before != Some(name),
                "{:?} sends {identity:?} twice, as {name:?}",
                id(node)
            );
        }
        Ok(())
    }

    /// `node` answers a client.
    pub(super) fn replied(&mut self, node: usize, to: ClientHandle, outcome: &Outcome) -> Verdict {
        let at = &mut self.nodes[node];
        let disconnected = is_client_disconnected(outcome);
        if disconnected {
            self.checks += 1;
            ensure!(
                NAME,
                at.disconnected.contains(&to.connection),
                "{:?} gives up a request of {to:?}, which has not gone",
                id(node)
            );
        }
        let Some(identity) = at.requests.remove(&to) else {
            return Ok(()); // a read, or told twice
        };
        let Some(write) = at.writes.get_mut(&identity) else {
            return Ok(());
        };
        write.requests -= 1;
        if write.requests == 0 {
            at.waiting.remove(&(write.since_ns, identity));
        }
        if is_sent_again(outcome) {
            return Ok(());
        }
        let queued = write.location == WriteLocation::Local { queued: true };
        if !disconnected && !is_unsent(outcome) {
            self.fired
                .add(FaultKind::QueuedMergeAnswered, u64::from(queued));
            write.location = WriteLocation::Unknown;
            return Ok(());
        }
        self.checks += 1;
        self.fired.add(
            FaultKind::QueuedMergeDropped,
            u64::from(queued && disconnected),
        );
        let before = write.location;
        write.location = match before {
            WriteLocation::Unknown => before,
            _ if write.requests > 0 => LOCAL, // asked for again in the same step
            _ => WriteLocation::Returned,
        };
        ensure!(
            NAME,
            before != WriteLocation::Sent,
            "{:?} says that it has not sent {identity:?}, but it has",
            id(node)
        );
        let may_be_queued = write.is_merge || !disconnected && !is_too_many_merges(outcome);
        ensure!(
            NAME,
            may_be_queued,
            "{:?} does not send {identity:?}, which is no merge: {outcome:?}",
            id(node)
        );
        Ok(())
    }

    /// `node` has taken a step, and sent what it sends. A leader sends itself nothing.
    pub(super) fn step_ends(&mut self, node: usize, replica: &Replica) {
        let at = &mut self.nodes[node];
        let has_leader = replica.leader().is_some_and(|leader| leader != id(node));
        for identity in at.fresh.drain(..) {
            let write = at.writes.get_mut(&identity);
            if let Some(write) = write.filter(|_| has_leader)
                && (write.location, write.requests > 0) == (LOCAL, true)
            {
                write.location = WriteLocation::Local { queued: true };
                self.fired.add(FaultKind::MergeQueued, 1);
            }
        }
    }

    /// Since when, in ns, `node` has had a write that it has not answered.
    pub fn waiting(&self, node: usize) -> Option<u64> {
        self.nodes[node]
            .waiting
            .first()
            .map(|(since_ns, _)| *since_ns)
    }
}

#[cfg(test)]
mod tests;
