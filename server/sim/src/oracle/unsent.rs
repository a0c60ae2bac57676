//! A command that a replica reports as unsent has not left the replica, and never will (protocol §1
//! "Sessions"). A client relies on such a report, and may send the command to another replica.
//! There are three cases: a client opens too many sessions; a client merges long fields while other
//! merges wait (`too_many_merges`); a client has disconnected while its commands wait
//! (`client_disconnected`).
//!
//! A replica must eventually answer every write that it received, even if the client has
//! disconnected meanwhile, because the node reserves capacity for the answer until it is given.
//! `run` checks this once all faults are healed. A merge that waited for ever would delay all later
//! merges in the queue.
//!
//! Commands leave a replica in its messages: in forwards to the leader, and in proposals of its own
//! clients' commands. A write is judged until the replica has answered it with a final result.
//! After that, copies of the write that arrived in earlier requests may leave the replica.

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

/// Location of a write that a replica received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteLocation {
    /// The write is still at the replica. `queued` is true if the write waits although there is a
    /// leader to which it could be sent.
    Local { queued: bool },
    /// The write was sent.
    Sent,
    /// The client was notified that the write was not sent.
    Returned,
    /// The location of the write is unknown, and copies of the write may be sent later. Either the
    /// write was answered with a final result, or an earlier run of the replica received the write.
    Unknown,
}

const LOCAL: WriteLocation = WriteLocation::Local { queued: false };

#[derive(Clone, Copy, Debug)]
struct WriteState {
    location: WriteLocation,
    is_merge: bool,
    /// Number of unanswered requests for the write.
    requests: usize,
    /// Time at which the first unanswered request for the write arrived, in ns.
    since_ns: u64,
    /// ID of the request with which the write was last forwarded to a leader.
    forwarded: Option<RequestId>,
}

/// Requests that one replica has received.
#[derive(Clone, Debug, Default)]
struct NodeRequests {
    writes: HashMap<WriteId, WriteState, FixedState>,
    requests: HashMap<ClientHandle, WriteId, FixedState>,
    /// Writes received since the last step of the replica.
    fresh: Vec<WriteId>,
    /// Connections that have ended.
    disconnected: HashSet<u64, FixedState>,
    /// Writes without an answer: (time in ns at which the first unanswered request for the write
    /// arrived, write).
    waiting: BTreeSet<(u64, WriteId)>,
}

/// Oracle that judges writes that a replica reports as unsent.
#[derive(Debug)]
pub struct UnsentOracle {
    nodes: Vec<NodeRequests>,
    /// Counts of queued merges, and of the ways in which they ended, for example
    /// [`FaultKind::QueuedMergeDropped`].
    pub fired: FaultCounts,
    /// Number of answers judged.
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

    /// Records a client's command that has reached `node`.
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
            return; // the client sent it twice
        }
        at.fresh.push(identity);
        let write = at.writes.entry(identity).or_insert(WriteState {
            location: LOCAL,
            is_merge: command.rewritten_keys().next().is_some(),
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

    /// Records that a client's connection to `node` has ended.
    pub(super) fn hung_up(&mut self, node: usize, connection: u64) {
        self.nodes[node].disconnected.insert(connection);
    }

    /// Handles the end of `node`, which will not answer its pending requests.
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

    /// Judges the commands in a message that `node` is about to send.
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

    /// Judges the request ID `name` of a forwarded command. The ID must be new each time that the
    /// command is forwarded.
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

    /// Judges an answer of `node` to a client.
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
            return Ok(()); // a read, or a second answer
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
            _ if write.requests > 0 => LOCAL, // the write was requested again in the same step
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

    /// Ends a step of `node`, after the messages of the step were sent. If another replica leads,
    /// new writes that were not sent in this step count as queued.
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

    /// Returns the time, in ns, at which the oldest unanswered write arrived at `node`; `None` if
    /// every write is answered.
    pub fn waiting(&self, node: usize) -> Option<u64> {
        self.nodes[node]
            .waiting
            .first()
            .map(|(since_ns, _)| *since_ns)
    }
}

#[cfg(test)]
mod tests;
